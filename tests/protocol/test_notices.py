"""Somebody is told what became of jobs, seen from inside the hub: many at once, and where somebody does not answer."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from tests.protocol.hub import RunningHub
from tests.runtime.tasks import gone

from ostler.domain.notices import NotifySettings, Target
from ostler.domain.records import FeedRecord
from ostler.hub import delivering, notices


class Receiver:
    """Answers when the gate is open, and at /busy that it is busy."""

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.came = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def take(self, request: web.Request) -> web.Response:
        await self.gate.wait()
        if request.path == "/busy":
            return web.Response(status=503)
        self.seqs.append((await request.json())["seq"])
        self.came.set()
        return web.Response()

    async def have(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.seqs) < count:
                self.came.clear()
                await self.came.wait()


@asynccontextmanager
async def telling(state: Path) -> AsyncIterator[tuple[RunningHub, Receiver]]:
    receiver, app = Receiver(), web.Application()
    app.router.add_post("/{path}", receiver.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    targets = {name: Target(url=f"{url}/{name}", trusted=True) for name in ("hook", "busy")}
    hub = RunningHub(state)
    hub.settings = msgspec.structs.replace(hub.settings, notify=NotifySettings(targets))
    await hub.start()
    try:
        yield hub, receiver
    finally:
        await hub.stop()
        await runner.cleanup()


async def cancelled(hub: RunningHub, whom: str) -> None:
    await hub.api.cancel(await hub.api.submit(notify=[whom]))


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "MOST_WAITING", 2)
    monkeypatch.setattr(notices, "AT_ONCE", 1)


async def test_for_what_there_is_no_room_is_told_later_and_once(tmp_path: Path, little_room: None) -> None:
    async with telling(tmp_path) as (hub, receiver):
        receiver.gate.clear()
        for _ in range(12):
            await cancelled(hub, "hook")
        receiver.gate.set()
        await receiver.have(12)
        await cancelled(hub, "hook")
        await receiver.have(13)
        assert receiver.seqs == sorted(set(receiver.seqs))


async def test_what_there_was_no_room_for_is_told_by_the_next_hub(tmp_path: Path, little_room: None) -> None:
    async with telling(tmp_path) as (hub, receiver):
        receiver.gate.clear()
        for _ in range(8):
            await cancelled(hub, "hook")
        await hub.restart()
        receiver.gate.set()
        while len(set(receiver.seqs)) < 8:
            await receiver.have(len(receiver.seqs) + 1)


async def test_whoever_is_busy_keeps_nobody_else_from_being_told(tmp_path: Path, little_room: None) -> None:
    async with telling(tmp_path) as (hub, receiver):
        for _ in range(4):
            await cancelled(hub, "busy")
        await cancelled(hub, "hook")
        await receiver.have(1)


async def test_the_end_of_an_array_of_which_one_task_was_run_again_is_told_again(tmp_path: Path) -> None:
    async with telling(tmp_path) as (hub, receiver):
        worker = await hub.worker()
        job = await hub.api.submit(array=2, notify=["hook"])
        first, second = await worker.take_all(f"{job}.0", f"{job}.1")
        await worker.end(first)
        await worker.end(second, "failed", exit_code=1)
        await receiver.have(1)
        await hub.api.post(f"/v1/jobs/{job}.1/requeue")
        await worker.end(await worker.take(f"{job}.1"))
        await receiver.have(2)
        assert await hub.api.state(job) == "succeeded"


def a_notice() -> delivering.Notice:
    return delivering.Notice(seq=1, event="failed", title="t", text="it failed", document={})


async def test_a_command_that_leaves_something_in_the_background_has_delivered_its_notice(tmp_path: Path) -> None:
    command = ("sh", "-c", f"cat >> {tmp_path}/mail; echo $$ > {tmp_path}/group; sleep 600 & exit 0")
    try:
        await delivering._run(a_notice(), command)
        assert (tmp_path / "mail").read_text() == "it failed\n"
    finally:
        os.killpg(int((tmp_path / "group").read_text()), signal.SIGKILL)


async def test_a_command_that_takes_too_long_is_ended_with_all_that_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivering, "TRY_S", 3.0)  # by then it has begun, on a busy machine, too
    command = ("sh", "-c", f"sleep 600 & echo $! > {tmp_path}/child; wait")
    with pytest.raises(TimeoutError, match="sh took over 3 s"):
        await delivering._run(a_notice(), command)
    await gone(int((tmp_path / "child").read_text()))


async def test_what_a_command_says_when_it_fails_is_told() -> None:
    with pytest.raises(ConnectionError, match="sh ended with 3: no such address"):
        await delivering._run(a_notice(), ("sh", "-c", "echo first; echo no such address >&2; exit 3"))


def test_a_name_does_not_break_out_of_the_line_that_it_is_told_in(tmp_path: Path) -> None:
    job: Any = type("Job", (), {"name": "a\nBcc: all@lab.example\x00", "id": "j", "user": "", "submitted_at": 0.0})()
    job.finished_at = 0.0
    record = FeedRecord(seq=1, at=0.0, kind="job", subject="j", body={"state": "failed"})
    assert notices._notice(record, job, 1, "").title == "job a?Bcc: all@lab.example? failed"
