"""One event, one step: the fleet changes and the effects are returned. No I/O, no clock, no randomness of its own."""

from ostler.core import claims, deadlines, jobs, manifest, models, pruning, reports, workers
from ostler.core.effects import CloseSession, Effect
from ostler.core.events import (
    CancelRequested,
    ClaimBeat,
    ClaimEnded,
    ClaimRequested,
    DrainRequested,
    Event,
    HubWasAway,
    JobsSubmitted,
    Keep,
    ManifestApplied,
    ModelLoad,
    ModelPriced,
    ModelUsed,
    PriorityRequested,
    PruneRequested,
    RequeueRequested,
    ServiceReported,
    TaskAccepted,
    TaskEnded,
    TimePassed,
    WorkerAsked,
    WorkerBeat,
    WorkerLeft,
    WorkerRegistered,
)
from ostler.core.fleet import Fleet
from ostler.core.portions import AT_ONCE, Portions, whole


def large(fleet: Fleet, event: Event, now: float) -> Portions | None:
    """The step of an event that brings thousands of jobs, for whoever has something else to do meanwhile."""
    match event:
        case JobsSubmitted() if len(event.jobs) > AT_ONCE:
            return jobs.submit_many(fleet, event, now)
        case ManifestApplied():
            return manifest.follow(fleet, event, now)
        case _:
            return None


def step(fleet: Fleet, event: Event, now: float) -> list[Effect]:
    match event:
        case TaskEnded() | TaskAccepted() | WorkerBeat() | WorkerAsked() | ServiceReported():
            return _spoken(fleet, event, now)
        case JobsSubmitted():
            return jobs.submit(fleet, event, now)
        case CancelRequested():
            return jobs.cancel(fleet, event, now)
        case PriorityRequested():
            return jobs.prioritize(fleet, event, now)
        case RequeueRequested():
            return jobs.requeue(fleet, event, now)
        case DrainRequested():
            return workers.drain(fleet, event, now)
        case WorkerRegistered():
            return workers.registered(fleet, event, now)
        case WorkerLeft():
            return workers.left(fleet, event, now)
        case TimePassed():
            return deadlines.time_passed(fleet, now)
        case HubWasAway():
            return deadlines.hub_was_away(fleet, event.seconds)
        case ManifestApplied():
            return whole(manifest.follow(fleet, event, now))
        case PruneRequested():
            return pruning.prune(fleet, event)
        case Keep():
            fleet.keep(event.scope, event.key, event.value)
            return []
        case ModelLoad():
            return models.load(fleet, event, now)
        case ModelPriced():
            return models.priced(fleet, event)
        case ModelUsed():
            for user, gpu_seconds in event.gpu_seconds.items():
                fleet.charge(user, gpu_seconds, now)
            return []
        case ClaimRequested():
            return claims.claim(fleet, event, now)
        case ClaimBeat():
            return claims.beat(fleet, event, now)
        case ClaimEnded():
            return claims.ended(fleet, event, now)


Spoken = WorkerBeat | WorkerAsked | TaskAccepted | TaskEnded | ServiceReported


def _spoken(fleet: Fleet, event: Spoken, now: float) -> list[Effect]:
    """What a registered worker says on the socket that speaks for it; any other is closed and says nothing any more."""
    worker = fleet.workers.get(event.worker_id)
    if worker is None or worker.session != event.session:
        taken_over = worker is not None and worker.connected
        return [CloseSession(worker_id=event.worker_id, session=event.session, taken_over=taken_over)]
    workers.heard(fleet, worker, now)
    match event:
        case WorkerBeat():
            return workers.beat(fleet, worker, event, now)
        case WorkerAsked():
            return workers.asked(fleet, worker, event, now)
        case TaskAccepted():
            return reports.accepted(fleet, worker, event, now)
        case TaskEnded():
            return reports.ended(fleet, worker, event, now)
        case ServiceReported():
            return reports.service_reported(fleet, worker, event, now)
