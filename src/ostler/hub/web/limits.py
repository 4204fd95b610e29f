"""How often one may ask: a bucket for every token, and few failed logins from every address."""

from collections.abc import Callable
from typing import Annotated

import msgspec

REQUESTS_PER_S = 2000.0
BURST = 20_000.0
FAILED_LOGINS = 5
WINDOW_S = 60.0
MOST_KNOWN = 10_000
"""Addresses and tokens that are remembered: who fills this with others is forgotten with them."""


AtLeastOne = Annotated[float, msgspec.Meta(ge=1, le=1e9)]


class Limits(msgspec.Struct, frozen=True):
    """`[limits]` in ostler.toml."""

    requests_per_s: AtLeastOne = REQUESTS_PER_S
    """Of one token, on average."""
    burst: AtLeastOne = BURST
    """What one may ask at once after a time without any."""
    failed_logins: Annotated[int, msgspec.Meta(ge=1, le=10**6)] = FAILED_LOGINS
    """In a minute, from one address."""


class Buckets:
    """Each is full at first, and fills again as time goes by."""

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self._limits = limits
        self._now = now
        self._left: dict[str, tuple[float, float]] = {}
        """What is left for whom, and when that was so."""

    def take(self, who: str) -> float:
        """0: one more is fine. Otherwise it is in so many seconds."""
        limits, now = self._limits, self._now()
        left, at = self._left.get(who, (limits.burst, now))
        left = min(limits.burst, left + (now - at) * limits.requests_per_s)
        if left < 1:
            return (1 - left) / limits.requests_per_s
        if len(self._left) >= MOST_KNOWN and who not in self._left:
            self._left.clear()
        self._left[who] = (left - 1, now)
        return 0.0


class FailedLogins:
    def __init__(self, most: int, now: Callable[[], float]) -> None:
        self._most = most
        self._now = now
        self._failed: dict[str, list[float]] = {}

    def must_wait(self, address: str) -> float:
        """0: it may try. Otherwise, after so many seconds."""
        recent = [at for at in self._failed.get(address, []) if at > self._now() - WINDOW_S]
        return recent[-self._most] + WINDOW_S - self._now() if len(recent) >= self._most else 0.0

    def failed(self, address: str) -> None:
        if len(self._failed) >= MOST_KNOWN and address not in self._failed:
            self._failed.clear()
        self._failed[address] = [*self._failed.get(address, [])[-self._most :], self._now()]
