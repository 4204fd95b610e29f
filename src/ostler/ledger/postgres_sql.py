"""The statements of the PostgreSQL ledger, and how rows and texts get into them and out again.

Many rows are one statement: each column goes as one JSON array, which costs the hub a fraction of what typed arrays or
a statement for each row would.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from math import inf
from typing import Any, Generic, TypeVar, get_type_hints

import msgspec

from ostler.domain.audit import AuditRecord
from ostler.domain.errors import LedgerError
from ostler.domain.records import (
    ArtifactRecord,
    AttemptRecord,
    Changes,
    DepartedRecord,
    EndedTask,
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
from ostler.ledger import rows

LOST_CHANGE = "OS001"
DEPOSED = "OS002"
"""Our own codes among PostgreSQL's SQLSTATEs."""

INDEXED = 400
"""So many characters of a text of any length are in its index."""
MAX_ROWS = 5_000
MAX_BLOB_BYTES = 32 * 1024 * 1024
"""Of one statement: PostgreSQL takes no value over a gigabyte."""

R = TypeVar("R", bound=msgspec.Struct)
Statement = tuple[bytes, list[str | int]]

_encode = msgspec.json.Encoder().encode
_CASTS = {
    int: "{}::bigint",
    int | None: "{}::bigint",
    float: "{}::double precision",
    float | None: "{}::double precision",
    bool: "{}::boolean",
    bytes: "decode({}, 'base64')",
    bytes | None: "decode({}, 'base64')",
}


class Table(Generic[R]):
    """Where the records of one kind are written. A row written again under its key keeps what is `fixed` in it."""

    def __init__(
        self, name: str, kind: type[R], shape: rows.Shape[R], key: Sequence[str] = (), fixed: Sequence[str] = ()
    ) -> None:
        hints = get_type_hints(kind)
        types = [hints[field] for field in kind.__struct_fields__]
        self.name = name
        self.columns = shape.columns
        self.key = key
        self.fixed = fixed
        self._casts = [_CASTS.get(hint, "{}") for hint in types]
        self._shape = shape
        self._floats = [at for at, hint in enumerate(types) if hint in (float, float | None)]
        self._blobs = [at for at, hint in enumerate(types) if hint in (bytes, bytes | None)]
        self._key = [self.columns.index(column) for column in key]
        self._fixed = [self.columns.index(column) for column in fixed]

    def statements(self, sql: bytes, records: Sequence[R]) -> Iterator[Statement]:
        """The statement with all of these, in as many goes as it takes."""
        for portion in self._portions(self._last_of_each([self._shape.row(record) for record in records])):
            columns: list[Sequence[Any]] = list(zip(*portion, strict=True))
            for at in self._floats:
                if inf in columns[at] or -inf in columns[at]:
                    columns[at] = [str(value) if value in (inf, -inf) else value for value in columns[at]]
            yield sql, [*map(json, columns), len(portion)]

    def _last_of_each(self, given: list[rows.Row]) -> Collection[rows.Row]:
        """Where a row is there twice the last counts, in the place of the first: one statement writes a row once."""
        if not self.key:
            return given
        found: dict[object, rows.Row] = {}
        for row in given:
            key = tuple(row[at] for at in self._key)
            earlier = found.setdefault(key, row)
            if any(earlier[at] != row[at] for at in self._fixed):
                raise LedgerError(f"a row of {self.name} changed its owner. This is a fault of the hub: report it")
            found[key] = row
        return found.values()

    def _portions(self, given: Collection[rows.Row]) -> Iterator[list[rows.Row]]:
        portion: list[rows.Row] = []
        size = 0
        for row in given:
            own = sum(len(row[at] or b"") for at in self._blobs)
            if portion and (size + own > MAX_BLOB_BYTES or len(portion) == MAX_ROWS):
                yield portion
                portion, size = [], 0
            portion.append(row)
            size += own
        if portion:
            yield portion

    @property
    def source(self) -> str:
        """The rows that were given, as a table `given` with a column `place` for their order."""
        arrays = ", ".join(f"json_array_elements_text(${at}::json)" for at in range(1, len(self.columns) + 1))
        texts = f"ROWS FROM ({arrays}) WITH ORDINALITY AS texts ({named(self.columns)}, place)"
        typed = [f'{cast.format(named([c]))} AS "{c}"' for c, cast in zip(self.columns, self._casts, strict=True)]
        return f"(SELECT place, {', '.join(typed)} FROM {texts}) given"

    def insert(self) -> str:
        return f"INSERT INTO {self.name} ({self.select()}) SELECT {self.select()} FROM {self.source} ORDER BY place"

    def on_conflict(self) -> str:
        changed = [f'"{c}" = excluded."{c}"' for c in self.columns if c not in (*self.key, *self.fixed)]
        same = " AND ".join(f'{self.name}."{c}" = excluded."{c}"' for c in self.fixed) or "true"
        return f"ON CONFLICT ({named(self.key)}) DO UPDATE SET {', '.join(changed)} WHERE {same}"

    def upsert(self) -> str:
        return f"{self.insert()} {self.on_conflict()}"

    def update(self) -> str:
        changed = ", ".join(f'"{c}" = given."{c}"' for c in self.columns if c not in self.key)
        return f"UPDATE {self.name} SET {changed} FROM {self.source} WHERE {self.same()}"

    def delete(self) -> str:
        return f"DELETE FROM {self.name} USING {self.source} WHERE {self.same()}"

    def same(self, table: str = "") -> str:
        return " AND ".join(f'{table or self.name}."{c}" = given."{c}"' for c in self.key)

    def whole(self, sql: str) -> bytes:
        """A statement that writes every row that it was given, or fails."""
        holds = f"count(*) = ${len(self.columns) + 1}::bigint"
        return demanding(sql, holds, LOST_CHANGE, "a row that was to be written is not there")

    def select(self, table: str = "", **instead: str) -> str:
        """The columns of a record; `instead` says what stands in the place of one that is not to be read."""
        return ", ".join(instead.get(c, f'{table}"{c}"') for c in self.columns)


def demanding(sql: str, holds: str, code: str, otherwise: str) -> bytes:
    """A statement that fails with this code unless what is said of the rows it has written holds."""
    return f"WITH done AS ({sql} RETURNING 1) SELECT demand({holds}, '{code}', '{otherwise}') FROM done".encode()


def named(columns: Iterable[str]) -> str:
    """In quotes: `user` is a word of SQL."""
    return ", ".join(f'"{column}"' for column in columns)


# Text: PostgreSQL takes every character but NUL, so NUL and the character after it are each written as two. The order
# of texts, and which text begins with which, stay as they are.

_ESCAPE = re.compile(r"\\(?:u000([01])|.)")
_ESCAPED = {"0": r"\u0001\u0001", "1": r"\u0001\u0002"}


def json(values: object) -> str:
    """As one argument. In JSON a NUL is `\\u0000`."""
    told = _encode(values).decode()
    if "\\u000" in told:
        told = _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[0]), told)
    return told


def stored(text: str) -> str:
    return text.replace("\1", "\1\2").replace("\0", "\1\1")


def restored(row: Sequence[Any]) -> rows.Row:
    return [_original(value) if type(value) is str and "\1" in value else value for value in row]


def _original(text: str) -> str:
    return text.replace("\1\1", "\0").replace("\1\2", "\1")


# Writing

JOBS = Table("jobs", JobRecord, rows.JOB)
TERMS = Table("jobs", JobTerms, rows.TERMS, ("id",))
PROGRESS = Table("jobs", JobProgress, rows.PROGRESS, ("id",))
TASKS = Table("tasks", TaskRecord, rows.TASK, ("id",), ("job_id", "idx"))
ENDED_TASKS = Table("tasks", EndedTask, rows.ENDED_TASK, ("id",))
ATTEMPTS = Table("attempts", AttemptRecord, rows.ATTEMPT, ("attempt",), ("task_id", "job_id"))
WORKERS = Table("workers", WorkerRecord, rows.WORKER, ("id",))
FEED = Table("feed", FeedRecord, rows.FEED, ("seq",))
TOKENS = Table("tokens", TokenRecord, rows.TOKEN, ("id",))
RECEIPTS = Table("receipts", ReceiptRecord, rows.RECEIPT, ("key",))
USAGE = Table("usage", UsageRecord, rows.USAGE, ("user",))
ARTIFACTS = Table("artifacts", ArtifactRecord, rows.ARTIFACT, ("id", "task_id"))
MANIFEST = Table("manifest", ManifestRecord, rows.MANIFEST, ("id",))
KEPT = Table("kept", KeptRecord, rows.KEPT, ("scope", "key"))
NEEDS = Table("needs", NeedRecord, rows.NEED)
DEPARTED = Table("departed", DepartedRecord, rows.DEPARTED, ("id",))
OUTPUTS = Table("artifacts", OutputKey, rows.OUTPUT, ("id", "task_id"))
AUDIT = Table("audit", AuditRecord, rows.AUDIT)

WANTED = "artifact_id <> '' AND state = 'succeeded'"
"""Word for word the condition of the index tasks_wanting."""

_INSERT_JOBS = JOBS.insert().encode()
_UPDATE_TERMS = TERMS.whole(TERMS.update())
_UPDATE_JOBS = PROGRESS.whole(PROGRESS.update())
_UPSERT_TASKS = TASKS.whole(TASKS.upsert())
_UPSERT_ATTEMPTS = ATTEMPTS.whole(ATTEMPTS.upsert())
_UPSERT_ARTIFACTS = f"""
    INSERT INTO artifacts (n, {ARTIFACTS.select()})
    SELECT newest.n + count(*) FILTER (WHERE old.n IS NULL) OVER (ORDER BY place), {ARTIFACTS.select("given.")}
    FROM {ARTIFACTS.source} LEFT JOIN artifacts old ON {ARTIFACTS.same("old")},
        (SELECT coalesce(max(n), 0) AS n FROM artifacts) newest
    {ARTIFACTS.on_conflict()}
""".encode()
_DROP_ARTIFACTS = f"""
    DELETE FROM artifacts WHERE id IN (SELECT json_array_elements_text($1::json))
    AND NOT EXISTS (SELECT 1 FROM tasks WHERE {WANTED} AND artifact_id = artifacts.id)
""".encode()
_PLAIN: tuple[tuple[str, Table[Any], bytes], ...] = tuple(
    (field, table, table.upsert().encode())
    for field, table in (
        ("workers", WORKERS),
        ("feed", FEED),
        ("tokens", TOKENS),
        ("receipts", RECEIPTS),
        ("usage", USAGE),
        ("manifest", MANIFEST),
    )
)
_UPSERT_KEPT = KEPT.upsert().encode()
_FORGET_KEPT = KEPT.delete().encode()
_INSERT_NEEDS = f"{NEEDS.insert()} ON CONFLICT DO NOTHING".encode()
_UPSERT_DEPARTED = DEPARTED.upsert().encode()
_FORGET_OUTPUTS = f"""
    UPDATE tasks SET artifact_id = '' FROM {OUTPUTS.source}
    WHERE tasks.id = given.task_id AND tasks.artifact_id = given.id
""".encode()
_DROP_OUTPUTS = OUTPUTS.delete().encode()
_INSERT_AUDIT = AUDIT.insert().encode()


def statements(changes: Changes) -> Iterator[Statement]:
    """What a commit does, in order."""
    yield from JOBS.statements(_INSERT_JOBS, changes.new_jobs)
    yield from TERMS.statements(_UPDATE_TERMS, changes.changed_terms)
    yield from PROGRESS.statements(_UPDATE_JOBS, changes.progress)
    yield from TASKS.statements(_UPSERT_TASKS, changes.tasks)
    yield from ATTEMPTS.statements(_UPSERT_ATTEMPTS, changes.attempts)
    for field, table, sql in _PLAIN:
        yield from table.statements(sql, getattr(changes, field))
    yield from ARTIFACTS.statements(_UPSERT_ARTIFACTS, changes.artifacts)
    if changes.gone_artifacts:
        yield _DROP_ARTIFACTS, [json(changes.gone_artifacts)]
    last = {(kept.scope, kept.key): kept for kept in changes.kept}.values()
    yield from KEPT.statements(_UPSERT_KEPT, [kept for kept in last if kept.value is not None])
    yield from KEPT.statements(_FORGET_KEPT, [kept for kept in last if kept.value is None])
    yield from NEEDS.statements(_INSERT_NEEDS, changes.needs)
    yield from DEPARTED.statements(_UPSERT_DEPARTED, changes.departed)
    for sql, gone in _removals(changes):
        if gone:
            yield sql, [json(gone)]
    yield from OUTPUTS.statements(_FORGET_OUTPUTS, changes.gone_outputs)
    yield from OUTPUTS.statements(_DROP_OUTPUTS, changes.gone_outputs)
    yield from AUDIT.statements(_INSERT_AUDIT, changes.audit)
    if changes.gone_audit:
        yield b"DELETE FROM audit WHERE seq <= $1", [changes.gone_audit]


def _removals(changes: Changes) -> tuple[tuple[bytes, Sequence[str | int]], ...]:
    named = "IN (SELECT json_array_elements_text($1::json))"
    return (
        (f"DELETE FROM attempts WHERE task_id {named}".encode(), changes.gone_tasks),
        (f"DELETE FROM tasks WHERE id {named}".encode(), changes.gone_tasks),
        (f"DELETE FROM needs WHERE job_id {named}".encode(), changes.gone_jobs),
        (f"DELETE FROM jobs WHERE id {named}".encode(), changes.gone_jobs),
        (b"DELETE FROM feed WHERE seq IN (SELECT json_array_elements_text($1::json)::bigint)", changes.gone_feed),
        (f"DELETE FROM receipts WHERE key {named}".encode(), changes.gone_receipts),
    )
