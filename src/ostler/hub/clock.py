"""The hub's two clocks in one place, so that a journey in the tests can move time by hand."""

import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds that only ever grow: what durations and deadlines are made of."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch: what is kept in the ledger and shown to people."""
        ...


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()
