"""A trace of jobs on the real core, on a virtual clock: when each started and ended, beside plain FIFO and FIFO that
skips what does not fit. All three are the same core; what differs is its policy."""

import heapq
import math
from collections.abc import Callable, Sequence
from itertools import count, groupby

import msgspec

from ostler.core.attempts import forget_ended
from ostler.core.effects import AssignTask
from ostler.core.events import (
    Event,
    JobsSubmitted,
    NewJob,
    TaskAccepted,
    TaskEnded,
    TimePassed,
    WorkerBeat,
    WorkerRegistered,
)
from ostler.core.fleet import Fleet
from ostler.core.match import never_fits
from ostler.core.placing.place import PLACEMENTS_PER_PASS, settle
from ostler.core.step import step
from ostler.core.timers import Timers
from ostler.core.touched import Touched
from ostler.domain.job import JobSpec
from ostler.domain.resources import Request
from ostler.domain.scheduling import HOLD_AFTER_S, Scheduling
from ostler.domain.worker import Capabilities, Slots
from ostler.sim.jobs import TracedJob

FIFO, SKIP, HOLDS = "fifo", "skip", "ostler"
CORES_PER_GPU = 16
MEMORY_PER_GPU_GIB = 128.0
VRAM_GIB = 80.0


class Ran(msgspec.Struct, frozen=True):
    job: TracedJob
    started: float
    ended: float

    @property
    def wait_s(self) -> float:
        return self.started - self.job.submit

    @property
    def took_s(self) -> float:
        """From its submission to its end."""
        return self.ended - self.job.submit


class Replayed(msgspec.Struct):
    policy: str
    ran: list[Ran]
    never: int
    """Jobs that no number of these machines could run: left out."""
    events: int
    holds: int
    """How many were given."""


def machines(number: int, gpus: int) -> list[Capabilities]:
    machine = Capabilities(
        gpu_backend="nvidia" if gpus else "cpu",
        gpu_count=gpus,
        vram_gb=VRAM_GIB * gpus,
        cpu_count=CORES_PER_GPU * max(1, gpus),
        memory_gb=MEMORY_PER_GPU_GIB * max(1, gpus),
    )
    return [machine] * number


def policies(hold_after_s: float = HOLD_AFTER_S) -> dict[str, tuple[Scheduling, bool]]:
    """Each with whether it tells users apart."""
    return {
        FIFO: (Scheduling(hold_after_s=math.inf, head_blocks=True), False),
        SKIP: (Scheduling(hold_after_s=math.inf), False),
        HOLDS: (Scheduling(hold_after_s=hold_after_s), True),
    }


class Replay:
    def __init__(self, offers: Sequence[Capabilities], policy: Scheduling, *, by_user: bool = True) -> None:
        self.now = 0.0
        self.events = 0
        self.watch: Callable[[Fleet, float], None] | None = None
        """Called after every pass."""
        numbers = count(1)
        self.fleet = Fleet(lambda: f"a{next(numbers)}")
        self.fleet.policy = policy
        self._by_user = by_user
        self._heap: list[tuple[float, int, Event]] = []
        self._order = count()
        self._ran: dict[str, Ran] = {}
        self._jobs: dict[str, TracedJob] = {}
        self._able: dict[Request, int] = {}
        """How many of the machines could run this, were they empty."""
        self._largest = max((offer.gpu_count for offer in offers), default=0)
        for number, offer in enumerate(offers):
            self._join(f"w{number:05d}", offer)
        # Nobody here falls silent, so that nobody needs to beat.
        self.fleet.timers = Timers()

    def _join(self, name: str, offer: Capabilities) -> None:
        slots = Slots(batch_total=100_000)
        self._turn([WorkerRegistered(worker_id=name, session=1, capabilities=offer)])
        self._turn([WorkerBeat(worker_id=name, session=1, slots=slots)])

    def run(self, jobs: Sequence[TracedJob], policy: str = HOLDS) -> Replayed:
        never = 0
        for number, job in enumerate(jobs):
            new = self._new_job(f"j{number}", job)
            if self._could_run(new):
                self._at(job.submit, JobsSubmitted(ref=1, jobs=[new]))
                self._jobs[new.id] = job
            else:
                never += 1
        while self._heap:
            self._next()
        done = [self._ran[job_id] for job_id in self._jobs if job_id in self._ran]
        return Replayed(policy, done, never, self.events, self.fleet.holds.given)

    def _new_job(self, job_id: str, job: TracedJob) -> NewJob:
        gpus, nodes = job.gpus, job.nodes
        if nodes == 1 and gpus > self._largest > 0:
            nodes, gpus = math.ceil(gpus / self._largest), self._largest
        spec = JobSpec(
            id=job_id,
            command=["true"],
            gpu_count=gpus,
            min_cpu_cores=job.cpus,
            min_memory_gb=job.memory,
            node_count=nodes,
            priority=job.priority,
            max_runtime_hours=job.limit / 3600,
        )
        return NewJob(
            id=job_id,
            user=(job.user or "someone") if self._by_user else "everybody",
            name=job.name,
            spec=b"",
            request=spec.request(),
            terms=spec.terms(),
            size=spec.size(),
        )

    def _could_run(self, new: NewJob) -> bool:
        if new.request not in self._able:
            workers = self.fleet.workers.values()
            self._able[new.request] = sum(not never_fits(new.request, worker) for worker in workers)
        return self._able[new.request] >= new.request.nodes

    def _at(self, time: float, event: Event) -> None:
        heapq.heappush(self._heap, (time, next(self._order), event))

    def _next(self) -> None:
        """All that happens at the next instant, or a look at those who wait."""
        due = self._heap[0][0]
        look_at = self.fleet.holds.look_at
        if self.fleet.holds.watched and look_at < due:
            self.now = max(self.now, look_at)
            self._turn([])
            return
        self.now = due
        batch = []
        while self._heap and self._heap[0][0] <= due:
            batch.append(heapq.heappop(self._heap)[2])
        self._turn(batch)

    def _turn(self, batch: list[Event]) -> None:
        fleet = self.fleet
        for event in [*batch, TimePassed()]:
            self.events += 1
            step(fleet, event, self.now)
        full = True
        while full:
            assigned = [one for one in settle(fleet, self.now) if isinstance(one, AssignTask)]
            full = len(assigned) >= PLACEMENTS_PER_PASS
            self._start(assigned)
            if self.watch is not None:
                self.watch(fleet, self.now)
        fleet.touched = Touched()
        forget_ended(fleet)

    def _start(self, assigned: list[AssignTask]) -> None:
        """A machine accepts what it is given at once, and runs it for as long as the trace says."""
        for one in assigned:
            job = self._jobs[one.job_id]
            where, what, attempt = one.worker_id, one.task_id, one.attempt
            accepted = TaskAccepted(worker_id=where, session=1, task_id=what, attempt=attempt)
            step(self.fleet, accepted, self.now)
            self.events += 1
            end = TaskEnded(worker_id=where, session=1, task_id=what, attempt=attempt, state="succeeded", exit_code=0)
            self._at(self.now + job.duration, end)
            self._ran[one.job_id] = Ran(job, self.now, self.now + job.duration)


def compared(
    jobs: Sequence[TracedJob], offers: Sequence[Capabilities], hold_after_s: float = HOLD_AFTER_S
) -> list[Replayed]:
    """The same trace under each policy."""
    return [
        Replay(offers, policy, by_user=by_user).run(jobs, name)
        for name, (policy, by_user) in policies(hold_after_s).items()
    ]


class Figures(msgspec.Struct, frozen=True):
    """Of waits or of times to completion, in seconds."""

    mean: float
    p50: float
    p95: float
    most: float


class Group(msgspec.Struct, frozen=True):
    name: str
    jobs: int
    wait: Figures
    completion: Figures


class Report(msgspec.Struct, frozen=True):
    policy: str
    jobs: int
    never: int
    holds: int
    makespan_s: float
    """From the first submission to the last end."""
    used: float
    """Of all GPU-seconds in that time, the part that jobs ran on."""
    all: Group
    by_size: list[Group]
    by_user: list[Group]


def report(replayed: Replayed, gpus: int) -> Report:
    ran = replayed.ran
    begun = min((one.job.submit for one in ran), default=0.0)
    makespan = max((one.ended for one in ran), default=0.0) - begun
    work = sum(one.job.gpus * one.job.nodes * one.job.duration for one in ran)
    return Report(
        policy=replayed.policy,
        jobs=len(ran),
        never=replayed.never,
        holds=replayed.holds,
        makespan_s=makespan,
        used=work / (gpus * makespan) if gpus and makespan else 0.0,
        all=_group("all", ran),
        by_size=_groups(ran, lambda one: (one.job.gpus * one.job.nodes, f"{one.job.gpus * one.job.nodes} GPU")),
        by_user=_groups(ran, lambda one: (0, one.job.user)),
    )


def _groups(ran: list[Ran], key: Callable[[Ran], tuple[int, str]]) -> list[Group]:
    return [_group(name, list(some)) for (_, name), some in groupby(sorted(ran, key=key), key)]


def _group(name: str, ran: list[Ran]) -> Group:
    return Group(name, len(ran), _figures([one.wait_s for one in ran]), _figures([one.took_s for one in ran]))


def _figures(values: list[float]) -> Figures:
    values = sorted(values)
    if not values:
        return Figures(0.0, 0.0, 0.0, 0.0)
    return Figures(sum(values) / len(values), _part(values, 0.5), _part(values, 0.95), values[-1])


def _part(values: list[float], part: float) -> float:
    """The least of them that so many are no more than."""
    return values[max(0, math.ceil(part * len(values)) - 1)]
