"""`ostler up` as a user starts it and as it may end."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.process_fleet import OSTLER, ProcessFleet, until


class Up:
    def __init__(self, folder: Path) -> None:
        self.fleet = ProcessFleet(folder)
        self.process = subprocess.Popen(
            [*OSTLER, "up", "--port", "0"],
            env={**self.fleet.environment, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.told = []
        for line in self.process.stdout:
            self.told.append(line.strip())
            if "Ctrl-C" in line:
                break
        self.url = self.told[1].rpartition(" ")[2]
        self.fleet.environment["OSTLER_HUB"] = self.url
        until(lambda: len(self.fleet.workers()) == 1, "the worker has registered", process=self.process)

    def children(self) -> dict[str, psutil.Process]:
        """The hub and the worker; not the supervisor, which outlives its worker."""
        found = psutil.Process(self.process.pid).children()
        return {child.cmdline()[child.cmdline().index("ostler") + 1]: child for child in found}

    def is_up(self) -> bool:
        port = int(self.url.rpartition(":")[2])
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    found = Up(tmp_path)
    try:
        yield found
    finally:
        if found.process.poll() is None:
            found.process.terminate()
        found.process.communicate(timeout=60)


def test_up_says_how_to_use_it_runs_jobs_and_stops_on_ctrl_c(up: Up) -> None:
    assert any(line.endswith(f"asks for the token in {up.fleet.state / 'admin.token'}") for line in up.told)
    assert f"export OSTLER_HUB={up.url} OSTLER_STATE_DIR={up.fleet.state}" in up.told
    done = up.fleet.run("run", "--", "echo", "hello from the fleet")
    assert (done.returncode, done.stdout) == (0, "hello from the fleet\n")
    long = up.fleet.submit("--", "sleep", "60")
    until(lambda: up.fleet.json("show", long)["state"] == "running", "the job runs", process=up.process)
    children = up.children()
    assert set(children) == {"hub", "worker"}
    up.process.send_signal(signal.SIGINT)
    _, told = up.process.communicate(timeout=60)
    assert up.process.returncode == 0, told
    assert "Traceback" not in told
    assert not any(child.is_running() for child in children.values())
    assert not up.is_up()


def test_a_hub_that_dies_ends_the_worker_and_is_named(up: Up) -> None:
    children = up.children()
    children["hub"].kill()
    _, told = up.process.communicate(timeout=60)
    assert up.process.returncode == 128 + signal.SIGKILL
    assert "ostler: the hub ended by itself (exit code 137), so everything was stopped" in told
    assert not any(child.is_running() for child in children.values())


def test_nothing_keeps_the_port_when_up_is_killed(up: Up) -> None:
    children = up.children()
    up.process.kill()
    _, still_there = psutil.wait_procs(children.values(), timeout=60)
    assert not still_there
    assert not up.is_up()


def test_a_port_that_is_taken_is_told_by_the_hub_and_ends_everything(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        done = subprocess.run(
            [*OSTLER, "up", "--port", str(other.getsockname()[1]), "--state-dir", str(tmp_path)],
            env=dict(os.environ),
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 2
    assert "cannot listen on" in done.stderr and "--port N takes another port" in done.stderr
    assert "the hub ended by itself" in done.stderr
    assert done.stdout == ""
