"""Other protocols, through `/upstream`: bytes in both directions until one side has had enough."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.gateway.relay.running_relay import Client, Heard, Line, RunningRelay, until

from ostler.gateway.control import Arrived, Close, Done, Drained, Gone, Grant

UPGRADE = (
    "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: abc\r\nSec-WebSocket-Version: 13\r\n"
)
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: xyz\r\n\r\n"


async def mirror(line: Line, heard: Heard) -> None:
    line.send(SWITCH + b"hello ")
    while data := await line.reader.read(65536):
        line.send(data[::-1])
        await line.writer.drain()
    raise ConnectionError


async def connected(relay: RunningRelay) -> Client:
    client = await relay.client()
    client.ask(path="/upstream/small/ws?x=1", more=UPGRADE)
    head = await client.head()
    assert head.status == 101
    assert (head.headers["upgrade"], head.headers["connection"]) == ("websocket", "Upgrade")
    assert head.headers["sec-websocket-accept"] == "xyz"
    assert await client.reader.readexactly(6) == b"hello "
    return client


async def test_both_sides_speak_freely(relay: RunningRelay) -> None:
    server = await relay.serving(mirror)
    client = await connected(relay)
    client.send(b"\0\xff GET / HTTP/1.1\r\n\r\n")
    assert await client.reader.readexactly(21) == b"\0\xff GET / HTTP/1.1\r\n\r\n"[::-1]
    heard = server.heard[0]
    assert (heard.target, heard.headers["upgrade"], heard.headers["connection"]) == ("/ws?x=1", "websocket", "Upgrade")
    assert heard.headers["sec-websocket-key"] == "abc" and "authorization" not in heard.headers
    client.hang_up()
    await server.ended.wait()
    done = await relay.hub.hears(Done)
    assert (done.status, done.bytes_out) == (101, 21)
    assert not relay.core.callers and not relay.core.instances["i1"].exchanges


async def test_much_passes_at_the_speed_of_the_slower_side(relay: RunningRelay) -> None:
    async def pours(line: Line, heard: Heard) -> None:
        line.send(SWITCH + b"hello ")
        for _ in range(300):
            line.send(b"x" * 100_000)
            await line.writer.drain()
        raise ConnectionError

    await relay.serving(pours)
    client = await connected(relay)
    (caller,) = relay.core.callers
    (exchange,) = relay.core.instances["i1"].exchanges
    tunnel = exchange.tunnel
    assert tunnel is not None
    await until(lambda: not tunnel._upstream.transport.is_reading())
    assert caller.transport.get_write_buffer_size() < 2_000_000
    assert len(await client.rest()) == 30_000_000


async def test_a_tunnel_counts_as_a_request_of_its_instance(relay: RunningRelay) -> None:
    await relay.serving(mirror)
    client = await connected(relay)
    relay.hub.say(Close("i1"))
    await relay.settled()
    assert not relay.hub.heard(Drained)
    client.hang_up()
    await relay.hub.hears(Drained, instance="i1")


async def closes(relay: RunningRelay) -> None:
    relay.hub.say(Gone("i1"))


async def stops(relay: RunningRelay) -> None:
    relay.process.stop(0.0)


@pytest.mark.parametrize("ends", [closes, stops])
async def test_a_tunnel_ends_with_its_process_or_the_relay(
    relay: RunningRelay, ends: Callable[[RunningRelay], Awaitable[None]]
) -> None:
    server = await relay.serving(mirror)
    client = await connected(relay)
    await ends(relay)
    assert await client.rest() == b""
    await server.ended.wait()
    await relay.hub.hears(Done)


async def test_a_server_that_does_not_switch_answers_like_any_other(relay: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.answer(b"no", status=426)

    server = await relay.server(script)
    client = await relay.client()
    client.ask(path="/upstream/small/ws", more=UPGRADE)
    arrived = await relay.hub.hears(Arrived)
    relay.hub.say(Grant(arrived.request, "i1", "127.0.0.1", server.port))
    reply = await client.reply()
    assert (reply.status, reply.body, reply.headers["connection"]) == (426, b"no", "close")
    assert await client.rest() == b""


async def test_what_is_said_before_the_switch_is_not_lost(relay: RunningRelay) -> None:
    server = await relay.server(mirror)
    client = await relay.client()
    client.ask(path="/upstream/small/ws", more=UPGRADE)
    client.send(b"ear")
    arrived = await relay.hub.hears(Arrived)
    client.send(b"ly")
    await until(lambda: relay.core.requests[arrived.request].request.rest == b"early")  # type: ignore[union-attr]
    relay.hub.say(Grant(arrived.request, "i1", "127.0.0.1", server.port))
    assert (await client.head()).status == 101
    assert await client.reader.readexactly(11) == b"hello ylrae"


async def test_an_upgrade_elsewhere_is_read_over(relay: RunningRelay) -> None:
    client = await relay.client()
    assert (await client.call(path="/health", more=UPGRADE)).status == 200
    assert (await client.call(path="/health")).status == 200


async def test_a_caller_who_leaves_before_the_switch_leaves_nothing(relay: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        await line.closed()
        raise ConnectionError

    server = await relay.serving(script)
    client = await relay.client()
    client.ask(path="/upstream/small/ws", more=UPGRADE)
    await until(lambda: server.heard)
    client.hang_up()
    await asyncio.wait_for(server.ended.wait(), 60)
    assert (await relay.hub.hears(Done)).status == 499
