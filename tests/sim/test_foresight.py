"""Forecasts against what then happens."""

import random
from functools import partial

import msgspec
import pytest

from ostler.core.fleet import Fleet, Job, Task
from ostler.core.foresight.forecast import Ahead
from ostler.domain.scheduling import Scheduling
from ostler.domain.worker import Capabilities
from ostler.hub.apart import told
from ostler.sim.calibration import Count, calibrate
from ostler.sim.jobs import TracedJob
from ostler.sim.replay import Replay


def trace(seed: int) -> list[TracedJob]:
    rng = random.Random(seed)
    return [
        TracedJob(
            submit=rng.uniform(0, 300),
            duration=rng.uniform(10, 2000),
            gpus=rng.choice((0, 1, 2, 4)),
            user=rng.choice(("ann", "bob")),
            cpus=1,
            nodes=rng.choice((1, 1, 1, 2)),
            priority=rng.choice((0, 0, 1)),
            name="x",
        )
        for _ in range(60)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_with_the_run_times_that_come_true_a_forecast_is_what_happens(seed: int) -> None:
    jobs = trace(seed)
    offers = [
        Capabilities(gpu_backend="nvidia", gpu_count=gpus, vram_gb=24 * gpus, cpu_count=8, memory_gb=64)
        for gpus in (4, 4, 2)
    ]
    policy = Scheduling(hold_after_s=float("inf"))
    replay, foreseen = Replay(offers, policy), dict[str, float]()

    def look(fleet: Fleet, now: float) -> None:
        if now > 400 and not foreseen:
            foreseen.update(msgspec.msgpack.decode(told(partial(_starts, fleet, now, jobs))))

    replay.watch = look
    done = replay.run(jobs)
    assert done.never == 0 and len(foreseen) > 10
    truth = {f"j{number}": ran.started for number, ran in enumerate(done.ran)}
    assert foreseen == pytest.approx({name: truth[name] for name in foreseen})


def _starts(fleet: Fleet, now: float, jobs: list[TracedJob]) -> bytes:
    def as_it_will_be(fleet: Fleet, job: Job, task: Task, ran_s: float) -> float:
        return jobs[int(job.id.removeprefix("j"))].duration

    ahead = Ahead(fleet, now, as_it_will_be)
    while ahead.advance():
        pass
    return msgspec.msgpack.encode(ahead.starts)


@pytest.mark.parametrize(("known_runs", "low", "high"), [(20, 0.65, 0.97), (3, 0.6, 0.97), (0, 0.6, 1.0)])
def test_four_of_five_starts_and_ends_lie_inside_their_bands(known_runs: int, low: float, high: float) -> None:
    count = Count()
    for seed in range(6):
        count = count.add(calibrate(seed, told, known_runs=known_runs, waiting=25))
    assert count.starts > 100
    assert low <= count.of_starts <= high
    assert low <= count.of_ends <= high
