"""Room that is kept for a job: what its victims, or its own lost round, have left. It is nobody else's."""

from typing import Final

from ostler.core.fleet import Attempt, Fleet, Job, Worker
from ostler.core.holding import Holding
from ostler.core.timers import UNBIND

KEPT_FOR_S: Final = 600.0


def bind(fleet: Fleet, key: str, worker: Worker, held: Holding, heir: Job, now: float) -> None:
    """This room, which is free, is the heir's."""
    kept = Attempt(
        id="=" + key,
        task_id=heir.id,
        task=None,
        worker_id=worker.id,
        held=held,
        phase="bound",
        heir=heir,
        accepted=True,
        assigned=now,
    )
    fleet.take(worker, kept)
    fleet.bound.setdefault(heir.id, []).append(kept)
    fleet.timers.add(now + KEPT_FOR_S, UNBIND, heir.id)


def unbind(fleet: Fleet, job_id: str) -> list[Attempt]:
    """Give up what is kept for a job; what it was is returned."""
    kept = fleet.bound.pop(job_id, [])
    for attempt in kept:
        fleet.give(fleet.workers[attempt.worker_id], attempt)
    return kept


def rebind(fleet: Fleet, job_id: str, kept: list[Attempt]) -> None:
    """Keep it again: it was not enough yet."""
    for attempt in kept:
        fleet.take(fleet.workers[attempt.worker_id], attempt)
    if kept:
        fleet.bound[job_id] = kept


def drop_worker(fleet: Fleet, worker_id: str) -> None:
    """A worker that has gone keeps nothing for anybody, and clears nothing for anybody."""
    for attempt in fleet.workers[worker_id].attempts.values():
        if attempt.heir is not None and attempt.phase != "bound":
            makers = fleet.room_makers.get(attempt.heir.id, set())
            makers.discard(attempt.id)
            if not makers:
                fleet.room_makers.pop(attempt.heir.id, None)
            attempt.heir = None
    for job_id, kept in list(fleet.bound.items()):
        here = [attempt for attempt in kept if attempt.worker_id == worker_id]
        for attempt in here:
            fleet.give(fleet.workers[worker_id], attempt)
            kept.remove(attempt)
        if not kept:
            del fleet.bound[job_id]
