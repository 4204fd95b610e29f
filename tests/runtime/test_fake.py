"""The fake machine fails loudly where a worker does what it must not."""

from pathlib import Path

import pytest

from ostler.runtime.base import Launch
from ostler.runtime.fake import FakeMachine, FakeRuntime


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def machine(tmp_path: Path, clock: Clock) -> FakeMachine:
    return FakeMachine(tmp_path, clock)


@pytest.fixture
async def runtime(machine: FakeMachine) -> FakeRuntime:
    runtime = FakeRuntime(machine)
    await runtime.open()
    return runtime


def _task(attempt: str = "a", deadline_s: float = 0.0) -> Launch:
    return Launch(attempt=attempt, task_id="t", argv=["x"], env={}, deadline_s=deadline_s, grace_s=5.0)


async def test_launches_and_stops_are_recorded(runtime: FakeRuntime, machine: FakeMachine) -> None:
    await runtime.launch(_task())
    await runtime.launch(_task())
    await runtime.stop("a", "cancelled", 3.0)
    await runtime.stop("unknown", "cancelled", 3.0)
    assert [one.attempt for one in machine.launches] == ["a"]
    assert machine.stops == [("a", "cancelled", 3.0), ("unknown", "cancelled", 3.0)]
    assert machine.running == ["a"]


async def test_a_task_that_ignores_sigterm_ends_with_its_grace(
    runtime: FakeRuntime, machine: FakeMachine, clock: Clock
) -> None:
    await runtime.launch(_task(deadline_s=60.0))
    clock.now = 59.0
    machine.tick()
    clock.now = 60.0
    machine.tick()
    assert machine.running == ["a"]
    clock.now = 65.0
    machine.tick()
    end = await anext(aiter(runtime.ends()))
    assert (end.exit_code, end.stopped, end.finished_at) == (137, "max_runtime", 65.0)


async def test_forgetting_what_nobody_holds_is_loud(runtime: FakeRuntime, machine: FakeMachine) -> None:
    with pytest.raises(AssertionError, match="nobody holds it"):
        await runtime.forget("unknown")
    await runtime.launch(_task())
    with pytest.raises(AssertionError, match="while it runs"):
        await runtime.forget("a")
    machine.end("a")
    await runtime.forget("a")
    with pytest.raises(AssertionError, match="nobody holds it"):
        await runtime.forget("a")
    with pytest.raises(AssertionError, match="after it was forgotten"):
        await runtime.launch(_task())


async def test_ending_what_does_not_run_is_loud(runtime: FakeRuntime, machine: FakeMachine) -> None:
    with pytest.raises(AssertionError, match="never launched"):
        machine.end("a")
    await runtime.launch(_task())
    machine.end("a")
    with pytest.raises(AssertionError, match="ended already"):
        machine.end("a")


async def test_a_runtime_that_is_not_open_takes_no_orders(machine: FakeMachine) -> None:
    runtime = FakeRuntime(machine)
    with pytest.raises(AssertionError, match="not open"):
        await runtime.launch(_task())
    await runtime.open()
    runtime.crash()
    with pytest.raises(AssertionError, match="not open"):
        await runtime.stop("a", "x", 0.0)
