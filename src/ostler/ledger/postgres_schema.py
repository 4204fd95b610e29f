"""Brings a PostgreSQL ledger to the schema of this code: numbered SQL files, the pending ones in one transaction."""

import time
from collections.abc import Sequence
from importlib.resources import files

import psycopg

from ostler.domain.errors import LedgerError, NotYet
from ostler.ledger.migrate import Migration
from ostler.ledger.postgres_server import Connection

_ONE_AT_A_TIME = b"SELECT pg_advisory_xact_lock(%d)" % int.from_bytes(b"OSTL", "big")
_MARK = b"SELECT to_regclass(quote_ident(current_schema()) || '.ostler_migrations') IS NOT NULL"
_TABLES = b"SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p')"
_START = b'CREATE TABLE ostler_migrations (name TEXT COLLATE "C" PRIMARY KEY, checksum TEXT, at DOUBLE PRECISION)'
_LED = b"SELECT holder FROM leadership WHERE until > clock_timestamp() FOR UPDATE"


def bundled() -> list[Migration]:
    """The migrations that this code carries, in order."""
    folder = files("ostler.ledger") / "schema" / "postgres"
    found = [
        Migration(file.name.removesuffix(".sql"), file.read_text(encoding="utf-8"))
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    ]
    return sorted(found, key=lambda migration: migration.number)


def migrate(db: Connection, shown: str, migrations: Sequence[Migration]) -> None:
    """Run what is pending. Of hubs that start at once, one does it and the others find it done."""
    with db.transaction():
        db.execute(_ONE_AT_A_TIME)
        applied = _applied(db, shown)
        _refuse_strangers(shown, applied, migrations)
        pending = [migration for migration in migrations if migration.name not in applied]
        if pending and applied:
            _refuse_while_led(db, shown)
        for migration in pending:
            _run(db, shown, migration)


def _applied(db: Connection, shown: str) -> dict[str, str]:
    """Checksums by name. A database that holds something else is left as it is."""
    if not _value(db, _MARK):
        if _value(db, _TABLES):
            raise LedgerError(
                f"{shown} is a database of another program, not an Ostler ledger. Give the hub a database of its own"
            )
        db.execute(_START)
    return {str(name): str(checksum) for name, checksum in db.execute(b"SELECT name, checksum FROM ostler_migrations")}


def _refuse_strangers(shown: str, applied: dict[str, str], migrations: Sequence[Migration]) -> None:
    known = {migration.name: migration.checksum for migration in migrations}
    for name, checksum in applied.items():
        if name not in known:
            raise LedgerError(
                f"the ledger {shown} is newer than this hub: it has the migration {name}, which this version does not "
                "know. Install the version that wrote it, or restore a backup made before that migration"
            )
        if known[name] != checksum:
            raise LedgerError(
                f"the migration {name} differs from the one that built the ledger {shown}. Install an unaltered "
                "version; a schema changes by a new migration only"
            )


def _refuse_while_led(db: Connection, shown: str) -> None:
    """The hub that leads knows the old schema only."""
    if holder := _value(db, _LED):
        raise NotYet(
            f"the ledger {shown} must be brought up to date, but the hub {holder} of the older version leads. "
            "Stop that hub first"
        )


def _run(db: Connection, shown: str, migration: Migration) -> None:
    try:
        db.execute(migration.sql.encode())
    except psycopg.ProgrammingError as error:
        raise LedgerError(f"the migration {migration.name} does not fit the ledger {shown}: {error}") from error
    row = (migration.name, migration.checksum, time.time())
    db.execute(b"INSERT INTO ostler_migrations (name, checksum, at) VALUES ($1, $2, $3)", row)


def _value(db: Connection, sql: bytes) -> object:
    row = db.execute(sql).fetchone()
    return row[0] if row else None
