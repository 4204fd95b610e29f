"""Placing: while something waits that some worker could take, give the first in order the best of those workers."""

from collections import Counter
from heapq import nsmallest
from itertools import islice
from typing import Final

from ostler.core.attempts import begin, watch_moved_up
from ostler.core.dependencies import resolve
from ostler.core.effects import AssignTask, Effect, HintSnapshot, SayNoWork
from ostler.core.fleet import Fleet, Job, Worker
from ostler.core.match import never_fits, unmet_health
from ostler.core.placing import ahead, pacing
from ostler.core.placing.choose import choose, only
from ostler.core.queueing import backfill
from ostler.core.queueing.bound import rebind, unbind
from ostler.core.queueing.preempt import make_room
from ostler.core.ranges import indices

PLACEMENTS_PER_PASS: Final = 1000
"""One pass must not keep the loop from hearing others; what is left over is placed in the next."""
HINTS_FOR_A_JOB: Final = 64
"""Machines that fetch the files of one array beforehand."""


def settle(fleet: Fleet, now: float) -> list[Effect]:
    """Let go what waited for jobs that have ended, place what can be placed, have room made for what is worth it, and
    tell those who asked and got nothing."""
    resolve(fleet, now)
    backfill.keep(fleet, now)
    effects = pacing.withdraw(fleet, now) if fleet.may_be_sent else []
    effects += _place_heirs(fleet, now)
    is_complete = False
    for _ in range(PLACEMENTS_PER_PASS):
        job = backfill.next_in_order(fleet, now)
        if job is None:
            backfill.pass_over(fleet)
            is_complete = True
            break
        effects += _place(fleet, job, 0, now)
    effects += make_room(fleet, now) + ahead.look(fleet, now) + _hints(fleet, now)
    if fleet.moved_up:
        watch_moved_up(fleet, now)
    if fleet.may_be_sent:
        effects += pacing.send_waiting(fleet, now)
    return effects + answers(fleet, effects, is_complete=is_complete)


def _place(fleet: Fleet, job: Job, kept_on: int, now: float) -> list[Effect]:
    """One task of the job, or a gang whole: on as many different workers as it needs, each the best of those left. What
    is held for another comes last."""
    ways = backfill.ways_past(fleet, job, now, kept_on) if fleet.holds.on else {}
    gained = fleet.index.gained_for(job.shape) if not ways and not kept_on else None
    if gained is not None and len(gained) == 1:
        worker, grant, result = only(fleet, job, gained[0])
        attempt = begin(fleet, job, worker, grant, f"{worker.id} scored best ({result.words()})", now)
        return pacing.send(fleet, attempt, now)
    among = fleet.index.workers_of(job.shape)
    behind = sum(fleet.index.bit_of(name) for name in ways)
    begun = []
    for _ in range(job.shape.nodes):
        worker, grant, result = choose(fleet, job, (among | behind) & kept_on or among or behind)
        bit, way = fleet.index.bit_of(worker.id), ways.get(worker.id)
        among, behind = among & ~bit, behind & ~bit
        attempt = begin(fleet, job, worker, way.grant if way else grant, "", now)
        attempt.why = f"{worker.id} scored best ({result.words()})"
        if way is not None:
            attempt.why += f"; {backfill.let_in(fleet, attempt, way)}"
        begun.append(attempt)
    return [effect for attempt in begun for effect in pacing.send(fleet, attempt, now)]


def _place_heirs(fleet: Fleet, now: float) -> list[Effect]:
    """Those for whom room was cleared come first, and on that room."""
    effects: list[Effect] = []
    for job_id in list(fleet.bound):
        job = fleet.jobs.get(job_id)
        if job is None or not job.waiting:
            unbind(fleet, job_id)
        elif job.may_be_placed():
            kept = [attempt for attempt in unbind(fleet, job_id) if fleet.workers[attempt.worker_id].is_open]
            if not fleet.within_quota(job.user, job.shape.bit):
                continue  # it may not have it now: others may
            kept_on = 0
            for attempt in kept:
                kept_on |= fleet.index.bit_of(attempt.worker_id)
            if backfill.gets_enough(fleet, job, now, kept_on):
                effects += _place(fleet, job, kept_on, now)
            else:
                rebind(fleet, job_id, kept)
    return effects


def _hints(fleet: Fleet, now: float) -> list[Effect]:
    """Waiting jobs with a snapshot are announced to the machines that are likely to run them. One job speaks for all
    with the same files and needs."""
    if not fleet.hints:
        return []
    hinted, fleet.hints = fleet.hints, []
    waiting = [job for job in hinted if job.waiting and not job.blocked_on]
    distinct = {(job.snapshot, job.shape.sid): job for job in reversed(waiting)}
    return [hint for job in distinct.values() for hint in _hints_for(fleet, job, now)]


def _hints_for(fleet: Fleet, job: Job, now: float) -> list[Effect]:
    """One for each member of a gang, or for each of the next tasks of an array: to the least busy of the machines that
    could run it, unless enough of these have the files already."""
    next_tasks = list(islice(indices(job.waiting), max(HINTS_FOR_A_JOB, job.shape.nodes)))
    able = [
        worker
        for worker in fleet.workers.values()
        if not unmet_health(worker, now) and not never_fits(job.shape.request, worker)
    ]
    missing = [worker for worker in able if not _brings(worker, job.snapshot)]
    wanted = next_tasks[: max(0, len(next_tasks) - (len(able) - len(missing)))]
    return [
        HintSnapshot(
            worker_id=worker.id,
            session=worker.session,
            job_id=job.id,
            task_id=job.task_id(index),
            snapshot=job.snapshot,
        )
        for index, worker in zip(wanted, nsmallest(len(wanted), missing, key=_busyness), strict=False)
    ]


def _brings(worker: Worker, snapshot: str) -> bool:
    """Whether the files are there, or on their way to a task that is."""
    if snapshot in worker.capabilities.snapshots:
        return True
    return any(one.task is not None and one.task.job.snapshot == snapshot for one in worker.attempts.values())


def _busyness(worker: Worker) -> tuple[int, str]:
    return len(worker.attempts), worker.id


def answers(fleet: Fleet, placed: list[Effect], *, is_complete: bool) -> list[Effect]:
    """Every question gets an answer: an assignment, or the word that there is nothing. A pass that was cut short does
    not know yet that there is nothing."""
    if not fleet.asking:
        return []
    fleet.served.update(effect.worker_id for effect in placed if isinstance(effect, AssignTask))
    if not is_complete:
        return []
    served, fleet.served = fleet.served, Counter()
    asking, fleet.asking = fleet.asking, {}
    effects: list[Effect] = []
    for worker in map(fleet.workers.__getitem__, asking):
        # Of a plain worker's questions, those that an assignment has answered are counted off already.
        unanswered = worker.questions if worker.is_plain else worker.questions - served[worker.id]
        effects += [SayNoWork(worker_id=worker.id, session=worker.session)] * unanswered
        worker.end_questions()
        fleet.index.room_changed(worker)
    return effects


def settled(fleet: Fleet) -> bool:
    """Nothing waits that could be placed now, or sent ahead."""
    return not fleet.sends_on and backfill.next_in_order(fleet, fleet.holds.looked_at) is None
