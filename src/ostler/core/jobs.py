"""What people ask for: submit, cancel, requeue, another priority."""

from collections import Counter
from collections.abc import Mapping
from sys import intern
from typing import Final

import msgspec

from ostler.core import attempts, checkpoints, dependencies
from ostler.core.effects import Answer, Effect, Refuse
from ostler.core.events import CancelRequested, JobsSubmitted, NewJob, PriorityRequested, RequeueRequested
from ostler.core.fleet import Fleet, Job, Task
from ostler.core.jobs_end import cancel_job, cancel_task, drop_waiting
from ostler.core.learning.lessons import fitted, grown
from ostler.core.portions import Portions, in_portions, is_whole
from ostler.core.ranges import ONE, Ranges, merge, without_index
from ostler.domain import states
from ostler.domain.errors import Conflict, NotFound, QuotaExceeded
from ostler.domain.job import Terms
from ostler.domain.records import (
    DepartedRecord,
    Dropped,
    JobRecord,
    JobTerms,
    NeedRecord,
    ReceiptRecord,
    TaskRecord,
    digest_of,
)
from ostler.domain.resources import Request

_ONE: Final = [ONE[0]]


def submit(fleet: Fleet, event: JobsSubmitted, now: float) -> list[Effect]:
    """All of them or none. A job that is there already with the same spec is not submitted again."""
    fresh: dict[str, NewJob] = {}
    answer = _sort_out(fleet, event, fresh)
    if answer is not None:
        return [answer]
    ended = _ended(event)
    added = [add(fleet, new, now) for new in fresh.values()]
    for new, job in zip(fresh.values(), added, strict=True):
        let_wait(fleet, job, new.depends_on, ended, now)
    return [_answer(fleet, event, fresh, now)]


def submit_many(fleet: Fleet, event: JobsSubmitted, now: float) -> Portions:
    """The same, with pauses."""
    fresh: dict[str, NewJob] = {}
    answer = _sort_out(fleet, event, fresh)
    if answer is not None:
        return [answer]
    ended = _ended(event)
    added: list[Job] = []
    for some in in_portions(list(fresh.values())):
        added += [add(fleet, new, now) for new in some]
        if is_whole(some):
            yield
    for pairs in in_portions(list(zip(fresh.values(), added, strict=True))):
        for new, job in pairs:
            let_wait(fleet, job, new.depends_on, ended, now)
        if is_whole(pairs):
            yield
    return [_answer(fleet, event, fresh, now)]


def _sort_out(fleet: Fleet, event: JobsSubmitted, fresh: dict[str, NewJob]) -> Effect | None:
    """Enter those that are new into `fresh`. An answer: nothing is to be done, because it was before or may not be."""
    if event.receipt is not None:
        earlier = event.answered or fleet.touched.receipts.get(event.receipt.key)
        if earlier is not None:
            return _answer_again(event, earlier, event.receipt)
    for new in event.jobs:
        known = event.known.get(new.id) or fleet.touched.new_jobs.get(new.id) or fresh.get(new.id)
        gone = event.departed.get(new.id)
        if known is None and gone is None:
            fresh[new.id] = new
        elif not _is_the_same(new, known, gone):
            detail = f"job {new.id} exists with another spec; choose another id, or leave it out to get a new one"
            return Refuse(ref=event.ref, error=Conflict(detail))
    refused = dependencies.problem(fleet, event, fresh) or over_quota(fleet, fresh)
    return Refuse(ref=event.ref, error=refused) if refused is not None else None


def _ended(event: JobsSubmitted) -> dict[str, str]:
    """The states of those that have left memory."""
    if not event.departed and not event.known:
        return {}
    ended = {gone.id: gone.state for gone in event.departed.values()}
    return ended | {record.id: record.state for record in event.known.values()}


def _answer(fleet: Fleet, event: JobsSubmitted, fresh: dict[str, NewJob], now: float) -> Effect:
    ids = [new.id for new in event.jobs]
    if event.receipt is not None:
        event.receipt.ids = ids
        event.receipt.at = fleet.wall(now)
        fleet.touched.receipts[event.receipt.key] = event.receipt
    return Answer(ref=event.ref, ids=ids, created=bool(fresh) or not event.jobs)


def _is_the_same(new: NewJob, known: JobRecord | NewJob | None, gone: DepartedRecord | None) -> bool:
    if known is not None:
        return known.spec == new.spec
    return gone is not None and gone.digest == digest_of(new.spec)


def _answer_again(event: JobsSubmitted, earlier: ReceiptRecord, receipt: ReceiptRecord) -> Effect:
    if earlier.digest != receipt.digest:
        detail = "this Idempotency-Key was used with another body; use a new key for a new submit"
        return Refuse(ref=event.ref, error=Conflict(detail))
    return Answer(ref=event.ref, ids=earlier.ids, created=False)


def over_quota(fleet: Fleet, fresh: Mapping[str, NewJob]) -> QuotaExceeded | None:
    if not fleet.limits_the_queue:
        return None
    for user, count in Counter(new.user for new in fresh.values()).items():
        limit = fleet.quotas.of(user).queued_jobs
        queued = fleet.queued_of.get(user, 0)
        if limit and queued + count > limit:
            told = f"{user} has {queued} queued jobs and asks for {count} more; the quota queued_jobs is {limit}: "
            return QuotaExceeded(told + "wait until some have started, cancel some, or ask an operator for more")
    return None


def let_wait(fleet: Fleet, job: Job, depends_on: list[str], ended: Mapping[str, str], now: float) -> None:
    """For room, or for other jobs first: all that came with it are there by now."""
    if depends_on:
        _need(fleet, job, depends_on)
        dependencies.hold(fleet, job, depends_on, ended, now)
        fleet.touched.new_jobs[job.id].blocked_on = sorted(job.blocked_on or ())
    fleet.line_up(job)
    fleet.watch_wait(job)
    if job.snapshot and not job.blocked_on:
        fleet.hints.append(job)


def _need(fleet: Fleet, job: Job, depends_on: list[str]) -> None:
    """For as long as the job has not ended, these stay."""
    fleet.touched.needs += [NeedRecord(job_id=job.id, on_id=name) for name in dict.fromkeys(depends_on)]


def add(fleet: Fleet, new: NewJob, now: float) -> Job:
    fleet.job_seq += 1
    waiting: Ranges = ((0, new.size),) if new.size else ONE
    job = Job(
        id=new.id,
        seq=fleet.job_seq,
        user=intern(new.user),
        shape=fleet.index.shape(fitted(fleet, new.terms, new.kind, new.request), fleet.workers.values()),
        terms=fleet.shared_terms(new.terms),
        size=new.size,
        queued=now,
        waiting=waiting,
        snapshot=new.snapshot,
        kind=fleet.kinds.shared(new.kind),
    )
    fleet.enter_job(job)
    record = JobRecord(
        id=job.id,
        seq=job.seq,
        user=job.user,
        name=new.name,
        spec=new.spec,
        request=new.request,
        terms=new.terms,
        size=job.size,
        state=job.state,
        submitted_at=fleet.wall(now),
        waiting=list(waiting),
        snapshot=new.snapshot,
        origin=new.origin,
        sweep=new.sweep,
        kind=new.kind,
    )
    fleet.touched.new_jobs[job.id] = record
    fleet.announce(now, "job", job.id, state=states.PENDING, user=job.user, name=new.name)
    return job


def alter(fleet: Fleet, job: Job, request: Request, terms: Terms) -> None:
    """Its needs and its terms are others from now on; it keeps its place by arrival."""
    was_queued = job.lane is not None
    fleet.queue.remove(job)
    fleet.change_terms(job, terms)
    fleet.change_shape(job, request)
    if was_queued:
        fleet.queue.add(job)
    fleet.watch_wait(job)


def make_like(fleet: Fleet, job: Job, new: NewJob) -> None:
    """What its manifest says of it has changed."""
    alter(fleet, job, new.request, new.terms)
    job.kind = fleet.kinds.shared(new.kind)
    fleet.touched.terms[job.id] = JobTerms(
        id=job.id, name=new.name, spec=new.spec, request=new.request, terms=new.terms, sweep=new.sweep, kind=new.kind
    )


def prioritize(fleet: Fleet, event: PriorityRequested, now: float) -> list[Effect]:
    """It waits among others from now on, by its arrival as before. What runs keeps its room; for whom it gives way may
    change."""
    job, row = fleet.jobs.get(event.job_id), row_of(fleet, event.job_id, event.row)
    if row is None:
        return [Refuse(ref=event.ref, error=NotFound(f"there is no job {event.job_id}"))]
    if job is None or job.state in states.TERMINAL:
        return [Refuse(ref=event.ref, error=Conflict(f"{event.job_id} has ended, and has no priority any more"))]
    alter(fleet, job, job.shape.request, msgspec.structs.replace(job.terms, priority=event.priority))
    fleet.touched.terms[job.id] = JobTerms(
        id=job.id,
        name=row.name,
        spec=row.spec,
        request=row.request,
        terms=job.terms,
        sweep=row.sweep,
        kind=row.kind,
    )
    told = f"its priority is {event.priority}"
    fleet.announce(now, "job", job.id, state=job.state, user=job.user, reason=told)
    return [Answer(ref=event.ref, ids=[job.id])]


def row_of(fleet: Fleet, job_id: str, row: JobRecord | None) -> JobRecord | None:
    """The job's row, as the ledger has it or as this batch has left it so far."""
    row = fleet.touched.new_jobs.get(job_id) or row
    changed = fleet.touched.terms.get(job_id)
    if row is None or changed is None:
        return row
    kept = {name: getattr(changed, name) for name in ("name", "spec", "request", "terms", "sweep", "kind")}
    return msgspec.structs.replace(row, **kept)


def cancel(fleet: Fleet, event: CancelRequested, now: float) -> list[Effect]:
    """Shows at once; the processes follow, and their room with them. What has ended stays as it is."""
    answer = Answer(ref=event.ref, ids=[event.job_id])
    job = fleet.jobs.get(event.job_id)
    if job is None:
        return [answer]
    if event.index is None or job.is_gang:
        return [answer, *cancel_job(fleet, job, event.reason, now)]
    return [answer, *cancel_task(fleet, job, event.index, event.reason, now)]


def requeue(fleet: Fleet, event: RequeueRequested, now: float) -> list[Effect]:
    """Run again, from any state: fenced first, placed when the old process is gone."""
    job = fleet.jobs.get(event.job_id)
    known = job or event.ended
    if known is not None and known.terms.model:
        detail = f"{event.job_id} is one process of a model; the gateway loads the model anew when it is asked for"
        return [Refuse(ref=event.ref, error=Conflict(detail))]
    if job is None:
        if event.ended is None or event.job_id in fleet.touched.gone.jobs:
            return [Refuse(ref=event.ref, error=NotFound(f"there is no job {event.job_id}"))]
        job = revive(fleet, event.ended, now)
        fleet.enter_job(job)
    if event.anew is not None and job.state in states.TERMINAL:
        make_like(fleet, job, event.anew)
    _need(fleet, job, event.depends_on)
    job.cancelled = False
    if job.state in states.TERMINAL:
        job.blocked_on = None  # an operator wants it to run, whatever became of what it waited for
    fleet.begin_wait(job, now)
    effects: list[Effect] = [Answer(ref=event.ref, ids=[event.job_id])]
    if job.size:
        _undrop(fleet, job, event.index)
    for task in _to_run_again(fleet, job, event):
        effects += _again(fleet, task, now)
    if job.size:
        attempts.derive_array(fleet, job, now)
    fleet.watch_wait(job)
    return effects


def _to_run_again(fleet: Fleet, job: Job, event: RequeueRequested) -> list[Task]:
    """One index, or all that have not succeeded, or, where all have, all."""
    for record in event.ended_tasks:
        if record.index not in (job.tasks or {}):
            revive_task(fleet, job, record)
    tasks = list((job.tasks or {}).values())
    if job.is_gang:
        return tasks
    if event.index is not None:
        return [task for task in tasks if task.index == event.index]
    if job.state == states.SUCCEEDED:
        return tasks
    return [task for task in tasks if task.state != states.SUCCEEDED]


def _undrop(fleet: Fleet, job: Job, index: int | None) -> None:
    """What ended without being placed waits again: all of it, or one index."""
    kept: list[Dropped] = []
    for one in job.dropped:
        if index is None:
            back: Ranges = ((one.low, one.high),)
        elif one.low <= index < one.high:
            back = ((index, index + 1),)
            rest = without_index(((one.low, one.high),), index)
            kept += [Dropped(low, high, one.state, one.reason) for low, high in rest]
        else:
            kept.append(one)
            continue
        _uncount(job, one.state, sum(high - low for low, high in back))
        job.waiting = merge(job.waiting, back)
    job.dropped = tuple(kept)
    fleet.line_up(job)


def _again(fleet: Fleet, task: Task, now: float) -> list[Effect]:
    if task.state == states.PENDING and not task.resting:
        return []
    effects: list[Effect] = []
    if task.state in states.TERMINAL:
        _uncount(task.job, task.state)
    elif task.holder is not None:
        effects = attempts.stop(fleet, task.holder, "requeued")
    if task.holder is not None:
        task.holder.spends = False  # the budget begins anew
    task.attempt = ""
    task.worker = ""
    task.done = task.resting = False
    task.health = ""
    task.losses = task.failures = 0
    task.used_s = 0.0
    task.exit_code = None
    task.result, task.result_id, task.artifact_id, task.metrics = None, "", "", {}
    task.started_at = None
    attempts.back_to_pending(fleet, task, "requeued", now)
    return effects


def _uncount(job: Job, state: str, count: int = 1) -> None:
    assert job.ended is not None
    job.ended[state] -= count
    if not job.ended[state]:
        del job.ended[state]


def revive(fleet: Fleet, record: JobRecord, now: float) -> Job:
    """A job from its row."""
    if record.outgrown_mib:
        fleet.followers.outgrown_mib[record.id] = record.outgrown_mib
    counts = record.counts if record.size else ({record.state: 1} if record.state in states.TERMINAL else {})
    return Job(
        id=record.id,
        seq=record.seq,
        user=intern(record.user),
        shape=fleet.index.shape(_request(fleet, record), fleet.workers.values()),
        terms=fleet.shared_terms(record.terms),
        size=record.size,
        queued=now - max(0.0, fleet.wall(now) - (record.queued_at or record.submitted_at)),
        queued_at=record.queued_at,
        state=intern(record.state),
        waiting=ONE if record.waiting == _ONE else tuple((low, high) for low, high in record.waiting),
        ended={state: count for state, count in counts.items() if state in states.TERMINAL and count} or None,
        finished_at=record.finished_at,
        reason=record.reason,
        snapshot=record.snapshot,
        kind=fleet.kinds.shared(record.kind),
        dropped=tuple(record.dropped),
    )


def _request(fleet: Fleet, record: JobRecord) -> Request:
    """What its row says, with what has been learnt since."""
    return grown(fitted(fleet, record.terms, record.kind, record.request), record.outgrown_mib)


def revive_task(fleet: Fleet, job: Job, record: TaskRecord) -> Task:
    task = fleet.task(job, record.index)
    if job.size:
        job.count_move(task.state, record.state)
    task.state = record.state
    task.attempt = record.attempt
    task.worker = record.worker
    task.losses, task.failures, task.used_s = record.losses, record.failures, record.used_s
    task.started_at, task.finished_at = record.started_at, record.finished_at
    task.exit_code, task.reason, task.artifact_id = record.exit_code, record.reason, record.artifact_id
    task.health = record.health
    task.metrics, task.result, task.result_id = record.metrics, record.result, record.result_id
    task.checkpoint, task.checkpoint_by = record.checkpoint, record.checkpoint_by
    checkpoints.revived(fleet, task)
    if task.state in states.TERMINAL:
        fleet.leave(job, task)
    return task


def expire_scheduling(fleet: Fleet, job: Job, reason: str, now: float) -> None:
    """Its time to be placed is over: tasks that never were end as unschedulable."""
    tasks = list((job.tasks or {}).values()) if job.size else [fleet.task(job, 0)]
    if job.is_gang and any(not task.never_placed() for task in tasks):
        return
    for task in tasks:
        if task.state == states.PENDING and task.never_placed():
            attempts.end_task(fleet, task, states.UNSCHEDULABLE, reason, now)
    if job.size:
        drop_waiting(fleet, job, states.UNSCHEDULABLE, reason, now)
