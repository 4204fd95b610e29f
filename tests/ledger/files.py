"""Ledgers in files, and what a test does to them."""

from pathlib import Path

import apsw

from ostler.domain.job import Terms
from ostler.domain.records import (
    ArtifactRecord,
    AttemptRecord,
    Changes,
    DepartedRecord,
    FeedRecord,
    JobProgress,
    JobRecord,
    JobTerms,
    KeptRecord,
    ManifestRecord,
    NeedRecord,
    OutputKey,
    ReceiptRecord,
    TaskRecord,
    TokenRecord,
    UsageRecord,
    WorkerRecord,
)
from ostler.domain.resources import Request
from ostler.ledger.sqlite import SqliteLedger
from ostler.ledger.sqlite_sound import connect


def new_job(seq: int, spec: bytes = b"{}") -> JobRecord:
    return JobRecord(
        id=f"job-{seq}",
        seq=seq,
        user="ada",
        name="n",
        spec=spec,
        request=Request(),
        terms=Terms(),
        size=0,
        state="pending",
        submitted_at=1.0,
    )


def of_every_kind(seq: int) -> Changes:
    """It also removes the artifact of the one before."""
    id_ = f"job-{seq}"
    return Changes(
        new_jobs=[new_job(seq)],
        progress=[JobProgress(id=id_, state="running")],
        tasks=[TaskRecord(id=id_, job_id=id_, index=0, state="running")],
        attempts=[AttemptRecord(attempt=id_, task_id=id_, job_id=id_, worker="w", state="running", assigned_at=1.0)],
        workers=[WorkerRecord(id=id_, capabilities=b"{}", registered_at=1.0, last_contact=1.0)],
        feed=[FeedRecord(seq=seq, at=1.0, kind="job", subject=id_, body={"worker": "w"})],
        tokens=[TokenRecord(id=id_, role="user", user="ada", digest="d", created_at=1.0)],
        receipts=[ReceiptRecord(key=id_, digest="d", ids=[id_], at=1.0)],
        usage=[UsageRecord(user=id_, gpu_seconds=1.0, at=1.0)],
        changed_terms=[JobTerms(id=id_, name="n", spec=b"{}", request=Request(), terms=Terms(priority=seq))],
        artifacts=[ArtifactRecord(id=f"of {id_}", task_id=id_, job_id=id_)],
        gone_artifacts=[f"of job-{seq - 1}"],
        manifest=[ManifestRecord(text=f"# {seq}", file="fleet.toml", by="ada", applied_at=1.0)],
        kept=[KeptRecord(scope="kind", key=id_, value=b"{}")],
        needs=[NeedRecord(job_id=id_, on_id=f"job-{seq - 1}")],
        departed=[DepartedRecord(id=f"old-{seq}", digest="d", state="failed", at=1.0)],
        gone_jobs=[f"old-{seq}"],
        gone_tasks=[f"old-{seq}"],
        gone_outputs=[OutputKey(id="o", task_id=f"old-{seq}")],
        gone_feed=[-seq],
        gone_receipts=[f"old-{seq}"],
    )


def filled(path: Path, jobs: int = 200) -> None:
    ledger = SqliteLedger(path)
    ledger.commit(Changes(new_jobs=[new_job(seq, b"s" * 500) for seq in range(1, jobs + 1)]))
    ledger.close()


def altered(path: Path, sql: str) -> None:
    """As another program would, but with the checksums kept right."""
    db = connect(path, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
    for _ in db.execute(sql):
        pass
    db.close()
