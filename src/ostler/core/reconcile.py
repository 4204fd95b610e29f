"""The comparison: what the hub believes a worker holds against what it says it holds. The difference is the message.

It runs when a worker registers and on every heartbeat that carries its account, so that no single frame needs to
arrive: a lost frame, a restart of either side and a cut are all the same case.
"""

from typing import Final

from ostler.core import attempts, checkpoints, outcomes
from ostler.core.effects import Effect
from ostler.core.fleet import Attempt, Fleet, Worker
from ostler.core.learning import lessons
from ostler.core.reports import can_come_back, not_authorised, take_back
from ostler.domain.worker import WAITING, ActiveTask

ENDED_STATES: Final = ("succeeded", "completed", "failed", "cancelled", "returned")


def reconcile(
    fleet: Fleet, worker: Worker, reported: list[ActiveTask], now: float, *, registering: bool
) -> list[Effect]:
    effects: list[Effect] = []
    seen: set[str] = set()
    for line in reported:
        attempt = worker.find(line.task_id, line.attempt)
        if attempt is None:
            if line.attempt in worker.attempts:
                continue  # another task's attempt: it says nothing about this one
            if line.state in ENDED_STATES:
                continue  # its result follows and will be acknowledged
            if line.state == WAITING or line.attempt in fleet.held:
                # Not begun, or another worker's: whoever names that has no part in it.
                effects.append(not_authorised(worker, line.task_id, line.attempt))
                continue
            attempt = attempts.hold_stray(fleet, worker, line.task_id, line.attempt, now)
        seen.add(attempt.id)
        if line.state == WAITING:
            effects += _still_waits(fleet, attempt, line.waits_for, now, registering)
        elif line.state not in ENDED_STATES:
            lessons.seen(fleet, attempt, line)
            attempts.charge_meanwhile(fleet, attempt, now)
            effects += _still_there(fleet, attempt, now)
            if attempt.task is not None and attempt.is_current():
                effects += checkpoints.brought(fleet, attempt.task, line.checkpoint, worker, now)
        elif attempt.phase == "lapsed" and attempt.task is not None and can_come_back(attempt, attempt.task):
            take_back(fleet, attempt, attempt.task, now)
    for attempt in [held for key, held in worker.attempts.items() if key not in seen and held.phase != "bound"]:
        effects += _not_there(fleet, worker, attempt, now, registering)
    if registering:
        worker.unseen.clear()  # what was on its way on another socket does not arrive any more
    return effects


def _still_waits(fleet: Fleet, attempt: Attempt, waits_for: str, now: float, registering: bool) -> list[Effect]:
    """It has not begun. What was sent ahead is handed back by whoever comes back: what it was to wait for may be over;
    what is in somebody else's queue keeps its place there."""
    is_in_line = bool(waits_for) and attempt.after is None
    if is_in_line:
        attempts.in_line(fleet, attempt, waits_for, now)
    if not attempt.is_current():
        return attempts.stop(fleet, attempt, "this attempt is not authorised any more")
    if attempt.recalled or attempt.phase == "stopping":
        return attempts.cancel_message(fleet, attempt)
    if is_in_line and attempt.phase == "assigned":
        return []
    return attempts.call_back(fleet, attempt) if registering else []


def _still_there(fleet: Fleet, attempt: Attempt, now: float) -> list[Effect]:
    task = attempt.task
    attempts.has_begun(fleet, attempt, now)
    if task is not None and can_come_back(attempt, task):
        take_back(fleet, attempt, task, now)
        return []
    if attempt.is_current() and attempt.phase != "stopping":
        attempts.accept(fleet, attempt, now)
        return []
    if attempt.is_current():
        attempts.accept(fleet, attempt, now)
    elif attempt.phase == "lapsed":
        # Placed elsewhere, ended or cancelled meanwhile: its room is taken again until it is gone.
        attempt.phase = "stopping"
        fleet.set_counted(attempt, True)
        attempt.started = None  # what it ran was counted when its grace ran out
        attempt.stop_reason = attempt.stop_reason or "this attempt is not authorised any more"
        fleet.touch_attempt(attempt)
    attempts.seen(fleet, attempt)
    return attempts.cancel_message(fleet, attempt)


def _not_there(fleet: Fleet, worker: Worker, attempt: Attempt, now: float, registering: bool) -> list[Effect]:
    task = attempt.task
    if attempts.may_be_on_its_way(attempt) and not registering:
        return attempts.cancel_message(fleet, attempt)
    if task is None or not attempt.is_current():
        attempts.release(fleet, attempt, attempt.outcome or "gone", "", now)
        return []
    if not attempt.accepted:
        if not registering:
            return [] if attempt.unsent else [attempts.assignment(fleet, attempt)]
        reason = f"{worker.id} came back without it; it had not been accepted"
        task.attempt = ""
        attempts.release(fleet, attempt, "returned", reason, now)
        return outcomes.again(fleet, task, reason, now)
    stopped = attempt.stop_reason
    reason = f"{worker.id} no longer has it"
    attempts.release(fleet, attempt, "lost", reason, now)
    if stopped:
        return outcomes.stopped(fleet, task, f"{stopped}: stopped", now)
    return outcomes.lost(fleet, task, reason, now)
