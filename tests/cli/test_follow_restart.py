"""Whoever follows a job goes on when its hub was killed: at the byte where it was, nothing twice, nothing left out."""

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.process_fleet import OSTLER, TWO_A100, ProcessFleet, process_fleet

LINES = 250
PRINTS = (
    "import sys, time, pathlib\n"
    f"for number in range({LINES}):\n"
    "    sys.stdout.write(f'line {number} ' + 'x' * (number % 97) + '\\n'); sys.stdout.flush(); time.sleep(0.01)\n"
    "while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)\n"
    "sys.stdout.write('the end, without a newline'); sys.stdout.flush()\n"
    "pathlib.Path(sys.argv[1] + '.done').touch(); sys.exit(5)\n"
)
EXPECTED = "".join(f"line {number} {'x' * (number % 97)}\n" for number in range(LINES)) + "the end, without a newline"


class Follower:
    """One command whose output goes to a file, so that it can be looked at while it runs."""

    def __init__(self, fleet: ProcessFleet, name: str, *arguments: str) -> None:
        self.out = fleet.folder / f"{name}.out"
        self.err = fleet.folder / f"{name}.err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [*OSTLER, *arguments], env=fleet.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    def lines(self) -> int:
        return self.out.read_text().count("\n")

    def is_heard(self) -> bool:
        """The hub has it as a caller: before that, a hub that is away is an error, and not something to wait for."""
        return any(one.status == psutil.CONN_ESTABLISHED for one in psutil.Process(self.process.pid).net_connections())

    def wait(self) -> int:
        return self.process.wait(60)


def until(holds: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"{timeout_s:g} s are over before {what}"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessFleet]:
    with process_fleet(tmp_path_factory.mktemp("follow"), "box", offer=TWO_A100, drain_s=1) as fleet:
        yield fleet


def test_followers_survive_a_hub_that_is_killed_twice(fleet: ProcessFleet, tmp_path: Path) -> None:
    script, gate = tmp_path / "prints.py", tmp_path / "gate"
    script.write_text(PRINTS)
    run = Follower(fleet, "run", "run", "--name", "prints", "--", "python3", str(script), str(gate))
    until(lambda: run.lines() > 5, "the job prints")
    logs = Follower(fleet, "logs", "logs", "-f", "prints")
    wait = Follower(fleet, "wait", "wait", "prints")
    until(wait.is_heard, "the hub knows that somebody waits")
    for reached in (50, 130):
        until(lambda: min(run.lines(), logs.lines()) >= reached, f"{reached} lines were shown")  # noqa: B023
        fleet.kill("hub")
        fleet.start_hub()
    until(lambda: min(run.lines(), logs.lines()) >= LINES, "all lines were shown")
    gate.touch()
    assert (run.wait(), logs.wait(), wait.wait()) == (5, 0, 1)
    assert run.out.read_text() == EXPECTED
    assert logs.out.read_text() == EXPECTED
    assert "prints" in wait.err.read_text() and "exit code 5" in wait.err.read_text()


def test_a_job_that_ends_while_the_hub_is_away_is_told_to_the_last_byte(fleet: ProcessFleet, tmp_path: Path) -> None:
    script, gate = tmp_path / "prints.py", tmp_path / "gate"
    script.write_text(PRINTS)
    submit = Follower(fleet, "submit", "submit", "--follow", "--", "python3", str(script), str(gate))
    until(lambda: submit.lines() > 20, "the job prints")
    fleet.kill("hub")
    gate.touch()
    until(Path(f"{gate}.done").exists, "the job has ended")
    fleet.start_hub()
    assert submit.wait() == 5
    assert submit.out.read_text() == EXPECTED
