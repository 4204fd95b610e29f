"""Runs the peers' scripts, each in its own process with a deadline, and keeps what they tell."""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import tempfile
from collections import defaultdict
from typing import IO, Any, NamedTuple

import psutil
from benchmarks.peers.environments import ROOT, NotInstalled, interpreter

LEAVE_S = 20.0
"""For a script that ran out of time to put away what it has started."""


class System(NamedTuple):
    name: str
    module: str
    environment: str = ""
    """Empty: it needs nothing but what we have."""
    path: str = ""
    """Where it finds another build of us, below the project's root."""


BARE = System("bare posix_spawn", "benchmarks.peers.bare")
OSTLER = System("Ostler", "benchmarks.peers.on_ostler")
COMPILED = System("Ostler, its core compiled", "benchmarks.peers.on_ostler", path="build/compiled")
PEERS = [
    System("HyperQueue", "benchmarks.peers.on_hyperqueue", "hyperqueue"),
    System("Ray", "benchmarks.peers.on_ray", "ray"),
    System("Dask", "benchmarks.peers.on_dask", "dask"),
    System("Parsl", "benchmarks.peers.on_parsl", "parsl"),
    System("Celery", "benchmarks.peers.on_celery", "celery"),
    System("Slurm", "benchmarks.peers.on_slurm"),
]


class Series:
    """One figure over the rounds."""

    def __init__(self) -> None:
        self.by_round: dict[int, float] = {}

    @property
    def median(self) -> float:
        return statistics.median(self.by_round.values())

    @property
    def least(self) -> float:
        return min(self.by_round.values())

    @property
    def most(self) -> float:
        return max(self.by_round.values())


class Found:
    """All that is known of one system."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.version = ""
        self.setup = ""
        self.failed = ""
        """Why there is no more of it."""
        self.two_commits_ms = Series()
        self.bare_per_s = Series()
        """Process starts without any scheduler, right before those of this one."""
        self.figures: defaultdict[tuple[str, str, str], Series] = defaultdict(Series)
        """By workload, the way that it is done, and what was measured."""
        self.counts: dict[str, int] = {}

    def hear(self, fact: dict[str, Any], number: int) -> None:
        self.version = fact.get("version", self.version)
        self.setup = fact.get("setup", self.setup)
        if "two_commits_ms" in fact:
            self.two_commits_ms.by_round[number] = fact["two_commits_ms"]
        if "bare_per_s" in fact:
            self.bare_per_s.by_round[number] = fact["bare_per_s"]
        if "work" in fact:
            self.counts[fact["work"]] = fact["count"]
            for key in fact.keys() - {"work", "way", "count"}:
                self.figures[fact["work"], fact["way"], key].by_round[number] = fact[key]

    def ways(self, work: str, key: str) -> dict[str, Series]:
        return {way: one for (of, way, what), one in self.figures.items() if (of, what) == (work, key)}


def run(found: Found, works: dict[str, int], number: int, deadline_s: float) -> None:
    """One round of some workloads; whoever fails has no further rounds."""
    if found.failed:
        return
    try:
        python = interpreter(found.system.environment)
    except NotInstalled as error:
        found.failed = str(error)
        return
    command = [python, "-m", found.system.module, *(f"{k}={v}" for k, v in works.items())]
    env = os.environ | ({"PYTHONPATH": str(ROOT / found.system.path)} if found.system.path else {})
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as complained:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=told, stderr=complained, start_new_session=True)
        try:
            status = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            stop(process)
            found.failed = f"not done after {deadline_s:g} s"
        else:
            found.failed = last_line(complained) or f"ended with {status}" if status else ""
        for line in lines_of(told):
            if line.startswith("{"):
                found.hear(json.loads(line), number)


def stop(process: subprocess.Popen[bytes]) -> None:
    """First by an interrupt, so that it puts away its servers; then all that is left of it."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(LEAVE_S)
    for one in family:
        with contextlib.suppress(psutil.Error):
            one.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def lines_of(file: IO[bytes]) -> list[str]:
    file.seek(0)
    return file.read().decode(errors="replace").splitlines()


def last_line(file: IO[bytes]) -> str:
    said = [line.strip() for line in lines_of(file) if line.strip()]
    return said[-1][:160].replace(str(ROOT), "") if said else ""
