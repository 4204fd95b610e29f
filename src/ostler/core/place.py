"""Placing: while something waits that some worker could take, give the first in order the best of those workers."""

from collections import Counter

from ostler.core.attempts import ACCEPT_WITHIN_S, assignment, begin
from ostler.core.bound import rebind, unbind
from ostler.core.choose import choose
from ostler.core.dependencies import resolve
from ostler.core.effects import AssignTask, Effect, HintSnapshot, SayNoWork
from ostler.core.fleet import Fleet, Job
from ostler.core.match import never_fits
from ostler.core.preempt import make_room
from ostler.core.timers import ACCEPTANCE

PLACEMENTS_PER_PASS = 1000
"""One pass must not keep the loop from hearing others; what is left over is placed in the next."""


def settle(fleet: Fleet, now: float) -> list[Effect]:
    """Let go what waited for jobs that have ended, place what can be placed, have room made for what is worth it, and
    tell those who asked and got nothing."""
    resolve(fleet, now)
    effects = _place_heirs(fleet, now)
    for _ in range(PLACEMENTS_PER_PASS):
        job = fleet.queue.pick(fleet.queue.pending & fleet.index.placeable)
        if job is None:
            break
        effects += _place(fleet, job, 0, now)
    effects += make_room(fleet, now) + _hints(fleet)
    return effects + answers(fleet, effects)


def _place(fleet: Fleet, job: Job, kept_on: int, now: float) -> list[Effect]:
    """One task of the job, or a gang whole: on as many different workers as it needs, each the best of those left."""
    among = job.shape.workers
    begun = []
    for _ in range(job.shape.request.nodes):
        worker, grant, result = choose(fleet, job, among & kept_on or among)
        among &= ~fleet.index.bit_of(worker.id)
        begun.append(begin(fleet, job, worker, grant, f"{worker.id} scored best ({result.words()})", now))
    for attempt in begun:
        fleet.timers.add(now + ACCEPT_WITHIN_S, ACCEPTANCE, attempt.id)
    return [assignment(fleet, attempt) for attempt in begun]


def _place_heirs(fleet: Fleet, now: float) -> list[Effect]:
    """Those for whom room was cleared come first, and on that room."""
    effects: list[Effect] = []
    for job_id in list(fleet.bound):
        job = fleet.jobs.get(job_id)
        if job is None or not job.waiting:
            unbind(fleet, job_id)
        elif job.may_be_placed() and fleet.within_quota(job.user, job.shape.bit):
            kept = unbind(fleet, job_id)
            if job.shape.bit & fleet.index.placeable:
                kept_on = 0
                for attempt in kept:
                    kept_on |= fleet.index.bit_of(attempt.worker_id)
                effects += _place(fleet, job, kept_on, now)
            else:
                rebind(fleet, job_id, kept)
    return effects


def _hints(fleet: Fleet) -> list[Effect]:
    """A job that waits and brings a snapshot is likely to come to the least busy of the workers that could run it."""
    effects: list[Effect] = []
    hinted, fleet.hints = fleet.hints, []
    for job in hinted:
        if not job.waiting or job.blocked_on:
            continue
        able = [
            worker
            for worker in fleet.workers.values()
            if worker.connected and not never_fits(job.shape.request, worker)
        ]
        if able and not any(job.snapshot in worker.capabilities.snapshots for worker in able):
            likely = min(able, key=lambda worker: (len(worker.attempts), worker.id))
            effects.append(
                HintSnapshot(worker_id=likely.id, session=likely.session, task_id=job.task_id(0), snapshot=job.snapshot)
            )
    return effects


def answers(fleet: Fleet, placed: list[Effect]) -> list[Effect]:
    """Every question gets an answer: an assignment, or the word that there is nothing."""
    served = Counter(effect.worker_id for effect in placed if isinstance(effect, AssignTask))
    asking, fleet.asking = fleet.asking, {}
    return [
        SayNoWork(worker_id=worker_id, session=fleet.workers[worker_id].session)
        for worker_id, questions in asking.items()
        for _ in range(questions - served[worker_id])
    ]


def settled(fleet: Fleet) -> bool:
    """Nothing waits that could be placed now."""
    return fleet.queue.pick(fleet.queue.pending & fleet.index.placeable) is None
