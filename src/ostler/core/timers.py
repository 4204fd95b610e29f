"""Deadlines, in one place. An entry is only a reminder: whoever gets it checks that it is still true."""

import heapq
from collections.abc import Container
from typing import Final

CONTACT: Final = "contact"
ACCEPTANCE: Final = "acceptance"
GRACE: Final = "grace"
RUNTIME: Final = "runtime"
SCHEDULING: Final = "scheduling"
COOLDOWN: Final = "cooldown"
RESTART: Final = "restart"
UNBIND: Final = "unbind"
LEASE: Final = "lease"
PREFERENCE: Final = "preference"
HOLDS: Final = "holds"
AHEAD: Final = "ahead"


class Timers:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, str]] = []
        self._count = 0
        self._left_out: Container[str] = ()
        self._once: set[tuple[str, str]] = set()

    def without(self, kinds: Container[str]) -> "Timers":
        """The same but for these kinds, which are not set from now on either."""
        others = Timers()
        others._heap = [entry for entry in self._heap if entry[2] not in kinds]
        others._count, others._left_out = self._count, kinds
        others._once = {entry for entry in self._once if entry[0] not in kinds}
        heapq.heapify(others._heap)
        return others

    def add(self, at: float, kind: str, key: str) -> None:
        if kind in self._left_out:
            return
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, kind, key))

    def add_once(self, at: float, kind: str, key: str) -> None:
        """Unless there is one of these already, added in this way."""
        if (kind, key) not in self._once:
            self._once.add((kind, key))
            self.add(at, kind, key)

    def next_at(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[tuple[str, str]]:
        """Kinds and keys of all that is due, oldest deadline first."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            _, _, kind, key = heapq.heappop(self._heap)
            found.append((kind, key))
            self._once.discard((kind, key))
        return found

    def entries(self, kind: str) -> set[tuple[str, float]]:
        """Every key of this kind, with each time at which it is due."""
        return {(key, at) for at, _, its_kind, key in self._heap if its_kind == kind}
