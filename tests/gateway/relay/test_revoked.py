"""A key that is taken out of use: whatever came in with it ends, and nobody else's."""

import json

import msgspec
import pytest
from tests.gateway.relay.running_relay import CHAT, PLAIN, Heard, Line, RunningRelay, chat, key, until
from tests.gateway.relay.test_elsewhere import KEYS, far, opened

from ostler.gateway.control import Cancelled, Done, NeedTunnel, Setup

__all__ = ["far"]
STAYS, GOES = "s3cret-that-stays", "s3cret-that-goes"


def with_keys(*secrets: str) -> Setup:
    return msgspec.structs.replace(PLAIN, keys=[key(secret) for secret in secrets])


async def streams(line: Line, heard: Heard) -> None:
    line.begin_stream()
    line.event("begun")
    await line.closed()


@pytest.fixture
async def both(relay: RunningRelay) -> RunningRelay:
    relay.hub.say(with_keys(STAYS, GOES))
    await relay.settled()
    return relay


async def test_a_stream_ends_with_the_key_that_it_came_with(both: RunningRelay) -> None:
    server = await both.serving(streams)
    ours, others = await both.client(), await both.client()
    for client, secret in ((ours, GOES), (others, STAYS)):
        client.ask(chat(stream=True), secret=secret)
        assert (await client.head()).status == 200
        assert b"begun" in await client.chunk()
    both.hub.say(with_keys(STAYS))
    await ours.rest()
    done = await both.hub.hears(Done)
    assert done.status == 200
    await server.ended.wait()
    assert not others.reader.at_eof() and len(both.core.callers) == 1


async def test_who_waits_for_a_model_is_told_why_it_waits_no_more(both: RunningRelay) -> None:
    client = await both.client()
    client.ask(chat(), secret=GOES)
    await both.settled()
    both.hub.say(with_keys(STAYS))
    reply = await client.reply()
    assert (reply.status, reply.code) == (401, "invalid_api_key")
    assert await client.rest() == b""
    await both.hub.hears(Cancelled)


async def test_a_connection_that_lies_idle_ends_too(both: RunningRelay) -> None:
    await both.serving()
    client = await both.client()
    assert (await client.call(chat(), secret=GOES)).status == 200
    both.hub.say(with_keys(STAYS))
    assert await client.rest() == b""


async def test_a_key_that_goes_while_the_body_comes_opens_nothing(both: RunningRelay) -> None:
    server = await both.serving()
    client = await both.client()
    body = json.dumps(chat()).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {GOES}\r\n"
    client.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:10])
    await both.settled()
    both.hub.say(with_keys(STAYS))
    await both.settled()
    client.send(body[10:])
    reply = await client.reply()
    assert (reply.status, reply.code, server.heard) == (401, "invalid_api_key", [])


async def test_what_was_kept_of_those_who_are_expelled_is_let_go_of(both: RunningRelay) -> None:
    client = await both.client()
    for _ in range(4):
        client.ask(chat(pad="x" * 2000), secret=GOES)
    await until(lambda: both.core.spool.held > 8000)
    both.hub.say(with_keys(STAYS))
    await client.rest()
    await until(lambda: both.core.spool.held == 0)


async def test_the_tunnels_of_a_worker_end_with_its_last_key(far: RunningRelay) -> None:
    client = await far.client()
    client.ask(chat())
    line = await opened(far)
    await line.request()
    another = "s3cret-that-the-worker-has-now"
    far.hub.say(msgspec.structs.replace(PLAIN, keys=[*KEYS[:1], key(another, "box", "worker")]))
    await far.settled()
    line.answer(b'{"still":"here"}')
    assert (await client.reply()).json == {"still": "here"}, "a key that was replaced breaks nothing"
    client.ask(chat())
    await line.request()
    far.hub.say(msgspec.structs.replace(PLAIN, keys=KEYS[:1]))
    await line.closed()
    await far.hub.hears(NeedTunnel)
