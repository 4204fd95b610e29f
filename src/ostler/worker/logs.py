"""Tasks' logs on their way to the hub: while somebody reads them, and what is missing when the task has ended."""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from ostler.runtime.attempts import LOG, open_plain
from ostler.runtime.identity import as_owner
from ostler.wire.messages import LogRequest
from ostler.worker.api import Declined, HubApi, Unreachable
from ostler.worker.redaction import Redactor
from ostler.worker.trimming import KEEP_HEAD

PIECE = 1024 * 1024
END_PART = 4 * PIECE
"""Of a log whose reader was not there, the first and the last this many bytes are sent at its end."""
BEHIND = 32 * PIECE
"""A reader who would be further behind than this is brought to the newest, and told what was left out."""
BYTES_PER_S = 4_000_000
END_S = 20.0
LOOK_S = 0.2
AGAIN_S = 1.0
CONFLICTS = 3
FIRST_LINE = 64 * 1024
TOO_LARGE = 413

_log = logging.getLogger("ostler.worker")


class Part(NamedTuple):
    """Bytes of the log file, and how many before them were left out."""

    start: int
    length: int
    gap: int = 0


def next_part(at: int, size: int) -> Part:
    """What is sent next of a log that grows: its beginning in order, then whatever keeps a reader near its end."""
    if size - at <= BEHIND or at < END_PART:
        return Part(at, min(PIECE, size - at))
    return Part(size - PIECE, PIECE, size - PIECE - at)


def last_parts(at: int, size: int) -> list[Part]:
    """What is sent of a log of this size, of which the hub has so much, once it will not grow any more. What lies
    between its head and its tail may be gone from the disk already."""
    if size - at <= 2 * END_PART:
        return _cut(at, size) or [Part(at, 0)]
    first_end = max(at, min(at + END_PART, KEEP_HEAD))
    first, (head, *tail) = _cut(at, first_end), _cut(size - END_PART, size)
    return [*first, head._replace(gap=head.start - first_end), *tail]


def _cut(start: int, end: int) -> list[Part]:
    return [Part(at, min(PIECE, end - at)) for at in range(start, end, PIECE)]


class _Stream(msgspec.Struct, kw_only=True):
    """One attempt's log."""

    task_id: str
    attempt: str
    have: int = 0
    """What the hub is known to have."""
    at: int = 0
    """How far into the log that is: further, where something was left out."""
    full: bool = False
    """The hub takes no more of it before its end."""
    follow: bool = False
    finishing: bool = False
    complete: bool = False
    sending: asyncio.Task[None] | None = None

    def about(self) -> dict[str, str]:
        """Whose it is, for the worker's own log."""
        return {"task": self.task_id, "attempt": self.attempt}


class Logs:
    def __init__(
        self,
        api: HubApi,
        folder: Callable[[str], Path],
        runs: Callable[[str], bool],
        knows: Callable[[str], bool],
        redactor: Callable[[str], Redactor | None] = lambda _: None,
    ) -> None:
        self._redactor = redactor
        self._api = api
        self._folder = folder
        self._runs = runs
        self._knows = knows
        """The worker still answers for this attempt: it runs, or its result is not acknowledged."""
        self._streams: dict[str, _Stream] = {}

    def is_empty(self, attempt: str) -> bool:
        """Nothing was printed and nobody was promised anything: no request is needed."""
        return not self.is_asked_for(attempt) and self._size(attempt) == 0

    def is_asked_for(self, attempt: str) -> bool:
        return attempt in self._streams

    def request(self, asked: LogRequest) -> None:
        """Somebody reads this log."""
        stream = self._streams.setdefault(asked.attempt, _Stream(task_id=asked.task_id, attempt=asked.attempt))
        if stream.complete or stream.finishing:
            return  # all that there is has been sent, or is on its way
        stream.follow = stream.follow or asked.follow
        if stream.sending is None:
            stream.have, stream.at = asked.offset, asked.reached or asked.offset
            stream.sending = asyncio.get_running_loop().create_task(self._send(stream))
            stream.sending.add_done_callback(lambda task: self._sent(stream, task))

    async def finish(self, task_id: str, attempt: str) -> bool:
        """The task has ended: bring the hub what it lacks, within bounds. False if it is worth another try, since of
        an attempt that has ended nobody asks for the rest: the hub could not be reached, or was slow."""
        stream = self._streams.setdefault(attempt, _Stream(task_id=task_id, attempt=attempt))
        stream.finishing = True
        await _stop(stream)
        try:
            async with asyncio.timeout(END_S):
                await self._send_last(stream)
        except TimeoutError:
            told = "the log of %s, attempt %s, took too long; the hub has %d bytes"
            _log.warning(told, task_id, attempt, stream.at, extra=stream.about())
            return False
        except Unreachable:
            return False
        except (Declined, OSError) as error:
            _log.warning("the log of %s, attempt %s: %s", task_id, attempt, error, extra=stream.about())
        finally:
            stream.finishing = False
        return True

    def reached(self, attempt: str) -> int:
        """How much of it the hub is known to have."""
        return self._streams[attempt].at if attempt in self._streams else 0

    def forget(self, attempt: str) -> None:
        stream = self._streams.get(attempt)
        if stream is not None and stream.sending is None:
            del self._streams[attempt]

    async def close(self) -> None:
        for stream in list(self._streams.values()):
            await _stop(stream)

    async def _send(self, stream: _Stream) -> None:
        """As it grows, as long as somebody follows and the task runs; else what is there now."""
        there_now = self._size(stream.attempt)
        while True:
            runs = self._runs(stream.attempt)  # asked before the size: what is printed last is not missed
            pause_s = LOOK_S
            try:
                await self._send_up_to(stream, there_now)
                if not runs:
                    await self._send_last(stream)
            except Unreachable:
                pause_s = AGAIN_S
            if not runs or not stream.follow:
                return
            await asyncio.sleep(pause_s)

    async def _send_up_to(self, stream: _Stream, there_now: int) -> None:
        """What was there when somebody asked, or all that comes for whoever follows."""
        try:
            while not stream.full and stream.at < (size := self._size(stream.attempt)):
                if not stream.follow and stream.at >= there_now:
                    return
                part = self._without_half_a_secret(stream.attempt, next_part(stream.at, size))
                if not part.length:
                    return  # the rest of it comes, or shows that it was none
                before = (stream.have, stream.at)
                taken = await self._post(stream, part)
                if not taken and (stream.have, stream.at) == before:
                    raise Declined("the hub contradicts itself")
                await asyncio.sleep(part.length / BYTES_PER_S if taken else 0)
        except Declined as refusal:
            if refusal.status != TOO_LARGE:
                raise
            stream.full = True

    async def _post(self, stream: _Stream, part: Part, *, final: bool = False, ending: bool = False) -> bool:
        """False: the hub has more or less of it than was thought, and it is known now how much."""
        data, gap = self._read(stream.attempt, part), part.gap
        if gap and not ending:  # whoever follows goes on with a whole line
            cut = data.find(b"\n", 0, FIRST_LINE) + 1
            data, gap = data[cut:], gap + cut
        answer = await self._api.post_log(
            stream.task_id, stream.attempt, stream.have, data, final=final, gap=gap, ending=ending
        )
        assumed = stream.at + gap + len(data) if answer.taken else answer.size
        stream.have, stream.at = answer.size, assumed if answer.reached is None else answer.reached
        return answer.taken

    async def _send_last(self, stream: _Stream) -> None:
        for _ in range(CONFLICTS):
            if stream.complete:
                return
            stream.complete = await self._try_last(stream)
        if not stream.complete:
            raise Declined("the hub's copy keeps changing under another writer")

    async def _try_last(self, stream: _Stream) -> bool:
        parts = last_parts(stream.at, max(self._size(stream.attempt), stream.at))
        for part in parts:
            if not await self._post(stream, part, final=part is parts[-1], ending=True):
                return False
        return True

    def _sent(self, stream: _Stream, task: asyncio.Task[None]) -> None:
        stream.sending = None
        stream.follow = False
        if not task.cancelled() and (error := task.exception()) is not None:
            told = "the log of %s, attempt %s: %s"
            _log.warning(told, stream.task_id, stream.attempt, error, extra=stream.about())
        if not self._knows(stream.attempt):
            self._streams.pop(stream.attempt, None)

    def _size(self, attempt: str) -> int:
        try:
            return os.stat(f"{self._folder(attempt)}/{LOG}").st_size
        except (OSError, ValueError):
            return 0

    def _read(self, attempt: str, part: Part) -> bytes:
        if not part.length:
            return b""
        redactor = self._redactor(attempt)
        if redactor is None:
            return self._raw(attempt, part.start, part.length)
        # One that lies across the end of a part is seen as a whole from both sides.
        before = min(part.start, redactor.longest)
        data = self._raw(attempt, part.start - before, before + part.length + redactor.longest)
        return redactor.covered(data)[before : before + part.length]

    def _raw(self, attempt: str, start: int, length: int) -> bytes:
        folder = self._folder(attempt)
        with as_owner(folder), open_plain(folder / LOG) as file:
            file.seek(start)
            return file.read(length)

    def _without_half_a_secret(self, attempt: str, part: Part) -> Part:
        """Less what may be the beginning of one that is just being printed."""
        redactor = self._redactor(attempt)
        if redactor is None or not self._runs(attempt):
            return part
        end = part.start + part.length
        last = min(part.length, redactor.longest)
        ahead = self._raw(attempt, end - last, last + redactor.longest)
        held = redactor.held_back(ahead) - (len(ahead) - last)
        return part._replace(length=part.length - max(0, held))


async def _stop(stream: _Stream) -> None:
    if stream.sending is not None:
        stream.sending.cancel()
        await asyncio.wait({stream.sending})
