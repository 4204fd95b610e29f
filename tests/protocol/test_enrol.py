"""How a machine gets a token of its own, and how far that reaches."""

import asyncio
from typing import Any

import pytest
from tests.protocol.api import Answer, Api
from tests.protocol.client import Closed
from tests.protocol.hub import RunningHub
from tests.protocol.process_hub import ProcessHub
from tests.protocol.test_permissions import calls, concrete

from ostler.hub.ids import new_token_secret
from ostler.hub.permissions import ANYONE, JOIN_ONCE


async def join_token(hub: RunningHub, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = await hub.api.post("/v1/tokens", {"role": "join-once", **more}, 201)
    return made


async def newcomer(hub: RunningHub, **more: Any) -> Api:
    return hub.caller((await join_token(hub, **more))["token"])


async def enrol(caller: Api, name: str = "w") -> Answer:
    return await caller.call("POST", "/v1/enrol", json={"name": name})


async def own_token(hub: RunningHub, name: str = "w") -> str:
    answer = await enrol(await newcomer(hub), name)
    assert answer.status == 201, answer
    return str(answer.json()["token"])


async def registered(hub: RunningHub, token: str, name: str) -> bool:
    """Whether a worker with this token is let in under this name."""
    worker = hub.stranger(name)
    worker.token = token
    await worker.connect()
    try:
        await worker.register()
    except (Closed, AssertionError):
        return False
    finally:
        await worker.drop()
    return True


# The exchange


async def test_a_join_token_is_exchanged_for_a_token_that_registers_that_worker(hub: RunningHub) -> None:
    answer = await enrol(await newcomer(hub), "gpu-1")
    assert answer.status == 201
    document = answer.json()
    assert document.keys() == {"token", "name"}
    assert document["name"] == "gpu-1"
    assert await hub.caller(document["token"]).get("/v1/me") == {"role": "worker", "user": "gpu-1"}
    assert await registered(hub, document["token"], "gpu-1")


async def test_a_second_use_is_refused_in_words_that_help(hub: RunningHub) -> None:
    caller = await newcomer(hub)
    assert (await enrol(caller, "one")).status == 201
    refused = (await enrol(caller, "two")).problem(401)
    assert "has been used" in refused["detail"] and "ostler token create --join" in refused["detail"]


async def test_of_many_concurrent_uses_exactly_one_wins(hub: RunningHub) -> None:
    token = (await join_token(hub))["token"]
    callers = [hub.caller(token) for _ in range(20)]
    answers = await asyncio.gather(*(enrol(caller, f"w{number}") for number, caller in enumerate(callers)))
    assert sorted(answer.status for answer in answers) == [201] + [401] * 19
    workers = [token for token in (await hub.api.get("/v1/tokens"))["tokens"] if token["role"] == "worker"]
    assert len(workers) == 1


async def test_the_hubs_own_join_token_enrols_as_often_as_wanted(hub: RunningHub) -> None:
    caller = hub.caller(hub.join_token)
    tokens = [(await enrol(caller, name)).json()["token"] for name in ("a", "b", "c")]
    for name, token in zip("abc", tokens, strict=True):
        assert (await hub.caller(token).get("/v1/me"))["user"] == name


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", "ä", "x" * 129, "worker"])
async def test_a_bad_name_is_refused_and_the_token_is_still_good(hub: RunningHub, name: str) -> None:
    caller = await newcomer(hub)
    (await enrol(caller, name)).problem(422)
    assert (await enrol(caller, "good")).status == 201


@pytest.mark.parametrize(("body", "status"), [(b"no json", 400), (b"{}", 422), (b'{"name": 1}', 422), (b"[]", 422)])
async def test_a_body_that_is_none_spends_nothing(hub: RunningHub, body: bytes, status: int) -> None:
    caller = await newcomer(hub)
    (await caller.call("POST", "/v1/enrol", data=body)).problem(status)
    assert (await enrol(caller)).status == 201


async def test_a_machine_that_is_set_up_anew_gets_a_new_token_and_its_old_one_ends(hub: RunningHub) -> None:
    old = await own_token(hub, "w")
    new = await own_token(hub, "w")
    assert (await hub.caller(old).call("GET", "/v1/me")).problem(401)["detail"].startswith("this token was revoked")
    assert (await hub.caller(new).get("/v1/me"))["user"] == "w"


async def test_the_name_of_a_connected_worker_is_not_given_to_another_machine(hub: RunningHub) -> None:
    await hub.worker("w")
    caller = await newcomer(hub)
    assert "--name" in (await enrol(caller, "w")).problem(409)["detail"]
    assert (await enrol(caller, "other")).status == 201


@pytest.mark.parametrize("path", ["/v1/enrol", "/v1/leave"])
@pytest.mark.parametrize("token", ["", "wrong"])
async def test_nobody_enrols_or_leaves_without_a_token(hub: RunningHub, path: str, token: str) -> None:
    (await hub.caller(token).call("POST", path, json={"name": "w"})).problem(401)


# What it opens, and for how long


async def test_a_join_token_opens_nothing_else(hub: RunningHub) -> None:
    caller = await newcomer(hub)
    for method, path, roles in calls():
        if roles != ANYONE and JOIN_ONCE not in roles:
            answer = await caller.call(method, concrete(path))
            assert answer.status == 403, (method, path, answer)
    for socket in ("/v1/ws/worker", "/v1/ws/cli", "/v1/ws/relay/x"):
        handshake = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        key = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
        (await caller.call("GET", socket, headers=handshake | key)).problem(403)
    (await caller.call("POST", "/v1/leave")).problem(403)
    assert (await enrol(caller)).status == 201


@pytest.mark.parametrize("role", ["viewer", "user", "operator", "worker"])
async def test_no_other_token_enrols(hub: RunningHub, role: str) -> None:
    (await enrol(await hub.user("ann", role))).problem(403)


async def test_a_join_token_is_good_for_a_quarter_of_an_hour_where_nothing_is_said(hub: RunningHub) -> None:
    early, late = await newcomer(hub), await newcomer(hub)
    await hub.pass_time(15 * 60 - 1)
    assert (await enrol(early, "early")).status == 201
    await hub.pass_time(2)
    refused = (await enrol(late, "late")).problem(401)
    assert "has expired" in refused["detail"] and "--join" in refused["detail"]


@pytest.mark.parametrize("role", ["viewer", "user", "operator", "worker", "join-once"])
async def test_a_token_of_any_role_ends_when_it_was_told_to(hub: RunningHub, role: str) -> None:
    made = await hub.api.post("/v1/tokens", {"role": role, "expires_s": 60}, 201)
    assert made["expires_at"] > made["created_at"]
    caller = hub.caller(made["token"])
    assert (await caller.call("GET", "/v1/me")).status in (200, 403)
    await hub.pass_time(60)
    (await caller.call("GET", "/v1/me")).problem(401)
    await hub.restart()
    (await hub.caller(made["token"]).call("GET", "/v1/me")).problem(401)


@pytest.mark.parametrize("seconds", [0, -1, "soon", 1e12])
async def test_a_token_cannot_be_made_for_no_time(hub: RunningHub, seconds: Any) -> None:
    (await hub.api.call("POST", "/v1/tokens", json={"role": "user", "expires_s": seconds})).problem(422)


async def test_a_revoked_join_token_is_refused(hub: RunningHub) -> None:
    made = await join_token(hub)
    await hub.api.call("DELETE", f"/v1/tokens/{made['id']}")
    refused = (await enrol(hub.caller(made["token"]))).problem(401)
    assert "was revoked" in refused["detail"]


def test_no_token_looks_like_an_option() -> None:
    assert not any(new_token_secret().startswith("-") for _ in range(1000))


# What is durable


async def test_what_was_answered_outlives_a_kill_of_the_hub(hub: RunningHub, tmp_path: Any) -> None:
    state = tmp_path / "killed"
    state.mkdir()
    process = ProcessHub(state)
    await asyncio.to_thread(process.start)
    try:
        operator = Api(process.url, process.token("admin"))
        once = (await operator.post("/v1/tokens", {"role": "join-once"}, 201))["token"]
        machine = Api(process.url, once)
        own = (await machine.post("/v1/enrol", {"name": "w"}, 201))["token"]
        for caller in (operator, machine):
            await caller.close()
        await asyncio.to_thread(process.kill)
        await asyncio.to_thread(process.start)
        worker, again = Api(process.url, own), Api(process.url, once)
        assert await worker.get("/v1/me") == {"role": "worker", "user": "w"}
        (await enrol(again, "x")).problem(401)
        for caller in (worker, again):
            await caller.close()
    finally:
        await asyncio.to_thread(process.kill)


async def test_no_secret_of_an_enrolment_is_kept(hub: RunningHub) -> None:
    made = await join_token(hub)
    own = (await enrol(hub.caller(made["token"]))).json()["token"]
    for path in hub.state.rglob("*"):
        if path.is_file():
            kept = path.read_bytes()
            assert made["token"].encode() not in kept and own.encode() not in kept


# A worker's own token


async def test_a_workers_own_token_serves_no_other_name(hub: RunningHub) -> None:
    token = await own_token(hub, "mine")
    worker = hub.stranger("yours")
    worker.token = token
    await worker.connect()
    await worker.send("register", id="yours", capabilities=worker.capabilities, active_tasks=[])
    error = await worker.expect_error()
    assert "mine" in error and "yours" in error
    assert await worker.closed() == 1008
    assert "yours" not in {document["id"] for document in (await hub.api.get("/v1/workers"))["workers"]}
    assert await registered(hub, token, "mine")


@pytest.mark.parametrize("user", ["", "worker"])
async def test_a_workers_token_that_names_nobody_serves_any_name(hub: RunningHub, user: str) -> None:
    token = (await hub.api.post("/v1/tokens", {"role": "worker", "user": user}, 201))["token"]
    assert await registered(hub, token, "one") and await registered(hub, token, "two")


async def test_a_revoked_token_also_ends_the_connection_that_it_opened(hub: RunningHub) -> None:
    worker = hub.stranger("w")
    worker.token = await own_token(hub, "w")
    bystander = await hub.worker("bystander")
    await hub.join(worker)
    [made] = [token for token in (await hub.api.get("/v1/tokens"))["tokens"] if token["user"] == "w"]
    await hub.api.call("DELETE", f"/v1/tokens/{made['id']}")
    assert await worker.closed() == 1008
    await hub.api.until_status("w", "offline")
    await bystander.beat()


async def test_a_token_that_has_expired_also_ends_the_connection_that_it_opened(hub: RunningHub) -> None:
    made = await hub.api.post("/v1/tokens", {"role": "worker", "user": "w", "expires_s": 15}, 201)
    worker = hub.stranger("w")
    worker.token = made["token"]
    await hub.join(worker)
    await hub.pass_time(10, beating=[worker])
    await hub.pass_time(10)
    await worker.send("heartbeat")
    assert await worker.closed() == 1008


async def test_a_worker_that_leaves_gives_its_token_back(hub: RunningHub) -> None:
    worker = hub.caller(await own_token(hub, "w"))
    assert await worker.post("/v1/leave") == {"name": "w"}
    (await worker.call("POST", "/v1/leave")).problem(401)


async def test_the_shared_tokens_of_workers_cannot_be_given_back(hub: RunningHub) -> None:
    shared = await hub.user("", "worker")
    for caller in (shared, hub.caller(hub.join_token)):
        (await caller.call("POST", "/v1/leave")).problem(404)
        assert (await caller.get("/v1/me"))["role"] in ("worker", "join")
