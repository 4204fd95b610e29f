"""The demo's hub and workers as child processes, with one state folder of their own that goes with them."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

EXAMPLES = Path(__file__).resolve().parents[1]
OFFERS = EXAMPLES / "offers"
CONFIG = Path(__file__).with_name("ostler.toml")
WORKERS = ("big-gpu", "small-gpu", "mac", "cpu")
OSTLER = [sys.executable, "-P", "-m", "ostler"]
OUR_PROGRAMS = ("ostler", "ostler.runtime.supervisor")
GATEWAY = re.compile(r"the gateway listens on (\S+)")
STOPS_S = 30.0
DIES_S = 10.0
WAIT_FOR_GATE = """
while [ -d "$1" ] && [ ! -e "$1/$2.open" ]; do sleep 0.2; done
[ -e "$1/$2.open" ] && : > "$1/$3.passed"
"""
"""A task that waits for a gate. It fails when the folder is gone, so that no task outlives the demo for long."""


class DemoFailed(Exception):
    """The demo cannot go on. `log` is the file that says more."""

    def __init__(self, problem: str, log: Path) -> None:
        super().__init__(problem)
        self.log = log


@dataclass
class DemoFleet:
    """A hub and workers on this machine.

    Each program stops by itself when the demo's end of its standard input closes, even after `kill -9`.
    """

    state: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="ostler-demo-")))
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gates = self.state / "gates"
        self.gates.mkdir()

    # Programs

    def start_hub(self) -> None:
        arguments = ["--port", "0", "--gateway-port", "0", "--config", str(CONFIG), "--log-format", "text"]
        self._start("hub", "hub", *arguments)

    def start_worker(self, name: str) -> None:
        offer = OFFERS / f"{name}.toml"
        arguments = ["--hub", self.hub_url, "--token", f"@{self.state / 'join.token'}", "--name", name]
        self._start(name, "worker", *arguments, "--offer", str(offer), "--drain-seconds", "0.1")

    def kill(self, name: str) -> None:
        """Ends a program with SIGKILL, as a crash would."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def log(self, name: str) -> Path:
        return self.state / f"{name}.log"

    def check(self) -> None:
        """Raises DemoFailed if a program has ended by itself."""
        for name, process in self.processes.items():
            if (code := process.poll()) is not None:
                raise DemoFailed(f"the program '{name}' ended by itself with exit code {code}", self.log(name))

    def environment(self) -> dict[str, str]:
        """The environment of the fleet's programs. Their tasks find `python` and the module `fit` by it."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        own = {"PATH": path, "PYTHONPATH": str(EXAMPLES / "sweep"), "EXAMPLES": str(EXAMPLES)}
        return {**os.environ, **own, "OSTLER_STATE_DIR": str(self.state)}

    def _start(self, name: str, *arguments: str) -> None:
        with open(self.log(name), "ab") as output:
            self.processes[name] = subprocess.Popen(
                [*OSTLER, *arguments, "--state-dir", str(self.state), "--stop-on-eof"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=self.environment(),
                cwd=self.state,
                start_new_session=True,  # Ctrl-C reaches the demo alone, which stops its workers before the hub
            )

    # Addresses, which the hub writes down when it listens

    def is_listening(self) -> bool:
        return (self.state / "hub.url").exists() and GATEWAY.search(self.log("hub").read_text()) is not None

    @property
    def hub_url(self) -> str:
        return (self.state / "hub.url").read_text().strip()

    @property
    def gateway_url(self) -> str:
        found = GATEWAY.search(self.log("hub").read_text())
        assert found is not None, "is_listening() was true"
        return found[1]

    @property
    def token(self) -> str:
        return (self.state / "admin.token").read_text().strip()

    # Gates: files that tasks wait for, so that the demo decides the order in which tasks end

    def make_gated_command(self, gate: str, name: str) -> list[str]:
        """A command that ends when the gate is open, and then leaves a mark with this name."""
        return ["sh", "-c", WAIT_FOR_GATE, "wait-for-gate", str(self.gates), gate, name]

    def open_gate(self, gate: str) -> None:
        (self.gates / f"{gate}.open").touch()

    def has_passed(self, name: str) -> bool:
        return (self.gates / f"{name}.passed").exists()

    # The end

    def stop(self) -> None:
        """Stops the workers, then the hub, and kills every process that they leave."""
        family = {process.pid: process for process in self._family()}
        self._terminate([name for name in self.processes if name != "hub"])
        self._terminate([name for name in self.processes if name == "hub"])
        deadline = time.monotonic() + DIES_S
        while left := [one for one in {**family, **self._strays()}.values() if _is_alive(one)]:
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)

    def remove(self) -> bool:
        """Removes the state folder and returns whether it is gone."""
        for _ in range(3):
            shutil.rmtree(self.state, ignore_errors=True)
            if not self.state.exists():
                return True
            time.sleep(0.2)
        return False

    def _terminate(self, names: list[str]) -> None:
        deadline = time.monotonic() + STOPS_S
        for name in names:
            if self.processes[name].poll() is None:
                self.processes[name].send_signal(signal.SIGTERM)
        for name in names:
            with suppress(subprocess.TimeoutExpired):
                self.processes[name].wait(max(0.0, deadline - time.monotonic()))
            self.processes[name].kill()
            self.processes[name].wait()

    def _family(self) -> Iterator[psutil.Process]:
        """The hub, the workers, and all processes below them."""
        for process in self.processes.values():
            with suppress(psutil.Error):
                found = psutil.Process(process.pid)
                yield from [found, *found.children(recursive=True)]

    def _strays(self) -> dict[int, psutil.Process]:
        """Programs of this fleet that are no children of this process, such as a killed worker's supervisor, and all
        processes below them."""
        found: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                line = process.cmdline()
                if any(part in OUR_PROGRAMS for part in line) and any(str(self.state) in part for part in line):
                    found |= {one.pid: one for one in [process, *process.children(recursive=True)]}
        return found


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
