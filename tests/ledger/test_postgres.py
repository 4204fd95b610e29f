"""What is particular to the ledger on a server: how it is reached, what the server may do to it, what it says of that."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from tests.ledger.files import new_job, of_every_kind
from tests.ledger.server import Server, server

from ostler.domain.errors import BadInput, LedgerError, NotYet
from ostler.domain.records import Changes
from ostler.ledger import postgres_server, rows
from ostler.ledger import postgres_sql as sql
from ostler.ledger.migrate import Migration
from ostler.ledger.postgres import PostgresLedger
from ostler.ledger.postgres_schema import bundled, migrate
from ostler.ledger.postgres_server import Address

SECRET = "s3cret-w0rd"
COMMIT_FOR_EVER = """
import sys
from contextlib import closing
from tests.ledger.files import of_every_kind
from ostler.ledger.postgres import PostgresLedger

ledger = PostgresLedger(sys.argv[1])
ledger.lead("child")
seq = 0
with closing(ledger):
    while True:
        seq += 1
        ledger.commit(of_every_kind(seq))
        print(seq, flush=True)
"""


@pytest.fixture
def url() -> str:
    return server().emptied()


@pytest.fixture
def ledger(url: str) -> Iterator[PostgresLedger]:
    made = PostgresLedger(url)
    made.lead("tests")
    yield made
    made.close()


@pytest.fixture
def alone() -> Iterator[psycopg.Connection[Any]]:
    """A connection to a database of its own."""
    with psycopg.connect(server().new_database(), autocommit=True) as db:
        yield db


def url_of(db: psycopg.Connection[Any]) -> str:
    return server().url(db.info.dbname)


def refused(url: str) -> str:
    with pytest.raises(LedgerError) as caught:
        PostgresLedger(url).close()
    return str(caught.value)


# Addresses


@pytest.mark.parametrize(
    "given",
    [
        f"mysql://u:{SECRET}@h/db",
        f"u:{SECRET}@h/db",
        f"postgresql://u:{SECRET}/x@h/db",
        f"postgresql://u:{SECRET}@{SECRET}@h/db",
        f"postgresql://u@h/db?passwort={SECRET}",
        f"postgresql://u:%{SECRET}@h/db",
        f"postgresql://h:{SECRET}/db",
    ],
)
def test_an_address_that_cannot_be_read_is_refused_without_being_repeated(given: str) -> None:
    with pytest.raises(BadInput, match="write it like postgresql://USER@HOST/DATABASE") as caught:
        Address(given)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_an_address_is_shown_without_its_password() -> None:
    shown = {
        f"postgresql://ann:{SECRET}@db.example:5433/fleet": "postgresql://ann@db.example:5433/fleet",
        f"postgresql://ann:{SECRET}?#%40@db/fleet": "postgresql://ann@db/fleet",
        f"postgres://db/fleet?user=ann&password={SECRET}": "postgresql://ann@db/fleet",
        f"postgresql://ann:{SECRET}@a:1,b:2/fleet?sslmode=require": "postgresql://ann@a,b:1,2/fleet",
    }
    assert {given: Address(given).shown for given in shown} == shown


def test_no_error_shows_the_password() -> None:
    server().execute(f"DROP ROLE IF EXISTS guarded; CREATE ROLE guarded LOGIN PASSWORD '{SECRET}'")
    open_to_it = f"{server().url('postgres', 'guarded')}&password={SECRET}"
    with Address(open_to_it).connect() as db:
        assert db.info.user == "guarded"
    for wrong in (f"{open_to_it}-but-wrong", server().url("postgres", "guarded")):
        said = refused(wrong)
        assert "the server refuses this user. Check user and password" in said
        assert SECRET not in said
    said = refused(open_to_it)
    assert "may not do this" in said or "another program" in said
    assert SECRET not in said


# Servers that are not fit


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("postgresql://127.0.0.1:1/db", "cannot be reached. Check that it runs"),
        ("postgresql:///db?host=/nowhere", "cannot be reached. Check that it runs"),
        ("postgresql://nowhere.invalid/db", "cannot be reached. Check that it runs"),
    ],
)
def test_a_server_that_is_not_there_may_come_yet(address: str, said: str) -> None:
    with pytest.raises(NotYet, match=said):
        PostgresLedger(address)


@pytest.mark.parametrize(
    ("database", "user", "said"),
    [
        ("nowhere", "ostler", r"there is no such database\. Create it: createdb"),
        ("postgres", "nobody", "the server refuses this user"),
        ("postgres", "barred", "the server refuses this user"),
    ],
)
def test_a_server_that_refuses_is_not_waited_for(database: str, user: str, said: str) -> None:
    with pytest.raises(LedgerError, match=said) as caught:
        PostgresLedger(server().url(database, user))
    assert not isinstance(caught.value, NotYet)


def test_a_server_that_is_too_old_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_server, "OLDEST_VERSION", 99)
    assert "is too old. Install 99 or later" in refused(url)


def test_a_server_that_could_lose_commits_is_refused(url: str) -> None:
    def set_fsync(value: str) -> None:
        server().execute(f"ALTER SYSTEM SET fsync = {value}")
        server().execute("SELECT pg_reload_conf()")
        with psycopg.connect(url) as db:
            while db.execute("SHOW fsync").fetchone() != (value,):
                pass

    set_fsync("off")
    try:
        assert "fsync = off and may lose commits" in refused(url)
    finally:
        set_fsync("on")
    PostgresLedger(url).close()


def test_commits_wait_for_the_disk_even_where_the_server_would_not(alone: psycopg.Connection[Any]) -> None:
    alone.execute(f"ALTER DATABASE {alone.info.dbname} SET synchronous_commit = off".encode())
    ledger = PostgresLedger(url_of(alone))
    assert ledger._writer.execute(b"SHOW synchronous_commit").fetchone() == ("on",)
    ledger.close()


def test_a_database_that_takes_no_writes_is_refused(alone: psycopg.Connection[Any]) -> None:
    alone.execute(f"ALTER DATABASE {alone.info.dbname} SET default_transaction_read_only = on".encode())
    assert "takes no writes" in refused(url_of(alone))


def test_a_database_of_another_encoding_is_refused(alone: psycopg.Connection[Any]) -> None:
    alone.execute(b"DROP DATABASE IF EXISTS plain")
    alone.execute(b"CREATE DATABASE plain ENCODING 'SQL_ASCII' TEMPLATE template0")
    assert "its encoding is SQL_ASCII" in refused(server().url("plain"))


def test_a_database_of_another_program_is_left_as_it_is(alone: psycopg.Connection[Any]) -> None:
    alone.execute(b"CREATE TABLE customers (x INT)")
    assert "is a database of another program" in refused(url_of(alone))
    assert alone.execute(b"SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (1,)


# Schemas of other versions


def test_a_ledger_of_a_newer_version_and_an_altered_one_are_refused(alone: psycopg.Connection[Any]) -> None:
    PostgresLedger(url_of(alone)).close()
    alone.execute(b"INSERT INTO ostler_migrations VALUES ('0999_later', 'x', 1.0)")
    assert "newer than this hub: it has the migration 0999_later" in refused(url_of(alone))
    alone.execute(b"DELETE FROM ostler_migrations WHERE name = '0999_later'")
    alone.execute(b"UPDATE ostler_migrations SET checksum = 'other'")
    assert "0001_start differs" in refused(url_of(alone))


def test_a_migration_waits_for_the_hub_that_leads_and_fails_whole(alone: psycopg.Connection[Any]) -> None:
    ledger = PostgresLedger(url_of(alone))
    ledger.lead("old hub")
    ledger.commit(of_every_kind(1))
    more = Migration("0900_more", "CREATE TABLE more (x INT);")
    half = Migration("0901_half", "CREATE TABLE half (x INT); INSERT INTO nowhere VALUES (1);")
    with Address(url_of(alone)).connect() as db:
        with pytest.raises(NotYet, match=r"the hub old hub of the older version leads\. Stop that hub first"):
            migrate(db, "db", [*bundled(), more])
        ledger.resign()
        with pytest.raises(LedgerError, match="0901_half does not fit the ledger"):
            migrate(db, "db", [*bundled(), more, half])
        assert alone.execute(b"SELECT to_regclass('more'), to_regclass('half')").fetchone() == (None, None)
        migrate(db, "db", [*bundled(), more])
        migrate(db, "db", [*bundled(), more])
    assert alone.execute(b"SELECT count(*) FROM ostler_migrations").fetchone() == (len(bundled()) + 1,)
    assert [job.id for job in ledger.load().jobs] == ["job-1"]
    ledger.close()


def test_every_field_of_a_record_has_its_column_and_nothing_else_has(url: str, ledger: PostgresLedger) -> None:
    tables: list[sql.Table[Any]] = [one for one in vars(sql).values() if isinstance(one, sql.Table)]
    shapes = [shape for shape in vars(rows).values() if isinstance(shape, rows.Shape)]
    assert {table.columns for table in tables} == {shape.columns for shape in shapes}
    of_a_table: dict[str, set[str]] = {}
    for table in tables:
        of_a_table.setdefault(table.name, set()).update(table.columns)
    with psycopg.connect(url) as db:
        for name, columns in of_a_table.items():
            query = (
                "SELECT column_name FROM information_schema.columns WHERE table_name = %s AND table_schema = 'public'"
            )
            assert {row[0] for row in db.execute(query, (name,))} - {"n"} == columns - {"n"}, name


# What the server does while it runs


def test_reads_do_not_wait_for_a_commit_that_takes_its_time(url: str, ledger: PostgresLedger) -> None:
    ledger.commit(of_every_kind(1))
    with psycopg.connect(url) as other, ThreadPoolExecutor(2) as threads:
        other.execute(b"LOCK kept IN EXCLUSIVE MODE")  # the last table that the commit writes
        commit = threads.submit(ledger.commit, of_every_kind(2))
        while not other.execute(b"SELECT 1 FROM pg_locks WHERE NOT granted").fetchone():
            assert not commit.done()
        read = threads.submit(lambda: (ledger.load().jobs, ledger.list_jobs(user="ada"), ledger.leader().holder))
        jobs, views, holder = read.result(60)
        assert (len(jobs), len(views), holder, commit.done()) == (1, 1, "tests", False)
        other.rollback()
        commit.result(60)
    assert len(ledger.load().jobs) == 2


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("53100", r"the server's disk is full\. Free some space"),
        ("53200", "the server is out of memory"),
        ("57P01", "the server was shut down or ended the session"),
        ("58030", "the server's disk failed"),
        ("XX001", "the database is damaged"),
        ("23514", r"a row does not fit what is there\. This is a fault of the hub"),
        ("99999", "report this error"),
    ],
)
def test_a_commit_that_the_server_fails_changes_nothing_and_says_what_to_do(
    ledger: PostgresLedger, code: str, said: str
) -> None:
    ledger.commit(of_every_kind(1))
    before = ledger.load(), ledger.artifacts()
    failing = f"BEGIN RAISE EXCEPTION 'made to fail' USING ERRCODE = '{code}'; END"
    ledger._writer.execute(f"CREATE FUNCTION fails() RETURNS TRIGGER LANGUAGE plpgsql AS $${failing}$$".encode())
    ledger._writer.execute(b"CREATE TRIGGER fails BEFORE INSERT ON kept EXECUTE FUNCTION fails()")
    try:
        with pytest.raises(LedgerError, match=said):
            ledger.commit(of_every_kind(2))
        assert (ledger.load(), ledger.artifacts()) == before
    finally:
        ledger._writer.execute(b"DROP FUNCTION fails CASCADE")
    ledger.commit(of_every_kind(2))
    assert len(ledger.load().jobs) == 2


def test_a_commit_on_a_lost_connection_fails_and_the_next_ledger_goes_on(url: str, ledger: PostgresLedger) -> None:
    ledger.commit(of_every_kind(1))
    server().execute(f"SELECT pg_terminate_backend({ledger._writer.info.backend_pid}, 5000)")
    with pytest.raises(LedgerError, match=r"ended the session|lost during a commit"):
        ledger.commit(of_every_kind(2))
    with pytest.raises(LedgerError):
        ledger.commit(of_every_kind(2))
    again = PostgresLedger(url)
    assert again.lead("tests") is not None
    assert [job.id for job in again.load().jobs] == ["job-1"]
    again.commit(of_every_kind(2))
    again.close()


def test_a_read_takes_another_connection_when_its_own_was_lost(ledger: PostgresLedger) -> None:
    ledger.commit(of_every_kind(1))
    others = f"pid NOT IN (pg_backend_pid(), {ledger._writer.info.backend_pid}) AND usename = 'ostler'"
    server().execute(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {others}")
    assert len(ledger.load().jobs) == 1


def test_a_ledger_can_be_closed_twice_and_after_its_server_is_gone(url: str) -> None:
    ledger = PostgresLedger(url)
    ledger.lead("tests")
    server().execute(f"SELECT pg_terminate_backend({ledger._writer.info.backend_pid}, 5000)")
    ledger.close()
    ledger.close()


def test_every_acknowledged_commit_survives_a_crash_of_the_server() -> None:
    crashing = Server(server().programs)
    url = crashing.new_database()
    child = subprocess.Popen(
        [sys.executable, "-c", COMMIT_FOR_EVER, url],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)},
    )
    assert child.stdout is not None
    while child.stdout.readline() != "20\n":
        assert child.poll() is None
    crashing.crash()
    acknowledged = int(["20", *child.communicate(timeout=60)[0].split()][-1])
    crashing.start()
    ledger = PostgresLedger(url)
    snapshot = ledger.load()
    assert acknowledged <= snapshot.last_job_seq <= acknowledged + 1
    assert [job.seq for job in snapshot.jobs] == list(range(1, snapshot.last_job_seq + 1))
    assert len(snapshot.tasks) == len(ledger.feed(after=0, limit=10**6)) == snapshot.last_job_seq
    ledger.close()


def test_a_large_commit_goes_in_several_statements() -> None:
    jobs = [new_job(seq, b"s" * 12_000_000) for seq in range(1, 6)]
    sizes = [values[-1] for _, values in sql.statements(Changes(new_jobs=jobs))]
    assert sizes == [2, 2, 1]
