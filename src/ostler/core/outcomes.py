"""What becomes of a task when an attempt of it is over: it has succeeded, it failed, it was lost, it was handed back.

A gang's members share one fate: the first that does not succeed ends the attempt of all, and none has succeeded before
all have. A service should not end at all: it rests a little and starts again.
"""

from typing import Final

from ostler.core import attempts
from ostler.core.attempt import PREEMPTED_BY
from ostler.core.effects import Effect
from ostler.core.fleet import Fleet, Job, Task
from ostler.core.learning.lessons import grown, outgrown
from ostler.core.match import never_fits
from ostler.core.timers import RESTART
from ostler.domain import states
from ostler.domain.quantities import show_mib

RESTART_FIRST_S: Final = 1.0
RESTART_MOST_S: Final = 60.0
STEADY_S: Final = 600.0
"""A service that ran this long has recovered: its next failure counts as the first."""


def succeeded(fleet: Fleet, task: Task, now: float) -> list[Effect]:
    job = task.job
    if job.terms.service:
        return failed(fleet, task, "it ended by itself (exit code 0)", now)
    if not job.is_gang:
        attempts.end_task(fleet, task, states.SUCCEEDED, "", now)
        return []
    task.done = True
    attempts.set_state(fleet, task, states.RUNNING, "", now)
    members = _members(fleet, task)
    if all(member.done for member in members):
        for member in members:
            attempts.end_task(fleet, member, states.SUCCEEDED, "", now)
    return []


def failed(fleet: Fleet, task: Task, what: str, now: float) -> list[Effect]:
    """The job's own failure."""
    first = _first(fleet, task)
    first.failures += 1
    limit = task.job.terms.max_retries
    if task.job.terms.service and not (limit and first.failures > limit):
        _rest(fleet, task, what, now)
        return []
    if first.failures > limit:
        tries = f"; failed {first.failures} times, max_retries is {limit}" if limit else ""
        return _end(fleet, task, f"{what}{tries}", now)
    if attempts.over_budget(task):
        return _end(fleet, task, f"{what}; its run-time budget is spent", now)
    task.attempt = ""
    return again(fleet, task, f"{what}; retry {first.failures} of {limit}", now)


def out_of_vram(fleet: Fleet, task: Task, what: str, had_mib: int, now: float) -> list[Effect]:
    """By rule it runs again, once for each size, on larger devices; that is no retry of the ordinary kind."""
    job = task.job
    if not job.terms.grows:
        return failed(fleet, task, f"{what}; ask for more with min_vram_gb, or give on_oom = 'larger'", now)
    request = grown(job.shape.request, had_mib)
    if not had_mib or attempts.over_budget(task):
        return failed(fleet, task, what, now)
    if had_mib <= outgrown(fleet, job):  # it began before another task of its job had shown that this is too little
        task.attempt = ""
        return again(fleet, task, f"{what}; again with more than {show_mib(outgrown(fleet, job))} of VRAM", now)
    if all(never_fits(request, worker) for worker in fleet.workers.values()):
        return failed(fleet, task, f"{what}; no worker has more than the {show_mib(had_mib)} that it had", now)
    fleet.followers.outgrown_mib[job.id] = had_mib
    fleet.change_shape(job, request)
    fleet.touch_job(job)
    task.attempt = ""
    return again(fleet, task, f"{what}; again with more than {show_mib(had_mib)} of VRAM", now)


def lost(fleet: Fleet, task: Task, reason: str, now: float) -> list[Effect]:
    """The machine's fault: one attempt is spent, and the task runs again or fails."""
    first = _first(fleet, task)
    first.losses += 1
    if task.job.terms.service and task.used_s > STEADY_S:
        first.losses, task.used_s = 1, 0.0
    limit = task.job.terms.max_attempts
    if first.losses > limit:
        return _end(fleet, task, f"{reason}; lost {first.losses} times, max_attempts is {limit}", now)
    if attempts.over_budget(task):
        return _end(fleet, task, f"{reason}; its run-time budget is spent", now)
    return again(fleet, task, reason, now)


def again(fleet: Fleet, task: Task, reason: str, now: float) -> list[Effect]:
    """It goes back to the queue, at no cost; of a gang, all members do, and the machines they leave are kept for it.
    A model's job ends: each of its processes is a job of its own, and the gateway decides on the next one."""
    if task.job.terms.model:
        return _end(fleet, task, reason, now, states.CANCELLED)
    if not task.job.is_gang:
        attempts.back_to_pending(fleet, task, reason, now)
        return []
    effects: list[Effect] = []
    for member in _members(fleet, task):
        effects += _leave_round(fleet, member, f"rank {task.index}: {reason}", now)
    return effects


def _leave_round(fleet: Fleet, member: Task, reason: str, now: float) -> list[Effect]:
    effects: list[Effect] = []
    if member.holder is not None and member.state in states.PLACED:
        member.holder.heir = member.job
        effects = attempts.stop(fleet, member.holder, reason)
    member.attempt = ""  # fenced: nothing of this round counts any more
    member.done = False
    member.exit_code = None
    if member.state != states.PENDING:
        attempts.back_to_pending(fleet, member, reason, now)
    return effects


def preempted(fleet: Fleet, task: Task, heir: Job, now: float) -> list[Effect]:
    """Its room goes to a job of higher priority; it waits at the head of its class, and nothing is spent."""
    reason = PREEMPTED_BY + heir.id
    effects: list[Effect] = []
    for member in _members(fleet, task):
        if member.holder is not None and member.holder.is_current():
            member.holder.heir = heir
            fleet.room_makers.setdefault(heir.id, set()).add(member.holder.id)
            effects += attempts.stop(fleet, member.holder, reason)
        member.attempt = ""  # fenced: what it still says is about a process that was told to end
        member.done = False
        if member.state != states.PENDING:
            attempts.back_to_pending(fleet, member, reason, now)
    return effects


def stopped_by_budget(fleet: Fleet, task: Task, now: float) -> list[Effect]:
    hours = task.job.terms.max_runtime_s / 3600
    return _end(fleet, task, f"max_runtime: its budget of {hours:.4g} h is spent", now)


def stopped(fleet: Fleet, task: Task, reason: str, now: float) -> list[Effect]:
    """It was told to end, and nobody saw how."""
    return _end(fleet, task, reason, now)


def cancelled(fleet: Fleet, task: Task, reason: str, now: float) -> list[Effect]:
    """Stopped on its worker, without the hub having asked for it."""
    return _end(fleet, task, reason, now, states.CANCELLED)


def _end(fleet: Fleet, task: Task, reason: str, now: float, state: str = states.FAILED) -> list[Effect]:
    effects: list[Effect] = []
    for member in _members(fleet, task):
        told = reason if member is task else f"rank {task.index}: {reason}"
        if member is not task and member.holder is not None:
            effects += attempts.stop(fleet, member.holder, told)
        attempts.end_task(fleet, member, state, told, now)
    return effects


def _rest(fleet: Fleet, task: Task, reason: str, now: float) -> None:
    ran = task.used_s
    task.used_s = 0.0
    if ran > STEADY_S:
        task.failures = 1
    pause = min(RESTART_MOST_S, RESTART_FIRST_S * 2 ** min(task.failures - 1, 10))
    task.attempt = ""
    task.health = ""
    task.resting = True
    attempts.set_state(fleet, task, states.PENDING, f"{reason}; starts again in {pause:.0f} s", now)
    fleet.timers.add(now + pause, RESTART, task.id)


def rested(fleet: Fleet, task_id: str) -> None:
    task = fleet.find_task(task_id)
    if task is not None and task.resting:
        task.resting = False
        if task.state == states.PENDING and task.holder is None:
            fleet.enqueue(task)


def _members(fleet: Fleet, task: Task) -> list[Task]:
    """Those that share this task's fate, itself among them."""
    job = task.job
    return [fleet.task(job, rank) for rank in range(job.size)] if job.is_gang else [task]


def _first(fleet: Fleet, task: Task) -> Task:
    """Where a gang's rounds are counted."""
    return fleet.task(task.job, 0) if task.job.is_gang else task
