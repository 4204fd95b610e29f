"""What happens when time alone has passed. A timer is only a reminder: each checks that its cause still holds."""

from collections.abc import Callable
from typing import Final

import msgspec

from ostler.core import attempts, chain, claims, jobs, outcomes, workers
from ostler.core.effects import CloseSession, Effect
from ostler.core.fleet import Attempt, Fleet, Worker
from ostler.core.foresight import explain
from ostler.core.queueing.bound import KEPT_FOR_S, unbind
from ostler.core.reports import STOPPED_BY_BUDGET
from ostler.core.timers import (
    ACCEPTANCE,
    AHEAD,
    CONTACT,
    COOLDOWN,
    GRACE,
    HOLDS,
    LEASE,
    PREFERENCE,
    RESTART,
    RUNTIME,
    SCHEDULING,
    UNBIND,
)
from ostler.core.workers import SILENCE_S
from ostler.domain import states

UNSEEN_KEPT: Final = 64
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
    for attempt in fleet.held.values():
        attempt.beaten += seconds
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
    if attempt is None or attempt.accepted or attempt.task is None or attempt.accept_by > now:
        return []
    worker, task = fleet.workers[attempt.worker_id], attempt.task
    if not worker.connected:
        return []  # an orphan: its grace decides
    reason = f"{worker.id} did not accept it within {attempts.ACCEPT_WITHIN_S:.0f} s"
    if not attempt.is_current():
        return _unanswered(fleet, worker, attempt, reason, now) if attempts.may_be_on_its_way(attempt) else []
    task.attempt = ""
    if worker.silent_about_at != now:  # many that it did not accept at once are one failure
        worker.silent_about_at = now
        attempts.blame(fleet, worker, now)
    if task.job.terms.stops_alone:
        stopped = attempts.stop(fleet, attempt, reason) + outcomes.again(fleet, task, reason, now)
        return stopped + _begin_anew(fleet, worker, reason, now)
    effects: list[Effect] = []
    for one in reversed([attempt, *chain.behind(attempt)]):
        if one is attempt or one.is_current():
            effects += _give_up(fleet, worker, one, reason, now)
    return effects


def _unanswered(fleet: Fleet, worker: Worker, attempt: Attempt, reason: str, now: float) -> list[Effect]:
    """It was told to end, and its worker has said neither that it has it nor that it has not."""
    assert attempt.task is not None
    if attempt.task.job.terms.stops_alone:
        return _begin_anew(fleet, worker, reason, now)
    _remember(worker, attempt)
    attempts.release(fleet, attempt, "gone", reason, now)
    return []


def _give_up(fleet: Fleet, worker: Worker, attempt: Attempt, reason: str, now: float) -> list[Effect]:
    assert attempt.task is not None
    _remember(worker, attempt)
    attempt.task.attempt = ""
    attempts.release(fleet, attempt, "returned", reason, now)
    return outcomes.again(fleet, attempt.task, reason, now)


def _remember(worker: Worker, attempt: Attempt) -> None:
    """For a while: its worker may have it all the same."""
    if len(worker.unseen) >= UNSEEN_KEPT:
        del worker.unseen[next(iter(worker.unseen))]
    worker.unseen[attempt.id] = attempt.held if attempt.will is None else attempt.will


def _begin_anew(fleet: Fleet, worker: Worker, reason: str, now: float) -> list[Effect]:
    """What it was given may have begun there all the same, or may yet, and must never run twice at once: only what the
    worker says on a new connection tells that it has not."""
    close = CloseSession(worker_id=worker.id, session=worker.session, taken_over=False)
    workers.go_offline(fleet, worker, reason, now)
    return [close]


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
    attempts.quota_eased(fleet)
    fleet.touch_attempt(attempt)
    if task.holder is not attempt:
        return []
    task.holder = None
    reason = f"{worker.id} did not come back within {task.job.terms.grace_s:.0f} s"
    if not current:
        if task.state == states.PENDING:
            fleet.enqueue(task)
        elif task.state in states.TERMINAL:
            fleet.leave(task.job, task)
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
    if not attempt.task.job.terms.max_runtime_s:
        return []
    over_at = attempt.started + attempts.remaining_s(attempt.task)
    if over_at > now:
        fleet.timers.add(min(over_at, now + attempts.LOOK_AGAIN_S), RUNTIME, attempt_id)
        return []
    return attempts.stop(fleet, attempt, STOPPED_BY_BUDGET)


def _scheduling(fleet: Fleet, job_id: str, now: float) -> list[Effect]:
    job = fleet.jobs.get(job_id)
    if job is None or not job.waiting or not job.terms.scheduling_timeout_s:
        return []
    if job.queued + job.terms.scheduling_timeout_s > now:
        return []
    jobs.expire_scheduling(fleet, job, explain.why_unschedulable(fleet, job, now), now)
    return []


def _preference(fleet: Fleet, job_id: str, now: float) -> list[Effect]:
    """It has waited long enough for what it prefers: whoever can may have it."""
    job = fleet.jobs.get(job_id)
    if job is not None and job.shape.request.cuda_first_s and job.queued + job.shape.request.cuda_first_s <= now:
        fleet.change_shape(job, msgspec.structs.replace(job.shape.request, cuda_first_s=0.0))
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
    """Kept for too long: others may have it, unless it has waited for long enough to have machines held for it."""
    kept = fleet.bound.get(job_id)
    if kept and all(attempt.assigned + KEPT_FOR_S <= now for attempt in kept):
        unbind(fleet, job_id)
        fleet.holds.look_at = now
    return []


def _holds(fleet: Fleet, _: str, now: float) -> list[Effect]:
    """The pass that follows looks who has waited for too long."""
    fleet.holds.watched = False
    return []


def _ahead(fleet: Fleet, worker_id: str, now: float) -> list[Effect]:
    """The pass that follows looks for those that keep others waiting for too long."""
    fleet.look_ahead[worker_id] = None
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
    LEASE: claims.lapse,
    PREFERENCE: _preference,
    HOLDS: _holds,
    AHEAD: _ahead,
}
