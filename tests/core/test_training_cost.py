"""What a claim, a new shape and a changed manifest cost does not grow with what waits or runs."""

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.core.core_fleet import CoreFleet, entry, submission

from ostler.core.events import Event
from ostler.core.step import step
from ostler.domain.job import Training

FEW, MANY = 100, 1000


def lines_run(core: CoreFleet, event: Event) -> Counter[str]:
    """The lines of the core that one step runs, by function: calls could hide a loop."""
    seen: Counter[str] = Counter()

    def look(frame: Any, kind: str, _: Any) -> Any:
        if not frame.f_globals.get("__name__", "").startswith("ostler.core."):
            return None
        if kind == "line":
            seen[frame.f_code.co_qualname] += 1
        return look

    sys.settrace(look)
    try:
        step(core.fleet, event, core.now)
    finally:
        sys.settrace(None)
    return seen


def assert_the_same(prepare: Callable[[int], tuple[CoreFleet, Event]]) -> None:
    few, many = (lines_run(*prepare(size)) for size in (FEW, MANY))
    assert few == many


def test_a_job_of_a_new_shape_is_compared_with_machines_and_not_with_shapes() -> None:
    def prepared(size: int) -> tuple[CoreFleet, Event]:
        core = CoreFleet(checked=False)
        core.worker("w")
        waiting = submission(1, "first", min_memory_gb=1000)
        for number in range(size):
            waiting.jobs += submission(1, f"j{number}", min_memory_gb=1001 + number, min_cpu_cores=100 + number).jobs
        core.turn(waiting)
        return core, submission(2, "new", min_memory_gb=9999)

    assert_the_same(prepared)


def test_a_machine_whose_free_memory_changed_is_not_asked_about_every_model_again() -> None:
    def prepared(size: int) -> tuple[CoreFleet, Event]:
        core = CoreFleet(checked=False)
        jobs = [entry(f"j{n}", training=Training(model=f"m{n}"), min_memory_gb=999) for n in range(size)]
        core.follow(*jobs, entry("fits", training=Training(model="first")))
        core.claim("pi", memory_available_gb=9.0, cores=0, memory=0.5)
        core.submit("another")
        return core, core.claiming("pi", memory_available_gb=5.0)

    assert_the_same(prepared)


def test_a_manifest_that_changes_a_priority_does_not_look_at_all_that_runs() -> None:
    def prepared(size: int) -> tuple[CoreFleet, Event]:
        core = CoreFleet(checked=False)
        core.follow(entry("changed", min_cpu_cores=99), *[entry(f"j{number}") for number in range(size)])
        core.turn(*[core.claiming("pi") for _ in range(size)])
        assert len(core.fleet.held) == size
        return core, core.following(entry("changed", min_cpu_cores=99, priority=5))

    def lines_of_the_change(size: int) -> int:
        core, event = prepared(size)
        run = lines_run(core, event)
        return sum(count for name, count in run.items() if name.startswith("Fleet.change_terms"))

    assert lines_of_the_change(FEW) == lines_of_the_change(MANY)
