"""Ending a job from outside: all of its tasks at once, those that wait and those that run."""

from ostler.core import attempts
from ostler.core.effects import Effect
from ostler.core.fleet import Fleet, Job
from ostler.core.ranges import RangeSet, split_ranges
from ostler.domain import states
from ostler.domain.records import Dropped


def cancel_job(fleet: Fleet, job: Job, reason: str, now: float) -> list[Effect]:
    """Shows at once; the processes follow, and their room with them. What has ended stays as it is."""
    effects: list[Effect] = []
    job.cancelled = True
    for task in list((job.tasks or {}).values()):
        effects += cancel_task(fleet, job, task.index, reason, now)
    if job.size:
        drop_waiting(fleet, job, states.CANCELLED, reason, now)
    elif job.waiting:
        effects += cancel_task(fleet, job, 0, reason, now)
    return effects


def cancel_task(fleet: Fleet, job: Job, index: int, reason: str, now: float) -> list[Effect]:
    waits = index in RangeSet(job.waiting)
    known = (job.tasks or {}).get(index)
    if known is None and not waits:
        return []
    task = known or fleet.task(job, index)
    if task.state in states.TERMINAL:
        return []
    holder = task.holder
    attempts.end_task(fleet, task, states.CANCELLED, reason, now)
    return attempts.stop(fleet, holder, reason) if holder is not None else []


def drop_waiting(fleet: Fleet, job: Job, state: str, reason: str, now: float) -> None:
    """End what waits of an array and was never placed, as ranges: a million tasks to which nothing happened get no
    rows."""
    touched = {task.index for task in (job.tasks or {}).values()}
    dropped, kept = split_ranges(job.waiting, touched)
    if not dropped:
        return
    count = sum(high - low for low, high in dropped)
    job.ended = job.ended or {}
    job.ended[state] = job.ended.get(state, 0) + count
    job.dropped += tuple(Dropped(low, high, state, reason) for low, high in dropped)
    job.waiting = kept
    if not kept:
        fleet.queue.remove(job)
    attempts.derive_array(fleet, job, now, reason)
