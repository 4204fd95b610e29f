"""What a job costs the hub as its queue, its fleet and its history grow: `make bench-growth`.

The hub's own loop over a real core and a real SQLite ledger, in one process: jobs are submitted, placed, accepted and
ended in batches, with every commit forced to the disk, on a fleet that is full. What is counted is processor time per
job, of the deciding thread and of the ledger's, three times in turns with the other sizes. Writes benchmarks/plots.
"""

import argparse
import asyncio
import datetime
import gc
import itertools
import json
import logging
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
from benchmarks.core import make_fleet, make_shapes
from benchmarks.plot import Line, draw
from benchmarks.process_fleet import machine

from ostler.core.effects import AssignTask, Effect
from ostler.core.events import CancelRequested, Event, JobsSubmitted, NewJob, TaskAccepted, TaskEnded
from ostler.domain.job import JobSpec, Terms
from ostler.domain.records import AttemptRecord, Changes, FeedRecord, JobRecord, TaskRecord
from ostler.domain.resources import Request
from ostler.hub import collecting
from ostler.hub.ids import new_attempt_id, new_job_id
from ostler.hub.loop import Loop
from ostler.ledger.sqlite import SqliteLedger

PLOTS = Path(__file__).resolve().parent / "plots"
ROUNDS = 3
"""Over all sizes: what a machine does at one moment is not to be taken for what one size costs."""
BATCH = 50
"""Jobs that end, and jobs that come, between two commits."""
FILLING = 2000
SHAPES = 50
USERS = 20
OLD_S = 600.0
"""How long all that waits has waited when the measuring begins: longer than it takes to be given a hold."""
SPEC = msgspec.json.encode(JobSpec(command=["python", "train.py", "--epochs", "3"], name="sweep"))


class Cost(NamedTuple):
    """Microseconds of processor time per job."""

    deciding: float
    ledger: float


class ManualClock:
    def __init__(self) -> None:
        self.now = 1.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_800_000_000.0 + self.now


class Flow:
    """A full fleet with a queue, through which jobs go. Who ends is followed by another of the same shape and user, so
    that there are always as many of each."""

    def __init__(self, ledger: SqliteLedger, workers: int) -> None:
        self.rng = random.Random(7)
        self.ledger = ledger
        self.clock = ManualClock()
        fleet = make_fleet(self.rng, workers, 200)
        self.shapes = make_shapes(self.rng, SHAPES)
        fleet.new_attempt_id = new_attempt_id
        snapshot = ledger.load()
        fleet.job_seq, fleet.feed_seq = snapshot.last_job_seq, snapshot.last_feed_seq
        self.loop = Loop(fleet, ledger, self.perform, self.clock)
        self.likes: dict[str, NewJob] = {}
        self.live: list[AssignTask] = []
        self.placed: list[AssignTask] = []

    async def perform(self, _: Changes, effects: list[Effect]) -> None:
        self.placed += [effect for effect in effects if isinstance(effect, AssignTask)]

    def new_job(self, request: Request, user: str) -> NewJob:
        return NewJob(id=new_job_id(), user=user, name="sweep", spec=SPEC, request=request, terms=Terms())

    def any_job(self, among: list[Request]) -> NewJob:
        return self.new_job(self.rng.choice(among), f"user-{self.rng.randrange(USERS)}")

    async def post(self, events: Iterable[Event]) -> None:
        self.clock.now += 0.001
        for event in events:
            self.loop.post(event)
        await self.loop.turn()

    async def submit(self, jobs: list[NewJob]) -> None:
        self.likes |= {job.id: job for job in jobs}
        await self.post([JobsSubmitted(ref=0, jobs=jobs)])
        while self.placed:
            placed, self.placed = self.placed, []
            self.live += placed
            await self.post(self.accepted(effect) for effect in placed)

    def spoken(self, effect: AssignTask) -> dict[str, str | int]:
        session = self.loop.fleet.workers[effect.worker_id].session
        return {"worker_id": effect.worker_id, "session": session, "task_id": effect.task_id}

    def accepted(self, effect: AssignTask) -> Event:
        return msgspec.convert({**self.spoken(effect), "attempt": effect.attempt}, TaskAccepted)

    def ended(self, effect: AssignTask) -> Event:
        return msgspec.convert({**self.spoken(effect), "attempt": effect.attempt, "state": "succeeded"}, TaskEnded)

    async def fill(self, queued: int) -> None:
        """Until nothing of any shape fits anywhere; then the queue."""
        fleet = self.loop.fleet
        open_shapes = list(self.shapes)
        while open_shapes:
            await self.submit([self.any_job(open_shapes) for _ in range(500)])
            waits = {shape.request for shape in fleet.index.shapes() if shape.bit & fleet.queue.pending}
            open_shapes = [request for request in open_shapes if request not in waits]
        ran = {self.likes[effect.task_id].request for effect in self.live}
        self.shapes = [request for request in self.shapes if request in ran]
        while (missing := queued - fleet.job_counts["pending"]) > 0:
            await self.submit([self.any_job(self.shapes) for _ in range(min(missing, FILLING))])
        waiting = [job.id for job in fleet.jobs.values() if job.state == "pending"]
        await self.cancel(self.rng.sample(waiting, max(0, len(waiting) - queued)))

    async def cancel(self, job_ids: list[str]) -> None:
        for job_id in job_ids:
            del self.likes[job_id]
        await self.post(CancelRequested(ref=0, job_id=job_id) for job_id in job_ids)

    async def age(self) -> None:
        """The loop takes it for a time in which it was held up, and declares nobody lost."""
        self.clock.now += OLD_S
        await self.post([])
        for _ in range(10):
            await self.turn()

    async def turn(self) -> int:
        """A batch of ends, the jobs that follow them, and word of those that were placed last."""
        events: list[Event] = [self.accepted(effect) for effect in self.placed]
        self.live += self.placed
        self.placed.clear()
        leaving = [self.live.pop(self.rng.randrange(len(self.live))) for _ in range(min(BATCH, len(self.live)))]
        for effect in leaving:
            like = self.likes.pop(effect.task_id)
            job = self.new_job(like.request, like.user)
            self.likes[job.id] = job
            events += [self.ended(effect), JobsSubmitted(ref=0, jobs=[job])]
        await self.post(events)
        if not leaving and not self.placed:
            raise SystemExit("growth: nothing runs any more")
        return len(leaving)

    async def cost(self, jobs: int) -> Cost:
        done = 0
        whole, deciding = time.process_time(), time.thread_time()
        while done < jobs:
            done += await self.turn()
        deciding = time.thread_time() - deciding
        return Cost(deciding / done * 1e6, (time.process_time() - whole - deciding) / done * 1e6)


@asynccontextmanager
async def flow(folder: Path, workers: int) -> AsyncIterator[Flow]:
    ledger = SqliteLedger(folder / "ostler.db")
    made = Flow(ledger, workers)
    running = asyncio.create_task(made.loop.run())
    try:
        yield made
    finally:
        made.loop.stop()
        with suppress(asyncio.CancelledError):
            await running
        ledger.close()


def add_history(ledger: SqliteLedger, until: int) -> None:
    """Rows as the loop would have written them."""
    snapshot = ledger.load()
    feed = itertools.count(snapshot.last_feed_seq + 1)
    for first in range(snapshot.last_job_seq + 1, until + 1, FILLING):
        changes = Changes()
        for seq in range(first, min(first + FILLING, until + 1)):
            _ended_job(changes, seq, feed)
        ledger.commit(changes)


def _ended_job(changes: Changes, seq: int, feed: Iterator[int]) -> None:
    name, at, attempt = new_job_id(), 1_700_000_000.0 + seq, new_attempt_id()
    user, worker = f"user-{seq % USERS}", f"w{seq % 100:05d}"
    changes.new_jobs.append(
        JobRecord(
            id=name,
            seq=seq,
            user=user,
            name="sweep",
            spec=SPEC,
            request=Request(cores_milli=1000, memory_mib=1024),
            terms=Terms(),
            size=0,
            state="succeeded",
            submitted_at=at,
            finished_at=at,
        )
    )
    ended = {"state": "succeeded", "worker": worker, "attempt": attempt, "started_at": at, "finished_at": at}
    changes.tasks.append(msgspec.convert({"id": name, "job_id": name, "index": 0, **ended}, TaskRecord))
    row = {"task_id": name, "job_id": name, "held": False, "assigned_at": at, **ended}
    changes.attempts.append(msgspec.convert(row, AttemptRecord))
    for kind in ("submitted", "assigned", "running", "succeeded"):
        changes.feed.append(FeedRecord(seq=next(feed), at=at, kind=kind, subject=name, body={"worker": worker}))


async def measured(made: Flow, jobs: int) -> Cost:
    await made.age()
    gc.collect()
    collecting.settle()
    await made.cost(jobs // 4)
    cost = await made.cost(jobs)
    gc.unfreeze()
    return cost


async def by_queue(sizes: list[int], jobs: int) -> dict[int, Cost]:
    found = {}
    with tempfile.TemporaryDirectory(prefix="ostler-bench-") as folder:
        async with flow(Path(folder), 100) as made:
            for size in sizes:
                await made.fill(size)
                found[size] = await measured(made, jobs)
                told("queued", size, found[size])
    return found


async def by_workers(sizes: list[int], jobs: int) -> dict[int, Cost]:
    found = {}
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="ostler-bench-") as folder:
            async with flow(Path(folder), size) as made:
                await made.fill(1000)
                found[size] = await measured(made, jobs)
                told("workers", size, found[size])
    return found


async def by_history(sizes: list[int], jobs: int) -> dict[int, Cost]:
    found = {}
    with tempfile.TemporaryDirectory(prefix="ostler-bench-") as folder:
        for size in sizes:
            ledger = SqliteLedger(Path(folder, "ostler.db"))
            add_history(ledger, size)
            ledger.close()
            async with flow(Path(folder), 100) as made:
                await made.fill(1000)
                found[size] = await measured(made, jobs)
                told("ended jobs", size, found[size])
                await end_all(made)
    return found


async def end_all(made: Flow) -> None:
    """So that the next, longer history is one of ended jobs alone."""
    await made.cancel(list(made.loop.fleet.jobs))
    await made.post(made.ended(effect) for effect in [*made.live, *made.placed])


def told(what: str, size: int, cost: Cost) -> None:
    share = cost.ledger / sum(cost)
    print(f"  {size:>9,} {what:10s} {sum(cost):,.0f} µs a job, {share:.0%} of it the ledger's", flush=True)


QUESTIONS = {
    "queue": (by_queue, "jobs queued (100 workers)", (100, 1000, 10_000, 100_000, 1_000_000)),
    "workers": (by_workers, "workers (1,000 jobs queued)", (10, 100, 1000, 10_000)),
    "history": (by_history, "jobs that have ended (100 workers, 1,000 queued)", (1000, 10_000, 100_000, 1_000_000)),
}


def plot(x_name: str, found: dict[int, list[Cost]]) -> str:
    xs = sorted(found)
    series = {"all": [[sum(cost) for cost in found[x]] for x in xs]}
    series["of it the ledger"] = [[cost.ledger for cost in found[x]] for x in xs]
    lines = [
        Line(name, xs, [statistics.median(at) for at in values], [(min(at), max(at)) for at in values])
        for name, values in series.items()
    ]
    return draw(f"What a job costs the hub, by {x_name.split(' (')[0]}", x_name, "µs of processor time per job", lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    parser.add_argument("--most", type=int, default=1_000_000, help="leave out what is larger")
    parser.add_argument("--jobs", type=int, default=3000, help="through the hub at each size, in each round")
    parser.add_argument("--to", type=Path, default=PLOTS)
    options = parser.parse_args()
    logging.getLogger("ostler.hub").setLevel(logging.ERROR)  # it would tell of every jump of the clock
    options.to.mkdir(parents=True, exist_ok=True)
    rounds: dict[str, list[dict[int, Cost]]] = {name: [] for name in options.only}
    for number in range(ROUNDS):
        print(f"round {number + 1} of {ROUNDS}", flush=True)
        for name in options.only:
            ask, _, sizes = QUESTIONS[name]
            rounds[name].append(asyncio.run(ask([size for size in sizes if size <= options.most], options.jobs)))
    for name in options.only:
        x_name = QUESTIONS[name][1]
        found = {size: [costs[size] for costs in rounds[name]] for size in rounds[name][0]}
        (options.to / f"{name}.svg").write_text(plot(x_name, found))
        rows = {
            size: {part: [round(getattr(cost, part), 1) for cost in costs] for part in Cost._fields}
            for size, costs in found.items()
        }
        kept = {"date": str(datetime.date.today()), "machine": machine(), "us_per_job": rows}
        (options.to / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
