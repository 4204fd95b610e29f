"""How likely an amount is exceeded, by what was seen of it."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Final

from ostler.core.learning.counting import SMALLEST, STEP

_REACH = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Where the curve is looked at beyond what was seen, in multiples of its width there."""
_FIRST_WIDTH: Final = 1.4
"""As much as a first run leaves open: half of the next lie between half of it and its double."""


def survival(seen: Mapping[int, float], cut: Mapping[int, float]) -> tuple[list[float], list[float]]:
    """The part of the runs above each of some amounts (their logarithms), by Kaplan and Meier: what was cut counts for
    as long as it was there."""
    at_risk, above = sum(seen.values(), 0.0) + sum(cut.values(), 0.0), 1.0
    edges: list[float] = []
    left: list[float] = []
    for bucket in sorted({*seen, *cut}):
        ended = seen.get(bucket, 0.0)
        if ended:
            if not edges or edges[-1] < bucket * STEP:
                edges.append(bucket * STEP)
                left.append(above)
            above *= max(0.0, 1.0 - ended / at_risk) if at_risk > ended else 0.0
            edges.append((bucket + 1) * STEP)
            left.append(above)
        at_risk -= ended + cut.get(bucket, 0.0)
    if edges and (last := (max({*seen, *cut}) + 1) * STEP) > edges[-1]:
        edges.append(last)  # as far as anybody looked, no more of them have ended
        left.append(above)
    return edges, left


class Curve:
    """How likely an amount is exceeded. Of n runs seen, the next lies above them all as often as in any gap between
    two: so few runs give a wide band. And what goes on far beyond everything seen does so for about as long again."""

    __slots__ = ("_above", "_log")

    def __init__(self, log: list[float], above: list[float]) -> None:
        self._log = log
        self._above = above

    @classmethod
    def of(cls, seen: Mapping[int, float], cut: Mapping[int, float]) -> "Curve":
        """Of at least one run that was seen whole."""
        edges, left = survival(seen, cut)
        runs = max(1.0, sum(seen.values(), 0.0))
        outside = 1.0 / (runs + 1.0)
        above = [outside + (1.0 - 2.0 * outside) * part for part in left]
        middle = Curve(edges, left)._log_where(0.5)
        away = sum((weight * abs((bucket + 0.5) * STEP - middle) for bucket, weight in seen.items()), 0.0)
        return cls._between(edges, above, (_FIRST_WIDTH + away) / (runs + 1.0) + left[-1])

    @classmethod
    def guess(cls, middle: float, width: float) -> "Curve":
        """Nothing but an idea of it: half of the runs take longer than the middle."""
        return cls._between([math.log(middle)], [0.5], width)

    @classmethod
    def _between(cls, edges: list[float], above: list[float], width: float) -> "Curve":
        """The curve with what may lie beyond its two ends: so wide, the less likely the further out."""
        fading = [math.exp(-reach) for reach in _REACH]
        before = [edges[0] - width * reach for reach in reversed(_REACH)]
        after = [edges[-1] + width * reach for reach in _REACH]
        first = [1.0 - (1.0 - above[0]) * part for part in reversed(fading)]
        first[0] = 1.0
        return cls([*before, *edges, *after], [*first, *above, *(above[-1] * part for part in fading)])

    def above(self, amount: float) -> float:
        """The part of the runs that exceed it."""
        return self._at(math.log(max(amount, SMALLEST)))

    def quantile(self, part: float, beyond: float = 0.0) -> float:
        """What this part of the runs do not exceed, of those that exceed `beyond`."""
        start = self._at(math.log(beyond)) if beyond > SMALLEST else 1.0
        return max(beyond, math.exp(self._log_where(start * (1.0 - part))))

    def _at(self, log: float) -> float:
        if log <= self._log[0]:
            return 1.0
        if log >= self._log[-1]:
            return self._above[-1] * math.exp(self._log[-1] - log)
        right = bisect_right(self._log, log)
        low, high = self._log[right - 1], self._log[right]
        along = (log - low) / (high - low)
        return self._above[right - 1] + along * (self._above[right] - self._above[right - 1])

    def _log_where(self, above: float) -> float:
        """The least amount that no larger part exceeds."""
        if above >= 1.0:
            return self._log[0]
        if above < self._above[-1]:
            return self._log[-1] + math.log(self._above[-1] / max(above, 1e-300))
        right = bisect_left(self._above, -above, key=lambda one: -one)
        high, low = self._above[right - 1], self._above[right]
        along = (high - above) / (high - low)
        return self._log[right - 1] + along * (self._log[right] - self._log[right - 1])
