"""A map of calls that do nothing, over a Ray of our own: each call a task of Ray's, then each a job of Ray's.

python -m tests.bridge.ray_measure .venv-ray/bin/python [CALLS [JOBS]]
"""

import contextlib
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from tests.bridge.ray_cluster import CORES, NODES, ray_cluster
from tests.process_fleet import ProcessFleet

LIMIT_S, LOOK_S = 1800.0, 0.2
AS_JOBS = {"ostler.fresh": "yes"}
"""A call that shares nothing with others is no task of Ray's."""


def nothing(index: int) -> int:
    return index


class Spent:
    """Processor time of all that was started from here: Ray, hub, bridge and calls. A parent is told what its children
    took, but for Ray's: what those had taken when they were last seen is added to it."""

    def __init__(self) -> None:
        self._gone_s = 0.0
        self._seen: dict[psutil.Process, float] = {}
        self._of_ray: set[psutil.Process] = set()
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            self.look()

    def look(self) -> float:
        seen = {}
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                seen[process] = sum(process.cpu_times()[:4])
                if process not in self._seen and (parent := process.parent()) and parent.name() == "raylet":
                    self._of_ray.add(process)
        self._gone_s += sum(self._seen[process] for process in self._of_ray - seen.keys())
        self._of_ray &= seen.keys()
        self._seen = seen
        return self._gone_s + sum(seen.values())

    def close(self) -> float:
        self._over.set()
        self._watching.join()
        return self.look()


def measure(fleet: ProcessFleet, what: str, count: int, **options: Any) -> tuple[float, float]:
    """Seconds, and processor seconds, for each call."""
    spent = Spent()
    began, before = time.monotonic(), spent.look()
    assert list(fleet.client.map(nothing, range(count), timeout=LIMIT_S, **options)) == list(range(count))
    took_s = time.monotonic() - began
    used_s = spent.close() - before
    print(f"{count} calls as {what}: {took_s:.1f} s, and {used_s / count:.2f} s of a core for each", flush=True)
    return took_s / count, used_s / count


def main(python: str, calls: int = 200, jobs: int = 200) -> None:
    with tempfile.TemporaryDirectory() as folder:
        fleet = ProcessFleet(Path(folder) / "fleet")
        fleet.folder.mkdir()
        with ray_cluster(Path(python).absolute(), Path(folder)) as head:
            try:
                fleet.start_hub()
                fleet._start("bridge", ("bridge", "ray", "--address", head, "--hub", fleet.url, "--drain-seconds", "0"))
                fleet.await_workers(*(f"ray-{node}" for node in NODES))
                list(fleet.client.map(nothing, range(4 * CORES)))  # Ray starts its own processes
                quick = measure(fleet, "tasks", calls)
                slow = measure(fleet, "jobs", jobs, metadata=AS_JOBS)
            finally:
                fleet.close()
    print(
        f"as tasks they take 1/{slow[0] / quick[0]:.0f} of the time, 1/{slow[1] / quick[1]:.0f} of the processor time"
    )


if __name__ == "__main__":
    main(sys.argv[1], *(int(word) for word in sys.argv[2:]))
