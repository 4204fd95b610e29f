"""Every answer has an `X-Request-Id`, by which the caller, the model's server and the hub name the request."""

import pytest
from tests.gateway.relay.running_relay import PLAIN, Heard, Line, RunningRelay, chat

from ostler.gateway.control import Answer, Arrived, Asked, Done, Grant, Refuse, Setup

NONSENSE = ("", "two words", "x" * 129, "caf\xe9", '"quoted"', "a,b", "<script>")


async def test_a_request_without_an_id_gets_one_that_its_server_and_the_hub_see(relay: RunningRelay) -> None:
    server = await relay.serving()
    client = await relay.client()
    ids = [(await client.call(chat())).headers["x-request-id"] for _ in range(4)]
    assert len(set(ids)) == 4 and all(ids)
    assert [heard.headers["x-request-id"] for heard in server.heard] == ids
    assert [(await relay.hub.hears(Done)).request_id for _ in ids] == ids


async def test_a_callers_own_id_is_passed_through(relay: RunningRelay) -> None:
    server = await relay.serving()
    client = await relay.client()
    for _ in range(4):
        reply = await client.call(chat(), more="x-request-id:  job-17/a.b:c_d=+@  \r\n")
        assert reply.headers["x-request-id"] == "job-17/a.b:c_d=+@"
        assert reply.head.lower().count(b"x-request-id") == 1
        assert server.heard[-1].headers["x-request-id"] == "job-17/a.b:c_d=+@"
        assert (await relay.hub.hears(Done)).request_id == "job-17/a.b:c_d=+@"


@pytest.mark.parametrize("nonsense", NONSENSE)
async def test_an_id_that_is_not_sensible_is_replaced(relay: RunningRelay, nonsense: str) -> None:
    server = await relay.serving()
    client = await relay.client()
    data = b'{"model":"small"}'
    client.ask(data, more=f"X-Request-Id: {nonsense}\r\n")
    found = (await client.reply()).headers["x-request-id"]
    assert found and found != nonsense
    assert server.heard[0].headers["x-request-id"] == found


async def test_an_id_that_the_models_server_makes_gives_way_to_that_of_the_request(relay: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.answer(more="x-request-id: its-own\r\n")

    await relay.serving(script)
    for _ in range(3):
        reply = await relay.call(chat(), more="X-Request-Id: mine\r\n")
        assert reply.headers["x-request-id"] == "mine" and b"its-own" not in reply.head


async def test_a_stream_has_one_at_once_and_after_comments(relay: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.begin_stream()
        line.event(heard.headers["x-request-id"])
        line.end_stream()

    server = await relay.serving(script)
    reply = await relay.call(chat(stream=True), more="X-Request-Id: mine\r\n")
    assert reply.headers["x-request-id"] == "mine" and reply.body == b"data: mine\n\n"
    client = await relay.client()
    client.ask(chat("large", stream=True), more="X-Request-Id: other\r\n")
    arrived = await relay.hub.hears(Arrived)
    assert arrived.request_id == "other"
    assert (await client.head()).headers["x-request-id"] == "other"
    relay.hub.say(Grant(arrived.request, "i2", "127.0.0.1", server.port))
    pieces = b""
    while piece := await client.chunk():
        pieces += piece
    assert b"data: other\n\n" in pieces


async def test_refusals_pages_and_redirects_have_one(relay: RunningRelay) -> None:
    own = "X-Request-Id: mine\r\n"
    paths = ("/health", "/v1/models", "/v1/models/small", "/v1/models/nobody", "/upstream/small")
    for path in paths:
        assert (await relay.call(path=path, more=own)).headers["x-request-id"] == "mine", path
    for body in (chat("nobody"), b"[", {"no": "model"}):
        assert (await relay.call(body, more=own)).headers["x-request-id"] == "mine", body
    assert (await relay.call(chat(), secret="wrong", more=own)).headers["x-request-id"] == "mine"
    client = await relay.client()
    client.send(b"what is this\r\n\r\n")
    reply = await client.reply()
    assert reply.status == 400 and reply.headers["x-request-id"]
    relay.hub.say(Setup(PLAIN.models, PLAIN.keys, 10))
    await relay.settled()
    assert (await relay.call(chat(), more=own)).headers["x-request-id"] == "mine"


async def test_what_the_hub_answers_or_refuses_has_one(relay: RunningRelay) -> None:
    client = await relay.client()
    client.ask(path="/running", more="X-Request-Id: page\r\n")
    asked = await relay.hub.hears(Asked)
    relay.hub.say(Answer(asked.request, 200, [("Content-Type", "application/json")], b"{}"))
    assert (await client.reply()).headers["x-request-id"] == "page"
    client.ask(chat(), more="X-Request-Id: chat\r\n")
    arrived = await relay.hub.hears(Arrived)
    relay.hub.say(Refuse(arrived.request, 502, "model_load_failed", "it did not start"))
    assert (await client.reply()).headers["x-request-id"] == "chat"


async def test_a_request_that_is_given_back_keeps_its_id(relay: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.cut()

    await relay.serving(script)
    client = await relay.client()
    client.ask(chat())
    arrived = await relay.hub.hears(Arrived)
    assert arrived.again
    better = await relay.server()
    relay.hub.say(Grant(arrived.request, "i2", "127.0.0.1", better.port))
    reply = await client.reply()
    assert reply.headers["x-request-id"] == arrived.request_id == better.heard[0].headers["x-request-id"]


async def test_an_answer_to_a_change_of_protocol_has_one(relay: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.send(b"HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Request-Id: its-own\r\n\r\n")

    server = await relay.serving(script)
    client = await relay.client()
    client.ask(path="/upstream/small/ws", more="Connection: Upgrade\r\nUpgrade: websocket\r\nX-Request-Id: mine\r\n")
    reply = await client.head()
    assert (reply.status, reply.headers["x-request-id"]) == (101, "mine")
    assert server.heard[0].headers["x-request-id"] == "mine"
