"""What has been seen of one amount: a histogram on a logarithmic scale that forgets.

Robust: an outlier is one run, however far out it lies. Forgetting: a run weighs half as much after so many others. What
was cut short (cancelled, preempted, stopped by its limit) says only that it would have been more, and is counted so.
"""

import math

import msgspec

from ostler.core.learning.counting import STEP
from ostler.core.learning.curve import survival

Weights = dict[int, float]


class Digest(msgspec.Struct, omit_defaults=True):
    """Weights by bucket. Newer ones count in a larger unit, which is the same as older ones fading."""

    seen: Weights = {}
    cut: Weights = {}
    """Of those that would have been more."""
    unit: float = 1.0

    def weights(self, *, cut: bool = False) -> Weights:
        """In runs: the newest counts as one."""
        return {bucket: weight / self.unit for bucket, weight in (self.cut if cut else self.seen).items()}

    def runs(self) -> float:
        return sum(self.seen.values()) / self.unit

    def high(self, part: float) -> float:
        """What so large a part of the runs did not exceed, rounded up to its bucket's end; 0: nothing is known."""
        log, left = survival(self.weights(), self.weights(cut=True))
        for edge, above in zip(log, left, strict=True):
            if above <= 1.0 - part + 1e-9:
                return math.exp(edge)
        return math.exp((max({*self.seen, *self.cut}) + 1) * STEP) if self.seen else 0.0
