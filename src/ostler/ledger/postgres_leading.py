"""Which of the hubs on one PostgreSQL ledger leads, and which others are there.

Who leads is a row with a term. Every commit locks it under its own term first and renews its lease last, in the same
transaction as all it writes: a hub that was paused while another took over writes nothing any more.
"""

import msgspec
from psycopg.errors import LockNotAvailable

from ostler.ledger import postgres_sql as sql
from ostler.ledger.postgres_server import Connection

LEASE_S = 3.0
"""For so long after its last sign of life no other hub may take over from the one that leads."""
HUBS = "hubs"
"""The scope under which each hub keeps where it is reached."""


class Leader(msgspec.Struct, frozen=True):
    """Who leads, or led last."""

    holder: str
    term: int
    left_s: float
    """Until another may take over, by the server's clock; at most 0: now."""


class Hub(msgspec.Struct, frozen=True):
    """One that has come to this ledger."""

    holder: str
    url: str = ""
    version: str = ""


_LEADS = "id = 1 AND term = $1"
_FREE = "(until <= clock_timestamp() OR holder = $1)"
# `lease` is in the row, so that every commit may renew it.
_LEAD = f"""
    UPDATE leadership SET term = term + 1, holder = $1, lease = make_interval(secs => $2),
        until = clock_timestamp() + make_interval(secs => $2), backend = pg_backend_pid(),
        backend_since = (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())
    WHERE id = 1 AND {_FREE} RETURNING term
""".encode()
_NOT_FOR_LONG = b"SET LOCAL lock_timeout = '1s'"
# A leader in the middle of a commit holds the row locked. While the server works on what it was sent, that is waited
# for, however long it takes; a leader that stopped half-way has its session ended.
_END_THE_STOPPED = f"""
    SELECT pg_terminate_backend(session.pid, 5000) FROM leadership
    JOIN pg_stat_activity session ON session.pid = backend AND session.backend_start = backend_since
    WHERE session.pid <> pg_backend_pid() AND {_FREE}
        AND (state <> 'active' OR wait_event_type = 'Client')
        AND state_change < clock_timestamp() - interval '0.9 seconds'
""".encode()
_RENEW = f"UPDATE leadership SET until = clock_timestamp() + lease WHERE {_LEADS}"
STILL_LEADS = sql.demanding(_RENEW, "count(*) = 1", sql.DEPOSED, "deposed")
"""Renews the lease, or fails."""
LOCKED = f"""
    WITH own AS (SELECT 1 FROM leadership WHERE {_LEADS} FOR UPDATE)
    SELECT demand(count(*) = 1, '{sql.DEPOSED}', 'deposed') FROM own
""".encode()
"""Nobody takes over before this transaction ends; or fails."""
RENEWED = _RENEW.encode()
RESIGN = f"UPDATE leadership SET until = '-infinity' WHERE {_LEADS}".encode()
NOW = "SELECT extract(epoch FROM clock_timestamp())::double precision"
LEADER = """
    SELECT holder, term, (extract(epoch FROM until) - extract(epoch FROM clock_timestamp()))::double precision
    FROM leadership
"""

# A hub that has come is there for as long as its session is. What those that are gone have left goes with the next.
_THERE = """
    SELECT 1 FROM pg_stat_activity session
    WHERE session.datname = current_database() AND session.application_name = 'ostler hub ' || kept.key
"""
_FORGET = f"""
    DELETE FROM kept WHERE scope = '{HUBS}' AND key <> $1 AND NOT EXISTS ({_THERE})
        AND NOT EXISTS (SELECT 1 FROM leadership WHERE position(kept.key IN holder) > 0)
""".encode()
_ENTER = f"""
    INSERT INTO kept (scope, key, value) VALUES ('{HUBS}', $1, $2)
    ON CONFLICT (scope, key) DO UPDATE SET value = excluded.value
""".encode()
THERE = f"SELECT value, EXISTS ({_THERE}) FROM kept WHERE scope = '{HUBS}' ORDER BY key"


def take(db: Connection, holder: str, lease_s: float) -> int:
    """The new term; 0 while another hub leads. A holder takes over from itself at once: it has been started again."""
    values = sql.stored(holder), lease_s
    try:
        return _lead(db, values)
    except LockNotAvailable:
        stopped = db.execute(_END_THE_STOPPED, values[:1]).fetchone()
        if not stopped or not stopped[0]:
            return 0  # it could not be ended in time
    try:
        return _lead(db, values)
    except LockNotAvailable:
        return 0


def _lead(db: Connection, values: tuple[object, ...]) -> int:
    with db.transaction():
        db.execute(_NOT_FOR_LONG)
        row = db.execute(_LEAD, values).fetchone()
    return int(row[0]) if row else 0


def enter(db: Connection, ident: str, hub: Hub) -> None:
    """This hub is there from now on, for as long as its session is."""
    db.execute(b"SELECT set_config('application_name', 'ostler hub ' || $1, false)", (ident,))
    db.execute(_FORGET, (ident,))
    db.execute(_ENTER, (ident, msgspec.json.encode(hub)))
