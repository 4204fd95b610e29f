"""A command beside a task that runs: with what the task has, for whom it may be, and no longer than the task."""

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.cli.terminal import Terminal
from tests.process_fleet import OSTLER, TWO_A100, ProcessFleet, process_fleet

from ostler.client.beside import Beside
from ostler.client.errors import BadInput, NotFound
from ostler.client.http import Hub
from ostler.domain.errors import NotAllowed, OstlerError
from ostler.wire.beside import ERROR, OUTPUT

STUBBORN = "trap '' TERM HUP INT; echo begun; while :; do sleep 0.2; done"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessFleet]:
    with process_fleet(tmp_path_factory.mktemp("exec"), "box", offer=TWO_A100, drain_s=1) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def sleeper(fleet: ProcessFleet) -> str:
    """A task that runs for as long as the others look at it."""
    spec = {"name": "sleeper", "env": {"RATE": "0.5"}, "gpu_count": 1, "command": ["sleep", "600"]}
    job_id = str(client(fleet).submit(spec)["id"])
    until(lambda: state(fleet, job_id) == "running", "it runs")
    return job_id


def until(holds: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"{timeout_s:g} s are over before {what}"
        time.sleep(0.05)


def begun(fleet: ProcessFleet, job: str, script: str) -> "subprocess.Popen[str]":
    """An `ostler exec` that has printed its first line."""
    process = fleet.start("exec", job, "--", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n", process.communicate()
    return process


def running(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if mark in " ".join(process.cmdline()) and "exec" not in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def client(fleet: ProcessFleet, token: str = "") -> Hub:
    return Hub(fleet.url, token or (fleet.state / "admin.token").read_text().strip())


def ran(hub: Hub, job: str, *argv: str) -> tuple[int | None, bytes, bytes]:
    """The same without the command: the exit code, the output, and what came as standard error."""
    with Beside(hub, job, argv) as beside:
        beside.end_input()
        said = list(beside.said())
    return beside.exit_code, *(b"".join(data for kind, data in said if kind == wanted) for wanted in (OUTPUT, ERROR))


def state(fleet: ProcessFleet, job: str) -> str:
    return str(client(fleet).job(job)["state"])


def test_it_has_the_tasks_environment_folder_and_devices_and_its_own_exit_code(
    fleet: ProcessFleet, sleeper: str
) -> None:
    script = 'echo "$RATE $OSTLER_JOB_ID $CUDA_VISIBLE_DEVICES"; basename $(pwd); echo bad >&2; exit 7'
    done = fleet.run("exec", "sleeper", "--", "sh", "-c", script)
    assert done.stdout.splitlines() == [f"0.5 {sleeper} 0", "work"]
    assert (done.stderr, done.returncode) == ("bad\n", 7)


def test_what_it_is_given_and_what_it_says_is_whole(fleet: ProcessFleet, sleeper: str) -> None:
    data = bytes(range(256)) * 8192
    done = subprocess.run([*OSTLER, "exec", sleeper, "cat"], input=data, env=fleet.environment, capture_output=True)
    assert (done.returncode, done.stdout == data, done.stderr) == (0, True, b"")


def test_a_signal_that_ended_it_and_a_program_that_is_not_there_are_told_as_a_shell_does(
    fleet: ProcessFleet, sleeper: str
) -> None:
    assert ran(client(fleet), sleeper, "sh", "-c", "kill -9 $$") == (137, b"", b"")
    told = b"ostler: no-such-program: there is no such program for this task\n"
    assert ran(client(fleet), sleeper, "no-such-program") == (127, b"", told)


def test_it_runs_with_standard_input_closed_and_refuses_what_is_no_text(fleet: ProcessFleet, sleeper: str) -> None:
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *OSTLER, "exec", sleeper, "cat"], env=fleet.environment, capture_output=True
    )
    assert (closed.returncode, closed.stdout, closed.stderr) == (0, b"", b"")
    with pytest.raises(BadInput, match="the command has bytes that are no text"):
        ran(client(fleet), sleeper, "echo", "\udcff")


def test_a_shell_in_a_terminal_has_its_size_its_interrupts_and_its_exit_code(fleet: ProcessFleet, sleeper: str) -> None:
    shell = "echo is''up; PS1='ready> ' exec sh"
    terminal = Terminal(fleet, "exec", "sleeper", "--", "sh", "-c", shell, rows=33, columns=101)
    terminal.until("isup")
    terminal.until("ready> ")
    terminal.type("stty size; test -t 0 && echo a-terminal-$RATE\r")
    shown = terminal.until("a-terminal-0.5")
    assert "33 101" in shown
    terminal.type("sleep 300\r")
    time.sleep(0.5)  # a shell that has not begun it yet would take the key for itself, which is as well
    terminal.type("\x03")
    terminal.until("ready> ")
    terminal.resize(40, 90)
    until(lambda: _asked(terminal, "stty size", "40 90"), "the size has changed there")
    terminal.type("exit 9\r")
    assert terminal.exit_code() == 9


def _asked(terminal: Terminal, command: str, wanted: str) -> bool:
    terminal.type(f"{command}; echo as''ked\r")
    return wanted in terminal.until("asked")


def test_leaving_a_terminal_by_its_keys_ends_the_command_and_not_the_task(fleet: ProcessFleet, sleeper: str) -> None:
    mark = "601.25"
    terminal = Terminal(fleet, "exec", "sleeper", "--", "sleep", mark)
    until(lambda: bool(running(f"sleep {mark}")), "it runs")
    terminal.type("~.")
    terminal.until("left; the task goes on")
    assert terminal.exit_code() == 1
    until(lambda: not running(f"sleep {mark}"), "the command has ended")
    assert state(fleet, sleeper) == "running"


def test_who_asked_for_it_is_killed_and_the_command_ends(fleet: ProcessFleet, sleeper: str) -> None:
    mark = "602.25"
    process = begun(fleet, "sleeper", f"trap '' TERM HUP INT; echo begun; sleep {mark}")
    process.kill()
    process.communicate()
    until(lambda: not running(f"sleep {mark}"), "the command has ended")


def test_it_neither_outlives_a_task_that_ends_nor_keeps_its_room(fleet: ProcessFleet, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = f"while [ ! -e {gate} ]; do sleep 0.1; done; exit 3"
    client(fleet).submit({"name": "short", "command": ["sh", "-c", script]})
    until(lambda: state(fleet, "short") == "running", "it runs")
    mark = f": {tmp_path}; "
    process = begun(fleet, "short", mark + STUBBORN)
    gate.touch()
    assert process.wait(60) == 1
    assert process.stderr is not None
    assert "the task has ended, and the command with it: failed: exit code 3" in process.stderr.read()
    until(lambda: "short" not in str(client(fleet).worker("box")["tasks"]), "its room is free")
    until(lambda: not running(str(tmp_path)), "nothing of it is left")
    assert client(fleet).job("short")["exit_code"] == 3


def test_it_ends_with_a_task_that_is_cancelled(fleet: ProcessFleet, tmp_path: Path) -> None:
    job_id = str(client(fleet).submit({"command": ["sleep", "600"]})["id"])
    until(lambda: state(fleet, job_id) == "running", "it runs")
    process = begun(fleet, job_id, f": {tmp_path}; " + STUBBORN)
    client(fleet).cancel(job_id)
    assert process.wait(60) == 1
    until(lambda: not running(str(tmp_path)), "nothing of it is left")
    until(lambda: job_id not in str(client(fleet).worker("box")["tasks"]), "its room is free")


def test_a_task_that_does_not_run_is_refused_in_one_sentence(fleet: ProcessFleet) -> None:
    hub = client(fleet)
    waiting = hub.submit({"gpu_count": 9, "command": ["true"]})["id"]
    done = fleet.run("exec", waiting, "ls")
    told = f"ostler: {waiting} is pending: a command can only be run beside a task that is running\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", told)
    array = hub.submit({"gpu_count": 9, "command": ["true"], "array": 2})["id"]
    with pytest.raises(BadInput, match=rf"name one of them, like {array}\.0"):
        ran(hub, array, "ls")
    with pytest.raises(NotFound):
        ran(hub, "no-such-job", "ls")


def test_a_task_of_an_array_that_waits_is_not_said_to_run_because_others_do(fleet: ProcessFleet) -> None:
    hub = client(fleet)
    array = hub.submit({"command": ["sleep", "600"], "array": 50, "min_cpu_cores": 0.5})["id"]
    until(lambda: state(fleet, array) == "running", "some of it run")
    try:
        with pytest.raises(OstlerError, match=rf"{array}\.49 is pending: a command can only be run beside"):
            ran(hub, f"{array}.49", "ls")
    finally:
        hub.cancel(array)


def test_only_its_owner_and_operators_may_and_the_audit_says_who_did_what(fleet: ProcessFleet, sleeper: str) -> None:
    hub = client(fleet)
    with pytest.raises(NotAllowed):
        ran(client(fleet, hub.create_token("viewer", "vera")["token"]), sleeper, "true")
    with pytest.raises(NotFound):
        ran(client(fleet, hub.create_token("user", "sam")["token"]), sleeper, "true")
    assert ran(hub, sleeper, "echo", "two words") == (0, b"two words\n", b"")
    rows = hub.audit(object=f"job/{sleeper}")["rows"]
    assert next(row["detail"] for row in rows if row["action"] == "job.exec") == "echo 'two words'"
