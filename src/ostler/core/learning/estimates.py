"""How long a job runs, and how long what runs still has: from what its kind has taken, else from what jobs have."""

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from ostler.core.attempts import remaining_s
from ostler.core.fleet import Attempt, Fleet, Job
from ostler.core.learning.curve import Curve
from ostler.core.learning.kinds import FEW_RUNS

LOW, LIKELY, HIGH = 0.1, 0.5, 0.9
GUESS_S, GUESS_WIDTH = 300.0, 2.0
"""Of a job of which nothing is known: between seconds and hours."""
GUESS_OF_LIMIT: Final = 0.3
"""Of one of which only its limit is known."""


class Estimate(NamedTuple):
    """In four of five cases the truth lies between low and high."""

    low_s: float
    likely_s: float
    high_s: float


def run_time(fleet: Fleet, job: Job) -> Estimate:
    """Of a whole run."""
    return _band(fleet, job, 0.0, job.terms.max_runtime_s or math.inf)


def left(fleet: Fleet, attempt: Attempt, now: float) -> Estimate:
    """What a running attempt still has before it, given that it has not ended yet; never above its budget's rest."""
    task = attempt.task
    if task is None:
        return Estimate(0.0, 0.0, 0.0)
    ran_s = max(0.0, now - attempt.started) if attempt.started is not None else 0.0
    budget_s = remaining_s(task) or math.inf
    end = _band(fleet, task.job, ran_s, budget_s)
    return Estimate(end.low_s - ran_s, end.likely_s - ran_s, end.high_s - ran_s)


def run_s(fleet: Fleet, job: Job, part: float, ran_s: float = 0.0) -> float:
    """What this part of the runs do not exceed, of those that have gone on for so long already; never above the
    budget, and infinite where nothing ends it."""
    return _run_s(fleet, job, part, ran_s, job.terms.max_runtime_s or math.inf)


def surely_ends(fleet: Fleet, job: Job) -> float:
    """The run seconds within which it ends, for whoever lets it pass: the limit that the user gave, else what its kind
    has taken, else its budget; infinite where nothing ends it."""
    budget_s = job.terms.max_runtime_s or math.inf
    known = fleet.kinds.of(job.kind)
    if job.terms.limited or known is None or known.run_s.runs() < FEW_RUNS:
        return budget_s
    return run_s(fleet, job, HIGH)


def inside(truths: Iterable[tuple[Estimate, float]]) -> float:
    """How often the truth fell into the band, of one."""
    hits = [band.low_s <= truth <= band.high_s for band, truth in truths]
    return sum(hits) / len(hits) if hits else 0.0


def _curve(fleet: Fleet, job: Job) -> tuple[Curve, float]:
    """And the number of seconds that its unit stands for."""
    known = fleet.kinds.curve(job.kind)
    if known is not None:
        return known, 1.0
    limited = job.terms.limited
    scale = job.terms.max_runtime_s if limited else 1.0
    return fleet.kinds.usual_curve(job.user, limited=limited) or (_PART if limited else _ANY), scale


def _band(fleet: Fleet, job: Job, ran_s: float, most_s: float) -> Estimate:
    low, likely, high = (_run_s(fleet, job, part, ran_s, most_s) for part in (LOW, LIKELY, HIGH))
    return Estimate(low, likely, high)


def _run_s(fleet: Fleet, job: Job, part: float, ran_s: float, most_s: float) -> float:
    most_s = max(ran_s, most_s)
    if job.terms.service or job.terms.model:  # it should not end
        return most_s
    curve, scale = _curve(fleet, job)
    return min(scale * curve.quantile(part, ran_s / scale), most_s)


_ANY: Final = Curve.guess(GUESS_S, GUESS_WIDTH)
_PART: Final = Curve.guess(GUESS_OF_LIMIT, 1.0)
