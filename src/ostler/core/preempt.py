"""Whom to displace: the cheapest set of lower-priority preemptible tasks and idle models on one worker that makes room
for a waiting job. Equal priority never preempts, a model displaces nobody, and nothing is displaced for a job that
already waits for room to be made."""

from collections.abc import Callable

from ostler.core import models, outcomes
from ostler.core.effects import Effect
from ostler.core.fleet import Attempt, Fleet, Job, Worker
from ostler.core.match import unmet_health, unmet_room, unmet_static
from ostler.core.room import Room
from ostler.core.usage import weight

HEADS_LOOKED_AT = 16
"""Waiting jobs for which room is sought in one pass."""


def make_room(fleet: Fleet, now: float) -> list[Effect]:
    if not fleet.preemptible:
        return []
    effects: list[Effect] = []
    for job in fleet.queue.heads(HEADS_LOOKED_AT):
        if job.is_gang or job.terms.model or job.id in fleet.room_makers or job.id in fleet.bound:
            continue
        if not fleet.within_quota(job.user, job.shape.bit):
            continue
        victims = cheapest_set(fleet, job, now)
        for victim in victims or ():
            if victim.task is not None and victim.is_current():
                is_model = victim.task.job.terms.model
                effects += (
                    models.ask_yield(fleet, victim, job)
                    if is_model
                    else outcomes.preempted(fleet, victim.task, job, now)
                )
    return effects


def cheapest_set(fleet: Fleet, job: Job, now: float) -> list[Attempt] | None:
    best: tuple[float, str] | None = None
    found: list[Attempt] | None = None
    for worker in fleet.workers.values():
        if unmet_health(worker, now) or unmet_static(job.shape.request, worker.id, worker.offer):
            continue
        victims = _victims_on(worker, job, now)
        if victims is not None:
            rank = (sum(cost(fleet, victim, now) for victim in victims), worker.id)
            if best is None or rank < best:
                best, found = rank, victims
    return found


def _victims_on(worker: Worker, job: Job, now: float) -> list[Attempt] | None:
    """The cheapest that suffice here: taken cheapest first, then those let go again that were not needed."""
    candidates = sorted((held for held in worker.attempts.values() if _may_yield(held, job)), key=_cost_here(now))
    chosen: list[Attempt] = []
    for candidate in candidates:
        if _suffices(worker, job, chosen):
            break
        chosen.append(candidate)
    if not chosen or not _suffices(worker, job, chosen):
        return None
    for spared in reversed(list(chosen)):
        fewer = [victim for victim in chosen if victim is not spared]
        if fewer and _suffices(worker, job, fewer):
            chosen = fewer
    return chosen


def _may_yield(held: Attempt, job: Job) -> bool:
    task = held.task
    if task is None or not held.is_current() or held.phase not in ("assigned", "running"):
        return False
    if task.job.terms.model:
        return held.price_s is not None and held.heir is None
    return task.job.terms.preemptible and task.job.terms.priority < job.terms.priority


def _suffices(worker: Worker, job: Job, victims: list[Attempt]) -> bool:
    room = Room(worker.offer)
    gone = {victim.id for victim in victims}
    for held in worker.attempts.values():
        if held.id not in gone:
            room.take(held.held)
    pool = job.shape.request.pool
    slots = worker.free_slots(pool) + sum(victim.held.pool == pool for victim in victims)
    return slots > 0 and not unmet_room(job.shape.request, worker.id, room)


def cost(fleet: Fleet, victim: Attempt, now: float) -> float:
    """GPU-seconds that are lost: of a gang's member, those of the whole gang."""
    assert victim.task is not None
    job = victim.task.job
    members = [task.holder for task in (job.tasks or {}).values()] if job.is_gang else [victim]
    return sum(_cost_here(now)(member) for member in members if member is not None)


def _cost_here(now: float) -> Callable[[Attempt], float]:
    def lost(victim: Attempt) -> float:
        ran = max(0.0, now - victim.started) if victim.started is not None else 0.0
        ran = ran if victim.price_s is None else victim.price_s
        return ran * weight(len(victim.held.grant.devices), victim.held.cores_milli)

    return lost
