"""What happens when time alone has passed. A timer is only a reminder: each checks that its cause still holds."""

from collections.abc import Callable

from ostler.core import attempts, explain, jobs, outcomes, workers
from ostler.core.bound import KEPT_FOR_S, unbind
from ostler.core.effects import CloseSession, Effect
from ostler.core.fleet import Fleet
from ostler.core.reports import STOPPED_BY_BUDGET
from ostler.core.timers import ACCEPTANCE, CONTACT, COOLDOWN, GRACE, RESTART, RUNTIME, SCHEDULING, UNBIND
from ostler.core.workers import SILENCE_S
from ostler.domain import states

UNSEEN_KEPT = 64
"""Assignments per worker that were given up unanswered and may still turn up there."""


def time_passed(fleet: Fleet, now: float) -> list[Effect]:
    effects: list[Effect] = []
    for kind, key in fleet.timers.due(now):
        effects += _WHEN_DUE[kind](fleet, key, now)
    return effects


def hub_was_away(fleet: Fleet, seconds: float) -> list[Effect]:
    """Nobody is to blame for a silence that was the hub's own."""
    for worker in fleet.workers.values():
        worker.last_contact += seconds
    return []


def _contact(fleet: Fleet, worker_id: str, now: float) -> list[Effect]:
    worker = fleet.workers.get(worker_id)
    if worker is None:
        return []
    worker.watched = False
    if not worker.connected:
        return []
    silent_at = worker.last_contact + SILENCE_S
    if silent_at > now:
        worker.watched = True
        fleet.timers.add(silent_at, CONTACT, worker_id)
        return []
    session = worker.session
    workers.go_offline(fleet, worker, f"nothing heard for {SILENCE_S:.0f} s", now)
    return [CloseSession(worker_id=worker_id, session=session, taken_over=False)]


def _acceptance(fleet: Fleet, attempt_id: str, now: float) -> list[Effect]:
    attempt = fleet.held.get(attempt_id)
    if attempt is None or attempt.accepted or not attempt.is_current() or attempt.task is None:
        return []
    worker = fleet.workers[attempt.worker_id]
    if not worker.connected:
        return []  # an orphan: its grace decides
    reason = f"{worker.id} did not accept it within {attempts.ACCEPT_WITHIN_S:.0f} s"
    attempt.task.attempt = ""
    if len(worker.unseen) >= UNSEEN_KEPT:
        del worker.unseen[next(iter(worker.unseen))]
    worker.unseen[attempt.id] = attempt.held
    attempts.release(fleet, attempt, "returned", reason, now)
    if worker.silent_about_at != now:  # many that it did not accept at once are one failure
        worker.silent_about_at = now
        attempts.blame(fleet, worker, now)
    return outcomes.again(fleet, attempt.task, reason, now)


def _grace(fleet: Fleet, attempt_id: str, now: float) -> list[Effect]:
    """Its worker has been silent for too long: the task is free to run elsewhere; the attempt may yet come back."""
    attempt = fleet.held.get(attempt_id)
    if attempt is None or attempt.task is None or attempt.phase == "lapsed":
        return []
    worker, task = fleet.workers[attempt.worker_id], attempt.task
    attempt.watched = False
    if worker.connected:
        return []
    over_at = worker.last_contact + task.job.terms.grace_s
    if over_at > now:
        attempt.watched = True
        fleet.timers.add(over_at, GRACE, attempt_id)
        return []
    current = attempt.is_current()
    attempts.spend_time(fleet, attempt, now)
    attempt.phase = "lapsed"
    fleet.set_counted(attempt, False)
    fleet.touch_attempt(attempt)
    if task.holder is not attempt:
        return []
    task.holder = None
    reason = f"{worker.id} did not come back within {task.job.terms.grace_s:.0f} s"
    if not current:
        if task.state == states.PENDING:
            fleet.enqueue(task)
        elif task.state in states.TERMINAL:
            fleet.leave(task.job)
        return []
    if attempt.stop_reason:
        return outcomes.stopped(fleet, task, f"{attempt.stop_reason}; {reason}", now)
    if attempt.accepted:
        return outcomes.lost(fleet, task, reason, now)
    return outcomes.again(fleet, task, reason, now)


def _runtime(fleet: Fleet, attempt_id: str, now: float) -> list[Effect]:
    attempt = fleet.held.get(attempt_id)
    if attempt is None or not attempt.is_current() or attempt.started is None or attempt.task is None:
        return []
    over_at = attempt.started + attempts.remaining_s(attempt.task)
    if over_at > now:
        fleet.timers.add(min(over_at, now + attempts.LOOK_AGAIN_S), RUNTIME, attempt_id)
        return []
    return attempts.stop(fleet, attempt, STOPPED_BY_BUDGET)


def _scheduling(fleet: Fleet, job_id: str, now: float) -> list[Effect]:
    job = fleet.jobs.get(job_id)
    if job is None or not job.waiting or job.queued + job.terms.scheduling_timeout_s > now:
        return []
    jobs.expire_scheduling(fleet, job, explain.why_unschedulable(fleet, job, now), now)
    return []


def _cooldown(fleet: Fleet, worker_id: str, now: float) -> list[Effect]:
    worker = fleet.workers.get(worker_id)
    if worker is not None and worker.cooling and worker.cooling_until <= now:
        worker.cooling = False
        fleet.index.room_changed(worker)
        fleet.announce(now, "worker", worker.id, state="online", reason="cooled down")
    return []


def _restart(fleet: Fleet, task_id: str, now: float) -> list[Effect]:
    outcomes.rested(fleet, task_id)
    return []


def _unbind(fleet: Fleet, job_id: str, now: float) -> list[Effect]:
    """Kept for too long: others may have it."""
    kept = fleet.bound.get(job_id)
    if kept and all(attempt.assigned + KEPT_FOR_S <= now for attempt in kept):
        unbind(fleet, job_id)
    return []


_WHEN_DUE: dict[str, Callable[[Fleet, str, float], list[Effect]]] = {
    CONTACT: _contact,
    ACCEPTANCE: _acceptance,
    GRACE: _grace,
    RUNTIME: _runtime,
    SCHEDULING: _scheduling,
    COOLDOWN: _cooldown,
    RESTART: _restart,
    UNBIND: _unbind,
}
