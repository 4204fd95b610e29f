"""Decisions per second of the pure core: a saturated fleet, tasks end, others take their place.

python benchmarks/core.py [--workers 1000] [--shapes 100] [--queued 1000 100000] [--seconds 3]

Where `make compiled` was run, the plain core and the compiled one take turns, each in a process of its own. Seconds are
of processor time: the core waits for nothing, and whatever else the machine does counts less so.
"""

import argparse
import gc
import itertools
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path
from time import process_time
from typing import NamedTuple

import msgspec

import ostler.core.fleet
from ostler.core.effects import AssignTask
from ostler.core.events import Event, JobsSubmitted, NewJob, TaskAccepted, TaskEnded, WorkerBeat, WorkerRegistered
from ostler.core.fleet import Fleet
from ostler.core.persist import take_changes
from ostler.core.placing.place import settle, settled
from ostler.core.step import step
from ostler.domain.job import Terms
from ostler.domain.resources import Request
from ostler.domain.worker import Capabilities, Slots

COMPILED = Path(__file__).resolve().parent.parent / "build" / "compiled"
ROUNDS = 3
OLD_S = 3600.0
"""How long all that waits has waited when the measuring begins: longer than it takes to be given a hold."""


def make_fleet(rng: random.Random, workers: int, kinds: int) -> Fleet:
    ids = itertools.count()
    fleet = Fleet(lambda: f"a{next(ids)}")
    offers = [
        Capabilities(
            gpu_backend="nvidia" if rng.random() < 0.7 else "cpu",
            gpu_count=rng.choice((1, 2, 4, 8)),
            gpu_type=f"G{rng.randrange(6)}",
            vram_gb=640,
            cpu_count=rng.choice((16, 32, 64, 96)),
            memory_gb=rng.choice((64, 256, 512)),
        )
        for _ in range(kinds)
    ]
    for number in range(workers):
        name = f"w{number:05d}"
        offer = offers[number % kinds]
        step(fleet, WorkerRegistered(worker_id=name, session=number + 1, capabilities=offer), 0.0)
        step(fleet, WorkerBeat(worker_id=name, session=number + 1, slots=Slots(batch_total=rng.choice((4, 6, 8)))), 0.0)
    return fleet


def make_shapes(rng: random.Random, count: int) -> list[Request]:
    found: set[Request] = set()
    while len(found) < count:
        gpus = rng.choice((0, 0, 1, 1, 2, 4, 8))
        found.add(
            Request(
                gpu_count=gpus,
                gpu_type=f"g{rng.randrange(6)}" if gpus and rng.random() < 0.3 else "",
                cores_milli=1000 * rng.choice((1, 2, 4, 8, 12)),
                memory_mib=1024 * rng.choice((1, 4, 8, 16, 32, 64)),
            )
        )
    return sorted(found, key=repr)


class Rates(NamedTuple):
    """Per second: what is decided, and that with the rows for the ledger made of it."""

    decisions: float
    with_rows: float


class Churn:
    """A saturated fleet with a queue: each turn a random task ends, what takes its room is replaced in the queue by
    another of its shape, user, priority and tier, so that the mix stays what it is."""

    def __init__(self, workers: int, shapes: int, queued: int, users: int, batch: int = 1) -> None:
        self.batch = batch
        self.rng = random.Random(7)
        self.fleet = make_fleet(self.rng, workers, 200)
        self.shapes = make_shapes(self.rng, shapes)
        self.users = [f"u{n}" for n in range(users)]
        self.terms = [Terms(priority=p, tier=t) for p in (0, 5) for t in ("training", "data_processing")]
        self.numbers = itertools.count()
        self.now = 1.0
        self.likes: dict[str, NewJob] = {}
        self.to_submit: list[NewJob] = []
        self.decided_s = 0.0
        self.rows_s = 0.0
        self.fill(queued)

    def new_job(self, request: Request) -> NewJob:
        """Of two priorities and two tiers, as likely each."""
        return self.another(
            NewJob(
                id="",
                user=self.rng.choice(self.users),
                name="",
                spec=b"{}",
                request=request,
                terms=self.rng.choice(self.terms),
            )
        )

    def another(self, like: NewJob) -> NewJob:
        return msgspec.structs.replace(like, id=f"j{next(self.numbers)}")

    def submit(self, jobs: list[NewJob]) -> int:
        self.likes |= {job.id: job for job in jobs}
        step(self.fleet, JobsSubmitted(ref=0, jobs=jobs), self.now)
        placed = 0
        while not settled(self.fleet):
            placed += len(settle(self.fleet, self.now))
        take_changes(self.fleet, self.now)
        return placed

    def fill(self, queued: int) -> None:
        """Until nothing of any shape fits anywhere; then the queue."""
        open_shapes = list(self.shapes)
        while open_shapes:
            jobs = [self.new_job(self.rng.choice(open_shapes)) for _ in range(500)]
            self.submit(jobs)
            waits = {shape.request for shape in self.fleet.index.shapes() if shape.bit & self.fleet.queue.pending}
            open_shapes = [request for request in open_shapes if request not in waits]
        while self.fleet.job_counts["pending"] < queued:
            self.submit([self.new_job(self.rng.choice(self.shapes)) for _ in range(500)])
        self.live = list(self.fleet.held)
        self.now += OLD_S

    def run(self, seconds: float) -> "Rates":
        decisions, self.decided_s, self.rows_s = 0, 0.0, 0.0
        while self.decided_s + self.rows_s < seconds:
            decisions += self.turn()
        return Rates(decisions / self.decided_s, decisions / (self.decided_s + self.rows_s))

    def turn(self) -> int:
        """One pass of the hub's loop: some have ended while the last one was written down."""
        self.now += 0.001
        events: list[Event] = [event for _ in range(self.batch) for event in self.one_ends()]
        events.append(JobsSubmitted(ref=0, jobs=self.to_submit))
        begun = process_time()
        for event in events:
            step(self.fleet, event, self.now)
        effects = settle(self.fleet, self.now)
        decided = process_time()
        take_changes(self.fleet, self.now)
        self.rows_s += process_time() - decided
        self.decided_s += decided - begun
        return self.note([effect for effect in effects if isinstance(effect, AssignTask)])

    def note(self, placed: list[AssignTask]) -> int:
        """What was placed runs from now on, and another of its like is submitted in its stead."""
        self.to_submit = []
        for effect in placed:
            job = self.another(self.likes[effect.task_id])
            self.likes[job.id] = job
            self.to_submit.append(job)
            self.live.append(effect.attempt)
        return len(placed)

    def one_ends(self) -> tuple[TaskAccepted, TaskEnded]:
        position = self.rng.randrange(len(self.live))
        attempt = self.fleet.held[self.live[position]]
        worker, task, session = attempt.worker_id, attempt.task_id, self.fleet.workers[attempt.worker_id].session
        accepted = TaskAccepted(worker_id=worker, session=session, task_id=task, attempt=attempt.id)
        ended = TaskEnded(worker_id=worker, session=session, task_id=task, attempt=attempt.id, state="succeeded")
        self.live[position] = self.live[-1]
        self.live.pop()
        del self.likes[attempt.task_id]
        return accepted, ended


class Rounds:
    """One core, plain or compiled, with its fleets: measured when it is told to."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.rates: dict[int, list[Rates]] = {}
        argv = [sys.executable, __file__, "--told", *sys.argv[1:]]
        environ = os.environ | {"PYTHONPATH": path}
        self._process = subprocess.Popen(argv, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, queued: int) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(b"%d\n" % queued)
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the {self.name} core did not get to its end"
        self.rates.setdefault(queued, []).append(msgspec.json.decode(answer, type=Rates))

    def rate(self, queued: int) -> float:
        return statistics.median(rates.decisions for rates in self.rates[queued])

    def close(self) -> None:
        self._process.communicate()


def measure_when_told(options: argparse.Namespace) -> None:
    churns = {
        queued: Churn(options.workers, options.shapes, queued, options.users, options.batch)
        for queued in options.queued
    }
    gc.collect()
    gc.freeze()
    gc.disable()
    for line in sys.stdin:
        print(msgspec.json.encode(churns[int(line)].run(options.seconds)).decode(), flush=True)


def is_compiled() -> bool:
    return not ostler.core.fleet.__file__.endswith(".py")


def report(cores: list[Rounds], queued: int) -> None:
    for core in cores:
        found = core.rates[queued]
        rows = statistics.median(rates.with_rows for rates in found)
        spread = f"of {len(found)}: {min(found).decisions:,.0f} to {max(found).decisions:,.0f}"
        told = f"{core.rate(queued):>7,.0f} decisions/s ({spread}); {rows:>7,.0f}/s with the ledger's rows"
        print(f"{queued:>9,} queued, {core.name:>8}: {told}")
    if len(cores) > 1:
        pairs = zip(*(core.rates[queued] for core in cores), strict=True)
        ratios = [compiled.decisions / plain.decisions for plain, compiled in pairs]
        print(f"{queued:>9,} queued, compiled / plain: {statistics.median(ratios):.2f} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--shapes", type=int, default=100)
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--queued", type=int, nargs="+", default=[1000, 100_000])
    parser.add_argument("--batch", type=int, default=1, help="tasks that end in one pass")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--told", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.told:
        return measure_when_told(options)
    cores = [Rounds("compiled" if is_compiled() else "plain", os.environ.get("PYTHONPATH", ""))]
    if COMPILED.exists() and not is_compiled():
        cores.append(Rounds("compiled", str(COMPILED)))
    for _ in range(ROUNDS):
        for queued in options.queued:
            for core in cores:
                core.run(queued)
    for queued in options.queued:
        report(cores, queued)
    for core in cores:
        core.close()


if __name__ == "__main__":
    main()
