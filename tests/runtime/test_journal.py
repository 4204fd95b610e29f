"""What a supervisor knows of the one before it."""

import json
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
    assert second.starts == {"runs": start}
    assert second.ends == {"ended": end}


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


def test_a_full_disk_is_told_and_survived(capsys: pytest.CaptureFixture[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    journal = Journal.__new__(Journal)
    journal.starts, journal.ends, journal._lines = {}, {}, []
    journal._path, journal._boot, journal._room = "/dev/full", "boot", 1000
    with open("/dev/full", "wb", buffering=0) as full:
        journal._file = full.fileno()
        journal.starting("a", "t", 1.0)
    assert "a" in journal.starts
    assert "could not be written" in capsys.readouterr().err
