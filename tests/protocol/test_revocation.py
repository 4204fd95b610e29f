"""A token that is good no more: revoked, expired or replaced, everything that came in with it ends, and nothing else."""

import asyncio
import contextlib
import json
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from tests.protocol.api import Api
from tests.protocol.client import Worker
from tests.protocol.hub import RunningHub
from tests.protocol.test_enrol import own_token
from tests.protocol.web import Service, relaying, run_service, service_worker

from ostler.domain.joining import read_invitation

WITHIN_S = 60.0
GRACE_S = 60.0
Document = dict[str, Any]


async def made(hub: RunningHub, role: str = "user", user: str = "ann", **more: Any) -> Document:
    found: Document = await hub.api.post("/v1/tokens", {"role": role, "user": user, **more}, 201)
    return found


async def revoke(hub: RunningHub, token_id: str) -> None:
    assert (await hub.api.call("DELETE", f"/v1/tokens/{token_id}")).status == 200


async def ends(content: aiohttp.StreamReader) -> None:
    """The hub closes the connection, within the time that it has for that."""
    async with asyncio.timeout(WITHIN_S):
        with contextlib.suppress(aiohttp.ClientError, ConnectionError):
            while await content.readany():
                pass


# What lasts

Lasting = Callable[[RunningHub, Api], Awaitable[Callable[[], Awaitable[None]]]]
"""Begins something with the token of this caller that would never end, and gives a wait for its end."""


async def the_feed(hub: RunningHub, caller: Api) -> Callable[[], Awaitable[None]]:
    answer = await caller.session.get(caller.url + "/v1/events")
    assert await answer.content.readline() == b": connected\n"
    return lambda: ends(answer.content)


async def a_followed_log(hub: RunningHub, caller: Api) -> Callable[[], Awaitable[None]]:
    job = await caller.submit(gpu_count=7)
    answer = await caller.session.get(f"{caller.url}/v1/jobs/{job}/logs?follow=1")
    assert answer.status == 200
    return lambda: ends(answer.content)


async def a_socket_of_tools(hub: RunningHub, caller: Api) -> Callable[[], Awaitable[None]]:
    socket = await caller.session.ws_connect(caller.url.replace("http", "ws", 1) + "/v1/ws/cli")

    async def closed() -> None:
        assert (await socket.receive(WITHIN_S)).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)

    return closed


async def an_upload(hub: RunningHub, caller: Api) -> Callable[[], Awaitable[None]]:
    begun = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x" * 100_000
        begun.set()
        await asyncio.Event().wait()

    sending = asyncio.create_task(
        caller.session.put(caller.url + "/v1/snapshots/" + "a" * 64, data=pieces()).__aenter__()
    )
    await begun.wait()

    async def broken() -> None:
        async with asyncio.timeout(WITHIN_S):
            with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                assert (await sending).status == 400

    return broken


LASTING = [the_feed, a_followed_log, a_socket_of_tools, an_upload]


@pytest.mark.parametrize("begin", LASTING, ids=lambda one: one.__name__)
async def test_it_ends_when_its_token_is_revoked_and_not_with_anothers(hub: RunningHub, begin: Lasting) -> None:
    ours, others = await made(hub), await made(hub, user="ben")
    wait = await begin(hub, hub.caller(ours["token"]))
    another = await begin(hub, hub.caller(others["token"]))
    await revoke(hub, ours["id"])
    await wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(another(), 0.1)


@pytest.mark.parametrize("begin", LASTING, ids=lambda one: one.__name__)
async def test_it_ends_when_its_token_has_expired(hub: RunningHub, begin: Lasting) -> None:
    token = await made(hub, expires_s=100)
    wait = await begin(hub, hub.caller(token["token"]))
    await hub.pass_time(101)
    await wait()


async def test_whoever_does_not_read_is_cut_off_all_the_same(hub: RunningHub) -> None:
    token = await made(hub)
    address = hub.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(*address, limit=1024)
    asked = f"GET /v1/events HTTP/1.1\r\nHost: {':'.join(address)}\r\nAuthorization: Bearer {token['token']}\r\n\r\n"
    writer.write(asked.encode())
    await reader.readuntil(b": connected")
    await revoke(hub, token["id"])
    async with asyncio.timeout(WITHIN_S):
        with contextlib.suppress(ConnectionError):
            await reader.read()
    writer.close()


async def test_the_answer_to_whoever_revokes_its_own_token_still_comes(hub: RunningHub) -> None:
    token = await made(hub, "operator")
    caller = hub.caller(token["token"])
    assert (await caller.call("DELETE", f"/v1/tokens/{token['id']}")).status == 200
    assert (await caller.call("GET", "/v1/me")).status == 401


# Workers


@asynccontextmanager
async def connected(hub: RunningHub, token: str, name: str = "w") -> AsyncIterator[Worker]:
    worker = hub.stranger(name)
    worker.token = token
    await hub.join(worker)
    try:
        yield worker
    finally:
        await worker.drop()


async def test_a_workers_socket_ends_in_words_and_its_tasks_are_orphans(hub: RunningHub) -> None:
    token = await own_token(hub)
    async with connected(hub, token) as worker:
        [one] = [one for one in (await hub.api.get("/v1/tokens"))["tokens"] if one["role"] == "worker"]
        await revoke(hub, one["id"])
        assert await worker.closed() == 1008
    await hub.api.until_status("w", "offline")


async def test_a_worker_whose_token_expires_is_not_heard_once_more(hub: RunningHub) -> None:
    token = await made(hub, "worker", "w", expires_s=100)
    async with connected(hub, token["token"]) as worker:
        await hub.pass_time(95, beating=[worker])
        await hub.pass_time(6)
        assert await worker.closed() == 1008


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    running = Service()
    running.port = await running.start()  # type: ignore[attr-defined]
    try:
        yield running
    finally:
        await running.stop()


async def test_a_call_of_a_service_ends_on_both_sides_with_its_callers_token(hub: RunningHub, service: Service) -> None:
    worker = await service_worker(hub)
    await run_service(hub, worker)
    token = await made(hub, "operator")
    caller = hub.caller(token["token"])
    async with relaying(worker, service.port):  # type: ignore[attr-defined]
        answer = await caller.session.get(caller.url + "/services/web/slowly")
        assert await service.met.get() == "slowly begins"
        chat = await caller.session.ws_connect(caller.url.replace("http", "ws", 1) + "/services/web/chat")
        await chat.send_str("hello")
        assert (await chat.receive(WITHIN_S)).data == "HELLO"
        await revoke(hub, token["id"])
        await ends(answer.content)
        assert await asyncio.wait_for(service.met.get(), WITHIN_S) == "slowly is cancelled"
        assert (await chat.receive(WITHIN_S)).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)


# Replacing


async def rotate(hub: RunningHub, token_id: str, status: int = 200) -> Document:
    found: Document = await hub.api.post(f"/v1/tokens/{token_id}/rotate", status=status)
    return found


async def is_good(hub: RunningHub, token: str) -> bool:
    return (await hub.caller(token).call("GET", "/v1/me")).status == 200


async def test_a_replaced_token_is_good_for_a_minute_beside_the_new_one(hub: RunningHub) -> None:
    old = await made(hub, "viewer", "ann")
    new = await rotate(hub, old["id"])
    assert (new["role"], new["user"], new["expires_at"]) == ("viewer", "ann", None)
    assert new["id"] != old["id"] and new["token"] != old["token"]
    await hub.pass_time(GRACE_S - 1)
    assert await is_good(hub, old["token"]) and await is_good(hub, new["token"])
    wait = await the_feed(hub, hub.caller(old["token"]))
    await hub.pass_time(2)
    await wait()
    assert not await is_good(hub, old["token"]) and await is_good(hub, new["token"])
    await hub.restart()
    assert not await is_good(hub, old["token"]) and await is_good(hub, new["token"])


async def test_what_is_put_in_place_of_a_token_that_expires_lasts_as_long(hub: RunningHub) -> None:
    old = await made(hub, expires_s=1000)
    await hub.pass_time(990)
    new = await rotate(hub, old["id"])
    await hub.pass_time(15)
    assert not await is_good(hub, old["token"]), "a minute more would be longer than it was good for"
    await hub.pass_time(980)
    assert await is_good(hub, new["token"])
    await hub.pass_time(10)
    assert not await is_good(hub, new["token"])


async def test_a_token_is_replaced_once_and_whoever_lost_the_answer_is_told_by_which(hub: RunningHub) -> None:
    old = await made(hub)
    new = await rotate(hub, old["id"])
    refused = (await hub.api.call("POST", f"/v1/tokens/{old['id']}/rotate")).problem(409)
    assert f"was replaced by {new['id']} a moment ago" in refused["detail"]
    assert (await rotate(hub, new["id"]))["expires_at"] is None


async def test_only_what_is_good_can_be_replaced(hub: RunningHub) -> None:
    over, gone = await made(hub, expires_s=1), await made(hub)
    joining = await hub.api.post("/v1/tokens", {"role": "join-once"}, 201)
    await hub.pass_time(2)
    await revoke(hub, gone["id"])
    for token_id in (over["id"], gone["id"], joining["id"], "admin-before", "nobody"):
        (await hub.api.call("POST", f"/v1/tokens/{token_id}/rotate")).problem(404)


@pytest.mark.parametrize("kind", ["admin", "join"])
async def test_the_hubs_own_tokens_are_replaced_in_their_files_and_nowhere_else(hub: RunningHub, kind: str) -> None:
    file = hub.state / f"{kind}.token"
    old = file.read_text().strip()
    answer = await rotate(hub, kind)
    new = file.read_text().strip()
    assert new != old and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert new not in json.dumps(answer)
    assert await is_good(hub, old) and await is_good(hub, new)
    await hub.pass_time(GRACE_S + 1)
    assert not await is_good(hub, old) and await is_good(hub, new)
    hub.api = hub.caller((hub.state / "admin.token").read_text().strip())


async def test_who_came_with_the_former_join_token_is_let_go_after_a_minute(hub: RunningHub) -> None:
    worker = await hub.worker()
    await rotate(hub, "join")
    await hub.pass_time(GRACE_S - 5, beating=[worker])
    await worker.quiet()
    await hub.pass_time(6)
    assert await worker.closed() == 1008


async def test_a_worker_gets_its_new_token_over_its_own_connection(hub: RunningHub) -> None:
    old = await own_token(hub)
    async with connected(hub, old) as worker:
        [known] = [one for one in (await hub.api.get("/v1/tokens"))["tokens"] if one["role"] == "worker"]
        answer = await rotate(hub, known["id"], 202)
        new = str((await worker.expect("ack", of="token"))["token"])
        assert "token" not in answer and new not in json.dumps(answer)
        await hub.pass_time(2 * GRACE_S, beating=[worker])
        assert await is_good(hub, old), "until the worker has said that it keeps the new one"
        assert await hub.caller(new).post("/v1/enrol/renewed") == {"name": "w"}
        await hub.pass_time(GRACE_S + 5, beating=[worker])
        assert not await is_good(hub, old) and await is_good(hub, new)
        await asyncio.sleep(1.5)  # longer than the hub takes to look for what has expired
        await worker.quiet()
        await revoke(hub, answer["id"])
        assert await worker.closed() == 1008


async def test_a_worker_that_is_away_cannot_be_given_another(hub: RunningHub) -> None:
    await own_token(hub)
    [known] = [one for one in (await hub.api.get("/v1/tokens"))["tokens"] if one["role"] == "worker"]
    refused = (await hub.api.call("POST", f"/v1/tokens/{known['id']}/rotate")).problem(409)
    assert "not connected" in refused["detail"]


async def test_nobody_but_the_worker_itself_says_that_it_keeps_a_token(hub: RunningHub) -> None:
    for token in (hub.join_token, (await made(hub, "worker", "worker"))["token"]):
        (await hub.caller(token).call("POST", "/v1/enrol/renewed")).problem(404)
    for token in (hub.admin_token, (await made(hub))["token"]):
        (await hub.caller(token).call("POST", "/v1/enrol/renewed")).problem(403)


async def test_a_join_token_cannot_be_made_to_last_for_days(hub: RunningHub) -> None:
    (await hub.api.call("POST", "/v1/tokens", json={"role": "join-once", "expires_s": 86_401})).problem(422)
    found = await hub.api.post("/v1/tokens", {"role": "join-once"}, 201)
    assert read_invitation(found["token"])[0] == "", "a hub without TLS has no certificate to be known by"
