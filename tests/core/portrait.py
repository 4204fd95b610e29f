"""What a restart must keep of a fleet, in words that are the same on both sides of it."""

from typing import Any

import msgspec

from ostler.core.fleet import Attempt, Fleet, Job, Task, Worker
from ostler.core.queueing.queue import band_key
from ostler.core.ranges import Ranges, with_index
from ostler.domain import states
from ostler.domain.resources import Offer, Request

PLACED = (states.ASSIGNED, states.RUNNING)
ALMOST_S = 0.001
"""Wall-clock times are not exact to the last bit."""


def difference(memory: Any, ledger: Any) -> str:
    """What differs between two parts of a portrait, and nothing else."""
    if memory == ledger:
        return ""
    if not isinstance(memory, dict):
        return f"in memory {memory}, from the ledger {ledger}"
    keys = [key for key in {**memory, **ledger} if memory.get(key) != ledger.get(key)]
    return "\n".join(f"{key}: in memory {memory.get(key)}\n  from the ledger {ledger.get(key)}" for key in keys)


def portrait(fleet: Fleet, now: float) -> dict[str, Any]:
    live = [job for job in fleet.jobs.values() if job.state not in states.TERMINAL]
    tasks = [task for job in live for task in (job.tasks or {}).values() if task.state not in states.TERMINAL]
    queue: dict[Any, list[str]] = {}
    for job in fleet.queue.in_order():
        if not job.terms.service:
            queue.setdefault((band_key(job), job.user), []).append(job.id)
    return {
        "jobs": {job.id: _job(job, now) for job in live},
        "tasks": {task.id: _task(task) for task in tasks},
        "queue": queue,
        "held": {attempt.id: _held(attempt) for attempt in fleet.held.values() if attempt.task is not None},
        "workers": {
            worker.id: (_offer(worker), worker.draining, worker.only_claims) for worker in fleet.workers.values()
        },
        "hosts": fleet.hosts,
        "holdings": fleet.running_of,
        "numbers": fleet.job_seq,
    }


def _offer(worker: Worker) -> Offer:
    """Which version of the protocol it speaks belongs to its connection."""
    return msgspec.structs.replace(worker.offer.at_best(), is_plain=False)


def _job(job: Job, now: float) -> tuple[Any, ...]:
    tasks = (job.tasks or {}).values()
    is_orphan = not job.size and job.state in PLACED and not any(_is_claimed(task) for task in tasks)
    return (
        job.seq,
        job.user,
        _needs(job.shape.request, job, now),
        job.terms,
        states.ORPHANED if is_orphan else job.state,
        _waiting(job),
        job.ended or {},
        job.dropped,
        job.blocked_on,
    )


def _needs(request: Request, job: Job, now: float) -> tuple[Request, bool]:
    """A preference that is over is opened by the first look at the clock."""
    is_closed = request.cuda_first_s > 0 and job.queued + request.cuda_first_s > now + ALMOST_S
    return msgspec.structs.replace(request, cuda_first_s=0.0), is_closed and not job.blocked_on


def _waiting(job: Job) -> Ranges:
    waiting = job.waiting
    for task in (job.tasks or {}).values():
        if task.resting:  # a service between two starts is started at once by a hub that starts itself
            waiting = with_index(waiting, task.index)
    return waiting


def _task(task: Task) -> tuple[Any, ...]:
    """What ran is an orphan after a restart, unless it was claimed."""
    is_orphan = task.state in PLACED and not _is_claimed(task)
    return (
        states.ORPHANED if is_orphan else task.state,
        task.attempt,
        task.worker,
        task.holder.id if task.holder is not None else "",
        (task.losses, task.failures, task.used_s, task.exit_code, task.started_at, task.done),
        (task.checkpoint, task.checkpoint_by, task.metrics, task.result_id, task.artifact_id),
    )


def _is_claimed(task: Task) -> bool:
    return task.holder is not None and task.holder.claimed


def _held(attempt: Attempt) -> tuple[Any, ...]:
    return (
        attempt.worker_id,
        attempt.task_id,
        attempt.held,
        attempt.phase,
        attempt.accepted,
        attempt.stop_reason,
        attempt.claimed,
    )
