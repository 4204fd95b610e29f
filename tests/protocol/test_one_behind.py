"""The hub's loop under load: the next reports are stepped while the last are written, and nobody can tell."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
from tests.protocol.test_leading import CoreLoop, job

from ostler.core.effects import Acknowledge
from ostler.core.events import JobsSubmitted, TaskEnded, WorkerBeat, WorkerRegistered
from ostler.domain import states
from ostler.domain.errors import LedgerError
from ostler.domain.records import Changes
from ostler.domain.worker import Capabilities, Slots
from ostler.hub.loop import LEAST_TAKEN, Loop

TURNS = 4
MANY = TURNS * LEAST_TAKEN


class OneByOne:
    """A ledger's commits, each held until one more is let go."""

    def __init__(self, loop: Loop) -> None:
        self._go = threading.Semaphore(0)
        self._fails = False
        self._commit = loop.ledger.commit
        loop.ledger.commit = self._hold  # type: ignore[method-assign]

    def let_go(self, many: int = 1) -> None:
        self._go.release(many)

    def fail(self) -> None:
        self._fails = True
        self._go.release(1000)

    def _hold(self, changes: Changes) -> None:
        assert self._go.acquire(timeout=60)
        if self._fails:
            raise LedgerError("the disk is full")
        self._commit(changes)


class Busy(CoreLoop):
    """Tasks that run, and workers that report all of their ends at once."""

    def __init__(self) -> None:
        super().__init__()
        self.loop._each_s = 1.0  # so that no more than the least is taken at once

    @property
    def acknowledged(self) -> list[str]:
        return [one.task_id for one in self.performed if isinstance(one, Acknowledge) and one.of == "job_result"]

    @property
    def in_memory(self) -> int:
        return MANY - sum(job.state in states.LIVE for job in self.loop.fleet.jobs.values())

    async def begin(self) -> list[str]:
        offer = Capabilities(gpu_backend="cpu", cpu_count=2 * MANY, memory_gb=MANY)
        names = [f"job-{number:03d}" for number in range(MANY)]
        self.loop.post(WorkerRegistered(worker_id="w", session=1, capabilities=offer, active_tasks=[], boot_id="b"))
        self.loop.post(WorkerBeat(worker_id="w", session=1, slots=Slots(batch_total=MANY)))
        await self.loop.ask(lambda ref: JobsSubmitted(ref=ref, jobs=[job(name) for name in names]))
        await self.loop.turn()
        assert len(self.loop.fleet.held) == MANY
        return names

    def end_all(self) -> None:
        for attempt in list(self.loop.fleet.held.values()):
            self.loop.post(
                TaskEnded(worker_id="w", session=1, task_id=attempt.task_id, attempt=attempt.id, state="succeeded")
            )


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - the loop tells nobody
            await asyncio.sleep(0.001)


async def a_while() -> None:
    for _ in range(20):
        await asyncio.sleep(0.001)


class Behind(NamedTuple):
    """A hub that has stepped two batches of reports, and written none."""

    core: Busy
    names: list[str]
    commits: OneByOne
    running: "asyncio.Task[None]"


@asynccontextmanager
async def one_behind() -> AsyncIterator[Behind]:
    core = Busy()
    running = asyncio.create_task(core.loop.run())
    names = await core.begin()
    commits = OneByOne(core.loop)
    core.end_all()
    await until(lambda: core.in_memory == 2 * LEAST_TAKEN)
    yield Behind(core, names, commits, running)
    commits.let_go(1000)
    if not running.done():
        core.loop.stop()
        await running


async def test_the_next_reports_are_stepped_while_the_last_are_written_and_told_of_in_their_order() -> None:
    async with one_behind() as (core, names, commits, _):
        await a_while()
        assert core.in_memory == 2 * LEAST_TAKEN  # no further than one batch ahead of the disk
        assert core.acknowledged == []
        for turn in range(1, TURNS):
            commits.let_go()
            await until(lambda turn=turn: len(core.acknowledged) == turn * LEAST_TAKEN)  # type: ignore[misc]
            await a_while()
            assert core.acknowledged == names[: turn * LEAST_TAKEN]
        commits.let_go(1000)
        await until(lambda: core.acknowledged == names)
        ended = core.loop.ledger.jobs(names)
        assert {one.state for one in ended.values()} == {states.SUCCEEDED}


async def test_whoever_looks_sees_nothing_that_is_not_durable_and_does_not_wait_for_the_last_report() -> None:
    async with one_behind() as (core, _, commits, _):
        looking = asyncio.create_task(core.loop.look(lambda _, __: (core.in_memory, len(core.acknowledged))))
        await a_while()
        commits.let_go()
        await until(lambda: len(core.acknowledged) == LEAST_TAKEN)
        assert not looking.done()
        commits.let_go()
        assert await asyncio.wait_for(looking, 60) == (2 * LEAST_TAKEN, 2 * LEAST_TAKEN)


async def test_what_was_stepped_ahead_is_not_told_where_the_disk_fails_before_it() -> None:
    async with one_behind() as (core, names, commits, running):
        commits.let_go()
        await until(lambda: len(core.acknowledged) == LEAST_TAKEN)
        commits.fail()
        with pytest.raises(LedgerError, match="disk is full"):
            await running
        assert core.acknowledged == names[:LEAST_TAKEN]


async def test_a_hub_that_stops_has_told_all_that_it_stepped() -> None:
    async with one_behind() as (core, _, commits, running):
        core.loop.stop()
        commits.let_go(1000)
        await running
        assert len(core.acknowledged) == core.in_memory == 2 * LEAST_TAKEN


async def test_a_question_of_somebody_waits_for_all_that_came_before_it() -> None:
    async with one_behind() as (core, _, commits, _):
        asked = asyncio.create_task(core.submit("one-more"))
        await asyncio.sleep(0)  # it has asked
        commits.let_go(TURNS)
        await until(lambda: len(core.acknowledged) == MANY)
        assert not asked.done()
        commits.let_go(1000)
        assert (await asked).ids == ["one-more"]
