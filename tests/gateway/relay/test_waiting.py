"""No room behind an open gate: the hub is asked, and the caller waits for what it says."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.gateway.relay.running_relay import CHAT, Heard, Line, RunningRelay, chat, until

from ostler.gateway.control import (
    Abort,
    Arrived,
    Began,
    Cancelled,
    Close,
    Done,
    Drained,
    Gone,
    Grant,
    Open,
    Refuse,
    Tell,
    Used,
)
from ostler.gateway.relay.limits import Limits


@pytest.fixture
async def talkative(tmp_path: Path) -> AsyncIterator[RunningRelay]:
    """A relay that does not wait a second before it says that a model loads."""
    async with RunningRelay.open(tmp_path, Limits(loading_after_s=0.01, loading_every_s=0.02)) as relay:
        yield relay


async def ok(line: Line, heard: Heard) -> None:
    line.answer(b'{"usage":{"prompt_tokens":1,"completion_tokens":2}}')


async def stream(line: Line, heard: Heard) -> None:
    line.begin_stream()
    line.event("one")
    line.event("[DONE]")
    line.end_stream()


async def test_the_hub_is_asked_and_its_grant_is_served(relay: RunningRelay) -> None:
    server = await relay.server(ok)
    client = await relay.client()
    client.ask(chat("gpt-4", stream=True))
    arrived = await relay.hub.hears(Arrived)
    assert (arrived.model, arrived.path, arrived.stream, arrived.user, arrived.again) == (
        "small",
        CHAT,
        True,
        "ann",
        False,
    )
    relay.hub.say(Grant(arrived.request, "i1", "127.0.0.1", server.port))
    assert (await client.reply()).status == 200
    assert (await relay.hub.hears(Began)).request == arrived.request
    done = await relay.hub.hears(Done)
    assert (done.request, done.instance, done.status, done.asked, done.gave_back) == (
        arrived.request,
        "i1",
        200,
        True,
        False,
    )
    assert (done.prompt_tokens, done.completion_tokens) == (1, 2)
    assert not relay.core.requests


async def test_granted_requests_share_the_connections_of_their_instance(relay: RunningRelay) -> None:
    server = await relay.server(ok)
    client = await relay.client()
    for _ in range(5):
        client.ask(chat())
        arrived = await relay.hub.hears(Arrived)
        relay.hub.say(Grant(arrived.request, "i1", "127.0.0.1", server.port))
        assert (await client.reply()).status == 200
    assert server.connections == 1


async def test_a_refusal_is_the_callers_status(relay: RunningRelay) -> None:
    client = await relay.client()
    client.ask(chat(stream=True))
    arrived = await relay.hub.hears(Arrived)
    relay.hub.say(Refuse(arrived.request, 429, "queue_full", "the queue is full", 2.1))
    reply = await client.reply()
    assert (reply.status, reply.code, reply.headers["retry-after"]) == (429, "queue_full", "3")
    assert (await client.call(path="/health")).status == 200
    assert not relay.core.requests and not relay.hub.heard(Done) and not relay.hub.heard(Cancelled)


async def test_words_about_a_request_that_is_no_more_change_nothing(relay: RunningRelay) -> None:
    relay.hub.say(Grant(7, "i", "h", 1), Refuse(7, 500, "x", "y"), Tell(7, "z"), Abort(7), Gone("nobody"))
    await relay.settled()
    assert not relay.core.requests


# Gates


async def test_an_instance_takes_as_many_as_it_may_and_the_hub_decides_on_the_next(relay: RunningRelay) -> None:
    release = asyncio.Event()

    async def script(line: Line, heard: Heard) -> None:
        await release.wait()
        line.answer()

    server = await relay.serving(script, concurrency=2)
    clients = [await relay.client() for _ in range(3)]
    for client in clients:
        client.ask(chat())
        await asyncio.sleep(0)
    arrived = await relay.hub.hears(Arrived)
    assert (await relay.hub.hears(Used)).in_flight == 2
    release.set()
    await relay.hub.hears(Done, asked=False)
    relay.hub.say(Grant(arrived.request, "i1", "127.0.0.1", server.port))
    for client in clients:
        assert (await client.reply()).status == 200
    assert (await relay.hub.hears(Done, asked=True)).request == arrived.request


async def test_nobody_passes_those_who_wait_for_the_same_model(relay: RunningRelay) -> None:
    server = await relay.server(ok)
    first, second = await relay.client(), await relay.client()
    first.ask(chat(number=1))
    waiting = await relay.hub.hears(Arrived)
    relay.hub.say(Open("i1", "small", "127.0.0.1", server.port))
    await relay.settled()
    second.ask(chat(number=2))
    behind = await relay.hub.hears(Arrived)
    relay.hub.say(*[Grant(one.request, "i1", "127.0.0.1", server.port) for one in (waiting, behind)])
    assert (await first.reply()).status == (await second.reply()).status == 200
    assert (await relay.call(chat())).status == 200
    assert not relay.hub.heard(Arrived)


async def test_a_gate_for_no_request_means_that_each_is_asked_for(relay: RunningRelay) -> None:
    server = await relay.serving(concurrency=0)
    client = await relay.client()
    client.ask(chat())
    arrived = await relay.hub.hears(Arrived)
    relay.hub.say(Grant(arrived.request, "i1", "127.0.0.1", server.port))
    assert (await client.reply()).status == 200


async def test_of_several_instances_the_one_with_the_fewest_requests_is_used(relay: RunningRelay) -> None:
    release = asyncio.Event()

    async def script(line: Line, heard: Heard) -> None:
        await release.wait()
        line.answer()

    servers = [await relay.serving(script, instance=f"i{number}", concurrency=2) for number in range(3)]
    clients = [await relay.client() for _ in range(7)]
    for number, client in enumerate(clients[:6], 1):
        client.ask(chat())
        await until(lambda number=number: sum(len(server.heard) for server in servers) == number)
    assert [len(server.heard) for server in servers] == [2, 2, 2]
    clients[6].ask(chat())
    arrived = await relay.hub.hears(Arrived)
    relay.hub.say(Refuse(arrived.request, 503, "x", "y"))
    assert (await clients[6].reply()).status == 503
    release.set()
    for client in clients[:6]:
        assert (await client.reply()).status == 200


async def test_a_closed_gate_lets_nobody_through_and_is_drained_when_the_last_has_gone(relay: RunningRelay) -> None:
    release = asyncio.Event()

    async def script(line: Line, heard: Heard) -> None:
        await release.wait()
        line.answer()

    server = await relay.serving(script)
    inside, outside = await relay.client(), await relay.client()
    inside.ask(chat())
    await until(lambda: server.heard)
    relay.hub.say(Close("i1"))
    await relay.settled()
    outside.ask(chat())
    await relay.hub.hears(Arrived)
    assert not relay.hub.heard(Drained)
    release.set()
    assert (await inside.reply()).status == 200
    await relay.hub.hears(Drained, instance="i1")
    done = await relay.hub.hears(Done)
    assert done.status == 200 and server.connections == 1
    await server.ended.wait()


async def test_the_end_of_the_last_request_is_told_before_the_gate_is_drained(relay: RunningRelay) -> None:
    await relay.serving(ok)
    await relay.call(chat())
    relay.hub.say(Close("i1"))
    await relay.hub.hears(Drained, instance="i1")
    assert relay.hub.heard(Done)


async def test_an_unused_or_unknown_instance_is_drained_at_once(relay: RunningRelay) -> None:
    await relay.serving(ok)
    relay.hub.say(Close("i1"), Close("unknown"))
    await relay.hub.hears(Drained, instance="i1")
    await relay.hub.hears(Drained, instance="unknown")


async def test_a_gate_may_be_opened_again(relay: RunningRelay) -> None:
    server = await relay.serving(ok)
    relay.hub.say(Close("i1"), Open("i1", "small", "127.0.0.1", server.port))
    await relay.settled()
    assert (await relay.call(chat())).status == 200
    assert not relay.hub.heard(Arrived)


# Loading


async def test_a_caller_who_streams_hears_that_its_model_loads_and_then_its_answer(talkative: RunningRelay) -> None:
    server = await talkative.server(stream)
    client = await talkative.client()
    client.ask(chat("large", stream=True))
    arrived = await talkative.hub.hears(Arrived)
    head = await client.head()
    assert head.status == 200 and head.headers["content-type"] == "text/event-stream"
    assert await client.chunk() == b": loading\n\n"
    talkative.hub.say(Tell(arrived.request, "position 2,\nabout 12 s"))
    while (heard := await client.chunk()) == b": loading\n\n":
        pass
    assert heard == b": loading position 2, about 12 s\n\n"
    assert await client.chunk() == heard
    talkative.hub.say(Grant(arrived.request, "i1", "127.0.0.1", server.port))
    while (heard := await client.chunk()).startswith(b":"):
        pass
    assert heard == b"data: one\n\n"
    assert [await client.chunk() for _ in range(2)] == [b"data: [DONE]\n\n", b""]
    assert (await client.call(path="/health")).status == 200


def thought(chunk: bytes) -> str:
    """The text of an event that a chat shows as what its model thinks."""
    event = json.loads(chunk.removeprefix(b"data: "))
    (choice,) = event["choices"]
    assert (event["object"], event["model"], choice["index"], choice["finish_reason"]) == (
        *("chat.completion.chunk", "shown", 0),
        None,
    )
    assert event["id"] and isinstance(event["created"], int) and choice["delta"].keys() == {"reasoning_content"}
    return str(choice["delta"]["reasoning_content"])


async def test_a_chat_shows_what_its_model_waits_for_once_and_then_the_models_words(talkative: RunningRelay) -> None:
    server = await talkative.server(stream)
    client = await talkative.client()
    client.ask(chat("shown", stream=True))
    arrived = await talkative.hub.hears(Arrived)
    head = await client.head()
    assert head.status == 200 and head.headers["content-type"] == "text/event-stream"
    assert thought(await client.chunk()) == "waiting for 'shown' …\n"
    assert await client.chunk() == b": loading\n\n", "the same is shown once, and the connection stays open"
    talkative.hub.say(Tell(arrived.request, "'shown' is being loaded"))
    while (heard := await client.chunk()).startswith(b":"):
        pass
    assert thought(heard) == "'shown' is being loaded …\n"
    assert (await client.chunk()).startswith(b": loading 'shown'")
    talkative.hub.say(Grant(arrived.request, "i1", "127.0.0.1", server.port))
    assert await without_comments(client) == b"data: one\n\ndata: [DONE]\n\n"


async def test_a_load_that_fails_after_text_in_a_chat_is_an_error_event(talkative: RunningRelay) -> None:
    client = await talkative.client()
    client.ask(chat("shown", stream=True))
    arrived = await talkative.hub.hears(Arrived)
    await client.head()
    thought(await client.chunk())
    talkative.hub.say(Refuse(arrived.request, 502, "model_load_failed", "it did not start"))
    events = await without_comments(client)
    assert b'"code":"model_load_failed"' in events and events.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/v1/responses"])
async def test_streams_that_are_no_chat_have_comments_in_place_of_text(talkative: RunningRelay, path: str) -> None:
    client = await talkative.client()
    client.ask(chat("shown", stream=True), path)
    await talkative.hub.hears(Arrived)
    await client.head()
    assert await client.chunk() == b": loading\n\n"


async def test_a_chat_without_a_stream_hears_nothing_before_its_answer(talkative: RunningRelay) -> None:
    server = await talkative.server(ok)
    client = await talkative.client()
    client.ask(chat("shown"))
    arrived = await talkative.hub.hears(Arrived)
    assert talkative.core.requests[arrived.request].loading is None  # type: ignore[union-attr]
    talkative.hub.say(Grant(arrived.request, "i1", "127.0.0.1", server.port))
    assert (await client.reply()).json["usage"]["completion_tokens"] == 2


async def test_an_answer_of_known_length_is_put_into_the_stream_that_has_begun(talkative: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.answer(b"data: one\n\n", content_type="text/event-stream; charset=utf-8")

    assert await told_while_loading(talkative, script) == b"data: one\n\n"


async def test_an_error_of_the_server_becomes_an_event_once_the_stream_has_begun(talkative: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.answer(b'{"error":{"message":"too long a prompt"}}', status=400)

    events = await told_while_loading(talkative, script)
    first, last = [part for part in events.split(b"\n\n") if part]
    error = json.loads(first.removeprefix(b"data: "))["error"]
    assert error == {
        "message": "too long a prompt",
        "type": "invalid_request_error",
        "param": None,
        "code": "upstream_error",
    }
    assert last == b"data: [DONE]"


async def test_an_answer_that_is_no_stream_is_an_error_once_the_stream_has_begun(talkative: RunningRelay) -> None:
    events = await told_while_loading(talkative, ok)
    assert b"without the stream" in events and events.endswith(b"data: [DONE]\n\n")


async def test_what_follows_comments_is_not_compressed(talkative: RunningRelay) -> None:
    async def obeys(line: Line, heard: Heard) -> None:
        assert "accept-encoding" not in heard.headers and heard.headers["accept"] == "*/*"
        line.answer(b"data: one\n\n", content_type="text/event-stream")

    async def does_not(line: Line, heard: Heard) -> None:
        data = gzip.compress(b"data: one\n\n")
        line.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\n")
        line.send(b"Content-Length: %d\r\n\r\n%b" % (len(data), data))

    more = "Accept-Encoding: gzip\r\nAccept: */*\r\n"
    assert await told_while_loading(talkative, obeys, more=more) == b"data: one\n\n"
    events = await told_while_loading(talkative, does_not, "i2", more)
    assert b"without the stream" in events and events.endswith(b"data: [DONE]\n\n")


async def test_a_refusal_becomes_an_event_once_the_stream_has_begun(talkative: RunningRelay) -> None:
    client = await talkative.client()
    client.ask(chat("large", stream=True))
    arrived = await talkative.hub.hears(Arrived)
    await client.head()
    talkative.hub.say(Refuse(arrived.request, 502, "model_load_failed", "it did not start"))
    events = await without_comments(client)
    error = json.loads(events.strip().split(b"\n\n")[0].removeprefix(b"data: "))["error"]
    assert (error["code"], error["message"], error["type"]) == ("model_load_failed", "it did not start", "server_error")
    assert events.endswith(b"data: [DONE]\n\n")
    assert (await client.call(path="/health")).status == 200


async def told_while_loading(relay: RunningRelay, script: object, instance: str = "i1", more: str = "") -> bytes:
    server = await relay.server(script)  # type: ignore[arg-type]
    client = await relay.client()
    client.ask(chat("large", stream=True), more=more)
    arrived = await relay.hub.hears(Arrived)
    await client.head()
    relay.hub.say(Grant(arrived.request, instance, "127.0.0.1", server.port))
    return await without_comments(client)


async def without_comments(client: object) -> bytes:
    data = b""
    while chunk := await client.chunk():  # type: ignore[attr-defined]
        data += b"" if chunk.startswith(b":") else chunk
    return data


@pytest.mark.parametrize("body", [chat("large"), chat("small", stream=True)])
async def test_who_does_not_stream_or_whose_model_says_nothing_just_waits(
    talkative: RunningRelay, body: object
) -> None:
    server = await talkative.server(ok)
    client = await talkative.client()
    client.ask(body)
    arrived = await talkative.hub.hears(Arrived)
    assert talkative.core.requests[arrived.request].loading is None  # type: ignore[union-attr]
    talkative.hub.say(Tell(arrived.request, "text"))
    talkative.hub.say(Grant(arrived.request, "i1", "127.0.0.1", server.port))
    assert (await client.reply()).headers["content-type"] == "application/json"


async def test_a_grant_in_good_time_is_answered_by_the_servers_own_head(relay: RunningRelay) -> None:
    server = await relay.server(stream)
    client = await relay.client()
    client.ask(chat("large", stream=True))
    arrived = await relay.hub.hears(Arrived)
    relay.hub.say(Tell(arrived.request, "text"), Grant(arrived.request, "i1", "127.0.0.1", server.port))
    assert (await client.reply()).body == b"data: one\n\ndata: [DONE]\n\n"


# Abort


async def test_the_hub_may_end_a_request_that_waits(relay: RunningRelay) -> None:
    client = await relay.client()
    client.ask(chat())
    arrived = await relay.hub.hears(Arrived)
    relay.hub.say(Abort(arrived.request))
    assert (await client.reply()).code == "aborted"
    await relay.hub.hears(Cancelled, request=arrived.request)


@pytest.mark.parametrize("begun", [False, True])
async def test_the_hub_may_end_a_request_that_is_served(relay: RunningRelay, begun: bool) -> None:
    async def script(line: Line, heard: Heard) -> None:
        if begun:
            line.begin_stream()
            line.event("one")
        await line.closed()
        raise ConnectionError

    server = await relay.server(script)
    client = await relay.client()
    client.ask(chat(stream=True))
    arrived = await relay.hub.hears(Arrived)
    relay.hub.say(Grant(arrived.request, "i1", "127.0.0.1", server.port))
    if begun:
        await client.head()
        assert await client.chunk() == b"data: one\n\n"
    else:
        await until(lambda: server.heard)
    relay.hub.say(Abort(arrived.request))
    if begun:
        assert b'"aborted"' in await client.chunk()
        assert await client.chunk() == b""
    else:
        assert (await client.reply()).code == "aborted"
    await server.ended.wait()
    done = await relay.hub.hears(Done)
    assert done.status == (200 if begun else 503) and done.error
