"""Machines that hold no connection: they ask for one task at a time over plain HTTP, and say now and then that they
still have it.

A claim is an assignment that its worker asked for. It counts as accepted at once; the only time that applies to it is
its lease, which every heartbeat begins anew.
"""

from typing import Final

import msgspec

from ostler.core import attempts, outcomes, reports, workers
from ostler.core.attempt import LEASES
from ostler.core.effects import Answer, Beaten, Claimed, Effect, NothingToClaim, Refuse
from ostler.core.events import ClaimBeat, ClaimEnded, ClaimRequested, TaskEnded
from ostler.core.fleet import Attempt, Fleet, Job, Worker
from ostler.core.learning import lessons
from ostler.core.match import unmet_by_claim
from ostler.core.room import pick_devices
from ostler.core.timers import LEASE
from ostler.domain import states
from ostler.domain.errors import Conflict
from ostler.domain.scheduling import CLAIM_LEASE_S
from ostler.domain.worker import Capabilities

LEASE_S: Final = CLAIM_LEASE_S
WRITTEN_EVERY_S: Final = 60.0
"""How often what a machine says with its claims is written down."""
NEAREST_OF: Final = 64
"""How many of the first jobs in line are looked at for the reason why a machine got none."""


def claim(fleet: Fleet, event: ClaimRequested, now: float) -> list[Effect]:
    worker = fleet.workers.get(event.worker_id)
    if worker is not None and not worker.only_claims and (worker.connected or worker.attempts):
        return [Refuse(ref=event.ref, error=Conflict(_taken(worker)))]
    worker = _heard(fleet, worker, event, now)
    is_open = not (worker.draining or worker.cooling)
    shapes = fleet.index.claimable(worker) if is_open else 0
    job = fleet.queue.pick(fleet.queue.pending & shapes)
    if job is None:
        return [_nothing(fleet, worker, event.ref, now)]
    return [_take(fleet, worker, job, event.ref, now)]


def _taken(worker: Worker) -> str:
    has = "holds a connection to this hub" if worker.connected else "held one and has left tasks that may still run"
    return f"a worker named {worker.id} {has}; a machine that claims needs another name"


def _heard(fleet: Fleet, worker: Worker | None, event: ClaimRequested, now: float) -> Worker:
    is_new = worker is None or not worker.only_claims
    if worker is None:
        worker = workers.add(fleet, event.worker_id, event.capabilities, now, event.capability)
    worker.claims, worker.is_plain = event.capability, False
    worker.forget_reports()
    worker.leaving = False
    workers.heard(fleet, worker, now)
    workers.set_offer(fleet, worker, _with_total(worker, event.capabilities))
    if is_new or fleet.wall(now) - worker.written_at > WRITTEN_EVERY_S:
        worker.written_at = fleet.wall(now)
        fleet.touch_worker(worker)
    if is_new:
        worker.registered_at = fleet.wall(now)
        fleet.announce(now, "worker", worker.id, state="online", reason="it claims its work")
    return worker


def _with_total(worker: Worker, said: Capabilities) -> Capabilities:
    """A machine that says only how much memory is available has, beside that, what its tasks hold."""
    if said.memory_gb or said.memory_available_gb is None:
        return said
    held_mib = sum(attempt.held.memory_mib for attempt in worker.attempts.values())
    return msgspec.structs.replace(said, memory_gb=said.memory_available_gb + held_mib / 1024)


def _take(fleet: Fleet, worker: Worker, job: Job, ref: int, now: float) -> Effect:
    grant = pick_devices(job.shape.request, worker.room)
    assert grant is not None
    attempt = attempts.begin(fleet, job, worker, grant, f"{worker.id} asked for work, and this was first in line", now)
    task = attempt.task
    assert task is not None
    attempt.claimed = True
    attempt.lease_s = fleet.policy.claim_lease_s
    if attempt.lease_s:
        fleet.keep(LEASES, attempt.id, b"%r" % attempt.lease_s)
    attempt.beaten = now
    attempts.start_clock(fleet, attempt, task, now)
    fleet.timers.add(now + lease_of(attempt), LEASE, attempt.id)
    fleet.touch_worker(worker)  # rows are written anyway: so is what it said about itself, and when
    return Claimed(
        ref=ref,
        job_id=job.id,
        task_id=task.id,
        attempt=attempt.id,
        devices=grant.devices,
        has_devices=bool(worker.capabilities.gpu_count),  # also those that the manifest keeps from us are hidden
        index=task.index if job.size else None,
        lease_s=lease_of(attempt),
        checkpoint=task.checkpoint,
    )


def lease_of(attempt: Attempt) -> float:
    """How long a claim lives without a heartbeat."""
    return attempt.lease_s or LEASE_S


def _nothing(fleet: Fleet, worker: Worker, ref: int, now: float) -> Effect:
    """Why the nearest of those that wait did not fit."""
    found = []
    for job in fleet.queue.heads(NEAREST_OF):
        reasons = unmet_by_claim(job.shape.request, worker, now)
        told = "; ".join(reason.text for reason in reasons) or f"held by a quota of {job.user}"
        found.append((len(reasons), job, told))
    if not found:
        return NothingToClaim(ref=ref, reason="nothing waits")
    _, job, told = min(found, key=lambda one: one[0])
    return NothingToClaim(ref=ref, job_id=job.id, reason=told)


def beat(fleet: Fleet, event: ClaimBeat, now: float) -> list[Effect]:
    attempt = _find(fleet, event.worker_id, event.task_id, event.attempt)
    if attempt is None:
        return [_not_yours(event.ref, event.worker_id, event.task_id)]
    workers.heard(fleet, fleet.workers[event.worker_id], now)
    attempt.beaten = now
    attempt.progress = event.progress
    goes_on = attempt.is_current() and attempt.phase != "stopping"
    if goes_on and attempt.phase == "assigned":
        attempts.accept(fleet, attempt, now)
    attempts.charge_meanwhile(fleet, attempt, now)
    return [Beaten(ref=event.ref, cancel=not goes_on)]


def ended(fleet: Fleet, event: ClaimEnded, now: float) -> list[Effect]:
    """Its end is recorded once; said again, it is answered as before."""
    end = event.end
    attempt = _find(fleet, end.worker_id, end.task_id, end.attempt)
    if attempt is None:
        return [_said_before(fleet, event) or _not_yours(event.ref, end.worker_id, end.task_id)]
    worker, task = fleet.workers[end.worker_id], attempt.task
    assert task is not None
    workers.heard(fleet, worker, now)
    counts = attempt.is_current()
    refused = not counts and end.state in reports.SUCCESS and task.state != states.CANCELLED
    # What is refused now must not look like an end that was taken when it is said again.
    reports.end(fleet, attempt, end, "gone" if refused else end.state, now)
    if refused:
        return [_not_yours(event.ref, end.worker_id, end.task_id)]
    answer = Answer(ref=event.ref, ids=[end.task_id])
    had = lessons.vram_of(attempt, worker)
    return [answer, *reports.apply(fleet, worker, task, attempt.stop_reason, end, now, had)] if counts else [answer]


def lapse(fleet: Fleet, attempt_id: str, now: float) -> list[Effect]:
    """Nothing was heard of it for a whole lease: its worker has killed it by itself long ago, or is gone."""
    attempt = fleet.held.get(attempt_id)
    if attempt is None or not attempt.claimed or attempt.task is None:
        return []
    over_at = attempt.beaten + lease_of(attempt)
    if over_at > now:
        fleet.timers.add(over_at, LEASE, attempt_id)
        return []
    task, counts = attempt.task, attempt.is_current()
    reason = f"{attempt.worker_id} sent no heartbeat for {lease_of(attempt):.0f} s"
    attempts.release(fleet, attempt, "lost", reason, now)
    if not counts:
        return []
    if attempt.stop_reason:
        return outcomes.stopped(fleet, task, f"{attempt.stop_reason}; {reason}", now)
    task.attempt = ""
    return outcomes.lost(fleet, task, reason, now)


def _find(fleet: Fleet, worker_id: str, task_id: str, attempt: str) -> Attempt | None:
    worker = fleet.workers.get(worker_id)
    found = worker.find(task_id, attempt) if worker is not None else None
    return found if found is not None and found.claimed else None


def _said_before(fleet: Fleet, event: ClaimEnded) -> Effect | None:
    end = event.end
    now_ended = {
        one.id: (one.task_id, one.worker_id, one.outcome) for one in fleet.touched.attempts.values() if one.outcome
    }
    earlier = {one.attempt: (one.task_id, one.worker, one.state) for one in event.history} | now_ended
    theirs = [key for key, (task_id, worker, _) in earlier.items() if (task_id, worker) == (end.task_id, end.worker_id)]
    last = end.attempt or (theirs[-1] if theirs else "")
    if last in theirs and _same_verdict(earlier[last][2], end):
        return Answer(ref=event.ref, ids=[end.task_id], created=False)
    return None


def _same_verdict(outcome: str, end: TaskEnded) -> bool:
    return outcome == end.state or (outcome in reports.SUCCESS and end.state in reports.SUCCESS)


def _not_yours(ref: int, worker_id: str, task_id: str) -> Effect:
    return Refuse(ref=ref, error=Conflict(f"{task_id} is not {worker_id}'s: it is with another worker, or with none"))
