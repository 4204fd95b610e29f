"""The queue follows a manifest: what is new is queued, what changed is changed, what is gone stays until cancelled.

A job that is there keeps its state; only a job that has not ended is changed, and what runs of it runs on as it was
granted. One that has ended says what it ran with; if it is to run again, it does so as the manifest has it by then.
Only an apply that may replace names gives a job another one: a new name is more often meant for a new job.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from ostler.core import jobs, workers
from ostler.core.effects import Followed, ManifestChange, ManifestLine, Refuse
from ostler.core.events import ManifestApplied, NewJob
from ostler.core.fleet import Fleet, Job
from ostler.core.portions import Portions, in_portions
from ostler.domain import states
from ostler.domain.errors import Conflict, OstlerError
from ostler.domain.hosts import HostPolicy
from ostler.domain.job import ERRORS_TOLD, JobSpec, Training
from ostler.domain.records import JobRecord, JobTerms

ORIGIN = "manifest"
INSERTED, UNCHANGED, UPDATED, ABSENT = "inserted", "unchanged", "updated", "absent"
CHANGES = (INSERTED, UNCHANGED, UPDATED, ABSENT)
DEFAULTS: dict[str, Any] = msgspec.to_builtins(
    {
        name: getattr(part, name)
        for part in (JobSpec(), Training())
        for name in part.__struct_fields__
        if name != "training"
    }
)
"""Of the fields that a spec leaves out, for the values that a plan shows."""


def follow(fleet: Fleet, event: ManifestApplied, now: float) -> Portions:
    """All of it or nothing."""
    known = {new.id: _known(fleet, event, new.id) for new in event.jobs}
    fresh = {new.id: new for new in event.jobs if known[new.id] is None}
    refused = _by_hand(event, known) or _renamed(event, known) or jobs.over_quota(fleet, fresh)
    if refused is not None:
        return [Refuse(ref=event.ref, error=refused)]
    lines: list[ManifestLine] = []
    for some in in_portions(event.jobs):
        lines += [_line(fleet, event, new, known[new.id]) for new in some]
        yield
    lines += _absent(fleet, event)
    if not event.plan:
        yield from _apply(fleet, event, lines, known, now)
    return [Followed(ref=event.ref, lines=lines)]


def _known(fleet: Fleet, event: ManifestApplied, job_id: str) -> JobRecord | None:
    """The job's row, as the ledger has it or as this batch has left it so far."""
    return jobs.row_of(fleet, job_id, event.known.get(job_id))


def _by_hand(event: ManifestApplied, known: dict[str, JobRecord | None]) -> OstlerError | None:
    for new in event.jobs:
        row = known[new.id]
        if row is not None and row.origin != ORIGIN:
            told = f"{new.name}: a job that was submitted by hand has its id, {row.id}"
            advice = "id, by another seed or another key in hyper" if new.request.model else "name"
            return Conflict(f"{told}; give the entry another {advice}")
    return None


def _renamed(event: ManifestApplied, known: dict[str, JobRecord | None]) -> OstlerError | None:
    """The refusal of an apply that would give existing jobs other names."""
    if event.plan or event.replace:
        return None
    rows = ((known[new.id], new) for new in event.jobs)
    found = [f"'{row.name}' would become '{new.name}'" for row, new in rows if row is not None and row.name != new.name]
    if not found:
        return None
    more = f", and {len(found) - ERRORS_TOLD} more" if len(found) > ERRORS_TOLD else ""
    advice = "for a new job change its model, mode, hyper, split_recipe, train_hosts or seed; to rename, use --replace"
    return Conflict(f"jobs that exist have other names: {', '.join(found[:ERRORS_TOLD])}{more}; {advice}")


def _line(fleet: Fleet, event: ManifestApplied, new: NewJob, row: JobRecord | None) -> ManifestLine:
    if row is None:
        return ManifestLine(job_id=new.id, name=new.name, change=INSERTED, state=states.PENDING)
    job = fleet.jobs.get(new.id)
    state = job.state if job is not None else row.state
    differs = _differences(row, new)
    changes = _changes(row, new) if differs and event.plan else []
    is_updated = "name" in differs or (differs and state not in states.TERMINAL)
    change = UPDATED if is_updated else UNCHANGED
    return ManifestLine(job_id=new.id, name=new.name, change=change, state=state, differs=differs, changes=changes)


def _differences(row: JobRecord, new: NewJob) -> list[str]:
    """Its priority may have been changed by hand."""
    differs = {"priority"} if row.terms.priority != new.terms.priority else set()
    if row.spec != new.spec:
        before, after = msgspec.json.decode(row.spec), msgspec.json.decode(new.spec)
        differs |= {key for key in {*before, *after} if before.get(key) != after.get(key)}
    return sorted(differs)


def _changes(row: JobRecord, new: NewJob) -> list[ManifestChange]:
    before = _values(row.spec) | {"priority": row.terms.priority}
    after = _values(new.spec)
    keys = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
    return [ManifestChange(key, before.get(key), after.get(key)) for key in keys]


def _values(spec: bytes) -> dict[str, Any]:
    """The fields of a spec with their defaults; each hyperparameter and variable is a field of its own."""
    given = msgspec.json.decode(spec)
    training = given.pop("training", {})
    values: dict[str, Any] = DEFAULTS | given | training
    for table in ("hyper", "env"):
        values |= {f"{table}.{key}": value for key, value in values.pop(table).items()}
    return values


def _absent(fleet: Fleet, event: ManifestApplied) -> list[ManifestLine]:
    named = {new.id for new in event.jobs}
    there = event.live | {row.id: row.name for row in fleet.touched.new_jobs.values() if row.origin == ORIGIN}
    return [
        ManifestLine(job_id=job_id, name=name, change=ABSENT, state=job.state)
        for job_id, name in there.items()
        if job_id not in named and (job := fleet.jobs.get(job_id)) is not None and job.state in states.LIVE
    ]


def _apply(
    fleet: Fleet, event: ManifestApplied, lines: list[ManifestLine], known: dict[str, JobRecord | None], now: float
) -> Iterator[None]:
    set_hosts(fleet, event.hosts)
    for some in in_portions(list(zip(event.jobs, lines, strict=False))):
        for new, line in some:
            if line.change == INSERTED:
                jobs.let_wait(fleet, jobs.add(fleet, new, now), [], {}, now)
            elif line.change == UPDATED and (row := known[new.id]) is not None and line.state in states.TERMINAL:
                _rename(fleet, row, new, now)
            elif line.change == UPDATED:
                _change(fleet, fleet.jobs[new.id], new, line, now)
        yield
    event.record.applied_at = fleet.wall(now)
    fleet.touched.manifest = [event.record]


def _change(fleet: Fleet, job: Job, new: NewJob, line: ManifestLine, now: float) -> None:
    jobs.make_like(fleet, job, new)
    changed = ", ".join(line.differs)
    fleet.announce(now, "job", job.id, state=job.state, user=job.user, reason=f"the manifest changed its {changed}")


def _rename(fleet: Fleet, row: JobRecord, new: NewJob, now: float) -> None:
    """Gives a job that has ended another name, and the sweep that goes with it; the rest says what the job ran with."""
    spec = msgspec.json.decode(row.spec)
    spec["name"] = new.name
    if new.sweep:
        spec["training"]["sweep"] = new.sweep
    else:
        spec["training"].pop("sweep", None)
    fleet.touched.terms[row.id] = JobTerms(
        id=row.id,
        name=new.name,
        spec=msgspec.json.encode(spec),
        request=row.request,
        terms=row.terms,
        sweep=new.sweep,
        kind=row.kind,
    )
    # Without a state: observers count every line with one as an end.
    fleet.announce(now, "job", row.id, user=row.user, name=new.name, reason="the manifest changed its name")


def set_hosts(fleet: Fleet, hosts: dict[str, HostPolicy]) -> None:
    """What the manifest says of hosts holds for those that are here and for those that come."""
    fleet.hosts = hosts
    for worker in fleet.workers.values():
        workers.set_offer(fleet, worker, worker.capabilities)
