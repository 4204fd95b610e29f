"""Finds the jobs of a manifest in the ledger, also under the ids that older versions gave them."""

from collections.abc import Sequence

import msgspec

from ostler.core.events import NewJob
from ostler.domain import states
from ostler.domain.job import JobSpec, Training
from ostler.domain.records import JobRecord
from ostler.hub.new_job import one_more
from ostler.ledger.base import Ledger
from ostler.manifest import former_job_id, job_id

_spec_of = msgspec.json.Decoder(JobSpec).decode


class _Trained(msgspec.Struct):
    training: Training | None = None


_trained = msgspec.json.Decoder(_Trained).decode


def identify(ledger: Ledger, jobs: Sequence[NewJob]) -> tuple[list[NewJob], dict[str, JobRecord]]:
    """Returns the jobs with the ids that the ledger has them under, and their rows by these ids.

    Older versions hashed what a job without a model trains. Such a row is found by its name and keeps its id: under
    a new id, a job that has ended would run again.
    """
    known = ledger.jobs([new.id for new in jobs])
    by_name = {new.name: new for new in jobs if new.id not in known and new.id == job_id(Training(), new.name)}
    former = _former_rows(ledger, by_name) if by_name else {}
    if not former:
        return list(jobs), known
    known |= {row.id: row for row in former.values()}
    return [_under(former[new.id].id, new) if new.id in former else new for new in jobs], known


def _former_rows(ledger: Ledger, by_name: dict[str, NewJob]) -> dict[str, JobRecord]:
    """The row of each job that has one, by the id that the manifest gives the job."""
    found: dict[str, list[JobRecord]] = {}
    # One name goes by its index: each requeue asks for one, and a sweep may be requeued at once.
    for view in ledger.manifest_jobs(name=next(iter(by_name)) if len(by_name) == 1 else ""):
        new = by_name.get(view.job.name)
        if new is not None and not _training_of(view.job.spec).model:
            found.setdefault(new.id, []).append(view.job)
    named = {new.id: new for new in by_name.values()}
    return {name: _likeliest(rows, former_job_id(_training_of(named[name].spec))) for name, rows in found.items()}


def _likeliest(rows: list[JobRecord], former_id: str) -> JobRecord:
    """Several jobs could share a name: the one that trains the same, else one that has not ended, else the newest."""
    return max(rows, key=lambda row: (row.id == former_id, row.state in states.LIVE, row.seq))


def _training_of(spec: bytes) -> Training:
    return _trained(spec).training or Training()


def _under(name: str, new: NewJob) -> NewJob:
    return one_more(new, _spec_of(new.spec), name)
