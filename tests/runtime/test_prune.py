"""Disk that attempts leave behind is bounded, and nothing that anyone may need is touched."""

import inspect
import os
import sys
from pathlib import Path

import pytest

from ostler.runtime.attempts import Folders
from ostler.runtime.prune import prune

NOW = 1_800_000_000.0
DAY_S = 24 * 3600.0


def nobody(attempt: str) -> bool:
    return False


def _attempt(root: Path, name: str, age_s: float, log_bytes: int = 100) -> Path:
    folder = root / name
    for part in ("work", "out"):
        (folder / part).mkdir(parents=True)
        (folder / part / "file").write_bytes(b"x" * 5000)
    (folder / "log").write_bytes(b"x" * log_bytes)
    os.utime(folder, (NOW - age_s, NOW - age_s))
    return folder


def test_of_a_forgotten_attempt_only_the_log_stays(tmp_path: Path) -> None:
    folder = _attempt(tmp_path, "a", 60)
    (folder / "call.pkl").write_bytes(b"secret")
    os.utime(folder, (NOW, NOW))
    assert prune(tmp_path, nobody, 10**9, DAY_S, NOW) > 0
    assert os.listdir(folder) == ["log"]


def test_a_folder_that_is_kept_for_the_next_attempt_is_whole_again_when_it_is_given_to_it(tmp_path: Path) -> None:
    folders = Folders(str(tmp_path))
    assert folders.make("first")
    (tmp_path / "first" / "log").touch()
    folders.release("first", as_new=True)
    os.utime(tmp_path / "first", (NOW - 60, NOW - 60))
    prune(tmp_path, nobody, 10**9, DAY_S, NOW)
    assert folders.make("second")
    assert os.listdir(tmp_path) == ["second"]
    assert sorted(os.listdir(tmp_path / "second")) == ["log", "out", "work"]


def test_old_ones_go_altogether(tmp_path: Path) -> None:
    _attempt(tmp_path, "old", 2 * DAY_S)
    _attempt(tmp_path, "young", 60)
    prune(tmp_path, nobody, 10**9, DAY_S, NOW)
    assert os.listdir(tmp_path) == ["young"]


def test_the_oldest_go_until_the_rest_fits(tmp_path: Path) -> None:
    for age in range(1, 6):
        _attempt(tmp_path, f"a{age}", age * 60.0, log_bytes=100_000)
    prune(tmp_path, nobody, 250_000, DAY_S, NOW)
    assert sorted(os.listdir(tmp_path)) == ["a1", "a2"]


def test_what_is_started_while_others_are_looked_at_is_not_touched(tmp_path: Path) -> None:
    """Whichever comes first is followed by one that was prepared before, and is started now."""
    for name in ("a", "b"):
        (tmp_path / name / "work").mkdir(parents=True)
        os.utime(tmp_path / name, (NOW, NOW))
    for number in range(3):
        _attempt(tmp_path, f"old{number}", 2 * DAY_S)
    held: set[str] = set()

    def starts(attempt: str) -> bool:
        for name in {"a", "b"} - {attempt}:
            held.add(name)
            (tmp_path / name / "log").touch()
        return attempt in held

    prune(tmp_path, starts, 10**9, DAY_S, NOW)
    prune(tmp_path, starts, 0, 0.0, NOW)
    assert all((tmp_path / name / "work").is_dir() for name in held) and held


def test_held_attempts_are_not_touched_however_old_and_large(tmp_path: Path) -> None:
    folder = _attempt(tmp_path, "held", 100 * DAY_S)
    prune(tmp_path, {"held"}.__contains__, 0, 0.0, NOW)
    assert sorted(os.listdir(folder)) == ["log", "out", "work"]
    assert (folder / "work" / "file").exists()


def test_a_folder_that_was_prepared_and_not_yet_started_stays_for_a_day(tmp_path: Path) -> None:
    for name, age_s in (("prepared", 3600.0), ("abandoned", 2 * DAY_S)):
        _attempt(tmp_path, name, age_s)
        (tmp_path / name / "log").unlink()
        os.utime(tmp_path / name, (NOW - age_s, NOW - age_s))
    prune(tmp_path, nobody, 0, 0.0, NOW)
    assert os.listdir(tmp_path) == ["prepared"]


def test_links_are_removed_and_never_followed(tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (treasure / "file").write_text("x")
    root = tmp_path / "attempts"
    folder = _attempt(root, "a", 60)
    (folder / "work" / "link").symlink_to(treasure)
    (folder / "side").symlink_to(treasure)
    os.utime(folder, (NOW, NOW))
    prune(root, nobody, 10**9, DAY_S, NOW)
    prune(root, nobody, 0, 0.0, NOW + 1)
    assert os.listdir(root) == []
    assert (treasure / "file").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is locked for root")
def test_folders_that_a_task_locked_are_opened_and_removed(tmp_path: Path) -> None:
    folder = _attempt(tmp_path, "a", 2 * DAY_S)
    (folder / "work").chmod(0)
    prune(tmp_path, nobody, 10**9, DAY_S, NOW)
    assert os.listdir(tmp_path) == []


def test_folders_deeper_than_python_can_go_are_removed_too(tmp_path: Path) -> None:
    folder = _attempt(tmp_path, "a", 2 * DAY_S)
    (folder / "work" / "/".join(["d"] * 200)).mkdir(parents=True)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 100)
    try:
        prune(tmp_path, nobody, 10**9, DAY_S, NOW)
    finally:
        sys.setrecursionlimit(limit)
    assert os.listdir(tmp_path) == []


def test_what_an_interrupted_removal_left_is_finished(tmp_path: Path) -> None:
    _attempt(tmp_path, ".removed-a", 0)
    prune(tmp_path, nobody, 10**9, DAY_S, NOW)
    assert os.listdir(tmp_path) == []


def test_nothing_there_is_fine(tmp_path: Path) -> None:
    assert prune(tmp_path / "nothing", nobody, 0, 0.0, NOW) == 0
