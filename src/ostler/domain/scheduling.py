"""What an operator decides about the order of work: when a job that is passed over gets machines held for it, and what
an hour on a device counts."""

import math

import msgspec

from ostler.domain.quantities import parse_duration

HOLD_AFTER_S = 600.0
NEVER = "never"


class Scheduling(msgspec.Struct, frozen=True):
    hold_after_s: float = HOLD_AFTER_S
    """A job that has waited this long gets machines held for it; infinite: none ever does."""
    head_blocks: bool = False
    """Whoever is first in order and does not fit keeps all others waiting: for comparisons, not for a fleet."""
    weights: dict[str, float] = {}
    """What one device of a type counts, by the type in small letters."""

    @property
    def holds(self) -> bool:
        return self.hold_after_s < math.inf


def parse_hold_after(given: str | int | float, where: str = "hold_after") -> float:
    """Seconds, or infinite where the word is never."""
    return math.inf if given == NEVER else parse_duration(given, where)
