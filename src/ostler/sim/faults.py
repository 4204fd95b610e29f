"""Which faults a run draws from. Each seed takes its own subset, so that rare combinations are met."""

import random

import msgspec


class Faults(msgspec.Struct, kw_only=True):
    """Chances per message, except where a name says otherwise; times in seconds."""

    lose: float = 0.0
    duplicate: float = 0.0
    slow: float = 0.0
    slow_s: float = 0.0
    cut_every_s: float = 0.0
    """Mean time between cuts of one worker's link; 0: never."""
    cut_one_way: bool = False
    hub_crash_every_s: float = 0.0
    worker_crash_every_s: float = 0.0
    """The network side dies and comes back; its supervisor keeps the tasks."""
    machine_crash_every_s: float = 0.0
    """Everything on the machine dies with it."""


NONE = Faults()


def drawn(rng: random.Random) -> Faults:
    def maybe(value: float) -> float:
        return value if rng.random() < 0.5 else 0.0

    return Faults(
        lose=maybe(rng.choice((0.01, 0.1, 0.3))),
        duplicate=maybe(0.1),
        slow=maybe(0.05),
        slow_s=rng.choice((5.0, 45.0, 900.0)),
        cut_every_s=maybe(rng.choice((60.0, 600.0))),
        cut_one_way=rng.random() < 0.5,
        hub_crash_every_s=maybe(rng.choice((120.0, 900.0))),
        worker_crash_every_s=maybe(rng.choice((120.0, 900.0))),
        machine_crash_every_s=maybe(1800.0),
    )
