"""The gateway's models on the ledger: their processes are tasks like any other, whose room the gateway trades in.

A model never takes the room of a job. A job may have the room of an idle model, at the price that the gateway names:
the gateway is asked, lets its process end, and what that leaves is the job's.
"""

from collections.abc import Collection, Iterator
from typing import Final

from ostler.core import jobs, jobs_end
from ostler.core.effects import Answer, AskYield, Effect
from ostler.core.events import ModelLoad, ModelPriced
from ostler.core.fleet import Attempt, Fleet, Job, Worker
from ostler.core.holding import holding
from ostler.core.index import bits
from ostler.core.match import unmet_health, unmet_room, unmet_static
from ostler.core.queueing.bound import unbind
from ostler.core.room import Room, pick_devices
from ostler.domain.resources import Request

PRIORITY: Final = 1000
"""Of free room a model that somebody waits for has the first choice; it takes nobody's."""


def load(fleet: Fleet, event: ModelLoad, now: float) -> list[Effect]:
    """Queue the new process and end those that make room for it, which is then kept for it."""
    job = jobs.add(fleet, event.job, now)
    if event.load_s:
        fleet.load_s[job.id] = event.load_s
    jobs.let_wait(fleet, job, [], {}, now)
    effects: list[Effect] = [Answer(ref=event.ref, ids=[job.id])]
    for job_id in event.evict:
        victim = fleet.jobs.get(job_id)
        if victim is not None:
            promise(fleet, victim, job)
            effects += jobs_end.cancel_job(fleet, victim, f"evicted for {job.id}", now)
    return effects


def priced(fleet: Fleet, event: ModelPriced) -> list[Effect]:
    held = holder(fleet, event.job_id)
    if held is not None and held.price_s != event.price_s:
        counted = held.counted
        fleet.set_counted(held, False)
        held.price_s = event.price_s
        fleet.set_counted(held, counted)
        if event.price_s is None and held.heir is not None and held.phase != "stopping":
            _break_promise(fleet, held, held.heir)
    return []


def ask_yield(fleet: Fleet, held: Attempt, heir: Job) -> list[Effect]:
    """A job wants this room: the gateway decides when its process ends."""
    assert held.task is not None
    promise(fleet, held.task.job, heir)
    return [AskYield(held.task.job.id, heir.id)]


def promise(fleet: Fleet, victim: Job, heir: Job) -> None:
    """What the victim leaves is the heir's."""
    held = holder(fleet, victim.id)
    if held is not None:
        if held.heir is not None and held.heir is not heir:
            _break_promise(fleet, held, held.heir)
        held.heir = heir
        fleet.room_makers.setdefault(heir.id, set()).add(held.id)


def _break_promise(fleet: Fleet, held: Attempt, heir: Job) -> None:
    """It is wanted again: the job looks for other room."""
    held.heir = None
    makers = fleet.room_makers.get(heir.id, set())
    makers.discard(held.id)
    if not makers:
        fleet.room_makers.pop(heir.id, None)
        unbind(fleet, heir.id)  # what was kept beside it is of no use alone


def holder(fleet: Fleet, job_id: str) -> Attempt | None:
    job = fleet.jobs.get(job_id)
    task = (job.tasks or {}).get(0) if job is not None else None
    return task.holder if task is not None else None


def could_place(fleet: Fleet, request: Request, gone: Collection[str], coming: Collection[Request], now: float) -> bool:
    """Whether this could be placed if the processes of these jobs were gone, and those requests were placed first.

    Only workers where something would be otherwise are looked at; of all the others the index knows.
    """
    workers = {*_holding(fleet, gone), *_held_for_less_urgent(fleet)}
    rooms = {
        name: _room_without(fleet.workers[name], gone)
        for name in sorted(workers)
        if not unmet_health(fleet.workers[name], now)
    }
    return all(_place(fleet, one, rooms) for one in (*coming, request))


def _holding(fleet: Fleet, jobs: Collection[str]) -> Iterator[str]:
    """The workers where these have room."""
    for job_id in jobs:
        job = fleet.jobs.get(job_id)
        for task in (job.tasks or {}).values() if job is not None else ():
            if task.holder is not None:
                yield task.holder.worker_id


def _held_for_less_urgent(fleet: Fleet) -> Iterator[str]:
    """The workers that are held for a job, which a model passes."""
    return (name for name, hold in fleet.holds.on.items() if hold.priority < PRIORITY)


def in_the_way(fleet: Fleet, request: Request, gone: Collection[str], now: float) -> list[str]:
    """The jobs each of which would leave enough for this, with these gone; where no single one would, all that hold
    room. None at all: it has room, or would not have any on an empty fleet."""
    if could_place(fleet, request, gone, (), now):
        return []
    holding_room = {
        held.task.job.id
        for worker in fleet.workers.values()
        for held in worker.attempts.values()
        if held.task is not None and held.task.job.id not in gone
    }
    if not could_place(fleet, request, {*gone, *holding_room}, (), now):
        return []
    enough = [job_id for job_id in holding_room if could_place(fleet, request, {*gone, job_id}, (), now)]
    return sorted(enough or holding_room)


def _room_without(worker: Worker, gone: Collection[str]) -> Room:
    room = Room(worker.offer)
    for held in worker.attempts.values():
        if held.task is None or held.task.job.id not in gone:
            room.take(held.held)
    return room


def _place(fleet: Fleet, request: Request, rooms: dict[str, Room]) -> bool:
    """In one of these rooms, or on a worker as it is, which is then one of them."""
    for worker_id, room in rooms.items():
        if _fits(request, fleet.workers[worker_id], room):
            _take(request, room)
            return True
    able = fleet.index.workers_of(fleet.index.shape(request, fleet.workers.values()))
    for number in bits(able):
        worker = fleet.workers[fleet.index.worker_at(number)]
        if worker.id not in rooms:
            rooms[worker.id] = _room_without(worker, ())
            _take(request, rooms[worker.id])
            return True
    return False


def _fits(request: Request, worker: Worker, room: Room) -> bool:
    slots = worker.slots.total(request.pool) - room.placed[request.pool] if worker.slots is not None else 0
    return slots > 0 and not unmet_static(request, worker.id, worker.offer) and not unmet_room(request, worker.id, room)


def _take(request: Request, room: Room) -> None:
    grant = pick_devices(request, room)
    assert grant is not None
    room.take(holding(request, grant))
