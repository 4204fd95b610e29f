"""A hub and workers as real processes, each of which can be killed, paused, cut off, and watched."""

import contextlib
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from tests.process_fleet import ProcessFleet, processes_with

from chaos import program
from chaos.wire import ROOT, Wire
from ostler.config import trust

WATCH_S = 0.25
ATTEND_S = 0.5
SETTLES_S = 180.0
"""How long everything may take to end once the faults are over; what this machine does beside counts into it."""
TELL_S = 15.0
LIVE = ("pending", "assigned", "running", "orphaned")
OFFER = {"cpu_count": 16, "memory_gb": 64}


class ChaosFleet(ProcessFleet):
    patience_s = 120.0  # a machine with more to do than this is slow, not broken

    def __init__(
        self, folder: Path, times: str, wire: Wire | None = None, disks: dict[str, Path] | None = None
    ) -> None:
        """`disks`: where the state of a process is that does not share the others'."""
        super().__init__(folder, (sys.executable, str(ROOT / "chaos" / "program.py")))
        self._disks = disks or {}
        self.state = self._disks.get("hub", self.state)
        self.wire = wire
        self.peak_rss_mib = 0.0
        self.hub_starts = 0
        self.environment |= {program.TIMES: times, "OSTLER_STATE_DIR": str(self.state)}
        self._far: set[str] = set()
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)
        if wire is not None:
            self.hub_options = ("--host", wire.hub, "--tls", "auto")

    def _start(self, name: str, arguments: tuple[str, ...]) -> None:
        program, environment = self._program, self.environment
        if name in self._far and self.wire is not None:
            self._program = (*self.wire.inside(), *program)
        if name in self._disks:
            token = f"@{self.state / 'join.token'}"
            self.environment = environment | {"OSTLER_STATE_DIR": str(self._disks[name]), "OSTLER_TOKEN": token}
        try:
            super()._start(name, arguments)
        finally:
            self._program, self.environment = program, environment
        self.hub_starts += name == "hub"

    def begin(self, near: tuple[str, ...], far: tuple[str, ...] = ()) -> None:
        """The far ones behind the wire."""
        self._far = set(far)
        self.start_hub()
        for name in (*near, *far):
            self.start_worker(name, offer=OFFER | {"labels": {"stall": name}})
        self.await_workers(*near, *far)
        self._watching.start()

    def close(self) -> None:
        self._over.set()
        for name in self.processes:
            self.signal(name, signal.SIGCONT)
        for supervisor in self.supervisors():
            supervisor.resume()
        super().close()
        for process in processes_with(str(self.folder)):
            process.kill()

    # What is done to it

    def signal(self, name: str, number: signal.Signals) -> None:
        self.processes[name].send_signal(number)

    def supervisors(self, worker: str = "") -> list[psutil.Process]:
        """Of this worker, or of all."""
        found = []
        where = self._disks.get(worker, self.state)
        for process in processes_with(str(where / "workers" / worker) if worker else str(self.folder)):
            with contextlib.suppress(psutil.Error):
                if "ostler.runtime.supervisor" in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def attend(self, seconds: float) -> int:
        """As a service manager does, for so long: what has ended by itself is started again; how often."""
        started, over_at = 0, time.monotonic() + seconds
        while time.monotonic() < over_at:
            for name, process in list(self.processes.items()):
                if process.poll() is not None:
                    self._start(name, self._arguments[name])
                    started += 1
            time.sleep(ATTEND_S)
        return started

    def stop(self, *workers: str) -> list[int]:
        """As an operator does; their exit codes."""
        return [self.terminate(name) for name in workers]

    # What is seen of it

    def _watch(self) -> None:
        while not self._over.wait(WATCH_S):
            hub = self.processes.get("hub")
            with contextlib.suppress(psutil.Error):
                if hub is not None:
                    rss = psutil.Process(hub.pid).memory_info().rss / 2**20
                    self.peak_rss_mib = max(self.peak_rss_mib, rss)

    def lag(self) -> dict[float, int]:
        """How often the hub's loop was late by no more than each bound, since it started."""
        asked = urllib.request.Request(f"{self.url}/metrics", headers={"Authorization": f"Bearer {self.token}"})
        context = trust(None, self.state).context
        with urllib.request.urlopen(asked, timeout=60, context=context) as answer:
            lines = answer.read().decode().splitlines()
        wanted = "ostler_hub_loop_lag_seconds_bucket"
        return {float(line.split('"')[1]): int(float(line.rsplit(" ", 1)[1])) for line in lines if wanted in line[:50]}

    def settle(self, tell: Callable[[str], None]) -> float:
        """Until nothing waits and nothing runs, as the hub sees it; how long that took."""
        begun = told_at = time.monotonic()
        while live := list(self.hub.all_jobs(state=LIVE)):
            now = time.monotonic()
            if now - told_at > TELL_S:
                told_at = now
                for job in live[:3]:
                    tell(f"still {job['state']}: {job['id']} ({job['name']}) on {job['worker']}, {job['reason']}")
            assert now - begun < SETTLES_S, f"{SETTLES_S:g} s are over before {[job['id'] for job in live]} have ended"
            time.sleep(0.2)
        return time.monotonic() - begun

    def left_over(self) -> list[str]:
        """Processes that are still there although nobody should be."""
        found = []
        for process in processes_with(str(self.folder)):
            with contextlib.suppress(psutil.Error):
                found.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
        return found


@contextmanager
def chaos_fleet(
    folder: Path,
    near: tuple[str, ...],
    far: tuple[str, ...] = (),
    times: str = program.HURRIED,
    wire: Wire | None = None,
    **more: Any,
) -> Iterator[ChaosFleet]:
    made = ChaosFleet(folder, times, wire, **more)
    try:
        made.begin(near, far)
        yield made
    finally:
        made.close()


def nap(seconds: float) -> None:
    """The fault lasts this long."""
    time.sleep(seconds)
