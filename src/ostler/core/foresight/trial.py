"""What would come of a change: tried with the real core, on a copy of everything, in one pass."""

from collections.abc import Callable, Sequence
from functools import partial

from ostler.core.attempts import forget_ended
from ostler.core.events import ClaimRequested, TimePassed
from ostler.core.fleet import Fleet, Job, Worker
from ostler.core.match import Reason, unmet, unmet_by_claim
from ostler.core.placing.place import settle, settled
from ostler.core.step import step
from ostler.core.workers import CLAIMS_WITHIN_S
from ostler.domain.resources import Request

Tried = Callable[[Callable[[], bool]], bool]
"""Does something to a copy of everything, and says what came of it."""
Make = Callable[[], Job | None]
"""A change, done to a copy; another job takes this one's place where it cannot be changed itself."""

MOST_PASSES = 20


class Trial:
    """Whether a job would start in the next pass, if something were changed first."""

    def __init__(self, fleet: Fleet, job: Job, now: float, tried: Tried) -> None:
        self._fleet, self._job, self._now, self._tried = fleet, job, now, tried

    def starts(self, make: Make) -> bool:
        return self._tried(lambda: self._starts(make))

    def _starts(self, make: Make) -> bool:
        job = make() or self._job
        before = _held(job)
        run_pass(self._fleet, self._now)
        return bool(_held(job) - before)

    def least(self, values: Sequence[int], make: Callable[[int], Job | None]) -> int | None:
        """The first of these, in order, that would do, where any later one would do too."""
        if self.starts(partial(make, values[0])):
            return values[0]
        if len(values) == 1 or not self.starts(partial(make, values[-1])):
            return None
        high, step_by = min(1, len(values) - 1), 2
        while high < len(values) - 1 and not self.starts(partial(make, values[high])):
            high, step_by = min(len(values) - 1, high + step_by), 2 * step_by
        low = max(0, high - step_by // 2)
        while high - low > 1:
            middle = (low + high) // 2
            if self.starts(partial(make, values[middle])):
                high = middle
            else:
                low = middle
        return values[high]


def _held(job: Job) -> set[str]:
    return {task.holder.id for task in (job.tasks or {}).values() if task.holder is not None}


def run_pass(fleet: Fleet, now: float) -> None:
    """What the loop does next, and the machines that claim with it."""
    step(fleet, TimePassed(), now)
    for _ in range(MOST_PASSES):
        settle(fleet, now)
        if settled(fleet):
            break
    for worker in list(fleet.workers.values()):
        if is_about_to_ask(worker, now) and fleet.index.claimable(worker) & fleet.queue.pending:
            asks = ClaimRequested(
                ref=0, worker_id=worker.id, capabilities=worker.capabilities, capability=worker.claims
            )
            step(fleet, asks, now)
    forget_ended(fleet)


def is_about_to_ask(worker: Worker, now: float) -> bool:
    """Of a machine that claims one task at a time."""
    return worker.only_claims and not worker.attempts and now - worker.last_contact < CLAIMS_WITHIN_S


def reasons_now(request: Request, worker: Worker, now: float) -> list[Reason]:
    """Why this worker would not have it in the next pass, or by its next question."""
    if not worker.only_claims:
        return unmet(request, worker, now)
    away = [] if is_about_to_ask(worker, now) else [Reason("claim", f"{worker.id} does not ask for work now")]
    return away + unmet_by_claim(request, worker, now)
