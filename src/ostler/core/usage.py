"""Who has used how much lately: a decayed sum per user, in units that need no decay.

A charge made at time t counts 2^(t / half life) units, so that old charges fade against new ones by themselves and
the order of two users changes only when one of them is charged.
"""

HALF_LIFE_S = 6 * 3600.0
CPU_WEIGHT = 0.02
"""A core-second beside a GPU-second: small, never zero, or CPU users would never be told apart."""
START_QUANTUM_S = 60.0
"""Charged when a task starts, so that one pass over free room is shared out too; the rest follows at its end."""
_REBASE_AT = 500.0


class Usage:
    def __init__(self) -> None:
        self._units: dict[str, float] = {}
        self._base = 0.0

    def charge(self, user: str, gpu_seconds: float, now: float) -> None:
        halvings = now / HALF_LIFE_S - self._base
        if halvings > _REBASE_AT:
            self._units = {name: units * 2.0**-halvings for name, units in self._units.items()}
            self._base += halvings
            halvings = 0.0
        self._units[user] = self._units.get(user, 0.0) + gpu_seconds * 2.0**halvings

    def of(self, user: str) -> float:
        return self._units.get(user, 0.0)

    def gpu_seconds(self, user: str, now: float) -> float:
        """What a person reads: GPU-seconds as they weigh today."""
        faded: float = 2.0 ** -(now / HALF_LIFE_S - self._base)
        return self._units.get(user, 0.0) * faded


def weight(gpus: float, cores_milli: int) -> float:
    """GPU-seconds per second that a task which holds this much costs its user."""
    return gpus + CPU_WEIGHT * max(1.0, cores_milli / 1000)
