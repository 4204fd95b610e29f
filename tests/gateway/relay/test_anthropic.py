"""Clients of `/v1/messages` get errors in Anthropic's shape, everybody else in OpenAI's."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.relay.running_relay import CHAT, Heard, Line, Reply, RunningRelay, chat

from ostler.gateway.control import Arrived, Grant, Refuse
from ostler.gateway.relay.limits import Limits

MESSAGES = "/v1/messages"


@pytest.fixture
async def talkative(tmp_path: Path) -> AsyncIterator[RunningRelay]:
    """A relay that does not wait a second before it says that a model loads."""
    async with RunningRelay.open(tmp_path, Limits(loading_after_s=0.01, loading_every_s=0.02)) as relay:
        yield relay


def error(document: Any) -> tuple[str, str]:
    """The type and the message of an error in Anthropic's shape."""
    assert document.keys() == {"type", "error"} and document["type"] == "error"
    assert document["error"].keys() == {"type", "message"}
    return document["error"]["type"], document["error"]["message"]


@pytest.mark.parametrize("path", [MESSAGES, MESSAGES + "/count_tokens", "/upstream/nobody/v1/messages"])
async def test_a_refusal_of_the_relay_has_anthropics_shape(relay: RunningRelay, path: str) -> None:
    reply = await relay.call(chat("nobody"), path)
    assert reply.status == 404
    kind, message = error(reply.json)
    assert kind == "not_found_error" and "nobody" in message
    reply = await relay.call(chat(), path, secret="wrong")
    assert (reply.status, error(reply.json)[0]) == (401, "authentication_error")
    assert reply.headers["www-authenticate"] == "Bearer"


async def test_a_body_that_is_not_json_or_too_large_is_refused_in_anthropics_shape(relay: RunningRelay) -> None:
    reply = await relay.call(b"[", MESSAGES)
    assert (reply.status, error(reply.json)[0]) == (400, "invalid_request_error")
    client = await relay.client()
    client.ask(method="POST", path=MESSAGES, more="Content-Length: 99999999999\r\n")
    reply = await client.reply()
    assert (reply.status, error(reply.json)[0]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(429, "rate_limit_error"), (502, "api_error"), (503, "overloaded_error"), (404, "not_found_error")],
)
async def test_a_refusal_of_the_hub_has_anthropics_shape(relay: RunningRelay, status: int, kind: str) -> None:
    client = await relay.client()
    client.ask(chat(stream=True), MESSAGES)
    arrived = await relay.hub.hears(Arrived)
    relay.hub.say(Refuse(arrived.request, status, "a_code", "come back later", 2.0))
    reply = await client.reply()
    assert (reply.status, reply.headers["retry-after"]) == (status, "2")
    assert error(reply.json) == (kind, "come back later")


def events(body: bytes) -> list[bytes]:
    """The events of a stream, without its comments."""
    pieces = [piece.strip(b"\n") for piece in body.split(b"\n\n")]
    return [piece for piece in pieces if piece and not piece.startswith(b":")]


async def test_an_error_after_comments_is_anthropics_event(talkative: RunningRelay) -> None:
    client = await talkative.client()
    client.ask(chat("large", stream=True), MESSAGES)
    arrived = await talkative.hub.hears(Arrived)
    assert (await client.head()).status == 200
    talkative.hub.say(Refuse(arrived.request, 502, "model_load_failed", "it did not start"))
    body = b""
    while piece := await client.chunk():
        body += piece
    (event,) = events(body)
    first, second = event.split(b"\n")
    assert first == b"event: error" and second.startswith(b"data: ")
    assert error(Reply(200, {}, second.removeprefix(b"data: "), b"").json) == ("api_error", "it did not start")


async def test_an_error_of_the_server_in_place_of_a_stream_is_anthropics_event(talkative: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.answer(b'{"type":"error","error":{"type":"invalid_request_error","message":"too long"}}', status=400)

    server = await talkative.server(script)
    client = await talkative.client()
    client.ask(chat("large", stream=True), MESSAGES)
    arrived = await talkative.hub.hears(Arrived)
    assert (await client.head()).status == 200
    talkative.hub.say(Grant(arrived.request, "i1", "127.0.0.1", server.port))
    body = b""
    while piece := await client.chunk():
        body += piece
    event = events(body)[-1]
    assert event.startswith(b"event: error\ndata: ")
    document = Reply(200, {}, event.partition(b"data: ")[2], b"").json
    assert error(document) == ("invalid_request_error", "too long")


async def test_a_stream_that_breaks_off_ends_in_anthropics_event(relay: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.begin_stream()
        line.event("one")
        line.cut()

    await relay.serving(script)
    for path, ends in ((MESSAGES, b"}}\n\n"), (CHAT, b"data: [DONE]\n\n")):
        body = (await relay.call(chat(stream=True), path)).body
        assert body.startswith(b"data: one\n\n") and body.endswith(ends)
        assert (b"event: error\ndata: " in body) == (path == MESSAGES)


async def test_elsewhere_errors_keep_openais_shape(relay: RunningRelay) -> None:
    for path in (CHAT, "/v1/messagesque", "/v1/responses"):
        assert (await relay.call(chat("nobody"), path)).code == "model_not_found"
