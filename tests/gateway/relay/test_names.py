"""By which names the gateway is called, by whose pages, and what of the hub's goes no further than here."""

import pytest
from tests.gateway.relay.running_relay import CHAT, PLAIN, SECRET, Heard, Line, RunningRelay, chat

from ostler.gateway.control import Setup

FOREIGN = ("evil.example", "evil.example:7601", "localhost.evil.example", "203.0.113.9")


async def status(relay: RunningRelay, line: str, host: str, more: str = "") -> int:
    client = await relay.client()
    client.send(f"{line} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {SECRET}\r\n{more}\r\n".encode())
    return (await client.reply()).status


@pytest.mark.parametrize(
    "line", ["GET /v1/models", f"POST {CHAT}", "DELETE /upstream/small/x", "GET /unload", "GET /health"]
)
async def test_a_name_or_a_page_of_somebody_elses_is_refused(relay: RunningRelay, line: str) -> None:
    server = await relay.serving()
    for host in FOREIGN:
        assert await status(relay, line, host) == 403, host
    for origin in ("http://evil.example", "null", "http://localhost:1", "https://localhost.evil"):
        assert await status(relay, line, "localhost", f"Origin: {origin}\r\n") == 403, origin
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
    assert await status(relay, "GET /upstream/small/x", "evil.example", upgrade) == 403
    assert await status(relay, "GET /upstream/small/x", "localhost", upgrade + "Origin: http://evil.example\r\n") == 403
    assert not server.heard


async def test_without_a_key_nothing_is_said_about_names(relay: RunningRelay) -> None:
    client = await relay.client()
    client.send(b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n")
    assert (await client.reply()).status == 401


async def test_its_own_names_and_pages_and_those_it_was_given_are_served(relay: RunningRelay) -> None:
    relay.hub.say(Setup(PLAIN.models, PLAIN.keys, 1000, names=["fleet.example", "https://front.example"]))
    await relay.settled()
    for host in ("localhost", "127.0.0.1:7601", "[::1]:7601", "fleet.example:7601", "front.example"):
        assert await status(relay, "GET /v1/models", host) == 200, host
        assert await status(relay, "GET /v1/models", host, f"Origin: http://{host}\r\n") == 200, host
    assert await status(relay, "GET /v1/models", "localhost", "Origin: https://front.example\r\n") == 200


async def test_what_is_known_of_a_head_does_not_outlive_the_names(relay: RunningRelay) -> None:
    """The same head again and again is read once only: whose name it has is looked at each time."""
    relay.hub.say(Setup(PLAIN.models, PLAIN.keys, 100_000, names=["fleet.example"]))
    await relay.serving()
    client = await relay.client()
    said = (
        f"POST {CHAT} HTTP/1.1\r\nHost: fleet.example\r\nAuthorization: Bearer {SECRET}\r\nContent-Length: 17\r\n\r\n"
    )
    for _ in range(4):
        client.send(said.encode() + b'{"model":"small"}')
        assert (await client.reply()).status == 200
    relay.hub.say(Setup(PLAIN.models, PLAIN.keys, 100_000))
    await relay.settled()
    client.send(said.encode() + b'{"model":"small"}')
    assert (await client.reply()).status == 403


async def test_neither_the_session_nor_the_key_reaches_a_models_server_and_it_sets_no_session(
    relay: RunningRelay,
) -> None:
    async def script(line: Line, heard: Heard) -> None:
        line.send(
            b"HTTP/1.1 200 OK\r\nSet-Cookie: ostler_session=forged; Path=/\r\nSet-Cookie: =ostler_session=forged\r\nSet-Cookie: own=1\r\nContent-Length: 2\r\n\r\nok"
        )

    server = await relay.serving(script)
    more = "Cookie: a=1; ostler_session=x.y.z; b=2\r\nX-Ostler-CSRF: c\r\nX-Operator-Token: t\r\n"
    for path in (CHAT, "/upstream/small/page"):
        reply = await relay.call(chat(), path, more=more)
        assert reply.status == 200 and b"ostler_session" not in reply.head and b"own=1" in reply.head
        heard = server.heard[-1].headers
        assert heard["cookie"] == "a=1; b=2"
        assert not {"x-ostler-csrf", "x-operator-token", "authorization"} & heard.keys()
    await relay.call(chat(), more="Cookie: ostler_session=x\r\n")
    assert "cookie" not in server.heard[-1].headers
