"""Decisions per second of the pure core: a saturated fleet, tasks end, others take their place.

python benchmarks/core.py [--workers 1000] [--shapes 100] [--queued 1000 100000] [--seconds 3]
"""

import argparse
import gc
import itertools
import random
import statistics
import time

from ostler.core.events import JobsSubmitted, NewJob, TaskAccepted, TaskEnded, WorkerBeat, WorkerRegistered
from ostler.core.fleet import Fleet
from ostler.core.persist import take_changes
from ostler.core.placing.place import settle, settled
from ostler.core.step import step
from ostler.domain.job import Terms
from ostler.domain.resources import Request
from ostler.domain.worker import Capabilities, Slots


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
        step(fleet, WorkerBeat(worker_id=name, session=number + 1, slots=Slots(batch_total=1000)), 0.0)
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


class Churn:
    """One fleet with a queue; each turn a random task ends and another of its kind is submitted."""

    def __init__(self, workers: int, shapes: int, queued: int, users: int) -> None:
        self.rng = random.Random(7)
        self.fleet = make_fleet(self.rng, workers, 200)
        self.shapes = make_shapes(self.rng, shapes)
        self.users = [f"u{n}" for n in range(users)]
        self.terms = [Terms(priority=p, tier=t) for p in (0, 5) for t in ("training", "data_processing")]
        self.numbers = itertools.count()
        self.now = 1.0
        self.fill(queued)

    def new_job(self) -> NewJob:
        return NewJob(
            id=f"j{next(self.numbers)}",
            user=self.rng.choice(self.users),
            name="",
            spec=b"{}",
            request=self.rng.choice(self.shapes),
            terms=self.rng.choice(self.terms),
        )

    def fill(self, queued: int) -> None:
        while sum(self.fleet.job_counts[s] for s in ("pending",)) < queued:
            step(self.fleet, JobsSubmitted(ref=0, jobs=[self.new_job() for _ in range(500)]), self.now)
            while not settled(self.fleet):
                settle(self.fleet, self.now)
            take_changes(self.fleet, self.now)
        self.live = list(self.fleet.held)

    def run(self, seconds: float) -> float:
        decisions = 0
        begun = time.perf_counter()
        while time.perf_counter() - begun < seconds:
            self.now += 0.001
            position = self.rng.randrange(len(self.live))
            attempt = self.fleet.held[self.live[position]]
            session = self.fleet.workers[attempt.worker_id].session
            spoken = {"worker_id": attempt.worker_id, "session": session, "task_id": attempt.task_id}
            step(self.fleet, TaskAccepted(attempt=attempt.id, **spoken), self.now)
            step(self.fleet, TaskEnded(attempt=attempt.id, state="succeeded", **spoken), self.now)
            self.live[position] = self.live[-1]
            self.live.pop()
            step(self.fleet, JobsSubmitted(ref=0, jobs=[self.new_job()]), self.now)
            placed = settle(self.fleet, self.now)
            take_changes(self.fleet, self.now)
            self.live += [effect.attempt for effect in placed]
            decisions += len(placed)
        return decisions / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--shapes", type=int, default=100)
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--queued", type=int, nargs="+", default=[1000, 100_000])
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    churns = {queued: Churn(options.workers, options.shapes, queued, options.users) for queued in options.queued}
    gc.collect()
    gc.freeze()
    gc.disable()
    rates: dict[int, list[float]] = {queued: [] for queued in churns}
    for _ in range(3):
        for queued, churn in churns.items():
            rates[queued].append(churn.run(options.seconds))
    for queued, found in rates.items():
        spread = f"of {len(found)}: {min(found):,.0f} to {max(found):,.0f}"
        print(f"{queued:>9,} queued: {statistics.median(found):>9,.0f} decisions/s ({spread})")


if __name__ == "__main__":
    main()
