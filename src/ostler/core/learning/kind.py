"""What is known of one kind of jobs."""

import msgspec

from ostler.core.learning.curve import Curve
from ostler.core.learning.digest import Digest

HIGH_PART = 0.95
MARGIN = 1.1
STEP_MIB = 256
"""What is asked for where the job leaves it to what its kind has taken."""


class Kind(msgspec.Struct, omit_defaults=True):
    """What is known of one kind; of one user's jobs and of all, only their run times."""

    run_s: Digest = msgspec.field(default_factory=Digest)
    """Of runs that succeeded; `cut` are those that were ended for other reasons than their own."""
    failed_s: Digest = msgspec.field(default_factory=Digest)
    of_limit: Digest = msgspec.field(default_factory=Digest)
    """The same as part of the run-time limit, where the user gave one."""
    memory_mib: Digest = msgspec.field(default_factory=Digest)
    vram_mib: Digest = msgspec.field(default_factory=Digest)
    vram_had_mib: int = 0
    """The most that a run had and succeeded with; a margin above what it took need not be more."""
    vram_lacked_mib: int = 0
    """The most that a run had and died of."""
    memory_had_mib: int = 0
    runs: int = 0
    turn: int = 0
    """When it was used last, counted in runs of all kinds."""

    def curve(self) -> Curve | None:
        """Of the run time. What failed would have taken longer; but a kind that has only ever failed takes as long as
        that took."""
        failed, cut = self.failed_s.weights(), self.run_s.weights(cut=True)
        if not self.run_s.seen:
            return Curve.of(failed, cut) if failed else None
        for bucket, weight in failed.items():
            cut[bucket] = cut.get(bucket, 0.0) + weight
        return Curve.of(self.run_s.weights(), cut)

    def needs_vram_mib(self) -> int:
        """What a run of this kind should have, by what others took; 0: nothing is known."""
        return _needed(self.vram_mib, self.vram_had_mib if self.vram_had_mib > self.vram_lacked_mib else 0)

    def needs_memory_mib(self) -> int:
        return _needed(self.memory_mib, self.memory_had_mib)

    def limit_curve(self) -> Curve | None:
        return Curve.of(self.of_limit.weights(), self.of_limit.weights(cut=True)) if self.of_limit.seen else None


def _needed(taken: Digest, had_mib: int) -> int:
    """In steps, so that a need does not change with every run."""
    high = taken.high(HIGH_PART)
    steps = -(-int(high * MARGIN) // STEP_MIB) * STEP_MIB
    return min(steps, had_mib) if had_mib else steps
