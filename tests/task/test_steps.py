"""A command between its prolog and its epilog, as real processes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path


def start(
    folder: Path, prolog: str, command: str, epilog: str, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[str]:
    steps = {name: ["sh", "-c", text] if text else [] for name, text in (("prolog", prolog), ("epilog", epilog))}
    steps["command"] = ["sh", "-c", command]
    return subprocess.Popen(
        [sys.executable, "-m", "ostler.task.steps", json.dumps(steps)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OSTLER_ERROR": str(folder / "error.txt")},
        start_new_session=True,
    )


def said(folder: Path) -> str:
    path = folder / "error.txt"
    return path.read_text() if path.exists() else ""


def run(folder: Path, prolog: str, command: str, epilog: str) -> tuple[int, list[str]]:
    process = start(folder, prolog, command, epilog)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output.splitlines()


def test_the_three_run_in_order_and_the_exit_code_is_the_commands(tmp_path: Path) -> None:
    assert run(tmp_path, "echo before", "echo during; exit 3", "echo after") == (3, ["before", "during", "after"])
    assert said(tmp_path) == ""


def test_a_failed_prolog_keeps_the_command_from_running_but_not_the_epilog(tmp_path: Path) -> None:
    code, lines = run(tmp_path, "exit 7", "echo never", "echo after")
    assert code == 7
    assert "never" not in lines
    assert lines[-1] == "after"
    assert said(tmp_path) == "the prolog failed with exit code 7; the command was not run"


def test_a_failed_epilog_fails_a_task_that_had_succeeded(tmp_path: Path) -> None:
    assert run(tmp_path, "", "true", "exit 4")[0] == 4
    assert said(tmp_path) == "the epilog failed with exit code 4"


def test_a_failed_epilog_hides_no_failure_of_the_prolog(tmp_path: Path) -> None:
    assert run(tmp_path, "exit 5", "true", "exit 4")[0] == 5
    assert said(tmp_path).splitlines() == [
        "the prolog failed with exit code 5; the command was not run",
        "the epilog failed with exit code 4",
    ]


def test_after_a_failed_command_a_failed_epilog_is_a_second_reason(tmp_path: Path) -> None:
    assert run(tmp_path, "", "exit 3", "exit 4")[0] == 3
    assert said(tmp_path).splitlines() == ["", "the epilog failed with exit code 4"]


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    steps = {"prolog": ["/nowhere/at/all"], "command": ["true"], "epilog": []}
    environment = {**os.environ, "OSTLER_ERROR": str(tmp_path / "error.txt")}
    code = subprocess.run([sys.executable, "-m", "ostler.task.steps", json.dumps(steps)], env=environment).returncode
    assert code == 127
    assert said(tmp_path).startswith("the prolog could not be started: /nowhere/at/all: ")


def test_an_epilog_that_is_not_there_hides_no_failure_of_the_command(tmp_path: Path) -> None:
    steps = {"prolog": [], "command": ["false"], "epilog": ["/nowhere/at/all"]}
    environment = {**os.environ, "OSTLER_ERROR": str(tmp_path / "error.txt")}
    code = subprocess.run([sys.executable, "-m", "ostler.task.steps", json.dumps(steps)], env=environment).returncode
    assert code == 1
    (own, after) = said(tmp_path).splitlines()
    assert own == "" and after.startswith("the epilog could not be started: /nowhere/at/all: ")


def test_the_command_is_told_to_end_once(tmp_path: Path) -> None:
    counts = "import signal, sys, time\nsignal.signal(15, lambda *_: print('told', flush=True))\nprint('ready', flush=True)\n"
    counts += "sys.stdin.readline()"
    (tmp_path / "counts.py").write_text(counts)
    process = start(tmp_path, "true", f"exec {sys.executable} {tmp_path}/counts.py", "true", stdin=subprocess.PIPE)
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGTERM)
    assert process.stdout.readline() == "told\n"
    os.kill(process.pid, signal.SIGCONT)  # it has had every chance to tell it again
    process.stdin.close()
    assert process.stdout.read() == ""
    assert process.wait(60) == 0


def test_sigterm_to_the_group_ends_the_command_and_the_epilog_still_runs(tmp_path: Path) -> None:
    process = start(tmp_path, "", "echo ready; exec sleep 60", "echo cleaned")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert output == "cleaned\n"
    assert process.returncode == 128 + signal.SIGTERM
