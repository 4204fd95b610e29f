"""The hub's loop: first it is durable, then it is told and done; and nobody pays for the time that the hub was away."""

import asyncio
import threading
from typing import Any

import pytest
from tests.protocol.test_leading import CoreLoop

from ostler.core.events import TaskAccepted, WorkerBeat, WorkerRegistered
from ostler.domain import states
from ostler.domain.records import Changes
from ostler.domain.worker import Capabilities, Slots
from ostler.hub import leading
from ostler.hub.leading import LEASE_S, Shared
from ostler.hub.loop import AWAY_S, Loop


class Held:
    """A ledger's commits, each held until it is let go."""

    def __init__(self, loop: Loop) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()
        self._commit = loop.ledger.commit
        loop.ledger.commit = self._hold  # type: ignore[method-assign]

    def _hold(self, changes: Changes) -> None:
        self.begun.set()
        assert self.let_go.wait(60)
        self._commit(changes)


async def test_nobody_is_answered_and_nothing_is_done_before_it_is_durable() -> None:
    core = CoreLoop()
    held = Held(core.loop)
    running = asyncio.create_task(core.loop.run())
    asked = asyncio.create_task(core.submit("first"))
    await asyncio.to_thread(held.begun.wait, 20)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not asked.done()
    assert core.performed == []
    held.let_go.set()
    assert (await asked).ids == ["first"]
    assert core.performed
    core.loop.stop()
    await running


async def test_memory_shows_nothing_that_is_not_durable() -> None:
    core = CoreLoop()
    held = Held(core.loop)
    running = asyncio.create_task(core.loop.run())
    asked = asyncio.create_task(core.submit("first"))
    await asyncio.to_thread(held.begun.wait, 20)
    looked = asyncio.create_task(core.loop.look(lambda fleet, _: len(fleet.jobs)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not looked.done()
    held.let_go.set()
    assert await looked == 1
    await asked
    core.loop.stop()
    await running


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now


async def test_nobody_is_lost_for_the_time_that_the_hub_was_held_up() -> None:
    core, hands = CoreLoop(), Hands()
    core.loop._clock = hands
    running = asyncio.create_task(core.loop.run())
    offer = Capabilities(gpu_backend="cpu", cpu_count=2, memory_gb=8)
    core.loop.post(WorkerRegistered(worker_id="w", session=1, capabilities=offer, active_tasks=[], boot_id="b"))
    core.loop.post(WorkerBeat(worker_id="w", session=1, slots=Slots(batch_total=2)))
    await core.submit("first")
    await core.loop.turn()
    fleet = core.loop.fleet
    (attempt,) = fleet.held.values()
    core.loop.post(TaskAccepted(worker_id="w", session=1, task_id="first", attempt=attempt.id))
    await core.loop.turn()
    hands.now += 10 * AWAY_S
    await core.loop.turn()
    assert fleet.workers["w"].connected
    assert fleet.jobs["first"].state == states.RUNNING
    core.loop.stop()
    await running


async def test_a_lease_counts_from_when_it_was_asked_for_however_long_the_answer_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hands, asked = Hands(), []
    monkeypatch.setattr(leading, "also_asleep", hands.monotonic)

    class Slow:
        term = 1

        def renew(self) -> None:
            asked.append(hands.now)
            hands.now += LEASE_S

    ledger: Any = Slow()
    shared = Shared(lambda: ledger, "one")
    await shared.confirm()
    await shared.confirm()
    assert len(asked) == 2
