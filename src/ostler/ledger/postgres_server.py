"""The server under the PostgreSQL ledger: how it is reached, whether it is fit, what its errors mean to an operator.

Nothing here repeats an address as it was given: there may be a password in it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import psycopg
from psycopg import RawCursor
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow
from psycopg_pool import ConnectionPool

from ostler.domain.errors import BadInput, Deposed, LedgerError, NotYet
from ostler.ledger.postgres_sql import DEPOSED

OLDEST_VERSION = 15
READERS = 4
READ_WITHIN_S = 10.0
_USUAL = {
    "application_name": "ostler hub",
    "client_encoding": "utf8",
    "connect_timeout": "10",
    "target_session_attrs": "read-write",
    # A server that is gone without a word must not hold up a commit for long: by then another hub may lead.
    "keepalives_idle": "3",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    "tcp_user_timeout": "6000",
}
"""Unless the address says otherwise."""

# What a database sets for its other users would end a long commit half-way, or a hub that finds another's row changed.
_OWN_RULES = b"""
    SET statement_timeout = 0; SET lock_timeout = 0; SET default_transaction_isolation = 'read committed';
    SET idle_session_timeout = 0; SET idle_in_transaction_session_timeout = 0
"""
_FITNESS = b"""
    SELECT current_setting('server_encoding'), current_setting('fsync'), current_setting('synchronous_commit'),
        current_schema()
"""

_ADVICE = {
    "53100": "the server's disk is full. Free some space on it, then start the hub again",
    "53200": "the server is out of memory. Give it more, then start the hub again",
    "53300": "the server has no connection left. Raise its max_connections, or close other programs' connections",
    "57P": "the server was shut down or ended the session. The hub starts again from the ledger when it is back",
    "08": "the connection to the server was lost. The hub starts again from the ledger when it is back",
    "28": "the server refuses this user. Check user and password, and the server's pg_hba.conf",
    "3D": "there is no such database. Create it: createdb --owner USER NAME",
    "42501": "the hub's user may not do this. Make it the owner of the database",
    "25006": "the server takes no writes: it is a standby, or set read-only. Name the primary",
    "55P03": "another program holds a table locked. Close that program, then start the hub again",
    "40P01": "another program holds a table locked. Close that program, then start the hub again",
    "58": "the server's disk failed. Look at the server's log and at its disk before going on",
    "XX": "the database is damaged. Look at the server's log, and restore the newest backup",
    "22": "a row does not fit what is there. This is a fault of the hub: report it",
    "23": "a row does not fit what is there. This is a fault of the hub: report it",
    "54": "a row does not fit what is there. This is a fault of the hub: report it",
    "OS": "a row does not fit what is there. This is a fault of the hub: report it",
    "42": "the tables are not those of this version. Restore the newest backup, or give the hub another database",
}
"""By the SQLSTATE, or by how it begins."""

_REFUSALS = {
    "authentication failed": "28",
    "no password supplied": "28",
    "pg_hba.conf": "28",
    "too many": "53300",
    "permission denied": "42501",
    'role "': "28",
    'database "': "3D",
    "read-only": "25006",
}
"""Of a connection that was not made: the driver gives no SQLSTATE for it."""
_COMES_BACK = ("57P", "08")
"""Of a server that has ended the session and may take another."""
_UNREACHED = "the server cannot be reached. Check that it runs and that this machine may reach it"
LOST_IN_COMMIT = (
    "the connection to the server was lost during a commit, and whether that was written is not known. The hub starts "
    "again from the ledger"
)

Connection = psycopg.Connection[TupleRow]


class Address:
    """Where a ledger is, as it may be shown, and as the driver needs it."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("postgresql://", "postgres://")):
            raise BadInput("ledger: not an address of a ledger; write it like postgresql://USER@HOST/DATABASE")
        try:
            parts = {name: str(value) for name, value in conninfo_to_dict(url).items()}
        except psycopg.Error:
            raise BadInput(_UNREADABLE) from None
        host, port, name = (parts.get(part, "") for part in ("host", "port", "dbname"))
        if "@" in host + name or (port and not port.replace(",", "").isdecimal()):
            raise BadInput(_UNREADABLE)
        user = f"{parts['user']}@" if "user" in parts else ""
        self.shown = f"postgresql://{user}{host}{port and ':'}{port}/{name}"
        self.conninfo = make_conninfo(**{**_USUAL, **parts})

    def connect(self) -> Connection:
        """To a server that is fit for a ledger. A statement is a transaction of its own unless it says BEGIN."""
        with explained(self.shown):
            db = psycopg.Connection.connect(self.conninfo, autocommit=True, cursor_factory=RawCursor)
            try:
                self._refuse_unfit(db)
                _follow_own_rules(db)
            except BaseException:
                db.close()
                raise
            return db

    def pool(self) -> "ConnectionPool[Connection]":
        """Of a few connections for reads; one that has broken is replaced before it is used."""
        pool: ConnectionPool[Connection] = ConnectionPool(
            self.conninfo,
            kwargs={"autocommit": True, "cursor_factory": RawCursor},
            min_size=1,
            max_size=READERS,
            timeout=READ_WITHIN_S,
            configure=_follow_own_rules,
            check=ConnectionPool.check_connection,
            name="ledger",
            open=False,
        )
        pool.open(wait=True, timeout=READ_WITHIN_S)
        return pool

    def _refuse_unfit(self, db: Connection) -> None:
        version = db.info.server_version // 10_000
        if version < OLDEST_VERSION:
            raise self._unfit(f"PostgreSQL {version} is too old. Install {OLDEST_VERSION} or later")
        row = db.execute(_FITNESS).fetchone()
        assert row is not None
        encoding, fsync, synchronous, schema = row
        if encoding != "UTF8":
            raise self._unfit(f"its encoding is {encoding}. Create it with UTF8: createdb --encoding UTF8 …")
        if fsync != "on":
            raise self._unfit("the server runs with fsync = off and may lose commits. Switch it on")
        if schema is None:
            raise self._unfit("it has no schema to hold tables. Create one, or correct the user's search_path")
        if synchronous == "off":
            db.execute(b"SET synchronous_commit = on")

    def _unfit(self, what: str) -> LedgerError:
        return LedgerError(f"the ledger {self.shown}: {what}")


def _follow_own_rules(db: Connection) -> None:
    db.execute(_OWN_RULES)


_UNREADABLE = (
    "ledger: the address cannot be read; write it like postgresql://USER@HOST/DATABASE, and every character of a "
    "password that is no letter or digit as % and its code"
)


@contextmanager
def explained(shown: str, unreached: str = _UNREACHED) -> Iterator[None]:
    """Whatever goes wrong with the server inside becomes a LedgerError that says what to do."""
    try:
        yield
    except psycopg.Error as error:
        raise _told(shown, error, unreached) from error
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, MemoryError) as error:
        raise LedgerError(f"the ledger {shown}: {_ADVICE['22']} ({error})") from error


def _told(shown: str, error: psycopg.Error, unreached: str) -> LedgerError:
    code, said = error.sqlstate or "", " ".join(str(error).split())
    if code == DEPOSED:
        return Deposed(f"the ledger {shown}: another hub leads now, so this one may not write")
    if not code:
        code = next((code for words, code in _REFUSALS.items() if words in said), "")
        if not code:
            return NotYet(f"the ledger {shown}: {unreached} ({said})")
    advice = next((advice for begins, advice in _ADVICE.items() if code.startswith(begins)), "report this error")
    kind = NotYet if code.startswith(_COMES_BACK) else LedgerError
    return kind(f"the ledger {shown}: {advice} ({said})")
