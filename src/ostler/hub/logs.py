"""Logs in flight: workers post bytes when someone reads, and once more at the end; readers follow the hub's copy."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakValueDictionary

from ostler.core.fleet import Fleet
from ostler.domain.errors import StoreAway, TooLarge
from ostler.hub.loop import Loop
from ostler.hub.sessions import Sessions
from ostler.store.logs import LogStore
from ostler.store.streaming import STORE, in_thread
from ostler.wire.messages import LogRequest

CHUNK = 64 * 1024
FULL = "the hub keeps no more of this log for now; its end follows when the task has ended"
SNAPSHOT_WAIT_S = 2.0
"""How long a reader who does not follow waits for a running task's newest bytes."""
ASK_AGAIN_S = 5.0


class Logs:
    def __init__(self, store: LogStore, loop: Loop, sessions: Sessions) -> None:
        self.store = store
        self._loop = loop
        self._sessions = sessions
        self._grown: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        self._asked: dict[str, float] = {}
        self._closed = False
        self._complete: set[str] = set()
        """Live attempts of which everything is here."""
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="log-writer")
        self._full: set[str] = set()
        """Those of which no more is taken until they end; their readers have been told."""

    async def append(self, attempt: str, offset: int, data: bytes, gap: int = 0, ending: bool = False) -> int:
        """In a thread: a disk that is busy with somebody's flood holds up nobody else."""
        try:
            return await in_thread(self._writer, self.store.append, attempt, offset, data, gap, ending)
        except TooLarge:
            if not ending and attempt not in self._full:
                self._full.add(attempt)
                await in_thread(self._writer, self.store.note, attempt, FULL)
            raise
        finally:
            self._wake(attempt)

    def tail(self, attempt: str, most: int) -> str:
        """The end of what the hub has of a log."""
        size = self.store.size(attempt)
        return self.store.read(attempt, max(0, size - most), most).decode(errors="replace").strip()

    async def move(self, attempt: str) -> None:
        """To the bucket; if more comes meanwhile, at another time."""
        size = await asyncio.to_thread(self.store.copy_out, attempt)
        await in_thread(self._writer, self.store.let_go, attempt, size)

    def completed(self, attempt: str) -> None:
        """The last piece has come: its worker need not be asked any more."""
        self._complete.add(attempt)
        self._wake(attempt)

    def ended(self, attempt: str) -> None:
        """Its room is given back: readers may finish."""
        self._wake(attempt)
        self._asked.pop(attempt, None)
        self._complete.discard(attempt)
        self._full.discard(attempt)

    def close(self) -> None:
        """The hub stops: whoever follows is let go, and comes back to the next one."""
        self._closed = True
        for attempt in list(self._grown):
            self._wake(attempt)

    def _wake(self, attempt: str) -> None:
        grown = self._grown.pop(attempt, None)
        if grown is not None:
            grown.set()

    async def read(self, task_id: str, attempt: str, offset: int, follow: bool) -> AsyncIterator[bytes]:
        """The attempt's output from this byte on; with `follow`, until it has ended and all is told."""
        if self.store.is_moved(attempt):
            async for data in self._read_moved(attempt, offset):
                yield data
            return
        grown = self._growth(attempt)
        if await self._ask(task_id, attempt, follow) and not follow and attempt not in self._complete:
            await _within(grown, SNAPSHOT_WAIT_S)
        while True:
            grown = self._growth(attempt)  # taken before the read, so that nothing grows unseen in between
            while data := await asyncio.to_thread(self.store.read, attempt, offset, CHUNK):
                offset += len(data)
                yield data
            if not follow or self._closed or not await self._ask(task_id, attempt, follow):
                break
            await _within(grown, ASK_AGAIN_S)
        while data := await asyncio.to_thread(self.store.read, attempt, offset, CHUNK):
            offset += len(data)
            yield data

    async def _read_moved(self, attempt: str, offset: int) -> AsyncIterator[bytes]:
        """It has ended, and is in the bucket."""
        try:
            while data := await in_thread(STORE, self.store.read, attempt, offset, CHUNK):
                offset += len(data)
                yield data
        except StoreAway as error:
            yield f"\n[ostler: {error}]\n".encode()

    def _growth(self, attempt: str) -> asyncio.Event:
        """Set when the log has grown, or the attempt has ended; kept only while somebody waits for it."""
        grown = self._grown.get(attempt)
        if grown is None:
            grown = self._grown[attempt] = asyncio.Event()
        return grown

    async def _ask(self, task_id: str, attempt: str, follow: bool) -> bool:
        """Have the worker send what is missing. False: the attempt has ended, so that nothing more comes."""
        session = await self._loop.look(lambda fleet, _: _session_of(fleet, attempt))
        if session is None:
            return False
        now = asyncio.get_running_loop().time()
        if (
            session
            and attempt not in self._complete
            and attempt not in self._full
            and (not follow or now - self._asked.get(attempt, -ASK_AGAIN_S) >= ASK_AGAIN_S)
        ):
            self._asked[attempt] = now
            size, reached = self.store.size(attempt), self.store.reached(attempt)
            request = LogRequest(task_id=task_id, attempt=attempt, offset=size, follow=follow)
            if reached != size:
                request.reached = reached
            self._sessions.ask_for_log(session, request)
        return True


async def _within(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), timeout_s)


def _session_of(fleet: Fleet, attempt: str) -> int | None:
    """The socket to ask for a live attempt's log: 0 while its worker is away, None when it has ended."""
    held = fleet.held.get(attempt)
    return fleet.workers[held.worker_id].session if held is not None else None
