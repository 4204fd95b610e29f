"""How a service is, from what its polls have found. Pure."""

import msgspec

MISSES = 3
"""So many failures of its liveness in a row, and a service is stopped."""


class Pulse(msgspec.Struct):
    """What is known of one service. Nothing, until the first poll."""

    healthy: bool | None = None
    message: str = ""
    misses: int = 0

    def take(self, not_ready: str, not_alive: str) -> bool:
        """One poll's findings, "" where all is well; whether that is news."""
        before = self.healthy, self.message
        self.misses = self.misses + 1 if not_alive else 0
        self.message = not_alive or not_ready
        self.healthy = not self.message
        return before != (self.healthy, self.message)

    @property
    def is_dead(self) -> bool:
        return self.misses >= MISSES
