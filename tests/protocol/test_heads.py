"""Bytes from anybody: heads of requests, bodies and frames that are too long, too deep or nothing at all."""

import asyncio
import contextlib
import json
import random

import pytest
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub

from ostler.core.check import check
from ostler.hub.api.depth import MAX_DEPTH, depth_of
from ostler.hub.door import MAX_HEAD_BYTES

PATIENCE_S = 60.0
PIECES = (
    b"\r\n",
    b"\n",
    b"\0",
    b": ",
    b" ",
    b"\t",
    b"\xff\xfe",
    b"%00",
    b"..",
    b"HTTP/9.9",
    b"\r",
    b"Host: evil",
    b"A" * 300,
)
HEADERS = (
    *("Content-Length: -1", "Content-Length: 99999999999999999999", "Content-Length: 1\r\nContent-Length: 2"),
    *("Transfer-Encoding: chunked", "Transfer-Encoding: gzip", "Transfer-Encoding: chunked\r\nContent-Length: 3"),
    *(
        "Upgrade: websocket\r\nConnection: Upgrade",
        "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings",
        "Expect: 100-continue",
    ),
    *(
        "Cookie: ostler_session=a.b.c.d",
        "Cookie: =;;=;ostler_session",
        "Origin: \xe4",
        "X-Operator-Token: \xff",
        "Range: bytes=9-1",
    ),
    *("Content-Range: bytes 5-1/3", "Last-Event-ID: 1e9", "Idempotency-Key: " + "k" * 400, "Accept-Encoding: *;q=x"),
)
LINES = (
    *(
        "GET /v1/jobs",
        "POST /v1/jobs",
        "GET /v1/me?a=%ff%00&&=;",
        "PUT /v1/model/%2e%2e",
        "GET http://evil.example/v1/jobs",
    ),
    *(
        "OPTIONS *",
        "CONNECT evil.example:1",
        "GET //v1//jobs",
        "GET /services/x/%0d%0aX: y",
        "DELETE /v1/tokens/%00",
        "M-SEARCH /",
    ),
    *("GET /v1/ws/worker", "HEAD /v1/jobs/\xc3\xa4/logs?follow=1&offset=-1", "PATCH /v1/session", "PRI *"),
)


def head(chance: random.Random, token: str) -> bytes:
    """One that is nearly good, and then spoilt in some places."""
    lines = [f"{chance.choice(LINES)} HTTP/1.1", "Host: localhost"]
    lines += [f"Authorization: Bearer {token}"] if chance.random() < 0.8 else []
    lines += chance.sample(HEADERS, chance.randint(0, 3))
    said = bytearray("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + b"{}" * chance.randint(0, 2))
    for _ in range(chance.choice((0, 1, 3))):
        at = chance.randrange(len(said))
        said[at : at + chance.randint(0, 3)] = chance.choice(PIECES)
    return bytes(said)


async def said_to(hub: RunningHub, *pieces: bytes) -> bytes:
    """All that is answered to these bytes on a connection of their own, after which nothing more is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(hub.url.rpartition(":")[2]))
    try:
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                writer.write_eof()
            found = b""
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(65536):
                    found += data
            return found
    finally:
        writer.close()


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_comes_as_a_head_is_answered_or_refused_and_others_are_served(
    hub: RunningHub, seed: int
) -> None:
    chance = random.Random(seed)
    viewer = await hub.user("eve", "viewer")
    for _ in range(60):
        said = head(chance, viewer.token)
        answer = await said_to(hub, said)
        statuses = [int(line.split()[1]) for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
        assert all(status < 500 for status in statuses), (said, answer)
    assert (await hub.api.get("/v1/health"))["status"] == "ok"


async def test_a_head_that_is_too_long_is_refused_before_all_of_it_has_come(hub: RunningHub) -> None:
    start = b"GET /v1/me HTTP/1.1\r\nHost: localhost\r\n"
    long, endless = b"x" * (MAX_HEAD_BYTES + 1), b"x" * (16 * MAX_HEAD_BYTES)
    whole = await said_to(hub, start + b"X-Long: " + long + b"\r\n\r\n")
    in_pieces = await said_to(
        hub, start, b"X-Long: ", *[endless[at : at + 8192] for at in range(0, len(endless), 8192)]
    )
    many = await said_to(hub, start + b"".join(b"X-%d: y\r\n" % number for number in range(20_000)))
    line = await said_to(hub, b"GET /" + long + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for answer in (whole, in_pieces, many, line):
        assert answer.startswith(b"HTTP/1.1 431 "), answer[:200]
    assert b" 401 " in (await said_to(hub, start + b"X-Long: " + b"x" * 60_000 + b"\r\n\r\n")).split(b"\r\n")[0]


async def test_a_large_body_is_no_large_head(hub: RunningHub) -> None:
    ann = await hub.user("ann")
    answer = await ann.call("POST", "/v1/jobs", json={"command": ["true"], "env": {"A": "x" * 200_000}})
    assert answer.status == 201


async def test_what_is_nested_too_deep_is_refused_wherever_it_is_taken(hub: RunningHub, api: Api) -> None:
    def nested(levels: int) -> object:
        return json.loads('{"a":' * levels + "1" + "}" * levels)

    for deep, status in ((MAX_DEPTH - 6, 201), (MAX_DEPTH, 422), (900, 422)):
        spec = {"command": ["true"], "training": {"model": "gbt", "hyper": {"x": nested(deep)}}}
        assert (await api.call("POST", "/v1/jobs", json=spec)).status == status, deep
        assert (await api.call("POST", "/v1/jobs", json=[spec])).status == status, deep
    (await api.call("POST", "/v1/jobs", data=b"[" * 100_000)).problem(400)
    (await api.call("POST", "/v1/whatif", data=b'{"job_id":' + b"[" * 100_000)).problem(422)
    assert len((await api.get("/v1/jobs"))["jobs"]) == 2


def test_brackets_in_strings_are_no_levels_and_no_text_takes_long() -> None:
    assert depth_of(json.dumps({"x": ["[{" * 50, '\\"[[[[' * 30]}).encode()) == 2
    assert depth_of(b'{"a":' * 40 + b"1" + b"}" * 40) == 40
    assert depth_of(b"[[]]" + b"[]" * 40) == 2
    assert depth_of(b'"' + b'\\"[' * 80_000) == depth_of(b'"' + b'\\"[' * 80_000 + b"\\") == 0


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_comes_as_a_frame_is_that_connections_business_alone(hub: RunningHub, seed: int) -> None:
    chance = random.Random(seed)
    worker = await hub.worker("honest")
    task_id = await hub.api.submit()
    task = await worker.take(task_id)
    machine = hub.caller(hub.join_token)
    for _ in range(12):
        async with machine.session.ws_connect(hub.url.replace("http", "ws", 1) + "/v1/ws/worker") as socket:
            with contextlib.suppress(ConnectionError):
                for _ in range(8):
                    said = frame(chance, task.line())
                    await (
                        socket.send_bytes(said)
                        if chance.random() < 0.3
                        else socket.send_str(said.decode("utf-8", "replace"))
                    )
    await hub._hub.loop.look(check)
    await worker.beat()
    await worker.end(task)
    assert await hub.api.state(task_id) == "succeeded"


ODD = (
    "null",
    "1e999",
    "-0",
    "9" * 400,
    "NaN",
    '"\\ud800"',
    "[" * 2000,
    '{"a":' * 2000,
    '""',
    "{}",
    "[]",
    "true",
    '"\\u0000"',
)


def frame(chance: random.Random, line: dict[str, str]) -> bytes:
    kinds = (
        "register",
        "heartbeat",
        "ready_for_work",
        "job_accepted",
        "job_result",
        "service_health",
        "job_assign",
        "x",
    )
    payload = {
        **{
            "id": chance.choice(("stranger", "a" * 300, "")),
            "capabilities": {"cpu_count": chance.choice((1, -1, 1e300))},
        },
        **{"active_tasks": [line] * chance.randint(0, 3), "slots": {"batch_total": chance.choice((1, -5, 2**40))}},
        **{
            "task_id": line["task_id"],
            "attempt": chance.choice((line["attempt"], "")),
            "state": chance.choice(("failed", "?")),
        },
    }
    text = json.dumps({"type": chance.choice(kinds), "payload": payload})
    if chance.random() < 0.5:
        key = chance.choice(('"payload": ', '"id": ', '"cpu_count": ', '"active_tasks": ', '"state": ', '"type": '))
        text = text.replace(key, key + chance.choice(ODD) + chance.choice(("", ",")), 1)
    said = bytearray(text.encode())
    if chance.random() < 0.3:
        at = chance.randrange(len(said))
        said[at : at + chance.randint(0, 9)] = chance.choice(PIECES)
    return bytes(said)
