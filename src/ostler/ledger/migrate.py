"""Brings an SQLite ledger to the schema of this code: numbered SQL files, each run once, in one transaction."""

import os
import time
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

import apsw
import msgspec

from ostler.domain.errors import LedgerError
from ostler.ledger.sqlite_sound import copy_pages, sync_folder


class Migration(msgspec.Struct, frozen=True):
    name: str
    """The file's name without its ending: `0001_start`."""
    sql: str

    @property
    def number(self) -> int:
        return int(self.name.partition("_")[0])

    @property
    def checksum(self) -> str:
        return sha256(self.sql.encode()).hexdigest()


def bundled() -> list[Migration]:
    """The migrations that this code carries, in order."""
    folder = files("ostler.ledger") / "schema"
    found = [
        Migration(file.name.removesuffix(".sql"), file.read_text(encoding="utf-8"))
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    ]
    return sorted(found, key=lambda migration: migration.number)


def migrate(db: apsw.Connection, path: Path, migrations: Sequence[Migration]) -> None:
    """Run what is pending. A ledger that already holds something is copied aside first."""
    applied = _applied(db)
    _refuse_strangers(path, applied, migrations)
    pending = [migration for migration in migrations if migration.name not in applied]
    if pending and applied:
        copy_aside(db, path.with_name(f"{path.name}.before-{pending[0].number}"))
    for migration in pending:
        _run(db, path, migration)


def copy_aside(db: apsw.Connection, target: Path) -> None:
    """A whole, durable copy of the ledger at `target`, or nothing there: it grows under another name."""
    part = target.with_name(f"{target.name}.part")
    part.unlink(missing_ok=True)
    # SQLite would create the file readable by all; it takes an empty one as it is.
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    copy_pages(db, part)
    os.replace(part, target)
    sync_folder(target.parent)


def _applied(db: apsw.Connection) -> dict[str, str]:
    """Checksums by name."""
    if not db.table_exists(None, "migrations"):
        return {}
    return {str(name): str(checksum) for name, checksum in db.execute("SELECT name, checksum FROM migrations")}


def _refuse_strangers(path: Path, applied: dict[str, str], migrations: Sequence[Migration]) -> None:
    known = {migration.name: migration for migration in migrations}
    for name, checksum in applied.items():
        if name not in known:
            raise LedgerError(
                f"the ledger {path} is newer than this hub: it has the migration {name}, which this version does not "
                "know. Install the version that wrote it, or restore the copy made before that migration"
            )
        if known[name].checksum != checksum:
            raise LedgerError(
                f"the migration {name} differs from the one that built the ledger {path}. Install an unaltered "
                "version; a schema changes by a new migration only"
            )


def _run(db: apsw.Connection, path: Path, migration: Migration) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        db.execute("CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY, checksum TEXT, at REAL) STRICT")
        for _ in db.execute(migration.sql):
            pass
        row = (migration.name, migration.checksum, time.time())
        db.execute("INSERT INTO migrations (name, checksum, at) VALUES (?, ?, ?)", row)
        db.execute("COMMIT")
    except apsw.SQLError as error:
        raise LedgerError(f"the migration {migration.name} does not fit the ledger {path}: {error}") from error
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
