"""A head that was read before is not read again: whatever that saves, nobody can see a difference."""

import asyncio
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from httptools import HttpRequestParser
from hypothesis import example, given
from hypothesis import strategies as st
from tests.gateway.relay.running_relay import CHAT, PLAIN, SECRET, Client, Heard, Line, RunningRelay, chat, key, until

from ostler.gateway.control import Done
from ostler.gateway.relay.heads import MAX_HEAD_BYTES, Heads
from ostler.gateway.relay.limits import Limits

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: k\r\n%b: %d\r\nAccept: */*\r\n\r\n"


class Parsed:
    """What the parser makes of these bytes, if they are exactly one message."""

    def __init__(self, data: bytes) -> None:
        self.url = self.body = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.begun = self.ended = 0
        self.parser = HttpRequestParser(self)
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.begun += 1

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() != b"content-length":
            self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.ended += 1

    @property
    def meaning(self) -> tuple[object, ...]:
        return self.parser.get_method(), self.url, self.headers, self.parser.should_keep_alive()


def having(data: bytes, length: int) -> Heads[str]:
    """One that has seen this twice."""
    heads: Heads[str] = Heads(8)
    heads.keep(data, length, "head")
    assert heads.find(data) is None
    heads.keep(data, length, "head")
    return heads


PIECES = st.sampled_from(
    (
        *(b"", b"0", b"7", b" ", b"\t", b"-", b"+", b"_", b"\r\n", b"\n", b"\r", b"\r\n\r\n", b":", b"\0", b"\xb2"),
        *(b"Transfer-Encoding: chunked\r\n", b"Content-Length: 3\r\n", b"\r\nContent-Length: 3", b"Expect: x\r\n"),
    )
)


@given(body=st.binary(min_size=1, max_size=40), at=st.integers(0, 200), piece=PIECES, cut=st.integers(0, 3))
def test_what_passes_for_the_same_head_means_the_same_to_the_parser(
    body: bytes, at: int, piece: bytes, cut: int
) -> None:
    """However a message was changed. The parser may take more than this does, and never less."""
    first = HEAD % (b"Content-Length", 5) + b"hello"
    changed = HEAD % (b"Content-Length", len(body)) + body
    at = min(at, len(changed))
    changed = changed[:at] + piece + changed[at + cut :]
    found = having(first, 5).find(changed)
    if found is not None:
        parsed = Parsed(changed)
        assert parsed.begun == parsed.ended == 1
        assert parsed.meaning == Parsed(first).meaning
        assert parsed.body == found[1] != b""


@given(first=st.binary(min_size=1, max_size=2000), second=st.binary(min_size=1, max_size=2000))
@example(first=b"x", second=b"\r\nContent-Length: 5\r\n\r\n")
@example(first=b"x", second=b"Content-Length: ")
def test_only_the_length_may_differ(first: bytes, second: bytes) -> None:
    for name in (b"Content-Length", b"content-length"):
        heads = having(HEAD % (name, len(first)) + first, len(first))
        same = HEAD % (name, len(second)) + second
        assert heads.find(same) == ("head", second)
        others = (
            same + b"x",
            same[:-1],
            HEAD % (name, 2 * len(same) - len(HEAD % (name, 0)) + 1) + second,
            HEAD % (name, 0),
            same.replace(b"Key: k", b"Key: l", 1),
            same.replace(name, name.swapcase(), 1),
        )
        assert not any(heads.find(one) for one in others)


def test_no_more_heads_are_kept_than_may_be() -> None:
    heads: Heads[int] = Heads(8)
    messages = [b"POST /%d HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello" % number for number in range(20)]
    for number, message in enumerate(messages):
        heads.keep(message, 5, number)
        heads.keep(message, 5, number)
    kept = [found[0] for found in map(heads.find, messages) if found is not None]
    assert 0 < len(kept) <= 8 and kept[-1] == 19


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST / HTTP/1.1\r\nX-Content-Length: 5\r\n\r\n",
        b"POST / HTTP/1.1\r\nX: \r\n Content-Length: 5\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n",
        b"\r\n\r\nPOST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 005\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5 \r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nX: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n",
    ],
)
def test_a_head_without_one_plain_length_is_not_kept(head: bytes) -> None:
    assert having(head + b"hello", 5).find(head + b"hello") is None


# With a relay


async def answer(line: Line, heard: Heard) -> None:
    """One that the body alone decides on."""
    body = json.dumps({"echo": len(heard.body), "usage": {"prompt_tokens": 3, "completion_tokens": 4}}).encode()
    match heard.json["answer"]:
        case "plain":
            line.answer(body)
        case "long":
            line.answer(body + b" " * 100_000)
        case "dated":
            line.answer(body, more=f"Date: {heard.json['number']}\r\n")
        case "empty":
            line.answer(b"")
        case "refusal":
            line.answer(body, status=400)
        case "nothing":
            line.send(b"HTTP/1.1 204 No Content\r\n\r\n")
        case "interim":
            line.send(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
            line.answer(body)
        case "pieces":
            line.send(b"HTTP/1.1 200 Fine\r\nContent-Type: application/json\r\n")
            await asyncio.sleep(0)
            line.send(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        case "stream":
            line.begin_stream()
            line.event("one")
            line.end_stream()
        case "last":
            line.answer(body, more="Connection: close\r\n")
            raise ConnectionError


ANSWERS = ("plain", "long", "dated", "empty", "refusal", "nothing", "interim", "pieces", "stream", "last")
OWN_IDS = ("X-Request-Id: always-this\r\n", "X-Request-Id: {number}\r\n", "X-Request-Id: not sensible\r\n")
MORES = ("", "Accept: */*\r\n", "X-Trace: {number}\r\n", "Connection: x-own\r\nX-Own: 1\r\n", *OWN_IDS)
MADE_ID = re.compile(rb"[0-9a-f]{16}-[0-9a-f]+")
"""Made by the relay: it differs from request to request."""


def requests(chance: random.Random) -> list[tuple[bytes, bool]]:
    """Heads and answers mostly like the ones before. Each request with whether it comes in two pieces."""
    made = []
    path, more, kind = CHAT, "", "plain"
    for number in range(60):
        if chance.random() < 0.25:
            path = chance.choice((CHAT, "/v1/completions?a=1", "/upstream/small/any/thing"))
            more = chance.choice(MORES).format(number=number)
        if chance.random() < 0.4:
            kind = chance.choice(ANSWERS)
        model = chance.choice(("small", "small", "gpt-4", "renamed", "missing"))
        padding = "x" * chance.choice((0, 9, 500, 9000))
        body = json.dumps(chat(model, answer=kind, number=number, padding=padding)).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {SECRET}\r\n{more}Content-Length: {len(body)}\r\n"
        )
        made.append((head.encode() + b"\r\n" + body, chance.random() < 0.2))
    return made


async def exchanged(folder: Path, limits: Limits, seed: int) -> list[object]:
    """What callers and model servers saw of a run of requests, and what the hub was told of it."""
    async with RunningRelay.open(folder, limits) as relay:
        saw: list[object] = []

        async def serve(line: Line, heard: Heard) -> None:
            made = MADE_ID.fullmatch(heard.headers["x-request-id"].encode())
            headers = heard.headers | {"host": "whichever port it has"} | ({"x-request-id": "made"} if made else {})
            saw.append((heard.method, heard.target, list(headers.items()), heard.body))
            await answer(line, heard)

        await relay.serving(serve)
        await relay.serving(serve, "renamed", instance="i2")
        client = await relay.client()
        for data, in_pieces in requests(random.Random(seed)):
            for piece in (data[:200], data[200:]) if in_pieces else (data,):
                client.send(piece)
                await asyncio.sleep(0.002 if in_pieces else 0)
            reply = await client.reply()
            saw.append((MADE_ID.sub(b"made", reply.head), reply.body))
        await relay.settled()
        saw += [(done.status, done.bytes_in, done.bytes_out, done.prompt_tokens) for done in relay.hub.heard(Done)]
        return saw


class Counted:
    """How often a head was known."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.known = 0
        find: Callable[[Heads[Any], bytes], tuple[Any, bytes] | None] = Heads.find

        def counted(heads: Heads[Any], data: bytes) -> tuple[Any, bytes] | None:
            found = find(heads, data)
            self.known += found is not None
            return found

        monkeypatch.setattr(Heads, "find", counted)


@pytest.mark.parametrize("few", [4, -1], ids=["writes at once", "writes together"])
@pytest.mark.parametrize("seed", range(4))
async def test_a_head_that_was_seen_before_changes_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, few: int
) -> None:
    limits = Limits(few=few, memory_bytes=5000)
    counted = Counted(monkeypatch)
    with_heads_kept = await exchanged(tmp_path, limits, seed)
    assert counted.known > 10
    monkeypatch.setattr(Heads, "keep", lambda *_: None)
    assert with_heads_kept == await exchanged(tmp_path, Limits(memory_bytes=5000), seed)


async def known(relay: RunningRelay, **more: Any) -> Client:
    """A caller whose head is."""
    await relay.serving()
    client = await relay.client()
    assert [await again(client, **more) for _ in range(3)] == [(200, "")] * 3
    return client


async def again(client: Client, **more: Any) -> tuple[int, str]:
    reply = await client.call(chat(**more))
    return reply.status, reply.json["error"]["code"] if reply.status >= 400 else ""


async def test_a_caller_whose_key_was_taken_away_is_refused_with_the_same_head(relay: RunningRelay) -> None:
    client = await known(relay)
    relay.hub.say(msgspec.structs.replace(PLAIN, keys=[key("another")]))
    await relay.settled()
    assert await client.rest() == b"", "its connection ends with its key"
    assert await again(await relay.client()) == (401, "invalid_api_key")


async def test_a_key_that_became_a_workers_calls_no_models_with_the_same_head(relay: RunningRelay) -> None:
    client = await known(relay)
    relay.hub.say(msgspec.structs.replace(PLAIN, keys=[key(role="worker")]))
    await relay.settled()
    assert await again(client) == (403, "permission_denied")


async def test_a_body_that_became_too_large_is_refused_with_the_same_head(relay: RunningRelay) -> None:
    client = await known(relay, padding="x" * 900)
    relay.hub.say(msgspec.structs.replace(PLAIN, max_body_bytes=500))
    await relay.settled()
    assert await again(client) == (200, "")
    assert await again(client, padding="x" * 900) == (413, "request_too_large")


async def test_a_relay_that_stops_answers_the_same_head_no_more(relay: RunningRelay) -> None:
    client = await known(relay)
    relay.core.stopping = True
    assert await again(client) == (503, "shutting_down")


async def test_a_body_that_finds_no_room_is_refused_with_the_same_head(tmp_path: Path) -> None:
    async with RunningRelay.open(tmp_path, Limits(memory_bytes=1000)) as relay:
        client = await known(relay)
        relay.core.spool.folder = tmp_path / "missing"
        assert await again(client, padding="x" * 2000) == (503, "no_room")
        assert await again(client) == (200, "")
        assert relay.core.spool.held == 0


async def test_a_piece_of_a_body_that_looks_like_a_known_request_is_none(relay: RunningRelay) -> None:
    server = await relay.serving()
    client = await relay.client()
    assert [await again(client) for _ in range(3)] == [(200, "")] * 3
    body = json.dumps(chat()).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {SECRET}\r\nContent-Length: "
    hidden = head.encode() + b"%d\r\n\r\n" % len(body) + body
    client.send(head.encode() + b"%d\r\n\r\n{" % (1 + len(hidden)))
    await until(lambda: any(one._incoming is not None for one in relay.core.callers))
    client.send(hidden)
    assert (await client.reply()).status == 400
    assert len(server.heard) == 3


async def test_a_form_with_a_known_head_is_read_as_a_form(relay: RunningRelay) -> None:
    server = await relay.serving()
    client = await relay.client()
    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nsmall\r\n--b--\r\n'
    for _ in range(4):
        client.ask(form, "/v1/audio/transcriptions", more="Content-Type: multipart/form-data; boundary=b\r\n")
        assert (await client.reply()).status == 200
    assert [heard.body for heard in server.heard] == [form] * 4


async def test_an_answer_to_head_with_a_known_head_has_no_body(relay: RunningRelay) -> None:
    async def answer(line: Line, heard: Heard) -> None:
        line.answer(b"{}")

    await relay.serving(answer)
    client = await relay.client()
    for _ in range(3):
        assert (await client.call(chat())).body == b"{}"
    client.ask(path=CHAT + "?model=small", method="HEAD")
    assert (await client.reply(bodiless=True)).headers["content-length"] == "2"
    after = await client.call(chat())
    assert after.head.startswith(b"HTTP/1.1 200 ") and after.body == b"{}"


async def test_an_answer_in_pieces_of_which_the_last_looks_like_an_answer_is_one_answer(relay: RunningRelay) -> None:
    """Neither is a known head seen in it, nor a head remembered of it."""

    async def answer(line: Line, heard: Heard) -> None:
        if heard.json["pieces"]:
            line.send(b"HTTP/1.1 418 Odd\r\nX-Says: ")
            await until(lambda: any(exchange.upstream._unread for exchange in instance.exchanges))
        line.send(b"HTTP/1.1 200 Fine\r\nContent-Length: 2\r\n\r\n{}")

    await relay.serving(answer)
    instance: Any = relay.core.instances["i1"]
    client = await relay.client()
    pieces = [True] * 3 + [False] * 3 + [True]
    seen = [(await client.call(chat(pieces=one))).status for one in pieces]
    assert seen == [418 if one else 200 for one in pieces]


@pytest.mark.parametrize("status", [204, 304])
async def test_a_body_that_an_answer_may_not_have_never_reaches_a_caller(relay: RunningRelay, status: int) -> None:
    async def answer(line: Line, heard: Heard) -> None:
        line.answer(b"HTTP/1.1 200 Planted\r\n\r\n", status)

    await relay.serving(answer)
    client = await relay.client()
    assert [(await client.call(chat())).status for _ in range(4)] == [status] * 4
    assert (await client.call(path="/health")).head.startswith(b"HTTP/1.1 200 OK")


async def test_whoever_asks_whether_to_go_on_is_told_each_time(relay: RunningRelay) -> None:
    await relay.serving()
    client = await relay.client()
    for _ in range(4):
        client.ask(chat(), more="Expect: 100-continue\r\n")
        assert ((await client.head()).status, (await client.reply()).status) == (100, 200)


@pytest.mark.parametrize("more", ["Connection: close\r\n", "Connection: upgrade\r\nUpgrade: h2c\r\n"])
async def test_a_known_head_says_the_same_about_the_connection(
    relay: RunningRelay, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    server = await relay.serving()
    counted = Counted(monkeypatch)
    for _ in range(4):
        client = await relay.client()
        client.ask(chat(), more=more)
        assert (await client.reply()).status == 200
        if "close" in more:
            assert await client.rest() == b""
        else:
            assert (await client.call(path="/health")).status == 200
    assert counted.known and len(server.heard) == 4


async def test_a_request_with_a_known_head_waits_until_its_caller_reads(relay: RunningRelay) -> None:
    server = await relay.serving()
    client = await relay.client()
    assert [await again(client) for _ in range(3)] == [(200, "")] * 3
    (caller,) = relay.core.callers
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    unread = b" " * 16_000_000
    caller.transport.write(unread)
    assert caller.full
    client.ask(chat())
    await until(lambda: caller._line or len(server.heard) > 3)
    assert len(server.heard) == 3
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert await client.reader.readexactly(len(unread)) == unread
    assert (await client.reply()).status == 200
