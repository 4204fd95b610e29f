"""What a step needs to know of what has left memory: read from the ledger and put into its event beforehand."""

from collections.abc import Callable
from functools import lru_cache

import msgspec

from ostler.core.events import (
    ClaimEnded,
    Event,
    JobsSubmitted,
    ManifestApplied,
    NewJob,
    PriorityRequested,
    PruneRequested,
    RequeueRequested,
    TaskEnded,
)
from ostler.core.manifest import ORIGIN
from ostler.domain import states
from ostler.domain.errors import BadInput
from ostler.domain.job import JobSpec, Training
from ostler.domain.records import ArtifactRecord, JobRecord
from ostler.hub import old
from ostler.hub.former_ids import identify
from ostler.hub.new_job import new_job
from ostler.hub.receipts import Receipts
from ostler.ledger.base import Ledger
from ostler.manifest import job_id, read

Read = Callable[[Ledger], None]
PAGE = 1000


class _Spec(msgspec.Struct):
    training: Training | None = None
    depends_on: list[str] = []


_spec_of = msgspec.json.Decoder(_Spec).decode


def bring(event: Event, receipts: Receipts) -> Read | None:
    """How to complete this event, where anything has to be read for it."""
    match event:
        case JobsSubmitted():
            return _submitted(event, receipts)
        case PriorityRequested():
            return lambda ledger: _prioritized(ledger, event)
        case RequeueRequested():
            return lambda ledger: _requeued(ledger, event)
        case TaskEnded() if event.artifact is not None:
            record = event.artifact
            return lambda ledger: _artifact(ledger, record)
        case ClaimEnded():
            return lambda ledger: _claim_ended(ledger, event)
        case ManifestApplied():
            return lambda ledger: _manifest(ledger, event)
        case PruneRequested():
            return lambda ledger: old.look_up(ledger, event)
        case _:
            return None


def _submitted(event: JobsSubmitted, receipts: Receipts) -> Read | None:
    wanted = [new.id for new in event.jobs if new.chosen]
    wanted += [name for new in event.jobs for name in new.depends_on]
    key = event.receipt.key if event.receipt is not None and receipts.may_have(event.receipt.key) else None
    if not wanted and key is None:
        return None

    def read(ledger: Ledger) -> None:
        event.known = ledger.jobs(wanted) if wanted else {}
        event.departed = ledger.departed(wanted) if wanted else {}
        event.answered = ledger.receipt(key) if key is not None else None

    return read


def _prioritized(ledger: Ledger, event: PriorityRequested) -> None:
    event.row = ledger.jobs([event.job_id]).get(event.job_id)


def _requeued(ledger: Ledger, event: RequeueRequested) -> None:
    """The job's row, and those of its tasks that have ended and may have left memory."""
    event.ended = ledger.jobs([event.job_id]).get(event.job_id)
    event.depends_on = _spec_of(event.ended.spec).depends_on if event.ended is not None else []
    if event.ended is not None and event.ended.origin == ORIGIN:
        event.anew = _in_the_manifest(ledger, event.ended)
    last, more = -1, True
    while more:
        page = ledger.tasks_of(event.job_id, after=last, limit=PAGE)
        event.ended_tasks += [task for task in page if task.state in states.TERMINAL]
        more = len(page) == PAGE
        last = page[-1].index if page else last


def _in_the_manifest(ledger: Ledger, row: JobRecord) -> NewJob | None:
    """What the manifest says of a job by now, if that is not what it ran with."""
    applied = ledger.manifest()
    specs = _specs(applied.text) if applied is not None else {}
    spec = specs.get(row.id) or specs.get(job_id(Training(), row.name))
    if spec is None:
        return None
    (new,), _ = identify(ledger, [new_job(spec, origin=ORIGIN)])
    return new if new.id == row.id and (new.spec, new.terms) != (row.spec, row.terms) else None


@lru_cache(maxsize=1)
def _specs(manifest: str) -> dict[str, JobSpec]:
    try:
        return {spec.id: spec for spec in read(manifest.encode(), "").specs}
    except BadInput:  # it was good for the version that applied it
        return {}


def _claim_ended(ledger: Ledger, event: ClaimEnded) -> None:
    event.history = ledger.attempts_of(event.end.task_id)
    if event.end.artifact is not None:
        _artifact(ledger, event.end.artifact)


def _artifact(ledger: Ledger, record: ArtifactRecord) -> None:
    """Whose it is, and what it was made for."""
    job = ledger.jobs([record.job_id]).get(record.job_id)
    if job is not None:
        training = _spec_of(job.spec).training or Training()
        record.name, record.user = job.name, job.user
        record.model, record.mode = training.model, training.mode


def _manifest(ledger: Ledger, event: ManifestApplied) -> None:
    event.jobs, event.known = identify(ledger, event.jobs)
    event.live = {view.job.id: view.job.name for view in ledger.manifest_jobs(states=states.LIVE)}
