"""How fast the SQLite ledger takes in jobs, moves them on, and comes back: `python benchmarks/ledger.py [folder]`.

The folder decides which disk is measured; the default is the temporary folder. Once with ids in order of time and
once with random ones, which spread every commit over all pages of the indexes.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ostler.domain.job import JobSpec
from ostler.domain.records import AttemptRecord, FeedRecord, JobProgress, JobRecord, TaskRecord
from ostler.ledger.base import Changes
from ostler.ledger.sqlite import SqliteLedger

SPEC = JobSpec(command=["python", "train.py", "--epochs", "3"], gpu_count=1, min_vram_gb=40, env={"SEED": "1"})
SPEC_BYTES = b'{"command":["python","train.py","--epochs","3"],"gpu_count":1,"min_vram_gb":40,"env":{"SEED":"1"}}'
NOW = 1_800_000_000.0

BULK = range(1, 50_001)
SINGLE = range(50_001, 50_301)
MOVED = BULK[:20_000]
MOVED_ALONE = BULK[20_000:20_300]

Ids = Callable[[int], str]


def ordered(seq: int) -> str:
    return f"job-{seq:012x}"


def spread(seq: int) -> str:
    return f"job-{seq * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFF:012x}"


def submitted(ids: Ids, seqs: range) -> Changes:
    jobs = [
        JobRecord(
            id=ids(seq),
            seq=seq,
            user=f"user-{seq % 20}",
            name=f"sweep-{seq // 50}",
            spec=SPEC_BYTES,
            request=SPEC.request(),
            terms=SPEC.terms(),
            size=0,
            state="pending",
            submitted_at=NOW,
            waiting=[(0, 1)],
        )
        for seq in seqs
    ]
    return Changes(new_jobs=jobs, feed=[line(seq, "submitted", ids(seq)) for seq in seqs])


def moved(ids: Ids, seqs: range, state: str, feed_from: int) -> Changes:
    """Job, task, attempt and a line of the feed: what one move of one single-task job writes."""
    ended = state == "succeeded"
    changes = Changes()
    for seq in seqs:
        id_ = ids(seq)
        attempt = f"{id_}-1"
        changes.progress.append(JobProgress(id=id_, state=state, finished_at=NOW if ended else None))
        changes.tasks.append(TaskRecord(id=id_, job_id=id_, index=0, state=state, attempt=attempt, worker="w-17"))
        changes.attempts.append(
            AttemptRecord(
                attempt=attempt, task_id=id_, job_id=id_, worker="w-17", state=state, held=not ended, assigned_at=NOW
            )
        )
        changes.feed.append(line(feed_from + seq, state, id_))
    return changes


def line(seq: int, kind: str, subject: str) -> FeedRecord:
    return FeedRecord(seq=seq, at=NOW, kind=kind, subject=subject, body={"worker": "w-17"})


def measure(title: str, make: Callable[[range], Changes], ledger: SqliteLedger, seqs: range, batch: int) -> None:
    batches = [make(seqs[start : start + batch]) for start in range(0, len(seqs), batch)]
    took: list[float] = []
    for changes in batches:
        begun = time.perf_counter()
        ledger.commit(changes)
        took.append(time.perf_counter() - begun)
    took.sort()
    print(
        f"  {title:28} batches of {batch:4}: {len(seqs) / sum(took):9,.0f} jobs/s, "
        f"p50 {took[len(took) // 2] * 1e3:6.2f} ms, p99 {took[int(len(took) * 0.99)] * 1e3:6.2f} ms"
    )


@contextmanager
def timed(title: str) -> Iterator[None]:
    begun = time.perf_counter()
    yield
    print(f"  {title:46} {(time.perf_counter() - begun) * 1e3:9.2f} ms")


def write(ledger: SqliteLedger, ids: Ids) -> None:
    def move(state: str, feed_from: int) -> Callable[[range], Changes]:
        return lambda seqs: moved(ids, seqs, state, feed_from)

    measure("new jobs and feed", lambda seqs: submitted(ids, seqs), ledger, BULK, 1000)
    measure("new jobs and feed", lambda seqs: submitted(ids, seqs), ledger, SINGLE, 1)
    measure("to running", move("running", 1_000_000), ledger, MOVED, 1000)
    measure("to succeeded", move("succeeded", 2_000_000), ledger, MOVED, 1000)
    measure("to running", move("running", 3_000_000), ledger, MOVED_ALONE, 1)


def read(ledger: SqliteLedger, ids: Ids) -> None:
    some = [ids(seq) for seq in BULK[:1000]]
    calls: dict[str, Callable[[], Any]] = {
        "list_jobs, newest 100": lambda: ledger.list_jobs(),
        "list_jobs, 100 of a user": lambda: ledger.list_jobs(user="user-7"),
        "list_jobs, 100 in one of three states": lambda: ledger.list_jobs(states=("succeeded", "failed", "running")),
        "jobs, 1000 ids": lambda: ledger.jobs(some),
        "specs, 1000 ids": lambda: ledger.specs(some),
        "feed, 1000 lines": lambda: ledger.feed(after=5_000),
    }
    for title, call in calls.items():
        with timed(title):
            call()


def main(folder: str | None) -> None:
    for title, ids in (("ids in order of time", ordered), ("random ids", spread)):
        print(title)
        with TemporaryDirectory(dir=folder) as temporary:
            path = Path(temporary, "ostler.db")
            ledger = SqliteLedger(path)
            write(ledger, ids)
            read(ledger, ids)
            ledger.close()
            with timed(f"open, {path.stat().st_size >> 20} MiB"):
                ledger = SqliteLedger(path)
            with timed(f"load, {len(BULK) + len(SINGLE) - len(MOVED):,} live jobs"):
                ledger.load()
            ledger.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
