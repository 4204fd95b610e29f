"""Callers who hang up, or do not read, at every point of a request."""

import asyncio
import socket
from pathlib import Path

import pytest
from tests.gateway.relay.running_relay import SECRET, Heard, Line, RunningRelay, chat, until

from ostler.gateway.control import Arrived, Asked, Began, Cancelled, Close, Done, Drained, Grant, Open
from ostler.gateway.relay.limits import Limits


async def hangs(line: Line, heard: Heard) -> None:
    await line.closed()
    raise ConnectionError


async def test_a_caller_who_leaves_in_the_head_or_the_body_was_never_there(relay: RunningRelay) -> None:
    for text in (
        "POST /v1/cha",
        "POST /v1/x HTTP/1.1\r\nHost: localhost\r\n",
        f"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {SECRET}\r\nContent-Length: 3000000\r\n\r\n"
        + "x" * 2_000_000,
    ):
        client = await relay.client()
        client.send(text.encode())
        await client.writer.drain()
        client.hang_up()
    await until(lambda: not relay.core.callers)
    await relay.settled()
    assert not relay.hub.messages and relay.core.spool.held == 0


async def test_a_caller_who_leaves_while_it_waits_gives_up_its_place(relay: RunningRelay) -> None:
    client = await relay.client()
    client.ask(chat())
    arrived = await relay.hub.hears(Arrived)
    client.hang_up()
    await relay.hub.hears(Cancelled, request=arrived.request)
    relay.hub.say(Grant(arrived.request, "i1", "127.0.0.1", 1))
    await relay.settled()
    assert not relay.core.requests and not relay.core.instances and not relay.hub.heard(Done)


async def test_a_caller_who_leaves_while_it_hears_that_its_model_loads_gives_up_its_place(tmp_path: Path) -> None:
    async with RunningRelay.open(tmp_path, Limits(loading_after_s=0.01, loading_every_s=0.01)) as relay:
        client = await relay.client()
        client.ask(chat("large", stream=True))
        arrived = await relay.hub.hears(Arrived)
        await client.head()
        await client.chunk()
        client.hang_up()
        await relay.hub.hears(Cancelled, request=arrived.request)


async def test_a_caller_who_leaves_a_page_of_the_hub_is_told_of(relay: RunningRelay) -> None:
    client = await relay.client()
    client.ask(path="/running")
    asked = await relay.hub.hears(Asked)
    client.hang_up()
    await relay.hub.hears(Cancelled, request=asked.request)


@pytest.mark.parametrize("how", ["close", "reset", "half"])
@pytest.mark.parametrize("reached", ["no byte", "head", "stream"])
async def test_a_caller_who_leaves_while_it_is_served_ends_the_work_for_it(
    relay: RunningRelay, reached: str, how: str
) -> None:
    async def script(line: Line, heard: Heard) -> None:
        if reached != "no byte":
            line.begin_stream()
        if reached == "stream":
            line.event("one")
        await hangs(line, heard)

    server = await relay.server(script)
    client = await relay.client()
    client.ask(chat(stream=True))
    arrived = await relay.hub.hears(Arrived)
    relay.hub.say(Grant(arrived.request, "i1", "127.0.0.1", server.port))
    await until(lambda: server.heard)
    if reached != "no byte":
        await client.head()
        await relay.hub.hears(Began)
    if reached == "stream":
        await client.chunk()
    if how == "reset":
        client.writer.transport.abort()
    elif how == "half":
        client.writer.write_eof()
    else:
        client.hang_up()
    await server.ended.wait()
    done = await relay.hub.hears(Done)
    assert (done.status, done.request) == (499, arrived.request) and "hung up" in done.error
    assert not relay.hub.heard(Cancelled) and not relay.core.requests


async def test_a_caller_who_leaves_while_its_server_is_connected_to_is_counted_nowhere(relay: RunningRelay) -> None:
    server = await relay.server()
    client = await relay.client()
    client.ask(chat(number=1))
    arrived = await relay.hub.hears(Arrived)
    relay.core.told(Grant(arrived.request, "i1", "127.0.0.1", server.port))
    relay.core.told(Close("i1"))
    (caller,) = relay.core.callers
    caller.transport.abort()
    await relay.hub.hears(Done, status=499)
    await relay.hub.hears(Drained, instance="i1")
    await until(lambda: relay.core.instances["i1"].idle)
    relay.hub.say(Open("i1", "small", "127.0.0.1", server.port))
    await relay.settled()
    assert (await relay.call(chat(number=2))).status == 200
    assert [heard.json["number"] for heard in server.heard] == [2] and server.connections == 1


async def test_a_caller_who_leaves_gives_up_what_it_had_sent_ahead(relay: RunningRelay) -> None:
    server = await relay.serving(hangs)
    client = await relay.client()
    for _ in range(5):
        client.ask(chat())
    await until(lambda: server.heard)
    client.hang_up()
    await relay.hub.hears(Done, status=499)
    await until(lambda: not relay.core.callers)
    assert len(server.heard) == 1 and relay.core.spool.held == 0


async def test_where_the_server_must_not_be_cut_off_its_answer_is_read_to_the_end(relay: RunningRelay) -> None:
    left = asyncio.Event()

    async def script(line: Line, heard: Heard) -> None:
        line.begin_stream()
        line.event("one")
        await left.wait()
        for _ in range(100):
            line.event("x" * 10_000)
            await line.writer.drain()
        line.event('{"usage":{"prompt_tokens":1,"completion_tokens":2}}')
        line.end_stream()

    server = await relay.serving(script, "draining")
    client = await relay.client()
    client.ask(chat("draining", stream=True))
    await client.head()
    client.hang_up()
    await until(lambda: not relay.core.callers)
    left.set()
    done = await relay.hub.hears(Done)
    assert (done.status, done.completion_tokens) == (499, 2) and done.bytes_out > 1_000_000
    assert (await relay.call(chat("draining"))).status == 200
    assert server.connections == 1


@pytest.mark.parametrize("limits", [Limits(drain_bytes=100_000), Limits(drain_s=0.05)])
async def test_but_not_without_end(tmp_path: Path, limits: Limits) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.begin_stream()
        line.event("one")
        await line.writer.drain()
        while limits.drain_bytes == 100_000:
            line.event("x" * 10_000)
            await line.writer.drain()
        await hangs(line, heard)

    async with RunningRelay.open(tmp_path, limits) as relay:
        server = await relay.serving(script, "draining")
        client = await relay.client()
        client.ask(chat("draining", stream=True))
        await client.head()
        client.hang_up()
        await server.ended.wait()
        assert (await relay.hub.hears(Done)).status == 499


# Slow readers


async def endless(line: Line, heard: Heard) -> None:
    line.begin_stream()
    while True:
        line.event("x" * 10_000)
        await line.writer.drain()


async def slow_client(relay: RunningRelay) -> socket.socket:
    """One that takes as little as a kernel lets it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", relay.port))
    body = b'{"model":"small","stream":true}'
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {SECRET}\r\nContent-Length: {len(body)}\r\n\r\n"
    await loop.sock_sendall(sock, head.encode() + body)
    return sock


@pytest.mark.parametrize("few", [4, -1], ids=["writes at once", "writes together"])
async def test_a_caller_who_reads_slowly_slows_its_server_down_and_takes_no_memory(
    relay: RunningRelay, few: int
) -> None:
    relay.core.writes.few = few
    await relay.serving(endless)
    sock = await slow_client(relay)
    loop = asyncio.get_running_loop()
    await until(lambda: any(caller.full for caller in relay.core.callers))
    (caller,) = relay.core.callers
    taken = 0
    largest = 0
    while taken < 30_000_000:
        taken += len(await loop.sock_recv(sock, 65536))
        largest = max(largest, caller.transport.get_write_buffer_size())
    assert 64 * 1024 < largest < 1024 * 1024
    # Others are served meanwhile.
    assert (await relay.call(path="/health")).status == 200
    sock.close()
    assert (await relay.hub.hears(Done)).status == 499


async def test_a_caller_who_reads_nothing_is_given_up(tmp_path: Path) -> None:
    async with RunningRelay.open(tmp_path, Limits(stall_s=0.05, look_every_s=0.02)) as relay:
        server = await relay.serving(endless)
        sock = await slow_client(relay)
        await server.ended.wait()
        assert (await relay.hub.hears(Done)).status == 499
        sock.close()


async def test_a_server_that_reads_slowly_is_not_sent_more_than_it_takes(relay: RunningRelay) -> None:
    go_on = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await go_on.wait()
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.bind(("127.0.0.1", 0))
    server = await asyncio.start_server(serve, sock=sock, limit=1000)
    client = await relay.client()
    client.ask(chat(padding="x" * 4_000_000))
    arrived = await relay.hub.hears(Arrived)
    relay.hub.say(Grant(arrived.request, "i1", "127.0.0.1", sock.getsockname()[1]))
    await until(lambda: relay.core.instances and all(one.upstream for one in relay.core.instances["i1"].exchanges))
    (exchange,) = relay.core.instances["i1"].exchanges
    assert exchange.upstream is not None
    assert exchange.upstream.transport.get_write_buffer_size() < 600_000 and exchange.upstream.unsent is not None
    go_on.set()
    assert (await client.reply()).status == 200
    server.close()


async def test_a_log_that_nobody_reads_is_cut(tmp_path: Path) -> None:
    from ostler.gateway.control import Answer

    async with RunningRelay.open(tmp_path, Limits(unread_bytes=100_000)) as relay:
        sock = await slow_client(relay)
        arrived = await relay.hub.hears(Arrived)
        client = await relay.client(sock=None)
        client.ask(path="/logs")
        asked = await relay.hub.hears(Asked)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        while not relay.hub.heard(Cancelled):
            relay.hub.say(Answer(asked.request, 200, [], b"x" * 100_000, True))
            await asyncio.sleep(0.001)
        assert (await relay.hub.hears(Cancelled)).request == asked.request != arrived.request
        sock.close()
