"""Pages of other origins call the gateway from browsers where the configuration names their origins, and only there."""

import msgspec
import pytest
from tests.gateway.relay.running_relay import CHAT, PLAIN, Heard, Line, Reply, RunningRelay, chat

from ostler.gateway.control import Answer, Arrived, Asked, Grant

OURS = "https://chat.example"
ASKS = "Access-Control-Request-Method: POST\r\n"


async def configure(relay: RunningRelay, *origins: str) -> None:
    relay.hub.say(msgspec.structs.replace(PLAIN, cors_origins=list(origins)))
    await relay.settled()


async def preflight(
    relay: RunningRelay, origin: str, path: str = CHAT, more: str = ASKS, host: str = "localhost"
) -> Reply:
    client = await relay.client()
    client.send(f"OPTIONS {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\n{more}\r\n".encode())
    return await client.reply()


def allows(reply: Reply, origin: str = OURS) -> bool:
    assert reply.head.lower().count(b"access-control-allow-origin") == 1
    assert reply.headers["vary"] == "Origin"
    assert "X-Request-Id" in reply.headers["access-control-expose-headers"]
    return reply.headers["access-control-allow-origin"] == origin


async def test_a_preflight_of_a_configured_origin_is_answered_without_a_key(relay: RunningRelay) -> None:
    await configure(relay, OURS)
    for path in (CHAT, "/v1/models", "/upstream/small/props", "/api/queue"):
        wanted = "authorization,x-stainless-lang,content-type"
        reply = await preflight(relay, OURS, path, ASKS + f"Access-Control-Request-Headers: {wanted}\r\n")
        assert reply.status == 204 and allows(reply) and reply.headers["x-request-id"]
        assert reply.headers["access-control-allow-headers"] == wanted
        assert "POST" in reply.headers["access-control-allow-methods"]
    assert "authorization" in (await preflight(relay, OURS)).headers["access-control-allow-headers"].lower()
    assert not relay.hub.heard(Asked)


async def test_one_connection_takes_the_preflight_and_the_request_after_it(relay: RunningRelay) -> None:
    await configure(relay, OURS)
    await relay.serving()
    client = await relay.client()
    for _ in range(3):
        client.ask(method="OPTIONS", path=CHAT, secret="none", more=f"Origin: {OURS}\r\n{ASKS}")
        assert (await client.reply()).status == 204
        reply = await client.call(chat(), more=f"Origin: {OURS}\r\n")
        assert reply.status == 200 and allows(reply)


async def test_without_the_setting_no_preflight_is_answered(relay: RunningRelay) -> None:
    assert (await preflight(relay, OURS)).status == 401
    assert (await relay.call(chat(), more=f"Origin: {OURS}\r\n")).status == 403


@pytest.mark.parametrize(
    "origin", ["https://chat.example.evil", "http://chat.example", "https://chat.example:444", "null", "*", ""]
)
async def test_another_origin_than_those_configured_is_refused(relay: RunningRelay, origin: str) -> None:
    await configure(relay, OURS)
    server = await relay.serving()
    reply = await preflight(relay, origin)
    assert reply.status == 401 and b"access-control" not in reply.head.lower()
    reply = await relay.call(chat(), more=f"Origin: {origin}\r\n")
    assert reply.status == 403 and b"access-control" not in reply.head.lower()
    assert not server.heard


async def test_an_origin_opens_neither_the_gate_of_keys_nor_that_of_names(relay: RunningRelay) -> None:
    await configure(relay, OURS)
    reply = await relay.call(chat(), secret="wrong", more=f"Origin: {OURS}\r\n")
    assert reply.status == 401 and allows(reply), "the page may read why"
    assert (await preflight(relay, OURS, host="evil.example")).status == 403
    no_question = await preflight(relay, OURS, more="")
    assert no_question.status == 401, "a preflight names the method that it asks for"


async def test_a_star_stands_for_every_origin_and_a_port_is_part_of_one(relay: RunningRelay) -> None:
    await configure(relay, "*")
    await relay.serving()
    for origin in ("https://anything.example", "null"):
        assert (await preflight(relay, origin)).status == 204
        assert allows(await relay.call(chat(), more=f"Origin: {origin}\r\n"), origin)
    await configure(relay, "http://localhost:3000")
    assert (await preflight(relay, "http://localhost:3000")).status == 204
    assert (await preflight(relay, "http://localhost:3001")).status == 401


async def test_answers_of_every_kind_may_be_read_by_the_page(relay: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        if heard.json["stream"]:
            line.begin_stream()
            line.event("one")
            line.end_stream()
        else:
            line.answer(more="access-control-allow-origin: *\r\nAccess-Control-Allow-Methods: GET\r\nVary: Origin\r\n")

    await configure(relay, OURS)
    server = await relay.serving(script)
    more = f"Origin: {OURS}\r\n"
    client = await relay.client()
    for _ in range(3):
        reply = await client.call(chat(), more=more)
        assert allows(reply) and "access-control-allow-methods" not in reply.headers
    assert allows(await client.call(chat(stream=True), more=more))
    assert allows(await client.call(path="/v1/models", more=more))
    assert allows(await client.call(chat("nobody"), more=more))
    client.ask(path="/running", more=more)
    asked = await relay.hub.hears(Asked)
    relay.hub.say(Answer(asked.request, 200, [], b"{}"))
    assert allows(await client.reply())
    client.ask(chat("large", stream=True), more=more)
    arrived = await relay.hub.hears(Arrived)
    assert allows(await client.head())
    relay.hub.say(Grant(arrived.request, "i2", "127.0.0.1", server.port))
    while await client.chunk():
        pass
    same = await relay.call(chat())
    assert same.headers["access-control-allow-origin"] == "*", "who is no page gets what the server wrote"


async def test_an_origin_that_is_taken_out_is_refused_with_the_same_head(relay: RunningRelay) -> None:
    await configure(relay, OURS)
    await relay.serving()
    client = await relay.client()
    for _ in range(3):
        assert (await client.call(chat(), more=f"Origin: {OURS}\r\n")).status == 200
    await configure(relay)
    assert (await client.call(chat(), more=f"Origin: {OURS}\r\n")).status == 403
