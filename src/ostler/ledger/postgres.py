"""The ledger in a PostgreSQL database: for hubs that share one, of which one leads and writes."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from threading import Lock
from typing import TypeVar

import msgspec
from psycopg import RawCursor, capabilities
from psycopg.pq import TransactionStatus

from ostler.domain.errors import Deposed, LedgerError
from ostler.domain.records import (
    AHEAD,
    ArtifactRecord,
    FeedRecord,
    JobRecord,
)
from ostler.domain.states import LIVE, STATES, TERMINAL
from ostler.ledger import ageing, rows
from ostler.ledger import postgres_leading as leading
from ostler.ledger import postgres_sql as sql
from ostler.ledger.base import KINDS, TALLY, Changes, JobView, Snapshot, unknown_states
from ostler.ledger.looking import Looking, Statements
from ostler.ledger.postgres_leading import Hub, Leader
from ostler.ledger.postgres_schema import bundled, migrate
from ostler.ledger.postgres_server import LOST_IN_COMMIT, Address, Connection, explained

STREAMED_ROWS = 1_000

T = TypeVar("T")


def _head(column: str, value: str) -> tuple[str, str]:
    """The beginnings of a text of any length and of what it is to be, which an index is on."""
    return f'left("{column}", {sql.INDEXED})', f"left({value}, {sql.INDEXED})"


def _is(column: str, value: str) -> str:
    return f'{" = ".join(_head(column, value))} AND "{column}" = {value}'


def _newest(where: str, *same: tuple[str, str], by: str = "seq") -> str:
    """
    Of the rows with these values, the last ones below $1, at most $2 of them. They are asked for as a range of an
    index, in its own order: no statistics, however old, can mislead the server into walking all rows instead.
    """
    columns, values = [column for column, _ in same], [value for _, value in same]
    conditions = [f"({', '.join([*columns, by])}) < ({', '.join([*values, '$1'])})"]
    conditions += [f"({', '.join(columns)}) >= ({', '.join(values)})"] if same else []
    order = ", ".join(f"{column} DESC" for column in [*columns, by])
    return f"{where} AND {' AND '.join(conditions)} ORDER BY {order} LIMIT $2"


def _one_of(value: str) -> str:
    return f"= ANY (ARRAY(SELECT json_array_elements_text({value}::json)))"


# What is written is named by its key. Without this, plans made while a table was short would read it whole for ever.
_BY_KEYS = b"SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off"

# Word for word the condition of the index tasks_live: only then can PostgreSQL use it.
_LIVE = f"state IN ({', '.join(repr(state) for state in LIVE)})"
_LIVE_COUNTS = f"SELECT state, count(*) FROM jobs WHERE {_LIVE} GROUP BY state"
_KEPT_JOBS = f"SELECT id FROM jobs WHERE {_LIVE} UNION SELECT job_id FROM attempts WHERE held"
_LOAD_JOBS = f"""
    SELECT {sql.JOBS.select(spec="''::bytea")} FROM jobs WHERE id IN ({_KEPT_JOBS}) ORDER BY seq
""".encode()
_LOAD_TASKS = f"""
    SELECT {sql.TASKS.select()} FROM tasks WHERE n IN (
        SELECT n FROM tasks WHERE {_LIVE}
        UNION SELECT n FROM tasks WHERE id IN (SELECT task_id FROM attempts WHERE held)
    ) AND job_id IN (SELECT id FROM jobs WHERE id IN ({_KEPT_JOBS})) ORDER BY job_id, idx, id
""".encode()
_LOAD_ATTEMPTS = f"SELECT {sql.ATTEMPTS.select()} FROM attempts WHERE held ORDER BY n".encode()
_LOAD_WORKERS = f"SELECT {sql.WORKERS.select()} FROM workers ORDER BY id".encode()
_LOAD_AHEAD = f"SELECT value FROM kept WHERE starts_with(scope, '{AHEAD}') ORDER BY scope, key".encode()
_LOAD_USAGE = f'SELECT {sql.USAGE.select()} FROM usage ORDER BY "user"'.encode()
_LOAD_TOKENS = f"SELECT {sql.TOKENS.select()} FROM tokens WHERE revoked_at IS NULL ORDER BY n".encode()
_LOAD_LAST = b"SELECT (SELECT coalesce(max(seq), 0) FROM jobs), (SELECT coalesce(max(seq), 0) FROM feed)"
_MANIFEST = f"SELECT {sql.MANIFEST.select()} FROM manifest".encode()
_KEPT = b"SELECT key, value FROM kept WHERE scope = $1 ORDER BY key"

_JOBS = f"SELECT {sql.JOBS.select()} FROM jobs WHERE id {_one_of('$1')}"
_SPECS = f"SELECT id, spec FROM jobs WHERE id {_one_of('$1')}"
_TASKS = f"SELECT {sql.TASKS.select()} FROM tasks WHERE id {_one_of('$1')}"
_TASKS_OF = f"SELECT {sql.TASKS.select()} FROM tasks WHERE job_id = $1 AND idx > $2 ORDER BY idx, id LIMIT $3"
_ENDED_TASKS_OF = f"""
    SELECT {sql.ENDED_TASKS.select()} FROM tasks WHERE job_id = $1 AND idx > $2
    AND state IN ({", ".join(map(repr, TERMINAL))}) ORDER BY idx, id LIMIT $3
"""
_ATTEMPTS_OF = f"SELECT {sql.ATTEMPTS.select()} FROM attempts WHERE task_id = $1 ORDER BY n"
_ATTEMPTS_ENDED = f"""
    SELECT {sql.ATTEMPTS.select()} FROM attempts WHERE finished_at > $1 AND assigned_at <= $2
    ORDER BY finished_at DESC, n DESC LIMIT $3
"""
_WORKER_LINES = f"SELECT {sql.FEED.select()} FROM feed WHERE kind = 'worker' ORDER BY seq DESC LIMIT $1"
# OFFSET 0: each is looked up by its id, never by reading all tasks.
_VIEWS = f"""
    SELECT {sql.JOBS.select("j.")}, {sql.TASKS.select("t.")}
    FROM ({{}}) j LEFT JOIN LATERAL (SELECT * FROM tasks WHERE id = j.id AND j.size = 0 OFFSET 0) t ON true
    ORDER BY j.seq
"""
_PAGE = f"{_VIEWS.format('SELECT * FROM ({}) found ORDER BY seq DESC LIMIT $2')} DESC"
_MATCHING = """
    SELECT id FROM jobs WHERE id >= $1 AND id < $2 AND ($3 = '' OR "user" = $3) ORDER BY id LIMIT $4
"""
_NAMED = """name = $3 AND name <> '' AND ($4 = '' OR "user" = $4)"""
_NEWEST_NAMED = _newest(f"SELECT id FROM jobs WHERE {_NAMED}", _head("name", "$3"))
_FEED = f"SELECT {sql.FEED.select()} FROM feed WHERE seq > $1 ORDER BY seq {{0}} LIMIT $2"
# A range of an index again, as in _newest.
_FEED_OF = f"""
    SELECT {sql.FEED.select()} FROM feed WHERE subject <= $3 AND (subject, seq) > ($3, $1) AND strpos(body, $4) > 0
    ORDER BY subject {{0}}, seq {{0}} LIMIT $2
"""
_ARTIFACTS = f"SELECT n, {sql.ARTIFACTS.select()} FROM artifacts WHERE "
_WANTED_ARTIFACTS = f"SELECT DISTINCT artifact_id FROM tasks WHERE {sql.WANTED}"
_RECEIPT = f"SELECT {sql.RECEIPTS.select()} FROM receipts WHERE key = $1"
_TOKENS = f"SELECT {sql.TOKENS.select()} FROM tokens ORDER BY n"
_AUDIT = f"""
    SELECT {sql.AUDIT.select()} FROM audit WHERE seq < $1 AND at >= $2 AND ($3 = '' OR actor = $3 OR "user" = $3)
    AND ($4 = '' OR object = $4) ORDER BY seq DESC LIMIT $5
"""
_OLDEST_AUDIT = f"SELECT {sql.AUDIT.select()} FROM audit ORDER BY seq LIMIT $1"

_LAST_CHARACTER = "\U0010ffff"
_NO_BOUND = 2**63 - 1


class PostgresLedger(Looking):
    """One connection writes; a few others read, and never wait for it. Only a ledger that leads takes commits."""

    is_at_hand = False

    OLD = ageing.statements("${}", _one_of("$1"), sql.JOBS.select(), sql.ARTIFACTS.select())
    SAYS = Statements(
        jobs=_JOBS,
        specs=_SPECS,
        tasks=_TASKS,
        tasks_of=_TASKS_OF,
        ended_tasks_of=_ENDED_TASKS_OF,
        attempts_of=_ATTEMPTS_OF,
        attempts_ended=_ATTEMPTS_ENDED,
        worker_lines=_WORKER_LINES,
        manifest=_MANIFEST.decode(),
        wanted_artifacts=_WANTED_ARTIFACTS,
        receipt=_RECEIPT,
        kept=_KEPT.decode(),
        tokens=_TOKENS,
        audit=_AUDIT,
        oldest_audit=_OLDEST_AUDIT,
    )

    def __init__(self, url: str) -> None:
        address = Address(url)
        self.shown = address.shown
        self.term = 0
        """The term that it leads in; 0: it does not lead."""
        self._writing = Lock()
        with ExitStack() as opened, explained(self.shown):
            self._writer = address.connect()
            opened.callback(self._writer.close)
            migrate(self._writer, self.shown, bundled())
            self._writer.execute(_BY_KEYS)
            self._readers = address.pool()
            opened.callback(self._readers.close)
            self._opened = opened.pop_all()

    def close(self) -> None:
        """It leads no more, if the server can still be told."""
        with suppress(LedgerError):
            self.resign()
        with self._writing, explained(self.shown):
            self._opened.close()

    # Leading

    def lead(self, holder: str, lease_s: float = leading.LEASE_S) -> int | None:
        """A new term, unless another hub leads. A holder takes over from itself at once: it has been started again."""
        with self._writing, explained(self.shown):
            self.term = leading.take(self._writer, holder, lease_s)
            return self.term or None

    def renew(self) -> None:
        """A sign of life, for when there is nothing to commit. Deposed: another leads."""
        with self._writing, explained(self.shown):
            self._refuse_unless_leading()
            self._writer.execute(leading.STILL_LEADS, (self.term,), prepare=True)

    def resign(self) -> None:
        with self._writing, explained(self.shown):
            term, self.term = self.term, 0
            if term:
                self._writer.execute(leading.RESIGN, (term,))

    def _refuse_unless_leading(self) -> None:
        if not self.term:
            raise Deposed(f"the ledger {self.shown}: this hub does not lead, so it may not write. Start it again")

    def leader(self) -> Leader:
        [found] = self._all(lambda row: Leader(*row), leading.LEADER)
        return found

    def server_time(self) -> float:
        """Seconds since the epoch, by the server's clock."""
        [found] = self._all(lambda row: float(row[0]), leading.NOW)
        return found

    def enter(self, ident: str, hub: Hub) -> None:
        """This hub has come; the others see it for as long as this ledger is open."""
        with self._writing, explained(self.shown):
            leading.enter(self._writer, ident, hub)

    def hubs(self) -> list[tuple[Hub, bool]]:
        """Those that have come, and whether they are still there."""
        return self._all(lambda row: (msgspec.json.decode(row[0], type=Hub), bool(row[1])), leading.THERE)

    def live_counts(self) -> dict[str, int]:
        """How many jobs are in each state that is not the end."""
        return dict(self._all(lambda row: (row[0], row[1]), _LIVE_COUNTS))

    # Writing

    def commit(self, changes: Changes) -> None:
        if not changes:
            return
        if unknown_states(changes):
            raise LedgerError(
                f"the ledger {self.shown}: a job in a state that is none. This is a fault of the hub: report it"
            )
        with explained(self.shown, LOST_IN_COMMIT):
            # Before the lock is taken, which a renewal of the lease waits for, and the leader's row.
            statements = list(sql.statements(changes))
            with self._writing:
                self._refuse_unless_leading()
                self._transact(statements)

    def _transact(self, statements: Sequence[sql.Statement]) -> None:
        """All of it is one message to the server, and one answer."""
        db = self._writer
        try:
            with db.pipeline():
                db.execute(b"BEGIN")
                db.execute(leading.LOCKED, (self.term,), prepare=True)
                for statement, values in statements:
                    db.execute(statement, values, prepare=True)
                # At its end, not at its beginning: what takes long must not have used up the lease.
                db.execute(leading.RENEWED, (self.term,), prepare=True)
                ended = db.execute(b"COMMIT")
        except BaseException:
            if db.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
                db.rollback()
            raise
        # The server answers a COMMIT that it could not do with ROLLBACK, which is no error to it.
        if ended.statusmessage != "COMMIT":
            raise LedgerError(f"the ledger {self.shown}: a commit was rolled back by the server. Look at its log")

    # Reading

    def live_jobs(self) -> Iterator[JobRecord]:
        with self._reads() as db:
            yield from _stream(db, rows.JOB.record, _LOAD_JOBS)

    def load(self, *, with_jobs: bool = True) -> Snapshot:
        with self._reads() as db:
            # One transaction, so that all parts show the same moment.
            db.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            try:
                [(last_job_seq, last_feed_seq)] = _stream(db, tuple, _LOAD_LAST)
                return Snapshot(
                    jobs=list(_stream(db, rows.JOB.record, _LOAD_JOBS)) if with_jobs else [],
                    tasks=list(_stream(db, rows.TASK.record, _LOAD_TASKS)),
                    attempts=list(_stream(db, rows.ATTEMPT.record, _LOAD_ATTEMPTS)),
                    ahead=list(_stream(db, rows.sent, _LOAD_AHEAD)),
                    workers=list(_stream(db, rows.WORKER.record, _LOAD_WORKERS)),
                    tokens=list(_stream(db, rows.TOKEN.record, _LOAD_TOKENS)),
                    manifest=next(iter([*_stream(db, rows.MANIFEST.record, _MANIFEST)]), None),
                    usage=list(_stream(db, rows.USAGE.record, _LOAD_USAGE)),
                    learnt=dict(_stream(db, rows.pair, _KEPT, KINDS)),
                    tally=dict(_stream(db, rows.pair, _KEPT, TALLY)),
                    last_job_seq=last_job_seq,
                    last_feed_seq=last_feed_seq,
                )
            finally:
                db.rollback()

    def list_jobs(
        self, *, states: Sequence[str] = (), user: str = "", name: str = "", before: int | None = None, limit: int = 100
    ) -> list[JobView]:
        page, values = _page(states, user, name)
        below = _NO_BOUND if before is None else before
        return self._all(rows.view, _PAGE.format(page), below, max(limit, 0), *values)

    def matching_ids(self, prefix: str, limit: int = 2, *, user: str = "") -> list[str]:
        # A range instead of LIKE: it uses the index and has no special characters.
        return self._all(rows.first, _MATCHING, prefix, prefix + _LAST_CHARACTER, user, max(limit, 0))

    def newest_named(self, name: str, *, user: str = "") -> str | None:
        return next(iter(self._all(rows.first, _NEWEST_NAMED, _NO_BOUND, 1, name, user)), None)

    def feed(
        self, *, after: int, subject: str = "", task: str = "", newest: bool = False, limit: int = 1000
    ) -> list[FeedRecord]:
        query, values = (_FEED_OF, [subject, rows.line_about(task)]) if subject else (_FEED, [])
        found = self._all(rows.FEED.record, query.format("DESC" if newest else "ASC"), after, max(limit, 0), *values)
        return found[::-1] if newest else found

    def manifest_jobs(self, *, name: str = "", sweep: str = "", states: Sequence[str] = ()) -> list[JobView]:
        conditions = ["origin <> ''"]
        conditions += [f"{_is('sweep', '$1')} AND sweep <> ''"] if sweep else ["$1 = ''"]
        conditions += [f"{_is('name', '$2')} AND name <> ''"] if name else ["$2 = ''"]
        conditions += [f"state {_one_of('$3')}"] if states else []
        chosen = f"SELECT * FROM jobs WHERE {' AND '.join(conditions)}"
        return self._all(rows.view, _VIEWS.format(chosen), sweep, name, *([states] if states else []))

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
        values: list[str | int | Collection[str]] = [_NO_BOUND if before is None else before, max(limit, 0)]
        conditions, indexes = ["true"], []
        for value, column in ((ids, "id"), (job_id, "job_id"), (model, "model"), (user, "user")):
            if value:
                values.append(value)
                given = f"${len(values)}"
                conditions.append(f"id {_one_of(given)}" if column == "id" else f'"{column}" = {given}')
                indexes.append(_head(column, given) if column in ("model", "user") else (column, given))
        # A few ids lead to a few rows; else the first of the others has an index that is in the order of the page.
        first = [] if ids else indexes[:1]
        query = _newest(_ARTIFACTS + " AND ".join(conditions), *first, by="n")
        return self._all(rows.numbered_artifact, query, *values)

    @contextmanager
    def _reads(self) -> Iterator[Connection]:
        with explained(self.shown), self._readers.connection() as db:
            yield db

    def _all(self, build: Callable[[rows.Row], T], query: str, *values: str | float | Collection[str]) -> list[T]:
        with self._reads() as db:
            found = db.execute(query.encode(), _bound(values), binary=True)
            return [build(sql.restored(row)) for row in found]


def _stream(db: Connection, build: Callable[[rows.Row], T], query: bytes, *values: str) -> Iterator[T]:
    """Row by row, so that a long queue is not in memory twice."""
    size = STREAMED_ROWS if capabilities.has_stream_chunked() else 1
    with RawCursor(db) as cursor:
        for row in cursor.stream(query, _bound(values), binary=True, size=size):
            yield build(sql.restored(row))


def _bound(values: Collection[str | float | Collection[str]]) -> list[str | float]:
    return [
        sql.stored(value)
        if isinstance(value, str)
        else value
        if isinstance(value, int | float)
        else sql.json(list(value))
        for value in values
    ]


def _page(states: Sequence[str], user: str, name: str) -> tuple[str, list[str | Sequence[str]]]:
    """A query for the jobs of one page, and its arguments from $3 on.

    However long the history, it reads about a page of index entries per state: each is walked backwards by itself.
    """
    wanted = list(dict.fromkeys(states or STATES))
    jobs = "SELECT * FROM jobs WHERE"
    if name:
        # Few jobs share a name.
        chosen = f"{jobs} {_NAMED} AND state {_one_of('$5')}"
        return _newest(chosen, _head("name", "$3")), [name, user, wanted]
    if not states and not user:
        return _newest(f"{jobs} true"), []
    state = ("state", "each.state")
    one = _newest(f'{jobs} "user" = $4', _head("user", "$4"), state) if user else _newest(f"{jobs} true", state)
    query = f"SELECT j.* FROM json_array_elements_text($3::json) each (state), LATERAL ({one}) j"
    return query, [wanted, user] if user else [wanted]
