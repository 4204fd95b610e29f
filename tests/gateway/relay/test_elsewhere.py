"""Instances on other machines: their workers open the connections, the relay uses them like its own."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tests.gateway.relay.running_relay import PLAIN, SECRET, WAIT_S, Client, Line, RunningRelay, chat, key
from tests.gateway.relay.test_tunnel import SWITCH, UPGRADE

from ostler.gateway.control import Done, Gone, NeedTunnel, NoTunnel, Open, Refuse, Way
from ostler.gateway.relay.limits import Limits

WORKER, OPERATOR = "s3cret-of-a-worker", "s3cret-of-an-operator"
KEYS = [*PLAIN.keys, key(WORKER, "box", "worker"), key(OPERATOR, "root", "operator")]
ASKS = "Connection: Upgrade\r\nUpgrade: ostler-tunnel\r\n"


@pytest.fixture
async def far(tmp_path: Path) -> AsyncIterator[RunningRelay]:
    """A relay that knows of an instance on another machine, whose gate stands open."""
    limits = Limits(linger_s=0.1, look_every_s=0.05, connect_s=2.0)
    async with RunningRelay.open(tmp_path, limits, msgspec.structs.replace(PLAIN, keys=KEYS)) as relay:
        relay.hub.say(Open("i1", "small", "127.0.0.1", 5001, None, Way(tunnel=True)))
        await relay.settled()
        yield relay


async def asks(relay: RunningRelay, name: str, secret: str = WORKER, more: str = ASKS) -> Client:
    client = await relay.client()
    client.ask(path=f"/tunnel/{name}", more=more, secret=secret)
    return client


async def opened(relay: RunningRelay, needed: NeedTunnel | None = None, secret: str = WORKER) -> Line:
    """The worker's end of the tunnel that was asked for last: it speaks for the model's server."""
    needed = needed or await relay.hub.hears(NeedTunnel, instance="i1")
    worker = await asks(relay, needed.key, secret)
    head = await worker.head()
    assert (head.status, head.headers["upgrade"]) == (101, "ostler-tunnel")
    return Line(worker.reader, worker.writer)


async def answers(line: Line, body: bytes = b"{}") -> None:
    await line.request()
    line.answer(body)


async def test_one_tunnel_serves_one_request_after_the_other(far: RunningRelay) -> None:
    client = await far.client()
    client.ask(chat())
    line = await opened(far)
    heard = await line.request()
    assert (heard.target, heard.headers["host"]) == ("/v1/chat/completions", "127.0.0.1:5001")
    assert "authorization" not in heard.headers
    line.answer(b'{"first":true}')
    assert (await client.reply()).json == {"first": True}
    for number in range(3):
        client.ask(chat())
        await answers(line, b'{"n":%d}' % number)
        assert (await client.reply()).json == {"n": number}
    assert not far.hub.heard(NeedTunnel)
    assert len(far.core.callers) == 1


async def test_requests_at_the_same_time_have_a_tunnel_each(far: RunningRelay) -> None:
    clients = [await far.client() for _ in range(3)]
    for client in clients:
        client.ask(chat())
    needed = [await far.hub.hears(NeedTunnel) for _ in clients]
    assert len({one.key for one in needed}) == 3
    for one in needed:
        await answers(await opened(far, one))
    assert [(await client.reply()).status for client in clients] == [200, 200, 200]


async def test_a_stream_goes_at_the_speed_of_its_caller(far: RunningRelay) -> None:
    client = await far.client()
    client.ask(chat(stream=True))
    line = await opened(far)
    await line.request()
    line.begin_stream()
    (exchange,) = far.core.instances["i1"].exchanges
    upstream = exchange.upstream
    assert upstream is not None
    while upstream.transport.is_reading():
        line.event("x" * 100_000)
        await asyncio.sleep(0)
    line.event("last")
    line.send(b"0\r\n\r\n")
    assert (await client.reply()).body.endswith(b"data: last\n\n")


async def test_a_websocket_passes_through_a_tunnel(far: RunningRelay) -> None:
    client = await far.client()
    client.ask(path="/upstream/small", more=UPGRADE)
    line = await opened(far)
    assert (await line.request()).target == "/"
    line.send(SWITCH + b"hello")
    assert (await client.head()).status == 101
    assert await client.reader.readexactly(5) == b"hello"
    client.send(b"there")
    assert await line.reader.readexactly(5) == b"there"
    client.hang_up()
    assert await line.reader.read() == b""
    assert (await far.hub.hears(Done)).status == 101


async def test_a_key_opens_one_tunnel_and_no_other(far: RunningRelay) -> None:
    client = await far.client()
    client.ask(chat())
    needed = await far.hub.hears(NeedTunnel)
    wrong = await (await asks(far, needed.key + "x")).reply()
    assert (wrong.status, wrong.code) == (404, "not_found")
    await answers(await opened(far, needed))
    assert (await client.reply()).status == 200
    again = await (await asks(far, needed.key)).reply()
    assert (again.status, again.headers["connection"]) == (404, "close")


async def test_a_tunnel_is_opened_by_the_worker_that_it_was_asked_of(far: RunningRelay) -> None:
    keys = [*KEYS, key("s3cret-of-another", "other-box", "worker"), key("s3cret-of-any", "", "worker")]
    far.hub.say(msgspec.structs.replace(PLAIN, keys=keys))
    far.hub.say(Open("i1", "small", "127.0.0.1", 5001, None, Way(tunnel=True, worker="box")))
    await far.settled()
    for secret in (WORKER, "s3cret-of-any"):
        client = await far.client()
        client.ask(chat())
        needed = await far.hub.hears(NeedTunnel, instance="i1")
        refused = await (await asks(far, needed.key, secret="s3cret-of-another")).reply()
        assert (refused.status, refused.code) == (404, "not_found")
        line = await opened(far, needed, secret)
        await line.request()
        line.answer(more="Connection: close\r\n")
        assert (await client.reply()).status == 200


async def test_a_tunnel_is_opened_by_workers_and_a_workers_token_opens_nothing_else(far: RunningRelay) -> None:
    client = await far.client()
    client.ask(chat())
    needed = await far.hub.hears(NeedTunnel)
    assert (await (await asks(far, needed.key, secret="wrong")).reply()).status == 401
    for secret in (SECRET, OPERATOR):
        refused = await (await asks(far, needed.key, secret=secret)).reply()
        assert (refused.status, refused.code) == (403, "permission_denied")
    assert (await (await asks(far, needed.key, more="")).reply()).status == 426
    for path in ("/v1/models", "/running", "/upstream/small/", "/health/x"):
        assert (await far.call(path=path, secret=WORKER)).code == "permission_denied"
    assert (await far.call(chat(), secret=WORKER)).status == 403
    await answers(await opened(far, needed))
    assert (await client.reply()).status == 200


async def test_why_there_is_no_tunnel_is_told_to_the_caller(far: RunningRelay) -> None:
    client = await far.client()
    client.ask(chat())
    needed = await far.hub.hears(NeedTunnel)
    far.hub.say(NoTunnel(needed.key, "box is not connected"))
    done = await far.hub.hears(Done)
    assert done.gave_back and done.error.endswith("box is not connected")
    far.hub.say(Refuse(done.request, 502, "upstream_error", done.error))
    assert "box is not connected" in (await client.reply()).json["error"]["message"]
    assert (await (await asks(far, needed.key)).reply()).status == 404


async def test_a_tunnel_that_does_not_come_in_time_comes_for_nobody(tmp_path: Path) -> None:
    limits = Limits(linger_s=0.1, look_every_s=0.05, connect_s=0.05)
    async with RunningRelay.open(tmp_path, limits, msgspec.structs.replace(PLAIN, keys=KEYS)) as relay:
        relay.hub.say(Open("i1", "small", "127.0.0.1", 5001, None, Way(tunnel=True)))
        client = await relay.client()
        client.ask(chat())
        needed = await relay.hub.hears(NeedTunnel)
        done = await relay.hub.hears(Done)
        assert "its worker opened no connection to it within 0.05 s" in done.error
        relay.hub.say(Refuse(done.request, 502, "upstream_error", done.error))
        assert (await client.reply()).status == 502
        assert (await (await asks(relay, needed.key)).reply()).status == 404
        assert not relay.core.connecting._awaited


async def test_a_cut_between_two_requests_is_made_good_by_another_tunnel(far: RunningRelay) -> None:
    client = await far.client()
    client.ask(chat())
    line = await opened(far)
    await answers(line)
    assert (await client.reply()).status == 200
    client.ask(chat())
    await line.request()
    line.reset()
    await answers(await opened(far), b'{"again":1}')
    assert (await client.reply()).json == {"again": 1}


async def test_a_cut_in_the_middle_of_a_stream_ends_it_with_an_error(far: RunningRelay) -> None:
    client = await far.client()
    client.ask(chat(stream=True))
    line = await opened(far)
    await line.request()
    line.begin_stream()
    line.event("one")
    assert (await client.head()).status == 200
    assert await client.chunk() == b"data: one\n\n"
    line.reset()
    said = b""
    while chunk := await client.chunk():
        said += chunk
    assert b"upstream_error" in said and said.endswith(b"data: [DONE]\n\n")


async def test_a_caller_who_leaves_ends_the_tunnel_that_served_it(far: RunningRelay) -> None:
    client = await far.client()
    client.ask(chat(stream=True))
    line = await opened(far)
    await line.request()
    client.hang_up()
    async with asyncio.timeout(WAIT_S):
        assert await line.reader.read() == b""
    assert (await far.hub.hears(Done)).status == 499


async def test_tunnels_end_with_their_instance(far: RunningRelay) -> None:
    client = await far.client()
    client.ask(chat())
    line = await opened(far)
    await answers(line)
    assert (await client.reply()).status == 200
    client.ask(chat())
    await line.request()
    waits = await far.client()
    waits.ask(chat())
    late = await far.hub.hears(NeedTunnel)
    far.hub.say(Gone("i1"))
    async with asyncio.timeout(WAIT_S):
        assert await line.reader.read() == b""
    for _ in (client, waits):
        await far.hub.hears(Done, gave_back=True)
    assert (await (await asks(far, late.key)).reply()).status == 404


async def test_a_relay_whose_hub_is_gone_waits_for_no_tunnel(far: RunningRelay) -> None:
    client = await far.client()
    client.ask(chat())
    await far.hub.hears(NeedTunnel)
    await far.hub.close()
    reply = await client.reply()
    assert reply.status == 502 and "is gone" in reply.json["error"]["message"]


async def test_what_is_said_in_a_tunnel_before_anything_was_asked_ends_it(far: RunningRelay) -> None:
    client = await far.client()
    client.ask(chat())
    needed = await far.hub.hears(NeedTunnel)
    worker = await far.client()
    head = f"GET /tunnel/{needed.key} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {WORKER}\r\n{ASKS}\r\n"
    worker.send(head.encode() + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    assert (await worker.head()).status == 101
    assert await worker.rest() == b""
    assert (await far.hub.hears(Done)).gave_back


async def test_a_tunnel_that_comes_in_the_very_turn_in_which_nobody_waits_any_more_is_refused(
    far: RunningRelay,
) -> None:
    connecting = far.core.connecting
    waiting = asyncio.create_task(connecting.open(far.core.instances["i1"]))
    needed = await far.hub.hears(NeedTunnel)
    assert connecting.awaits(needed.key, "box")
    waiting.cancel()
    assert not connecting.awaits(needed.key, "box")
