"""Snapshots as a submit names them: they must be there, and a label is only a label."""

import hashlib

from tests.protocol.api import Api
from tests.protocol.client import Worker
from tests.protocol.hub import RunningHub

DATA = b"the files"
SHA256 = hashlib.sha256(DATA).hexdigest()
ABSENT = "0" * 64


async def put(api: Api) -> None:
    assert (await api.call("PUT", f"/v1/snapshots/{SHA256}", data=DATA)).status == 201


async def refused(api: Api, **spec: str) -> str:
    """The detail of the refusal of such a job, which must blame the snapshot."""
    problem = (await api.call("POST", "/v1/jobs", json={"command": ["true"], **spec})).problem(422)
    assert [error["where"] for error in problem["errors"]] == list(spec)[-1:]
    return str(problem["detail"])


async def test_a_snapshot_that_does_not_exist_is_refused_from_everybody(hub: RunningHub, api: Api) -> None:
    await put(await hub.user("ann"))
    bob = await hub.user("bob")
    assert f"no blob {ABSENT}; bring it first" in await refused(api, snapshot_id=ABSENT)
    assert f"no blob {ABSENT}" in await refused(api, snapshot_id="label", snapshot_sha=ABSENT)
    assert f"no blob {SHA256} of yours" in await refused(bob, snapshot_id=SHA256)
    await api.submit(snapshot_id=SHA256)


async def test_a_snapshot_sha_that_is_no_hash_is_refused(api: Api) -> None:
    assert "64 hexadecimal digits" in await refused(api, snapshot_sha="latest")


async def test_a_label_alone_is_kept_and_nothing_is_fetched(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker()
    job = await api.submit(snapshot_id="snap-2026")
    task = await worker.take(job)
    assert not task.payload["spec"].get("snapshot_id"), "the worker would fetch it"
    assert (await api.job(job))["spec"]["snapshot_id"] == "snap-2026"


async def test_a_worker_of_ostlers_own_gets_the_hash_where_the_user_gave_a_label_too(hub: RunningHub, api: Api) -> None:
    await put(api)
    worker = await hub.worker(slots=2)
    for given in ({"snapshot_id": "snap", "snapshot_sha": SHA256}, {"snapshot_sha": SHA256}, {"snapshot_id": SHA256}):
        task = await worker.take(await api.submit(**given))
        assert task.payload["spec"]["snapshot_id"] == SHA256
        await worker.end(task)


async def test_a_worker_may_fetch_the_blob_of_its_task(hub: RunningHub, api: Api) -> None:
    await put(api)
    worker: Worker = hub.stranger("w")
    worker.token = str((await hub.caller(hub.join_token).post("/v1/enrol", {"name": "w"}, 201))["token"])
    await hub.join(worker)
    as_worker = hub.caller(worker.token)
    assert (await as_worker.call("GET", f"/v1/snapshots/{SHA256}")).status == 404
    await worker.take(await api.submit(snapshot_id="snap", snapshot_sha=SHA256))
    assert (await as_worker.call("GET", f"/v1/snapshots/{SHA256}")).body == DATA
