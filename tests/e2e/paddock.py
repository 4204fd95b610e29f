"""A hub and workers as processes of their own, each of which can be killed, started again, and looked at."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

import ostler
from ostler.client import Patience
from ostler.client.embedded import to_toml

OSTLER = (sys.executable, "-P", "-m", "ostler.cli")
HURRIED = (sys.executable, str(Path(__file__).with_name("hurried.py")))
"""The same program with its long times made short."""
LOOK_S = 0.03
PATIENCE_S = 15.0
OFFER = {"cpu_count": 8, "memory_gb": 8}
ENDS = ("succeeded", "failed", "cancelled", "unschedulable")
Document = dict[str, Any]


def until(holds: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
    """What `holds` gives as soon as it is true."""
    deadline = time.monotonic() + timeout_s
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{timeout_s:g} s are over before {what}"
        time.sleep(LOOK_S)
    return found


class Paddock:
    """Processes by name, all with one state folder and one port; `fleet` is a client of its hub."""

    patience_s = PATIENCE_S

    def __init__(self, folder: Path, program: tuple[str, ...] = OSTLER) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._program = program
        self._port = "0"
        self.hub_options: tuple[str, ...] = ()
        self._arguments: dict[str, tuple[str, ...]] = {}
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("OSTLER_")}
        self.environment |= {"OSTLER_STATE_DIR": str(self.state), "NO_COLOR": "1"}

    # Processes

    def start_hub(self) -> None:
        where = self.state / "hub.url"
        where.unlink(missing_ok=True)
        self._start("hub", ("hub", "--port", self._port, *self.hub_options))
        until(lambda: where.exists() and where.read_text(), f"the hub listens: {self.log_of('hub')}", self.patience_s)
        self.url = where.read_text().strip()
        self._port = self.url.rpartition(":")[2]
        self.environment["OSTLER_HUB"] = self.url
        if not hasattr(self, "fleet"):
            self.token = (self.state / "admin.token").read_text().strip()
            self.fleet = ostler.connect(
                self.url, self.token, self.state, patience=Patience(tries=100, first_pause_s=0.1, growth=1.0)
            )
            self.hub = self.fleet.hub

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
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*self._program, *arguments], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def log_of(self, name: str) -> str:
        file = self.folder / f"{name}.log"
        return file.read_text(errors="replace")[-2000:] if file.exists() else ""

    def close(self) -> None:
        """Workers first, as a person would; then whatever a test that failed has left."""
        for name in sorted(self.processes, key="hub".__eq__):
            self.processes[name].terminate()
            try:
                self.processes[name].wait(self.patience_s)
            except subprocess.TimeoutExpired:
                self.processes[name].kill()
        if hasattr(self, "fleet"):
            self.fleet.close()
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

        logs = "".join(self.log_of(name) for name in names)
        until(ready, f"{', '.join(names)} registered: {logs}", self.patience_s)

    def await_free(self, *names: str) -> None:
        """Until nothing is held on any of these, as the hub sees it, and all of their room is free."""

        def free() -> bool:
            return all(is_free(self.worker(name)) for name in names)

        try:
            until(free, f"{', '.join(names)} are free")
        except AssertionError as error:
            raise AssertionError(f"{error}: {[self.worker(name) for name in names]}") from None

    def ends_told(self, job_id: str) -> dict[str, list[str]]:
        """The end states that the hub has told of this job and of its tasks, by their ids, in the order of telling."""
        told: dict[str, list[str]] = {}
        for event in self.hub.job_events(job_id):
            if event.get("state") in ENDS:
                told.setdefault(event.get("task") or event["subject"], []).append(event["state"])
        return told

    def run(self, *arguments: str, code: int | None = 0, **more: Any) -> subprocess.CompletedProcess[str]:
        """The command, which must exit with this code."""
        options = {"capture_output": True, "text": True, "timeout": 30, "env": self.environment, **more}
        done = subprocess.run([*OSTLER, *arguments], **options)
        assert code in (None, done.returncode), (done.returncode, done.stdout, done.stderr)
        return done

    def submit(self, *arguments: str) -> str:
        return self.run("submit", *arguments).stdout.strip()

    def show(self, job_id: str) -> Document:
        document: Document = json.loads(self.run("show", job_id, "--json").stdout)
        return document


@contextmanager
def paddock(
    folder: Path, *workers: str, program: tuple[str, ...] = OSTLER, settings: str = "", **more: Any
) -> Iterator[Paddock]:
    """A hub and these workers, ready; `settings` is the hub's ostler.toml."""
    made = Paddock(folder, program)
    try:
        if settings:
            made.state.mkdir()
            (made.state / "ostler.toml").write_text(settings)
        made.start_hub()
        for name in workers:
            made.start_worker(name, **more)
        made.await_workers(*workers)
        yield made
    finally:
        made.close()


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
        if process.pid != os.getpid() and any(text in word for word in words) and not _is_dead(process):
            found.append(process)
    return found


def _is_dead(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# Tasks that tell

DIARIST = """
echo "begin $OSTLER_TASK_ID $OSTLER_ATTEMPT" >> "$DIARY/lines"
until test -e "$DIARY/gate.${GATE:-$OSTLER_INDEX}" || test -e "$DIARY/gate.$OSTLER_ATTEMPT"; do sleep 0.05; done
echo "end $OSTLER_TASK_ID $OSTLER_ATTEMPT" >> "$DIARY/lines"
exit $(cat "$DIARY/gate.$OSTLER_ATTEMPT" 2>/dev/null || echo 0)
"""


class Diary:
    """Where tasks write a line when they begin and a line when they end, and the gates that they wait at between."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def spec(self, gate: str = "", **more: Any) -> Document:
        """A program that waits at this gate; without a name, of an array, each task at that of its index."""
        env = {"DIARY": str(self.folder)} | ({"GATE": gate} if gate else {})
        return {"command": ["sh", "-c", DIARIST], "env": env, "min_cpu_cores": 1, **more}

    def open(self, *gates: str | int) -> None:
        for gate in gates:
            (self.folder / f"gate.{gate}").touch()

    def end(self, attempt: str, exit_code: int) -> None:
        """Let this very attempt end, with this exit code."""
        draft = self.folder / f"draft.{attempt}"
        draft.write_text(str(exit_code))
        draft.rename(self.folder / f"gate.{attempt}")

    def lines(self) -> "Counter[tuple[str, ...]]":
        """How often each (begin or end, task, attempt) was written."""
        file = self.folder / "lines"
        return Counter(tuple(line.split()) for line in file.read_text().splitlines()) if file.exists() else Counter()

    def seen(self, word: str) -> "Counter[str]":
        """How often each task began, or ended."""
        counts: Counter[str] = Counter()
        for (what, task_id, _), times in self.lines().items():
            if what == word:
                counts[task_id] += times
        return counts

    def await_begun(self, *tasks: str) -> None:
        until(lambda: set(tasks) <= self.seen("begin").keys(), f"{tasks} have begun: {self.seen('begin')}")

    def await_ended(self, *tasks: str) -> None:
        until(lambda: set(tasks) <= self.seen("end").keys(), f"{tasks} have ended: {self.seen('end')}")
