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


def seen(word: str) -> tuple[str, str, str]:
    return (word, os.getcwd(), os.environ["OSTLER_TASK_ID"])


@pytest.fixture
def channel() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    argv = [sys.executable, "-m", "ostler.task.warm", str(theirs.fileno())]
    with ours, subprocess.Popen(argv, pass_fds=[theirs.fileno()]) as interpreter:
        theirs.close()
        ours.settimeout(30)
        yield ours
        ours.close()
        assert interpreter.wait(30) == 0


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
