"""What asyncio's users leave behind: nothing."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any, cast

import pytest
from tests.client.scripted_hub import ScriptedHub, Step, reply, stall

from ostler.client import asynchronous
from ostler.client.asynchronous import AsyncFleet, AsyncJob
from ostler.client.errors import WaitTimeout
from ostler.client.fleet import Fleet
from ostler.client.http import Hub
from ostler.client.job import Job

ATTEMPT = {"attempt": "a", "worker": "w1", "finished_at": None}


class Running:
    """A hub with one job that goes on and says no more than `output`."""

    def __init__(self, output: bytes, attempts: list[dict[str, Any]]) -> None:
        self._output = output
        self._attempts = attempts
        self.asked = threading.Event()
        self.over = threading.Event()

    def __call__(self, handler: Any) -> None:
        if "/logs" not in handler.path and "/events" not in handler.path:
            reply({"id": "j1", "state": "running", "attempts": self._attempts})(handler)
            self.asked.set()
            return
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        if "/logs" in handler.path:
            handler.wfile.write(f"{len(self._output):x}\r\n".encode() + self._output + b"\r\n")
        self.over.wait(60)


@contextlib.asynccontextmanager
async def opened(answer: Step) -> AsyncIterator[AsyncJob]:
    with ScriptedHub(answer) as scripted:
        async with AsyncFleet(Fleet(Hub(scripted.url))) as fleet:
            yield AsyncJob(fleet, Job(fleet.fleet.hub, "j1"))


def log_readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == asynchronous.READER]


async def leave(pieces: AsyncIterator[str]) -> None:
    await cast(AsyncGenerator[str, None], pieces).aclose()
    for reader in log_readers():
        await asyncio.to_thread(reader.join, 30)
    assert log_readers() == []


async def test_leaving_the_log_of_a_silent_job_leaves_no_thread() -> None:
    hub = Running(b"one\n", [ATTEMPT])
    async with opened(hub) as job:
        pieces = job.follow_logs()
        assert await anext(pieces) == "one\n"
        await leave(pieces)
        hub.over.set()


async def test_leaving_the_log_of_a_job_that_has_not_begun_leaves_no_thread() -> None:
    hub = Running(b"", [])
    async with opened(hub) as job:
        pieces = job.follow_logs()
        first = asyncio.ensure_future(anext(pieces))
        assert await asyncio.to_thread(hub.asked.wait, 30)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await leave(pieces)


async def test_a_log_is_read_only_a_little_ahead_of_whoever_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def follow(*_: object) -> Iterator[bytes]:
        for number in range(50 * asynchronous.PIECES):
            read.append(number)
            yield b"%d\n" % number

    monkeypatch.setattr(asynchronous, "follow", follow)
    async with opened(reply({})) as job:
        told = 0
        async for piece in job.follow_logs():
            assert piece == f"{told}\n"
            told += 1
            assert len(read) - told <= asynchronous.PIECES + 1
        assert told == len(read)
        pieces = job.follow_logs()
        await anext(pieces)
        await leave(pieces)


async def test_a_wait_that_is_over_or_given_up_is_not_kept() -> None:
    hub = Running(b"", [ATTEMPT])
    async with opened(hub) as job:
        watch = job._fleet.fleet.watch()
        other = watch.future("j1")
        with pytest.raises(WaitTimeout, match=r"job j1 is still running after 0.05 s"):
            await job.wait(timeout=0.05)
        assert watch._waiting == {"j1": [other]}
        watch.forget("j1", other)
        assert watch._waiting == {}
        hub.over.set()


async def test_a_wait_ends_in_time_though_the_hub_has_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostler.client.transport.LATE_S", 0.1)
    over = threading.Event()
    async with opened(stall(over)) as job:
        with pytest.raises(WaitTimeout, match=r"waited for 0.1 s; .*did not answer in time"):
            await job.result(timeout=0.1)
        over.set()
