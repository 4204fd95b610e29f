"""A plan from a seed. Each seed takes its own subset of what jobs may be and of what may fail, so that rare
combinations are met; most keep to tiers with short graces, so that little is spent on waiting."""

import random
from collections.abc import Iterator
from functools import partial

import msgspec

from ostler.core.claims import LEASE_S
from ostler.domain.job import STOP_ALONE_GRACE_S, TIER_GRACE_S, JobSpec
from ostler.domain.quota import Quota
from ostler.domain.scheduling import LEAST_CLAIM_LEASE_S
from ostler.domain.worker import Capabilities
from ostler.sim import plan
from ostler.sim.plan import STEADY_S, Deed, Plan, PlannedJob, PlannedMachine, Weather

TIERS = (
    *[("data_processing",)] * 5,
    *[("data_processing", "evaluation")] * 3,
    ("evaluation",),
    ("data_processing", "evaluation", "training"),
)
QUEUES_EVERY, QUEUE = 3, "its turn elsewhere"
"""In so many worlds one has machines whose tasks wait in somebody else's queue."""
LATEST = 1.5
"""Times the longest grace: how late a message may be, and how long somebody is away."""


class Size(msgspec.Struct):
    """What a world is made of where the seed is not to decide that."""

    machines: int | None = None
    jobs: int | None = None
    pullers: int | None = None
    ahead: int | None = None
    horizon_s: float | None = None


class Traits(msgspec.Struct):
    """What the jobs of one world may be."""

    tiers: tuple[str, ...]
    alone: bool
    """Some must never run twice at once."""
    gpus: bool
    gangs: bool
    arrays: bool
    needs: bool
    """Some wait for others."""
    yields: bool
    """Some may be displaced by others."""
    bounded: bool
    """Some have a budget, or must be placed in time."""
    stingy: bool
    """No retries, and one attempt."""
    claims: bool
    ahead: int

    def longest_grace_s(self) -> float:
        graces = [TIER_GRACE_S[tier] for tier in self.tiers]
        graces += [STOP_ALONE_GRACE_S] if self.alone else []
        return max([*graces, *([LEASE_S] if self.claims else [])])


def drawn(seed: int, size: Size | None = None) -> Plan:
    rng = random.Random(f"plan {seed}")
    size = size or Size()
    traits = _traits(rng, size)
    longest = traits.longest_grace_s()
    horizon_s = size.horizon_s or 120.0 + rng.uniform(1.5, 2.5) * longest
    machines = list(_machines(rng, traits, size))
    for machine in machines if seed % QUEUES_EVERY == 1 else ():
        machine.queue = QUEUE if machine.real else ""
    jobs = list(_jobs(rng, traits, size, horizon_s, longest))
    weather, deeds = _trouble(rng, machines, horizon_s, longest)
    deeds += _by_users(rng, machines, jobs, horizon_s)
    return Plan(
        seed=seed,
        horizon_s=horizon_s,
        weather=weather,
        machines=machines,
        jobs=jobs,
        deeds=sorted(deeds, key=lambda deed: deed.at),
        quota=rng.choice((Quota(), Quota(), Quota(running_jobs=3), Quota(running_gpus=6))),
        hold_after_s=rng.choice((0.0, 60.0, 60.0, 200.0, 600.0)),
        claim_lease_s=_claim_lease_s(seed) if traits.claims else 0.0,
        batch=rng.choice((0, 0, 0, 1)),
        failing=rng.choice((0.0, 0.1, 0.1, 0.3)),
    )


def _claim_lease_s(seed: int) -> float:
    """The usual lease, or a short one now and then. Drawn apart, so that the rest of the plan does not depend on it."""
    return random.Random(f"lease {seed}").choice((0.0, 0.0, 0.0, LEAST_CLAIM_LEASE_S))


def _traits(rng: random.Random, size: Size) -> Traits:
    def maybe(chance: float = 0.5) -> bool:
        return rng.random() < chance

    claims, ahead = maybe(0.2), rng.choice((2, 8)) if maybe(0.2) else 0
    return Traits(
        tiers=rng.choice(TIERS),
        alone=maybe(0.4),
        gpus=maybe(0.7),
        gangs=maybe(0.35),
        arrays=maybe(0.4),
        needs=maybe(0.3),
        yields=maybe(0.5),
        bounded=maybe(0.3),
        stingy=maybe(0.2),
        claims=claims if size.pullers is None else bool(size.pullers),
        ahead=ahead if size.ahead is None else size.ahead,
    )


# Machines


def _machines(rng: random.Random, traits: Traits, size: Size) -> Iterator[PlannedMachine]:
    count = rng.randint(1, 2) if traits.claims else rng.randint(2, 4)
    for number in range(count if size.machines is None else size.machines):
        offer, slots = random_offer(rng, traits.gpus)
        ahead = traits.ahead if number % 3 != 2 else 0
        yield PlannedMachine(
            name=f"w{number}",
            offer=offer,
            slots=slots,
            ahead=ahead,
            real=number % 2 == 1,
            plain=number % 4 == 2 and not (ahead or traits.gpus),
        )
    pullers = rng.randint(1, 4) if size.pullers is None else size.pullers
    for number in range(pullers if traits.claims else 0):
        offer, _ = random_offer(rng, traits.gpus and rng.random() < 0.5)
        beat_s = rng.choice((30.0, LEASE_S / 2))
        yield PlannedMachine(name=f"p{number}", offer=offer, claims=True, beat_s=beat_s, stubborn=rng.random() < 0.3)


def random_offer(rng: random.Random, gpus: bool) -> tuple[Capabilities, int]:
    cores = rng.choice((1, 2, 4))
    backend = rng.choice(("cpu", "nvidia", "nvidia", "metal")) if gpus else "cpu"
    count = {"cpu": 0, "nvidia": rng.choice((1, 2, 4)), "metal": 1}[backend]
    offer = Capabilities(
        gpu_backend=backend,
        gpu_count=count,
        gpu_type=rng.choice(("A100", "L4")) if backend == "nvidia" else "",
        vram_gb=24.0 * count,
        cpu_count=cores,
        memory_gb=rng.choice((8.0, 8.0, 64.0)),
    )
    return offer, cores


# Jobs


def _jobs(rng: random.Random, traits: Traits, size: Size, horizon_s: float, longest: float) -> Iterator[PlannedJob]:
    for number in range(rng.randint(6, 12) if size.jobs is None else size.jobs):
        spec = _spec(rng, traits, number)
        at = rng.uniform(0, horizon_s * 0.7)
        if traits.ahead and (number == 0 or rng.random() < 0.6):
            yield PlannedJob(at if number else 1.0, _short(rng, number), 0.02)
        elif rng.random() < 0.5:
            yield PlannedJob(at, spec, longest * rng.uniform(1.02, 1.6))
        else:
            yield PlannedJob(at, spec, rng.choice((0.05, 2.0, 9.0, 0.5 * longest)))


def _spec(rng: random.Random, traits: Traits, number: int) -> JobSpec:
    """Few kinds, so that something is known of how long they take."""
    is_gang = traits.gangs and rng.random() < 0.4
    shares = traits.gpus and rng.random() < 0.15
    spec = JobSpec(
        id=f"j{number}",
        command=[rng.choice(("make", "fit"))],
        user_id=rng.choice(("ann", "bob", "eve")),
        job_tier=rng.choice(traits.tiers),
        priority=rng.choice((0, 0, 5)) if traits.yields else rng.choice((0, 0, 0, 1)),
        gpu_count=rng.choice((0, 1, 2)) if traits.gpus and not shares else 0,
        min_vram_gb=rng.choice((6.0, 16.0)) if shares else 0.0,
        min_cpu_cores=rng.choice((0.0, 1.0, 2.0)),
        min_memory_gb=rng.choice((0.0, 1.0, 4.0)),
        array=rng.choice((2, 4)) if traits.arrays and not is_gang and rng.random() < 0.4 else 0,
        node_count=rng.choice((2, 2, 3)) if is_gang else 1,
        preemptible=traits.yields and rng.random() < 0.6,
        on_lost_contact="stop" if traits.alone and rng.random() < 0.6 else "continue",
        depends_on=[f"j{rng.randrange(number)}"] if number and traits.needs and rng.random() < 0.4 else [],
        max_retries=0 if traits.stingy else rng.choice((0, 2)),
        max_attempts=1 if traits.stingy else rng.choice((0, 3, 10)),
    )
    if traits.bounded:
        spec.max_runtime_hours = rng.choice((0.0, 0.01, 0.05))
        spec.scheduling_timeout_seconds = rng.choice((0.0, 0.0, 30.0, 300.0))
    if traits.claims:
        spec.prefer_cuda = not spec.gpu_count and not shares and rng.random() < 0.2
        spec.prefer_cuda_grace_seconds = rng.choice((30.0, 300.0))
        spec.allowed_hosts = rng.choice(([], [], [], ["p0", "w0"])) if not is_gang else []
    return spec


def _short(rng: random.Random, number: int) -> JobSpec:
    """An array of tasks that are over in a moment: such as are sent ahead."""
    return JobSpec(
        id=f"j{number}",
        command=["short"],
        user_id=rng.choice(("ann", "ann", "bob")),
        priority=rng.choice((0, 0, 0, 1)),
        min_cpu_cores=rng.choice((0.0, 1.0)),
        array=rng.choice((10, 20, 40)),
        max_retries=rng.choice((0, 2)),
        max_attempts=10,
        preemptible=rng.random() < 0.1,
    )


# What is done to it


def _by_users(
    rng: random.Random, machines: list[PlannedMachine], jobs: list[PlannedJob], horizon_s: float
) -> Iterator[Deed]:
    for job in jobs:
        soon = rng.choice((0.5, 5.0, horizon_s))  # also before anybody has accepted it
        when = partial(rng.uniform, job.at, min(job.at + soon, horizon_s))
        if rng.random() < 0.15:
            yield Deed(when(), plan.CANCEL, job.spec.id)
        if rng.random() < 0.15:
            yield Deed(when(), plan.REQUEUE, job.spec.id)
        if job.spec.array and rng.random() < 0.4:
            what = rng.choice((plan.CANCEL_TASK, plan.REQUEUE_TASK))
            yield Deed(when(), what, job.spec.id, detail=rng.randrange(job.spec.array))
    for machine in machines:
        if rng.random() < 0.15:
            at = rng.uniform(0, horizon_s)
            yield Deed(at, plan.DRAIN, machine.name)
            yield Deed(rng.uniform(at, horizon_s), plan.RESUME, machine.name)
        if rng.random() < 0.2:
            yield Deed(rng.uniform(0, horizon_s), plan.ASK, machine.name)


def _trouble(
    rng: random.Random, machines: list[PlannedMachine], horizon_s: float, longest: float
) -> tuple[Weather, list[Deed]]:
    """In few worlds nothing fails, or only the hub is held up, or everybody is late and nobody too late: there more is
    demanded."""
    kind = rng.random()
    if kind < 0.05:
        return Weather(in_order=rng.random() < 0.5), []
    if kind < 0.1:
        return Weather(in_order=True), [Deed(rng.uniform(0, horizon_s), plan.HUB_STALL, "", rng.uniform(60, 90))]
    if kind < 0.2:
        return Weather(slow=0.3, slow_s=STEADY_S, in_order=True), []
    return _weather(rng, longest), list(_faults(rng, machines, horizon_s, longest))


def _weather(rng: random.Random, longest: float) -> Weather:
    def maybe(value: float) -> float:
        return value if rng.random() < 0.5 else 0.0

    return Weather(
        lose=maybe(rng.choice((0.01, 0.1, 0.3))),
        duplicate=maybe(rng.choice((0.05, 0.3))),
        slow=maybe(rng.choice((0.02, 0.1, 0.3))),
        slow_s=rng.choice((2.0, 20.0, 45.0, LATEST * longest)),
        in_order=rng.random() < 0.6,
    )


def _faults(rng: random.Random, machines: list[PlannedMachine], horizon_s: float, longest: float) -> Iterator[Deed]:
    """A subset of the kinds; of each, a few."""

    def away() -> float:
        return rng.choice((rng.uniform(0.1, 5), rng.uniform(5, 60), rng.uniform(0.5, LATEST) * longest))

    def times(most: int) -> list[float]:
        return [rng.uniform(0, horizon_s) for _ in range(rng.randint(1, most))]

    kinds = [kind for kind in plan.FAULTS if rng.random() < 0.3]
    if plan.HUB_CRASH in kinds:
        yield from (Deed(at, plan.HUB_CRASH, "", away(), rng.randrange(4)) for at in times(4))
    if plan.HUB_STALL in kinds:
        yield from (Deed(at, plan.HUB_STALL, "", rng.choice((5.0, 25.0, 90.0))) for at in times(2))
    if plan.WALL_JUMP in kinds:
        yield from (Deed(at, plan.WALL_JUMP, "", rng.choice((-3600.0, -40.0, 40.0, 3600.0))) for at in times(2))
    if plan.BURNS in kinds and len(machines) > 1:
        yield Deed(rng.uniform(0, horizon_s), plan.BURNS, rng.choice(machines).name, 0.0, rng.randrange(2))
    for machine in machines:
        for kind in kinds:
            if kind in PER_MACHINE and rng.random() < 0.7:
                yield from (Deed(at, kind, machine.name, away()) for at in times(3))


PER_MACHINE = (
    plan.CUT,
    plan.CUT_UP,
    plan.CUT_DOWN,
    plan.WORKER_KILLED,
    plan.WORKER_STALL,
    plan.POWER_CUT,
)
