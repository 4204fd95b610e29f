"""How much memory each attempt took at most: looked at once a second while it runs, and told by the kernel at its end;
and now and then what it takes at the moment.

What lasts less than a second is never looked at: its main process's own peak comes with its end, at no cost.

Standard library only: the supervisor imports this.
"""

import sys
import time
from resource import struct_rusage

from ostler.runtime.processes import ProcessTable
from ostler.runtime.tree import Tree

FIRST_LOOK_S = 1.0
LONGEST_PAUSE_S = 5.0
CALM_AFTER_S = 60.0
"""Once the youngest is older than this, it is looked at less often."""
COST_BOUND = 50
"""A look may cost one part in this many of the time: on a machine of many processes it is taken less often."""
NEWS_PART = 1.1
"""A peak that has grown by less is not told again before the end."""
SAMPLE_S = 5.0
"""What an attempt takes at the moment is told about as often."""
NEVER = float("inf")
_KIB = 1024 if sys.platform == "darwin" else 1
"""Units of the kernel's peak in a KiB."""


class Peaks:
    def __init__(self, tree: Tree, table: ProcessTable) -> None:
        self._tree = tree
        self._table = table
        self._began: dict[str, float] = {}
        self._kib: dict[str, int] = {}
        self._told: dict[str, int] = {}
        self._samples: dict[str, tuple[int, int]] = {}
        """Of those that run, since anybody asked: MiB, and milliseconds of processor time."""
        self._sample_at = 0.0
        self._not_before = 0.0
        self.wake_at = NEVER

    def begin(self, attempt: str, now: float) -> None:
        if self._table.tells_memory:
            self._began[attempt] = now
            self.wake_at = min(self.wake_at, max(now + FIRST_LOOK_S, self._not_before))

    def reaped(self, attempt: str, used: struct_rusage) -> None:
        """Its main process is gone: the largest of it and of those that it waited for."""
        self._more(attempt, used.ru_maxrss // _KIB)

    def tick(self, now: float) -> None:
        if now < self.wake_at:
            return
        old = [attempt for attempt, began in self._began.items() if now - began >= FIRST_LOOK_S / 2]
        cost_s = self._look(old, now >= self._sample_at) if old else 0.0
        if now >= self._sample_at:
            self._sample_at = now + SAMPLE_S
        self._not_before = now + max(FIRST_LOOK_S, COST_BOUND * cost_s)
        is_calm = all(now - began > CALM_AFTER_S for began in self._began.values())
        pause_s = LONGEST_PAUSE_S if is_calm else FIRST_LOOK_S
        self.wake_at = max(now + pause_s, self._not_before) if self._began else NEVER

    def _look(self, attempts: list[str], sample: bool) -> float:
        start = time.perf_counter()
        for attempt, processes in self._tree.walk(attempts).items():
            known = [self._table.memory(process.pid) for process in processes]
            # What processes share is there once. What a fork has not yet written to is counted for both: rather too
            # much than too little, and to know better would take the kernel a walk over all their pages.
            kib = sum(own for own, _ in known) + max((shared for _, shared in known), default=0)
            self._more(attempt, kib)
            if sample:
                cpu_s = sum(self._table.cpu_s(process.pid) for process in processes)
                self._samples[attempt] = _mib(kib), round(cpu_s * 1000)
        return time.perf_counter() - start

    def _more(self, attempt: str, kib: int) -> None:
        self._kib[attempt] = max(self._kib.get(attempt, 0), kib)

    def news(self) -> dict[str, int]:
        """Of those that run, in MiB, where it is worth telling."""
        grown = {one: kib for one, kib in self._kib.items() if kib > NEWS_PART * self._told.get(one, 0)}
        self._told |= grown
        return {attempt: _mib(kib) for attempt, kib in grown.items() if attempt in self._began}

    def samples(self) -> dict[str, tuple[int, int]]:
        """What those that run take at the moment, where somebody has looked since the last time: in MiB, and how many
        milliseconds of processor time they have taken."""
        taken, self._samples = self._samples, {}
        return {attempt: sample for attempt, sample in taken.items() if attempt in self._began}

    def take(self, attempt: str) -> int:
        """Of one that is over, in MiB; 0: nobody knows."""
        self._began.pop(attempt, None)
        self._told.pop(attempt, None)
        return _mib(self._kib.pop(attempt, 0))


def _mib(kib: int) -> int:
    return -(-kib // 1024)
