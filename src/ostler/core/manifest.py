"""The queue follows a manifest: what is new is queued, what changed is changed, what is gone stays until cancelled.

A job that is there keeps its state; only a job that has not ended is changed, and what runs of it runs on as it was
granted. One that has ended says what it ran with; if it is to run again, it does so as the manifest has it by then.
"""

from collections.abc import Iterator

import msgspec

from ostler.core import jobs, workers
from ostler.core.effects import Followed, ManifestLine, Refuse
from ostler.core.events import ManifestApplied, NewJob
from ostler.core.fleet import Fleet, Job
from ostler.core.portions import Portions, in_portions
from ostler.domain import states
from ostler.domain.errors import Conflict, OstlerError
from ostler.domain.hosts import HostPolicy
from ostler.domain.records import JobRecord

ORIGIN = "manifest"
INSERTED, UNCHANGED, UPDATED, ABSENT = "inserted", "unchanged", "updated", "absent"
CHANGES = (INSERTED, UNCHANGED, UPDATED, ABSENT)


def follow(fleet: Fleet, event: ManifestApplied, now: float) -> Portions:
    """All of it or nothing."""
    known = {new.id: _known(fleet, event, new.id) for new in event.jobs}
    fresh = {new.id: new for new in event.jobs if known[new.id] is None}
    refused = _by_hand(event, known) or jobs.over_quota(fleet, fresh)
    if refused is not None:
        return [Refuse(ref=event.ref, error=refused)]
    lines: list[ManifestLine] = []
    for some in in_portions(event.jobs):
        lines += [_line(fleet, new, known[new.id]) for new in some]
        yield
    lines += _absent(fleet, event)
    if not event.plan:
        yield from _apply(fleet, event, lines, now)
    return [Followed(ref=event.ref, lines=lines)]


def _known(fleet: Fleet, event: ManifestApplied, job_id: str) -> JobRecord | None:
    """The job's row, as the ledger has it or as this batch has left it so far."""
    return jobs.row_of(fleet, job_id, event.known.get(job_id))


def _by_hand(event: ManifestApplied, known: dict[str, JobRecord | None]) -> OstlerError | None:
    for new in event.jobs:
        row = known[new.id]
        if row is not None and row.origin != ORIGIN:
            told = f"{new.name}: a job that was submitted by hand has its id, {row.id}"
            return Conflict(f"{told}; give the entry another one, by another seed or another key in hyper")
    return None


def _line(fleet: Fleet, new: NewJob, row: JobRecord | None) -> ManifestLine:
    if row is None:
        return ManifestLine(job_id=new.id, name=new.name, change=INSERTED, state=states.PENDING)
    job = fleet.jobs.get(new.id)
    state = job.state if job is not None else row.state
    differs = _differences(row, new)
    change = UPDATED if differs and state not in states.TERMINAL else UNCHANGED
    return ManifestLine(job_id=new.id, name=new.name, change=change, state=state, differs=differs)


def _differences(row: JobRecord, new: NewJob) -> list[str]:
    """Its priority may have been changed by hand."""
    differs = {"priority"} if row.terms.priority != new.terms.priority else set()
    if row.spec != new.spec:
        before, after = msgspec.json.decode(row.spec), msgspec.json.decode(new.spec)
        differs |= {key for key in {*before, *after} if before.get(key) != after.get(key)}
    return sorted(differs)


def _absent(fleet: Fleet, event: ManifestApplied) -> list[ManifestLine]:
    named = {new.id for new in event.jobs}
    there = event.live | {row.id: row.name for row in fleet.touched.new_jobs.values() if row.origin == ORIGIN}
    return [
        ManifestLine(job_id=job_id, name=name, change=ABSENT, state=job.state)
        for job_id, name in there.items()
        if job_id not in named and (job := fleet.jobs.get(job_id)) is not None and job.state in states.LIVE
    ]


def _apply(fleet: Fleet, event: ManifestApplied, lines: list[ManifestLine], now: float) -> Iterator[None]:
    set_hosts(fleet, event.hosts)
    for some in in_portions(list(zip(event.jobs, lines, strict=False))):
        for new, line in some:
            if line.change == INSERTED:
                jobs.let_wait(fleet, jobs.add(fleet, new, now), [], {}, now)
            elif line.change == UPDATED:
                _change(fleet, fleet.jobs[new.id], new, line, now)
        yield
    event.record.applied_at = fleet.wall(now)
    fleet.touched.manifest = [event.record]


def _change(fleet: Fleet, job: Job, new: NewJob, line: ManifestLine, now: float) -> None:
    jobs.make_like(fleet, job, new)
    changed = ", ".join(line.differs)
    fleet.announce(now, "job", job.id, state=job.state, user=job.user, reason=f"the manifest changed its {changed}")


def set_hosts(fleet: Fleet, hosts: dict[str, HostPolicy]) -> None:
    """What the manifest says of hosts holds for those that are here and for those that come."""
    fleet.hosts = hosts
    for worker in fleet.workers.values():
        workers.set_offer(fleet, worker, worker.capabilities)
