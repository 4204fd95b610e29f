"""Running ahead: a worker that takes it is sent the next short tasks before there is room for them, each bound to the
end of one that runs there. It begins them by itself, and nobody has to be asked in between.

What is sent is what that room would be given: the next of the same user, priority, tier and shape, as long as nobody
else waits for such room. As soon as somebody does, or a worker has nothing to do, those that have not begun are called
back, and nothing is spent by that.
"""

import math
from heapq import heapify, heapreplace
from itertools import islice
from typing import Final

from ostler.core import chain
from ostler.core.attempts import assignment, begin_ahead, call_back
from ostler.core.effects import Effect
from ostler.core.fleet import Attempt, Fleet, Job, Worker
from ostler.core.holding import NOTHING, Holding
from ostler.core.learning import estimates
from ostler.core.learning.kinds import FEW_RUNS
from ostler.core.queueing.queue import band_key
from ostler.core.timers import AHEAD

TOGETHER_S: Final = 0.5
"""What waits for one place takes no longer than this, by what its kind has taken."""
OVERDUE_S: Final = 2.0
"""Whoever was thought to be short and has run for this long keeps nobody waiting behind it."""
WORTH_CALLING_S: Final = 0.02
"""Whoever waits for less is there before it could be brought elsewhere."""
SENT_AT_ONCE: Final = 256
"""To one worker in one pass, of one size: it begins with these while the next are decided, and they are enough until
then."""
WORKERS_LOOKED_AT: Final = 64
"""Of those with tasks ahead, for one that has nothing to do."""


def look(fleet: Fleet, now: float) -> list[Effect]:
    """Of the workers on which something has changed: call back what others come before, send what may be sent."""
    if fleet.queue.joined:
        _notice_rivals(fleet)
    names, fleet.look_ahead, fleet.sends_on = list(fleet.look_ahead), {}, False
    if fleet.ahead_on:
        names += [name for name in fleet.holds.on if name in fleet.ahead_on]
    effects: list[Effect] = []
    for name in names:
        worker = fleet.workers[name]
        if worker.ahead or name in fleet.ahead_on:
            effects += _look_at(fleet, worker, now)
        if name in fleet.ahead_on:
            fleet.timers.add_once(now + OVERDUE_S, AHEAD, name)
        if fleet.ahead_on and fleet.index.fits_of(name) & ~fleet.queue.pending:
            effects += _give_way(fleet, worker)
    return effects


def _notice_rivals(fleet: Fleet) -> None:
    joined, fleet.queue.joined = fleet.queue.joined, {}
    if fleet.ahead_on:
        for shape in joined:
            fleet.look_ahead |= dict.fromkeys(name for name in fleet.ahead_on if fleet.index.could_run(name, shape))


def _look_at(fleet: Fleet, worker: Worker, now: float) -> list[Effect]:
    heads = [one for one in worker.attempts.values() if one.after is None and one.held is not NOTHING]
    takes_it = worker.ahead and worker.is_open and worker.id not in fleet.holds.on and not fleet.policy.head_blocks
    effects: list[Effect] = []
    for held in dict.fromkeys(head.held for head in heads if not head.held.grant.devices):
        there = [head for head in heads if head.held == held]
        shapes = fleet.index.would_fit(worker, held)
        for head in there:
            first = head.follower
            if first is not None and (not takes_it or _is_overdue(head, now) or _is_passed_over(fleet, shapes, first)):
                effects += call_back(fleet, first)
        if takes_it and fleet.queue.pending:
            effects += _fill(fleet, worker, there, held, shapes, now)
    return effects


def _is_passed_over(fleet: Fleet, shapes: int, attempt: Attempt) -> bool:
    assert attempt.task is not None
    job = attempt.task.job
    return fleet.queue.is_passed_over(shapes, band_key(job), job.user)


def _fill(fleet: Fleet, worker: Worker, there: list[Attempt], held: Holding, shapes: int, now: float) -> list[Effect]:
    """The next in order, behind those that are likely to end first."""
    left = min(SENT_AT_ONCE, worker.ahead - fleet.ahead_on.get(worker.id, 0))
    found = fleet.queue.alone(shapes) if left > 0 else None
    if found is None:
        return []
    job, until = found
    if job.shape.bare != held:
        return []
    depths: dict[int, int] = {}
    ends = [chain.end_of(head) for head in there if _is_like(head, job) and _ends_soon(fleet, head, depths, now)]
    places = [(length, number, last) for number, (length, last) in enumerate(ends) if _may_be_followed(last)]
    heapify(places)
    effects: list[Effect] = []
    while left > 0 and places and job.seq < until:
        length, number, last = places[0]
        if length >= _depth(fleet, job, depths) or not _may_go_ahead(job):
            break
        following = job.next
        attempt = begin_ahead(fleet, job, last, now)
        effects.append(assignment(fleet, attempt))
        heapreplace(places, (length + 1, number, attempt))
        left -= 1
        if job.lane is None:
            fleet.holds.release(job.id, fleet.index)
            if following is None:
                break
            job = following
    if len(effects) == SENT_AT_ONCE:
        fleet.look_ahead[worker.id] = None
        fleet.sends_on = True
    return effects


def _is_like(head: Attempt, job: Job) -> bool:
    """Whether the room of this one would be given to that job's tasks, as far as their users and shapes go."""
    if head.task is None or not head.is_current() or head.phase not in ("assigned", "running"):
        return False
    its = head.task.job
    same = its.shape is job.shape and its.user == job.user and band_key(its) == band_key(job)
    return same and head.heir is None and not head.stop_reason


def _ends_soon(fleet: Fleet, head: Attempt, depths: dict[int, int], now: float) -> bool:
    """It is of a kind that is known to be short, and has not shown otherwise."""
    return head.task is not None and _depth(fleet, head.task.job, depths) > 0 and not _is_overdue(head, now)


def _is_overdue(head: Attempt, now: float) -> bool:
    return head.started is not None and head.started + OVERDUE_S <= now


def _may_be_followed(last: Attempt) -> bool:
    """Not if its worker may have let it go already: whoever came after it would wait for nobody."""
    return last.is_current() and not last.recalled


def _may_go_ahead(job: Job) -> bool:
    """Nothing but a slot, cores and memory, of one that is alone, gives way to nobody, and begins from nothing."""
    terms = job.terms
    if terms.service or terms.model or terms.preemptible or terms.stops_alone or job.is_gang or job.snapshot:
        return False
    task = (job.tasks or {}).get(job.waiting[0][0])
    return not job.shape.uses_gpu and (task is None or not task.checkpoint)


def _depth(fleet: Fleet, job: Job, depths: dict[int, int]) -> int:
    """How many of its kind may wait for one place; 0 of a kind that is not known to be short. Asked once for each."""
    found = depths.get(job.kind)
    if found is None:
        known = fleet.kinds.of(job.kind)
        is_known = known is not None and known.run_s.runs() >= FEW_RUNS
        high_s = estimates.run_s(fleet, job, estimates.HIGH) if is_known else math.inf
        found = depths[job.kind] = int(TOGETHER_S / max(0.001, high_s))
    return found


def _give_way(fleet: Fleet, worker: Worker) -> list[Effect]:
    """It has room that nobody waits for: of those ahead elsewhere, half of the longest line may come."""
    fits = fleet.index.fits_of(worker.id) & ~fleet.queue.pending
    busiest = max(islice(fleet.ahead_on, WORKERS_LOOKED_AT), key=lambda name: (fleet.ahead_on[name], name))
    effects: list[Effect] = []
    for head in fleet.workers[busiest].attempts.values():
        line = [one for one in chain.behind(head) if not one.recalled and one.is_current()]
        if head.after is None and line and _is_worth_calling(fleet, line, fits):
            effects += call_back(fleet, line[len(line) // 2])
    return effects


def _is_worth_calling(fleet: Fleet, line: list[Attempt], fits: int) -> bool:
    task = line[-1].task
    if task is None or not task.job.shape.bit & fits:
        return False
    return len(line) * estimates.run_s(fleet, task.job, estimates.LIKELY) >= WORTH_CALLING_S
