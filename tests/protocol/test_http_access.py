"""Who may do what: 401 before anything else, 403 by role, tokens, what users see of each other, the files."""

import stat
from pathlib import Path
from typing import Any

import pytest
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub

from ostler.domain.errors import BadInput
from ostler.domain.records import TokenRecord
from ostler.hub.access import SESSION_KEY, Access, digest

JOB = {"command": ["true"]}


@pytest.fixture(params=["", "wrong"], ids=["no token", "an unknown token"])
async def nobody(hub: RunningHub, request: pytest.FixtureRequest) -> Api:
    return hub.caller(request.param)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/no/such/path", None),
        ("PATCH", "/v1/jobs", None),
        ("DELETE", "/v1/jobs/x", None),
        ("POST", "/v1/jobs", b"not json"),
        ("POST", "/v1/jobs", b'{"unknown": 1}'),
        ("POST", "/v1/jobs", b"x" * 10_000_000),
        ("GET", "/v1/jobs?limit=many", None),
        ("PUT", "/v1/snapshots/short", b"bytes"),
    ],
    ids=[
        "unknown path",
        "bad method",
        "bad method on a job",
        "not json",
        "bad field",
        "10 MB",
        "bad query",
        "bad hash",
    ],
)
async def test_401_comes_before_anything_else_is_looked_at(
    nobody: Api, method: str, path: str, body: bytes | None
) -> None:
    answer = await nobody.call(method, path, data=body)
    answer.problem(401)
    assert "bearer" in answer.headers["WWW-Authenticate"].lower()


@pytest.mark.parametrize("header", ["Basic abc", "Bearer", "Bearer ", "bearer\u00e9 x", "Token {admin}", "{admin}"])
async def test_a_header_that_is_no_bearer_token_is_401(hub: RunningHub, header: str) -> None:
    nobody = hub.caller("")
    value = header.replace("{admin}", hub.admin_token)
    (await nobody.call("GET", "/v1/me", headers={"Authorization": value})).problem(401)


async def test_health_needs_no_token(hub: RunningHub) -> None:
    found = await hub.caller("").get("/v1/health")
    assert found["status"] == "ok"
    assert found["version"]


@pytest.mark.parametrize(
    ("role", "method", "path"),
    [
        ("viewer", "POST", "/v1/jobs"),
        ("viewer", "POST", "/v1/jobs/{job}/cancel"),
        ("viewer", "POST", "/v1/jobs/{job}/requeue"),
        ("viewer", "POST", "/v1/tokens"),
        ("viewer", "GET", "/v1/tokens"),
        ("viewer", "PUT", "/v1/snapshots/" + "0" * 64),
        ("user", "POST", "/v1/tokens"),
        ("user", "GET", "/v1/tokens"),
        ("user", "DELETE", "/v1/tokens/x"),
        ("user", "POST", "/v1/workers/w/drain"),
        ("user", "POST", "/v1/workers/w/resume"),
        ("user", "POST", "/v1/tasks/{job}/logs"),
        ("operator", "POST", "/v1/tasks/{job}/logs"),
        ("worker", "GET", "/v1/jobs"),
        ("worker", "POST", "/v1/jobs"),
        ("worker", "GET", "/v1/jobs/{job}"),
        ("worker", "POST", "/v1/jobs/{job}/cancel"),
        ("worker", "GET", "/v1/workers"),
        ("worker", "GET", "/v1/events"),
        ("worker", "GET", "/v1/tokens"),
        ("worker", "POST", "/v1/workers/w/drain"),
    ],
)
async def test_a_role_that_does_not_reach_so_far_is_403(hub: RunningHub, role: str, method: str, path: str) -> None:
    job = await hub.api.submit()
    caller = await hub.user("somebody", role)
    (await caller.call(method, path.replace("{job}", job))).problem(403)
    assert await hub.api.state(job) == "pending"


async def test_the_join_token_lets_workers_in_and_nobody_else(hub: RunningHub) -> None:
    joining = hub.caller(hub.join_token)
    (await joining.call("GET", "/v1/jobs")).problem(403)
    (await joining.call("POST", "/v1/jobs", json=JOB)).problem(403)


async def test_me_says_whose_token_it_is(hub: RunningHub) -> None:
    assert (await hub.api.get("/v1/me"))["role"] == "operator"
    assert await (await hub.user("ann")).get("/v1/me") == {"role": "user", "user": "ann"}
    assert (await (await hub.user("", "worker")).get("/v1/me"))["role"] == "worker"


async def test_an_unknown_path_is_404_and_a_wrong_method_405_each_as_a_problem(api: Api) -> None:
    (await api.call("GET", "/v1/no/such/path")).problem(404)
    (await api.call("GET", "/nothing")).problem(404)
    wrong = await api.call("PATCH", "/v1/jobs")
    assert wrong.problem(405) and wrong.headers["Allow"] == "GET, HEAD, POST"
    (await api.call("DELETE", "/v1/jobs/x")).problem(405)
    (await api.call("POST", "/v1/workers")).problem(405)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/jobs/nothing"),
        ("GET", "/v1/jobs/nothing/why"),
        ("GET", "/v1/jobs/nothing/logs"),
        ("GET", "/v1/jobs/nothing/events"),
        ("GET", "/v1/jobs/nothing/tasks"),
        ("GET", "/v1/jobs/nothing/result"),
        ("POST", "/v1/jobs/nothing/cancel"),
        ("POST", "/v1/jobs/nothing/requeue"),
        ("GET", "/v1/workers/nothing"),
        ("POST", "/v1/workers/nothing/drain"),
        ("DELETE", "/v1/tokens/nothing"),
        ("GET", "/v1/snapshots/" + "0" * 64),
    ],
)
async def test_what_is_not_there_is_404(api: Api, method: str, path: str) -> None:
    (await api.call(method, path)).problem(404)


# Users and each other


async def test_users_see_only_their_own_jobs(hub: RunningHub) -> None:
    ann, bob = await hub.user("ann"), await hub.user("bob")
    hers = await ann.submit(name="hers")
    for path in ("", "/why", "/logs", "/events", "/tasks", "/result"):
        (await bob.call("GET", f"/v1/jobs/{hers}{path}")).problem(404)
    for path in ("/cancel", "/requeue"):
        (await bob.call("POST", f"/v1/jobs/{hers}{path}")).problem(404)
    (await bob.call("GET", "/v1/jobs/hers")).problem(404)
    assert (await bob.get("/v1/jobs"))["jobs"] == []
    assert (await bob.get("/v1/jobs?user=ann"))["jobs"] == []
    assert [job["id"] for job in (await ann.get("/v1/jobs"))["jobs"]] == [hers]
    assert await ann.state(hers) == "pending"


async def test_operators_and_viewers_see_everybodys_jobs(hub: RunningHub) -> None:
    hers = await (await hub.user("ann")).submit()
    viewer = await hub.user("eve", "viewer")
    for caller in (hub.api, viewer):
        assert (await caller.job(hers))["user_id"] == "ann"
        assert [job["id"] for job in (await caller.get("/v1/jobs?user=ann"))["jobs"]] == [hers]


async def test_an_operator_may_cancel_anybodys_job(hub: RunningHub) -> None:
    hers = await (await hub.user("ann")).submit()
    assert (await hub.api.cancel(hers))["state"] == "cancelled"


async def test_a_name_means_the_callers_own_newest_job_whatever_others_called_theirs(hub: RunningHub) -> None:
    ann, bob = await hub.user("ann"), await hub.user("bob")
    hers = await ann.submit(name="mlp")
    his = await bob.submit(name="mlp")
    assert (await ann.job("mlp"))["id"] == hers
    assert (await bob.job("mlp"))["id"] == his


async def test_anothers_job_does_not_make_a_prefix_ambiguous(hub: RunningHub) -> None:
    ann, bob = await hub.user("ann"), await hub.user("bob")
    await ann.submit(id="run-1")
    await bob.submit(id="run-2")
    assert (await ann.job("run-"))["id"] == "run-1"
    assert (await bob.job("run-"))["id"] == "run-2"


async def test_only_an_operator_submits_for_somebody_else(hub: RunningHub) -> None:
    ann = await hub.user("ann")
    assert (await ann.job(await ann.submit(user_id="ann")))["user_id"] == "ann"
    (await ann.call("POST", "/v1/jobs", json={**JOB, "user_id": "bob"})).problem(403)
    assert (await hub.api.job(await hub.api.submit(user_id="bob")))["user_id"] == "bob"


async def test_users_see_only_their_own_jobs_in_the_feed(hub: RunningHub) -> None:
    ann, bob = await hub.user("ann"), await hub.user("bob")
    async with bob.feed() as feed:
        await ann.submit()
        his = await bob.submit()
        event = await feed.next()
        assert (event["kind"], event["subject"]) == ("job", his)


# Tokens


async def test_a_new_token_works_at_once_and_a_revoked_one_at_once_no_more(hub: RunningHub, api: Api) -> None:
    created = await api.post("/v1/tokens", {"role": "user", "user": "ann"}, 201)
    assert created["role"] == "user"
    ann = hub.caller(created["token"])
    await ann.submit()
    assert (await api.call("DELETE", f"/v1/tokens/{created['id']}")).status == 200
    ann = hub.caller(created["token"])  # the connections that came with it are cut
    (await ann.call("POST", "/v1/jobs", json=JOB)).problem(401)
    (await ann.call("GET", "/v1/jobs")).problem(401)


async def test_tokens_are_listed_without_their_secrets(api: Api) -> None:
    created = await api.post("/v1/tokens", {"role": "viewer", "user": "eve"}, 201)
    answer = await api.call("GET", "/v1/tokens")
    assert created["token"] not in answer.body.decode()
    [listed] = [token for token in answer.json()["tokens"] if token["id"] == created["id"]]
    assert (listed["role"], listed["user"], listed["revoked_at"]) == ("viewer", "eve", None)
    await api.call("DELETE", f"/v1/tokens/{created['id']}")
    tokens = (await api.get("/v1/tokens"))["tokens"]
    assert next(token for token in tokens if token["id"] == created["id"])["revoked_at"]


async def test_the_hubs_own_tokens_cannot_be_revoked(api: Api) -> None:
    for name in ("admin", "join"):
        (await api.call("DELETE", f"/v1/tokens/{name}")).problem(404)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"not json", 400),
        (b"", 400),
        (b'{"role": "emperor"}', 422),
        (b'{"user": "ann"}', 422),
        (b'{"role": 3}', 422),
        (b'{"role": "user", "colour": "red"}', 422),
        (b"[]", 422),
    ],
)
async def test_a_bad_wish_for_a_token_is_refused(api: Api, body: bytes, status: int) -> None:
    (await api.call("POST", "/v1/tokens", data=body)).problem(status)


# Files


async def test_the_hubs_files_are_its_users_alone(hub: RunningHub) -> None:
    for name in ("ostler.db", "admin.token", "join.token"):
        assert stat.S_IMODE((hub.state / name).stat().st_mode) == 0o600, name
    await hub.api.submit()
    for path in hub.state.rglob("*"):
        if path.is_file():
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


async def test_no_secret_is_kept_but_in_the_two_token_files(hub: RunningHub) -> None:
    created: dict[str, Any] = await hub.api.post("/v1/tokens", {"role": "user", "user": "ann"}, 201)
    for path in hub.state.rglob("*"):
        if path.is_file():
            assert created["token"].encode() not in path.read_bytes()


@pytest.mark.parametrize("name", ["admin.token", "join.token", SESSION_KEY])
def test_a_file_without_a_secret_in_it_starts_no_hub(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("\n")
    with pytest.raises(BadInput, match=f"{name} is empty"):
        Access(tmp_path, [])


@pytest.mark.parametrize("blank", ["", " ", "\xa0", "\t \x85"])
def test_a_blank_is_no_token_whatever_is_known(tmp_path: Path, blank: str) -> None:
    known = TokenRecord(id="x", role="operator", user="x", digest=digest(""), created_at=0)
    assert Access(tmp_path, [known]).caller(f"Bearer {blank}") is None
