"""Orders that wait for the ends of others, and who is next when one ends.

Standard library only: the supervisor imports this.
"""

from collections.abc import Iterator
from typing import Any

Order = dict[str, Any]


class Waiting:
    def __init__(self) -> None:
        self._orders: dict[str, Order] = {}
        self._after: dict[str, set[str]] = {}
        """The attempts whose end each waits for."""
        self._behind: dict[str, dict[str, None]] = {}
        """The same the other way round."""
        self._ready: dict[str, None] = {}
        """Those that wait for nobody any more, the first first."""

    def __contains__(self, name: object) -> bool:
        return name in self._orders

    def __len__(self) -> int:
        return len(self._orders)

    def __iter__(self) -> Iterator[tuple[str, Order, set[str]]]:
        return ((name, order, self._after[name]) for name, order in self._orders.items())

    def add(self, order: Order, after: set[str]) -> None:
        name = order["attempt"]
        self._orders[name] = order
        self._wait_for(name, after)

    def ended(self, name: str) -> bool:
        """Whether anybody has waited for it, and for nobody else any more."""
        any_ready = False
        for other in self._behind.pop(name, ()):
            self._after[other].discard(name)
            if not self._after[other]:
                self._ready[other] = None
                any_ready = True
        return any_ready

    def take_ready(self) -> Order | None:
        """The next that waits for nobody; it is not here any more."""
        for name in self._ready:
            return self.take(name)
        return None

    def take(self, name: str) -> Order:
        """It has begun, or will not: it is not here any more."""
        self._ready.pop(name, None)
        for other in self._after.pop(name):
            self._behind.get(other, {}).pop(name, None)
        return self._orders.pop(name)

    def let_go(self, name: str) -> Order:
        """It will not begin: whoever comes after it waits for what it waited for."""
        its = set(self._after[name])
        behind = self._behind.pop(name, {})
        order = self.take(name)
        for other in behind:
            self._after[other].discard(name)
            self._wait_for(other, self._after[other] | its)
        return order

    def follower(self, name: str) -> Order | None:
        """The first that waits for the end of this one, and for no other."""
        for other in self._behind.get(name, ()):
            if len(self._after[other]) == 1:
                return self._orders[other]
        return None

    def _wait_for(self, name: str, after: set[str]) -> None:
        self._after[name] = set(after)
        for other in after:
            self._behind.setdefault(other, {})[name] = None
        if not after:
            self._ready[name] = None
