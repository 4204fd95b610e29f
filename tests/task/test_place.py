"""A folder in which calls have their turns: whatever one of them has done there is seen before the next begins."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, time
from ostler.task.place import CLOCK_STEP_NS, Place

folder = os.fsencode(sys.argv[1])
told = os.dup(1)
place = Place()
for turn in range(3):
    place.enter(folder, is_shared=True)
    assert os.getcwd() == sys.argv[1] + "/work"
    if turn == 2:
        exec(sys.argv[2])
    is_as_it_was = place.is_as_it_was()
    os.write(told, b"%d" % is_as_it_was)
is_another = place.enter(folder, is_shared=True)
os.write(told, b"%d %d" % (is_another, os.getcwd() == sys.argv[1] + "/work"))
"""


def turns(folder: Path, does: str) -> str:
    """What is said of two calls that do nothing and of a third, and whether a fourth has to enter the folder anew."""
    argv = [sys.executable, "-c", SCRIPT, str(folder), does]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@pytest.fixture(params=["just made", "made long ago"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The times of one that was just made are no sign: what happens next may have the same."""
    folder = tmp_path.resolve() / "room"
    for path in (folder, folder / "work", folder / "out"):
        path.mkdir(0o700)
    (folder / "log").touch(0o600)
    if request.param == "made long ago":
        time.sleep(0.2)
    return folder


@pytest.mark.parametrize(
    "does",
    [
        "pass",
        "os.environ['A'] = 'b'",
        "open('x', 'w').close(); os.unlink('x')",
        "os.dup2(os.dup(1), 2)",
        "os.chdir('.')",
    ],
)
def test_the_next_call_stays_where_nothing_is_left(folder: Path, does: str) -> None:
    assert turns(folder, does) == "1110 1"


@pytest.mark.parametrize(
    "does",
    [
        "print('x', flush=True)",
        "os.write(2, b'x')",
        "os.write(1, b'x'); os.ftruncate(1, 0); os.chmod('../log', 0o644)",
        "open('x', 'w')",
        "open('../out/x', 'w')",
        "open('../x', 'w')",
        "os.mkdir('x')",
        "os.symlink('/', '../out/x')",
        "os.chmod('.', 0o755)",
        "os.chmod('../out', 0o777)",
        "os.chdir('/')",
        "os.dup2(os.open('/dev/null', os.O_WRONLY), 1)",
        "os.dup2(os.open('/dev/null', os.O_WRONLY), 2)",
        "os.close(2)",
        "os.closerange(3, 100)",
        "os.link('../log', '/' + os.path.relpath('../../log', '/'))",
        "os.rename('../out', '../../out'); os.mkdir('../out', 0o700)",
        "os.rename('../out', '../../out'); os.symlink('../out', '../out')",
        "os.rename('../log', '../../log'); os.symlink('../log', '../log')",
        "os.rename('../work', '../../work'); os.symlink('../work', os.path.dirname(os.fsdecode(folder)) + '/room/work')",
    ],
)
def test_whatever_was_done_to_a_folder_is_seen(folder: Path, does: str) -> None:
    said = turns(folder, f"told = os.dup2(told, 200); {does}")
    assert said.startswith("110"), said


def test_what_was_printed_before_the_first_call_is_that_calls_own(folder: Path) -> None:
    (folder / "log").write_text("a warning of the interpreter's own")
    time.sleep(0.2)
    assert turns(folder, "pass").startswith("0")
