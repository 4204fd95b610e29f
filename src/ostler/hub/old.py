"""What is old enough to go, found in the ledger a page at a time: no page costs more than a few milliseconds, however
much there is."""

from math import inf

import msgspec

from ostler.core.events import OldOutput, PruneRequested, Remains
from ostler.core.pruning import SCOPE
from ostler.domain.records import DepartedRecord, JobRecord, OutputKey, digest_of
from ostler.hub.ids import given_here
from ostler.ledger.base import Ledger

AT_ONCE = 100
"""Jobs or artifacts of one page."""
ROWS = 1000
"""Rows of tasks, or lines of the feed, of one page."""
RECEIPTS = 20
"""Each names as many jobs as were submitted with it."""


class OldJobs(msgspec.Struct):
    before: float
    wall: float
    most: float = inf
    """No more of them go."""
    after: tuple[float, int] = (-inf, 0)
    done: bool = False


class OldOutputs(msgspec.Struct):
    before: float
    most_bytes: float = inf
    after: int = 0
    done: bool = False


class OldFeed(msgspec.Struct):
    before: float
    after: int = 0
    done: bool = False


class OldReceipts(msgspec.Struct):
    before: float
    done: bool = False


Page = OldJobs | OldOutputs | OldFeed | OldReceipts
"""A question to the ledger; after each answer it stands where the next one begins."""


def look_up(ledger: Ledger, event: PruneRequested) -> None:
    match event.page:
        case OldJobs():
            _jobs(ledger, event.page, event)
        case OldOutputs():
            _outputs(ledger, event.page, event)
        case OldFeed():
            lines = ledger.old_feed(before=event.page.before, after=event.page.after, limit=ROWS)
            event.feed = [seq for seq, of_a_job in lines if not of_a_job]
            event.page.after = lines[-1][0] if lines else event.page.after
            event.page.done = len(lines) < ROWS
        case OldReceipts():
            event.receipts = ledger.old_receipts(before=event.page.before, limit=RECEIPTS)
            event.page.done = len(event.receipts) < RECEIPTS


def _jobs(ledger: Ledger, page: OldJobs, event: PruneRequested) -> None:
    unfinished = ledger.kept(SCOPE)
    if unfinished:
        job_id, told = next(iter(unfinished.items()))
        first, size = map(int, told.split())
        event.remains = [_remains(ledger, job_id, first, size, ROWS)]
        return
    found = ledger.ended_jobs(before=page.before, after=page.after, limit=AT_ONCE)
    left = ROWS
    for one in found:
        if page.most <= 0 or left <= 0:
            break
        page.after = (one.job.finished_at or 0.0, one.job.seq)
        if one.stays:
            continue
        remains = _of_job(ledger, one.job, left, page.wall)
        event.jobs.append(remains)
        page.most -= 1
        left = 0 if remains.more else left - len(remains.tasks) - len(remains.feed)
    else:
        page.done = len(found) < AT_ONCE and not any(remains.more for remains in event.jobs)
    page.done = page.done or page.most <= 0


def _of_job(ledger: Ledger, job: JobRecord, most: int, wall: float) -> Remains:
    remains = _remains(ledger, job.id, 0, job.size, most)
    remains.state = job.state
    if not given_here(job.id, job.submitted_at):
        remains.departed = DepartedRecord(
            id=job.id, digest=digest_of(job.spec), state=job.state, at=wall, owner=job.user
        )
    return remains


def _remains(ledger: Ledger, job_id: str, first: int, size: int, most: int) -> Remains:
    """The tasks of an array are known by its size: those that never had rows are as good as gone."""
    end = min(size, first + most)
    tasks = [f"{job_id}.{index}" for index in range(first, end)] if size else [job_id]
    lines = ledger.feed(after=0, subject=job_id, limit=most + 1)
    more = b"%d %d" % (end, size) if end < size or len(lines) > most else b""
    return Remains(job_id=job_id, tasks=tasks, feed=[line.seq for line in lines[:most]], more=more)


def _outputs(ledger: Ledger, page: OldOutputs, event: PruneRequested) -> None:
    found = ledger.outputs(before=page.before, after=page.after, limit=AT_ONCE)
    for one in found:
        if page.most_bytes <= 0:
            break
        page.after = one.number
        if not one.stays:
            record = one.artifact
            event.outputs.append(OldOutput(record.job_id, OutputKey(id=record.id, task_id=record.task_id)))
            page.most_bytes -= record.size
    page.done = len(found) < AT_ONCE or page.most_bytes <= 0
