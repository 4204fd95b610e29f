"""The hub's two clocks in one place, so that a journey in the tests can move time by hand."""

import time
from collections.abc import Callable
from math import inf
from typing import Protocol

STEP_S = 3600.0
DOUBT_S = 86_400.0
"""For so long a clock that was set by more than a step is not believed where something would be lost by it."""


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds that only ever grow: what durations and deadlines are made of."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch: what is kept in the ledger and shown to people."""
        ...


def also_asleep() -> float:
    """Seconds that also pass while the machine sleeps: what others count meanwhile."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Steadiness:
    """Whether the wall clock goes on evenly. Of one that was set nobody knows at first which of its times was wrong."""

    def __init__(self, wall: Callable[[], float], even: Callable[[], float] = also_asleep) -> None:
        self._wall = wall
        self._even = even
        self._apart = wall() - even()
        self._steady_from = -inf

    def is_steady(self) -> bool:
        now = self._even()
        was, self._apart = self._apart, self._wall() - now
        if abs(self._apart - was) > STEP_S:
            self._steady_from = now + DOUBT_S
        return now >= self._steady_from


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()
