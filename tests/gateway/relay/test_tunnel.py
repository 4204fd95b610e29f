"""Other protocols, through `/upstream`: bytes in both directions until one side has had enough."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.gateway.relay.rig import Client, Heard, Line, Rig, until

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


async def connected(rig: Rig) -> Client:
    client = await rig.client()
    client.ask(path="/upstream/small/ws?x=1", more=UPGRADE)
    head = await client.head()
    assert head.status == 101
    assert (head.headers["upgrade"], head.headers["connection"]) == ("websocket", "Upgrade")
    assert head.headers["sec-websocket-accept"] == "xyz"
    assert await client.reader.readexactly(6) == b"hello "
    return client


async def test_both_sides_speak_freely(rig: Rig) -> None:
    server = await rig.serving(mirror)
    client = await connected(rig)
    client.send(b"\0\xff GET / HTTP/1.1\r\n\r\n")
    assert await client.reader.readexactly(21) == b"\0\xff GET / HTTP/1.1\r\n\r\n"[::-1]
    heard = server.heard[0]
    assert (heard.target, heard.headers["upgrade"], heard.headers["connection"]) == ("/ws?x=1", "websocket", "Upgrade")
    assert heard.headers["sec-websocket-key"] == "abc" and "authorization" not in heard.headers
    client.hang_up()
    await server.ended.wait()
    done = await rig.hub.hears(Done)
    assert (done.status, done.bytes_out) == (101, 21)
    assert not rig.relay.callers and not rig.relay.instances["i1"].exchanges


async def test_much_passes_at_the_speed_of_the_slower_side(rig: Rig) -> None:
    async def pours(line: Line, heard: Heard) -> None:
        line.send(SWITCH + b"hello ")
        for _ in range(300):
            line.send(b"x" * 100_000)
            await line.writer.drain()
        raise ConnectionError

    await rig.serving(pours)
    client = await connected(rig)
    (caller,) = rig.relay.callers
    (exchange,) = rig.relay.instances["i1"].exchanges
    tunnel = exchange.tunnel
    assert tunnel is not None
    await until(lambda: not tunnel._upstream.transport.is_reading())
    assert caller.transport.get_write_buffer_size() < 2_000_000
    assert len(await client.rest()) == 30_000_000


async def test_a_tunnel_counts_as_a_request_of_its_instance(rig: Rig) -> None:
    await rig.serving(mirror)
    client = await connected(rig)
    rig.hub.say(Close("i1"))
    await rig.settled()
    assert not rig.hub.heard(Drained)
    client.hang_up()
    await rig.hub.hears(Drained, instance="i1")


async def closes(rig: Rig) -> None:
    rig.hub.say(Gone("i1"))


async def stops(rig: Rig) -> None:
    rig.process.stop(0.0)


@pytest.mark.parametrize("ends", [closes, stops])
async def test_a_tunnel_ends_with_its_process_or_the_relay(rig: Rig, ends: Callable[[Rig], Awaitable[None]]) -> None:
    server = await rig.serving(mirror)
    client = await connected(rig)
    await ends(rig)
    assert await client.rest() == b""
    await server.ended.wait()
    await rig.hub.hears(Done)


async def test_a_server_that_does_not_switch_answers_like_any_other(rig: Rig) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.answer(b"no", status=426)

    server = await rig.server(script)
    client = await rig.client()
    client.ask(path="/upstream/small/ws", more=UPGRADE)
    arrived = await rig.hub.hears(Arrived)
    rig.hub.say(Grant(arrived.request, "i1", "127.0.0.1", server.port))
    reply = await client.reply()
    assert (reply.status, reply.body, reply.headers["connection"]) == (426, b"no", "close")
    assert await client.rest() == b""


async def test_what_is_said_before_the_switch_is_not_lost(rig: Rig) -> None:
    server = await rig.server(mirror)
    client = await rig.client()
    client.ask(path="/upstream/small/ws", more=UPGRADE)
    client.send(b"ear")
    arrived = await rig.hub.hears(Arrived)
    client.send(b"ly")
    await until(lambda: rig.relay.requests[arrived.request].request.rest == b"early")  # type: ignore[union-attr]
    rig.hub.say(Grant(arrived.request, "i1", "127.0.0.1", server.port))
    assert (await client.head()).status == 101
    assert await client.reader.readexactly(11) == b"hello ylrae"


async def test_an_upgrade_elsewhere_is_read_over(rig: Rig) -> None:
    client = await rig.client()
    assert (await client.call(path="/health", more=UPGRADE)).status == 200
    assert (await client.call(path="/health")).status == 200


async def test_a_caller_who_leaves_before_the_switch_leaves_nothing(rig: Rig) -> None:
    async def script(line: Line, heard: Heard) -> None:
        await line.closed()
        raise ConnectionError

    server = await rig.serving(script)
    client = await rig.client()
    client.ask(path="/upstream/small/ws", more=UPGRADE)
    await until(lambda: server.heard)
    client.hang_up()
    await asyncio.wait_for(server.ended.wait(), 20)
    assert (await rig.hub.hears(Done)).status == 499
