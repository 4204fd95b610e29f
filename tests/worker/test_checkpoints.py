from pathlib import Path

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
