"""What is particular to the ledger in a file: its disk, its locks, its age, and the hub that dies over it."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import apsw
import pytest
from tests.ledger.files import altered, filled, new_job, of_every_kind

from ostler.domain.errors import LedgerError
from ostler.domain.records import (
    Changes,
)
from ostler.ledger.sqlite import SqliteLedger
from ostler.ledger.sqlite_file import refuse_faulty_library

SCRIPT = """
import sys
from ostler.domain.job import Terms
from ostler.domain.records import *
from ostler.domain.resources import Request
from ostler.ledger.sqlite import SqliteLedger

def changes(seq):
    id = f"job-{seq}"
    job = JobRecord(id=id, seq=seq, user="ada", name="n", spec=b"s" * 2000, request=Request(), terms=Terms(), size=0,
                    state="running", submitted_at=1.0)
    return Changes(new_jobs=[job], tasks=[TaskRecord(id=id, job_id=id, index=0, state="running")],
                   feed=[FeedRecord(seq=seq, at=1.0, kind="job", subject=id, body={})])

ledger = SqliteLedger(sys.argv[1])
print("open", flush=True)
"""
COMMIT_FOR_EVER = """
seq = ledger.load().last_job_seq
while True:
    seq += 1
    ledger.commit(changes(seq))
    print(seq, flush=True)
"""
WAIT = "sys.stdin.read()"
# Python ignores SIGXFSZ, so that a write past the limit fails as a broken disk's would.
FAIL_TO_WRITE = """
import resource
from ostler.domain.errors import LedgerError
ledger.commit(changes(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
try:
    ledger.commit(changes(2))
except LedgerError as error:
    said = str(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(said)
ledger.commit(changes(3))
print(*(job.id for job in ledger.load().jobs))
"""


def child(path: Path, script: str) -> "subprocess.Popen[str]":
    """Another process that has the ledger open."""
    started = subprocess.Popen(
        [sys.executable, "-c", SCRIPT + script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)},
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "open\n"
    return started


def all_reads(ledger: SqliteLedger) -> tuple[object, ...]:
    artifacts, feed = ledger.artifacts(), ledger.feed(after=0)
    return ledger.load(), ledger.list_jobs(), artifacts, feed, ledger.token_list(), ledger.receipt("job-1")


# One hub at a time


def test_a_second_ledger_on_the_same_file_is_refused_until_the_first_is_closed(path: Path) -> None:
    first = SqliteLedger(path)
    other_name = path.with_name("link.db")
    other_name.symlink_to(path)
    for name in (path, other_name):
        with pytest.raises(LedgerError, match="another hub uses this ledger"):
            SqliteLedger(name)
    first.close()
    SqliteLedger(other_name).close()


def test_a_hub_in_another_process_is_named_when_it_holds_the_ledger(path: Path) -> None:
    other = child(path, WAIT)
    with pytest.raises(LedgerError, match=f"another hub uses this ledger: process {other.pid}"):
        SqliteLedger(path)
    other.communicate("")
    SqliteLedger(path).close()


def test_the_files_can_be_read_by_their_owner_only(path: Path) -> None:
    before = os.umask(0)
    try:
        ledger = SqliteLedger(path)
        ledger.commit(of_every_kind(1))
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(
        ["ostler.db", "ostler.db-mark", "ostler.db-wal", "ostler.db-shm", "ostler.db.lock"], 0o600
    )
    ledger.close()


# What is committed stays


def test_a_ledger_opened_again_has_everything(path: Path) -> None:
    ledger = SqliteLedger(path)
    ledger.commit(of_every_kind(1))
    before = all_reads(ledger)
    ledger.close()
    ledger.close()
    again = SqliteLedger(path)
    assert all_reads(again) == before
    again.close()


def test_every_commit_waits_for_the_disk(ledger: SqliteLedger) -> None:
    assert ledger._writer.pragma("journal_mode") == "wal"
    assert ledger._writer.pragma("synchronous") == 2


def test_every_acknowledged_commit_survives_a_kill_at_any_moment(path: Path) -> None:
    for seed in range(6):
        hub = child(path, COMMIT_FOR_EVER)
        time.sleep(random.Random(seed).uniform(0.0, 0.15))
        hub.send_signal(signal.SIGKILL)
        output, _ = hub.communicate()
        acknowledged = int(output.split()[-1]) if output.split() else 0
        ledger = SqliteLedger(path)
        snapshot = ledger.load()
        assert snapshot.last_job_seq >= acknowledged
        seqs = list(range(1, snapshot.last_job_seq + 1))
        assert [job.seq for job in snapshot.jobs] == seqs
        assert len(snapshot.tasks) == len(seqs)
        assert [line.seq for line in ledger.feed(after=0, limit=10**6)] == seqs
        ledger.close()
    assert seqs, "no child got as far as one commit"


# What goes wrong while it runs


def test_a_full_disk_fails_the_commit_whole_and_later_ones_work_when_there_is_room(ledger: SqliteLedger) -> None:
    ledger.commit(of_every_kind(1))
    before = ledger.load()
    ledger._writer.pragma("max_page_count", ledger._writer.pragma("page_count") + 5)
    large = of_every_kind(2)
    large.new_jobs.extend(new_job(seq, b"s" * 2000) for seq in range(3, 100))
    with pytest.raises(LedgerError, match=r"disk is full\. Free some space"):
        ledger.commit(large)
    assert ledger.load() == before
    ledger._writer.pragma("max_page_count", 1_000_000)
    ledger.commit(large)
    assert len(ledger.load().jobs) == 99


def test_a_failed_write_to_the_disk_fails_the_commit_whole(path: Path) -> None:
    with child(path, FAIL_TO_WRITE) as hub:
        assert hub.stdout is not None
        output = hub.stdout.read()  # `communicate` does not look at what has been read ahead
    assert "the disk failed to read or write" in output
    assert output.splitlines()[-1] == "job-1 job-3"


def test_a_commit_that_fails_at_any_of_its_statements_changes_nothing(ledger: SqliteLedger) -> None:
    ledger.commit(of_every_kind(1))
    before = all_reads(ledger)
    statements = 0

    def fails_at(last: int) -> Callable[..., bool]:
        def trace(cursor: apsw.Cursor, sql: str, values: object) -> bool:
            nonlocal statements
            statements += sql != "ROLLBACK"
            return statements != last or sql == "ROLLBACK"

        return trace

    begin_and_commit, kinds = 2, len(of_every_kind(2).__struct_fields__)
    for last in range(1, kinds + begin_and_commit + 1):
        statements = 0
        ledger._writer.exec_trace = fails_at(last)
        with pytest.raises(LedgerError):
            ledger.commit(of_every_kind(2))
        assert statements == last
        assert all_reads(ledger) == before
    ledger._writer.exec_trace = None
    ledger.commit(of_every_kind(2))
    assert len(ledger.load().jobs) == 2


def test_a_ledger_that_another_program_locked_says_so_and_works_again_afterwards(ledger: SqliteLedger) -> None:
    ledger._writer.set_busy_timeout(20)
    shell = apsw.Connection(ledger._writer.filename)
    shell.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match=r"holds it locked\. Close that program"):
        ledger.commit(of_every_kind(1))
    shell.execute("ROLLBACK")
    shell.close()
    ledger.commit(of_every_kind(1))


def test_a_value_that_no_row_can_hold_fails_the_commit_whole(ledger: SqliteLedger) -> None:
    for wrong in (new_job(2**63), new_job(2, spec="text")):  # type: ignore[arg-type]
        with pytest.raises(LedgerError, match="a fault of the hub"):
            ledger.commit(Changes(new_jobs=[new_job(1), wrong]))
    assert not ledger.load().jobs


def test_a_row_that_cannot_be_understood_is_reported_as_damage(ledger: SqliteLedger, path: Path) -> None:
    ledger.commit(of_every_kind(1))
    altered(path, "UPDATE jobs SET request = '{'")
    with pytest.raises(LedgerError, match="restore the newest backup"):
        ledger.load()


def test_a_closed_ledger_answers_with_an_error_of_its_own(path: Path) -> None:
    ledger = SqliteLedger(path)
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        ledger.commit(of_every_kind(1))
    with pytest.raises(LedgerError, match="closed"):
        ledger.load()


def test_a_thread_may_read_while_another_writes(ledger: SqliteLedger) -> None:
    seen: list[int] = []

    def read() -> None:
        while not seen or seen[-1] < 100:
            snapshot = ledger.load()
            assert len(snapshot.jobs) == len(snapshot.tasks) == snapshot.last_feed_seq
            seen.append(len(snapshot.jobs))

    reader = Thread(target=read)
    reader.start()
    for seq in range(1, 101):
        ledger.commit(of_every_kind(seq))
    reader.join(timeout=60)
    assert seen[-1] == 100
    assert seen == sorted(seen)


# What is refused at opening


@pytest.mark.parametrize("content", [b"xy", b"no database at all\n" * 1000, b"SQLite format 3\0", bytes(8192)])
def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="no ledger"):
        SqliteLedger(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("part", [0.02, 0.3, 0.5, 0.99])
def test_a_file_cut_short_is_refused(path: Path, part: float) -> None:
    filled(path)
    os.truncate(path, int(path.stat().st_size * part))
    with pytest.raises(LedgerError, match="restore the newest backup"):
        SqliteLedger(path)


def test_a_file_with_a_destroyed_page_is_refused(path: Path) -> None:
    filled(path)
    pages = path.stat().st_size // 4096
    with path.open("r+b") as file:
        file.seek(4096 * (pages - 3))
        file.write(os.urandom(4096))
    with pytest.raises(LedgerError, match="damaged"):
        SqliteLedger(path)


def test_a_log_without_its_file_is_refused_before_it_is_lost(path: Path) -> None:
    hub = child(path, COMMIT_FOR_EVER)
    assert hub.stdout is not None
    hub.stdout.readline()
    hub.kill()
    hub.communicate()
    kept = path.rename(path.with_name("kept"))
    with pytest.raises(LedgerError, match="Bring the file back"):
        SqliteLedger(path)
    kept.rename(path)
    again = SqliteLedger(path)
    assert again.load().jobs
    again.close()


def test_a_database_of_another_program_is_refused_and_left_as_it_is(path: Path) -> None:
    altered(path, "CREATE TABLE jobs (id TEXT)")
    content = path.read_bytes()
    with pytest.raises(LedgerError, match="not an Ostler ledger"):
        SqliteLedger(path)
    assert path.read_bytes() == content


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="Check that its folder exists"):
        SqliteLedger(tmp_path / "nowhere" / "ostler.db")


@pytest.mark.parametrize("version", ["3.51.2", "3.51.0", "3.50.6", "3.45.1", "3.44.5", "3.40.1"])
def test_a_library_that_can_lose_commits_is_refused(version: str) -> None:
    with pytest.raises(LedgerError, match=r"install an apsw that carries SQLite 3\.51\.3 or later"):
        refuse_faulty_library(version)


@pytest.mark.parametrize("version", ["3.51.3", "3.52.0", "3.54.1", "4.0", "3.50.7", "3.44.6", "3.44.6.1"])
def test_a_repaired_library_is_taken(version: str) -> None:
    refuse_faulty_library(version)
