"""What several runs ahead say together: when a job that waits begins and ends, and between which moments in four of
five cases."""

import math
from collections.abc import Sequence

import msgspec

RUNS = 9
"""Runs that are drawn: the next value lies between the least and the largest of nine in four of five cases."""
STUDENT = {2: 3.078, 3: 1.886, 4: 1.638, 5: 1.533, 6: 1.476, 7: 1.440, 8: 1.415}
"""Of Student's distribution, what nine tenths do not exceed: fewer runs give a wider band."""
FEW_RUNS = 2.5
"""With hardly a run to go by: the wait by so much shorter or longer."""
LATEST_S = 365 * 86_400.0


class Span(msgspec.Struct, frozen=True):
    """Seconds from now. None: later than can be foreseen."""

    low_s: float
    likely_s: float | None
    high_s: float | None


def foreseen(low_s: float, likely_s: float, high_s: float) -> Span | None:
    """The span of an estimate. None where even its low end is infinite: nothing is known to end it."""
    if not math.isfinite(low_s):
        return None
    return Span(low_s, *(end_s if math.isfinite(end_s) else None for end_s in (likely_s, high_s)))


class Expected(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Of one job that waits, or that runs."""

    start: Span | None = None
    end: Span | None = None
    later_than_s: float | None = None
    """It has not begun by then in any run, and no run has looked further yet."""
    never: bool = False
    """Nothing that is known of would begin it: neither an end of what runs, nor the passing of time."""
    runs: int = 0


class Run:
    """How far one run has come, and what it has seen."""

    __slots__ = ("ends", "now_s", "over", "starts")

    def __init__(self) -> None:
        self.starts: dict[str, float] = {}
        self.ends: dict[str, float] = {}
        self.now_s = 0.0
        self.over = False
        """Nothing more happens in it."""


class Outlook:
    """The runs of one forecast. The first is the likely one, the others are drawn."""

    def __init__(self) -> None:
        self.runs: dict[int, Run] = {}

    def heard(self, number: int, now_s: float, over: bool, starts: dict[str, float], ends: dict[str, float]) -> None:
        run = self.runs.setdefault(number, Run())
        run.now_s, run.over = max(run.now_s, now_s), run.over or over
        run.starts.update(starts)
        run.ends.update(ends)

    def knows(self, job_id: str) -> bool:
        """As much as it ever will."""
        runs = self.runs.values()
        return len(runs) > RUNS and all(run.over or job_id in run.starts for run in runs)

    def depth(self, job_id: str) -> tuple[int, float]:
        """How much it knows of this job: in how many runs it begins, and how far the others have looked."""
        begun = sum(job_id in run.starts for run in self.runs.values())
        return begun, min((run.now_s for run in self.runs.values() if job_id not in run.starts), default=0.0)

    def expected(self, job_id: str) -> Expected:
        begun = [run.starts[job_id] for run in self.runs.values() if job_id in run.starts]
        if not begun:
            reached = [run for run in self.runs.values() if not run.over]
            if not reached and self.runs:
                return Expected(never=True, runs=len(self.runs))
            return Expected(later_than_s=min((run.now_s for run in reached), default=0.0), runs=len(self.runs))
        never = sum(run.over and job_id not in run.starts for run in self.runs.values())
        ends = [run.ends.get(job_id, math.inf) for run in self.runs.values() if job_id in run.starts]
        start = span(begun + [math.inf] * never)
        return Expected(start=start, end=span(ends + [math.inf] * never), runs=len(begun) + never)


def span(seen: Sequence[float]) -> Span:
    """The first of the runs is the likely one: it counts for the middle, and the others for the band."""
    finite = sorted(value for value in seen if value < math.inf)
    if len(finite) < len(seen):
        middle = sorted(seen)[len(seen) // 2]
        return Span(finite[0] if finite else 0.0, middle if middle < math.inf else None, None)
    likely = _median(finite) if len(seen) > RUNS // 2 else seen[0]
    low, high = _band(list(seen[1:])) if len(seen) > 2 else (finite[0] / FEW_RUNS, finite[-1] * FEW_RUNS)
    return Span(max(0.0, min(low, likely)), likely, max(high, likely))


def _band(drawn: list[float]) -> tuple[float, float]:
    """Of a few, by their logarithms: what is foreseen is late by as many times as it is early."""
    if len(drawn) >= RUNS:
        return min(drawn), max(drawn)
    logs = [math.log1p(value) for value in drawn]
    mean = sum(logs) / len(logs)
    spread = math.sqrt(sum((value - mean) ** 2 for value in logs) / (len(logs) - 1))
    away = STUDENT[len(logs)] * spread * math.sqrt(1 + 1 / len(logs))
    return math.expm1(mean - away), min(LATEST_S, math.expm1(min(50.0, mean + away)))


def _median(ordered: list[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
