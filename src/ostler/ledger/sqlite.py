"""The ledger in one SQLite file: for a single hub, which is most fleets. Not for network filesystems."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import apsw

from ostler.domain.errors import LedgerError
from ostler.domain.records import (
    AHEAD,
    ArtifactRecord,
    FeedRecord,
    JobRecord,
)
from ostler.domain.states import LIVE, STATES, TERMINAL
from ostler.ledger import ageing, rows
from ostler.ledger.base import KINDS, TALLY, Changes, JobView, Snapshot, unknown_states
from ostler.ledger.looking import Looking, Statements
from ostler.ledger.sqlite_file import (
    CHECKPOINT_PAGES,
    explained,
    open_reader,
    open_writer,
    refuse_faulty_library,
    take_lock,
)
from ostler.ledger.sqlite_sound import Mark, forget_mark
from ostler.ledger.sqlite_writing import ANY_OF, write

T = TypeVar("T")


def _select(shape: rows.Shape[Any], table: str, **instead: str) -> str:
    """`instead` says what stands in the place of a column that is not to be read."""
    return f"SELECT {_columns(shape, **instead)} FROM {table}"


def _columns(shape: rows.Shape[Any], of: str = "", **instead: str) -> str:
    return ", ".join(instead.get(name, of + name) for name in shape.columns)


def _one_of(states: Collection[str]) -> str:
    """Word for word the condition of an index of only these: else SQLite cannot use it."""
    return f"({' OR '.join(f'state = {state!r}' for state in states)})"


_KEPT = "SELECT key, value FROM kept WHERE scope = ? ORDER BY key"

_LIVE = f"state IN ({', '.join(repr(state) for state in LIVE)})"
_KEPT_JOBS = f"{_LIVE} OR id IN (SELECT job_id FROM attempts WHERE held = 1)"
_NO_SPEC = _select(rows.JOB, "jobs", spec="x''")
# The seqs alone are brought into order, not the rows.
_LOAD_JOBS = f"""
    {_NO_SPEC} WHERE seq IN (
        SELECT seq FROM jobs WHERE {_LIVE}
        UNION SELECT seq FROM jobs WHERE id IN (SELECT job_id FROM attempts WHERE held = 1)
    ) ORDER BY seq
"""
_LOAD_TASKS = f"""
    {_select(rows.TASK, "tasks")} WHERE n IN (
        SELECT n FROM tasks INDEXED BY tasks_live WHERE {_one_of(LIVE)}
        UNION SELECT n FROM tasks WHERE id IN (SELECT task_id FROM attempts WHERE held = 1)
    ) AND job_id IN (SELECT id FROM jobs WHERE {_KEPT_JOBS}) ORDER BY job_id, idx, id
"""
_LOAD_ATTEMPTS = f"{_select(rows.ATTEMPT, 'attempts')} WHERE held = 1 ORDER BY n"
_LOAD_WORKERS = f"{_select(rows.WORKER, 'workers')} ORDER BY id"
_LOAD_AHEAD = f"SELECT value FROM kept WHERE scope >= '{AHEAD}' AND scope < '{AHEAD}~' ORDER BY scope, key"
_LOAD_USAGE = f"{_select(rows.USAGE, 'usage')} ORDER BY user"
_LOAD_TOKENS = f"{_select(rows.TOKEN, 'tokens')} WHERE revoked_at IS NULL ORDER BY n"

_LOAD_MANIFEST = _select(rows.MANIFEST, "manifest")

_JOBS = f"{_select(rows.JOB, 'jobs')} WHERE id {ANY_OF}"
_SPECS = f"SELECT id, spec FROM jobs WHERE id {ANY_OF}"
_TASKS = f"{_select(rows.TASK, 'tasks')} WHERE id {ANY_OF}"
_TASKS_OF = f"{_select(rows.TASK, 'tasks')} WHERE job_id = ? AND idx > ? ORDER BY idx, id LIMIT ?"
_ENDED_TASKS_OF = f"""
    {_select(rows.ENDED_TASK, "tasks")} WHERE job_id = ? AND idx > ? AND {_one_of(TERMINAL)} ORDER BY idx, id LIMIT ?
"""
_ATTEMPTS_OF = f"{_select(rows.ATTEMPT, 'attempts')} WHERE task_id = ? ORDER BY n"
_ATTEMPTS_ENDED = f"""
    {_select(rows.ATTEMPT, "attempts")} WHERE finished_at > ? AND assigned_at <= ?
    ORDER BY finished_at DESC, n DESC LIMIT ?
"""
_WORKER_LINES = f"{_select(rows.FEED, 'feed')} WHERE kind = 'worker' ORDER BY seq DESC LIMIT ?"
_LIST = f"""
    SELECT {_columns(rows.JOB, "j.")}, {_columns(rows.TASK, "t.")}
    FROM jobs j LEFT JOIN tasks t ON t.id = j.id AND j.size = 0
    WHERE j.seq IN ({{}}) ORDER BY j.seq DESC LIMIT ?
"""
_MATCHING = "SELECT id FROM jobs WHERE id >= ? AND id < ? AND (? = '' OR user = ?) ORDER BY id LIMIT ?"
_NEWEST_NAMED = "SELECT id FROM jobs WHERE name = ? AND name <> '' AND (? = '' OR user = ?) ORDER BY seq DESC LIMIT 1"
_FEED = f"{_select(rows.FEED, 'feed')} WHERE seq > ? ORDER BY seq {{}} LIMIT ?"
_FEED_OF = f"""
    {_select(rows.FEED, "feed")} WHERE subject = ? AND seq > ? AND instr(body, ?) > 0 ORDER BY seq {{}} LIMIT ?
"""
_OF_MANIFEST = f"""
    SELECT {_columns(rows.JOB, "j.")}, {_columns(rows.TASK, "t.")}
    FROM jobs j LEFT JOIN tasks t ON t.id = j.id AND j.size = 0
    WHERE j.seq IN (SELECT seq FROM jobs WHERE origin <> '' AND {{}}) ORDER BY j.seq
"""
_ARTIFACTS = f"SELECT n, {_columns(rows.ARTIFACT)} FROM artifacts WHERE n < ? AND {{}} ORDER BY n DESC LIMIT ?"
_WANTED_ARTIFACTS = "SELECT DISTINCT artifact_id FROM tasks WHERE artifact_id <> '' AND state = 'succeeded'"
_RECEIPT = f"{_select(rows.RECEIPT, 'receipts')} WHERE key = ?"
_TOKENS = f"{_select(rows.TOKEN, 'tokens')} ORDER BY n"
_AUDIT = f"""
    {_select(rows.AUDIT, "audit")} WHERE seq < ?1 AND at >= ?2 AND (?3 = '' OR actor = ?3 OR user = ?3)
    AND (?4 = '' OR object = ?4) ORDER BY seq DESC LIMIT ?5
"""
_OLDEST_AUDIT = f"{_select(rows.AUDIT, 'audit')} ORDER BY seq LIMIT ?"

_LAST_CHARACTER = "\U0010ffff"
_NO_BOUND = 2**63 - 1


class SqliteLedger(Looking):
    """One connection writes and another reads, each behind its lock: a thread may read while the writer writes."""

    OLD = ageing.statements(
        "?{}",
        ANY_OF,
        _columns(rows.JOB),
        _columns(rows.ARTIFACT),
        ended="jobs INDEXED BY jobs_ended",
        is_ended=_one_of(TERMINAL),
    )
    SAYS = Statements(
        jobs=_JOBS,
        specs=_SPECS,
        tasks=_TASKS,
        tasks_of=_TASKS_OF,
        ended_tasks_of=_ENDED_TASKS_OF,
        attempts_of=_ATTEMPTS_OF,
        attempts_ended=_ATTEMPTS_ENDED,
        worker_lines=_WORKER_LINES,
        manifest=_LOAD_MANIFEST,
        wanted_artifacts=_WANTED_ARTIFACTS,
        receipt=_RECEIPT,
        kept=_KEPT,
        tokens=_TOKENS,
        audit=_AUDIT,
        oldest_audit=_OLDEST_AUDIT,
    )

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # Resolved, so that two names of one file meet at one lock.
        self._path = Path(path).resolve()
        self._writing = Lock()
        self._reading = Lock()
        refuse_faulty_library(apsw.sqlite_lib_version())
        with ExitStack() as opened, explained(self._path):
            opened.callback(os.close, take_lock(self._path))
            self._writer = open_writer(self._path)
            opened.callback(self._writer.close)
            self._mark = Mark(self._path)
            opened.callback(self._mark.close)
            self._frames = 0
            self._writer.set_wal_hook(self._logged)
            self._reader = open_reader(self._path)
            # Closed in the reverse order: the writer, as the last connection, folds the log into the file.
            opened.callback(self._reader.close)
            self._opened = opened.pop_all()

    @property
    def is_at_hand(self) -> bool:
        return not self._reading.locked()

    def close(self) -> None:
        with self._reading, self._writing, explained(self._path):
            forget_mark(self._path)
            self._opened.close()

    def commit(self, changes: Changes) -> None:
        if not changes:
            return
        if unknown_states(changes):
            raise LedgerError(
                f"the ledger {self._path}: a job in a state that is none. This is a fault of the hub: report it"
            )
        newest = changes.feed[-1].seq if changes.feed else 0
        with self._writing, explained(self._path), self._transaction(newest) as db:
            write(db, changes)

    def _logged(self, db: apsw.Connection, schema: str, frames: int) -> int:
        """After each commit, with how long the log is now."""
        self._frames = frames
        if frames >= CHECKPOINT_PAGES:
            # Somebody reads what is in it, or the file cannot grow: at the next commit, then. The log is whole.
            with suppress(apsw.BusyError, apsw.FullError):
                db.wal_checkpoint(schema, apsw.SQLITE_CHECKPOINT_PASSIVE)
        return 0

    @contextmanager
    def _transaction(self, newest: int) -> Iterator[apsw.Connection]:
        """With the newest line of the feed that is written in it."""
        db = self._writer
        # IMMEDIATE: a transaction that begins as a reader cannot wait for the lock when it comes to write.
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
            db.execute("COMMIT")
        except BaseException:
            # A full disk or a failed write may have rolled back already.
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        self._mark.set(self._frames, newest)

    def live_jobs(self) -> Iterator[JobRecord]:
        with self._reads() as db:
            yield from map(rows.JOB.record, db.execute(_LOAD_JOBS))

    def load(self, *, with_jobs: bool = True) -> Snapshot:
        with self._reads() as db:
            # One transaction, so that all parts show the same moment.
            db.execute("BEGIN")
            try:
                return Snapshot(
                    jobs=[rows.JOB.record(row) for row in db.execute(_LOAD_JOBS)] if with_jobs else [],
                    tasks=[rows.TASK.record(row) for row in db.execute(_LOAD_TASKS)],
                    attempts=[rows.ATTEMPT.record(row) for row in db.execute(_LOAD_ATTEMPTS)],
                    ahead=[rows.sent(row) for row in db.execute(_LOAD_AHEAD)],
                    workers=[rows.WORKER.record(row) for row in db.execute(_LOAD_WORKERS)],
                    tokens=[rows.TOKEN.record(row) for row in db.execute(_LOAD_TOKENS)],
                    manifest=next((rows.MANIFEST.record(row) for row in db.execute(_LOAD_MANIFEST)), None),
                    usage=[rows.USAGE.record(row) for row in db.execute(_LOAD_USAGE)],
                    learnt=dict(map(rows.pair, db.execute(_KEPT, (KINDS,)))),
                    tally=dict(map(rows.pair, db.execute(_KEPT, (TALLY,)))),
                    last_job_seq=db.execute("SELECT coalesce(max(seq), 0) FROM jobs").get,
                    last_feed_seq=db.execute("SELECT coalesce(max(seq), 0) FROM feed").get,
                )
            finally:
                if db.in_transaction:
                    db.execute("COMMIT")

    def list_jobs(
        self, *, states: Sequence[str] = (), user: str = "", name: str = "", before: int | None = None, limit: int = 100
    ) -> list[JobView]:
        limit = max(limit, 0)
        page, values = _page(states, user, name, _NO_BOUND if before is None else before, limit)
        return self._all(rows.view, _LIST.format(page), *values, limit)

    def matching_ids(self, prefix: str, limit: int = 2, *, user: str = "") -> list[str]:
        # A range instead of LIKE: it uses the index, tells cases apart, and has no special characters.
        return self._all(rows.first, _MATCHING, prefix, prefix + _LAST_CHARACTER, user, user, max(limit, 0))

    def newest_named(self, name: str, *, user: str = "") -> str | None:
        return next(iter(self._all(rows.first, _NEWEST_NAMED, name, user, user)), None)

    def feed(
        self, *, after: int, subject: str = "", task: str = "", newest: bool = False, limit: int = 1000
    ) -> list[FeedRecord]:
        query, values = (_FEED_OF, [subject, after, rows.line_about(task)]) if subject else (_FEED, [after])
        found = self._all(rows.FEED.record, query.format("DESC" if newest else "ASC"), *values, max(limit, 0))
        return found[::-1] if newest else found

    def manifest_jobs(self, *, name: str = "", sweep: str = "", states: Sequence[str] = ()) -> list[JobView]:
        # Few jobs share a name. The plus signs keep SQLite from choosing another index.
        plus = "+" if name else ""
        chosen, values = _where(
            {
                "name = ? AND name <> ''": name,
                f"{plus}sweep = ? AND {plus}sweep <> ''": sweep,
                f"{plus}state {ANY_OF}": states,
            }
        )
        return self._all(rows.view, _OF_MANIFEST.format(chosen), *values)

    def artifacts(
        self,
        *,
        ids: Collection[str] = (),
        job_id: str = "",
        model: str = "",
        user: str = "",
        before: int | None = None,
        limit: int = 100,
    ) -> list[tuple[int, ArtifactRecord]]:
        below = _NO_BOUND if before is None else before
        chosen, values = _where({f"id {ANY_OF}": ids, "job_id = ?": job_id, "model = ?": model, "user = ?": user})
        return self._all(rows.numbered_artifact, _ARTIFACTS.format(chosen), below, *values, max(limit, 0))

    @contextmanager
    def _reads(self) -> Iterator[apsw.Connection]:
        with self._reading, explained(self._path):
            yield self._reader

    def _all(self, build: Callable[[rows.Row], T], sql: str, *values: str | float | Collection[str]) -> list[T]:
        # Read to the end inside the lock: a statement left half read would keep the log from being reset.
        with self._reads() as db:
            bound = [value if isinstance(value, str | int | float) else rows.text(list(value)) for value in values]
            return [build(row) for row in db.execute(sql, bound)]


def _page(states: Sequence[str], user: str, name: str, before: int, limit: int) -> tuple[str, list[Any]]:
    """A query for the seqs of one page. However long the history, it reads about `limit` index entries per state.

    One branch per state, because SQLite walks (state, seq) backwards for one state but would sort for several.
    """
    branches: list[tuple[str, list[Any]]]
    if name and user:
        # Few jobs share a name. The plus signs keep SQLite from choosing another index.
        branches = [(f"name = ? AND name <> '' AND +user = ? AND +state {ANY_OF}", [name, user, states or STATES])]
    elif name:
        branches = [(f"name = ? AND name <> '' AND +state {ANY_OF}", [name, states or STATES])]
    elif user:
        branches = [("user = ? AND state = ?", [user, state]) for state in states or STATES]
    else:
        branches = [("state = ?", [state]) for state in states] or [("true", [])]
    branch = "SELECT seq FROM (SELECT seq FROM jobs WHERE {} AND seq < ? ORDER BY seq DESC LIMIT ?)"
    sql = " UNION ALL ".join(branch.format(condition) for condition, _ in branches)
    return sql, [value for _, values in branches for value in (*values, before, limit)]


def _where(conditions: Mapping[str, str | Collection[str]]) -> tuple[str, list[str | Collection[str]]]:
    """Those that have a value. The first is for an index; the plus signs keep SQLite from choosing another."""
    chosen = {condition: value for condition, value in conditions.items() if value}
    return " AND +".join(chosen) or "true", list(chosen.values())
