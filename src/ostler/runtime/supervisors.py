"""Tasks as processes of this machine, shared out among two supervisors.

A supervisor stands still from the start of a process until that has got a processor: on a busy machine most of a
millisecond, in which it sees no end and starts nothing else. Two of them are seldom both held up.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from ostler.runtime.base import Ended, Held, Launch
from ostler.runtime.link import SupervisorUnreachable
from ostler.runtime.process import ProcessRuntime, Replaced
from ostler.runtime.prune import prune
from ostler.runtime.supervisor import ATTEMPTS, JOURNAL

SECOND = "second"
REMEMBERED = 4096
PREPARED = 64

_log = logging.getLogger(__name__)


class Supervisors:
    """One `Runtime` of up to two, which have their attempts' folders in one place. A line of attempts, each after the
    one before, is one supervisor's."""

    def __init__(
        self, folder: Path, *, attempts: Path | None = None, idle_exit_s: float = 60.0, two: bool = True
    ) -> None:
        """`two`: without, new attempts are the first's, whatever an earlier worker process has left with the second."""
        self._ends: asyncio.Queue[Ended | Replaced | None] = asyncio.Queue()
        self._second_folder = folder / SECOND
        self._place = attempts or folder / ATTEMPTS
        self._idle_exit_s = idle_exit_s
        self._two = two
        self._members = [self._member(folder)]
        self._closed = 0
        self._homes: OrderedDict[str, ProcessRuntime] = OrderedDict()  # a plain one does not know its first
        """Whose the latest attempts of this process were: one that is launched late or twice is known there."""
        self._prepared: OrderedDict[str, None] = OrderedDict()
        """The latest that may be launched next, and have not been: whoever prunes lets them be."""

    def _member(self, folder: Path) -> ProcessRuntime:
        return ProcessRuntime(folder, attempts=self._place, idle_exit_s=self._idle_exit_s, ends=self._ends)

    async def open(self) -> list[Held]:
        first, second = await asyncio.gather(self._members[0].open(), self._open_second())
        return first + second

    async def _open_second(self) -> list[Held]:
        may_hold = _has_something(self._second_folder / JOURNAL)
        if not self._two and not may_hold:
            return []
        second = self._member(self._second_folder)
        try:
            held = await second.open()
        except (OSError, SupervisorUnreachable) as error:
            if may_hold:
                raise
            _log.warning("there is no second supervisor, and the first starts everything: %s", error)
            return []
        self._members.append(second)
        return held

    def prepare(self, launch: Launch) -> None:
        if self._of(launch.attempt) is None:
            member = self._for_new(launch)
            self._prepared[launch.attempt] = None  # before there is anything to be pruned
            if len(self._prepared) > PREPARED:
                self._prepared.popitem(last=False)
            self._remember(launch.attempt, member)
            member.prepare(launch)

    async def launch(self, launch: Launch) -> None:
        member = self._of(launch.attempt) or self._behind(launch.after) or self._for_new(launch)
        await member.launch(launch)
        self._prepared.pop(launch.attempt, None)
        self._remember(launch.attempt, member)

    def _remember(self, attempt: str, member: ProcessRuntime) -> None:
        self._homes[attempt] = member
        if len(self._homes) > REMEMBERED:
            self._homes.popitem(last=False)

    async def stop(self, attempt: str, reason: str, grace_s: float) -> None:
        if member := self._of(attempt):
            await member.stop(attempt, reason, grace_s)

    async def call_back(self, attempt: str, reason: str) -> None:
        if member := self._of(attempt):
            await member.call_back(attempt, reason)

    async def beside(self, attempt: str, argv: list[str], env: dict[str, str]) -> str:
        return await (self._of(attempt) or self._members[0]).beside(attempt, argv, env)

    async def renew(self, age_s: float) -> None:
        for member in self._members:
            await member.renew(age_s)

    async def forget(self, attempt: str) -> None:
        if member := self._of(attempt):
            await member.forget(attempt)

    def peaks(self) -> dict[str, int]:
        return {attempt: mib for member in self._members for attempt, mib in member.peaks().items()}

    def samples(self) -> dict[str, tuple[int, int]]:
        return {attempt: one for member in self._members for attempt, one in member.samples().items()}

    async def ends(self) -> AsyncIterator[Ended]:
        while self._closed < len(self._members):
            end = await self._ends.get()
            if isinstance(end, Exception):
                raise end
            if end is None:
                self._closed += 1
            else:
                yield end

    def folder(self, attempt: str) -> Path:
        return self._members[0].folder(attempt)

    def path(self, attempt: str) -> str:
        return self._members[0].path(attempt)

    async def close(self, *, stop_tasks: bool) -> None:
        await asyncio.gather(*(member.close(stop_tasks=stop_tasks) for member in self._members))

    async def prune(self, *, keep_bytes: int, keep_age_s: float) -> int:
        """Bound what forgotten attempts take on the disk; how many bytes were freed."""
        return await asyncio.to_thread(prune, self._place, self._is_held, keep_bytes, keep_age_s, time.time())

    def _is_held(self, attempt: str) -> bool:
        return attempt in self._prepared or any(member.holds(attempt) for member in self._members)

    def _of(self, attempt: str) -> ProcessRuntime | None:
        for member in self._members:
            if member.holds(attempt):
                return member
        return self._homes.get(attempt)

    def _behind(self, after: Iterable[str]) -> ProcessRuntime | None:
        found: ProcessRuntime | None = None
        for name in after:
            for member in self._members:
                if member is not found and member.holds(name):
                    if found is not None:
                        raise ValueError(f"not of one line, so nothing can come after them: {', '.join(after)}")
                    found = member
        return found

    def _for_new(self, launch: Launch) -> ProcessRuntime:
        if launch.warm or not self._two:
            return self._members[0]  # nothing is started for a function where the interpreter is that ran the last one
        return min(self._members, key=lambda member: member.live)


def _has_something(journal: Path) -> bool:
    try:
        return journal.stat().st_size > 0
    except OSError:
        return False
