"""Nothing leaves a hub that cannot say that it leads."""

import asyncio
import threading
from typing import Any

import pytest

from ostler.core.effects import Effect
from ostler.core.events import JobsSubmitted, NewJob
from ostler.core.fleet import Fleet
from ostler.domain.errors import Deposed, LedgerError
from ostler.domain.job import decode_spec
from ostler.domain.records import Changes
from ostler.hub.clock import SystemClock
from ostler.hub.ids import new_attempt_id
from ostler.hub.loop import Loop
from ostler.hub.new_job import new_job
from ostler.ledger.memory import MemoryLedger


class CoreLoop:
    def __init__(self) -> None:
        self.performed: list[Effect] = []
        self.leads = True
        self.loop = Loop(Fleet(new_attempt_id), MemoryLedger(), self._perform, SystemClock())
        self.loop.confirm = self._confirm

    async def _perform(self, changes: Changes, effects: list[Effect]) -> None:
        self.performed += effects

    async def _confirm(self) -> None:
        if not self.leads:
            raise Deposed("another hub leads now")

    async def submit(self, name: str) -> Any:
        return await self.loop.ask(lambda ref: JobsSubmitted(ref=ref, jobs=[job(name)]))


def job(name: str) -> NewJob:
    spec = decode_spec(b'{"command": ["true"]}')
    spec.id, spec.user_id = name, "ann"
    return new_job(spec)


async def test_what_was_committed_is_neither_told_nor_done_if_another_leads_by_then() -> None:
    core = CoreLoop()
    running = asyncio.create_task(core.loop.run())
    await core.submit("first")
    told = len(core.performed)
    core.leads = False
    with pytest.raises(LedgerError, match="ask again"):
        await core.submit("second")
    with pytest.raises(Deposed):
        await running
    assert len(core.performed) == told


async def test_memory_is_not_looked_at_by_a_hub_that_does_not_lead() -> None:
    core = CoreLoop()
    assert await core.loop.look(lambda fleet, _: len(fleet.workers)) == 0
    core.leads = False
    with pytest.raises(Deposed):
        await core.loop.look(lambda fleet, _: len(fleet.workers))


async def test_what_a_failed_commit_has_left_in_memory_is_shown_to_nobody() -> None:
    core = CoreLoop()
    running = asyncio.create_task(core.loop.run())
    await core.submit("first")

    begun, over = threading.Event(), threading.Event()

    def fails(_: Changes) -> None:
        begun.set()
        over.wait(60)
        raise LedgerError("the disk is full")

    core.loop.ledger.commit = fails  # type: ignore[method-assign]
    asked = asyncio.create_task(core.submit("second"))
    await asyncio.to_thread(begun.wait, 20)
    looked = asyncio.create_task(core.loop.look(lambda fleet, _: len(fleet.jobs)))
    await asyncio.sleep(0)
    over.set()
    for waits in (asked, looked):
        with pytest.raises(LedgerError, match="ask again"):
            await waits
    with pytest.raises(LedgerError, match="disk is full"):
        await running
