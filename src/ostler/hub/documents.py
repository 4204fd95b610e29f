"""How jobs, tasks and workers look from outside: documents made of rows and of the fleet's memory."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from ostler.core.fleet import Attempt, Fleet, Worker
from ostler.core.workers import CLAIMS_WITHIN_S
from ostler.domain import states
from ostler.domain.records import AttemptRecord, FeedRecord, JobRecord, TaskRecord
from ostler.domain.states import STATUS

Document = dict[str, Any]


def timestamp(at: float | None) -> str | None:
    """RFC 3339 in UTC."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def job_document(job: JobRecord, task: TaskRecord | None, attempts: list[AttemptRecord] | None = None) -> Document:
    """`task` is the row of a single-task job, where it has one."""
    document: Document = {
        "id": job.id,
        "name": job.name,
        "state": job.state,
        "status": STATUS[job.state],
        "reason": job.reason,
        "exit_code": task.exit_code if task else None,
        "worker": (task.worker or None) if task else None,
        "user_id": job.user,
        "priority": job.terms.priority,
        "attempt": (task.attempt or None) if task else None,
        "submitted_at": timestamp(job.submitted_at),
        "started_at": timestamp(task.started_at) if task else None,
        "finished_at": timestamp(job.finished_at),
        "artifact_id": (task.artifact_id or None) if task else None,
        "metrics": task.metrics if task else {},
        "spec": msgspec.Raw(job.spec),
    }
    if job.terms.service:
        document["health"] = (task.health or None) if task else None
    if job.size:
        document["counts"] = job.counts or {states.PENDING: job.size}
    if attempts is not None:
        document["attempts"] = [attempt_document(attempt) for attempt in attempts]
    return document


def task_document(job: JobRecord, index: int, task: TaskRecord | None, attempts: list[AttemptRecord]) -> Document:
    """One task of an array, in the shape of a job."""
    state, reason = (task.state, task.reason) if task else untouched_state(job, index)
    return {
        "id": f"{job.id}.{index}",
        "name": job.name,
        "index": index,
        "state": state,
        "status": STATUS[state],
        "reason": reason,
        "exit_code": task.exit_code if task else None,
        "worker": (task.worker or None) if task else None,
        "user_id": job.user,
        "attempt": (task.attempt or None) if task else None,
        "attempts": [attempt_document(attempt) for attempt in attempts],
        "submitted_at": timestamp(job.submitted_at),
        "started_at": timestamp(task.started_at) if task else None,
        "finished_at": timestamp(task.finished_at) if task else None,
        "artifact_id": (task.artifact_id or None) if task else None,
        "metrics": task.metrics if task else {},
        "spec": msgspec.Raw(job.spec),
    }


def untouched_state(job: JobRecord, index: int) -> tuple[str, str]:
    """Of a task without a row: it waits, or it ended with its job before it was ever placed."""
    for dropped in job.dropped:
        if dropped.low <= index < dropped.high:
            return dropped.state, dropped.reason
    return states.PENDING, ""


def attempt_document(attempt: AttemptRecord) -> Document:
    return {
        "attempt": attempt.attempt,
        "worker": attempt.worker,
        "state": attempt.state,
        "reason": attempt.reason or attempt.stop_reason,
        "devices": attempt.devices,
        "why": attempt.why,
        "started_at": timestamp(attempt.started_at or attempt.assigned_at),
        "finished_at": timestamp(attempt.finished_at),
        "run_s": attempt.run_s or None,
        "peak_memory_mib": attempt.peak_memory_mib or None,
        "peak_vram_mib": attempt.peak_vram_mib or None,
    }


def task_row_document(task: TaskRecord) -> Document:
    return {
        "id": task.id,
        "index": task.index,
        "state": task.state,
        "worker": task.worker or None,
        "attempt": task.attempt or None,
        "exit_code": task.exit_code,
        "reason": task.reason,
        "started_at": timestamp(task.started_at),
        "finished_at": timestamp(task.finished_at),
    }


Sight = Callable[[str], bool]
"""Whether somebody may see what belongs to this user."""


def everything(user: str) -> bool:
    return True


def worker_document(worker: Worker, now: float, may_see: Sight = everything) -> Document:
    """WorkerInfo of the protocol, and what Ostler adds to it. Of others' work: that it is there, and no name."""
    live = [held for held in worker.attempts.values() if held.phase != "lapsed" and held.after is None]
    document: Document = {
        "id": worker.id,
        "backend": worker.offer.backend,
        "gpu_count": len(worker.offer.devices),
        "vram_gb": round(sum(device.vram_mib for device in worker.offer.devices) / 1024, 3),
        "cpu_count": worker.offer.cores_milli / 1000,
        "memory_gb": round(worker.offer.memory_mib / 1024, 3),
        "status": worker_status(worker, now),
        "active_jobs": len(live),
        "total_slots": worker.slots.batch_total + worker.slots.service_total if worker.slots else 0,
        "last_heartbeat": timestamp(worker.last_contact_at or None),
        "last_contact": timestamp(worker.last_contact_at or None),
        "draining": worker.draining or worker.leaving,
        "cooling": worker.cooling,
        "capabilities": worker.capabilities,
        "labels": dict(worker.offer.labels),
        "free": {
            "gpus": worker.room.free_devices(),
            "cores": max(0, worker.room.cores_milli) / 1000,
            "memory_gb": round(worker.room.free_memory() / 1024, 3),
        },
        "devices": _device_documents(worker, may_see),
        "tasks": [
            {"task_id": held.task_id, "attempt": held.id, "state": held.phase}
            if is_seen(held, may_see)
            else {"task_id": "", "attempt": "", "state": held.phase}
            for held in worker.attempts.values()
        ],
    }
    if worker.only_claims:
        document |= {"hostname": worker.id, "capability": msgspec.Raw(worker.claims)}
    return document


def worker_status(worker: Worker, now: float) -> str:
    if worker.only_claims:
        if worker.attempts:
            return "busy"
        return "ready" if now - worker.last_contact < CLAIMS_WITHIN_S else "offline"
    if not worker.connected:
        return "offline"
    busy = worker.slots is not None and worker.slots_left("batch") < 1 and worker.slots.batch_total > 0
    return "busy" if busy else "ready"


def is_seen(held: Attempt, may_see: Sight) -> bool:
    return may_see is everything or (held.task is not None and may_see(held.task.job.user))


def _device_documents(worker: Worker, may_see: Sight) -> list[Document]:
    holders: dict[int, list[Document]] = {}
    for held in worker.attempts.values():
        for index in held.held.grant.devices:
            share = held.held.grant.share_mib
            holder = held.task_id if is_seen(held, may_see) else ""
            holders.setdefault(index, []).append(
                {"task_id": holder, "vram_gb": round(share / 1024, 3) if share else None}
            )
    return [
        {
            "index": device.index,
            "uuid": device.uuid,
            "name": device.name or worker.offer.gpu_type,
            "vram_gb": round(device.vram_mib / 1024, 3),
            "vram_free_gb": round(max(0, free) / 1024, 3),
            "held_by": holders.get(device.index, []),
        }
        for device, free in zip(worker.offer.devices, worker.room.vram_mib, strict=True)
    ]


def job_summaries(worker: Worker, may_see: Sight = everything) -> list[Document]:
    """The protocol's JobSummary of what a worker holds, with the job's id for whoever looks up its name."""
    return [
        {
            "task_id": held.task_id if is_seen(held, may_see) else "",
            "job_id": held.task.job.id if held.task else "",
            "job_name": "",
            "status": held.task.state if held.task else "unknown",
            "started_at": timestamp(held.started_at),
        }
        for held in worker.attempts.values()
    ]


def fleet_totals(fleet: Fleet, now: float) -> Document:
    """The fleet in a few numbers, for one screen."""
    statuses = {"ready": 0, "busy": 0, "offline": 0}
    gpus = held_gpus = cores = held_cores = memory = held_memory = 0
    for worker in fleet.workers.values():
        status = worker_status(worker, now)
        statuses[status] += 1
        if status == "offline":
            continue
        gpus += len(worker.offer.devices)
        held_gpus += len(worker.offer.devices) - worker.room.free_devices()
        cores += worker.offer.cores_milli
        held_cores += worker.offer.cores_milli - worker.room.cores_milli
        memory += worker.offer.memory_mib
        held_memory += worker.offer.memory_mib - worker.room.memory_mib
    return {
        "workers": statuses,
        "gpus": {"total": gpus, "held": held_gpus},
        "cores": {"total": cores / 1000, "held": held_cores / 1000},
        "memory_gb": {"total": round(memory / 1024, 2), "held": round(held_memory / 1024, 2)},
    }


def feed_document(record: FeedRecord) -> Document:
    return {
        "seq": record.seq,
        "at": timestamp(record.at),
        "kind": record.kind,
        "subject": record.subject,
        **record.body,
    }
