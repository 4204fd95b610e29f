"""Callers who are let in no further, and bytes that are no requests."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.gateway.relay.running_relay import PLAIN, SECRET, RunningRelay, chat

from ostler.gateway.control import Asked, Setup
from ostler.gateway.relay.limits import Limits

AUTH = f"Authorization: Bearer {SECRET}\r\n"
HEAD = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{AUTH}"


@pytest.fixture
async def hasty(tmp_path: Path) -> AsyncIterator[RunningRelay]:
    """A relay with little patience."""
    limits = Limits(
        head_s=0.0, body_s=0.0, body_bytes_per_s=1e9, idle_s=0.0, linger_s=0.0, stall_s=0.0, look_every_s=0.02
    )
    async with RunningRelay.open(tmp_path, limits) as relay:
        yield relay


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Authorization: Bearer wrong\r\n",
        "Authorization: Basic eDp5\r\n",
        "x-api-key: wrong\r\n",
        "Authorization: Bearer\r\n",
    ],
)
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/models", "/running", "/upstream/small/", "/nothing", "/healthy", "//health"]
)
async def test_nobody_gets_anywhere_without_a_key(relay: RunningRelay, path: str, header: str) -> None:
    client = await relay.client()
    client.send(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{header}Content-Length: 2\r\n\r\n{{}}".encode())
    reply = await client.reply()
    assert (reply.status, reply.code, reply.headers["www-authenticate"]) == (401, "invalid_api_key", "Bearer")
    assert not relay.hub.heard(Asked)


async def test_who_calls_is_looked_at_before_anything_else(relay: RunningRelay) -> None:
    client = await relay.client()
    client.send(b"POST /v1/x HTTP/1.1\r\nExpect: magic\r\nContent-Length: 99999999999\r\n\r\n")
    assert (await client.reply()).status == 401


@pytest.mark.parametrize(
    "header",
    [
        f"Authorization: bearer   {SECRET}",
        f"AUTHORIZATION: Bearer {SECRET}",
        f"x-api-key: {SECRET}",
        f"Authorization: Bearer old\r\nX-Api-Key: {SECRET}",
    ],
)
async def test_a_key_is_taken_from_either_header(relay: RunningRelay, header: str) -> None:
    client = await relay.client()
    client.send(f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\n".encode())
    assert (await client.reply()).status == 200


async def test_without_keys_nobody_is_let_in(relay: RunningRelay) -> None:
    relay.hub.say(Setup(PLAIN.models, [], 1000))
    await relay.settled()
    assert (await relay.call(chat(), secret="")).status == 401


SMUGGLED = "GET /running HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "request_text",
    [
        HEAD + "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        HEAD + "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\n" + SMUGGLED,
        HEAD + "Content-Length: 6\r\nContent-Length: 7\r\n\r\n0\r\n\r\nG" + SMUGGLED,
        HEAD + "Content-Length: 6\r\nContent-Length: 6\r\n\r\n0\r\n\r\nG" + SMUGGLED,
        HEAD + "Content-Length: 6, 6\r\n\r\n0\r\n\r\nG" + SMUGGLED,
        HEAD + "Content-Length: +6\r\n\r\n0\r\n\r\nG" + SMUGGLED,
        HEAD + "Content-Length: -1\r\n\r\n" + SMUGGLED,
        HEAD + "Content-Length: 99999999999999999999999\r\n\r\n" + SMUGGLED,
        HEAD + "Content-Length : 6\r\n\r\n" + SMUGGLED,
        HEAD + "Content-Length:\r\n\r\n" + SMUGGLED,
        HEAD + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        HEAD + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + SMUGGLED,
        HEAD + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        HEAD + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        HEAD + "Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        HEAD + "Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n" + SMUGGLED,
        HEAD + "Transfer-Encoding: chunked\r\n\r\n-1\r\nhello\r\n0\r\n\r\n" + SMUGGLED,
        HEAD + "Transfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n" + SMUGGLED,
        HEAD + "Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n" + SMUGGLED,
        HEAD + "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n" + SMUGGLED,
        HEAD + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nhello" + SMUGGLED,
        HEAD + "X: a\r\n b\r\n\r\n" + SMUGGLED,
        HEAD + "X: a\nContent-Length: 5\r\n\r\n" + SMUGGLED,
        HEAD + "X: a\rY: b\r\n\r\n" + SMUGGLED,
        HEAD + "X: a\0b\r\n\r\n" + SMUGGLED,
        HEAD + "No colon\r\n\r\n" + SMUGGLED,
        HEAD + ": no name\r\n\r\n" + SMUGGLED,
        HEAD + "Host: y\r\n\r\n" + SMUGGLED,
        f"POST /v1/x HTTP/1.1\r\n{AUTH}\r\n" + SMUGGLED,
        f"POST /v1/x HTTP/1.0\r\n{AUTH}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        f"POST v1/x HTTP/1.1\r\nHost: localhost\r\n{AUTH}\r\n" + SMUGGLED,
        f"POST * HTTP/1.1\r\nHost: localhost\r\n{AUTH}\r\n" + SMUGGLED,
        f"CONNECT other:80 HTTP/1.1\r\nHost: localhost\r\n{AUTH}\r\n" + SMUGGLED,
        f"GET /a b HTTP/1.1\r\nHost: localhost\r\n{AUTH}\r\n" + SMUGGLED,
        f"GET / HTTP/1.1\nHost: localhost\n{AUTH}\n" + SMUGGLED,
        f"GET / HTTP/2.0\r\nHost: localhost\r\n{AUTH}\r\n" + SMUGGLED,
        f"GET / HTTP/0.9\r\nHost: localhost\r\n{AUTH}\r\n" + SMUGGLED,
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SMUGGLED,
        "\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + SMUGGLED,
    ],
)
async def test_what_could_be_read_in_two_ways_is_refused_and_nothing_after_it_is_read(
    relay: RunningRelay, request_text: str
) -> None:
    server = await relay.serving()
    client = await relay.client()
    client.send(request_text.encode("latin-1"))
    reply = await client.reply()
    assert reply.status in (400, 401, 501, 505) and reply.headers["connection"] == "close"
    assert set(reply.json) == {"error"}
    assert await client.rest() == b""
    assert not relay.hub.heard(Asked) and not server.heard
    assert (await relay.call(path="/health")).status == 200


async def test_a_body_in_chunks_over_the_limit_is_refused_before_all_of_it_came(relay: RunningRelay) -> None:
    client = await relay.client()
    client.ask(method="POST", more="Transfer-Encoding: chunked\r\n")
    chunk = b"40000\r\n" + b"x" * 0x40000 + b"\r\n"
    for _ in range(17):
        client.send(chunk)
    reply = await client.reply()
    assert (reply.status, reply.code) == (413, "request_too_large")
    client.send(chunk)
    assert await client.rest() == b""
    assert relay.core.spool.held == 0


async def test_a_body_that_is_announced_too_large_is_refused_unread_and_the_answer_arrives(relay: RunningRelay) -> None:
    client = await relay.client()
    client.ask(method="POST", more="Content-Length: 50000000\r\n")
    for _ in range(50):
        client.send(b"x" * 100_000)
    assert (await client.reply()).status == 413


@pytest.mark.parametrize("pieces", [1, 50])
async def test_a_head_over_the_limit_is_refused(relay: RunningRelay, pieces: int) -> None:
    client = await relay.client()
    text = HEAD + "".join(f"X-{number}: {'y' * 1000}\r\n" for number in range(100)) + "Content-Length: 0\r\n\r\n"
    size = len(text) // pieces + 1
    for at in range(0, len(text), size):
        client.send(text[at : at + size].encode())
        await client.writer.drain()
    reply = await client.reply()
    assert (reply.status, reply.code) == (431, "head_too_large")


async def test_a_head_without_an_end_is_refused(relay: RunningRelay) -> None:
    client = await relay.client()
    client.send(HEAD.encode() + b"X: " + b"y" * 600_000)
    assert (await client.reply()).status == 431


async def test_an_unknown_expectation_is_refused(relay: RunningRelay) -> None:
    assert (await relay.call(chat(), more="Expect: magic\r\n")).status == 417


async def test_a_refused_request_that_is_complete_leaves_the_connection_as_it_was(relay: RunningRelay) -> None:
    client = await relay.client()
    assert (await client.call(chat(), secret="wrong")).status == 401
    assert (await client.call(chat("nobody"))).status == 404
    assert (await client.call(path="/health")).status == 200


# Patience


@pytest.mark.parametrize("sent", [b"G", HEAD.encode(), HEAD.encode() + b"Content-Length: 500\r\n\r\n{"])
async def test_a_request_that_does_not_come_to_its_end_is_given_up(hasty: RunningRelay, sent: bytes) -> None:
    client = await hasty.client()
    client.send(sent)
    reply = await client.reply()
    assert (reply.status, reply.code) == (408, "timeout")
    assert await client.rest() == b""


async def test_a_connection_without_a_request_is_closed_without_a_word(hasty: RunningRelay) -> None:
    client = await hasty.client()
    assert await client.rest() == b""
    other = await hasty.client()
    other.send(b"\r\n\r\n")
    assert await other.rest() == b""


async def test_a_request_that_waits_for_its_answer_is_not_hurried(hasty: RunningRelay) -> None:
    client = await hasty.client()
    client.ask(path="/running")
    await hasty.hub.hears(Asked)
    for _ in range(3):
        hasty.core.look()
    (caller,) = hasty.core.callers
    assert not caller.transport.is_closing()


# Anything


def odd_bytes(chance: random.Random) -> bytes:
    """Requests, spoilt: cut, repeated, shuffled, with bytes changed; or no requests at all."""
    pieces = [
        HEAD.encode(),
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: upgrade\r\nUpgrade: websocket\r\n",
        b"Content-Type: multipart/form-data; boundary=b\r\n",
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nsmall\r\n--b--',
        b"Expect: 100-continue\r\n",
        b"\r\n",
        b"\r\n\r\n",
        b'5\r\n{"mod\r\n0\r\n\r\n',
        b'{"model":"small"}',
        chance.randbytes(chance.randint(0, 40)),
    ]
    data = bytearray(b"".join(chance.choices(pieces, k=chance.randint(1, 12))))
    for _ in range(chance.randint(0, 4)):
        at = chance.randrange(len(data) + 1)
        data[at : at + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
    return bytes(data)


@pytest.mark.parametrize("seed", range(8))
async def test_any_bytes_are_answered_or_closed_and_harm_nobody(tmp_path: Path, seed: int) -> None:
    limits = Limits(head_s=0.02, body_s=0.02, body_bytes_per_s=1e9, idle_s=0.02, linger_s=0.02, look_every_s=0.01)
    async with RunningRelay.open(tmp_path, limits) as relay:
        await hear_anything(relay, random.Random(seed))


async def hear_anything(relay: RunningRelay, chance: random.Random) -> None:
    await relay.serving()
    trouble: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: trouble.append(context))

    async def one() -> None:
        client = await relay.client()
        data = odd_bytes(chance)
        while data:
            size = chance.choice((1, 7, 50, 1000))
            client.send(data[:size])
            data = data[size:]
            await asyncio.sleep(0)
        for line in (await client.rest()).split(b"\r\n"):
            if line.startswith(b"HTTP/1.1 "):
                assert int(line.split()[1]) in (100, 200, 400, 401, 403, 404, 408, 413, 417, 501, 505), line

    for _ in range(10):
        await asyncio.gather(*[one() for _ in range(20)])
    assert not trouble
    assert (await relay.call(chat())).status == 200
    assert relay.core.spool.held == 0
