"""What one commit writes into the SQLite ledger, within a transaction of somebody else."""

from collections.abc import Callable, Container, Sequence
from itertools import groupby
from typing import Any

import apsw

from ostler.domain.errors import LedgerError
from ostler.domain.states import ASSIGNED
from ostler.ledger import rows
from ostler.ledger.base import Changes

ANY_OF = "IN (SELECT value FROM json_each(?))"


def _insert(table: str, shape: rows.Shape[Any], into: str = "INSERT INTO") -> str:
    return f"{into} {table} ({', '.join(shape.columns)}) VALUES ({', '.join('?' * len(shape.columns))})"


def _upsert(table: str, shape: rows.Shape[Any], *key: str, fixed: Sequence[str] = ()) -> str:
    """A row written again keeps its place, and the indexes on what is fixed in it are not touched.

    (REPLACE would write every index anew.) A row whose fixed part differs is not written: see _write.
    """
    changed = ", ".join(f"{name} = excluded.{name}" for name in shape.columns if name not in (*key, *fixed))
    same = " AND ".join(f"{name} = excluded.{name}" for name in fixed) or "true"
    return f"{_insert(table, shape)} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changed} WHERE {same}"


def _update(table: str, shape: rows.Shape[Any], *fixed: str) -> str:
    """The row in which all of these are the same, the first of them being its key."""
    numbered = {name: f"?{number}" for number, name in enumerate(shape.columns, 1)}
    where = " AND ".join(f"{name} = {numbered.pop(name)}" for name in fixed)
    return f"UPDATE {table} SET {', '.join(f'{name} = {value}' for name, value in numbered.items())} WHERE {where}"


class _Lives:
    """Rows that are written when something begins, and again when it goes on and when it ends.

    An upsert does for all of them, but does the work of an insert before that of an update. So a row is written by the
    one of the two that fits, by what it says itself; and where that was wrong, by an upsert after all.
    """

    def __init__(
        self, table: str, shape: rows.Shape[Any], key: str, *fixed: str, begins: Callable[[Any], bool]
    ) -> None:
        self.shape = shape
        self.key = key
        self.begins = begins
        self.insert = _insert(table, shape, "INSERT OR IGNORE INTO")
        self.update = _update(table, shape, key, *fixed)
        self.upsert = _upsert(table, shape, key, fixed=fixed)

    def write(self, db: apsw.Connection, records: Sequence[Any], unwritten: Container[str]) -> None:
        """`unwritten`: the keys of those that begin, whatever they say."""

        def begins_here(record: Any) -> bool:
            return self.begins(record) or getattr(record, self.key) in unwritten

        for begins, some in groupby(records, begins_here):  # their order stays
            alike = list(some)
            if _written(db, self.insert if begins else self.update, self.shape, alike) != len(alike):
                _write(db, self.upsert, self.shape, alike)


_INSERT_JOB = _insert("jobs", rows.JOB)
_UPDATE_JOB = _update("jobs", rows.PROGRESS, "id")
_TASKS = _Lives("tasks", rows.TASK, "id", "job_id", "idx", begins=lambda task: task.state == ASSIGNED)
_ATTEMPTS = _Lives(
    "attempts",
    rows.ATTEMPT,
    "attempt",
    "task_id",
    "job_id",
    begins=lambda attempt: attempt.state == ASSIGNED and not attempt.accepted,
)
_UPSERT_WORKER = _upsert("workers", rows.WORKER, "id")
_UPSERT_FEED = _upsert("feed", rows.FEED, "seq")
_UPSERT_TOKEN = _upsert("tokens", rows.TOKEN, "id")
_UPSERT_RECEIPT = _upsert("receipts", rows.RECEIPT, "key")
_UPDATE_TERMS = _update("jobs", rows.TERMS, "id")
_UPSERT_ARTIFACT = _upsert("artifacts", rows.ARTIFACT, "id", "task_id")
_UPSERT_MANIFEST = _upsert("manifest", rows.MANIFEST, "id")
_UPSERT_USAGE = _upsert("usage", rows.USAGE, "user")
_UPSERT_KEPT = _upsert("kept", rows.KEPT, "scope", "key")
_UPSERT_NEED = f"{_insert('needs', rows.NEED)} ON CONFLICT (on_id, job_id) DO UPDATE SET job_id = excluded.job_id"
_UPSERT_DEPARTED = _upsert("departed", rows.DEPARTED, "id")
_INSERT_AUDIT = _insert("audit", rows.AUDIT)
_FORGET_OUTPUT = "UPDATE tasks SET artifact_id = '' WHERE artifact_id = ?1 AND id = ?2"
_DROP_OUTPUT = "DELETE FROM artifacts WHERE id = ?1 AND task_id = ?2"
_FORGET_KEPT = "DELETE FROM kept WHERE scope = ? AND key = ?"
_DROP_ARTIFACTS = f"""
    DELETE FROM artifacts WHERE id {ANY_OF} AND NOT EXISTS (
        SELECT artifact_id FROM tasks WHERE artifact_id <> '' AND state = 'succeeded' AND artifact_id = artifacts.id
    )
"""


def write(db: apsw.Connection, changes: Changes) -> None:
    for sql, shape, records in _jobs(changes):
        if records:
            _write(db, sql, shape, records)
    unwritten = frozenset(changes.unwritten)
    _TASKS.write(db, changes.tasks, unwritten)
    _ATTEMPTS.write(db, changes.attempts, unwritten)
    for sql, shape, records in _others(changes):
        if records:
            _write(db, sql, shape, records)
    if changes.gone_artifacts:
        db.execute(_DROP_ARTIFACTS, (rows.text(changes.gone_artifacts),))
    for sql, named in _removals(changes):
        if named:
            db.execute(sql, (rows.text(named),))
    if changes.gone_audit:
        db.execute("DELETE FROM audit WHERE seq <= ?", (changes.gone_audit,))
    if changes.gone_outputs:
        keys = [rows.OUTPUT.row(key) for key in changes.gone_outputs]
        db.executemany(_FORGET_OUTPUT, keys)
        db.executemany(_DROP_OUTPUT, keys)
    for kept in changes.kept:  # one by one: the same key may be kept and forgotten
        if kept.value is None:
            db.execute(_FORGET_KEPT, (kept.scope, kept.key))
        else:
            db.execute(_UPSERT_KEPT, rows.KEPT.row(kept))


def _write(db: apsw.Connection, sql: str, shape: rows.Shape[Any], records: Sequence[Any]) -> None:
    # A statement that finds nothing to write is no error to SQLite; here it would be a change that got lost.
    if _written(db, sql, shape, records) != len(records):
        raise LedgerError(
            f"the ledger {db.filename}: a change of a job that is not there, or a task or an attempt that changed its "
            "owner. This is a fault of the hub: report it"
        )


def _written(db: apsw.Connection, sql: str, shape: rows.Shape[Any], records: Sequence[Any]) -> int:
    before = db.total_changes()
    db.executemany(sql, map(shape.row, records))
    return db.total_changes() - before


def _jobs(changes: Changes) -> tuple[tuple[str, rows.Shape[Any], Sequence[Any]], ...]:
    return (
        (_INSERT_JOB, rows.JOB, changes.new_jobs),
        (_UPDATE_TERMS, rows.TERMS, changes.changed_terms),
        (_UPDATE_JOB, rows.PROGRESS, changes.progress),
    )


def _others(changes: Changes) -> tuple[tuple[str, rows.Shape[Any], Sequence[Any]], ...]:
    return (
        (_UPSERT_WORKER, rows.WORKER, changes.workers),
        (_UPSERT_FEED, rows.FEED, changes.feed),
        (_UPSERT_TOKEN, rows.TOKEN, changes.tokens),
        (_UPSERT_RECEIPT, rows.RECEIPT, changes.receipts),
        (_UPSERT_USAGE, rows.USAGE, changes.usage),
        (_UPSERT_ARTIFACT, rows.ARTIFACT, changes.artifacts),
        (_UPSERT_MANIFEST, rows.MANIFEST, changes.manifest),
        (_UPSERT_NEED, rows.NEED, changes.needs),
        (_UPSERT_DEPARTED, rows.DEPARTED, changes.departed),
        (_INSERT_AUDIT, rows.AUDIT, changes.audit),
    )


def _removals(changes: Changes) -> tuple[tuple[str, Sequence[str | int]], ...]:
    return (
        (f"DELETE FROM attempts WHERE task_id {ANY_OF}", changes.gone_tasks),
        (f"DELETE FROM tasks WHERE id {ANY_OF}", changes.gone_tasks),
        (f"DELETE FROM needs WHERE job_id {ANY_OF}", changes.gone_jobs),
        (f"DELETE FROM jobs WHERE id {ANY_OF}", changes.gone_jobs),
        (f"DELETE FROM feed WHERE seq {ANY_OF}", changes.gone_feed),
        (f"DELETE FROM receipts WHERE key {ANY_OF}", changes.gone_receipts),
    )
