"""What workers say about tasks: accepted, ended. The fence is here: the attempt that speaks must be the one that
holds."""

from typing import Final

import msgspec

from ostler.core import attempts, checkpoints, outcomes
from ostler.core.effects import Acknowledge, CancelTask, Effect, KeepArtifact
from ostler.core.events import ServiceReported, TaskAccepted, TaskEnded
from ostler.core.fleet import Attempt, Fleet, Task, Worker
from ostler.core.learning import lessons
from ostler.core.queueing.usage import START_QUANTUM_S
from ostler.domain import states

SUCCESS: Final = lessons.SUCCESS
RAN: Final = (*SUCCESS, "failed")
STOPPED_BY_BUDGET: Final = lessons.STOPPED_BY_BUDGET


def accepted(fleet: Fleet, worker: Worker, event: TaskAccepted, now: float) -> list[Effect]:
    attempt = worker.find(event.task_id, event.attempt)
    if attempt is None or not attempt.is_current():
        if attempt is not None:
            attempts.has_begun(fleet, attempt, now)
            attempts.seen(fleet, attempt)
            return attempts.cancel_message(fleet, attempt)
        return [not_authorised(worker, event.task_id, event.attempt)]
    attempts.accept(fleet, attempt, now)
    return attempts.cancel_message(fleet, attempt) if attempt.phase == "stopping" else []


def not_authorised(worker: Worker, task_id: str, attempt: str) -> CancelTask:
    reason = "this attempt is not authorised any more"
    return CancelTask(worker_id=worker.id, session=worker.session, task_id=task_id, attempt=attempt, reason=reason)


def ended(fleet: Fleet, worker: Worker, event: TaskEnded, now: float) -> list[Effect]:
    """One outcome is recorded, by the attempt that holds the fence; every report is acknowledged, or it would
    come for ever."""
    ack = Acknowledge(
        worker_id=worker.id, session=worker.session, of="job_result", task_id=event.task_id, attempt=event.attempt
    )
    attempt = worker.find(event.task_id, event.attempt)
    if attempt is None:
        return [ack, *_late(fleet, worker, event, now)]
    task = attempt.task
    if event.state in RAN:
        _did_run(fleet, attempt, event, now)
    if task is not None and can_come_back(attempt, task):
        take_back(fleet, attempt, task, now)
    counts = attempt.is_current()
    if attempt.recalled and event.state == "cancelled" and not attempt.stop_reason:
        event = msgspec.structs.replace(event, state="returned", fault="drain", error=attempts.CALLED_BACK)
    end(fleet, attempt, event, event.state, now)
    if not counts:
        return [ack]
    assert task is not None
    return [ack, *apply(fleet, worker, task, attempt.stop_reason, event, now, lessons.vram_of(attempt, worker))]


def _did_run(fleet: Fleet, attempt: Attempt, event: TaskEnded, now: float) -> None:
    """The end of a short one may be all that is heard of it. Of one that failed without having run, those before it may
    still be there."""
    if event.state in SUCCESS or event.run_s:
        attempts.has_begun(fleet, attempt, now)
    if not attempt.accepted and event.run_s and attempt.task is not None and attempt.phase == "assigned":
        attempts.start_clock(fleet, attempt, attempt.task, now - event.run_s, watched=False)


def end(fleet: Fleet, attempt: Attempt, event: TaskEnded, outcome: str, now: float) -> None:
    """Its room is free, and what it took is known."""
    lessons.measured(attempt, event)
    attempts.release(fleet, attempt, outcome, event.error, now)
    lessons.learn(fleet, attempt, event.lacked, now)


def _late(fleet: Fleet, worker: Worker, event: TaskEnded, now: float) -> list[Effect]:
    """A result of the last attempt, whose room was given up for lost: it counts while nobody else was placed for the
    task. That it was stopped does not: the hub may have told it to, as one that nobody authorised any more."""
    task = fleet.find_task(event.task_id)
    if event.state not in RAN or task is None:
        return []
    named = event.attempt or (task.attempt if worker.is_plain else "")  # a plain worker names the task alone
    if not named or (task.attempt, task.worker) != (named, worker.id):
        return []
    if task.state != states.PENDING or task.holder is not None or task.job.is_gang or task.job.terms.service:
        return []
    task.losses = max(0, task.losses - 1) if task.started_at is not None else task.losses
    return apply(fleet, worker, task, "", event, now)


def can_come_back(attempt: Attempt, task: Task) -> bool:
    """Its grace ran out, but nobody else was placed for the task since."""
    return (
        attempt.phase == "lapsed"
        and not attempt.stop_reason
        and task.state == states.PENDING
        and task.attempt == attempt.id
        and task.holder is None
        and not task.job.is_gang
    )


def take_back(fleet: Fleet, attempt: Attempt, task: Task, now: float) -> None:
    """The last attempt is alive after all: the loss is struck out."""
    fleet.take_waiting(task.job, task.index)
    fleet.set_counted(attempt, True)
    task.resting = False
    task.holder = attempt
    task.losses = max(0, task.losses - 1) if attempt.accepted else task.losses
    attempt.phase = "running"
    if attempt.accepted:
        attempt.started, attempt.charged_s = now, START_QUANTUM_S
        attempts.watch_budget(fleet, attempt, now)
    attempts.accept(fleet, attempt, now)


def apply(
    fleet: Fleet, worker: Worker, task: Task, stop_reason: str, event: TaskEnded, now: float, had_mib: int = 0
) -> list[Effect]:
    """The one outcome of an attempt that held the fence; `had_mib` is the VRAM that it had."""
    kept = checkpoints.brought(fleet, task, event.checkpoint_id, worker, now)
    if event.state == "returned":
        return [*kept, *_returned(fleet, worker, task, event, now)]
    return [*kept, *_outcome(fleet, worker, task, stop_reason, event, now, had_mib)]


def _outcome(
    fleet: Fleet, worker: Worker, task: Task, stop_reason: str, event: TaskEnded, now: float, had_mib: int
) -> list[Effect]:
    worker.faults = 0
    task.exit_code = event.exit_code
    task.metrics = event.metrics
    task.result, task.result_id = event.result, event.result_id
    if task.started_at is None:
        task.started_at = fleet.wall(now)
    if event.state in SUCCESS:
        return [*_keep_outputs(fleet, worker, task, event, now), *outcomes.succeeded(fleet, task, now)]
    task.artifact_id = ""
    if STOPPED_BY_BUDGET in (stop_reason, event.error):
        return outcomes.stopped_by_budget(fleet, task, now)
    if event.state == "cancelled":
        return outcomes.cancelled(fleet, task, event.error or stop_reason or "stopped on its worker", now)
    what = event.error or (f"exit code {event.exit_code}" if event.exit_code is not None else "failed")
    if event.lacked == "vram":
        return outcomes.out_of_vram(fleet, task, what, had_mib, now)
    return outcomes.failed(fleet, task, what, now)


def _keep_outputs(fleet: Fleet, worker: Worker, task: Task, event: TaskEnded, now: float) -> list[Effect]:
    """Its packed outputs are its artifact; what it left on the way there is of no more use."""
    task.artifact_id = event.artifact_id
    effects = checkpoints.dropped(fleet, task)
    if event.artifact is None:
        return effects
    record = msgspec.structs.replace(
        event.artifact,
        attempt=event.attempt or task.attempt,
        worker=worker.id,
        metrics=event.metrics,
        created_at=fleet.wall(now),
    )
    fleet.touched.artifacts.append(record)
    return [*effects, KeepArtifact(record)]


def _returned(fleet: Fleet, worker: Worker, task: Task, event: TaskEnded, now: float) -> list[Effect]:
    """Handed back without an outcome: by a drain it costs nothing, by the worker's fault an attempt."""
    task.attempt = ""
    if event.fault == "worker":
        attempts.blame(fleet, worker, now)
        return outcomes.lost(fleet, task, f"{worker.id} handed it back: {event.error or 'a fault of its own'}", now)
    return outcomes.again(fleet, task, f"{worker.id} handed it back: {event.error or 'it is draining'}", now)


def service_reported(fleet: Fleet, worker: Worker, event: ServiceReported, now: float) -> list[Effect]:
    attempt = worker.find(event.task_id, "")
    if attempt is None or attempt.task is None or not attempt.is_current():
        return []
    health = "healthy" if event.healthy else event.message or "unhealthy"
    task = attempt.task
    attempt.port = event.port
    if task.health != health:
        task.health = health
        fleet.touch_task(task)
        fleet.announce(now, "service", task.job.id, user=task.job.user, health=health)
    return []
