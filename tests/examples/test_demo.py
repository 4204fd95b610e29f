"""`make demo` from outside: its output in a file, its exit code, and what it leaves behind."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 400.0
"""Longer than the demo waits for one step, so that the demo itself says what hangs."""
HALF_WAY = "two training jobs hold the big box"
pytestmark = pytest.mark.timeout(600)


class Demo:
    """One run, whose temporary folder is inside `folder`."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder, self.process = folder, process

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def wait_for(self, line: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while line not in self.output:
            assert self.process.poll() is None and time.monotonic() < deadline, self.output
            time.sleep(0.1)

    def state_folders(self) -> list[Path]:
        return list((self.folder / "tmp").glob("ostler-demo-*"))

    def processes(self) -> list[psutil.Process]:
        """All processes that name the demo's temporary folder in their arguments or run inside it."""
        found = []
        for process in psutil.process_iter():
            try:
                line, cwd = process.cmdline(), process.cwd()
            except psutil.Error:
                continue
            if any(str(self.folder) in part for part in [*line, cwd]):
                found.append(process)
        return found


@contextmanager
def demo(folder: Path, *before: str) -> Iterator[Demo]:
    (folder / "tmp").mkdir()
    environment = {**os.environ, "TMPDIR": str(folder / "tmp")}
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [*before, sys.executable, "-m", "examples.demo"], cwd=ROOT, env=environment, stdout=output, stderr=output
        )
    try:
        yield Demo(folder, process)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(PATIENCE_S)


def test_all_four_kinds_of_work_end_as_expected_where_signals_are_ignored_and_output_is_a_file(tmp_path: Path) -> None:
    with demo(tmp_path, "sh", "-c", "trap '' INT HUP; exec \"$@\"", "sh") as run:
        code = run.wait()
        lines = run.output.splitlines()
        assert code == 0, run.output
        assert re.fullmatch(r"\d+ jobs, \d+ tasks, [\d.]+ s: all as expected", lines[-2])
        assert any(re.fullmatch(r" *[\d.]+ s  killed the Mac's worker with -9; .+", line) for line in lines)
        assert {"jobs", "manifest", "service", "model"} <= {line.strip() for line in lines}
        assert "\x1b" not in run.output and "✘" not in run.output
        assert (run.state_folders(), run.processes()) == ([], [])


def test_an_interrupted_demo_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    with demo(tmp_path) as run:
        run.wait_for(HALF_WAY)
        run.process.send_signal(signal.SIGINT)
        assert run.wait() == 128 + signal.SIGINT, run.output
        assert (run.state_folders(), run.processes()) == ([], [])


def test_a_demo_whose_hub_dies_names_its_log_and_keeps_it(tmp_path: Path) -> None:
    with demo(tmp_path) as run:
        run.wait_for(HALF_WAY)
        (hub,) = (one for one in psutil.Process(run.process.pid).children() if "hub" in one.cmdline())
        hub.kill()
        assert run.wait() == 1, run.output
        (kept,) = run.state_folders()
        assert f"See the log {kept / 'hub.log'}" in run.output
        assert f"The logs are kept in {kept}" in run.output
        assert "INFO hub listens" in (kept / "hub.log").read_text()
        assert run.processes() == []
