"""What an operator decides about the order of work: when a job that is passed over gets machines held for it, and what
an hour on a device counts."""

import math

import msgspec

from ostler.domain.errors import BadInput
from ostler.domain.quantities import parse_duration

HOLD_AFTER_S = 600.0
NEVER = "never"
CLAIM_LEASE_S = 600.0
LEAST_CLAIM_LEASE_S = 120.0
"""A machine that is cut off begins to stop its task 30 s before the lease ends. Until then it sends a heartbeat every
30 s, and one of them may be lost."""


class Scheduling(msgspec.Struct, frozen=True):
    hold_after_s: float = HOLD_AFTER_S
    """A job that has waited this long gets machines held for it; infinite: none ever does."""
    head_blocks: bool = False
    """Whoever is first in order and does not fit keeps all others waiting: for comparisons, not for a fleet."""
    weights: dict[str, float] = {}
    """What one device of a type counts, by the type in small letters."""
    claim_lease_s: float = 0.0
    """How long a claim lives without a heartbeat; 0: the usual time."""

    @property
    def holds(self) -> bool:
        return self.hold_after_s < math.inf


def parse_hold_after(given: str | int | float, where: str = "hold_after") -> float:
    """Seconds, or infinite where the word is never."""
    return math.inf if given == NEVER else parse_duration(given, where)


def parse_claim_lease(given: str | int | float, where: str) -> float:
    """Seconds, long enough for the heartbeats of a claim."""
    lease_s = parse_duration(given, where)
    if lease_s < LEAST_CLAIM_LEASE_S:
        what = f"must be at least {LEAST_CLAIM_LEASE_S:g} s: machines that claim send a heartbeat every 30 s"
        raise BadInput(f"{where}: {what}", [(where, what)])
    return lease_s
