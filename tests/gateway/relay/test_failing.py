"""Model servers that fail, at every point of an answer."""

import asyncio
import contextlib
import json
import socket

import pytest
from tests.gateway.relay.rig import Client, Heard, Line, ModelServer, Rig, chat, until

from ostler.gateway.control import Arrived, Close, Done, Drained, Gone, Grant, Open, Refuse

BIG = 2_500_000


async def ok(line: Line, heard: Heard) -> None:
    line.answer(b"fine")


async def dies(line: Line, heard: Heard) -> None:
    line.cut()
    raise ConnectionError


async def hangs(line: Line, heard: Heard) -> None:
    await line.closed()
    raise ConnectionError


def grant(rig: Rig, arrived: Arrived | Done, server: ModelServer, instance: str = "i2") -> None:
    rig.hub.say(Grant(arrived.request, instance, "127.0.0.1", server.port))


async def test_a_kept_connection_that_the_server_has_closed_costs_nobody_anything(rig: Rig) -> None:
    """It closes while the request is on its way: nobody could have known."""
    first = True

    async def script(line: Line, heard: Heard) -> None:
        nonlocal first
        if heard.json["number"] == 1 and first:
            first = False
            await dies(line, heard)
        line.answer(str(heard.json["number"]).encode())

    server = await rig.serving(script)
    client = await rig.client()
    assert [(await client.call(chat(number=number))).body for number in range(3)] == [b"0", b"1", b"2"]
    assert server.connections == 2
    assert not rig.hub.heard(Arrived)


async def test_an_idle_connection_that_the_server_closes_is_forgotten(rig: Rig) -> None:
    lines: list[Line] = []

    async def script(line: Line, heard: Heard) -> None:
        lines.append(line)
        line.answer()

    server = await rig.serving(script)
    await rig.call(chat())
    lines[0].cut()
    await until(lambda: not rig.relay.instances["i1"].idle)
    assert (await rig.call(chat())).status == 200 and server.connections == 2


@pytest.mark.parametrize("size", [10, BIG])
async def test_a_request_that_got_no_byte_is_given_back_and_served_elsewhere(rig: Rig, size: int) -> None:
    dead, alive = await rig.serving(dies), await rig.server(ok)
    client = await rig.client()
    client.ask(chat(padding="x" * size))
    done = await rig.hub.hears(Done, gave_back=True)
    assert (done.instance, done.asked, done.status) == ("i1", False, 0) and done.error
    arrived = await rig.hub.hears(Arrived)
    assert arrived.again and arrived.request == done.request
    grant(rig, arrived, alive)
    assert (await client.reply()).body == b"fine"
    assert (await rig.hub.hears(Done)).instance == "i2"
    assert alive.heard[0].body == dead.heard[0].body and len(alive.heard[0].body) > size
    assert len(dead.heard) == 1


async def test_a_granted_request_is_given_back_without_a_new_arrival(rig: Rig) -> None:
    dead, alive = await rig.server(dies), await rig.server(ok)
    client = await rig.client()
    client.ask(chat())
    arrived = await rig.hub.hears(Arrived)
    grant(rig, arrived, dead, "i1")
    done = await rig.hub.hears(Done, gave_back=True)
    assert done.request == arrived.request and done.asked
    grant(rig, arrived, alive)
    assert (await client.reply()).status == 200
    assert not rig.hub.heard(Arrived)


async def test_a_request_is_given_back_once(rig: Rig) -> None:
    dead = await rig.server(dies)
    client = await rig.client()
    client.ask(chat())
    arrived = await rig.hub.hears(Arrived)
    grant(rig, arrived, dead, "i1")
    await rig.hub.hears(Done, gave_back=True)
    grant(rig, arrived, dead, "i2")
    reply = await client.reply()
    assert (reply.status, reply.code) == (502, "upstream_error")
    done = await rig.hub.hears(Done)
    assert not done.gave_back and done.status == 502
    assert (await client.call(path="/health")).status == 200


async def test_a_request_that_was_given_back_may_be_refused(rig: Rig) -> None:
    await rig.serving(dies)
    client = await rig.client()
    client.ask(chat())
    arrived = await rig.hub.hears(Arrived)
    rig.hub.say(Refuse(arrived.request, 502, "model_load_failed", "it died again"))
    assert (await client.reply()).code == "model_load_failed"
    assert not rig.relay.requests


async def test_a_server_that_cannot_be_reached_gives_the_request_back(rig: Rig) -> None:
    server = await rig.server(ok)
    await server.close()
    rig.hub.say(Open("i1", "small", "127.0.0.1", server.port))
    await rig.settled()
    client = await rig.client()
    client.ask(b"post", "/upstream/small/train")
    done = await rig.hub.hears(Done, gave_back=True)
    assert "cannot be reached" in done.error
    grant(rig, await rig.hub.hears(Arrived), await rig.server(ok))
    assert (await client.reply()).status == 200


async def test_what_may_have_had_its_effect_is_not_sent_twice(rig: Rig) -> None:
    await rig.serving(dies)
    assert (await rig.call(b"post", "/upstream/small/train")).status == 502
    client = await rig.client()
    client.ask(path="/upstream/small/train")
    await rig.hub.hears(Arrived)


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
async def test_an_answer_that_is_not_http_is_a_bad_gateway(rig: Rig, answer: bytes, kept: bool) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.answer() if heard.json.get("good") else line.send(answer)

    server = await rig.serving(script)
    if kept:
        await rig.call(chat(good=1))
    reply = await rig.call(chat())
    assert (reply.status, reply.code) == (502, "upstream_error")
    await server.ended.wait()


@pytest.mark.parametrize("ending", ["between chunks", "within a chunk", "within a length", "after a length"])
async def test_a_stream_that_breaks_off_says_so_where_it_can(rig: Rig, ending: str) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.begin_stream()
        line.event("one")
        line.send(
            {"within a chunk": b"20\r\ndata: tw", "within a length": b"2", "after a length": b"20\r\n"}.get(ending, b"")
        )
        await line.writer.drain()
        line.writer.close()
        raise ConnectionError

    await rig.serving(script)
    client = await rig.client()
    client.ask(chat(stream=True))
    await client.head()
    assert await client.chunk() == b"data: one\n\n"
    done = await rig.hub.hears(Done)
    assert done.status == 200 and "before its answer was complete" in done.error and not done.gave_back
    if ending != "between chunks":
        assert b"error" not in await client.rest()
        return
    events = (await client.chunk()).strip().split(b"\n\n")
    assert json.loads(events[0].removeprefix(b"data: "))["error"]["code"] == "upstream_error"
    assert events[1] == b"data: [DONE]" and await client.chunk() == b""
    assert (await client.call(path="/health")).status == 200


async def test_a_body_that_breaks_off_ends_the_connection(rig: Rig) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await line.writer.drain()
        line.writer.close()
        raise ConnectionError

    await rig.serving(script)
    client = await rig.client()
    client.ask(chat())
    assert (await client.head()).headers["content-length"] == "100"
    assert await client.rest() == b"half"
    assert (await rig.hub.hears(Done)).error


async def test_a_body_without_a_length_that_breaks_off_is_no_good_end(rig: Rig) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhalf")
        await taken.wait()
        line.reset()
        raise ConnectionError

    taken = asyncio.Event()
    await rig.serving(script)
    client = await rig.client()
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
async def test_what_comes_after_an_answer_reaches_nobody(rig: Rig, answer: bytes, passed: bytes) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.send(answer)

    server = await rig.serving(script)
    client = await rig.client()
    assert (await client.call(chat())).body == passed
    assert (await client.call(path="/health")).json == {"status": "ok"}
    assert (await client.call(chat())).body == passed
    assert server.connections == 2


async def test_what_comes_after_the_last_chunk_reaches_nobody(rig: Rig) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nevil")

    await rig.serving(script)
    client = await rig.client()
    client.ask(chat(), more="Connection: close\r\n")
    assert b"evil" not in await client.rest()


async def test_an_answer_between_two_requests_ends_the_connection_it_came_over(rig: Rig) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.answer(b"fine")
        await line.writer.drain()
        await until(lambda: rig.relay.instances["i1"].idle)
        line.answer(b"evil")

    server = await rig.serving(script)
    client = await rig.client()
    assert (await client.call(chat())).body == b"fine"
    await server.ended.wait()
    assert (await client.call(chat())).body == b"fine"


# The process is gone


async def test_when_a_process_is_gone_its_requests_are_given_back_or_told(rig: Rig) -> None:
    async def script(line: Line, heard: Heard) -> None:
        if heard.json["stream"]:
            line.begin_stream()
            line.event("one")
        await hangs(line, heard)

    server = await rig.serving(script)
    streams, waits = await rig.client(), await rig.client()
    streams.ask(chat(stream=True))
    await streams.head()
    await streams.chunk()
    waits.ask(chat())
    await until(lambda: len(server.heard) == 2)
    rig.hub.say(Gone("i1"))
    assert b"its process ended" in await streams.chunk()
    assert await streams.chunk() == b""
    arrived = await rig.hub.hears(Arrived)
    assert arrived.again
    grant(rig, arrived, await rig.server(ok), "i1")
    assert (await waits.reply()).body == b"fine"
    assert len(rig.relay.instances) == 1


async def test_who_went_through_the_gate_of_a_process_that_is_unloaded_is_told_so(rig: Rig) -> None:
    server = await rig.serving(hangs)
    client = await rig.client()
    client.ask(chat())
    await until(lambda: server.heard)
    rig.hub.say(Close("i1", unloaded=True), Gone("i1"))
    reply = await client.reply()
    assert (reply.status, reply.code) == (503, "unloaded")
    assert not (await rig.hub.hears(Done, status=503)).gave_back
    assert not rig.hub.heard(Arrived)


async def test_a_process_that_goes_while_it_is_connected_to_gives_the_request_back(rig: Rig) -> None:
    server = await rig.server(ok)
    client = await rig.client()
    client.ask(chat())
    arrived = await rig.hub.hears(Arrived)
    rig.hub.say(Grant(arrived.request, "i1", "127.0.0.1", server.port), Gone("i1"))
    await rig.hub.hears(Done, gave_back=True)
    grant(rig, arrived, server)
    assert (await client.reply()).body == b"fine"
    assert len(server.heard) == 1


async def test_a_gate_that_closes_is_drained_when_what_failed_has_left(rig: Rig) -> None:
    server = await rig.serving(hangs)
    client = await rig.client()
    client.ask(chat())
    await until(lambda: server.heard)
    rig.hub.say(Close("i1"))
    await rig.settled()
    await server.close()
    await rig.hub.hears(Drained, instance="i1")
    assert rig.hub.heard(Done)[0].gave_back


async def test_an_instance_at_another_address_is_another_one(rig: Rig) -> None:
    first = await rig.serving(hangs)
    client = await rig.client()
    client.ask(chat())
    await until(lambda: first.heard)
    await rig.serving(ok)
    arrived = await rig.hub.hears(Arrived)
    assert arrived.again
    rig.hub.say(Refuse(arrived.request, 503, "x", "y"))
    assert (await client.reply()).status == 503
    assert (await rig.call(chat())).body == b"fine"


@pytest.mark.parametrize("status", [200, 413])
async def test_an_answer_before_the_request_was_taken_ends_that_connection(rig: Rig, status: int) -> None:
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
    rig.hub.say(Open("i1", "small", "127.0.0.1", sock.getsockname()[1]))
    await rig.settled()
    client: Client = await rig.client()
    reply = await client.call(chat(padding="x" * 3_900_000))
    assert (reply.status, reply.body) == (status, b"no")
    assert not rig.relay.instances["i1"].idle
    server.close()
