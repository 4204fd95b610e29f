"""Between the fleet and the ledger's rows: what a batch changed, and a fleet from what was kept."""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from ostler.core.attempt import PREEMPTED_BY, Sent
from ostler.core.attempts import LOOK_AGAIN_S, derive_array, forget_ended, remaining_s, set_state, settle_arrays
from ostler.core.claims import LEASE_S
from ostler.core.dependencies import hold_again
from ostler.core.fleet import Attempt, Fleet, Job, Task, Worker
from ostler.core.holding import Grant, Holding
from ostler.core.jobs import revive, revive_task
from ostler.core.queueing.usage import HALF_LIFE_S, START_QUANTUM_S
from ostler.core.timers import GRACE, LEASE, RUNTIME
from ostler.core.touched import Touched
from ostler.core.workers import add
from ostler.domain import states
from ostler.domain.hosts import HostPolicy
from ostler.domain.records import (
    AttemptRecord,
    Changes,
    JobProgress,
    JobRecord,
    KeptRecord,
    SentAhead,
    Snapshot,
    TaskRecord,
    UsageRecord,
    WorkerRecord,
    bring_up,
)
from ostler.domain.worker import Capabilities

_encode = msgspec.json.Encoder().encode
_capabilities = msgspec.json.Decoder(Capabilities)


def take_changes(fleet: Fleet, now: float) -> Changes:
    """Everything that changed since the last call, as rows."""
    if fleet.unplaced:
        settle_arrays(fleet, now)
    touched, fleet.touched = fleet.touched, Touched()
    for name in touched.new_jobs.keys() & touched.jobs.keys():  # written once: as it is by now
        bring_up(touched.new_jobs[name], _progress(touched.jobs.pop(name), fleet))
    changes = Changes(
        new_jobs=list(touched.new_jobs.values()),
        progress=[_progress(job, fleet) for job in touched.jobs.values()],
        tasks=[_task_row(task) for task in touched.tasks.values()],
        attempts=[_attempt_row(attempt, fleet) for attempt in touched.attempts.values()],
        unwritten=touched.unwritten,
        workers=[_worker_row(worker) for worker in touched.workers.values()],
        feed=touched.feed,
        receipts=list(touched.receipts.values()),
        changed_terms=list(touched.terms.values()),
        artifacts=touched.artifacts,
        manifest=touched.manifest,
        kept=[*touched.kept.values(), *fleet.kinds.take_changes(), *map(_sent_row, touched.sent.values())],
        needs=touched.needs,
        departed=touched.gone.departed,
        gone_jobs=list(touched.gone.jobs),
        gone_tasks=touched.gone.tasks,
        gone_outputs=touched.gone.outputs,
        gone_feed=touched.gone.feed,
        gone_receipts=touched.gone.receipts,
        usage=[
            UsageRecord(user=user, gpu_seconds=fleet.usage.gpu_seconds(user, now), at=fleet.wall(now))
            for user in sorted(touched.users)
        ],
    )
    forget_ended(fleet)
    return changes


def _progress(job: Job, fleet: Fleet) -> JobProgress:
    return JobProgress(
        id=job.id,
        state=job.state,
        queued_at=job.queued_at,
        finished_at=job.finished_at,
        waiting=list(job.waiting),
        counts=job.counts() if job.size else {},
        dropped=list(job.dropped),
        reason=job.reason,
        blocked_on=sorted(job.blocked_on or ()),
        outgrown_mib=fleet.followers.outgrown_mib.get(job.id, 0),
    )


def _task_row(task: Task) -> TaskRecord:
    return TaskRecord(
        id=task.id,
        job_id=task.job.id,
        index=task.index,
        state=task.state,
        attempt=task.attempt,
        worker=task.worker,
        losses=task.losses,
        failures=task.failures,
        used_s=task.used_s,
        started_at=task.started_at,
        finished_at=task.finished_at,
        exit_code=task.exit_code,
        reason=task.reason,
        health=task.health,
        artifact_id=task.artifact_id,
        metrics=task.metrics,
        checkpoint=task.checkpoint,
        checkpoint_by=task.checkpoint_by,
        result_id=task.result_id,
        result=task.result,
    )


def _attempt_row(attempt: Attempt, fleet: Fleet) -> AttemptRecord:
    assert attempt.task is not None
    held = attempt.held if attempt.will is None else attempt.will
    return AttemptRecord(
        attempt=attempt.id,
        task_id=attempt.task_id,
        job_id=attempt.task.job.id,
        worker=attempt.worker_id,
        devices=list(held.grant.devices),
        share_mib=held.grant.share_mib,
        cores_milli=held.cores_milli,
        memory_mib=held.memory_mib,
        pool=held.pool,
        state=attempt.outcome or attempt.phase,
        held=attempt.id in fleet.held,
        holder=attempt.task.holder is attempt,
        accepted=attempt.accepted,
        assigned_at=attempt.assigned_at,
        started_at=attempt.started_at,
        finished_at=attempt.finished_at,
        stop_reason=attempt.stop_reason,
        reason=attempt.reason,
        why=attempt.why,
        run_s=attempt.run_s,
        peak_memory_mib=attempt.peak_memory_mib,
        peak_vram_mib=attempt.peak_vram_mib,
    )


def _sent_row(sent: Sent) -> KeptRecord:
    return SentAhead(
        job_id=sent.job_id,
        key=sent.key,
        low=sent.low,
        high=sent.high,
        worker=sent.worker_id,
        cores_milli=sent.will.cores_milli,
        memory_mib=sent.will.memory_mib,
        pool=sent.will.pool,
        assigned_at=sent.assigned_at,
        attempts=list(sent.attempts.values()),
    ).kept()


def _worker_row(worker: Worker) -> WorkerRecord:
    return WorkerRecord(
        id=worker.id,
        capabilities=_encode(worker.capabilities),
        claims=worker.claims,
        draining=worker.draining,
        registered_at=worker.registered_at,
        last_contact=worker.last_contact_at,
    )


def restore(
    snapshot: Snapshot,
    new_attempt_id: Callable[[], str],
    now: float,
    epoch: float,
    hosts: dict[str, HostPolicy] | None = None,
    jobs: Iterable[JobRecord] | None = None,
    leases: Mapping[str, bytes] | None = None,
) -> Fleet:
    """The fleet as the ledger has it. Workers are away; what ran there are orphans whose grace starts now, and what was
    claimed has a whole lease before it. `jobs`: in order of arrival, where the snapshot was read without them.
    `leases`: by attempt, those that differ from the usual one."""
    fleet = Fleet(new_attempt_id)
    fleet.epoch = epoch
    fleet.hosts = hosts or {}
    fleet.kinds.restore(snapshot.learnt)
    fleet.tally.update((state, int(count)) for state, count in snapshot.tally.items())
    fleet.job_seq, fleet.feed_seq = snapshot.last_job_seq, snapshot.last_feed_seq
    for row in snapshot.workers:
        worker = add(fleet, row.id, _capabilities.decode(row.capabilities), now, row.claims)
        worker.draining = row.draining
        worker.registered_at, worker.last_contact_at = row.registered_at, row.last_contact
        if worker.only_claims:
            worker.last_contact = now - max(0.0, fleet.wall(now) - row.last_contact)
    blocked: list[tuple[str, list[str]]] = []
    for record in sorted(snapshot.jobs, key=lambda job: job.seq) if jobs is None else jobs:
        fleet.enter_job(revive(fleet, record, now))
        if record.blocked_on:
            blocked.append((record.id, record.blocked_on))
    for task_record in snapshot.tasks:
        revive_task(fleet, fleet.jobs[task_record.job_id], task_record)
    for attempt_record in snapshot.attempts:
        _hold_again(fleet, attempt_record, now)
    for sent in snapshot.ahead:
        _restore_sent(fleet, sent, now)
    for job_id, blocked_on in blocked:
        hold_again(fleet, fleet.jobs[job_id], blocked_on)
    for job in list(fleet.jobs.values()):
        _orphan_and_wait(fleet, job, now)
        if job.state in states.TERMINAL:
            fleet.leave(job)
    settle_arrays(fleet, now)
    for attempt_id, lease_s in (leases or {}).items():
        _lease_again(fleet, attempt_id, float(lease_s), now)
    for used in snapshot.usage:
        away_s = max(0.0, fleet.wall(now) - used.at)
        fleet.usage.charge(used.user, used.gpu_seconds * 2.0 ** -(away_s / HALF_LIFE_S), now)
    return fleet


def _restore_sent(fleet: Fleet, sent: SentAhead, now: float) -> None:
    """From now on each of them is a row: whatever was to come before it, what happens to it is its own."""
    for task_record, attempt_record in sent.rows():
        task = revive_task(fleet, fleet.jobs[sent.job_id], task_record)
        _hold_again(fleet, attempt_record, now)
        fleet.write_apart(fleet.held[attempt_record.attempt], task)
    gone = msgspec.structs.replace(sent, attempts=[]).kept()
    fleet.keep(gone.scope, gone.key, gone.value)


def _hold_again(fleet: Fleet, row: AttemptRecord, now: float) -> None:
    task = fleet.find_task(row.task_id)
    assert task is not None
    attempt = Attempt(
        id=row.attempt,
        task_id=row.task_id,
        task=task,
        worker_id=row.worker,
        held=Holding(row.cores_milli, row.memory_mib, row.pool, Grant(tuple(row.devices), row.share_mib)),
        phase=row.state,
        accepted=row.accepted,
        assigned=now,
        assigned_at=row.assigned_at,
        stop_reason=row.stop_reason,
        why=row.why,
    )
    if row.started_at is not None:
        ran_s = max(0.0, fleet.wall(now) - row.started_at)
        attempt.started, attempt.started_at = now - ran_s, row.started_at
        attempt.charged_s = max(START_QUANTUM_S, ran_s)  # nearly: who was charged when is not written down
    attempt.peak_memory_mib, attempt.peak_vram_mib = row.peak_memory_mib, row.peak_vram_mib
    attempt.counted = attempt.phase != "lapsed"
    _, preempted, by = row.stop_reason.partition(PREEMPTED_BY)
    heir = fleet.jobs.get(by) if preempted else None
    if heir is not None:
        attempt.heir = heir
        fleet.room_makers.setdefault(heir.id, set()).add(attempt.id)
    worker = fleet.workers[row.worker]
    worker.shrunk = True  # its offer may have changed since this was granted
    fleet.take(worker, attempt)
    if row.holder:
        task.holder = attempt
    if worker.only_claims:
        attempt.claimed, attempt.beaten = True, now
        fleet.timers.add(now + LEASE_S, LEASE, attempt.id)
    elif attempt.phase != "lapsed":
        attempt.watched = True
        fleet.timers.add(now + task.job.terms.grace_s, GRACE, attempt.id)
    if attempt.phase != "lapsed" and attempt.started is not None and task.job.terms.max_runtime_s:
        fleet.timers.add(min(attempt.started + remaining_s(task), now + LOOK_AGAIN_S), RUNTIME, attempt.id)


def _lease_again(fleet: Fleet, attempt_id: str, lease_s: float, now: float) -> None:
    """The lease that a claim was answered with: its machine goes by it, whatever the setting is by now."""
    attempt = fleet.held.get(attempt_id)
    if attempt is not None and attempt.claimed:
        attempt.lease_s = lease_s
        fleet.timers.add(now + lease_s, LEASE, attempt_id)


def _is_claimed(task: Task) -> bool:
    return task.holder is not None and task.holder.claimed


def _orphan_and_wait(fleet: Fleet, job: Job, now: float) -> None:
    job.displaced = sum(task.is_displaced() for task in (job.tasks or {}).values())
    for task in (job.tasks or {}).values():
        if job.is_gang and task.holder is None and task.state in (states.RUNNING, states.ORPHANED):
            task.done = True  # it has succeeded; the others decide
        elif task.state in (states.ASSIGNED, states.RUNNING) and not _is_claimed(task):
            set_state(fleet, task, states.ORPHANED, "the hub restarted", now)
        elif task.state == states.PENDING and task.holder is None:
            fleet.enqueue(task)  # it waits already, or a service was between two starts
    if job.size and job.state in states.LIVE and job.is_placed() != (job.state == states.RUNNING):
        derive_array(fleet, job, now)  # the row is of a hub that knew other rules
    fleet.line_up(job)
    fleet.watch_wait(job)
