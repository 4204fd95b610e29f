"""Decisions per second of the pure core: a saturated fleet, tasks end, others take their place.

python benchmarks/core.py [--workers 1000] [--shapes 100] [--queued 1000 100000] [--seconds 3]
"""

import argparse
import gc
import itertools
import random
import statistics
import time
from typing import NamedTuple

import msgspec

from ostler.core.effects import AssignTask
from ostler.core.events import JobsSubmitted, NewJob, TaskAccepted, TaskEnded, WorkerBeat, WorkerRegistered
from ostler.core.fleet import Fleet
from ostler.core.persist import take_changes
from ostler.core.placing.place import settle, settled
from ostler.core.step import step
from ostler.domain.job import Terms
from ostler.domain.resources import Request
from ostler.domain.worker import Capabilities, Slots

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
        decisions, self.rows_s = 0, 0.0
        begun = time.perf_counter()
        while (took := time.perf_counter() - begun) < seconds:
            decisions += self.turn()
        return Rates(decisions / (took - self.rows_s), decisions / took)

    def turn(self) -> int:
        """One pass of the hub's loop: some have ended while the last one was written down."""
        self.now += 0.001
        for _ in range(self.batch):
            self.one_ends()
        step(self.fleet, JobsSubmitted(ref=0, jobs=self.to_submit), self.now)
        placed = [effect for effect in settle(self.fleet, self.now) if isinstance(effect, AssignTask)]
        begun = time.perf_counter()
        take_changes(self.fleet, self.now)
        self.rows_s += time.perf_counter() - begun
        self.to_submit = []
        for effect in placed:
            job = self.another(self.likes[effect.task_id])
            self.likes[job.id] = job
            self.to_submit.append(job)
            self.live.append(effect.attempt)
        return len(placed)

    def one_ends(self) -> None:
        position = self.rng.randrange(len(self.live))
        attempt = self.fleet.held[self.live[position]]
        worker, task, session = attempt.worker_id, attempt.task_id, self.fleet.workers[attempt.worker_id].session
        accepted = TaskAccepted(worker_id=worker, session=session, task_id=task, attempt=attempt.id)
        ended = TaskEnded(worker_id=worker, session=session, task_id=task, attempt=attempt.id, state="succeeded")
        step(self.fleet, accepted, self.now)
        step(self.fleet, ended, self.now)
        self.live[position] = self.live[-1]
        self.live.pop()
        del self.likes[attempt.task_id]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--shapes", type=int, default=100)
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--queued", type=int, nargs="+", default=[1000, 100_000])
    parser.add_argument("--batch", type=int, default=1, help="tasks that end in one pass")
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    churns = {
        queued: Churn(options.workers, options.shapes, queued, options.users, options.batch)
        for queued in options.queued
    }
    gc.collect()
    gc.freeze()
    gc.disable()
    rates: dict[int, list[Rates]] = {queued: [] for queued in churns}
    for _ in range(3):
        for queued, churn in churns.items():
            rates[queued].append(churn.run(options.seconds))
    for queued, found in rates.items():
        alone, rows = (statistics.median(rate) for rate in zip(*found, strict=True))
        spread = f"of {len(found)}: {min(found).decisions:,.0f} to {max(found).decisions:,.0f}"
        print(f"{queued:>9,} queued: {alone:>7,.0f} decisions/s ({spread}); {rows:>7,.0f}/s with the ledger's rows")


if __name__ == "__main__":
    main()
