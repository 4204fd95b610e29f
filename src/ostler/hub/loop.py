"""The single writer: inbox → step each → place → one commit → effects.

Whatever arrives while a commit runs forms the next batch, so the slower the disk, the larger the batch. Nothing
leaves before it is durable but a hint, which promises nothing. If a step or a commit fails, the loop stops and so does
the hub: what the ledger has is the truth that it starts from again.

Where workers have reported more than one batch takes, the next is stepped while the last is written: else this loop and
its disk would wait for each other. It is not written before, and its effects are not told before those of the last.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple, TypeVar

from ostler.core.effects import Answer, Effect, Refuse, Reply
from ostler.core.events import (
    Event,
    HubWasAway,
    JobsSubmitted,
    PruneRequested,
    TaskAccepted,
    TaskEnded,
    TimePassed,
    WorkerBeat,
)
from ostler.core.fleet import Fleet
from ostler.core.persist import take_changes
from ostler.core.placing.place import settle, settled
from ostler.core.step import large, step
from ostler.domain import audit
from ostler.domain.errors import LedgerError
from ostler.domain.records import Changes
from ostler.hub.aside import Aside
from ostler.hub.audit import Audit
from ostler.hub.clock import Clock
from ostler.hub.collecting import Growth
from ostler.hub.history import bring
from ostler.hub.receipts import Receipts
from ostler.ledger.base import Ledger

AWAY_S = 20.0
"""Two heartbeats: a loop that was held up for longer gives amnesty."""
TICK_S = 1.0
SPAN_S = 0.006
"""What a turn takes of a long inbox is stepped in about this time, or in that of a commit where it is longer: so
whoever acts on the first of it begins while the rest is decided. The slower the disk, the more still goes into one."""
LEAST_TAKEN = 16
PACE_WEIGHS = 0.2

_log = logging.getLogger("ostler.hub")
T = TypeVar("T")
Perform = Callable[[Changes, list[Effect]], Awaitable[None]]


async def _always() -> None:
    return


def _nothing() -> None:
    return


def _no_hint(changes: Changes, effects: list[Effect]) -> None:
    return


def _is_pruning(event: Event) -> bool:
    return isinstance(event, PruneRequested)


def _are_reports(batch: list[Event]) -> bool:
    """Whether workers alone have spoken: nobody waits for an answer, and of history no more is asked than whose a job
    is, which was written when it came."""
    return all(isinstance(event, TaskEnded | TaskAccepted | WorkerBeat) for event in batch)


class _Decided(NamedTuple):
    """A batch on its way to the disk."""

    changes: Changes
    effects: list[Effect]
    written: "asyncio.Future[float] | None"
    """How long that took; None: there was nothing to write."""


class Loop:
    def __init__(self, fleet: Fleet, ledger: Ledger, perform: Perform, clock: Clock) -> None:
        self.fleet = fleet
        self.ledger = ledger
        self._perform = perform
        self._clock = clock
        self._inbox: list[Event] = []
        self._wake = asyncio.Event()
        self.confirm: Callable[[], Awaitable[None]] = _always
        """That this hub leads: asked before anything leaves it. LedgerError where it does not."""
        self.hint: Callable[[Changes, list[Effect]], None] = _no_hint
        """Told what has been decided and is being written down: of that nothing may be done yet, or promised."""
        self.taken: Callable[[], None] = _nothing
        """Told whenever the inbox has been emptied."""
        self._stopping = self._failed = False
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._ref = 0
        self._posted = self._stepped = 0
        self._turns: deque[tuple[int, int]] = deque()
        """Who waits for how many of what was posted to be durable."""
        self._growth = Growth()
        self._receipts = Receipts()
        self._last_at = -math.inf
        """When all that was there had been taken for the last time."""
        self._each_s = SPAN_S / LEAST_TAKEN
        """What an event takes until it can be committed, of late; and then a commit."""
        self._commit_s = 0.0
        self._writer = Aside("ledger-writer")
        self._reader = Aside("ledger-reader")
        self.audit = Audit(ledger.kept(audit.SCOPE), clock.wall)
        self.audit.wake = self._wake.set
        self._committed = asyncio.Event()
        self._committed.set()
        self._unwritten: _Decided | None = None
        """The last batch, where the next is stepped meanwhile."""
        self._lookers = 0
        self.batches = 0
        self.events = 0
        self.commit_s = 0.0

    def now(self) -> float:
        return self._clock.monotonic()

    def post(self, event: Event) -> None:
        self._inbox.append(event)
        self._posted += 1
        self._wake.set()

    async def ask(self, make: Callable[[int], Event]) -> Answer:
        """Send an event and wait for its answer: when this returns, what was asked for is durable."""
        answer = await self.ask_any(make)
        assert isinstance(answer, Answer)
        return answer

    async def ask_any(self, make: Callable[[int], Event]) -> Reply:
        """The same, for events that have answers of their own."""
        answer = self._expected()
        event = make(self._ref)
        self.audit.bind(self._ref, event)
        self.post(event)
        return await answer

    async def turn(self) -> None:
        """Until all that was posted before is durable."""
        answer = self._expected()
        self._turns.append((self._posted, self._ref))
        self._wake.set()
        await answer

    def _expected(self) -> "asyncio.Future[Reply]":
        """The answer to a new ref."""
        if self._stopping:
            raise LedgerError("the hub is stopping")
        self._ref += 1
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[self._ref] = future
        return future

    async def read(self, query: Callable[[Ledger], T], *, by_key: bool = False) -> T:
        """History, from the ledger, beside the writer. `by_key`: a few rows, found by their keys; where these are at
        hand, that takes less than to have another thread look."""
        if by_key and self.ledger.is_at_hand:
            return query(self.ledger)
        return await self._reader.do(lambda: query(self.ledger))

    async def look(self, query: Callable[[Fleet, float], T]) -> T:
        """The present, from memory; never a state that is not durable yet."""
        await self.confirm()
        self._lookers += 1
        try:
            while not self._committed.is_set():  # the next batch may have begun before this is reached
                await self._committed.wait()
        finally:
            self._lookers -= 1
        if self._failed:
            raise LedgerError("the hub has stopped; ask again")
        return query(self.fleet, self._clock.monotonic())

    async def commit(self, changes: Changes) -> None:
        """Rows that no decision depends on (tokens), through the same writer."""
        await self._write(changes)

    def _write(self, changes: Changes) -> "asyncio.Future[float]":
        """By the writer, after all that it was given before; in how many seconds."""
        self.audit.accompany(changes)
        return self._writer.do(lambda: self._written_in_s(changes))

    def _written_in_s(self, changes: Changes) -> float:
        begun = time.perf_counter()
        self.audit.write(self.ledger, changes)
        return time.perf_counter() - begun

    async def start(self) -> None:
        """Write down what a restart found out, before anybody asks."""
        await self.read(self._receipts.load)
        await self._turn()

    async def run(self) -> None:
        """Until `stop`, or until something fails."""
        last_turn = self._clock.monotonic()
        try:
            while not self._stopping:
                await self._pause()
                late = self._clock.monotonic() - last_turn - TICK_S
                if late > AWAY_S:
                    _log.warning("the hub was held up for %.0f s; nobody is declared lost for that", late)
                    self._inbox.insert(0, HubWasAway(late))
                    self._stepped -= 1  # nobody has posted it: it must not count for what somebody has
                last_turn = self._clock.monotonic()
                await self._turn()
            await self._tell_last()
            await self._say_last()
        except BaseException:
            self._failed = True
            raise
        finally:
            self._stopping = True
            self._refuse_all()
            self._writer.close()
            self._reader.close()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()

    async def _say_last(self) -> None:
        """What the audit has counted or noted, and no turn brings along any more."""
        self.audit.settle()
        if rows := self.audit.answered(()):
            try:
                await self.commit(Changes(audit=rows))
            except LedgerError as error:  # another hub leads by now
                _log.warning("the audit's last %d rows were not written: %s", len(rows), error)

    async def _pause(self) -> None:
        """Until there is something to do."""
        if self._inbox or not settled(self.fleet):
            await asyncio.sleep(0)
            return
        due = self.fleet.timers.next_at()
        timeout = TICK_S if due is None else min(TICK_S, max(0.0, due - self._clock.monotonic()))
        timer = asyncio.get_running_loop().call_later(timeout, self._wake.set)  # without a task for each turn
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    async def _turn(self) -> None:
        batch = self._take()
        are_reports = _are_reports(batch)
        if not are_reports:
            await self._tell_last()
        await self._look_up(batch)
        now = self._clock.monotonic()
        self.fleet.epoch = self._clock.wall() - now
        begun = time.perf_counter()
        effects: list[Effect] = []
        self._committed.clear()
        for event in batch:
            effects += await self._step(event, now)
        if not self._inbox or now - self._last_at > TICK_S:  # a sign of life in there comes before that it is missed
            self._last_at = now
            effects += step(self.fleet, TimePassed(), now)
        effects += settle(self.fleet, now)
        effects += [Answer(ref=ref) for ref in self._turns_done()]
        changes = take_changes(self.fleet, now)
        self._receipts.decided(changes)
        self._growth.seen(len(self.fleet.jobs), self.fleet.job_seq)
        changes.audit = self.audit.answered(effects)
        stepped = time.perf_counter()
        if len(batch) >= LEAST_TAKEN:
            self._each_s += PACE_WEIGHS * ((stepped - begun) / len(batch) - self._each_s)
        self.batches += 1
        self.events += len(batch)
        await self._tell_last()
        self._unwritten = _Decided(changes, effects, self._write(changes) if changes else None)
        if changes:
            self.hint(changes, effects)
        if not (are_reports and len(self._inbox) >= LEAST_TAKEN) or self._lookers or self._stopping:
            await self._tell_last()
            self._committed.set()

    async def _tell_last(self) -> None:
        """What was decided last is durable, and done, when this returns."""
        decided, self._unwritten = self._unwritten, None
        if decided is None:
            return
        changes, effects, written = decided
        if written is not None:
            took_s = await written
            self.commit_s += took_s
            self._commit_s += PACE_WEIGHS * (took_s - self._commit_s)
        await self.confirm()
        await self._perform(changes, effects)
        for effect in effects:
            if isinstance(effect, Reply):
                self._reply(effect)

    def _take(self) -> list[Event]:
        """The next of what has come, in its order."""
        self._wake.clear()
        many = max(LEAST_TAKEN, int(max(SPAN_S, self._commit_s) / self._each_s))
        taken, self._inbox = self._inbox[:many], self._inbox[many:]
        self._stepped += len(taken)
        if not self._inbox:
            self.taken()
        # What is old goes last: it was looked up before the batch, and is held against all that the batch brings.
        return sorted(taken, key=_is_pruning)

    def _turns_done(self) -> Iterator[int]:
        while self._turns and self._turns[0][0] <= self._stepped:
            yield self._turns.popleft()[1]

    async def _step(self, event: Event, now: float) -> list[Effect]:
        """Sockets and timers have their turn in the midst of what is large; nothing else is stepped meanwhile."""
        portions = large(self.fleet, event, now)
        if portions is None:
            return step(self.fleet, event, now)
        while True:
            try:
                next(portions)
            except StopIteration as end:
                effects: list[Effect] = end.value
                return effects
            self._growth.seen(len(self.fleet.jobs), self.fleet.job_seq)
            await asyncio.sleep(0)

    async def _look_up(self, batch: list[Event]) -> None:
        """What a step needs to know of history is read before it; nobody else writes in between."""
        reads = [(event, read) for event in batch if (read := bring(event, self._receipts)) is not None]
        if reads:
            is_one = len(reads) == 1 and isinstance(one := reads[0][0], JobsSubmitted) and len(one.jobs) == 1
            await self.read(lambda ledger: [read(ledger) for _, read in reads], by_key=is_one)

    def _reply(self, effect: Reply) -> None:
        future = self._waiting.pop(effect.ref, None)
        if future is None or future.done():
            return
        if isinstance(effect, Refuse):
            future.set_exception(effect.error)
        else:
            future.set_result(effect)

    def _refuse_all(self) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(LedgerError("the hub stopped before this was durable; ask again"))
        self._waiting.clear()
        self._committed.set()
