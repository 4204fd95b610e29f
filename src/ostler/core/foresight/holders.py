"""Who holds what a job waits for, and until when: on the workers where it could start earliest."""

import math
from collections.abc import Iterator

import msgspec

from ostler.core.fleet import Attempt, Fleet, Job, Worker
from ostler.core.foresight.outlook import Span, foreseen
from ostler.core.learning import estimates
from ostler.core.match import never_fits, unmet_health, unmet_room, unmet_static
from ostler.core.room import Room
from ostler.domain.quantities import show_cores, show_mib
from ostler.domain.resources import Request

MOST_TOLD = 10
SOON_S = 10.0
"""What has been told to end."""


class Holder(msgspec.Struct, kw_only=True, omit_defaults=True):
    worker: str
    job: str
    task: str = ""
    user: str = ""
    what: str = ""
    """What it has of that worker."""
    kind: str = "job"
    """job, model (a process of the gateway's), kept (room cleared for that job), held (others may pass only in time)"""
    until: Span | None = None
    """Seconds from now; None: nobody knows."""


def holders(fleet: Fleet, job: Job, now: float) -> list[Holder]:
    """Where it could start earliest, those that have to end first, the next to end first."""
    request = job.shape.request
    found = sorted(_openings(fleet, job, request, now), key=lambda one: (one[0], len(one[2]), one[1].id))
    chosen = found[: request.nodes]
    told = [_held_by(fleet, one[1], job, now) for one in chosen]
    told += [_told(fleet, one[1], held, now) for one in chosen for held in one[2]]
    return [holder for holder in told if holder is not None][:MOST_TOLD]


def _openings(fleet: Fleet, job: Job, request: Request, now: float) -> Iterator[tuple[float, Worker, list[Attempt]]]:
    """When each worker could take it, as far as that is known, and what must end for it."""
    for worker in fleet.workers.values():
        if unmet_health(worker, now) or unmet_static(request, worker.id, worker.offer) or never_fits(request, worker):
            continue
        hold = fleet.holds.on.get(worker.id)
        held_until = hold.shadow - now if hold is not None and hold.job is not job else 0.0
        room, left = Room(worker.offer), []
        for held in worker.attempts.values():
            room.take(held.held)
            left.append((_ends_in(fleet, held, now), held))
        slots, at, gone = worker.slots_left(request.pool), held_until, []
        for ends_in, held in sorted(left, key=lambda one: (one[0], one[1].id)):
            if slots > 0 and not unmet_room(request, worker.id, room):
                break
            room.give(held.held)
            slots += held.held.pool == request.pool
            at = max(at, ends_in)
            gone.append(held)
        if slots > 0 and not unmet_room(request, worker.id, room):
            yield at, worker, _needed(request, worker, gone)


def _needed(request: Request, worker: Worker, gone: list[Attempt]) -> list[Attempt]:
    """Those of them without whose end there would be no room, the last to end kept first."""
    for spared in list(gone):
        rest = [held for held in gone if held is not spared]
        if rest and _room_without(request, worker, rest):
            gone = rest
    return gone


def _room_without(request: Request, worker: Worker, gone: list[Attempt]) -> bool:
    room, slots = Room(worker.offer), worker.slots_left(request.pool)
    for held in worker.attempts.values():
        if held in gone:
            slots += held.held.pool == request.pool
        else:
            room.take(held.held)
    return slots > 0 and not unmet_room(request, worker.id, room)


def _ends_in(fleet: Fleet, held: Attempt, now: float) -> float:
    if held.phase == "stopping":
        return SOON_S
    if held.task is None or held.price_s is not None:
        return 0.0
    if held.task.job.terms.service or held.task.job.terms.model or held.phase == "lapsed":
        return math.inf
    return estimates.left(fleet, held, now).likely_s


def _told(fleet: Fleet, worker: Worker, held: Attempt, now: float) -> Holder:
    kept = held.phase == "bound" and held.heir is not None
    owner = held.heir if kept else held.task.job if held.task is not None else None
    is_model = owner is not None and owner.terms.model and not kept
    return Holder(
        worker=worker.id,
        job=owner.id if owner is not None else "",
        task=held.task_id,
        user=owner.user if owner is not None else "",
        what=_what(held),
        kind="kept" if kept else "model" if is_model else "job",
        until=_until(fleet, held, now),
    )


def _until(fleet: Fleet, held: Attempt, now: float) -> Span | None:
    """When it is expected to leave its room; None where that is unknown."""
    at = _ends_in(fleet, held, now)
    if held.task is None or not math.isfinite(at):
        return None
    if held.phase == "stopping" or held.price_s is not None:
        return Span(at, at, at)
    return foreseen(*estimates.left(fleet, held, now))


def _held_by(fleet: Fleet, worker: Worker, job: Job, now: float) -> Holder | None:
    hold = fleet.holds.on.get(worker.id)
    if hold is None or hold.job is job:
        return None
    shadow = hold.shadow - now
    until = Span(max(0.0, shadow), max(0.0, shadow), None) if math.isfinite(shadow) else None
    return Holder(
        worker=worker.id, job=hold.job.id, user=hold.job.user, what="the next place", kind="held", until=until
    )


def _what(held: Attempt) -> str:
    holding, parts = held.held, []
    if holding.grant.share_mib:
        parts.append(f"{show_mib(holding.grant.share_mib)} of GPU {holding.grant.devices[0]}")
    elif holding.grant.devices:
        devices = ", ".join(map(str, holding.grant.devices))
        parts.append(f"GPU{'s' if len(holding.grant.devices) > 1 else ''} {devices}")
    if holding.cores_milli:
        parts.append(f"{show_cores(holding.cores_milli)} core{'' if holding.cores_milli == 1000 else 's'}")
    if holding.memory_mib:
        parts.append(f"{show_mib(holding.memory_mib)} of memory")
    return ", ".join(parts) or f"a {holding.pool} slot"
