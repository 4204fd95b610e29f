"""Whom to displace: the cheapest set of lower-priority preemptible tasks and idle models that makes room for a waiting
job, on one worker or, for a gang, on as many as it needs. Equal priority never preempts, a model displaces nobody, and
nothing is displaced for a job that already waits for room to be made."""

from collections.abc import Iterator
from heapq import nsmallest
from typing import Final, NamedTuple

from ostler.core import models, outcomes
from ostler.core.effects import Effect
from ostler.core.fleet import Attempt, Fleet, Job, Worker
from ostler.core.holding import Grant, Holding, holding
from ostler.core.index import bits
from ostler.core.match import unmet_health, unmet_room, unmet_static
from ostler.core.queueing.backfill import ways_in
from ostler.core.queueing.bound import bind, rebind, unbind
from ostler.core.queueing.cheapest import EXACT_UP_TO, cheapest_set
from ostler.core.queueing.holds import keeps_out
from ostler.core.queueing.usage import weight
from ostler.core.room import Room, pick_devices
from ostler.domain.resources import Request

HEADS_LOOKED_AT: Final = 16
"""Waiting jobs for which room is sought in one pass."""


class Clearing(NamedTuple):
    """What it takes to have room on one worker."""

    cost: float
    worker_id: str
    victims: list[Attempt]


def make_room(fleet: Fleet, now: float) -> list[Effect]:
    if not fleet.yielding:
        return []
    _look_again(fleet)
    effects: list[Effect] = []
    uncleared = fleet.index.uncleared
    for job in fleet.queue.urgent(min(fleet.yielding), uncleared, HEADS_LOOKED_AT):
        if job.terms.model or job.id in fleet.room_makers or not _would_be_within_quota(fleet, job):
            continue
        kept = unbind(fleet, job.id)  # what it has already it need not clear
        free = _where_it_has_room(fleet, job, now)
        is_enough = len(free) >= job.shape.nodes  # then it is placed in the next pass
        victims = cheapest_victims(fleet, job, free, now) if not is_enough else []
        if victims:
            _keep_what_is_free(fleet, job, victims, free, now)
        else:
            rebind(fleet, job.id, kept)
        if not victims and not is_enough:
            uncleared[job.terms.priority] = uncleared.get(job.terms.priority, 0) | job.shape.bit
        for victim in victims:
            if victim.task is not None and victim.is_current():
                is_model = victim.task.job.terms.model
                effects += (
                    models.ask_yield(fleet, victim, job)
                    if is_model
                    else outcomes.preempted(fleet, victim.task, job, now)
                )
    return effects


def _would_be_within_quota(fleet: Fleet, job: Job) -> bool:
    """Also when those of its user have started for whom room is made or kept."""
    if not fleet.limits_what_runs:
        return True
    coming = [fleet.jobs.get(name) for name in fleet.room_makers.keys() | fleet.bound.keys() if name != job.id]
    own = [other.shape for other in coming if other is not None and other.user == job.user]
    return bool(fleet.within_quota(job.user, job.shape.bit, own))


def _look_again(fleet: Fleet) -> None:
    """Whom no end of others helped may be helped where something has changed since: only there is it looked at."""
    index = fleet.index
    changed, index.restless = index.restless, {}
    for priority, shapes in list(index.uncleared.items()) if changed else ():
        for name in changed:
            shapes ^= _could_be_cleared(fleet, fleet.workers[name], shapes, priority)
        index.uncleared[priority] = shapes
        if not shapes:
            del index.uncleared[priority]


def _could_be_cleared(fleet: Fleet, worker: Worker, shapes: int, priority: int) -> int:
    """Those of the shapes for which there would be room here if all ended that may be told to."""
    shapes &= fleet.index.could_run_there(worker.id) if worker.is_open else 0
    yielding = [held for held in worker.attempts.values() if _may_yield(held, priority)] if shapes else []
    if not yielding:
        shapes &= fleet.index.gangs  # they lack less where room has come, too
    found = 0
    for sid in bits(shapes):
        shape = fleet.index.shape_at(sid)
        found |= shape.bit if _suffices(worker, shape.request, yielding) else 0
    return found


def cheapest_victims(fleet: Fleet, job: Job, free: set[str], now: float) -> list[Attempt]:
    """On as many workers as the job needs beside those that have room for it; empty: there is no such set."""
    clearings = [
        found
        for worker in _where_some_may_yield(fleet, job, free)
        if not unmet_health(worker, now)
        and not unmet_static(job.shape.request, worker.id, worker.offer)
        and not keeps_out(fleet, job, worker.id)
        and (found := _clearing(fleet, worker, job, now)) is not None
    ]
    missing = job.shape.nodes - len(free)
    if missing > len(clearings):
        return []
    units = {_unit(victim): victim for clearing in clearings for victim in clearing.victims}
    if missing > 1 and len(units) <= EXACT_UP_TO:
        return _cheapest_together(fleet, clearings, units, missing, now)
    first = nsmallest(missing, clearings, key=lambda one: (one.cost, one.worker_id))
    return [victim for clearing in first for victim in clearing.victims]


def _cheapest_together(
    fleet: Fleet, clearings: list[Clearing], units: dict[str, Attempt], missing: int, now: float
) -> list[Attempt]:
    """A gang that yields one of its tasks yields them all, and may clear several of the workers at one cost."""

    def suffices(some: list[Attempt]) -> bool:
        gone = {_unit(victim) for victim in some}
        return sum(all(_unit(victim) in gone for victim in one.victims) for one in clearings) >= missing

    return cheapest_set(list(units.values()), lambda victim: cost(fleet, victim, now), suffices) or []


def _unit(victim: Attempt) -> str:
    """What yields whole."""
    assert victim.task is not None
    return victim.task.job.id if victim.task.job.is_gang else victim.task.id


def _where_it_has_room(fleet: Fleet, job: Job, now: float) -> set[str]:
    """The workers that need not be cleared, held for others or not."""
    free = {fleet.index.worker_at(number) for number in bits(fleet.index.workers_of(job.shape))}
    return free | ways_in(fleet, job, now).keys() if fleet.holds.on else free


def _where_some_may_yield(fleet: Fleet, job: Job, free: set[str]) -> list[Worker]:
    """The workers that hold something which could, less those where it has room already."""
    found = {name for priority, where in fleet.yielding.items() if priority < job.terms.priority for name in where}
    return [fleet.workers[name] for name in sorted(found - free)]


def _clearing(fleet: Fleet, worker: Worker, job: Job, now: float) -> Clearing | None:
    candidates = sorted(
        (held for held in worker.attempts.values() if _may_yield(held, job.terms.priority)), key=lambda held: held.id
    )
    victims = cheapest_set(
        candidates, lambda victim: cost(fleet, victim, now), lambda gone: _suffices(worker, job.shape.request, gone)
    )
    if not victims:
        return None
    return Clearing(sum(cost(fleet, victim, now) for victim in victims), worker.id, victims)


def _keep_what_is_free(fleet: Fleet, job: Job, victims: list[Attempt], free: set[str], now: float) -> None:
    """While room is made for it, others must not take what it has already: of a gang, on other machines too."""
    request = job.shape.request
    for name in sorted(free):
        worker = fleet.workers[name]
        grant = pick_devices(request, worker.room)
        if grant is not None:
            bind(fleet, f"{job.id}@{name}", worker, holding(request, grant), job, now)
    for name in sorted({victim.worker_id for victim in victims}):
        worker, leaving = fleet.workers[name], [victim for victim in victims if victim.worker_id == name]
        grant = pick_devices(request, _room_without(worker, leaving))
        if grant is not None:
            for number, rest in enumerate(_rest(worker, holding(request, grant), leaving)):
                bind(fleet, f"{job.id}@{name}.{number}", worker, rest, job, now)


def _rest(worker: Worker, needed: Holding, victims: list[Attempt]) -> Iterator[Holding]:
    """What it needs beyond what its victims leave, which is its own when they end."""
    cores = needed.cores_milli - sum(victim.held.cores_milli for victim in victims)
    memory = needed.memory_mib - sum(victim.held.memory_mib for victim in victims)
    if cores > 0 or memory > 0:
        yield Holding(max(0, cores), max(0, memory), needed.pool)
    room = worker.room
    for index in needed.grant.devices:
        place, grants = room.position[index], [victim.held.grant for victim in victims]
        on_it = [grant.share_mib for grant in grants if index in grant.devices]
        if not needed.grant.share_mib and not on_it:
            yield Holding(pool=needed.pool, grant=Grant((index,)))
        elif 0 not in on_it:
            wanted = needed.grant.share_mib - sum(on_it) if needed.grant.share_mib else room.vram_mib[place]
            if wanted > 0:
                yield Holding(pool=needed.pool, grant=Grant((index,), wanted))


def _may_yield(held: Attempt, priority: int) -> bool:
    """To one of this priority."""
    task = held.task
    if task is None or not held.is_current() or held.phase not in ("assigned", "running"):
        return False
    if task.job.terms.model:
        return held.price_s is not None and held.heir is None
    return task.job.terms.preemptible and task.job.terms.priority < priority


def _suffices(worker: Worker, request: Request, victims: list[Attempt]) -> bool:
    slots = worker.free_slots(request.pool) + sum(victim.held.pool == request.pool for victim in victims)
    return slots > 0 and not unmet_room(request, worker.id, _room_without(worker, victims))


def _room_without(worker: Worker, victims: list[Attempt]) -> Room:
    room = Room(worker.offer)
    gone = {victim.id for victim in victims}
    for held in worker.attempts.values():
        if held.id not in gone:
            room.take(held.held)
    return room


def cost(fleet: Fleet, victim: Attempt, now: float) -> float:
    """GPU-seconds that are lost, since the last checkpoint or the start; of a gang's member, those of the gang."""
    assert victim.task is not None
    job = victim.task.job
    members = [task.holder for task in (job.tasks or {}).values()] if job.is_gang else [victim]
    return sum(_lost(fleet, member, now) for member in members if member is not None)


def _lost(fleet: Fleet, victim: Attempt, now: float) -> float:
    since = max(victim.started, victim.saved) if victim.started is not None else now
    lost_s = max(0.0, now - since) if victim.price_s is None else victim.price_s
    return lost_s * weight(victim.held, fleet.workers[victim.worker_id].offer, fleet.policy)
