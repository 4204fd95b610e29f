"""Seeded runs of the whole world. A failure prints the seed that repeats it: `python -m ostler.sim.campaign --seed
N`."""

import argparse
import random
import sys
import time
from functools import partial

import msgspec

from ostler.core.check import InvariantBroken
from ostler.core.match import never_offered
from ostler.domain.errors import IllegalMove
from ostler.domain.job import JobSpec
from ostler.domain.states import TERMINAL
from ostler.domain.worker import Capabilities
from ostler.sim.faults import drawn
from ostler.sim.world import Violation, World

CALM_S = 8 * 3600.0


def random_machines(rng: random.Random, count: int) -> list[tuple[Capabilities, int]]:
    def machine() -> tuple[Capabilities, int]:
        cores = rng.choice((2, 4, 16))
        backend = rng.choice(("cpu", "nvidia", "nvidia", "metal"))
        gpus = {"cpu": 0, "nvidia": rng.choice((1, 2, 8)), "metal": 1}[backend]
        offer = Capabilities(
            gpu_backend=backend,
            gpu_count=gpus,
            gpu_type=rng.choice(("A100", "L4")) if backend == "nvidia" else "",
            vram_gb=24.0 * gpus,
            cpu_count=cores,
            memory_gb=rng.choice((8.0, 64.0)),
        )
        return offer, cores

    return [machine() for _ in range(count)]


def random_job(rng: random.Random, number: int) -> tuple[JobSpec, float]:
    kind = rng.random()
    gang = rng.random() < 0.15
    spec = JobSpec(
        id=f"j{number}",
        command=["true"],
        user_id=rng.choice(("ann", "bob", "eve")),
        job_tier=rng.choice(("data_processing", "evaluation", "training")),
        priority=rng.choice((0, 0, 0, 5)),
        gpu_count=rng.choice((0, 1, 2)) if kind < 0.6 else 0,
        min_vram_gb=rng.choice((0.0, 6.0)) if kind > 0.8 else 0.0,
        min_cpu_cores=rng.choice((0.0, 1.0, 2.0)),
        min_memory_gb=rng.choice((0.0, 1.0, 4.0)),
        array=0 if gang else rng.choice((0, 0, 0, 0, 5)),
        node_count=rng.choice((2, 3)) if gang else 1,
        preemptible=rng.random() < 0.3,
        on_lost_contact=rng.choice(("continue", "continue", "stop")),
        depends_on=[f"j{rng.randrange(number)}"] if number and rng.random() < 0.1 else [],
        max_retries=rng.choice((0, 0, 2)),
        max_attempts=rng.choice((0, 3, 3)),
        max_runtime_hours=rng.choice((0.0, 0.0, 0.25)),
        scheduling_timeout_seconds=rng.choice((0.0, 0.0, 30.0, 3600.0)),
    )
    return spec, rng.choice((0.1, 3.0, 30.0, 700.0, 1500.0))


def short_job(rng: random.Random, number: int) -> tuple[JobSpec, float]:
    """An array of tasks that are over in a moment: such as are sent ahead. Few kinds, so that they become known."""
    cores = rng.choice((0.0, 0.0, 1.0, 2.0))
    spec = JobSpec(
        id=f"s{number}",
        command=["short", str(cores)],
        user_id=rng.choice(("ann", "ann", "ann", "bob")),
        priority=rng.choice((0, 0, 0, 0, 1)),
        min_cpu_cores=cores,
        array=rng.choice((10, 40, 120)),
        max_retries=rng.choice((0, 2)),
        max_attempts=10,
        max_runtime_hours=rng.choice((0.0, 0.0, 0.25)),
    )
    return spec, 0.02 * (1 + cores)


def random_pullers(rng: random.Random, count: int) -> list[Capabilities]:
    def puller() -> Capabilities:
        gpus = rng.choice((0, 0, 1, 2))
        return Capabilities(
            gpu_backend="nvidia" if gpus else "cpu",
            gpu_count=gpus,
            vram_gb=24.0 * gpus,
            cpu_count=rng.choice((2, 8)),
            memory_gb=rng.choice((8.0, 32.0)),
        )

    return [puller() for _ in range(count)]


def training_job(rng: random.Random, number: int) -> tuple[JobSpec, float]:
    """As a manifest makes them: never twice at once, wherever there is a machine for it."""
    prefers = rng.random() < 0.3
    spec = JobSpec(
        id=f"j{number}",
        command=["train"],
        user_id="manifest",
        job_tier="training",
        on_lost_contact="stop",
        priority=rng.choice((0, 0, 5)),
        gpu_count=rng.choice((0, 0, 1)) if not prefers else 0,
        min_cpu_cores=rng.choice((1.0, 2.0)),
        min_memory_gb=rng.choice((0.0, 4.0)),
        allowed_hosts=rng.choice(([], [], ["p000", "p001"])),
        prefer_cuda=prefers,
        prefer_cuda_grace_seconds=rng.choice((30.0, 300.0)),
        preemptible=rng.random() < 0.2,
        max_retries=rng.choice((0, 2)),
        max_attempts=rng.choice((0, 3, 10)),
    )
    return spec, rng.choice((3.0, 100.0, 650.0, 1500.0))


def run_seed(
    seed: int,
    *,
    machines: int = 6,
    jobs: int = 60,
    pullers: int = 0,
    ahead: int = 0,
    horizon_s: float = 3000.0,
    check_every: int = 1,
) -> World:
    """One world from start to calm end; raises on the first violation. With pullers, half of the jobs are for them;
    with machines that take so many tasks ahead, there are arrays of short ones too."""
    rng = random.Random(f"workload {seed}")
    world = World(seed, random_machines(rng, machines), drawn(rng), random_pullers(rng, pullers), ahead)
    world.check_every = check_every
    for number in range(jobs):
        kind = training_job if pullers and rng.random() < 0.5 else random_job
        spec, duration = kind(rng, number)
        world.at(rng.uniform(0, horizon_s * 0.7), partial(world.submit, spec, duration))
        if rng.random() < 0.2:
            world.at(rng.uniform(0, horizon_s), partial(cancel_known, world, spec.id))
        if rng.random() < 0.15:
            world.at(rng.uniform(0, horizon_s), partial(world.requeue, spec.id))
    shorts = random.Random(f"short {seed}")
    for number in range(jobs if ahead else 0):
        spec, duration = short_job(shorts, number)
        at = shorts.uniform(0, horizon_s * 0.7)
        world.at(at, partial(world.submit, spec, duration))
        if shorts.random() < 0.2:
            world.at(at + shorts.uniform(0, 2), partial(cancel_known, world, spec.id))
        if shorts.random() < 0.1:
            world.at(at + shorts.uniform(0, 20), partial(world.requeue, spec.id))
    world.run(horizon_s)
    world.calm()
    left = [""]
    while left and world.now < horizon_s + CALM_S:
        world.run(world.now + 600.0)
        left = [line for line in world.unfinished() if can_run_somewhere(world, line.partition(":")[0])]
    if left:
        raise Violation(f"still not ended after {CALM_S / 3600:.0f} calm hours: {left[:5]}")
    mistakes = world.account.mistakes(world.ledger)
    if mistakes:
        raise Violation(f"the ledger is not what happened: {mistakes[:5]}")
    return world


def cancel_known(world: World, job_id: str) -> None:
    if job_id in world.acknowledged:
        world.cancel(job_id)


def can_run_somewhere(world: World, job_id: str) -> bool:
    """It fits the fleet, and so does what it waits for."""
    record = world.ledger.jobs([job_id])[job_id]
    if record.state in TERMINAL:
        return True
    if not all(can_run_somewhere(world, name) for name in record.blocked_on):
        return False
    request = record.request
    offers = [(machine.name, machine.capabilities.offer()) for machine in world.machines]
    offers += [(one.name, msgspec.structs.replace(one.capabilities.offer(), claims=True)) for one in world.pullers]
    able = sum(not never_offered(request, name, offer) for name, offer in offers)
    return able >= request.nodes


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the simulator over many seeds.")
    parser.add_argument("--seed", type=int, help="one seed only")
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--machines", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--pullers", type=int, default=3, help="machines that only claim")
    parser.add_argument("--ahead", type=int, default=8, help="how many tasks some machines take ahead")
    options = parser.parse_args(argv)
    seeds = [options.seed] if options.seed is not None else range(options.start, options.start + options.seeds)
    events, begun = 0, time.monotonic()
    for seed in seeds:
        try:
            size = {"machines": options.machines, "jobs": options.jobs, "pullers": options.pullers}
            size |= {"ahead": options.ahead}
            events += run_seed(seed, **size).events
        except (Violation, InvariantBroken, IllegalMove, AssertionError) as error:
            print(f"seed {seed}: {type(error).__name__}: {error}")
            flags = " ".join(f"--{name} {value}" for name, value in size.items())
            print(f"repeat it with: python -m ostler.sim.campaign --seed {seed} {flags}")
            if options.seed is not None:
                raise
            return 1
    spent = time.monotonic() - begun
    print(f"{len(seeds)} seeds, {events} events, {events / spent:.0f} events/s, no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
