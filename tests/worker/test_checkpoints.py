import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ostler.runtime.identity import Identity
from ostler.worker import checkpoints as module
from ostler.worker.checkpoints import MAX_SPARE, Checkpoints


def test_what_an_attempt_left_is_there_for_the_next_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.open("other")
    checkpoints.close("other")
    for n in range(3):
        folder = Path(checkpoints.open("job"))
        assert len(list(folder.iterdir())) == n
        (folder / f"step-{n}").touch()
        checkpoints.close("job")


def test_an_empty_folder_is_handed_on_to_the_next_task(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    inode = Path(checkpoints.open("first")).stat().st_ino
    checkpoints.close("first")
    assert not (tmp_path / "first").exists()
    assert Path(checkpoints.open("second")).stat().st_ino == inode
    assert [path.name for path in tmp_path.iterdir()] == ["second"]


def test_spare_folders_are_found_again_and_never_too_many(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    names = [f"job-{n}" for n in range(MAX_SPARE + 5)]
    for name in names:
        checkpoints.open(name)
    for name in names:
        checkpoints.close(name)
    assert len(list(tmp_path.iterdir())) == MAX_SPARE
    again = Checkpoints(tmp_path)
    again.open("one")
    assert len(list(tmp_path.iterdir())) == MAX_SPARE


def test_a_spare_folder_that_somebody_removed_is_made_anew(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.open("first")
    checkpoints.close("first")
    next(tmp_path.iterdir()).rmdir()
    assert Path(checkpoints.open("second")).is_dir()


def test_an_empty_folder_that_is_there_already_is_used(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    (tmp_path / "job").mkdir()
    assert Path(checkpoints.open("job")).is_dir()
    checkpoints.close("job")
    assert Path(checkpoints.open("job")).is_dir()


def test_a_short_task_has_a_spare_folder_and_what_it_leaves_is_there_for_its_next_attempt(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    inode = Path(checkpoints.open("first")).stat().st_ino
    checkpoints.close("first")
    for name in ("second", "third"):
        assert Path(checkpoints.open(name, is_short=True)).stat().st_ino == inode
        assert checkpoints.spares() == {path.name for path in tmp_path.iterdir()}
        checkpoints.close(name)
    folder = Path(checkpoints.open("fourth", is_short=True))
    (folder / "step").touch()
    assert not checkpoints.is_empty("fourth")
    checkpoints.close("fourth")
    for is_short in (True, False):
        again = Path(checkpoints.open("fourth", is_short=is_short))
        assert (again.name, [path.name for path in again.iterdir()]) == ("fourth", ["step"])
        checkpoints.close("fourth")


def test_what_a_short_task_leaves_goes_when_it_is_done(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    (Path(checkpoints.open("job", is_short=True)) / "step").touch()
    left = Path(checkpoints.close("job", done=True))
    assert [path.name for path in left.iterdir()] == ["step"]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_a_task_of_an_earlier_start_has_is_given_to_nobody_else(tmp_path: Path) -> None:
    before = Checkpoints(tmp_path)
    runs, left = Path(before.open("runs", is_short=True)), Path(before.open("ended", is_short=True))
    (left / "step").touch()
    now = Checkpoints(tmp_path)
    now.took_back("runs", str(runs))
    others = {now.open(f"job-{n}", is_short=n % 2 == 0) for n in range(4)}
    assert not others & {str(runs), str(left)}
    assert all(not list(Path(path).iterdir()) for path in others)
    (runs / "step").touch()
    now.close("runs")
    assert [path.name for path in Path(now.open("runs")).iterdir()] == ["step"]


def test_what_is_deeper_than_python_can_go_does_not_keep_a_worker_from_starting(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    make = "import os\nfor _ in range(2000):\n    os.mkdir('d')\n    os.chdir('d')\n"
    subprocess.run([sys.executable, "-c", make], cwd=checkpoints.open("job"), check=True)
    left = checkpoints.close("job", done=True)
    assert left
    Checkpoints(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs tasks as another user: run the tests as root")
def test_a_folder_that_one_user_had_is_never_given_to_another(tmp_path: Path) -> None:
    ann, bob = Identity(61_001, 61_001), Identity(61_002, 61_002)
    checkpoints = Checkpoints(tmp_path, shared=True)
    for name, is_short in (("one", False), ("two", True)):
        had = Path(checkpoints.open(name, ann, is_short=is_short))
        had.chmod(0o777)
        checkpoints.close(name)
        had.mkdir(exist_ok=True)
        os.chown(had, *ann)  # as it is left where a worker is killed before it has removed it
        for each in (checkpoints, Checkpoints(tmp_path, shared=True)):
            got = Path(each.open(f"{name}-of-bob", bob, is_short=is_short))
            assert (got.stat().st_uid, stat.S_IMODE(got.stat().st_mode)) == (bob.uid, 0o700)
            assert got != had
            each.close(f"{name}-of-bob")


@pytest.mark.parametrize("mode", [0o500, 0o777])
def test_a_folder_that_its_task_has_closed_or_opened_is_handed_on_to_nobody(tmp_path: Path, mode: int) -> None:
    checkpoints = Checkpoints(tmp_path)
    Path(checkpoints.open("first", is_short=True)).chmod(mode)
    checkpoints.close("first")
    for each in (checkpoints, Checkpoints(tmp_path)):
        assert stat.S_IMODE(Path(each.open("second", is_short=True)).stat().st_mode) == 0o700
        each.close("second")


def test_a_checkpoint_on_its_way_is_closed_to_tasks_and_so_it_is_when_it_has_come(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, shared=True)
    draft = checkpoints.draft("a1")
    assert stat.S_IMODE(draft.parent.stat().st_mode) == 0o700
    draft.mkdir(0o755)
    checkpoints.replace("job", draft)
    assert stat.S_IMODE(Path(checkpoints.path("job")).stat().st_mode) == 0o700


def test_what_a_short_task_left_is_seen_in_a_folder_that_many_before_it_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOCK_STEP_NS", -1)
    checkpoints = Checkpoints(tmp_path)
    path = checkpoints.open("first", is_short=True)
    checkpoints.close("first")
    for name in ("second", "third"):
        assert checkpoints.open(name, is_short=True) == path
        checkpoints.close(name)
    assert checkpoints.open("fourth", is_short=True) == path
    folder, changed = Path(path), os.lstat(path).st_ctime_ns
    while os.lstat(path).st_ctime_ns == changed:  # until the file system's clock has moved on
        (folder / "step").unlink(missing_ok=True)
        (folder / "step").touch()
    checkpoints.close("fourth")
    assert [one.name for one in (tmp_path / "fourth").iterdir()] == ["step"]


def test_a_folder_that_was_closed_or_opened_by_its_short_task_is_given_to_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOCK_STEP_NS", -1)
    checkpoints = Checkpoints(tmp_path)
    path = checkpoints.open("first", is_short=True)
    checkpoints.close("first")
    assert checkpoints.open("second", is_short=True) == path
    changed = os.lstat(path).st_ctime_ns
    while os.lstat(path).st_ctime_ns == changed:
        os.chmod(path, 0o777)
    checkpoints.close("second")
    assert not os.path.lexists(path)
