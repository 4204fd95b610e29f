"""Columns and indexes: every field has its place, and a read does not grow with the history."""

from typing import Any

import apsw
import pytest

from ostler.ledger import rows, sqlite
from ostler.ledger.sqlite import SqliteLedger
from ostler.ledger.sqlite_file import APPLICATION_ID


def test_every_field_of_a_record_has_its_column(ledger: SqliteLedger) -> None:
    tables: dict[str, rows.Shape[Any]] = {
        "jobs": rows.JOB,
        "tasks": rows.TASK,
        "attempts": rows.ATTEMPT,
        "workers": rows.WORKER,
        "feed": rows.FEED,
        "tokens": rows.TOKEN,
        "receipts": rows.RECEIPT,
        "usage": rows.USAGE,
        "artifacts": rows.ARTIFACT,
        "manifest": rows.MANIFEST,
        "kept": rows.KEPT,
        "needs": rows.NEED,
        "departed": rows.DEPARTED,
    }
    for table, shape in tables.items():
        columns = {name for _, name, *_ in ledger._writer.execute(f"PRAGMA table_info({table})")}
        assert columns - {"n"} == set(shape.columns), table
    assert ledger._writer.pragma("application_id") == APPLICATION_ID


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (sqlite._LOAD_JOBS, "jobs_by_state (state=?)"),
        (sqlite._LOAD_JOBS, "attempts_held (held=?)"),
        (sqlite._LOAD_TASKS, "tasks_live (state=?)"),
        (sqlite._LOAD_ATTEMPTS, "attempts_held (held=?)"),
        (sqlite._TASKS_OF, "tasks_of_job (job_id=? AND idx>?)"),
        (sqlite._ATTEMPTS_OF, "attempts_of_task (task_id=?)"),
        (sqlite._MATCHING, "jobs_1 (id>? AND id<?)"),
        (sqlite._NEWEST_NAMED, "jobs_by_name (name=?)"),
        (sqlite._FEED_OF.format("ASC"), "feed_by_subject (subject=? AND rowid>?)"),
        (sqlite._FEED_OF.format("DESC"), "feed_by_subject (subject=? AND rowid>?)"),
        (sqlite._page(("failed", "running"), "", "", 9, 9)[0], "jobs_by_state (state=? AND rowid<?)"),
        (sqlite._page((), "ada", "", 9, 9)[0], "jobs_by_user (user=? AND state=? AND rowid<?)"),
        (sqlite._page(("failed",), "ada", "", 9, 9)[0], "jobs_by_user (user=? AND state=? AND rowid<?)"),
        (sqlite._page((), "", "n", 9, 9)[0], "jobs_by_name (name=? AND rowid<?)"),
        (sqlite._page(("failed",), "ada", "n", 9, 9)[0], "jobs_by_name (name=? AND rowid<?)"),
    ],
)
def test_a_read_goes_by_its_index_however_long_the_history(ledger: SqliteLedger, query: str, index: str) -> None:
    plan = plan_of(ledger, query, [0] * query.count("?"))
    assert any(index in step for step in plan), plan
    assert not scans(plan), plan


@pytest.mark.parametrize(
    ("read", "asked", "index"),
    [
        ("manifest_jobs", {}, "jobs_of_manifest"),
        ("manifest_jobs", {"states": ["succeeded"]}, "jobs_of_manifest (state=?)"),
        ("manifest_jobs", {"name": "n"}, "jobs_by_name (name=?)"),
        ("manifest_jobs", {"name": "n", "states": ["failed"]}, "jobs_by_name (name=?)"),
        ("manifest_jobs", {"sweep": "s"}, "jobs_by_sweep (sweep=?)"),
        ("manifest_jobs", {"sweep": "s", "states": ["succeeded"]}, "jobs_by_sweep (sweep=?)"),
        ("artifacts", {}, "INTEGER PRIMARY KEY (rowid<?)"),
        ("artifacts", {"before": 9}, "INTEGER PRIMARY KEY (rowid<?)"),
        ("artifacts", {"job_id": "j"}, "artifacts_of_job (job_id=? AND rowid<?)"),
        ("artifacts", {"job_id": "j", "user": "ada", "model": "m"}, "artifacts_of_job (job_id=? AND rowid<?)"),
        ("artifacts", {"model": "m", "user": "ada"}, "artifacts_by_model (model=? AND rowid<?)"),
        ("artifacts", {"user": "ada"}, "artifacts_by_user (user=? AND rowid<?)"),
        ("artifacts", {"ids": ["a"]}, "artifacts_1 (id=?)"),
        ("artifacts", {"ids": ["a"], "job_id": "j", "user": "ada"}, "artifacts_1 (id=?)"),
        ("wanted_artifacts", {}, "COVERING INDEX tasks_wanting"),
        ("ended_jobs", {"before": 9.0, "after": (1.0, 1)}, "jobs_ended (finished_at"),
        ("ended_jobs", {"before": 9.0}, "needs USING PRIMARY KEY (on_id=?)"),
        ("ended_jobs", {"before": 9.0}, "artifacts_of_job (job_id=?)"),
        ("departed", {"ids": ["a"]}, "departed USING PRIMARY KEY (id=?)"),
        ("outputs", {"before": 9.0}, "INTEGER PRIMARY KEY (rowid>?)"),
        ("ends_of", {"attempts": ["a"]}, "attempts_1 (attempt=?)"),
        ("old_feed", {"before": 9.0, "after": 3}, "INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        ("old_receipts", {"before": 9.0}, "receipts_by_age (at<?)"),
    ],
)
def test_a_read_of_the_training_fleet_or_of_what_is_old_goes_by_its_index(
    ledger: SqliteLedger, read: str, asked: dict[str, Any], index: str
) -> None:
    queries: list[tuple[str, Any]] = []

    def note(cursor: apsw.Cursor, sql: str, values: Any) -> bool:
        queries.append((sql, values))
        return True

    ledger._reader.exec_trace = note
    getattr(ledger, read)(**asked)
    ledger._reader.exec_trace = None
    [(query, values)] = queries
    plan = plan_of(ledger, query, values)
    assert any(index in step for step in plan), plan
    assert not scans(plan), plan


def plan_of(ledger: SqliteLedger, query: str, values: Any) -> list[str]:
    return [row[-1] for row in ledger._reader.execute(f"EXPLAIN QUERY PLAN {query}", values)]


def scans(plan: list[str]) -> list[str]:
    """Steps that read a table whole. A partial index holds only what is asked for: it may be read from end to end."""
    tables = {"jobs", "j", "tasks", "t", "attempts", "feed", "artifacts", "needs", "departed", "receipts", "live"}
    partial = ("INDEX jobs_of_manifest", "INDEX tasks_wanting")
    return [s for s in plan if s.startswith("SCAN ") and s.split()[1] in tables and not s.endswith(partial)]
