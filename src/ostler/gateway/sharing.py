"""Shares the time in which a process works among the requests that it has: at any moment each of n requests takes an
n-th. Time without a request is nobody's."""


class Sharing:
    """A request costs the same however many others there are: `each` is what one would have taken that was there all
    along, and a request takes what is added to it while it is there."""

    __slots__ = ("_at", "_count", "_each", "_owed")

    def __init__(self) -> None:
        self._at = 0.0
        self._count = 0
        self._each = 0.0
        self._owed: dict[str, float] = {}

    def enter(self, now: float) -> float:
        """Returns the mark to leave with."""
        if self._count:
            self._each += (now - self._at) / self._count
        self._at = now
        self._count += 1
        return self._each

    def leave(self, user: str, mark: float, now: float) -> None:
        self._each += (now - self._at) / self._count
        self._at = now
        self._count -= 1
        self._owed[user] = self._owed.get(user, 0.0) + self._each - mark

    def take(self) -> dict[str, float]:
        """The seconds of each user since the last call, as far as their requests have left."""
        owed, self._owed = self._owed, {}
        return owed
