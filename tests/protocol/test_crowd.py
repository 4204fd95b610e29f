"""Many workers at once, workers that come and go, and workers that do not read."""

import asyncio
import contextlib
import json
import logging
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.model_workers import Crowd, masked
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub
from tests.protocol.process_hub import ProcessHub

from ostler.client.http import Hub
from ostler.hub import door, session, sessions
from ostler.worker import connection

TEXT = 0x81
PATIENCE_S = 60.0


@contextlib.asynccontextmanager
async def crowd_of(size: int, hub: RunningHub) -> AsyncIterator[Crowd]:
    crowd = Crowd("127.0.0.1", int(hub.url.rsplit(":", 1)[1]), hub.join_token, size)
    crowd.start()
    try:
        yield crowd
    finally:
        crowd.leave()


class Raw:
    """A socket that reads only when it is told to."""

    def __init__(self, hub: RunningHub) -> None:
        where = ("127.0.0.1", int(hub.url.rsplit(":", 1)[1]))
        self.upgrade = Crowd(*where, hub.join_token, 0).upgrade
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(where)
        self.socket.setblocking(False)

    async def open(self, name: str) -> None:
        await self.write(self.upgrade)
        assert (await self.read()).startswith(b"HTTP/1.1 101")
        await self.say("register", id=name, capabilities={"cpu_count": 1}, protocol={"batch": True})
        assert b'"of":"register"' in await self.read()

    async def write(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def say(self, kind: str, **payload: Any) -> None:
        await self.write(masked(TEXT, json.dumps({"type": kind, "payload": payload}).encode()))

    async def read(self) -> bytes:
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.socket, 1 << 16), PATIENCE_S)

    async def read_to_the_end(self) -> bytes:
        found = b""
        with contextlib.suppress(ConnectionError):
            while data := await self.read():
                found += data
        return found


async def test_workers_that_come_all_at_once_are_all_registered_and_nobody_is_sent_away(hub: RunningHub) -> None:
    async with crowd_of(150, hub) as crowd:
        await crowd.all_registered(PATIENCE_S)
        assert crowd.counts["connections"] == 150
        assert len((await hub.api.get("/v1/workers"))["workers"]) == 150


async def test_whoever_does_not_fit_in_the_line_is_told_when_to_come_back_and_does(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "IN_LINE", 10)
    async with crowd_of(60, hub) as crowd:
        await crowd.all_registered(PATIENCE_S)
        assert crowd.counts["HTTP 503"] >= 1
        assert crowd.counts["connections"] == 60 + crowd.counts["HTTP 503"]


async def test_others_are_answered_while_workers_wait_in_line(hub: RunningHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "TICK_S", 3600.0)
    async with crowd_of(door.PER_TICK + 1, hub) as crowd:
        async with asyncio.timeout(PATIENCE_S):
            while crowd.registered < door.PER_TICK:
                await hub.api.get("/v1/status")
        assert (await hub.api.get("/v1/health"))["status"] == "ok"
        assert crowd.registered == door.PER_TICK


async def test_a_worker_that_reconnects_again_and_again_leaves_nothing_behind(hub: RunningHub) -> None:
    for number in range(100):
        raw = Raw(hub)
        await raw.open("restless")
        if number % 2:
            raw.socket.close()  # and else the next one takes over
    await hub.api.until_status("restless", "offline")
    assert len((await hub.api.get("/v1/workers"))["workers"]) == 1
    assert hub.connections() == 0


async def test_a_worker_that_reads_nothing_is_cut_off_and_the_feed_says_why(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "STALLED_S", 0.2)
    raw = Raw(hub)
    await raw.open("deaf")
    with contextlib.suppress(ConnectionError):
        for _ in range(2000):
            await raw.say("metrics_request")
            await asyncio.sleep(0)
    await hub.api.until_status("deaf", "offline")
    assert "read nothing" in await _why_offline(hub.api, "deaf")
    raw.socket.close()


async def test_no_more_than_so_much_waits_for_a_worker_that_reads_nothing(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_WAITING", 100_000)
    monkeypatch.setattr(session, "STALLED_S", 3600.0)
    raw = Raw(hub)
    await raw.open("deaf")
    with contextlib.suppress(ConnectionError):
        for _ in range(5000):
            await raw.say("metrics_request")
            await asyncio.sleep(0)
    await hub.api.until_status("deaf", "offline")
    assert "bytes wait for it" in await _why_offline(hub.api, "deaf")
    raw.socket.close()


async def test_a_worker_that_reads_nothing_of_its_assignments_is_cut_off_and_the_hub_goes_on(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "STALLED_S", 3600.0)
    monkeypatch.setattr(session, "MAX_WAITING", 500_000)
    raw = Raw(hub)
    await raw.open("deaf")
    slots = {"batch_total": 400, "batch_in_use": 0, "service_total": 0, "service_in_use": 0}
    await raw.say("heartbeat", worker_id="deaf", slots=slots, sent_at="now")
    await hub.api.until_status("deaf", "ready")
    for _ in range(80):  # what the kernel takes, and more than may wait
        await hub.api.submit(env={"LONG": "x" * 240_000})
    await hub.api.until_status("deaf", "offline")
    assert "bytes wait for it" in await _why_offline(hub.api, "deaf")
    assert (await hub.api.get("/v1/health"))["status"] == "ok"
    raw.socket.close()


async def _pushed(raw: Raw, data: bytes, times: int) -> int:
    """How often this could be said, until the hub has read nothing for many turns of the loop."""
    said = idle = 0
    rest = data
    while said < times and idle < 1000:
        try:
            rest = rest[raw.socket.send(rest) :]
            idle = 0
        except BlockingIOError:
            idle += 1
            await asyncio.sleep(0)
        if not rest:
            said, rest = said + 1, data
    return said


async def test_a_worker_that_says_more_than_the_hub_takes_in_is_left_unread_until_it_has(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_HEARD", 100_000)
    raw = Raw(hub)
    await raw.open("talker")
    told = {"type": "service_health", "payload": {"task_id": "x" * 500_000}}
    async with hub.held_up():
        assert await _pushed(raw, masked(TEXT, json.dumps(told).encode()), 200) < 100
        other = Raw(hub)
        await other.write(other.upgrade)
        assert (await other.read()).startswith(b"HTTP/1.1 101")
    raw.socket.close()
    await hub.api.until_status("talker", "offline")
    other.socket.close()


async def test_a_worker_that_was_left_unread_is_heard_again(hub: RunningHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_HEARD", 1000)
    raw = Raw(hub)
    await raw.open("talker")
    for number in range(20):
        await raw.say("heartbeat", sent_at=f"at {number}")
        assert f"at {number}".encode() in await raw.read()
    raw.socket.close()


async def test_nothing_that_follows_a_broken_frame_is_read(hub: RunningHub) -> None:
    raw = Raw(hub)
    await raw.open("odd")
    await raw.write(bytes((TEXT, 2)) + b"hi")
    assert int.from_bytes((await raw.read())[2:4], "big") == 1002
    assert await _pushed(raw, b"x" * 500_000, 200) < 100
    raw.socket.close()


async def test_pings_of_a_worker_that_does_not_read_are_not_answered_for_ever(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "STALLED_S", 3600.0)
    raw = Raw(hub)
    await raw.open("pinger")
    await _pushed(raw, masked(0x89, b"x" * 125) * 1000, 200)
    await raw.say("heartbeat", sent_at="at last")
    found = b""
    while b"at last" not in found:
        found += await raw.read()
    assert len(found) < 15_000_000
    raw.socket.close()


async def test_many_questions_in_one_frame_are_answered_as_far_as_answers_may_wait(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_WAITING", 1_000_000)
    monkeypatch.setattr(session, "STALLED_S", 3600.0)
    asked = 0

    def text() -> str:
        nonlocal asked
        asked += 1
        return "x" * 10_000

    monkeypatch.setattr(hub._hub.sessions, "_metrics_text", text)
    raw = Raw(hub)
    await raw.open("curious")
    await raw.write(masked(TEXT, b"[" + b",".join([b'{"type":"metrics_request"}'] * 30_000) + b"]"))
    await hub.api.until_status("curious", "offline")
    assert "bytes wait for it" in await _why_offline(hub.api, "curious")
    assert asked < 1000
    raw.socket.close()


async def test_a_connection_that_says_not_whose_it_is_ends(hub: RunningHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "REGISTER_WITHIN_S", 0.2)
    monkeypatch.setattr(session, "CLOSE_WITHIN_S", 0.1)
    known, unknown = Raw(hub), Raw(hub)
    await known.open("known")
    await unknown.write(unknown.upgrade)
    assert b"not registered" in await unknown.read_to_the_end()
    await known.say("heartbeat", sent_at="now")
    assert b"now" in await known.read()
    assert hub.connections() == 1
    known.socket.close()
    unknown.socket.close()


@pytest.mark.parametrize(("before", "said"), [(0, b""), (0, b"GET /v1/he"), (1, b"GET /v1/he")])
async def test_a_connection_on_which_no_request_is_finished_ends(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch, before: int, said: bytes
) -> None:
    monkeypatch.setattr(door, "HEAD_S", 0.2)
    raw = Raw(hub)
    for _ in range(before):
        await raw.write(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in await raw.read()
    await raw.write(said)
    assert await raw.read_to_the_end() == b""
    raw.socket.close()


async def test_who_has_shown_no_token_has_longer_for_a_body_than_for_a_head(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "HEAD_S", 0.2)
    stranger, silent = Raw(hub), Raw(hub)
    await stranger.write(b"POST /v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n")
    assert await silent.read_to_the_end() == b""
    await stranger.write(b" ")
    assert b"401 Unauthorized" in await stranger.read()
    stranger.socket.close()
    silent.socket.close()


@pytest.mark.parametrize("line", [b"POST /v1/session", b"POST /v1/jobs", b"GET /v1/health"])
async def test_who_has_shown_no_token_has_little_time_for_a_body_and_who_has_takes_its_own(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    monkeypatch.setattr(door, "WITHOUT_TOKEN_S", 0.2)
    start = b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
    known, stranger = Raw(hub), Raw(hub)
    await known.write(b"POST /v1/jobs" + start + b"Authorization: Bearer %b\r\n\r\n" % hub.admin_token.encode())
    await stranger.write(line + start + b"\r\n")
    trickle = asyncio.create_task(_trickle(stranger))
    await stranger.read_to_the_end()
    trickle.cancel()
    await known.write(b" " * 1000)
    assert b"400 Bad Request" in await known.read()
    monkeypatch.setattr(door, "HEAD_S", 0.2)
    await known.write(b"GET /v1/he")  # and no longer for a next head than anybody else
    assert await known.read_to_the_end() == b""
    stranger.socket.close()
    known.socket.close()


async def _trickle(raw: Raw) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            await raw.write(b" ")
            await asyncio.sleep(0.02)


async def _why_offline(api: Api, worker: str) -> str:
    async with api.feed(after=0) as feed:
        while True:
            line = await feed.next()
            if line["kind"] == "worker" and line["subject"] == worker and line["state"] == "offline":
                return str(line["reason"])


async def test_a_peer_that_does_not_answer_a_close_is_cut(hub: RunningHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "CLOSE_WITHIN_S", 0.1)
    first, second = Raw(hub), Raw(hub)
    await first.open("twin")
    await second.open("twin")
    assert b"another connection" in await first.read_to_the_end()
    first.socket.close()
    second.socket.close()


async def test_text_that_is_no_text_closes_the_connection(hub: RunningHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "CLOSE_WITHIN_S", 0.1)
    raw = Raw(hub)
    await raw.open("odd")
    await raw.write(masked(TEXT, b"\xff\xfe"))
    assert int.from_bytes((await raw.read_to_the_end())[2:4], "big") == 1007
    raw.socket.close()


async def test_a_ping_is_answered_with_what_it_brought(hub: RunningHub) -> None:
    raw = Raw(hub)
    await raw.open("pinger")
    await raw.write(masked(0x89, b"here"))
    assert await raw.read() == b"\x8a\x04here"
    raw.socket.close()


async def test_connections_beyond_the_limit_on_open_files_are_turned_away_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    line = door.Line(room=2)
    with caplog.at_level(logging.ERROR):
        assert [line.has_room(open_now) for open_now in (0, 1, 2, 3)] == [True, True, False, False]
    assert caplog.text.count("limit on open files") == 1


@pytest.mark.parametrize(("most", "warns"), [(5000, False), (600, True)])
def test_a_hub_takes_as_many_files_as_it_may_and_says_when_that_is_few(most: int, warns: bool) -> None:
    program = (
        "import resource; from ostler.hub.files import raise_limit; "
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (256, {most})); "
        "print(raise_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(most - 256), str(most), str(most)]
    assert ("LimitNOFILE" in done.stderr) == warns


async def test_a_loop_that_was_held_up_shows_in_the_metrics(hub: RunningHub) -> None:
    watching = asyncio.create_task(hub.lag().watch())
    await asyncio.sleep(0)
    hold_up(0.3)
    for _ in range(5):  # its timer is due: a few turns of the loop, and it has been looked at
        await asyncio.sleep(0)
    watching.cancel()
    metrics = (await hub.api.call("GET", "/metrics")).body.decode()
    found = dict(re.findall(r'ostler_hub_loop_lag_seconds_bucket{le="(.*)"} (.*)', metrics))
    assert float(found["+Inf"]) > float(found["0.15"])


def hold_up(seconds: float) -> None:
    time.sleep(seconds)


async def test_a_crowd_is_back_with_all_its_tasks_after_kill_9(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LONGEST_PAUSE_S", 0.5)
    hub = ProcessHub(tmp_path)
    await asyncio.to_thread(hub.start)
    token = (tmp_path / "join.token").read_text().strip()
    crowd = Crowd("127.0.0.1", int(hub.url.rsplit(":", 1)[1]), token, 40)
    crowd.start()
    await crowd.all_registered(PATIENCE_S)

    def submit() -> None:
        with Hub(hub.url, (tmp_path / "admin.token").read_text().strip()) as client:
            client.submit({"command": ["train"], "array": 40})

    await asyncio.to_thread(submit)
    await crowd.until(lambda crowd: crowd.counts["assigned"] == 40, PATIENCE_S)
    await asyncio.to_thread(hub.kill)
    await crowd.until(lambda crowd: not crowd.registered, PATIENCE_S)
    await asyncio.to_thread(hub.start)
    await crowd.all_registered(PATIENCE_S)
    with Hub(hub.url, (tmp_path / "admin.token").read_text().strip()) as client:
        tasks = client.status()["jobs"]
    assert sum(len(worker.held) for worker in crowd.workers) == crowd.counts["assigned"] == 40
    assert (tasks["pending"], tasks["orphaned"]) == (0, 0)
    crowd.leave()
    hub.kill()
