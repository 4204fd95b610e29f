"""Same events in, same effects out; and what a decision costs does not grow with the queue."""

import hashlib
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.core_fleet import CoreFleet, submission
from tests.core.plain import only_plain
from tests.core.random_fleet import ACTS, NO_EXPLAIN, RandomFleet

from ostler.core.persist import take_changes
from ostler.core.placing import choose, score
from ostler.core.placing.place import settle
from ostler.core.step import step
from ostler.domain.resources import Request

FEW, MANY = 100, 100_000


def played(acts: list[tuple[int, int, int]]) -> list[str]:
    """Everything that the hub said and kept."""
    random_fleet = RandomFleet()
    told: list[str] = []
    turn = random_fleet.core.turn

    def telling(*events: Any) -> Any:
        said = turn(*events)
        told.append(repr((events, said)))
        return said

    random_fleet.core.turn = telling  # type: ignore[method-assign]
    for number, first, second in acts:
        ACTS[number](random_fleet, first, second)
    told.append(repr(random_fleet.core.ledger.load()))
    return told


act = st.tuples(st.integers(0, len(ACTS) - 1), st.integers(0, 11), st.integers(0, 11))


@settings(max_examples=15, deadline=None, phases=NO_EXPLAIN)
@given(st.lists(act, min_size=40, max_size=150))
def test_the_same_events_have_the_same_effects(acts: list[tuple[int, int, int]]) -> None:
    assert played(acts) == played(acts)


def test_the_effects_do_not_depend_on_how_strings_are_hashed() -> None:
    import subprocess

    code = (
        "import hashlib, random, tests.core.test_determinism_and_cost as t\n"
        "rng = random.Random(7)\n"
        "acts = [(rng.randrange(len(t.ACTS)), rng.randrange(12), rng.randrange(12)) for _ in range(300)]\n"
        "print(hashlib.sha256(repr(t.played(acts)).encode()).hexdigest())\n"
    )
    found = set()
    for seed in ("0", "1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout)
    assert len(found) == 1


def crowd(size: int) -> CoreFleet:
    """A fleet of ten machines that are busy, and a queue of this many jobs of a few shapes that cannot run."""
    core = CoreFleet(checked=False)
    for number in range(10):
        core.worker(f"w{number}", gpus=1, vram=24, cores=4, slots=4)
    busy = submission(1, "busy0", gpu_count=1, min_cpu_cores=3)
    for number in range(1, 10):
        busy.jobs += submission(1, f"busy{number}", gpu_count=1, min_cpu_cores=3).jobs
    core.turn(busy)
    for number in range(10):
        core.start(f"busy{number}")
    specs = [
        {"gpu_count": 1},
        {"gpu_count": 1, "user_id": "bob"},
        {"min_cpu_cores": 2, "user_id": "eve"},
        {"gpu_count": 2, "priority": 5},
        {"labels": ["zone = mars"], "job_tier": "training"},
    ]
    jobs = [submission(1, f"q{number}", **specs[number % len(specs)]).jobs[0] for number in range(size)]
    event = submission(2, "first", **specs[0])
    event.jobs = jobs
    core.turn(event)
    assert len(core.fleet.held) == 10
    return core


class Calls:
    """How often each function of the core is called, and how many steps of its loops are taken."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __enter__(self) -> "Calls":
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _seen(self, frame: Any, event: str, arg: Any) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("ostler.core."):
            self.calls[f"{name.rpartition('.')[2]}.{frame.f_code.co_qualname}"] += 1


def cost(core: CoreFleet, *events: Any) -> Counter[str]:
    """One batch without the check and without the ledger: the decision alone."""
    with Calls() as seen:
        for event in events:
            step(core.fleet, event, core.now)
        settle(core.fleet, core.now)
        take_changes(core.fleet, core.now)
    return seen.calls


def events_on(core: CoreFleet) -> dict[str, Any]:
    from ostler.core.events import TaskEnded, WorkerAsked, WorkerBeat
    from ostler.domain.worker import Slots

    box = core.fleet.workers["w3"]
    ended = TaskEnded(
        worker_id="w3",
        session=box.session,
        task_id=next(held.task_id for held in box.attempts.values()),
        attempt=next(iter(box.attempts)),
        state="succeeded",
        exit_code=0,
    )
    return {
        "a job that fits": submission(9, "small"),
        "a job that does not": submission(9, "large", gpu_count=1),
        "a job of a new shape": submission(9, "other", min_memory_gb=3),
        "a worker asks": WorkerAsked(worker_id="w3", session=box.session),
        "a worker beats": WorkerBeat(worker_id="w3", session=box.session, slots=Slots(batch_total=4, batch_in_use=1)),
        "a task ends and another starts": ended,
        "one of those that wait is cancelled": core.cancellation(f"q{FEW // 2}"),
    }


@pytest.fixture(scope="module")
def crowds() -> dict[int, CoreFleet]:
    return {size: crowd(size) for size in (FEW, MANY)}


NAMES = [
    "a job that fits",
    "a job that does not",
    "a job of a new shape",
    "a worker asks",
    "a worker beats",
    "a task ends and another starts",
    "one of those that wait is cancelled",
]


@pytest.mark.parametrize("name", NAMES)
def test_what_an_event_costs_does_not_grow_with_the_queue(name: str, crowds: dict[int, CoreFleet]) -> None:
    few, many = (cost(crowds[size], events_on(crowds[size])[name]) for size in (FEW, MANY))
    assert few == many
    assert sum(many.values()) < 550


def test_a_pass_that_places_nothing_looks_at_no_job(crowds: dict[int, CoreFleet]) -> None:
    calls = cost(crowds[MANY])
    assert sum(calls.values()) < 25
    looked = {name for name in calls if name.startswith(("match.", "score.", "room.pick"))}
    assert not looked


def lines_run(act: Callable[[], object]) -> int:
    """Calls can hide a loop: this counts every line."""
    count = 0

    def seen(frame: Any, kind: str, arg: Any) -> Any:
        nonlocal count
        if not frame.f_globals.get("__name__", "").startswith("ostler."):
            return None
        if kind == "line":
            count += 1
        return seen

    sys.settrace(seen)
    try:
        act()
    finally:
        sys.settrace(None)
    return count


def test_the_lines_run_by_a_decision_do_not_grow_with_the_queue() -> None:
    def lines(size: int) -> int:
        core = crowd(size)
        event = events_on(core)["a task ends and another starts"]

        def decide() -> None:
            step(core.fleet, event, core.now)
            settle(core.fleet, core.now)
            take_changes(core.fleet, core.now)

        return lines_run(decide)

    assert lines(FEW) == lines(20_000)


def test_jobs_that_ask_for_something_else_one_by_one_do_not_walk_over_those_that_did_before() -> None:
    core = CoreFleet(checked=False)
    for number in range(200):
        core.submit(f"q{number}", gpu_count=1)
    jobs = list(core.fleet.jobs.values())
    costs = [
        lines_run(lambda job=job: core.fleet.change_shape(job, Request(gpu_count=2)))  # type: ignore[misc]
        for job in jobs[100:] + jobs[:100]
    ]
    assert len(set(costs[105:195])) == 1
    assert core.queue() == [job.id for job in jobs]


@only_plain
def test_workers_in_the_same_state_are_scored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [0]
    real = score.loss

    def counting(*args: Any) -> Any:
        calls[0] += 1
        return real(*args)

    monkeypatch.setattr(choose, "loss", counting)
    core = CoreFleet(checked=False)
    for number in range(300):
        core.worker(f"w{number:03d}", gpus=4, vram=96)
    calls[0] = 0
    core.submit(gpu_count=1)
    assert calls[0] == 1


def test_a_million_tasks_in_an_array_are_one_entry_of_the_queue() -> None:
    core = CoreFleet(checked=False)
    with Calls() as seen:
        core.submit("a", array=1_000_000)
    assert sum(seen.calls.values()) < 200


def test_a_run_can_be_repeated_from_its_acts() -> None:
    rng = random.Random(3)
    acts = [(rng.randrange(len(ACTS)), rng.randrange(12), rng.randrange(12)) for _ in range(400)]
    first, second = (hashlib.sha256(repr(played(acts)).encode()).hexdigest() for _ in range(2))
    assert first == second
