"""Nobody is starved, and nobody waits for the flood of another: shown on the real core with a virtual clock."""

import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest

from ostler.core.check import InvariantBroken, check
from ostler.core.fleet import Fleet
from ostler.core.queueing import backfill
from ostler.core.queueing.backfill import LOOK_MOST_S, OLD_AFTER
from ostler.core.queueing.holds import AHEAD, Holds, Way
from ostler.core.room import pick_devices
from ostler.domain.scheduling import Scheduling
from ostler.domain.worker import Capabilities
from ostler.sim.jobs import TracedJob
from ostler.sim.replay import FIFO, HOLDS, SKIP, Ran, Replay, machines, policies

HOLD_AFTER_S = 300.0
LONGEST_S = 600.0
"""The longest run-time limit of any job here."""


def small_jobs(rng: random.Random, gpus: int, until: float, user: Callable[[int], str]) -> list[TracedJob]:
    """Jobs of one GPU that ask for a little more than there is, without end."""
    found: list[TracedJob] = []
    now = 0.0
    while now < until:
        duration = rng.uniform(100.0, LONGEST_S)
        limit = min(LONGEST_S, duration * rng.uniform(1.0, 3.0))
        found.append(TracedJob(now, duration, 1, user(len(found)), limit=limit))
        now += rng.expovariate(1.2 * gpus / ((100.0 + LONGEST_S) / 2))
    return found


def ran(
    offers: Sequence[Capabilities], jobs: list[TracedJob], policy: str = HOLDS, *, checked: bool = False
) -> list[Ran]:
    how, by_user = policies(HOLD_AFTER_S)[policy]
    replay = Replay(offers, how, by_user=by_user)
    if checked:
        replay.watch = lambda fleet, now: check(fleet, now)
    return replay.run(sorted(jobs, key=lambda job: job.submit)).ran


def waits(done: list[Ran], user: str) -> list[float]:
    return [one.wait_s for one in done if one.job.user == user]


BOUND_S = HOLD_AFTER_S + LOOK_MOST_S + LONGEST_S
"""Of one that is next in order: until it gets its hold, and then until what ran there when it did has ended."""


@pytest.mark.parametrize("nodes", [1, 3])
def test_what_needs_whole_machines_starts_within_its_bound_in_a_saturating_stream_of_small_jobs(nodes: int) -> None:
    rng = random.Random(f"saturating {nodes}")
    offers = machines(nodes + 1, 4)
    stream = small_jobs(rng, 4 * len(offers), 8000.0, lambda number: f"user{number % 3}")
    big = [TracedJob(at, 300.0, 4, "big", limit=LONGEST_S, nodes=nodes) for at in (1000.0, 4000.0)]
    with_holds, without = (ran(offers, stream + big, policy) for policy in (HOLDS, SKIP))
    assert max(waits(with_holds, "big")) <= BOUND_S
    assert min(waits(without, "big")) > 2 * BOUND_S, "or the stream did not saturate the machines"


def test_one_that_is_never_next_in_order_starts_within_its_bound_too() -> None:
    """Every small job is another newcomer's, who has used nothing yet; the big one's user has."""
    rng = random.Random("newcomers")
    offers = machines(2, 4)
    stream = small_jobs(rng, 8, 16_000.0, "n{:05d}".format)
    mine = [TracedJob(0.0, 300.0, 1, "user", limit=LONGEST_S), TracedJob(400.0, 300.0, 4, "user", limit=LONGEST_S)]
    older = sum(job.submit <= 400.0 for job in stream)
    bound = OLD_AFTER * HOLD_AFTER_S + (older + 1) * (HOLD_AFTER_S + LOOK_MOST_S + LONGEST_S)
    with_holds, without = (ran(offers, stream + mine, policy) for policy in (HOLDS, SKIP))
    assert max(waits(with_holds, "user")) <= min(bound, OLD_AFTER * HOLD_AFTER_S + 2 * BOUND_S)
    assert max(waits(without, "user")) > OLD_AFTER * HOLD_AFTER_S + 2 * BOUND_S


def test_the_flood_of_one_user_costs_another_next_to_nothing() -> None:
    rng = random.Random("flood")
    offers = machines(2, 4)
    flood = [TracedJob(0.0, rng.uniform(200.0, 400.0), 1, "flood", limit=LONGEST_S) for _ in range(800)]
    quiet = [TracedJob(at, 200.0, 1, "quiet", limit=LONGEST_S) for at in range(1000, 20_000, 1000)]
    until_a_gpu_is_free_s = 400.0 / 8
    fair, alone, fifo = ran(offers, flood + quiet), ran(offers, quiet), ran(offers, flood + quiet, FIFO)
    assert max(waits(alone, "quiet")) == 0.0
    found = waits(fair, "quiet")
    assert sum(found) / len(found) <= 2 * until_a_gpu_is_free_s
    assert min(waits(fifo, "quiet")) > 10 * sum(found) / len(found)


def test_a_big_job_of_a_quiet_user_is_not_held_up_by_a_flood_of_big_ones() -> None:
    offers = machines(2, 4)
    flood = [TracedJob(0.0, 300.0, 4, "flood", limit=LONGEST_S) for _ in range(100)]
    quiet = [TracedJob(3050.0, 300.0, 4, "quiet", limit=LONGEST_S)]
    assert max(waits(ran(offers, flood + quiet), "quiet")) <= 2 * 300.0
    assert max(waits(ran(offers, flood + quiet, FIFO), "quiet")) > 5000.0


class Starved(AssertionError):
    pass


def random_trace(seed: int) -> tuple[list[Capabilities], list[TracedJob]]:
    """Few machines of different sizes, some jobs of all sizes, gangs among them, and a stream of small ones."""
    rng = random.Random(f"holds {seed}")
    offers = [machines(1, rng.choice((2, 4)))[0] for _ in range(rng.choice((2, 3)))]
    stream = small_jobs(rng, sum(offer.gpu_count for offer in offers), STREAM_S, lambda _: rng.choice(("ann", "bob")))
    largest = max(offer.gpu_count for offer in offers)
    some = []
    for _ in range(3):
        duration, nodes = rng.uniform(50.0, 400.0), rng.choice((1, 1, 2))
        gpus = largest if nodes == 1 else 2
        submit, user = rng.uniform(200.0, 600.0), rng.choice(("ann", "eve"))
        limit = rng.choice((0.0, LONGEST_S))
        cpus = rng.choice((0.0, 8.0))
        some.append(TracedJob(submit, duration, gpus, user, limit=limit, nodes=nodes, cpus=cpus))
    return offers, sorted(stream + some, key=lambda job: job.submit)


def witnessed(seed: int) -> None:
    """Every invariant now and then, and no large job waits for longer than all of them could keep one waiting."""
    offers, jobs = random_trace(seed)
    hold_after_s = 30.0
    replay = Replay(offers, Scheduling(hold_after_s=hold_after_s))
    looks = count()

    def look(fleet: Fleet, now: float) -> None:
        if next(looks) % CHECK_EVERY == 0:
            check(fleet, now)

    replay.watch = look
    done = replay.run(jobs).ran
    large = [one for one in done if one.job.gpus > 1]
    bound = OLD_AFTER * hold_after_s + len(large) * (hold_after_s + LOOK_MOST_S + LONGEST_S)
    for one in large:
        if one.wait_s > bound:
            raise Starved(f"seed {seed}: {one.job} waited {one.wait_s:.0f} s, more than {bound:.0f}")


SEEDS = range(4)
STREAM_S = 4500.0
CHECK_EVERY = 8


@pytest.mark.parametrize("seed", SEEDS)
def test_random_jobs_on_random_machines_break_nothing_and_starve_nobody(seed: int) -> None:
    witnessed(seed)


def everybody_passes(patch: pytest.MonkeyPatch) -> None:
    def careless(fleet: Fleet, job: Any, run_s: float, worker_id: str, is_cleared: bool, now: float) -> Way | None:
        grant = pick_devices(job.shape.request, fleet.workers[worker_id].room)
        return Way(grant, AHEAD) if grant is not None else None

    patch.setattr(backfill, "_way_in", careless)


def a_hold_is_forgotten_when_a_guest_is_let_in(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(backfill, "let_in", lambda *_: "")


def nobody_looks_who_has_waited_for_too_long(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(backfill, "_look", lambda *_: None)


def an_owner_that_has_started_keeps_its_hold(patch: pytest.MonkeyPatch) -> None:
    real = Holds.release

    def forgetful(self: Holds, job_id: str, index: Any) -> None:
        if job_id in self.of and self.given % 2:
            return
        real(self, job_id, index)

    patch.setattr(Holds, "release", forgetful)


PLANTS = [
    everybody_passes,
    a_hold_is_forgotten_when_a_guest_is_let_in,
    nobody_looks_who_has_waited_for_too_long,
    an_owner_that_has_started_keeps_its_hold,
]


@pytest.mark.parametrize("defect", PLANTS, ids=lambda defect: defect.__name__.replace("_", " "))
def test_a_planted_bug_is_found(defect: Callable[[pytest.MonkeyPatch], None]) -> None:
    for seed in SEEDS:
        with pytest.MonkeyPatch.context() as patch:
            defect(patch)
            try:
                witnessed(seed)
            except (InvariantBroken, Starved, AssertionError, KeyError):
                return
    pytest.fail("no seed found it")
