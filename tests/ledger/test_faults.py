"""Disks that fail at any moment, lose their power, or are held by somebody else: what was acknowledged is there."""

import logging
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer

import apsw
import pytest
from tests.ledger.faulty import NAME, Disk, Fault, fails_at
from tests.ledger.files import new_job

from ostler.domain.errors import LedgerError
from ostler.domain.records import Changes, FeedRecord, TaskRecord
from ostler.ledger import sqlite, sqlite_file, sqlite_sound
from ostler.ledger.sqlite import SqliteLedger

COMMITS = 5
CUTS = 200
CHECKPOINT_PAGES = 16
"""So few that the log is folded into the file several times."""


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory where that can be: what is lost here is chosen."""
    memory = "/dev/shm"
    with TemporaryDirectory(dir=memory if os.path.isdir(memory) else None) as folder:
        yield Path(folder)


@pytest.fixture
def fault() -> Fault:
    return Fault()


@pytest.fixture
def disk(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """Every ledger that is opened lies on it."""
    made = Disk(fault)
    monkeypatch.setattr(sqlite_sound, "verifying", lambda: NAME)
    monkeypatch.setattr(sqlite_file, "verifying", lambda: NAME)
    monkeypatch.setattr(sqlite, "CHECKPOINT_PAGES", CHECKPOINT_PAGES)
    yield made
    made.unregister()


def small(seq: int, spec: bytes = b"{}") -> Changes:
    job = new_job(seq, spec)
    task = TaskRecord(id=job.id, job_id=job.id, index=0, state="running")
    return Changes(
        new_jobs=[job], tasks=[task], feed=[FeedRecord(seq=seq, at=1.0, kind="job", subject=job.id, body={})]
    )


def commit_while_it_works(ledger: SqliteLedger, first: int, last: int, spec: bytes = b"{}") -> tuple[int, str]:
    """The last that was acknowledged, and what was said of the one after it."""
    for seq in range(first, last + 1):
        try:
            ledger.commit(small(seq, spec))
        except LedgerError as error:
            return seq - 1, str(error)
    return last, ""


def check(path: Path, acknowledged: int) -> int:
    """Sound, whole up to some commit, and not before the last that was acknowledged; how many there are."""
    ledger = SqliteLedger(path)
    snapshot = ledger.load()
    there = snapshot.last_job_seq
    assert there >= acknowledged, f"{acknowledged} were acknowledged, {there} are there"
    assert [job.seq for job in snapshot.jobs] == list(range(1, there + 1))
    assert len(snapshot.tasks) == snapshot.last_feed_seq == there
    ledger.commit(small(there + 1))
    ledger.close()
    return there


def test_a_write_or_sync_that_fails_loses_nothing_that_was_acknowledged_whichever_it_is(
    fault: Fault, disk: Disk, tmp_path: Path
) -> None:
    filled = tmp_path / "filled"
    filled.mkdir()
    ledger = SqliteLedger(filled / "ostler.db")
    assert commit_while_it_works(ledger, 1, 2) == (2, "")
    ledger.close()
    said, reached, number = Counter[str](), True, 0
    while reached:
        number += 1
        folder = tmp_path / "tried"
        shutil.copytree(filled, folder)
        ledger = SqliteLedger(folder / "ostler.db")
        at = fault.operations + number
        fault.meets = fails_at(at, (apsw.IOError, apsw.FullError)[number % 2], from_then_on=number % 4 > 1)
        acknowledged, why = commit_while_it_works(ledger, 3, 2 + COMMITS)
        reached = fault.operations >= at
        with suppress(LedgerError):
            ledger.close()
        fault.meets = lambda number: None
        check(folder / "ostler.db", acknowledged)
        shutil.rmtree(folder)
        said[why.partition(": ")[2].partition(".")[0]] += 1
    assert said["the disk is full"] > COMMITS
    assert said["the disk failed to read or write"] > COMMITS


def test_a_cut_of_the_power_at_any_moment_loses_nothing_that_was_acknowledged(
    fault: Fault, disk: Disk, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    acknowledged = 0
    cuts: list[tuple[Path, int]] = []
    (tmp_path / "running").mkdir()
    mark = tmp_path / "running" / "ostler.db-mark"

    def cut(number: int) -> None:
        if draw.random() < 0.1 and len(cuts) < CUTS:
            left = tmp_path / f"left-{len(cuts)}"
            disk.cut(left, draw)
            if mark.exists() and draw.random() < 0.8:  # it is not synced: it may have come to the disk, or not
                shutil.copy(mark, left)
            cuts.append((left / "ostler.db", acknowledged))

    fault.meets = cut
    ledger = SqliteLedger(tmp_path / "running" / "ostler.db")
    while len(cuts) < CUTS:
        acknowledged, _ = commit_while_it_works(ledger, acknowledged + 1, acknowledged + 1)
    fault.meets = lambda number: None
    ledger.close()
    assert acknowledged > 20
    found = {check(path, before) - before for path, before in cuts}
    assert found == {0, 1}, "no cut came between a commit and its acknowledgement, or something was invented"


def test_a_ledger_that_somebody_holds_is_waited_for_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite_file, "SAID_AFTER_S", 0.02)
    path = tmp_path / "ostler.db"
    ledger = SqliteLedger(path)
    shell = apsw.Connection(str(path))
    shell.execute("BEGIN IMMEDIATE")
    Timer(0.2, shell.execute, ("ROLLBACK",)).start()
    with caplog.at_level(logging.WARNING):
        ledger.commit(small(1))
    assert f"another program holds the ledger {path} locked" in caplog.text
    shell.close()
    ledger.close()


def test_a_ledger_that_is_held_for_too_long_fails_the_commit_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_S", 0.1)
    path = tmp_path / "ostler.db"
    ledger = SqliteLedger(path)
    shell = apsw.Connection(str(path))
    shell.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match=r"holds it locked\. Close that program"):
        ledger.commit(small(1))
    shell.execute("ROLLBACK")
    shell.close()
    ledger.commit(small(1))
    assert ledger.load().last_job_seq == 1
    ledger.close()


def test_a_full_disk_fails_the_commit_and_what_was_there_stays(tmp_path: Path) -> None:
    """A real one, in memory; where nothing may be mounted, the injected errors above must do."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.system(f"mount -t tmpfs -o size=4m tmpfs {disk} 2>/dev/null") != 0:
        pytest.skip("only root mounts disks: run the tests as root")
    try:
        path = disk / "ostler.db"
        ledger = SqliteLedger(path)
        acknowledged, said = commit_while_it_works(ledger, 1, 10_000, b"s" * 20_000)
        assert "the disk is full. Free some space" in said or "the disk failed to read or write" in said
        ledger.close()
        again = SqliteLedger(path)
        assert again.load().last_job_seq == acknowledged > 20
        again.close()
    finally:
        os.system(f"umount -l {disk}")
