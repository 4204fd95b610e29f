"""What a supervisor knows of the one before it."""

import contextlib
import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ostler.runtime import journal as module
from ostler.runtime.journal import Journal


def _end(journal: Journal, attempt: str, exit_code: int = 0) -> dict[str, Any]:
    end = {"attempt": attempt, "exit_code": exit_code}
    journal.ended(attempt, end, json.dumps(end))
    return end


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "journal")


def test_what_was_prepared_last_is_known_until_it_starts(path: str) -> None:
    first = Journal(path, "boot")
    first.preparing("one")
    first.preparing("two")
    assert Journal(path, "boot").prepared == Journal(path, "boot").prepared == "two"  # it is written anew each time
    second = Journal(path, "boot")
    second.starting("two", "task", 12.5)
    assert (second.prepared, Journal(path, "boot").prepared) == ("", "")


def test_starts_ends_and_what_was_forgotten_are_read_back(path: str) -> None:
    first = Journal(path, "boot")
    for attempt in ("runs", "ended", "forgotten"):
        first.starting(attempt, f"task \N{SNOWMAN} {attempt}", 12.5)
        first.started(attempt, 42, 77)
    end = _end(first, "ended", 3)
    _end(first, "forgotten")
    first.forgotten("forgotten")
    first.flush()

    second = Journal(path, "boot")
    start = {"task_id": "task \N{SNOWMAN} runs", "started_at": 12.5, "boot": "boot", "pid": 42, "ticks": 77}
    assert second.starts == {"runs": {**start, "checkpoint": "", "room": ""}}
    assert second.ends == {"ended": end}


def test_where_one_had_its_checkpoint_is_known_after_its_end_and_after_a_rewrite(path: str) -> None:
    journal = Journal(path, "boot")
    journal.starting("a", "t", 1.0, checkpoint="/there")
    _end(journal, "a")
    journal.flush()
    for _ in range(2):
        assert Journal(path, "boot").ends["a"]["checkpoint"] == "/there"


def test_a_start_is_on_the_disk_before_the_process_can_be(path: str) -> None:
    Journal(path, "boot").starting("a", "t", 1.0)
    assert "a" in Journal(path, "boot").starts


def test_torn_and_foreign_lines_are_passed_over(path: str) -> None:
    first = Journal(path, "boot")
    first.starting("a", "t", 1.0)
    with open(path, "ab") as file:
        file.write(b'{"start":"b","task_id"\n\xff\xfe\n[1]\n7\n{"end":"a"}\n{"what":1}\n\n')
    first.starting("c", "t", 1.0)
    with open(path, "ab") as file:
        file.write(b'{"end":"c","how":{"exit')
    assert sorted(Journal(path, "boot").starts) == ["a", "c"]


def test_the_file_stays_small_however_much_happens(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 2000)
    journal = Journal(path, "boot")
    journal.starting("runs", "t", 1.0)
    for number in range(500):
        journal.starting(f"a{number}", "t", 1.0)
        _end(journal, f"a{number}")
        journal.forgotten(f"a{number}")
    kept = _end(journal, "kept")
    journal.flush()
    assert Path(path).stat().st_size < 4000
    again = Journal(path, "boot")
    assert list(again.starts) == ["runs"]
    assert again.ends == {"kept": kept}


def test_a_full_disk_is_told_and_survived_and_what_it_kept_out_is_written_once_there_is_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("only root mounts disks: run the tests as root")
    try:
        journal = Journal(str(tmp_path / "journal"), "boot")
        journal.starting("before", "t", 1.0)
        journal.starting("torn", "t" * 8192, 1.0, flush=False)
        with contextlib.suppress(OSError), open(tmp_path / "filler", "wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass
        journal.flush()
        end = _end(journal, "before")
        journal.flush()
        assert "could not be written" in capsys.readouterr().err
        assert not (tmp_path / "journal.new").exists(), "what could not be written takes no room"
        (tmp_path / "filler").unlink()
        journal.flush()
        again = Journal(str(tmp_path / "journal"), "boot")
        assert (list(again.starts), again.ends) == (["torn"], {"before": end})
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)


def test_what_follows_a_line_that_the_full_disk_has_cut_is_read(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(path, "boot")
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, text: write(file, text[:20]))
        full.setattr(os, "rename", lambda *names: os.stat("/nowhere"))
        journal.starting("cut", "t", 1.0)
        full.setattr(os, "write", write)
        journal.starting("a", "t", 1.0)
    assert "a" in Journal(path, "boot").starts


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_on_which_nothing_can_be_said_either_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(str(tmp_path / "journal"), "boot")
    os.close(journal._file)
    journal._file = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(sys, "stderr", FullDisk())
    journal.starting("a1", "t1", 1.0)
    assert "a1" in journal.starts
