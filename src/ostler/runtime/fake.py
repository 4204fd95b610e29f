"""A machine without processes: the test says when a task ends, and time moves when the test moves it.

Loud: whatever a worker must never do raises AssertionError at once, at the line that did it.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from ostler.runtime.attempts import is_attempt_name, is_file_name
from ostler.runtime.base import Ended, Held, Launch

TERMINATED = 128 + signal.SIGTERM
KILLED = 128 + signal.SIGKILL


class _Task:
    def __init__(self, launch: Launch, started_at: float) -> None:
        self.launch = launch
        self.started_at = started_at
        self.kill_at = float("inf")
        self.stopped = ""
        self.ended: Ended | None = None


class FakeMachine:
    """What is on the machine, whoever works there: the part of the supervisor. It outlives any FakeRuntime."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self.folder = folder
        self.clock = clock
        self.launches: list[Launch] = []
        """Every start there ever was, in order."""
        self.stops: list[tuple[str, str, float]] = []
        """Every stop that was asked for: attempt, reason, grace."""
        self.contact_at = float("-inf")
        """When the hub was last in contact: leases count from there."""
        self.obeys_term = False
        """Whether tasks end by themselves on SIGTERM; if not, `end` or the end of the grace does it."""
        self.peaks: dict[str, int] = {}
        """How much memory each attempt has taken, as far as the test says so."""
        self._tasks: dict[str, _Task] = {}
        self._waiting: dict[str, Launch] = {}
        self._forgotten: set[str] = set()
        self._runtime: FakeRuntime | None = None

    @property
    def running(self) -> list[str]:
        return [attempt for attempt, task in self._tasks.items() if task.ended is None]

    @property
    def waiting(self) -> list[str]:
        """Launched, and held back until others have ended."""
        return list(self._waiting)

    def end(self, attempt: str, exit_code: int = 0, error: str = "", output: bytes = b"") -> None:
        """The task's processes are gone, now."""
        task = self._tasks.get(attempt)
        assert task is not None, f"{attempt} was never launched"
        assert task.ended is None, f"{attempt} has ended already"
        if output:
            self.print(attempt, output)
        task.ended = Ended(
            attempt=attempt,
            task_id=task.launch.task_id,
            exit_code=exit_code,
            error=error,
            stopped=task.stopped,
            finished_at=self.clock(),
            ran_s=self.clock() - task.started_at,
            peak_memory_mib=self.peaks.get(attempt, 0),
        )
        if self._runtime is not None:
            self._runtime._tell(task.ended)
        for launch in list(self._waiting.values()):
            if not self._is_held_back(launch):
                self._begin(self._waiting.pop(launch.attempt))

    def print(self, attempt: str, output: bytes) -> None:
        with (self.folder / attempt / "log").open("ab") as log:
            log.write(output)

    def tick(self) -> None:
        """The clock has moved: what was due by now happens, deadlines and the ends of graces."""
        now = self.clock()
        for attempt in self.running:
            task = self._tasks[attempt]
            deadline_s = task.launch.deadline_s
            if not task.stopped and 0 < deadline_s <= now - task.started_at:
                self.terminate(attempt, "max_runtime", task.launch.grace_s)
            if not task.stopped and 0 < task.launch.lease_s <= now - self.contact_at:
                self.terminate(attempt, "lost contact", task.launch.grace_s)
            if task.ended is None and now >= task.kill_at:
                self.end(attempt, KILLED)

    def terminate(self, attempt: str, reason: str, grace_s: float) -> None:
        self.call_back(attempt, reason)
        if attempt not in self.running:
            return
        task = self._tasks[attempt]
        task.stopped = task.stopped or reason
        task.kill_at = min(task.kill_at, self.clock() + grace_s)
        if self.obeys_term:
            self.end(attempt, TERMINATED)
        elif grace_s <= 0:
            self.end(attempt, KILLED)

    def call_back(self, attempt: str, reason: str) -> None:
        if attempt not in self._waiting:
            return
        self._tasks[attempt] = task = _Task(self._waiting.pop(attempt), 0.0)
        for other in self._waiting.values():
            if attempt in other.after:
                other.after = [*(name for name in other.after if name != attempt), *task.launch.after]
        task.stopped = reason
        self.end(attempt, TERMINATED)

    def start(self, launch: Launch) -> None:
        assert launch.attempt not in self._forgotten, f"{launch.attempt} was launched again after it was forgotten"
        if launch.attempt in self._tasks or launch.attempt in self._waiting:
            return
        folder = self.folder / launch.attempt
        for name in ("work", "out"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name, content in launch.files.items():
            (folder / name).write_bytes(content)
        if self._is_held_back(launch):
            self._waiting[launch.attempt] = launch
        else:
            self._begin(launch)

    def _is_held_back(self, launch: Launch) -> bool:
        return any(attempt in self._waiting or attempt in self.running for attempt in launch.after)

    def _begin(self, launch: Launch) -> None:
        if 0 < launch.lease_s <= self.clock() - self.contact_at:
            self._tasks[launch.attempt] = task = _Task(launch, 0.0)
            task.stopped = "lost contact"
            self.end(launch.attempt, TERMINATED)
            return
        (self.folder / launch.attempt / "log").touch()
        self.launches.append(launch)
        self._tasks[launch.attempt] = _Task(launch, self.clock())

    def forget(self, attempt: str) -> None:
        task = self._tasks.get(attempt)
        assert task is not None, f"{attempt} is forgotten, but nobody holds it"
        assert task.ended is not None, f"{attempt} is forgotten while it runs"
        del self._tasks[attempt]
        self._forgotten.add(attempt)

    def attach(self, runtime: "FakeRuntime") -> list[Held]:
        self._runtime = runtime
        waiting = [
            Held(attempt=one.attempt, task_id=one.task_id, started_at=0.0, after=list(one.after))
            for one in self._waiting.values()
        ]
        return waiting + [
            Held(attempt=attempt, task_id=task.launch.task_id, started_at=task.started_at, ended=task.ended)
            for attempt, task in self._tasks.items()
        ]

    def detach(self, runtime: "FakeRuntime") -> None:
        if self._runtime is runtime:
            self._runtime = None


class FakeRuntime:
    """One worker process's hold on a FakeMachine. Another one on the same machine takes everything back."""

    def __init__(self, machine: FakeMachine) -> None:
        self.machine = machine
        self._ends: asyncio.Queue[Ended | None] = asyncio.Queue()
        self._is_open = False

    async def open(self) -> list[Held]:
        assert not self._is_open, "opened twice"
        self._is_open = True
        return self.machine.attach(self)

    def prepare(self, launch: Launch) -> None:
        self._check("prepare")
        assert not launch.files, f"{launch.attempt} has files, which are not for before its launch"

    async def launch(self, launch: Launch) -> None:
        self._check("launch")
        self.folder(launch.attempt)
        wrong = [name for name in launch.files if not is_file_name(name)]
        if wrong:
            raise ValueError(f"not a plain file name: {wrong[0]!r}")
        self.machine.start(launch)

    async def stop(self, attempt: str, reason: str, grace_s: float) -> None:
        self._check("stop")
        self.machine.stops.append((attempt, reason, grace_s))
        self.machine.terminate(attempt, reason, grace_s)

    async def call_back(self, attempt: str, reason: str) -> None:
        self._check("call_back")
        self.machine.call_back(attempt, reason)

    async def renew(self, age_s: float) -> None:
        self._check("renew")
        self.machine.contact_at = max(self.machine.contact_at, self.machine.clock() - age_s)

    async def forget(self, attempt: str) -> None:
        self._check("forget")
        self.machine.forget(attempt)

    def peaks(self) -> dict[str, int]:
        return {attempt: mib for attempt, mib in self.machine.peaks.items() if attempt in self.machine.running}

    def samples(self) -> dict[str, tuple[int, int]]:
        return {}

    async def ends(self) -> AsyncIterator[Ended]:
        while (end := await self._ends.get()) is not None:
            yield end

    def folder(self, attempt: str) -> Path:
        if not is_attempt_name(attempt):
            raise ValueError(f"not an attempt id: {attempt!r}")
        return self.machine.folder / attempt

    def path(self, attempt: str) -> str:
        return str(self.folder(attempt))

    async def close(self, *, stop_tasks: bool) -> None:
        self._check("close")
        if stop_tasks:
            for attempt in (*self.machine.waiting, *self.machine.running):
                self.machine.terminate(attempt, "shutdown", 0.0)
        self.crash()

    def crash(self) -> None:
        """The worker process is gone, without a word; its tasks are not."""
        self.machine.detach(self)
        self._is_open = False
        self._ends.put_nowait(None)

    def _check(self, what: str) -> None:
        assert self._is_open, f"{what} on a runtime that is not open"

    def _tell(self, end: Ended) -> None:
        self._ends.put_nowait(end)
