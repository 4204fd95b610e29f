"""Every ledger there is, rows to write into one, and every read that one answers. A new ledger is a line in LEDGERS."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.ledger.server import server

from ostler.domain.job import Terms
from ostler.domain.labels import Constraint
from ostler.domain.records import (
    ArtifactRecord,
    AttemptRecord,
    FeedRecord,
    JobRecord,
    JobTerms,
    ManifestRecord,
    TaskRecord,
    TokenRecord,
    WorkerRecord,
)
from ostler.domain.resources import Request
from ostler.domain.states import LIVE, TERMINAL
from ostler.ledger.base import JobView, Ledger
from ostler.ledger.memory import MemoryLedger
from ostler.ledger.postgres import PostgresLedger
from ostler.ledger.sqlite import SqliteLedger


def _leading(url: str) -> PostgresLedger:
    ledger = PostgresLedger(url)
    ledger.lead("conformance")
    return ledger


LEDGERS: dict[str, Callable[[Path], Ledger]] = {
    "memory": lambda folder: MemoryLedger(),
    "sqlite": lambda folder: SqliteLedger(folder / "ostler.db"),
    "postgres": lambda folder: _leading(server().emptied()),
}

POOL = ["a", "A", "a%", "a_b", "ab", "é", "日本", "job-1"]
"""Ids, names and users that a careless comparison would confuse."""
REQUEST = Request(
    gpu_count=2,
    gpu_type="h100",
    backend="nvidia",
    vram_mib=81_920,
    cores_milli=1_500,
    memory_mib=4_096,
    labels=(Constraint("zone", "in", "eu,ü"), Constraint("nvlink", "exists")),
    prefer=(Constraint("driver", ">=", "550"),),
)
TERMS = Terms(priority=-3, tier="training", max_attempts=7, max_retries=2, max_runtime_s=0.5)


def job(seq: int, id_: str = "", **fields: Any) -> JobRecord:
    known: dict[str, Any] = {
        "user": "ada",
        "name": "",
        "spec": b'{"command":["true"]}',
        "request": Request(),
        "terms": Terms(),
        "size": 0,
        "state": "pending",
        "submitted_at": 1000.0 + seq,
    }
    return JobRecord(id=id_ or f"job-{seq}", seq=seq, **(known | fields))


def task(job_id: str, index: int = 0, id_: str = "", **fields: Any) -> TaskRecord:
    return TaskRecord(id=id_ or job_id, job_id=job_id, index=index, **({"state": "running"} | fields))


def attempt(name: str, task_id: str, job_id: str = "", **fields: Any) -> AttemptRecord:
    known: dict[str, Any] = {"worker": "w", "state": "running", "assigned_at": 5.0}
    return AttemptRecord(attempt=name, task_id=task_id, job_id=job_id or task_id, **(known | fields))


def line(seq: int, subject: str = "job-1", **body: str | int | float | None) -> FeedRecord:
    return FeedRecord(seq=seq, at=seq / 7, kind="job", subject=subject, body=body)


def token(id_: str, **fields: Any) -> TokenRecord:
    known: dict[str, Any] = {"role": "user", "user": "ada", "digest": "d", "created_at": 1.0}
    return TokenRecord(id=id_, **(known | fields))


def worker(id_: str, **fields: Any) -> WorkerRecord:
    known: dict[str, Any] = {"capabilities": b"{}", "registered_at": 1.0, "last_contact": 2.0}
    return WorkerRecord(id=id_, **(known | fields))


def terms(id_: str, **fields: Any) -> JobTerms:
    known: dict[str, Any] = {"name": "", "spec": b"{}", "request": Request(), "terms": Terms()}
    return JobTerms(id=id_, **(known | fields))


def artifact(id_: str, task_id: str = "job-1", job_id: str = "", **fields: Any) -> ArtifactRecord:
    return ArtifactRecord(id=id_, task_id=task_id, job_id=job_id or task_id, **fields)


def manifest(text: str, **fields: Any) -> ManifestRecord:
    known: dict[str, Any] = {"file": "fleet.toml", "by": "ada", "applied_at": 1.0}
    return ManifestRecord(text=text, **(known | fields))


def ids(views: list[JobView]) -> list[str]:
    return [view.job.id for view in views]


def everything(ledger: Ledger) -> dict[str, Any]:
    """Every read there is, with every kind of argument."""
    names, subjects = [*POOL, "nobody", ""], [*POOL, ""]
    task_ids = [*POOL, *(f"{name}.{index}" for name in POOL for index in range(3))]
    return {
        "load": ledger.load(),
        "jobs": ledger.jobs(names),
        "specs": ledger.specs(names),
        "tasks": ledger.tasks(task_ids),
        "tasks_of": [ledger.tasks_of(name, after=after, limit=2) for name in names for after in (-1, 0, 1)],
        "ended_tasks_of": [ledger.ended_tasks_of(name, after=after, limit=2) for name in names for after in (-1, 0, 1)],
        "attempts_of": [ledger.attempts_of(id_) for id_ in task_ids],
        "states": [ledger.list_jobs(states=states) for states in ((), LIVE, TERMINAL, ("pending",), ("nonsense",))],
        "users": [ledger.list_jobs(user=user, states=states) for user in names for states in ((), LIVE)],
        "names": [ledger.list_jobs(name=name, states=states) for name in names for states in ((), TERMINAL)],
        "both": [ledger.list_jobs(name=name, user=user) for name in names for user in names],
        "pages": [ledger.list_jobs(before=before, limit=limit) for before in (None, 0, 7) for limit in (0, 1, 3)],
        "matching": [ledger.matching_ids(prefix, limit=3) for prefix in names],
        "named": [ledger.newest_named(name) for name in names],
        "feed": [ledger.feed(after=after, subject=s, limit=4) for after in (-1, 0, 5) for s in subjects],
        "manifest": ledger.manifest(),
        "manifest jobs": [
            ledger.manifest_jobs(sweep=s, states=states) for s in names for states in ((), LIVE, ("nonsense",))
        ],
        "named manifest jobs": [ledger.manifest_jobs(name=name, states=s) for name in names for s in ((), LIVE)],
        "artifacts": ledger.artifacts(),
        "artifact ids": [ledger.artifacts(ids=[a, b]) for a in names for b in ("a", "nobody")],
        "artifacts of": [ledger.artifacts(**{field: name}) for field in ("job_id", "model", "user") for name in names],
        "both of": [ledger.artifacts(ids=POOL[:4], job_id=a, model=b, user=a) for a in names for b in names],
        "artifact pages": [ledger.artifacts(before=before, limit=n) for before in (None, 0, 3) for n in (0, 1, 2)],
        "wanted": ledger.wanted_artifacts(),
        "receipts": [ledger.receipt(key) for key in names],
        "tokens": ledger.token_list(),
        "kept": [ledger.kept(scope) for scope in (*names, "kind")],
    }
