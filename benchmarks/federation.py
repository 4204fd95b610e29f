"""What is lost when one large fleet is divided among several hubs, and what each of them costs: docs/scale.md.

python -m benchmarks.federation [--workers 1000] [--jobs 100000] [--cells 1 4 10] [--load 0.95] [--json FILE]

Every cell is the real core on a virtual clock. Jobs arrive one by one, and somebody has to say which cell each goes to:

home    by its user, for good: nobody has to know anything
told    to a cell with a machine that has so many GPUs free, by what the cells said of themselves last; where none has,
        to the one with the least work waiting per GPU
moved   the same, and what has waited for a while is taken back and given to a cell that has room now
"""

import argparse
import hashlib
import json
import math
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
from benchmarks.process_fleet import machine

from ostler.core.effects import AssignTask
from ostler.core.events import CancelRequested, Event, JobsSubmitted, TaskEnded
from ostler.domain.scheduling import Scheduling
from ostler.sim.jobs import TracedJob, stream
from ostler.sim.replay import Replay, machines

GPUS = 8
USERS = 200
SAYS_EVERY_S = 10.0
"""How old what is known of a cell may be."""
MOVES_AFTER_S = 60.0
LONG_S = 600.0
TOLD_EVERY = 250_000
POLICIES = ("home", "told", "moved")


class Cell(Replay):
    """One hub's fleet. Of what has run it keeps nothing but sums."""

    def __init__(self, number: int, workers: int) -> None:
        self.number = number
        self.free = {f"w{n:05d}": GPUS for n in range(workers)}
        self.with_free = Counter({GPUS: workers})
        """How many machines have so many GPUs free."""
        self.waiting: dict[str, TracedJob] = {}
        self.waits = Waits()
        self.cpu_s = 0.0
        super().__init__(machines(workers, GPUS), Scheduling())

    def submit(self, job_id: str, job: TracedJob, now: float) -> None:
        self._jobs[job_id] = self.waiting[job_id] = job
        self._at(now, JobsSubmitted(ref=1, jobs=[self._new_job(job_id, job)]))

    def withdraw(self, job_id: str, now: float) -> TracedJob:
        self._at(now, CancelRequested(ref=1, job_id=job_id))
        del self._jobs[job_id]
        return self.waiting.pop(job_id)

    @property
    def due(self) -> float:
        if not self._heap:
            return math.inf
        holds = self.fleet.holds
        return max(self.now, min(self._heap[0][0], holds.look_at if holds.watched else math.inf))

    def advance(self) -> None:
        begun = time.process_time()
        self._next()
        self.cpu_s += time.process_time() - begun

    def _turn(self, batch: list[Event]) -> None:
        for event in batch:
            if isinstance(event, TaskEnded):
                self._freed(event.worker_id, self._jobs.pop(event.task_id).gpus)
        super()._turn(batch)

    def _start(self, assigned: list[AssignTask]) -> None:
        super()._start(assigned)
        for one in assigned:
            job = self.waiting.pop(one.job_id)
            self._freed(one.worker_id, -job.gpus)
            self.waits.add(self.now - job.submit)
            del self._ran[one.job_id]

    def _freed(self, worker: str, gpus: int) -> None:
        self.with_free[self.free[worker]] -= 1
        self.free[worker] += gpus
        self.with_free[self.free[worker]] += 1


class Waits:
    """Of millions, as counts in steps of a twentieth."""

    def __init__(self) -> None:
        self.count = 0
        self.sum_s = 0.0
        self.long = 0
        self._steps: Counter[int] = Counter()

    def add(self, wait_s: float) -> None:
        self.count += 1
        self.sum_s += wait_s
        self.long += wait_s > LONG_S
        self._steps[round(20 * math.log(1 + wait_s))] += 1

    def merge(self, other: "Waits") -> None:
        self.count += other.count
        self.sum_s += other.sum_s
        self.long += other.long
        self._steps += other._steps

    def part(self, part: float) -> float:
        left = math.ceil(part * self.count)
        for step in sorted(self._steps):
            left -= self._steps[step]
            if left <= 0:
                return math.exp(step / 20) - 1
        return 0.0


class Said:
    """What a cell last said of itself, less what has been sent there since."""

    def __init__(self, cell: Cell) -> None:
        self.with_free = Counter(cell.with_free)
        self.queued_gpus = sum(job.gpus for job in cell.waiting.values())

    def fits(self, gpus: int) -> int:
        """Machines that could take it."""
        return sum(count for free, count in self.with_free.items() if free >= gpus)

    def sent(self, gpus: int) -> None:
        """To the machine that it leaves the least, as the cell would have it."""
        room = [free for free, count in self.with_free.items() if free >= gpus and count > 0]
        if room:
            self.with_free[min(room)] -= 1
            self.with_free[min(room) - gpus] += 1
        else:
            self.queued_gpus += gpus


class Federation:
    def __init__(self, policy: str, cells: list[Cell]) -> None:
        self.policy = policy
        self.cells = cells
        self.said = [Said(cell) for cell in cells]
        self.says_at = 0.0
        self.moved = 0
        self._rng = random.Random(1)
        self._due = [cell.due for cell in cells]
        self._ids = 0

    def run(self, jobs: Iterator[TracedJob]) -> None:
        for number, job in enumerate(jobs, 1):
            self._until(job.submit)
            cell = self._chosen(job)
            self._ids += 1
            if number % TOLD_EVERY == 0:
                print(f"{number:,} jobs, {job.submit / 3600:.1f} hours of the fleet", file=sys.stderr, flush=True)
            cell.submit(f"j{self._ids}", job, job.submit)
            self._wakes(cell)
        self._until(math.inf)

    def _until(self, time: float) -> None:
        """All that the cells have to do before that."""
        while True:
            due = min(self._due)
            next_saying = self.says_at if self.policy != "home" else math.inf
            if min(due, next_saying) >= time or due == math.inf:
                return
            if next_saying <= due:
                self._say(next_saying)
                continue
            cell = self.cells[self._due.index(due)]
            cell.advance()
            self._wakes(cell)

    def _wakes(self, cell: Cell) -> None:
        self._due[cell.number] = cell.due

    def _say(self, now: float) -> None:
        self.said = [Said(cell) for cell in self.cells]
        self.says_at = now + SAYS_EVERY_S
        if self.policy == "moved":
            for cell in self.cells:
                self._move(cell, now)

    def _move(self, cell: Cell, now: float) -> None:
        late = [name for name, job in cell.waiting.items() if now - job.submit > MOVES_AFTER_S]
        for name in late:
            gpus = cell.waiting[name].gpus
            others = [other for other in self.cells if other is not cell and self.said[other.number].fits(gpus)]
            if others:
                target = max(others, key=lambda other: self.said[other.number].fits(gpus))
                self.said[target.number].sent(gpus)
                self._ids += 1
                target.submit(f"j{self._ids}", cell.withdraw(name, now), now)
                self.moved += 1
                self._wakes(target)
        self._wakes(cell)

    def _chosen(self, job: TracedJob) -> Cell:
        if self.policy == "home" or len(self.cells) == 1:
            digest = hashlib.blake2b(job.user.encode(), digest_size=4).digest()
            return self.cells[int.from_bytes(digest, "big") % len(self.cells)]
        fits = [said.fits(job.gpus) for said in self.said]
        if max(fits):
            number = self._rng.choices(range(len(self.cells)), fits)[0]
        else:
            number = min(range(len(self.cells)), key=lambda one: self.said[one].queued_gpus)
        self.said[number].sent(job.gpus)
        return self.cells[number]


def measured(policy: str, count: int, options: argparse.Namespace) -> dict[str, Any]:
    federation = Federation(policy, [Cell(number, options.workers // count) for number in range(count)])
    jobs = _of_many(stream(options.seed, options.jobs, GPUS * options.workers, load=options.load), options.seed)
    begun = time.process_time()
    federation.run(jobs)
    waits = Waits()
    for cell in federation.cells:
        waits.merge(cell.waits)
    if waits.count != options.jobs:
        raise SystemExit(f"federation: {waits.count} of {options.jobs} jobs have run")
    events = sum(cell.events for cell in federation.cells)
    return {
        "cells": count,
        "policy": policy,
        "mean_wait_s": round(waits.sum_s / waits.count, 2),
        "p99_wait_s": round(waits.part(0.99), 1),
        "waited_over_10_min": round(waits.long / waits.count, 5),
        "moved": federation.moved,
        "events_of_a_cell": events // count,
        "core_us_per_event": round(1e6 * sum(cell.cpu_s for cell in federation.cells) / events, 1),
        "cpu_s": round(time.process_time() - begun, 1),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def _of_many(jobs: Iterator[TracedJob], seed: int) -> Iterator[TracedJob]:
    """Users as a large fleet has them: the second submits half as much as the first, the third a third."""
    rng = random.Random(f"users {seed}")
    names, eagerness = [f"user{n:03d}" for n in range(USERS)], list(accumulate(1 / (n + 1) for n in range(USERS)))
    for job in jobs:
        yield msgspec.structs.replace(job, user=rng.choices(names, cum_weights=eagerness)[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--cells", type=int, nargs="+", default=[1, 4, 10])
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=POLICIES)
    parser.add_argument("--load", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write what was found into this file")
    options = parser.parse_args()
    found = []
    for count in options.cells:
        for policy in options.policies if count > 1 else ["home"]:
            found.append(measured(policy, count, options))
            print("  ".join(f"{key} {value}" for key, value in found[-1].items()), flush=True)
    if options.json:
        setting = {name: getattr(options, name) for name in ("workers", "jobs", "load", "seed")}
        options.json.write_text(
            json.dumps({"machine": machine(), "gpus": GPUS, **setting, "found": found}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
