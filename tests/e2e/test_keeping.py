"""A ledger's backup while its hub runs, its return, and what the doctor says meanwhile."""

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from shutil import copyfile

import pytest
from tests.ledger.files import of_every_kind
from tests.process_fleet import ProcessFleet, process_fleet

from ostler.domain.errors import LedgerError
from ostler.hub import keeping
from ostler.ledger import sqlite_file
from ostler.ledger.migrate import bundled
from ostler.ledger.sqlite import SqliteLedger
from ostler.ledger.sqlite_file import take_lock


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[ProcessFleet]:
    with process_fleet(tmp_path) as made:
        yield made


def test_a_backup_brings_the_ledger_back_as_it_was_then(fleet: ProcessFleet, tmp_path: Path) -> None:
    file = tmp_path / "backup.db"
    before = fleet.hub.submit({"command": ["true"]})["id"]
    fleet.check_run("backup", str(file))
    assert file.stat().st_mode & 0o077 == 0, "specs hold what users put into environments"
    after = fleet.hub.submit({"command": ["true"]})["id"]
    assert "is there already" in fleet.check_run("backup", str(file), code=2).stderr
    assert "another hub uses this ledger" in fleet.check_run("restore", str(file), code=1).stderr
    assert fleet.hub.job(after)["state"] == "pending", "nothing was touched"
    fleet.terminate("hub")
    assert "ostler.db.replaced-1" in fleet.check_run("restore", str(file)).stderr
    fleet.start_hub()
    assert [job["id"] for job in fleet.hub.all_jobs()] == [before]
    assert fleet.check_run("doctor").stdout.count("ok ") == 4


def test_what_is_no_sound_ledger_does_not_take_the_place_of_one(fleet: ProcessFleet, tmp_path: Path) -> None:
    job_id = fleet.hub.submit({"command": ["true"]})["id"]
    fleet.terminate("hub")
    for text in (b"", b"no ledger at all", (fleet.state / "ostler.db").read_bytes()[:5000]):
        (tmp_path / "file").write_bytes(text)
        assert fleet.check_run("restore", str(tmp_path / "file"), code=1).stderr.startswith("ostler: ")
    assert "there is no backup" in fleet.check_run("restore", str(tmp_path / "none"), code=5).stderr
    fleet.start_hub()
    assert fleet.hub.job(job_id)["state"] == "pending"


def test_the_doctor_says_what_is_not_well(tmp_path: Path) -> None:
    fleet = ProcessFleet(tmp_path)
    fleet.state.mkdir()
    (fleet.state / "admin.token").write_text("secret")
    (fleet.state / "ostler.db").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    found = json.loads(fleet.check_run("doctor", "--hub", "http://127.0.0.1:1", "--json", code=1).stdout)["findings"]
    assert {finding["what"]: finding["ok"] for finding in found} == {
        "state": True,
        "token": False,
        "ledger": False,
        "hub": False,
    }
    assert "chmod 600" in found[1]["told"] and "secret" not in str(found)


def test_a_ledger_that_was_put_aside_comes_back_with_its_last_commits(fleet: ProcessFleet, tmp_path: Path) -> None:
    fleet.check_run("backup", str(tmp_path / "backup.db"))
    job_id = fleet.hub.submit({"command": ["true"]})["id"]
    fleet.kill("hub")  # which leaves the newest commits in the log beside the file
    fleet.check_run("restore", str(tmp_path / "backup.db"))
    fleet.check_run("restore", str(fleet.state / "ostler.db.replaced-1"))
    fleet.start_hub()
    assert [job["id"] for job in fleet.hub.all_jobs()] == [job_id]


def test_commands_find_the_hub_by_its_folder_and_what_lies_beside_a_database_is_no_ledger(
    fleet: ProcessFleet, tmp_path: Path
) -> None:
    fleet.environment["OSTLER_STATE_DIR"] = str(tmp_path / "another")
    del fleet.environment["OSTLER_HUB"]
    state = ("--state-dir", str(fleet.state))
    assert fleet.check_run("doctor", *state).stdout.count("ok ") == 4
    assert "jobs" in json.loads(fleet.check_run("status", *state, "--json").stdout)
    fleet.terminate("hub")
    held = take_lock(fleet.state / "hub")  # as a hub does whose ledger is a database
    try:
        for command in (("backup", str(tmp_path / "file")), ("restore", str(fleet.state / "ostler.db"))):
            assert "keeps its ledger in a database" in fleet.check_run(*command, *state, code=2).stderr
        assert "keeps its ledger in a database" in fleet.check_run("doctor", *state, code=1).stdout
    finally:
        os.close(held)
    told = fleet.check_run(
        "backup", str(tmp_path / "file"), "--ledger", "postgresql://u@h/db", "--store", "/srv", code=2
    )
    assert "postgresql://u@h/db" in told.stderr and "umask 077; pg_dump" in told.stderr and "/srv" in told.stderr


def test_a_backup_that_is_made_meanwhile_is_not_taken_for_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = keeping.Place(tmp_path, tmp_path, "")
    SqliteLedger(where.file).close()
    copy = keeping._copy

    def with_another_half_way(source: Path, target: Path) -> None:
        monkeypatch.setattr(keeping, "_copy", lambda source, target: target.write_bytes(b"half") and os._exit(0))
        copy(source, target)
        if os.fork() == 0:
            keeping.backup(where, tmp_path / "backup.db")
        os.wait()

    monkeypatch.setattr(keeping, "_copy", with_another_half_way)
    keeping.backup(where, tmp_path / "backup.db")
    assert keeping.restore(where, tmp_path / "backup.db") is not None


def test_of_a_backup_of_an_older_version_no_second_ledger_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = keeping.Place(tmp_path, tmp_path, "")
    with monkeypatch.context() as older:
        older.setattr(sqlite_file, "bundled", lambda: bundled()[:-1])
        SqliteLedger(where.file).close()
        keeping.backup(where, tmp_path / "backup.db")
    keeping.restore(where, tmp_path / "backup.db")
    SqliteLedger(where.file).close()
    assert [path.name for path in tmp_path.iterdir() if "restored" in path.name or "before" in path.name] == []


def killed_ledger(folder: Path) -> keeping.Place:
    """What a hub leaves that is killed, with a backup of it before its newest commits."""
    running = keeping.Place(folder / "running", folder, "")
    left = keeping.Place(folder / "left", folder, "")
    for where in (running, left):
        where.state.mkdir()
    with closing(SqliteLedger(running.file)) as ledger:
        ledger.commit(of_every_kind(1))
        keeping.backup(running, folder / "backup.db")
        ledger.commit(of_every_kind(2))
        for suffix in ("", "-wal", "-mark"):
            copyfile(f"{running.file}{suffix}", f"{left.file}{suffix}")
    return left


@pytest.mark.parametrize("moved", [("",), ("", "-wal"), ("", "-wal", "-mark")])
def test_a_backup_comes_back_as_it_was_whatever_of_the_ledger_was_moved_away_by_hand(
    tmp_path: Path, moved: tuple[str, ...]
) -> None:
    where = killed_ledger(tmp_path)
    for suffix in moved:
        os.unlink(f"{where.file}{suffix}")
    aside = keeping.restore(where, tmp_path / "backup.db")
    assert (aside is None) == (len(moved) == 3), "what is left of another ledger is kept"
    with closing(SqliteLedger(where.file)) as ledger:
        assert ledger.load().last_feed_seq == 1


def test_neither_the_doctor_nor_a_backup_takes_a_ledger_whose_log_is_damaged_for_a_sound_one(tmp_path: Path) -> None:
    where = killed_ledger(tmp_path)
    with open(f"{where.file}-wal", "r+b") as log:
        log.seek(40)
        log.write(b"\xff" * 4)
    [told] = [finding for finding in keeping.examine(where) if finding.what == "ledger"]
    assert not told.ok and "has lost commits" in told.told
    with pytest.raises(LedgerError, match="has lost commits"):
        keeping.backup(where, tmp_path / "another.db")
    assert not (tmp_path / "another.db").exists()
    copyfile(f"{where.file}-wal", tmp_path / "backup.db-wal")
    copyfile(f"{where.file}-mark", tmp_path / "backup.db-mark")
    with pytest.raises(LedgerError, match=f"the ledger {tmp_path / 'backup.db'} has lost commits.*backup.db-mark"):
        keeping.restore(where, tmp_path / "backup.db")


def test_a_ledger_that_was_half_put_aside_is_not_taken_for_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ostler.db"
    with closing(SqliteLedger(tmp_path / "first.db")) as open_one:
        assert open_one.load().last_job_seq == 0
        for suffix in ("", "-wal"):  # as after a kill
            copyfile(tmp_path / f"first.db{suffix}", tmp_path / f"ostler.db{suffix}")
    rename, renamed = Path.rename, list[Path]()

    def crash_at_the_second(part: Path, target: Path) -> Path:
        renamed.append(part)
        assert len(renamed) < 2, "crashed"
        return rename(part, target)

    monkeypatch.setattr(Path, "rename", crash_at_the_second)
    with pytest.raises(AssertionError, match="crashed"):
        keeping._put_aside(file)
    with pytest.raises(LedgerError, match="is gone, but its log"):
        SqliteLedger(file)
