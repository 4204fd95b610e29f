"""Tasks' logs on their way to the hub: while somebody reads them, and what is missing when the task has ended."""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from ostler.runtime.attempts import LOG
from ostler.worker.api import Declined, HubApi, LogSize, Unreachable

PIECE = 1024 * 1024
END_PART = 4 * PIECE
"""Of a log whose reader was not there, the first and the last this many bytes are sent at its end."""
BYTES_PER_S = 4_000_000
END_S = 5.0
LOOK_S = 0.2
AGAIN_S = 1.0
CONFLICTS = 3

_log = logging.getLogger("ostler.worker")


class Part(NamedTuple):
    """Bytes of the log file, and how many before them were left out."""

    start: int
    length: int
    gap: int = 0


def last_parts(have: int, size: int) -> list[Part]:
    """What is sent of a log of this size, of which the hub has so much, once it will not grow any more."""
    if size - have <= 2 * END_PART:
        return _cut(have, size) or [Part(have, 0)]
    first, (head, *tail) = _cut(have, have + END_PART), _cut(size - END_PART, size)
    return [*first, head._replace(gap=head.start - have - END_PART), *tail]


def _cut(start: int, end: int) -> list[Part]:
    return [Part(at, min(PIECE, end - at)) for at in range(start, end, PIECE)]


class _Stream(msgspec.Struct, kw_only=True):
    """One attempt's log."""

    task_id: str
    attempt: str
    have: int = 0
    """What the hub is known to have."""
    follow: bool = False
    finishing: bool = False
    complete: bool = False
    sending: asyncio.Task[None] | None = None


class Logs:
    def __init__(
        self, api: HubApi, folder: Callable[[str], Path], runs: Callable[[str], bool], knows: Callable[[str], bool]
    ) -> None:
        self._api = api
        self._folder = folder
        self._runs = runs
        self._knows = knows
        """The worker still answers for this attempt: it runs, or its result is not acknowledged."""
        self._streams: dict[str, _Stream] = {}

    def is_empty(self, attempt: str) -> bool:
        """Nothing was printed and nobody was promised anything: no request is needed."""
        return attempt not in self._streams and self._size(attempt) == 0

    def request(self, task_id: str, attempt: str, offset: int, follow: bool) -> None:
        """Somebody reads this log; the hub has it up to `offset`."""
        stream = self._streams.setdefault(attempt, _Stream(task_id=task_id, attempt=attempt))
        if stream.complete or stream.finishing:
            return  # all that there is has been sent, or is on its way
        stream.follow = stream.follow or follow
        if stream.sending is None:
            stream.have = offset
            stream.sending = asyncio.get_running_loop().create_task(self._send(stream))
            stream.sending.add_done_callback(lambda task: self._sent(stream, task))

    async def finish(self, task_id: str, attempt: str) -> bool:
        """The task has ended: bring the hub what it lacks, within bounds. False if the hub could not be reached."""
        stream = self._streams.setdefault(attempt, _Stream(task_id=task_id, attempt=attempt))
        stream.finishing = True
        await _stop(stream)
        try:
            async with asyncio.timeout(END_S):
                await self._send_last(stream)
        except TimeoutError:
            _log.warning("the log of %s, attempt %s, took too long; its reader can ask for the rest", task_id, attempt)
        except Unreachable:
            return False
        except (Declined, OSError) as error:
            _log.warning("the log of %s, attempt %s: %s", task_id, attempt, error)
        finally:
            stream.finishing = False
        return True

    def forget(self, attempt: str) -> None:
        stream = self._streams.get(attempt)
        if stream is not None and stream.sending is None:
            del self._streams[attempt]

    async def close(self) -> None:
        for stream in list(self._streams.values()):
            await _stop(stream)

    async def _send(self, stream: _Stream) -> None:
        """As it grows, as long as somebody follows and the task runs; else what is there now."""
        while True:
            runs = self._runs(stream.attempt)  # asked before the size: what is printed last is not missed
            pause_s = LOOK_S
            try:
                while stream.have < (size := self._size(stream.attempt)):
                    await self._send_piece(stream, size)
                if not runs:
                    await self._send_last(stream)
            except Unreachable:
                pause_s = AGAIN_S
            if not runs or not stream.follow:
                return
            await asyncio.sleep(pause_s)

    async def _send_piece(self, stream: _Stream, size: int) -> None:
        data = self._read(stream.attempt, Part(stream.have, min(PIECE, size - stream.have)))
        answer = await self._api.post_log(stream.task_id, stream.attempt, stream.have, data)
        if not answer.taken and answer.size == stream.have:
            raise Declined("the hub contradicts itself")
        stream.have = answer.size
        await asyncio.sleep(len(data) / BYTES_PER_S if answer.taken else 0)

    async def _send_last(self, stream: _Stream) -> None:
        for _ in range(CONFLICTS):
            if stream.complete:
                return
            answer = await self._try_last(stream, stream.have)
            stream.have, stream.complete = answer.size, answer.taken
        if not stream.complete:
            raise Declined("the hub's copy keeps changing under another writer")

    async def _try_last(self, stream: _Stream, have: int) -> LogSize:
        parts = last_parts(have, max(self._size(stream.attempt), have))
        answer = LogSize(have)
        for part in parts:
            data = self._read(stream.attempt, part)
            answer = await self._api.post_log(
                stream.task_id, stream.attempt, answer.size, data, final=part is parts[-1], gap=part.gap
            )
            if not answer.taken:
                break
        return answer

    def _sent(self, stream: _Stream, task: asyncio.Task[None]) -> None:
        stream.sending = None
        stream.follow = False
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("the log of %s, attempt %s: %s", stream.task_id, stream.attempt, error)
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
        with (self._folder(attempt) / LOG).open("rb") as file:
            file.seek(part.start)
            return file.read(part.length)


async def _stop(stream: _Stream) -> None:
    if stream.sending is not None:
        stream.sending.cancel()
        await asyncio.wait({stream.sending})
