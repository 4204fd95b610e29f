"""What observers see: every committed change, live and resumable."""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from ostler.domain.records import FeedRecord
from ostler.hub.loop import Loop
from ostler.hub.watched import Watched

RECENT = 10_000
QUIET_S = 15.0
"""A reader without news for this long gets a sign of life, and a follower looks at its job again."""


class Feed:
    """Recent lines are in memory; whoever is further behind reads them from the ledger."""

    def __init__(self, loop: Loop, last_seq: int) -> None:
        self.last_seq = last_seq
        """The newest line that is durable."""
        self._loop = loop
        self._recent: deque[FeedRecord] = deque(maxlen=RECENT)
        self._grown = asyncio.Event()
        self._watchers: dict[str, list[asyncio.Future[None]]] = {}
        self.closed = False
        self.watched = Watched()

    def close(self) -> None:
        """The hub stops: whoever watches is let go."""
        self.closed = True
        self._grown.set()
        for subject in list(self._watchers):
            self._wake(subject)

    def publish(self, records: list[FeedRecord]) -> None:
        if not records:
            return
        self._recent.extend(records)
        self.last_seq = records[-1].seq
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()
        for record in records:
            if record.subject in self._watchers:
                self._wake(record.subject)

    def _wake(self, subject: str) -> None:
        for future in self._watchers.pop(subject, []):
            _let_go(future)

    @contextlib.contextmanager
    def watching(self, subject: str) -> Iterator[Callable[[float], Awaitable[None]]]:
        """Gives a wait for the next word about this subject, counted from here on."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.setdefault(subject, []).append(future)

        async def changed(timeout_s: float) -> None:
            timer = asyncio.get_running_loop().call_later(timeout_s, _let_go, future)
            try:
                await future
            finally:
                timer.cancel()

        try:
            yield changed
        finally:
            waiting = self._watchers.get(subject, [])
            if future in waiting:
                waiting.remove(future)
            if not waiting:
                self._watchers.pop(subject, None)

    async def after(self, seq: int) -> AsyncIterator[FeedRecord | None]:
        """Everything after this line, then what comes; None now and then, so that a dead reader is noticed."""
        while not self.closed:
            grown = self._grown
            page = await self._next(seq)
            for record in page:
                seq = record.seq
                yield record
            if page:
                continue
            try:
                await asyncio.wait_for(grown.wait(), QUIET_S)
            except TimeoutError:
                yield None

    async def _next(self, seq: int) -> list[FeedRecord]:
        if not self._recent or self._recent[0].seq > seq + 1:
            return await self._loop.read(lambda ledger: ledger.feed(after=seq))
        newer = list(itertools.takewhile(lambda record: record.seq > seq, reversed(self._recent)))
        newer.reverse()
        return newer


def _let_go(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)
