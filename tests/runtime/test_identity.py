"""Whose rights are used for what: files of tasks, tasks themselves, and what a supervisor shows of itself."""

import base64
import json
import os
import pickle
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from tests.runtime.tasks import PATH, Ends, shell

import ostler
from ostler.runtime.base import Launch
from ostler.runtime.identity import Identity, acting_as, as_owner, give
from ostler.runtime.process import ProcessRuntime

SOMEBODY, ANOTHER = Identity(61_003, 61_003), Identity(61_004, 61_004)
SYSTEM_PYTHON = "/usr/bin/python3"
"""One that every user can run; that of these tests may lie in root's home."""
SOURCE = Path(ostler.__file__).parent.parent
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs tasks as another user: run the tests as root")


def _is_new_enough() -> bool:
    script = "import sys; sys.exit(sys.version_info < (3, 11))"
    return os.path.exists(SYSTEM_PYTHON) and subprocess.run([SYSTEM_PYTHON, "-c", script], check=False).returncode == 0


needs_python = pytest.mark.skipif(not _is_new_enough(), reason="no interpreter here that every user can run")


@pytest.fixture
def reached() -> Iterator[Path]:
    """A folder that everybody can pass through."""
    folder = Path(tempfile.mkdtemp(prefix="ostler-identity-", dir="/var/tmp"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def is_closed(path: Path) -> bool:
    try:
        path.read_bytes()
    except PermissionError:
        return True
    return False


def test_whoever_acts_as_somebody_has_that_ones_rights_in_this_thread_alone(reached: Path) -> None:
    roots = reached / "roots"
    roots.write_text("x")
    roots.chmod(0o600)
    found: list[bool] = []
    meanwhile = threading.Event()
    other = threading.Thread(target=lambda: (meanwhile.wait(), found.append(is_closed(roots))))
    other.start()
    with acting_as(SOMEBODY):
        assert is_closed(roots)
        meanwhile.set()
        other.join()
        with pytest.raises(PermissionError):
            (reached / "made").write_text("x")
    assert found == [False]
    assert not is_closed(roots)


def test_the_rights_come_back_whatever_happens(reached: Path) -> None:
    with pytest.raises(ZeroDivisionError), acting_as(SOMEBODY):
        raise ZeroDivisionError
    (reached / "made").write_text("x")
    assert (reached / "made").stat().st_uid == 0


def test_a_folder_s_owner_decides_and_root_s_own_are_read_as_root(reached: Path) -> None:
    theirs, ours = reached / "theirs", reached / "ours"
    for folder in (theirs, ours):
        folder.mkdir(mode=0o700)
        (folder / "link").symlink_to("/etc/shadow")
    os.chown(theirs, *SOMEBODY)
    with as_owner(theirs):
        assert is_closed(theirs / "link")
    with as_owner(ours):
        assert not is_closed(ours / "link")
    with as_owner(reached / "nothing"):
        assert os.geteuid() == 0


def test_what_is_given_is_all_theirs_and_no_link_is_followed(reached: Path) -> None:
    outside = reached / "outside"
    outside.write_text("x")
    tree = reached / "tree"
    (tree / "a").mkdir(parents=True)
    (tree / "a" / "file").write_text("x")
    (tree / "a" / "link").symlink_to(outside)
    give(str(tree), SOMEBODY)
    owners = {path.lstat().st_uid for path in (tree, tree / "a", tree / "a" / "file", tree / "a" / "link")}
    assert owners == {SOMEBODY.uid}
    assert outside.stat().st_uid == 0


# Tasks


@pytest.fixture
async def apart(tmp_path: Path, reached: Path) -> AsyncIterator[ProcessRuntime]:
    runtime = ProcessRuntime(tmp_path / "state", attempts=reached / "attempts", idle_exit_s=5.0)
    groups = os.getgroups()
    os.setgroups([*groups, 4242])  # of the supervisor's, which no task of somebody else's must have
    await runtime.open()
    os.setgroups(groups)
    (reached / "attempts").chmod(0o711)
    yield runtime
    await runtime.close(stop_tasks=True)


async def test_a_folder_that_was_left_empty_is_never_given_to_another_user(apart: ProcessRuntime) -> None:
    ends = Ends(apart)
    owners = []
    for number, user in enumerate((SOMEBODY, SOMEBODY, ANOTHER, None, SOMEBODY)):
        attempt = f"spare-{os.getpid()}-{number}"
        await apart.launch(shell(attempt, "stat -c %u . > ../who; id -G > ../groups", user=user))
        end = await ends.of(attempt)
        assert (end.exit_code, end.error) == (0, "")
        owners.append(int((apart.folder(attempt) / "who").read_text()))
        assert ("4242" in (apart.folder(attempt) / "groups").read_text()) == (user is None)
        for name in ("who", "groups"):
            (apart.folder(attempt) / name).unlink()
        await apart.forget(attempt)
    assert owners == [SOMEBODY.uid, SOMEBODY.uid, ANOTHER.uid, 0, SOMEBODY.uid]


async def test_a_program_that_its_user_cannot_run_is_the_tasks_own_failure(apart: ProcessRuntime) -> None:
    ends = Ends(apart)
    attempt = f"closed-{os.getpid()}"
    closed = apart.folder(attempt).parent.parent / "closed"
    closed.write_text("#!/bin/sh\n")
    closed.chmod(0o700)
    await apart.launch(Launch(attempt=attempt, task_id="t", argv=[str(closed)], env={"PATH": PATH}, user=SOMEBODY))
    assert (await ends.of(attempt)).exit_code == 126


@needs_python
async def test_a_warm_interpreter_is_one_users_and_runs_as_that_user(apart: ProcessRuntime) -> None:
    ends = Ends(apart)
    packages = Path(cloudpickle.__file__).parent.parent

    async def called(number: int, user: Identity) -> tuple[int, int]:
        attempt = f"warm-{os.getpid()}-{number}"
        folder = apart.folder(attempt)
        env = {
            "PATH": PATH,
            "PYTHONPATH": f"{SOURCE}:{packages}",
            "OSTLER_ATTEMPT": attempt,
            "OSTLER_CALL": str(folder / "call.pkl"),
            "OSTLER_RESULT": str(folder / "result.pkl"),
        }
        files = {
            "call.pkl": pickle.dumps(("call", eval, ("__import__('os').getuid(), __import__('os').getpid()",), {}))
        }
        argv = [SYSTEM_PYTHON, "-m", "ostler.task.call"]
        await apart.launch(
            Launch(attempt=attempt, task_id="t", argv=argv, env=env, files=files, warm=str(user.uid), user=user)
        )
        end = await ends.of(attempt)
        assert (end.exit_code, end.error) == (0, ""), (folder / "log").read_text()
        kind, value = pickle.loads(base64.b64decode(end.result))
        assert kind == "value"
        found: tuple[int, int] = value
        return found

    seen = [await called(number, user) for number, user in enumerate((SOMEBODY, SOMEBODY, ANOTHER, SOMEBODY))]
    assert [uid for uid, _ in seen] == [SOMEBODY.uid, SOMEBODY.uid, ANOTHER.uid, SOMEBODY.uid]
    assert len({pid for _, pid in seen}) == 2


@needs_python
def test_a_task_of_the_supervisors_own_user_cannot_read_its_environment_nor_gain_rights(reached: Path) -> None:
    """There is no wall between the two, but this door is shut."""
    state = reached / "state"
    state.mkdir(mode=0o700)
    os.chown(state, *SOMEBODY)
    env = {"PATH": PATH, "PYTHONPATH": str(SOURCE), "OSTLER_TOKEN": "canary"}
    command = [SYSTEM_PYTHON, "-SsP", "-m", "ostler.runtime.supervisor", "--folder", str(state), "--idle-s", "1"]
    subprocess.run(command, env=env, cwd="/", user=SOMEBODY.uid, group=SOMEBODY.gid, extra_groups=[], check=True)
    pid = int((state / "supervisor.lock").read_text())
    script = f"cat /proc/{pid}/environ; head -c1 /proc/{pid}/mem; ls /proc/{pid}/fd; grep NoNewPrivs /proc/self/status"
    # One that leaves its parent behind: a supervisor that is shut to others must still see its own.
    script += "; (sleep 600 & ) ; exit 0"
    order = {"do": "launch", "attempt": f"own-{os.getpid()}", "task_id": "t", "argv": ["sh", "-c", script]}
    order |= {"env": {"PATH": PATH, "OSTLER_ATTEMPT": f"own-{os.getpid()}"}, "deadline_s": 0, "grace_s": 0.2}
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(20)
        peer.connect(str(state / "supervisor.sock"))
        peer.sendall(json.dumps(order).encode() + b"\n")
        said: dict[str, Any] = {}
        with peer.makefile("rb") as lines:
            while said.get("is") != "ended":
                said = json.loads(next(lines))
    assert said["end"]["exit_code"] == 0, said
    log = (state / "attempts" / f"own-{os.getpid()}" / "log").read_text()
    assert "canary" not in log
    assert log.count("Permission denied") + log.count("cannot open") >= 2, log
    assert "NoNewPrivs:\t1" in log
