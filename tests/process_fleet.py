"""A hub and workers as processes of their own, each of which can be killed, started again, and looked at."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from tests.ports import free_port

import ostler
from ostler.client import Patience
from ostler.client.embedded import to_toml

OSTLER = (sys.executable, "-P", "-m", "ostler")
HURRIED = (sys.executable, str(Path(__file__).parent / "e2e" / "hurried.py"))
"""The same program with its long times made short."""
LOOK_S = 0.03
PATIENCE_S = 60.0
OFFER = {"cpu_count": 8, "memory_gb": 8}
TWO_A100 = {
    "gpu_backend": "nvidia",
    "cpu_count": 4,
    "memory_gb": 8,
    "labels": {"zone": "eu"},
    "devices": [{"name": "A100", "vram_gb": 80}] * 2,
}
"""The offer of a worker with GPUs that this machine need not have."""
ENDS = ("succeeded", "failed", "cancelled", "unschedulable")
Document = dict[str, Any]


def until(
    holds: Callable[[], Any],
    what: str,
    timeout_s: float = PATIENCE_S,
    process: "subprocess.Popen[Any] | None" = None,
) -> Any:
    """Waits until `holds` returns something true, and returns it. Fails if `process` ends before."""
    deadline = time.monotonic() + timeout_s
    while not (found := holds()):
        assert process is None or process.poll() is None, f"ended with {process.returncode} before {what}"
        assert time.monotonic() < deadline, f"{timeout_s:g} s are over before {what}"
        time.sleep(LOOK_S)
    return found


class ProcessFleet:
    """Processes by name, all with one state folder and one hub.

    `client` is a fleet of the client library that belongs to an operator, `hub` the client of the HTTP API under it.
    Both exist as soon as the hub has listened once.
    """

    patience_s = PATIENCE_S

    def __init__(self, folder: Path, program: tuple[str, ...] = OSTLER) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.hub_options: tuple[str, ...] = ()
        self.sources: dict[str, Path] = {}
        """The folder from which the program of this name imports Ostler; the others import the installed one."""
        self._program = program
        self._arguments: dict[str, tuple[str, ...]] = {}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OSTLER_", "COLUMNS"))}
        self.environment = kept | {"OSTLER_STATE_DIR": str(self.state), "OSTLER_HUB": self.url, "NO_COLOR": "1"}

    # Processes

    def start_hub(self) -> None:
        where = self.state / "hub.url"
        where.unlink(missing_ok=True)
        self._start("hub", ("hub", "--port", str(self.port), *self.hub_options))
        self._until(lambda: where.exists() and where.read_text(), "the hub listens", "hub")
        self.url = self.environment["OSTLER_HUB"] = where.read_text().strip()
        if not hasattr(self, "client"):
            self.token = (self.state / "admin.token").read_text().strip()
            self.client = ostler.connect(
                self.url, self.token, self.state, patience=Patience(tries=100, first_pause_s=0.1, growth=1.0)
            )
            self.hub = self.client.hub

    def start_worker(
        self, name: str, *, through: str = "", offer: Document | None = None, drain_s: float = 0.1
    ) -> None:
        """`through`: the address at which it finds the hub."""
        file = self.folder / f"{name}.toml"
        file.write_text(to_toml(OFFER | (offer or {})))
        arguments = ("worker", "--hub", through or self.url, "--name", name, "--offer", str(file))
        self._start(name, (*arguments, "--drain-seconds", str(drain_s)))

    def start_again(self, name: str) -> None:
        """A new process of the same name on the same files."""
        if name == "hub":
            self.start_hub()
        else:
            self._start(name, self._arguments[name])

    def kill(self, name: str) -> None:
        """kill -9; gone when this returns."""
        process = self.processes.pop(name)
        process.kill()
        process.wait(self.patience_s)

    def terminate(self, name: str) -> int:
        """SIGTERM; its exit code."""
        process = self.processes.pop(name)
        process.terminate()
        return process.wait(self.patience_s)

    def _start(self, name: str, arguments: tuple[str, ...]) -> None:
        self._arguments[name] = arguments
        source = {"PYTHONPATH": str(self.sources[name])} if name in self.sources else {}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*self._program, *arguments],
                env=self.environment | source,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _until(self, holds: Callable[[], Any], what: str, *names: str) -> None:
        """Until this holds; an error shows what these processes have written."""
        try:
            until(holds, what, self.patience_s, self.processes.get(names[0]) if names else None)
        except AssertionError as error:
            raise AssertionError(f"{error}: {''.join(map(self.log_of, names))}") from None

    def log_of(self, name: str) -> str:
        return end_of(self.folder / f"{name}.log")

    def logs(self) -> str:
        """The ends of the logs of all programs and supervisors, each under its path."""
        files = [self.folder / f"{name}.log" for name in self._arguments]
        files += [*self.state.glob("workers/*/supervisor.log"), *self.state.glob("workers/*/*/supervisor.log")]
        return "\n".join(f"--- {file}:\n{end_of(file)}" for file in files)

    def close(self) -> None:
        """Workers first, as a person would; then whatever a test that failed has left."""
        for name in sorted(self.processes, key="hub".__eq__):
            self.processes[name].terminate()
            try:
                self.processes[name].wait(self.patience_s)
            except subprocess.TimeoutExpired:
                self.processes[name].kill()
        if hasattr(self, "client"):
            self.client.close()
        for process in processes_with(str(self.state)):
            process.kill()

    # The hub's view

    def worker(self, name: str) -> Document:
        found: Document = self.hub.worker(name)
        return found

    def await_workers(self, *names: str) -> None:
        """Until all of these have announced their slots."""

        def ready() -> bool:
            found = {worker["id"] for worker in self.hub.workers() if usable(worker)}
            return set(names) <= found

        self._until(ready, f"{', '.join(names)} registered", *names)

    def await_free(self, *names: str) -> None:
        """Until nothing is held on any of these, as the hub sees it, and all of their room is free."""

        def free() -> bool:
            return all(is_free(self.worker(name)) for name in names)

        try:
            until(free, f"{', '.join(names)} are free")
        except AssertionError as error:
            raise AssertionError(f"{error}: {[self.worker(name) for name in names]}") from None

    def await_state(self, state: str, *tasks: str) -> None:
        """Until each of these jobs or tasks is in this state."""
        for task in tasks:
            try:
                until(lambda task=task: self.hub.job(task)["state"] == state, f"{task} is {state}")
            except AssertionError as error:
                raise AssertionError(f"{error}: {self.hub.job(task)}") from None

    def ends_told(self, job_id: str) -> dict[str, list[str]]:
        """The end states that the hub has told of this job and of its tasks, by their ids, in the order of telling."""
        told: dict[str, list[str]] = {}
        for event in self.hub.job_events(job_id):
            if event.get("state") in ENDS:
                told.setdefault(event.get("task") or event["subject"], []).append(event["state"])
        return told

    # Commands

    def run(self, *arguments: str, **more: Any) -> "subprocess.CompletedProcess[str]":
        """The command, to its end, whatever its exit code."""
        options = {"capture_output": True, "text": True, "timeout": 30, "env": self.environment, **more}
        return subprocess.run([*OSTLER, *arguments], **options)

    def check_run(self, *arguments: str, code: int = 0, **more: Any) -> "subprocess.CompletedProcess[str]":
        """The command, which must exit with this code."""
        done = self.run(*arguments, **more)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """The command, which goes on."""
        return subprocess.Popen(
            [*OSTLER, *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def json(self, *arguments: str) -> Any:
        return json.loads(self.check_run(*arguments, "--json").stdout)

    def submit(self, *arguments: str) -> str:
        return self.check_run("submit", *arguments).stdout.strip()

    def show(self, job_id: str) -> Document:
        document: Document = self.json("show", job_id)
        return document

    def workers(self) -> list[str]:
        """All that have announced their slots."""
        return [worker["id"] for worker in self.json("workers")["workers"] if worker["total_slots"]]


@contextmanager
def process_fleet(
    folder: Path,
    *workers: str,
    program: tuple[str, ...] = OSTLER,
    settings: str = "",
    sources: Mapping[str, Path] | None = None,
    **more: Any,
) -> Iterator[ProcessFleet]:
    """A hub and these workers, ready; `settings` is the hub's ostler.toml, `more` is for `start_worker`. An error in
    the body of the `with` shows all logs."""
    fleet = ProcessFleet(folder, program)
    fleet.sources |= sources or {}
    try:
        if settings:
            fleet.state.mkdir()
            (fleet.state / "ostler.toml").write_text(settings)
        fleet.start_hub()
        for name in workers:
            fleet.start_worker(name, **more)
        fleet.await_workers(*workers)
        yield fleet
    except BaseException as error:  # a time-out of pytest's is no Exception
        error.add_note(fleet.logs())
        raise
    finally:
        fleet.close()


def end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:] if log.exists() else ""


def usable(worker: Document) -> bool:
    return worker["status"] != "offline" and worker["total_slots"] > 0


def is_free(worker: Document) -> bool:
    return not worker["tasks"] and worker["active_jobs"] == 0 and worker["free"]["cores"] == worker["cpu_count"]


def processes_with(text: str) -> list[psutil.Process]:
    """All with this in their environment or their command line, but this one."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.environ().values(), *process.cmdline()]
        except (psutil.Error, OSError):
            continue  # gone by now, or somebody else's
        if process.pid != os.getpid() and any(text in word for word in words) and not is_dead(process):
            found.append(process)
    return found


def is_dead(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
