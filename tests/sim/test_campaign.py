"""Whole fleets on a virtual clock: faults of every kind, every invariant after every event, and a witness outside."""

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from tests.sim.witness import run, run_claims

from ostler.core.check import check
from ostler.core.placing import ahead
from ostler.domain import states
from ostler.domain.worker import Capabilities
from ostler.sim import world as worlds
from ostler.sim.campaign import random_job, random_machines, run_seed, short_job
from ostler.sim.faults import NONE, Faults
from ostler.sim.world import World

EVENTS = 100_000
SHARES = 4
FLEET = {"machines": 4, "jobs": 30}


@contextmanager
def told(seed: int, **size: int) -> Iterator[None]:
    """A failure says how to repeat it."""
    try:
        yield
    except Exception as error:
        flags = " ".join(f"--{name} {value}" for name, value in size.items())
        error.add_note(f"seed {seed}; repeat it with: python -m ostler.sim.campaign --seed {seed} {flags}")
        raise


@pytest.mark.parametrize("share", range(SHARES))
def test_a_hundred_thousand_random_events_break_nothing(share: int) -> None:
    """check() after each of them; nothing accepted is lost; once it is calm, everything ends."""
    events, seed = 0, 1000 * share
    while events < EVENTS / SHARES:
        with told(seed, **FLEET):
            events += run_seed(seed, **FLEET).events
        seed += 1


@pytest.mark.parametrize("seed", range(8))
def test_a_witness_outside_agrees_with_the_hub(seed: int) -> None:
    """Machines that burn down, drains, stalls; zombies, clashes, leaks, and the ledger compared with memory."""
    run(seed)


@pytest.mark.parametrize("seed", range(4))
def test_a_witness_outside_agrees_about_machines_that_only_claim(seed: int) -> None:
    """Cut off for longer than a lease, killed, and stubborn; what must run alone does, and each success is one."""
    run_claims(seed)


def test_claims_and_connections_break_nothing_together() -> None:
    size = {"machines": 2, "jobs": 16, "pullers": 4}
    for seed in (3, 4):
        with told(seed, **size):
            run_seed(seed, **size)


def test_machines_that_take_tasks_ahead_break_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames lost, doubled and late, machines and the hub killed, users who come first: check() after every event."""
    sent: list[int] = []
    begin = ahead.begin_ahead
    monkeypatch.setattr(ahead, "begin_ahead", lambda *given: (sent.append(1), begin(*given))[1])
    size = {"machines": 4, "jobs": 8, "ahead": 8}
    for seed in (3, 4):
        with told(seed, **size):
            run_seed(seed, **size, horizon_s=600.0)
    assert len(sent) > 100


def test_nothing_that_was_sent_ahead_begins_before_there_is_room_for_it() -> None:
    """Seen from the machine: on a network that loses nothing, no more runs there at once than it has slots."""
    offer = Capabilities(gpu_backend="cpu", cpu_count=4, memory_gb=8)
    world = World(7, [(offer, 2), (offer, 2), (offer, 1)], NONE, ahead=16)
    world.in_order = True  # as on a stream: or one would arrive before the one that it comes after
    most: dict[str, int] = {}
    started = world.started

    def counting(machine: Any, process: Any) -> None:
        most[machine.name] = max(most.get(machine.name, 0), len(machine.processes) - machine.slots)
        started(machine, process)

    world.started = counting  # type: ignore[method-assign]
    rng = random.Random(7)
    for number in range(20):
        spec, duration = short_job(rng, number)
        world.at(10 * number, partial(world.submit, spec, duration))
    world.run(4000)
    assert not world.unfinished()
    assert most == {"w000": 0, "w001": 0, "w002": 0}


def traced(seed: int, **size: int) -> str:
    """A digest of every event that the core was given and of everything that it answered."""
    digest = hashlib.sha256()
    step, settle = worlds.step, worlds.settle

    def telling(fleet: Any, event: Any, now: float) -> Any:
        effects = step(fleet, event, now)
        digest.update(repr((now, event, effects)).encode())
        return effects

    def placing(fleet: Any, now: float) -> Any:
        effects = settle(fleet, now)
        digest.update(repr((now, effects)).encode())
        return effects

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worlds, "step", telling)
        patch.setattr(worlds, "settle", placing)
        world = run_seed(seed, check_every=1_000_000, **size)
    rows = world.ledger.jobs(world.acknowledged)
    digest.update(repr(sorted((job.id, job.state, job.counts) for job in rows.values())).encode())
    return digest.hexdigest()


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    size = {"machines": 3, "jobs": 15}
    with told(5, **size):
        assert traced(5, **size) == traced(5, **size)
    assert traced(5, **size) != traced(6, **size)


def test_a_seed_gives_the_same_trace_in_another_process_however_strings_are_hashed() -> None:
    code = "from tests.sim.test_campaign import traced; print(traced(7, machines=3, jobs=10))"
    found = set()
    for hashed in ("1", "99"):
        variables = os.environ | {"PYTHONHASHSEED": hashed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
        found.add(done.stdout)
    assert len(found) == 1


def test_three_hundred_workers_end_all_their_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet of real size, looked at now and then: every check costs shapes times workers."""
    looks = [0]

    def sparse(*args: Any, **kwargs: Any) -> None:
        looks[0] += 1
        if looks[0] % 200 == 0:
            check(*args, **kwargs)

    monkeypatch.setattr(worlds, "check", sparse)
    rng = random.Random("three hundred")
    faults = Faults(lose=0.01, duplicate=0.01, cut_every_s=300.0, hub_crash_every_s=120.0)
    world = World(300, random_machines(rng, 300), faults)
    world.check_every = 1_000_000
    for number in range(400):
        spec, _ = random_job(rng, number)
        spec.depends_on = []
        world.at(rng.uniform(0, 60), partial(world.submit, spec, rng.choice((0.1, 5.0, 40.0))))
    world.run(120.0)
    world.calm()
    while world.unfinished() and world.now < 900.0:
        world.run(world.now + 30.0)
    assert world.faults is NONE
    ended = [job.state for job in world.ledger.jobs(world.acknowledged).values()]
    assert len(ended) > 200
    assert ended.count(states.SUCCEEDED) > len(ended) * 0.7
    assert world.unfinished() == []
