"""Placing: while something waits that some worker could take, give the first in order the best of those workers."""

from collections import Counter

from ostler.core.attempts import ACCEPT_WITHIN_S, assignment, begin
from ostler.core.bound import rebind, unbind
from ostler.core.dependencies import resolve
from ostler.core.effects import AssignTask, Effect, HintSnapshot, SayNoWork
from ostler.core.fleet import Fleet, Job, Worker
from ostler.core.index import bits
from ostler.core.match import never_fits
from ostler.core.preempt import make_room
from ostler.core.room import pick_devices
from ostler.core.score import Score, score
from ostler.core.timers import ACCEPTANCE
from ostler.domain.resources import Grant, Request

PLACEMENTS_PER_PASS = 1000
"""One pass must not keep the loop from hearing others; what is left over is placed in the next."""
STATES_EXAMINED = 64
"""Distinct worker states that are scored for one decision."""


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


def choose(fleet: Fleet, job: Job, among: int) -> tuple[Worker, Grant, Score]:
    """The best worker for one task of this job, among those that the index says may take it."""
    request, index = job.shape.request, fleet.index
    left = among
    if request.prefer:
        left = _most_preferred(fleet, request, left)
    if job.snapshot:
        left = _with_snapshot(fleet, job.snapshot, left) or left
    if not request.uses_gpu:
        left = left & index.without_gpu or left
    best: tuple[float, str] | None = None
    found: tuple[Worker, Grant, Score] | None = None
    examined = 0
    while left and examined < STATES_EXAMINED:
        state = index.state_of(index.worker_at(left.bit_length() - 1))
        alike = left & state.workers
        left ^= alike
        examined += 1
        name = next(name for name in state.ids if alike & index.bit_of(name))
        worker = fleet.workers[name]
        grant = pick_devices(request, worker.room)
        assert grant is not None
        result = score(request, worker, grant)
        if best is None or (result.total, name) < best:
            best, found = (result.total, name), (worker, grant, result)
    assert found is not None
    return found


def _with_snapshot(fleet: Fleet, snapshot: str, among: int) -> int:
    """Those of the workers where the job's files are already."""
    found = 0
    for number in bits(among):
        if snapshot in fleet.workers[fleet.index.worker_at(number)].capabilities.snapshots:
            found |= 1 << number
    return found


def _most_preferred(fleet: Fleet, request: Request, among: int) -> int:
    """Those of the workers on which most of the preferred labels hold."""
    by_count: dict[int, int] = {}
    for number in bits(among):
        worker = fleet.workers[fleet.index.worker_at(number)]
        held = sum(constraint.holds(worker.offer.labels) for constraint in request.prefer)
        by_count[held] = by_count.get(held, 0) | 1 << number
    return by_count[max(by_count)]
