"""One byte that is not what was written, anywhere: the ledger is refused when it is opened, or it is exact."""

import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw
import pytest
from tests.ledger.files import new_job, of_every_kind

from ostler.domain.errors import LedgerError
from ostler.domain.records import Changes
from ostler.ledger import sqlite_sound
from ostler.ledger.migrate import copy_aside
from ostler.ledger.sqlite import SqliteLedger
from ostler.ledger.sqlite_file import APPLICATION_ID
from ostler.ledger.sqlite_sound import connect, read_mark

PAGE = 4096
SUFFIXES = ("", "-wal", "-mark")
Rows = dict[str, list[object]]


def rows_of(path: Path) -> Rows:
    """Every row of every table."""
    db = connect(path, apsw.SQLITE_OPEN_READONLY)
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
    found: Rows = {table: list(db.execute(f"SELECT * FROM {table} ORDER BY 1, 2")) for table in tables}
    db.close()
    return found


def schema_of(path: Path) -> set[tuple[str, str, str]]:
    db = connect(path, apsw.SQLITE_OPEN_READONLY)
    found = set(db.execute("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL"))
    db.close()
    return found


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory where that can be: hundreds of ledgers are opened, and nobody cuts the power."""
    memory = "/dev/shm"
    with TemporaryDirectory(dir=memory if os.path.isdir(memory) else None) as folder:
        yield Path(folder)


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The files of a hub that was killed: some of its commits are in the file, the newest in the log alone."""
    path = tmp_path / "running" / "ostler.db"
    path.parent.mkdir()
    ledger = SqliteLedger(path)
    ledger.commit(Changes(new_jobs=[new_job(seq, b"s" * (seq - 1000) * 20) for seq in range(1001, 1101)]))
    ledger._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    for seq in range(1, 4):
        ledger.commit(of_every_kind(seq))
    left = tmp_path / "left" / "ostler.db"
    copy(path, left)
    ledger.close()
    return left


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    for suffix in SUFFIXES:
        shutil.copy(f"{source}{suffix}", f"{target}{suffix}")


def flip(file: Path, at: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ (1 << at % 8)]))


def opened_after(killed: Path, folder: Path, harm: Callable[[Path], None]) -> Rows | str:
    """What is in the ledger after this harm, or why it is refused: now, and when it is tried again."""
    path = folder / "ostler.db"
    folder.mkdir()
    copy(killed, path)
    harm(path)
    refusals: list[str] = []
    while len(refusals) < 2:
        try:
            ledger = SqliteLedger(path)
        except LedgerError as error:
            refusals.append(str(error))
            continue
        assert not refusals, "a ledger that was refused is taken the next time"
        found = rows_of(path)
        ledger.close()
        shutil.rmtree(folder)
        return found
    shutil.rmtree(folder)
    return refusals[0]


def test_a_byte_flipped_in_any_page_is_refused_when_the_ledger_is_opened_or_the_ledger_is_exact(
    killed: Path, tmp_path: Path
) -> None:
    whole = opened_after(killed, tmp_path / "whole", lambda path: None)
    assert isinstance(whole, dict) and len(whole["jobs"]) == 103
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    refused = 0
    for suffix in ("", "-wal"):
        size = Path(f"{killed}{suffix}").stat().st_size
        for start in range(0, size, PAGE):
            at = draw.randrange(start, min(start + PAGE, size))
            found = opened_after(
                killed, tmp_path / "harmed", lambda path, at=at, suffix=suffix: flip(Path(f"{path}{suffix}"), at)
            )
            told = f"byte {at} of ostler.db{suffix}"
            if isinstance(found, str):
                assert "restore the newest backup" in found or "Give the hub another file" in found, (told, found)
                refused += 1
            else:
                assert found == whole, told
    assert refused > 70


@pytest.mark.parametrize("at", [0, 17, 18, 20, 31, 43, 60, 63, 70, 95, 99])
def test_a_byte_flipped_in_the_head_of_the_file_is_refused(killed: Path, tmp_path: Path, at: int) -> None:
    assert isinstance(opened_after(killed, tmp_path / "harmed", lambda path: flip(path, at)), str)


@pytest.mark.parametrize("at", [0, 4, 8, 16, 20, 24, 31])
def test_a_byte_flipped_in_the_head_of_the_log_is_refused(killed: Path, tmp_path: Path, at: int) -> None:
    found = opened_after(killed, tmp_path / "harmed", lambda path: flip(Path(f"{path}-wal"), at))
    assert isinstance(found, str) and "has lost commits" in found


def test_a_log_that_was_cut_short_is_refused(killed: Path, tmp_path: Path) -> None:
    size = Path(f"{killed}-wal").stat().st_size
    for left in (0, 31, 32, PAGE, size // 2, size - 1):
        found = opened_after(killed, tmp_path / "harmed", lambda path, left=left: os.truncate(f"{path}-wal", left))
        assert isinstance(found, str) and "has lost commits" in found, left


def test_a_log_that_is_gone_is_missed(killed: Path, tmp_path: Path) -> None:
    found = opened_after(killed, tmp_path / "harmed", lambda path: os.unlink(f"{path}-wal"))
    assert isinstance(found, str) and "it ends at event 0, but had come to 3" in found


def fold(path: Path) -> None:
    """As a database shell does that is opened and closed: it knows nothing of checksums."""
    shell = apsw.Connection(str(path))
    assert shell.execute("SELECT count(*) FROM jobs").get == 103
    shell.close()
    assert not Path(f"{path}-wal").exists()


def test_what_a_database_shell_has_written_is_refused_and_its_dump_is_taken(killed: Path, tmp_path: Path) -> None:
    fold(killed)
    with pytest.raises(LedgerError, match="another program has written to it"):
        SqliteLedger(killed)
    fresh = tmp_path / "fresh.db"
    with closing(sqlite3.connect(killed)) as shell, closing(sqlite3.connect(fresh)) as other:
        other.executescript(f"PRAGMA application_id = {APPLICATION_ID}; {''.join(shell.iterdump())}")
    ledger = SqliteLedger(fresh)
    assert len(rows_of(fresh)["jobs"]) == 103
    ledger.close()


def test_a_log_that_was_folded_into_the_file_is_not_missed(killed: Path) -> None:
    db = connect(killed, apsw.SQLITE_OPEN_READWRITE)
    assert db.execute("SELECT count(*) FROM jobs").get == 103
    db.close()
    assert not Path(f"{killed}-wal").exists() and read_mark(killed) is not None
    SqliteLedger(killed).close()


def test_a_mark_that_is_damaged_or_gone_keeps_nobody_from_a_sound_ledger(killed: Path, tmp_path: Path) -> None:
    for harm in (lambda path: flip(Path(f"{path}-mark"), 10), lambda path: os.unlink(f"{path}-mark")):
        found = opened_after(killed, tmp_path / "harmed", harm)
        assert isinstance(found, dict) and len(found["jobs"]) == 103


def test_what_a_refusal_says_to_remove_lets_the_hub_go_on_with_what_is_left(killed: Path, tmp_path: Path) -> None:
    flip(Path(f"{killed}-wal"), 40)
    with pytest.raises(LedgerError, match=r"remove ostler\.db-mark and the log"):
        SqliteLedger(killed)
    os.unlink(f"{killed}-mark")
    os.unlink(f"{killed}-wal")
    ledger = SqliteLedger(killed)
    assert ledger.load().last_job_seq == 1100
    ledger.close()


def test_the_mark_follows_the_log_when_that_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "ostler.db"
    ledger = SqliteLedger(path)
    ledger.commit(of_every_kind(1))
    first = read_mark(path)
    ledger._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    ledger.commit(of_every_kind(2))
    second = read_mark(path)
    assert first is not None and second is not None
    assert (first.feed, second.feed) == (1, 2)
    assert first.log != second.log
    assert second.frames < first.frames
    ledger.close()
    assert read_mark(path) is None


def test_the_mark_is_of_the_newest_log_however_long_that_is_at_once(tmp_path: Path) -> None:
    path = tmp_path / "running" / "ostler.db"
    path.parent.mkdir()
    ledger = SqliteLedger(path)
    ledger._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    ledger.commit(of_every_kind(1))
    ledger._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    ledger.commit(Changes(new_jobs=[new_job(seq, b"s" * 4000) for seq in range(2, 102)]))
    copy(path, tmp_path / "left" / "ostler.db")
    ledger.close()
    harmed = opened_after(tmp_path / "left" / "ostler.db", tmp_path / "harmed", lambda p: os.truncate(f"{p}-wal", 9000))
    assert isinstance(harmed, str) and "has lost commits" in harmed


def test_a_log_that_is_gone_before_it_was_ever_folded_into_the_file_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "running" / "ostler.db"
    path.parent.mkdir()
    ledger = SqliteLedger(path)
    ledger.commit(Changes(new_jobs=[new_job(1)]))
    copy(path, tmp_path / "left" / "ostler.db")
    ledger.close()
    harmed = opened_after(tmp_path / "left" / "ostler.db", tmp_path / "harmed", lambda p: os.unlink(f"{p}-wal"))
    assert isinstance(harmed, str) and "has lost commits" in harmed


def test_a_new_ledger_is_not_measured_by_the_mark_of_one_that_was_moved_away(killed: Path, tmp_path: Path) -> None:
    os.unlink(killed)
    os.unlink(f"{killed}-wal")
    ledger = SqliteLedger(killed)
    ledger.commit(of_every_kind(1))
    found = opened_after(killed, tmp_path / "killed again", lambda path: None)
    ledger.close()
    assert isinstance(found, dict) and len(found["jobs"]) == 1


def test_what_sqlite_has_noted_for_itself_keeps_no_ledger_from_its_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ostler.db"
    monkeypatch.setattr(sqlite_sound, "verifying", lambda: "")
    before = SqliteLedger(path)
    before.commit(of_every_kind(1))
    before.close()
    monkeypatch.undo()
    with closing(apsw.Connection(str(path))) as shell:
        shell.execute("ANALYZE")
    SqliteLedger(path).close()
    assert path.read_bytes()[20] == sqlite_sound.CHECKSUM_BYTES


@pytest.mark.parametrize("spec_bytes", [2, 40_000])
def test_a_ledger_from_before_the_checksums_has_them_once_it_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec_bytes: int
) -> None:
    path = tmp_path / "ostler.db"
    monkeypatch.setattr(sqlite_sound, "verifying", lambda: "")
    before = SqliteLedger(path)
    before.commit(of_every_kind(1))
    before.commit(Changes(new_jobs=[new_job(seq, b"s" * spec_bytes) for seq in range(2, 402)]))
    before.close()
    assert path.read_bytes()[20] == 0
    old, laid_out = rows_of(path), schema_of(path)
    monkeypatch.undo()
    SqliteLedger(path).close()
    assert path.read_bytes()[20] == sqlite_sound.CHECKSUM_BYTES
    assert rows_of(path) == old and schema_of(path) == laid_out
    flip(path, path.stat().st_size - 100)
    with pytest.raises(LedgerError, match="is damaged"):
        SqliteLedger(path)


def test_every_page_of_a_copy_has_its_checksum_however_large_it_is(tmp_path: Path) -> None:
    path, copied = tmp_path / "ostler.db", tmp_path / "copy.db"
    ledger = SqliteLedger(path)
    ledger.commit(Changes(new_jobs=[new_job(seq, b"s" * 40_000) for seq in range(1, 401)]))
    copy_aside(ledger._writer, copied)
    ledger.commit(of_every_kind(401))
    ledger.close()
    again = SqliteLedger(copied)  # which looks at every page
    assert again.load().last_job_seq == 400
    again.close()
    assert copied.read_bytes()[20] == sqlite_sound.CHECKSUM_BYTES


def test_a_ledger_with_checksums_is_refused_where_they_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ostler.db"
    SqliteLedger(path).close()
    monkeypatch.setattr(sqlite_sound, "verifying", lambda: "")
    with pytest.raises(LedgerError, match="install apsw from a wheel"):
        SqliteLedger(path)
