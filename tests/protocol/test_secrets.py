"""Secrets over HTTP and on the wire: whose they are, who is given them, and that nobody reads them back."""

import base64
import os
import stat

import pytest
from tests.protocol.api import Answer, Api
from tests.protocol.hub import RunningHub
from tests.protocol.puller import Puller

VALUE = b"canary-of-the-secrets"


async def put(api: Api, name: str, value: bytes = VALUE, **query: str) -> Answer:
    return await api.call("PUT", f"/v1/secrets/{name}", data=value, params=query)


async def names(api: Api) -> list[tuple[str, str, bool]]:
    return [(one["name"], one["user"], one["fleet"]) for one in (await api.get("/v1/secrets"))["secrets"]]


async def test_each_user_has_their_own_and_an_operator_makes_everybodys(hub: RunningHub, api: Api) -> None:
    ann, bob = await hub.user("ann"), await hub.user("bob")
    assert (await put(ann, "mine")).status == 200
    assert (await put(bob, "mine", b"bobs")).status == 200
    assert (await put(api, "shared", fleet="1")).status == 200
    assert await names(ann) == [("mine", "ann", False), ("shared", "", True)]
    assert await names(bob) == [("mine", "bob", False), ("shared", "", True)]
    assert await names(api) == [("mine", "ann", False), ("mine", "bob", False), ("shared", "", True)]


async def test_nobody_changes_anothers(hub: RunningHub, api: Api) -> None:
    ann, bob = await hub.user("ann"), await hub.user("bob")
    await put(ann, "mine")
    (await put(bob, "mine", user="ann")).problem(403)
    (await put(bob, "shared", fleet="1")).problem(403)
    (await bob.call("DELETE", "/v1/secrets/mine?user=ann")).problem(403)
    (await bob.call("DELETE", "/v1/secrets/mine")).problem(404)
    (await put(api, "mine", user="ann", fleet="1")).problem(422)
    viewer = await hub.user("eve", "viewer")
    (await viewer.call("GET", "/v1/secrets")).problem(403)
    assert (await api.call("DELETE", "/v1/secrets/mine?user=ann")).status == 200
    assert await names(ann) == []


@pytest.mark.parametrize("name", ["", "with space", "a@b", "-first", "x" * 65, "a%2Fb", "..", "é"])
async def test_a_name_that_is_none_is_refused(api: Api, name: str) -> None:
    assert (await put(api, name)).status in (404, 405, 422)
    assert await names(api) == []


@pytest.mark.parametrize(("value", "status"), [(b"", 422), (b"x" * 16_384, 200), (b"x" * 16_385, 413)])
async def test_it_has_a_size(api: Api, value: bytes, status: int) -> None:
    assert (await put(api, "s", value)).status == status


async def test_nobody_reads_it_back_and_the_ledger_has_it_sealed(hub: RunningHub, api: Api) -> None:
    answer = await put(api, "s")
    assert VALUE not in answer.body
    for path in ("/v1/secrets", "/v1/audit", "/v1/status", "/metrics"):
        assert VALUE not in (await api.call("GET", path)).body
    assert (await api.call("GET", "/v1/secrets/s")).status == 405
    await hub.stop()
    files = [path for path in hub.state.rglob("*") if path.is_file()]
    assert not [path for path in files if VALUE in path.read_bytes() or base64.b64encode(VALUE) in path.read_bytes()]
    assert stat.S_IMODE((hub.state / "secret.key").stat().st_mode) == 0o600
    await hub.start()
    assert await names(hub.api) == [("s", "admin", False)]


async def test_a_job_is_given_its_owners_before_everybodys_and_no_one_elses(hub: RunningHub, api: Api) -> None:
    ann, bob = await hub.user("ann"), await hub.user("bob")
    await put(api, "both", b"everybodys", fleet="1")
    await put(ann, "both", b"anns")
    await put(ann, "only", b"for ann alone")
    worker = await hub.worker("w")
    for caller, wanted, expected in (
        (ann, ["both", "only:VAR"], {"both": b"anns", "only": b"for ann alone"}),
        (bob, ["both"], {"both": b"everybodys"}),
    ):
        job = await caller.submit(secrets=wanted)
        task = await worker.take(job)
        found = {name: base64.b64decode(value) for name, value in task.payload["secrets"].items()}
        assert found == expected
        assert (await caller.job(job))["spec"]["secrets"] == wanted
        await worker.end(task)
    (await bob.call("POST", "/v1/jobs", json={"command": ["true"], "secrets": ["only"]})).problem(422)
    many = [{"command": ["true"]}, {"command": ["true"], "secrets": ["only"]}]
    (await bob.call("POST", "/v1/jobs", json=many)).problem(422)


async def test_a_machine_that_only_claims_gets_no_job_with_secrets(hub: RunningHub, api: Api) -> None:
    await put(api, "s")
    await api.submit(secrets=["s"])
    plain = await api.submit()
    puller = Puller(hub, "box")
    assert (await puller.claim())["job_id"] == plain
    assert (await puller.ask()).status == 204


@pytest.mark.parametrize("wanted", [["a b"], ["a:"], ["a:1X"], ["s", "s"], ["s", "s:V"], ["x"] * 17, "s"])
async def test_what_no_job_can_name_is_refused(api: Api, wanted: object) -> None:
    await put(api, "s")
    (await api.call("POST", "/v1/jobs", json={"command": ["true"], "secrets": wanted})).problem(422)


async def test_without_its_key_a_secret_is_lost_and_nothing_else(hub: RunningHub, api: Api) -> None:
    await put(api, "s")
    await hub.stop()
    (hub.state / "secret.key").unlink()
    await hub.start()
    assert (await put(hub.api, "t")).status == 500, "a new key beside the old boxes would lose them for good"
    worker = await hub.worker("w")
    job = await hub.api.submit(secrets=["s"])
    task = await worker.take(job)
    assert "secrets" not in task.payload, "its worker says that it is not there"
    await worker.end(task)


async def test_a_key_that_could_not_be_written_leaves_no_half_of_one(
    hub: RunningHub, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", lambda _: os.close(-1))
        assert (await put(api, "s")).status >= 500
    assert not (hub.state / "secret.key").exists()
    assert (await put(api, "s")).status == 200
    assert stat.S_IMODE((hub.state / "secret.key").stat().st_mode) == 0o600
    assert [path.name for path in hub.state.glob("*secret*")] == ["secret.key"]
