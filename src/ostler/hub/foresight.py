"""Questions about what would happen, answered on copies of the hub: the loop is kept from its work for one fork.

One forecast serves everybody who asks about what waits. It comes in pieces: first the beginning of the queue in every
run, then each run to its end; whoever asks gets what is known by then. Questions about one job have a copy each, and
the same question asked again within a moment has the same answer.
"""

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeVar

import msgspec

from ostler.core.fleet import Fleet
from ostler.core.foresight.forecast import Ahead, drawn, likely, notice_running
from ostler.core.foresight.outlook import RUNS, Outlook
from ostler.core.foresight.trial import Tried
from ostler.core.foresight.whatif import Plan, apply
from ostler.domain import states
from ostler.domain.finite import encode
from ostler.hub.apart import Copy, CopyFailed, Send, tried
from ostler.hub.documents import Document
from ostler.hub.expected import document
from ostler.hub.loop import Loop

FORECAST_S = 30
"""What all the runs of one forecast may cost; what is not reached by then is told as later."""
FIRST_STARTS = 96
"""So many jobs are followed in every run before any run goes further."""
NICE_FURTHER = 10
"""Nobody waits for what comes after that: whoever asks a question meanwhile goes first."""
PIECE_S = 0.05
WITHIN_S = 0.25
"""Whoever asks waits no longer than this for what is not known yet."""
FRESH_S, QUIET_S = 0.5, 5.0
STALE_S = 120.0
"""A forecast that is older answers nobody; a younger one does, until the next has come."""
ANSWER_S = 10
QUESTIONS_AT_ONCE = 2
KEPT_S = 1.0

T = TypeVar("T")
Compute = Callable[[Fleet, float, Tried], object]
Piece = tuple[int, float, bool, dict[str, float], dict[str, float]]
"""Of one run: its number, how far it is, whether it is over, and which jobs begin and end when, in seconds from now."""
_encode = msgspec.msgpack.Encoder().encode
_piece = msgspec.msgpack.Decoder(Piece)


class Forecast:
    """What one copy has told so far."""

    def __init__(self, copy: Copy, fleet: Fleet, now: float) -> None:
        self.wall = fleet.wall(now)
        self.newest = fleet.job_seq
        """The last job that it knows of, and the last line of the feed."""
        self.seen = fleet.feed_seq
        self._begun = time.monotonic()
        self.outlook = Outlook()
        self.cost_s = 0.0
        self.over = self.cut_short = False
        self._grown = asyncio.Event()
        self._reading = asyncio.create_task(self._read(copy))
        self._reading.add_done_callback(lambda _: self._end(copy))  # also when it was cancelled before it began

    async def _read(self, copy: Copy) -> None:
        while (frame := await copy.next()) is not None:
            self.outlook.heard(*_piece.decode(frame))
            self.cost_s = self.age()
            self._wake()

    def _end(self, copy: Copy) -> None:
        copy.close()
        self.over = True
        self._wake()

    def _wake(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()

    async def known(self, job_id: str, within_s: float) -> None:
        """Until as much is known of this job as there will be (of none: of all), or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not self.over and not (job_id and self.outlook.knows(job_id)):
                    await self._grown.wait()

    def age(self) -> float:
        return time.monotonic() - self._begun

    def fresh_s(self, seen: int) -> float:
        """What was costly to find out is good for longer, and so is what nothing has happened to since. Not for ever:
        what should have ended by now, and has not, is news as well."""
        return max(QUIET_S if self.seen == seen else FRESH_S, 2 * self.cost_s)

    def stop(self) -> None:
        self.cut_short = not self.over
        self._reading.cancel()


class Question:
    """Asked of one copy; whoever asks the same meanwhile gets its answer, if that is not older than their asking."""

    def __init__(self) -> None:
        self.seen = -1
        """The newest line of the feed that the copy knows; -1: it is not made yet."""
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.answer.add_done_callback(lambda done: done.cancelled() or done.exception())


class Foresight:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._last: Forecast | None = None
        """The last that has told all it had to tell."""
        self._coming: Forecast | None = None
        self._questions: dict[Hashable, Question] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._at_once = asyncio.Semaphore(QUESTIONS_AT_ONCE)
        self.within_s = WITHIN_S

    async def expected(self, job_id: str) -> Document:
        """When it begins and ends, as well as is known in time."""
        forecast = await self.present(job_id)
        await forecast.known(job_id, self.within_s)
        last, asked = self._last, await self._loop.look(lambda fleet, _: _arrival(fleet, job_id))
        if last is not None and asked <= last.newest and not forecast.outlook.knows(job_id):
            forecast = max((forecast, last), key=lambda one: one.outlook.depth(job_id))
        return document(forecast.outlook.expected(job_id), forecast.wall)

    def seen(self, job_id: str) -> Document | None:
        """What the last forecast said, where there is one: for lists, which wait for nothing."""
        for forecast in (self._last, self._coming):
            if forecast is not None and forecast.age() < STALE_S and job_id in _first_starts(forecast):
                return document(forecast.outlook.expected(job_id), forecast.wall)
        return None

    async def present(self, job_id: str = "") -> Forecast:
        """One that knows this job: the last while it is young or nothing has happened since, else a new one."""
        if self._coming is not None and self._coming.over:
            self._coming, self._last = None, self._coming
        if self._last is not None and self._last.age() > STALE_S:
            self._last = None
        asked, seen = await self._loop.look(lambda fleet, _: (_arrival(fleet, job_id), fleet.feed_seq))
        for one in (self._last, self._coming):
            if one is not None and not one.cut_short and asked <= one.newest and one.age() < one.fresh_s(seen):
                return one
        if self._coming is not None and asked > self._coming.newest:
            self._coming.stop()
            self._last, self._coming = self._last or self._coming, None
        if self._coming is None:
            self._coming = await self._loop.look(self._begin)
        return self._coming

    async def otherwise(self, plan: Plan) -> Forecast:
        """What would happen if this were so; whoever asks for it has to stop it."""
        return await self._loop.look(lambda fleet, now: self._begin(fleet, now, plan))

    def _begin(self, fleet: Fleet, now: float, plan: Plan | None = None) -> Forecast:
        def work(send: Send) -> None:
            if plan is not None:
                apply(fleet, plan, now)
            foresee(fleet, now, send)

        return Forecast(Copy(work, FORECAST_S), fleet, now)

    async def ask(self, key: Hashable, compute: Compute, read: Callable[[bytes], T]) -> T:
        """One answer from a copy that is not older than the question."""
        question = self._questions.get(key)
        if question is None or question.seen not in (-1, self._loop.fleet.feed_seq):
            question = self._questions[key] = Question()
            answering = asyncio.create_task(self._answer(key, question, compute, read))
            self._answering.add(answering)  # the event loop alone would not keep it
            answering.add_done_callback(self._answering.discard)
        answer: T = await asyncio.shield(question.answer)
        return answer

    async def _answer(self, key: Hashable, question: Question, compute: Compute, read: Callable[[bytes], T]) -> None:
        try:
            question.answer.set_result(await self._ask(question, compute, read))
            await asyncio.sleep(KEPT_S)
        except Exception as error:
            question.answer.set_exception(error)
        finally:
            question.answer.cancel()
            if self._questions.get(key) is question:
                del self._questions[key]

    async def _ask(self, question: Question, compute: Compute, read: Callable[[bytes], T]) -> T:
        async with self._at_once:

            def begin(fleet: Fleet, now: float) -> Copy:
                question.seen = fleet.feed_seq
                return Copy(_answering(compute, fleet, now), ANSWER_S)

            copy = await self._loop.look(begin)
            try:
                frame = await copy.next()
            finally:
                copy.close()
        if frame is not None:
            return read(frame)
        raise CopyFailed("a copy of the hub ended before it had answered; the hub's log says why")

    def close(self) -> None:
        for forecast in (self._last, self._coming):
            if forecast is not None:
                forecast.stop()
        for answering in self._answering:
            answering.cancel()


def _arrival(fleet: Fleet, job_id: str) -> int:
    job = fleet.jobs.get(job_id)
    return job.seq if job is not None else 0


def _answering(compute: Compute, fleet: Fleet, now: float) -> Callable[[Send], None]:
    return lambda send: send(encode(compute(fleet, now, tried)))


def _first_starts(forecast: Forecast) -> dict[str, float]:
    first = forecast.outlook.runs.get(0)
    return first.starts if first is not None else {}


# On the copy


def foresee(fleet: Fleet, now: float, send: Send) -> None:
    """Every run a little, then every run to its end."""
    deadline = time.monotonic() + FORECAST_S
    notice_running(fleet, now)
    over: set[int] = set()
    for most in (FIRST_STARTS, math.inf):
        if most == math.inf:
            os.nice(NICE_FURTHER)
        for number in range(RUNS + 1):
            if number in over or time.monotonic() > deadline:
                continue
            if tried(partial(_run, fleet, now, number, most, deadline, send)):
                over.add(number)


def _run(fleet: Fleet, now: float, number: int, most: float, deadline: float, send: Send) -> bool:
    draw = likely if number == 0 else drawn(number)
    return follow(Ahead(fleet, now, draw), number, most, deadline, send)


def follow(ahead: Ahead, number: int, most: float, deadline: float, send: Send) -> bool:
    """Tell of one run in pieces; True when it is over."""
    waiting = {job.id for job in ahead.fleet.jobs.values() if job.state == states.PENDING or job.waiting}
    told: set[str] = set()
    told_ends: set[str] = set()
    all_ends = len(waiting | ahead.ends.keys())
    goes_on, next_at = True, time.monotonic() + PIECE_S

    def tell(over: bool) -> None:
        starts = {key: at - ahead.begun for key, at in ahead.starts.items() if key not in told}
        ends = {key: at - ahead.begun for key, at in ahead.ends.items() if key not in told_ends and at < math.inf}
        told.update(starts)
        told_ends.update(ends)
        send(_encode((number, ahead.now - ahead.begun, over, starts, ends)))

    while goes_on and len(ahead.starts) < most and len(ahead.ends) < all_ends:
        goes_on = ahead.advance()
        now = time.monotonic()
        if now > next_at:
            tell(over=False)
            next_at = now + PIECE_S
            if now > deadline:
                break
    over = not goes_on or len(ahead.ends) >= all_ends
    tell(over)
    return over
