"""The hub's loop: what comes at once is taken in its order, a part in each turn."""

import asyncio
import contextlib

from ostler.core.effects import Effect
from ostler.core.events import Keep
from ostler.core.fleet import Fleet
from ostler.domain.records import Changes
from ostler.hub.clock import SystemClock
from ostler.hub.ids import new_attempt_id
from ostler.hub.loop import LEAST_TAKEN, Loop
from ostler.ledger.memory import MemoryLedger

SCOPE = "loop"
MANY = 100 * LEAST_TAKEN


class Watched(MemoryLedger):
    """Remembers what came with which commit."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[list[str]] = []

    def commit(self, changes: Changes) -> None:
        super().commit(changes)
        self.commits.append([one.key for one in changes.kept if one.scope == SCOPE])

    @property
    def came(self) -> list[str]:
        return [key for keys in self.commits for key in keys]


async def nothing(changes: Changes, effects: list[Effect]) -> None:
    return


def post(loop: Loop, first: int, many: int) -> list[str]:
    names = [f"{number:06d}" for number in range(first, first + many)]
    for name in names:
        loop.post(Keep(scope=SCOPE, key=name, value=b"x"))
    return names


async def test_a_long_inbox_is_taken_in_its_order_over_several_turns() -> None:
    ledger = Watched()
    loop = Loop(Fleet(new_attempt_id), ledger, nothing, SystemClock())
    names = post(loop, 0, MANY)
    running = asyncio.create_task(loop.run())
    await loop.turn()
    assert ledger.came == names
    assert len([keys for keys in ledger.commits if keys]) > 1
    await ended(loop, running)


async def test_whoever_waits_for_what_was_posted_before_waits_for_no_more_than_that() -> None:
    ledger = Watched()
    loop = Loop(Fleet(new_attempt_id), ledger, nothing, SystemClock())
    first = post(loop, 0, 3)
    waiting = asyncio.create_task(loop.turn())
    await asyncio.sleep(0)  # it has asked
    rest = post(loop, 3, MANY)
    running = asyncio.create_task(loop.run())
    await waiting
    assert ledger.came[:3] == first
    assert len(ledger.came) < len(first + rest)
    await loop.turn()
    assert ledger.came == first + rest
    await ended(loop, running)


class HeldUp(SystemClock):
    """Of a hub that stood still after its first look at it."""

    def __init__(self) -> None:
        super().__init__()
        self._looks = 0

    def monotonic(self) -> float:
        self._looks += 1
        return super().monotonic() + (1000.0 if self._looks > 1 else 0.0)


async def test_that_the_hub_was_held_up_is_not_taken_for_something_that_was_waited_for() -> None:
    ledger = Watched()
    loop = Loop(Fleet(new_attempt_id), ledger, nothing, HeldUp())
    loop._each_s = 1.0  # so that no more than the least is taken at once
    names = post(loop, 0, LEAST_TAKEN)
    waiting = asyncio.create_task(loop.turn())
    await asyncio.sleep(0)  # it has asked
    running = asyncio.create_task(loop.run())
    await waiting
    assert ledger.came == names
    await ended(loop, running)


async def test_who_has_said_too_much_is_let_go_on_only_when_all_of_it_was_taken() -> None:
    ledger = Watched()
    loop = Loop(Fleet(new_attempt_id), ledger, nothing, SystemClock())
    left: list[int] = []
    loop.taken = lambda: left.append(MANY - len(ledger.came))
    post(loop, 0, MANY)
    running = asyncio.create_task(loop.run())
    await loop.turn()
    assert max(left) < MANY  # the first turn had not taken all, and so it told nobody
    await ended(loop, running)


async def ended(loop: Loop, running: "asyncio.Task[None]") -> None:
    loop.stop()
    with contextlib.suppress(asyncio.CancelledError):
        await running
