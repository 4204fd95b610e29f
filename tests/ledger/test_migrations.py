"""Ledgers of other versions: newer, altered, and those that this version brings up to date."""

from pathlib import Path

import apsw
import pytest
from tests.ledger.files import altered, filled

from ostler.domain.errors import LedgerError
from ostler.ledger.migrate import Migration, bundled, migrate
from ostler.ledger.sqlite import SqliteLedger
from ostler.ledger.sqlite_sound import connect


def test_a_ledger_of_a_newer_version_is_refused(path: Path) -> None:
    filled(path)
    altered(path, "INSERT INTO migrations VALUES ('0999_later', 'x', 1.0)")
    with pytest.raises(LedgerError, match="newer than this hub: it has the migration 0999_later"):
        SqliteLedger(path)


def test_a_migration_that_was_altered_after_it_ran_is_refused(path: Path) -> None:
    filled(path)
    altered(path, "UPDATE migrations SET checksum = 'other' WHERE name = '0001_start'")
    with pytest.raises(LedgerError, match="0001_start differs"):
        SqliteLedger(path)


def test_a_ledger_with_rows_is_copied_aside_before_it_is_migrated(path: Path) -> None:
    filled(path)
    later = [Migration("0900_more", "CREATE TABLE more (x)"), Migration("0901_less", "DROP TABLE more")]
    db = connect(path, apsw.SQLITE_OPEN_READWRITE)
    migrate(db, path, [*bundled(), *later])
    assert db.execute("SELECT count(*) FROM migrations").get == len(bundled()) + 2
    db.close()
    copy = path.with_name("ostler.db.before-900")
    assert copy.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.glob("*before*")] == [copy.name]
    restored = SqliteLedger(copy)
    assert len(restored.load().jobs) == 200
    restored.close()


def test_a_new_ledger_and_one_without_pending_migrations_are_not_copied(path: Path) -> None:
    filled(path)
    filled_again = SqliteLedger(path)
    filled_again.close()
    assert not list(path.parent.glob("*before*"))


def test_a_migration_that_fails_leaves_the_ledger_as_it_was(path: Path) -> None:
    filled(path)
    half = Migration("0900_half", "CREATE TABLE more (x); INSERT INTO nowhere VALUES (1);")
    db = connect(path, apsw.SQLITE_OPEN_READWRITE)
    for _ in range(2):
        with pytest.raises(LedgerError, match="0900_half does not fit"):
            migrate(db, path, [*bundled(), half])
    assert not db.table_exists(None, "more")
    db.close()
    SqliteLedger(path).close()


def test_migrations_are_numbered_without_a_gap_from_one() -> None:
    assert [migration.number for migration in bundled()] == list(range(1, len(bundled()) + 1))
