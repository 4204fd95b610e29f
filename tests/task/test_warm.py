"""The interpreter by itself: what it is ordered, and what it answers."""

import base64
import json
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

from ostler.task.warm import FILES_EVERY


def seen(word: str) -> tuple[str, str, str]:
    return (word, os.getcwd(), os.environ["OSTLER_TASK_ID"])


def leave_a_file_open() -> int:
    return os.open(os.devnull, os.O_RDONLY)


@pytest.fixture
def channel(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """Of an interpreter that may have no more files open than this, where the test says so."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    argv = [sys.executable, "-m", "ostler.task.warm", str(theirs.fileno())]
    if (most_files := getattr(request, "param", 0)) > 0:
        argv = ["sh", "-c", f'ulimit -n {most_files}; exec "$@"', "sh", *argv]
    with ours, subprocess.Popen(argv, pass_fds=[theirs.fileno()]) as interpreter:
        theirs.close()
        ours.settimeout(30)
        yield ours
        ours.close()
        assert interpreter.wait(60) == 0


def of_now(who: str, folder: str, env: dict[str, str]) -> bytes:
    return os.fsencode("\0".join([who, "", folder, *(f"{name}={value}" for name, value in env.items())]))


def of_before(who: str, folder: str, env: dict[str, str]) -> bytes:
    order = {"attempt": who, "log": f"{folder}/log", "work": f"{folder}/work", "env": env}
    return json.dumps(order).encode() + b"\n"


def test_orders_of_this_version_and_of_the_one_before_are_understood(channel: socket.socket, tmp_path: Path) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    payload = tmp_path / "payload"
    payload.write_bytes(cloudpickle.dumps(("call", seen, ("word",), {})))
    for number, packed in enumerate((of_now, of_before, of_now)):
        folder = tmp_path / f"{number} = ü \udcff"  # a name with a byte that is no text
        (folder / "work").mkdir(parents=True)
        env = {"OSTLER_CALL": str(payload), "OSTLER_RESULT": str(tmp_path / "result"), "OSTLER_TASK_ID": f"a={number}"}
        channel.send(packed("try", str(folder), env))
        code, _, sign, result = channel.recv(65536).split(b" ")
        assert (code, sign) == (b"0", b"0"), (folder / "log").read_text()
        assert pickle.loads(base64.b64decode(result)) == ("value", ("word", str(folder / "work"), f"a={number}"))


@pytest.mark.parametrize("channel", [2 * FILES_EVERY], indirect=True)
def test_an_interpreter_whose_calls_leave_their_files_open_leaves_before_there_are_too_many(
    channel: socket.socket, tmp_path: Path
) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    payload, result = tmp_path / "payload", tmp_path / "result"
    payload.write_bytes(cloudpickle.dumps(("call", leave_a_file_open, (), {})))
    (tmp_path / "work").mkdir()
    env = {"OSTLER_CALL": str(payload), "OSTLER_RESULT": str(result)}
    for number in range(1, FILES_EVERY):
        channel.send(of_now(f"a{number}", str(tmp_path), env))
        assert channel.recv(65536).startswith(b"0 ")
    channel.send(of_now("last", str(tmp_path), env))
    assert channel.recv(65536) == b""
    assert pickle.loads(result.read_bytes())[0] == "value"
