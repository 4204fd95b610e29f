"""One more run, counted into a digest."""

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ostler.core.learning.digest import Digest

PER_OCTAVE: Final = 8
STEP: Final = math.log(2.0) / PER_OCTAVE
"""From one bucket to the next."""
HALF_LIFE_RUNS: Final = 50
MAX_BUCKETS: Final = 64
SMALLEST: Final = 1e-3
"""Amounts below it are all alike."""
LARGEST: Final = 1e12
_GROWTH: Final = 2.0 ** (1 / HALF_LIFE_RUNS)
_LARGEST_UNIT: Final = 2.0**20
_FORGOTTEN: Final = 1e-3


def bucket_of(amount: float) -> int:
    return math.floor(math.log(min(max(amount, SMALLEST), LARGEST)) / STEP)


def add(digest: "Digest", amount: float, *, cut: bool = False) -> None:
    add_to(digest, bucket_of(amount), cut=cut)


def add_to(digest: "Digest", bucket: int, *, cut: bool = False) -> None:
    unit: float = digest.unit * _GROWTH
    digest.unit = unit
    into = digest.cut if cut else digest.seen
    into[bucket] = into.get(bucket, 0.0) + unit
    if len(into) > MAX_BUCKETS:
        del into[min(into, key=into.__getitem__)]
    if unit > _LARGEST_UNIT:
        count_anew(digest)


def count_anew(digest: "Digest") -> None:
    seen, cut = digest.weights(), digest.weights(cut=True)
    digest.seen = {bucket: weight for bucket, weight in seen.items() if weight > _FORGOTTEN}
    digest.cut = {bucket: weight for bucket, weight in cut.items() if weight > _FORGOTTEN}
    digest.unit = 1.0
