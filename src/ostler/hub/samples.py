"""What running attempts take over time, as their workers' heartbeats tell it: in memory, and only so much.

Nothing of it is durable, and nothing is decided by it. A hub that starts again begins anew.
"""

from array import array

from ostler.domain.worker import ActiveTask

MOST_POINTS = 240
"""Of one attempt. When they are there, every second one goes, and from then on half as many come."""
MOST_ATTEMPTS = 4096
"""When there are more, those go that were heard of longest ago."""


class Series:
    __slots__ = ("at", "cpu_s", "memory_mib", "pause_s", "vram_mib")

    def __init__(self) -> None:
        self.at, self.cpu_s, self.memory_mib, self.vram_mib = (array("d") for _ in range(4))
        self.pause_s = 0.0
        """How much later than the last the next has to be."""

    def add(self, at: float, line: ActiveTask) -> None:
        if self.at and at - self.at[-1] < self.pause_s:
            return
        self.at.append(at)
        self.cpu_s.append(line.cpu_s)
        self.memory_mib.append(line.memory_mib)
        self.vram_mib.append(line.vram_mib)
        if len(self.at) >= MOST_POINTS:
            self.pause_s = 1.5 * (self.at[-1] - self.at[0]) / (len(self.at) - 1)
            self.at, self.cpu_s, self.memory_mib, self.vram_mib = (
                values[::2] for values in (self.at, self.cpu_s, self.memory_mib, self.vram_mib)
            )

    def cores(self) -> list[float]:
        """How many were kept busy, from each look to the next; of the first nobody knows, so it is as the second."""
        pairs = zip(self.at, self.at[1:], self.cpu_s, self.cpu_s[1:], strict=False)
        # A process that was reaped by nobody of its own takes its time with it: less than nothing is nothing.
        found = [round(max(0.0, used - before) / max(now - then, 0.001), 3) for then, now, before, used in pairs]
        return [*found[:1], *found]


class Samples:
    def __init__(self) -> None:
        self._of: dict[str, Series] = {}

    def heard(self, tasks: list[ActiveTask], at: float) -> None:
        for line in tasks:
            if line.attempt and (line.cpu_s or line.memory_mib or line.vram_mib):
                series = self._of.get(line.attempt)
                if series is None:
                    series = self._of[line.attempt] = Series()
                series.add(at, line)
        if len(self._of) > MOST_ATTEMPTS:
            self._forget()

    def of(self, attempt: str) -> Series | None:
        return self._of.get(attempt)

    def _forget(self) -> None:
        """Down to three quarters at once, so that it is seldom done."""
        oldest_first = sorted(self._of, key=lambda attempt: self._of[attempt].at[-1])
        for attempt in oldest_first[: len(self._of) - MOST_ATTEMPTS * 3 // 4]:
            del self._of[attempt]
