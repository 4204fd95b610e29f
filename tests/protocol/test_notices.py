"""Somebody is told what became of jobs, seen from inside the hub: many at once, and where somebody does not answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from tests.protocol.hub import RunningHub

from ostler.domain.notices import NotifySettings, Target
from ostler.domain.records import FeedRecord
from ostler.hub import notices


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
        async with asyncio.timeout(30):
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


def test_a_name_does_not_break_out_of_the_line_that_it_is_told_in(tmp_path: Path) -> None:
    job: Any = type("Job", (), {"name": "a\nBcc: all@lab.example\x00", "id": "j", "user": "", "submitted_at": 0.0})()
    job.finished_at = 0.0
    record = FeedRecord(seq=1, at=0.0, kind="job", subject="j", body={"state": "failed"})
    assert notices._notice(record, job, 1, "").title == "job a?Bcc: all@lab.example? failed"
