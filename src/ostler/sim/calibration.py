"""How far forecasts can be trusted: fleets whose jobs take what chance gives them, foreseen in the middle of their work
and then let go on. The truth should lie inside the band in four of five cases."""

import math
import random
from collections.abc import Callable
from functools import partial

import msgspec

from ostler.core.events import NewJob
from ostler.core.fleet import Fleet
from ostler.core.foresight.forecast import Ahead, drawn, likely, notice_running
from ostler.core.foresight.outlook import RUNS, Outlook, Span
from ostler.core.learning.kinds import kind_of
from ostler.domain import states
from ostler.domain.job import JobSpec
from ostler.domain.scheduling import Scheduling
from ostler.domain.worker import Capabilities
from ostler.sim.jobs import TracedJob
from ostler.sim.replay import Ran, Replay

Told = Callable[[Callable[[], bytes]], bytes]
"""What something that is done to a copy comes to."""
Seen = tuple[float, bool, dict[str, float], dict[str, float]]
_seen = msgspec.msgpack.Decoder(Seen)


class Kind(msgspec.Struct):
    """Jobs of one name: half of them take longer than the middle."""

    name: str
    middle_s: float
    spread: float
    gpus: int

    def duration(self, rng: random.Random) -> float:
        return max(1.0, self.middle_s * math.exp(self.spread * rng.gauss(0.0, 1.0)))


class Count(msgspec.Struct):
    """Of all that was foreseen, how much was so; and how wide the bands were, as parts of the waits."""

    starts: int = 0
    starts_inside: int = 0
    ends: int = 0
    ends_inside: int = 0
    early: int = 0
    """Starts before the band; the others that missed it came after it."""
    widths: list[float] = []

    def add(self, other: "Count") -> "Count":
        pairs = {name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__}
        return Count(**pairs)

    @property
    def of_starts(self) -> float:
        return self.starts_inside / max(1, self.starts)

    @property
    def of_ends(self) -> float:
        return self.ends_inside / max(1, self.ends)


class Watched(Replay):
    """A replay that is looked ahead of once, at its first pass after that time."""

    def __init__(self, offers: list[Capabilities], at: float, told: Told, runs: int) -> None:
        super().__init__(offers, Scheduling())
        self.look_at, self._told, self._runs = at, told, runs
        self.looked_at = math.inf
        self.outlook = Outlook()
        self.pending: list[str] = []
        self.watch = self._look

    def _new_job(self, job_id: str, job: TracedJob) -> NewJob:
        new = super()._new_job(job_id, job)
        new.kind = kind_of(JobSpec(name=job.name, command=["true"]))
        return new

    def ran_of(self, job_id: str) -> Ran | None:
        return self._ran.get(job_id)

    def _look(self, fleet: Fleet, now: float) -> None:
        if now < self.look_at or self.looked_at < math.inf:
            return
        self.looked_at = now
        self.outlook = foreseen(fleet, now, self._told, self._runs)
        self.pending = [job.id for job in fleet.jobs.values() if job.state == states.PENDING]


def foreseen(fleet: Fleet, now: float, told: Told, runs: int = RUNS) -> Outlook:
    """So many runs ahead, and the likely one."""
    outlook = Outlook()
    for number in range(runs + 1):
        outlook.heard(number, *_seen.decode(told(partial(_run, fleet, now, number))))
    return outlook


def _run(fleet: Fleet, now: float, number: int) -> bytes:
    notice_running(fleet, now)
    ahead = Ahead(fleet, now, likely if number == 0 else drawn(number))
    while ahead.advance():
        pass
    starts = {name: at - now for name, at in ahead.starts.items()}
    ends = {name: at - now for name, at in ahead.ends.items() if at < math.inf}
    return msgspec.msgpack.encode((ahead.now - now, True, starts, ends))


def calibrate(
    seed: int, told: Told, *, known_runs: int = 20, waiting: int = 40, later: int = 0, runs: int = RUNS
) -> Count:
    """One fleet: every kind has been seen so often, so many jobs wait when it is looked ahead, and so many come
    later, of which nobody knows then."""
    rng = random.Random(f"calibration {seed}")
    offers = [_machine(rng) for _ in range(rng.randint(2, 6))]
    kinds = [_kind(rng, number) for number in range(rng.randint(2, 5))]
    known = [_job(rng, kind, 0.0) for kind in kinds for _ in range(known_runs)]
    begin = sum(job.duration for job in known) + 1000.0
    number = waiting + 8 * len(offers)
    queued = [_job(rng, rng.choice(kinds), begin + rng.uniform(0, 60)) for _ in range(number)]
    coming = [_job(rng, rng.choice(kinds), begin + 600.0 + rng.uniform(0, 7200)) for _ in range(later)]
    replay = Watched(offers, begin + rng.uniform(60, 600), told, runs)
    replay.run([*known, *queued, *coming])
    return _counted(replay)


def _machine(rng: random.Random) -> Capabilities:
    gpus = rng.choice((1, 2, 4))
    return Capabilities(
        gpu_backend="nvidia", gpu_count=gpus, vram_gb=24.0 * gpus, cpu_count=2 * gpus, memory_gb=64, gpu_type="L4"
    )


def _kind(rng: random.Random, number: int) -> Kind:
    middle = 10 ** rng.uniform(1.7, 3.3)
    return Kind(f"kind {'abcdefgh'[number]}", middle, rng.uniform(0.1, 0.8), rng.choice((0, 1, 1, 2)))


def _job(rng: random.Random, kind: Kind, at: float) -> TracedJob:
    return TracedJob(
        submit=at, duration=kind.duration(rng), gpus=kind.gpus, user=rng.choice(("ann", "bob")), cpus=1, name=kind.name
    )


def _counted(replay: Watched) -> Count:
    count = Count()
    for name in replay.pending:
        ran, expected = replay.ran_of(name), replay.outlook.expected(name)
        if ran is None or expected.start is None or expected.end is None:
            continue
        started, ended = ran.started - replay.looked_at, ran.ended - replay.looked_at
        count.starts += 1
        count.ends += 1
        count.starts_inside += _inside(expected.start, started)
        count.ends_inside += _inside(expected.end, ended)
        count.early += started < expected.start.low_s
        if expected.start.high_s is not None:
            count.widths.append((expected.start.high_s - expected.start.low_s) / max(1.0, started))
    return count


def _inside(span: Span, truth: float) -> bool:
    return span.low_s <= truth and (span.high_s is None or truth <= span.high_s)
