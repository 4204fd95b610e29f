"""Model servers that fail, at every point of an answer."""

import asyncio
import contextlib
import json
import socket
from functools import partial

import pytest
from tests.gateway.relay.running_relay import Client, Heard, Line, ModelServer, RunningRelay, chat, until

from ostler.gateway.control import Arrived, Close, Done, Drained, Gone, Grant, Open, Refuse
from ostler.gateway.relay.exchange import Exchange

BIG = 2_500_000


async def ok(line: Line, heard: Heard) -> None:
    line.answer(b"fine")


async def dies(line: Line, heard: Heard) -> None:
    line.cut()
    raise ConnectionError


async def hangs(line: Line, heard: Heard) -> None:
    await line.closed()
    raise ConnectionError


def grant(relay: RunningRelay, arrived: Arrived | Done, server: ModelServer, instance: str = "i2") -> None:
    relay.hub.say(Grant(arrived.request, instance, "127.0.0.1", server.port))


async def test_a_kept_connection_that_the_server_has_closed_costs_nobody_anything(relay: RunningRelay) -> None:
    """It closes while the request is on its way: nobody could have known."""
    first = True

    async def script(line: Line, heard: Heard) -> None:
        nonlocal first
        if heard.json["number"] == 1 and first:
            first = False
            await dies(line, heard)
        line.answer(str(heard.json["number"]).encode())

    server = await relay.serving(script)
    client = await relay.client()
    assert [(await client.call(chat(number=number))).body for number in range(3)] == [b"0", b"1", b"2"]
    assert server.connections == 2
    assert not relay.hub.heard(Arrived)


async def test_an_idle_connection_that_the_server_closes_is_forgotten(relay: RunningRelay) -> None:
    lines: list[Line] = []

    async def script(line: Line, heard: Heard) -> None:
        lines.append(line)
        line.answer()

    server = await relay.serving(script)
    await relay.call(chat())
    lines[0].cut()
    await until(lambda: not relay.core.instances["i1"].idle)
    assert (await relay.call(chat())).status == 200 and server.connections == 2


@pytest.mark.parametrize("size", [10, BIG])
async def test_a_request_that_got_no_byte_is_given_back_and_served_elsewhere(relay: RunningRelay, size: int) -> None:
    dead, alive = await relay.serving(dies), await relay.server(ok)
    client = await relay.client()
    client.ask(chat(padding="x" * size))
    done = await relay.hub.hears(Done, gave_back=True)
    assert (done.instance, done.asked, done.status) == ("i1", False, 0) and done.error
    arrived = await relay.hub.hears(Arrived)
    assert arrived.again and arrived.request == done.request
    grant(relay, arrived, alive)
    assert (await client.reply()).body == b"fine"
    assert (await relay.hub.hears(Done)).instance == "i2"
    assert alive.heard[0].body == dead.heard[0].body and len(alive.heard[0].body) > size
    assert len(dead.heard) == 1


async def test_a_granted_request_is_given_back_without_a_new_arrival(relay: RunningRelay) -> None:
    dead, alive = await relay.server(dies), await relay.server(ok)
    client = await relay.client()
    client.ask(chat())
    arrived = await relay.hub.hears(Arrived)
    grant(relay, arrived, dead, "i1")
    done = await relay.hub.hears(Done, gave_back=True)
    assert done.request == arrived.request and done.asked
    grant(relay, arrived, alive)
    assert (await client.reply()).status == 200
    assert not relay.hub.heard(Arrived)


async def test_a_request_is_given_back_once(relay: RunningRelay) -> None:
    dead = await relay.server(dies)
    client = await relay.client()
    client.ask(chat())
    arrived = await relay.hub.hears(Arrived)
    grant(relay, arrived, dead, "i1")
    await relay.hub.hears(Done, gave_back=True)
    grant(relay, arrived, dead, "i2")
    reply = await client.reply()
    assert (reply.status, reply.code) == (502, "upstream_error")
    done = await relay.hub.hears(Done)
    assert not done.gave_back and done.status == 502
    assert (await client.call(path="/health")).status == 200


async def test_a_request_that_was_given_back_may_be_refused(relay: RunningRelay) -> None:
    await relay.serving(dies)
    client = await relay.client()
    client.ask(chat())
    arrived = await relay.hub.hears(Arrived)
    relay.hub.say(Refuse(arrived.request, 502, "model_load_failed", "it died again"))
    assert (await client.reply()).code == "model_load_failed"
    assert not relay.core.requests


async def test_a_server_that_cannot_be_reached_gives_the_request_back(relay: RunningRelay) -> None:
    server = await relay.server(ok)
    await server.close()
    relay.hub.say(Open("i1", "small", "127.0.0.1", server.port))
    await relay.settled()
    client = await relay.client()
    client.ask(b"post", "/upstream/small/train")
    done = await relay.hub.hears(Done, gave_back=True)
    assert "cannot be reached" in done.error
    grant(relay, await relay.hub.hears(Arrived), await relay.server(ok))
    assert (await client.reply()).status == 200


async def test_what_may_have_had_its_effect_is_not_sent_twice(relay: RunningRelay) -> None:
    await relay.serving(dies)
    assert (await relay.call(b"post", "/upstream/small/train")).status == 502
    client = await relay.client()
    client.ask(path="/upstream/small/train")
    await relay.hub.hears(Arrived)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000,
    ],
)
async def test_an_answer_that_is_not_http_is_a_bad_gateway(relay: RunningRelay, answer: bytes, kept: bool) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.answer() if heard.json.get("good") else line.send(answer)

    server = await relay.serving(script)
    if kept:
        await relay.call(chat(good=1))
    reply = await relay.call(chat())
    assert (reply.status, reply.code) == (502, "upstream_error")
    await server.ended.wait()


BROKEN_OFF = {
    "between chunks": b"",
    "within a chunk": b"20\r\ndata: tw",
    "within a chunk, in two pieces": b"2|0\r\ndata: tw|o",
    "within a length": b"2",
    "within the end of a length": b"20\r",
    "after a length": b"20\r\n",
    "before the end of a chunk": b"4\r\n: hi",
    "within the end of a chunk": b"4\r\n: hi|\r",
    "after a whole chunk and a half": b"4\r\n: hi\r\n20\r\ndata: tw",
}


def _has_passed(exchange: Exchange, size: int) -> bool:
    return exchange.bytes_out == size


@pytest.mark.parametrize("ending", BROKEN_OFF)
async def test_a_stream_that_breaks_off_ends_with_an_error_event(relay: RunningRelay, ending: str) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.begin_stream()
        line.event("one")
        (exchange,) = relay.core.instances["i1"].exchanges
        passed = len(b"b\r\ndata: one\n\n\r\n")
        for piece in BROKEN_OFF[ending].split(b"|"):
            line.send(piece)
            passed += len(piece)
            await until(partial(_has_passed, exchange, passed))
        line.writer.close()
        raise ConnectionError

    await relay.serving(script)
    client = await relay.client()
    client.ask(chat(stream=True))
    await client.head()
    assert await client.chunk() == b"data: one\n\n"
    done = await relay.hub.hears(Done)
    assert done.status == 200 and "before its answer was complete" in done.error and not done.gave_back
    rest = b""
    while chunk := await client.chunk():
        rest += chunk
    *_, event, end = rest.strip().split(b"\n\n")
    found = json.loads(event.strip().removeprefix(b"data: "))["error"]
    assert found["code"] == "upstream_error" and "ostler models logs small" in found["message"]
    assert end == b"data: [DONE]"
    assert (await client.call(path="/health")).status == 200


@pytest.mark.parametrize("body", [b"20\r\nabc", b"fffff\r\nabc", b"0"], ids=["no stream", "too much", "at its end"])
async def test_an_answer_that_cannot_be_ended_well_ends_the_connection(relay: RunningRelay, body: bytes) -> None:
    kind = b"text/plain" if body == b"20\r\nabc" else b"text/event-stream"

    async def script(line: Line, heard: Heard) -> None:
        line.send(b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n%b" % (kind, body))
        await line.writer.drain()
        line.writer.close()
        raise ConnectionError

    await relay.serving(script)
    client = await relay.client()
    client.ask(chat(stream=True))
    await client.head()
    assert b"error" not in await client.rest()


async def test_a_stream_of_known_length_that_breaks_off_is_filled_up(relay: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 2000\r\n\r\ndata: one\n\n")
        await line.writer.drain()
        line.writer.close()
        raise ConnectionError

    await relay.serving(script)
    client = await relay.client()
    reply = await client.call(chat(stream=True))
    assert len(reply.body) == 2000 and reply.body.strip().endswith(b"data: [DONE]")
    assert b"upstream_error" in reply.body
    assert (await client.call(path="/health")).status == 200


@pytest.mark.parametrize("ended", [True, False])
async def test_a_stream_that_ends_with_its_connection_is_whole_if_it_has_the_last_event(
    relay: RunningRelay, ended: bool
) -> None:
    async def script(line: Line, heard: Heard) -> None:
        last = b"data: [DONE]\n\n" if ended else b""
        line.send(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: one\n\n" + last)
        await line.writer.drain()
        line.writer.close()
        raise ConnectionError

    await relay.serving(script)
    reply = await relay.call(chat(stream=True))
    assert (b"upstream_error" in reply.body) != ended and reply.body.endswith(b"data: [DONE]\n\n")


async def test_a_body_that_breaks_off_ends_the_connection(relay: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await line.writer.drain()
        line.writer.close()
        raise ConnectionError

    await relay.serving(script)
    client = await relay.client()
    client.ask(chat())
    assert (await client.head()).headers["content-length"] == "100"
    assert await client.rest() == b"half"
    assert (await relay.hub.hears(Done)).error


async def test_a_body_without_a_length_that_breaks_off_is_no_good_end(relay: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhalf")
        await taken.wait()
        line.reset()
        raise ConnectionError

    taken = asyncio.Event()
    await relay.serving(script)
    client = await relay.client()
    client.ask(chat())
    await client.head()
    assert await client.reader.readexactly(4) == b"half"
    taken.set()
    with pytest.raises(ConnectionResetError):
        await client.reader.read()


@pytest.mark.parametrize(
    ("answer", "passed"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfineHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", b"fine"),
        (b"HTTP/1.1 204 No Content\r\n\r\nevil", b""),
    ],
)
async def test_what_comes_after_an_answer_reaches_nobody(relay: RunningRelay, answer: bytes, passed: bytes) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.send(answer)

    server = await relay.serving(script)
    client = await relay.client()
    assert (await client.call(chat())).body == passed
    assert (await client.call(path="/health")).json == {"status": "ok"}
    assert (await client.call(chat())).body == passed
    assert server.connections == 2


async def test_what_comes_after_the_last_chunk_reaches_nobody(relay: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nevil")

    await relay.serving(script)
    client = await relay.client()
    client.ask(chat(), more="Connection: close\r\n")
    assert b"evil" not in await client.rest()


async def test_an_answer_between_two_requests_ends_the_connection_it_came_over(relay: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.answer(b"fine")
        await line.writer.drain()
        await until(lambda: relay.core.instances["i1"].idle)
        line.answer(b"evil")

    server = await relay.serving(script)
    client = await relay.client()
    assert (await client.call(chat())).body == b"fine"
    await server.ended.wait()
    assert (await client.call(chat())).body == b"fine"


# The process is gone


async def test_when_a_process_is_gone_its_requests_are_given_back_or_told(relay: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        if heard.json["stream"]:
            line.begin_stream()
            line.event("one")
        await hangs(line, heard)

    server = await relay.serving(script)
    streams, waits = await relay.client(), await relay.client()
    streams.ask(chat(stream=True))
    await streams.head()
    await streams.chunk()
    waits.ask(chat())
    await until(lambda: len(server.heard) == 2)
    relay.hub.say(Gone("i1"))
    assert b"its process ended" in await streams.chunk()
    assert await streams.chunk() == b""
    arrived = await relay.hub.hears(Arrived)
    assert arrived.again
    grant(relay, arrived, await relay.server(ok), "i1")
    assert (await waits.reply()).body == b"fine"
    assert len(relay.core.instances) == 1


async def test_who_went_through_the_gate_of_a_process_that_is_unloaded_is_told_so(relay: RunningRelay) -> None:
    server = await relay.serving(hangs)
    client = await relay.client()
    client.ask(chat())
    await until(lambda: server.heard)
    relay.hub.say(Close("i1", unloaded=True), Gone("i1"))
    reply = await client.reply()
    assert (reply.status, reply.code) == (503, "unloaded")
    assert not (await relay.hub.hears(Done, status=503)).gave_back
    assert not relay.hub.heard(Arrived)


async def test_a_process_that_goes_while_it_is_connected_to_gives_the_request_back(relay: RunningRelay) -> None:
    server = await relay.server(ok)
    client = await relay.client()
    client.ask(chat())
    arrived = await relay.hub.hears(Arrived)
    relay.hub.say(Grant(arrived.request, "i1", "127.0.0.1", server.port), Gone("i1"))
    await relay.hub.hears(Done, gave_back=True)
    grant(relay, arrived, server)
    assert (await client.reply()).body == b"fine"
    assert len(server.heard) == 1


async def test_a_gate_that_closes_is_drained_when_what_failed_has_left(relay: RunningRelay) -> None:
    server = await relay.serving(hangs)
    client = await relay.client()
    client.ask(chat())
    await until(lambda: server.heard)
    relay.hub.say(Close("i1"))
    await relay.settled()
    await server.close()
    await relay.hub.hears(Drained, instance="i1")
    assert relay.hub.heard(Done)[0].gave_back


async def test_an_instance_at_another_address_is_another_one(relay: RunningRelay) -> None:
    first = await relay.serving(hangs)
    client = await relay.client()
    client.ask(chat())
    await until(lambda: first.heard)
    await relay.serving(ok)
    arrived = await relay.hub.hears(Arrived)
    assert arrived.again
    relay.hub.say(Refuse(arrived.request, 503, "x", "y"))
    assert (await client.reply()).status == 503
    assert (await relay.call(chat())).body == b"fine"


@pytest.mark.parametrize("status", [200, 413])
async def test_an_answer_before_the_request_was_taken_ends_that_connection(relay: RunningRelay, status: int) -> None:
    """A server that answers a large upload by its head alone."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d Early\r\nContent-Length: 2\r\n\r\nno" % status)
        with contextlib.suppress(asyncio.CancelledError):
            await reader.read()
        writer.close()

    sock = socket.socket()
    if status == 200:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.bind(("127.0.0.1", 0))
    server = await asyncio.start_server(serve, sock=sock, limit=1000)
    relay.hub.say(Open("i1", "small", "127.0.0.1", sock.getsockname()[1]))
    await relay.settled()
    client: Client = await relay.client()
    reply = await client.call(chat(padding="x" * 3_900_000))
    assert (reply.status, reply.body) == (status, b"no")
    assert not relay.core.instances["i1"].idle
    server.close()
