"""The supervisor as a program: what it loads, what it refuses, and how it does without /proc."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.tasks import WAIT_S, A, B, Ends, Signpost, is_alive, processes_of, shell, supervisor_pid

import ostler
from ostler.runtime.process import ProcessRuntime
from ostler.runtime.supervisor import SERVING, TAKEN

ENV = {"PYTHONPATH": str(Path(ostler.__file__).parent.parent), "PATH": os.environ.get("PATH", os.defpath)}


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-SsP", *arguments], env=ENV, capture_output=True, text=True, timeout=WAIT_S, check=False
    )


def _serve(folder: Path, idle_s: float = 5.0) -> int:
    return _run("-m", "ostler.runtime.supervisor", "--folder", str(folder), "--idle-s", str(idle_s)).returncode


class Worker:
    """Speaks to the supervisor line by line, as no worker should."""

    def __init__(self, folder: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(WAIT_S)
        self._socket.connect(str(folder / "supervisor.sock"))
        self._file = self._socket.makefile("rb")

    def say(self, *lines: bytes) -> None:
        self._socket.sendall(b"".join(line + b"\n" for line in lines))

    def hear(self) -> dict[str, Any]:
        heard: dict[str, Any] = json.loads(self._file.readline())
        return heard

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def test_it_loads_nothing_but_the_standard_library_and_its_own_few_files() -> None:
    script = "import sys, ostler.runtime.supervisor; print(*(m for m in sys.modules if m.startswith('ostler')))"
    done = _run("-c", script)
    assert done.stderr == ""
    parts = {
        "attempts",
        "clock",
        "frames",
        "groups",
        "identity",
        "journal",
        "keeper",
        "lending",
        "news",
        "peaks",
        "processes",
        "spawn",
    }
    parts |= {"supervisor", "tree", "waiting", "warm"}
    assert set(done.stdout.split()) == {"ostler", "ostler.runtime", *(f"ostler.runtime.{part}" for part in parts)}
    loaded = _run("-c", "import sys, ostler.runtime.supervisor; print(*sys.modules)").stdout.split()
    assert not {"asyncio", "argparse", "subprocess", "logging", "dataclasses", "inspect", "pathlib"} & set(loaded)


def test_wrong_usage_is_explained() -> None:
    done = _run("-m", "ostler.runtime.supervisor", "--what", "x")
    assert done.returncode == 2
    assert done.stderr.startswith("usage:")


def test_a_folder_that_cannot_be_made_is_an_error_and_not_a_silence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = _run("-m", "ostler.runtime.supervisor", "--folder", str(tmp_path / "file" / "x"))
    assert done.returncode == 1
    assert "Not a directory" in done.stderr


def test_one_folder_has_one_supervisor(tmp_path: Path) -> None:
    assert _serve(tmp_path) == SERVING
    pid = supervisor_pid(tmp_path)
    assert _serve(tmp_path) == TAKEN
    assert supervisor_pid(tmp_path) == pid
    assert is_alive(pid)
    worker = Worker(tmp_path)
    worker.say(b'{"do":"shutdown","reason":"x"}')
    worker.close()


def test_wrong_orders_are_refused_one_by_one_and_harm_nobody(tmp_path: Path) -> None:
    assert _serve(tmp_path) == SERVING
    worker = Worker(tmp_path)
    evil = b'{"do":"launch","attempt":"../../evil","task_id":"t","argv":["true"],"env":{},"deadline_s":0,"grace_s":1}'
    worker.say(b"not json", b"[]", b"{}", b'{"do":"dance"}', b'{"do":"stop"}', evil, b'{"do":"list"}')
    heard = [worker.hear() for _ in range(7)]
    assert [one["is"] for one in heard] == ["refused"] * 6 + ["held"]
    assert "not an attempt id" in heard[5]["error"]
    assert heard[6]["held"] == []
    assert os.listdir(tmp_path / "attempts") == []
    worker.say(b'{"do":"shutdown","reason":"x"}')
    worker.close()


def test_orders_that_come_in_pieces_or_all_at_once_are_the_same(tmp_path: Path) -> None:
    assert _serve(tmp_path) == SERVING
    worker = Worker(tmp_path)
    order = {
        "do": "launch",
        "task_id": "t",
        "argv": ["true"],
        "env": {"PATH": ENV["PATH"]},
        "deadline_s": 0,
        "grace_s": 1,
    }
    text = b"".join(json.dumps({**order, "attempt": f"a{number}"}).encode() + b"\n" for number in range(20))
    for start in range(0, len(text), 777):
        worker._socket.sendall(text[start : start + 777])
    ended = sorted(worker.hear()["end"]["attempt"] for _ in range(20))
    assert ended == sorted(f"a{number}" for number in range(20))
    worker.say(b'{"do":"shutdown","reason":"x"}')
    worker.close()


WITHOUT_PROC = """
import sys
from ostler.runtime import processes, supervisor
supervisor.open_table = processes.PsTable
sys.exit(supervisor.main(sys.argv[1:]))
"""


@pytest.mark.skipif(not shutil.which("ps"), reason="ps is missing: apt-get install procps")
async def test_without_proc_trees_are_found_by_ps(tmp_path: Path) -> None:
    """As on systems with neither /proc nor subreapers: what left its session and parent is known by its variable."""
    folder = tmp_path / "state"
    done = await asyncio.to_thread(_run, "-c", WITHOUT_PROC, "--folder", str(folder), "--idle-s", "5")
    assert done.returncode == SERVING
    runtime = ProcessRuntime(folder, idle_exit_s=5.0)
    await runtime.open()
    ends, post = Ends(runtime), Signpost(tmp_path / "post")
    daemon = f"(setsid sh -c 'trap \"\" TERM; echo $$ > {post.path}; while :; do sleep 0.1; done' &)"
    await runtime.launch(shell(A, f"{daemon}; read go < {post.path}; exit 4", grace_s=0.2))
    assert (await ends.of(A)).exit_code == 4
    assert processes_of(A) == []
    await runtime.launch(shell(B, f"{daemon}; sleep 1000", grace_s=0.2))
    pid = int(await post.read())
    await runtime.stop(B, "cancelled", 0.2)
    assert (await ends.of(B)).stopped == "cancelled"
    assert not is_alive(pid)
    assert processes_of(B) == []
    await runtime.close(stop_tasks=True)
