"""What a decision costs, counted in calls and not in seconds; and what keeps the core pure."""

import ast
import gc
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.gateway.core.core_gateway import CoreGateway

import ostler.gateway.core
from ostler.gateway.core.events import RequestArrived, ServeDone
from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.line import Overtakings
from ostler.gateway.core.state import Request

CORE = Path(ostler.gateway.core.__file__).parent
NOT_PURE = {"asyncio", "datetime", "logging", "os", "random", "socket", "subprocess", "threading", "time", "uuid"}


def calls(what: Callable[[], object]) -> int:
    """How many functions were entered."""
    counted = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    gc.disable()  # what others do when it runs would be counted too
    sys.setprofile(count)
    try:
        what()
    finally:
        sys.setprofile(None)
        gc.enable()
    return counted


def busy_gateway(models: int, queued: int) -> CoreGateway:
    """`hot` is ready and serves, as do many others; so many requests wait for one model that has no room."""
    names = ["hot", "cold", *(f"m{number}" for number in range(models))]
    gateway = CoreGateway(Fifo, names, room=models + 1.0)
    gateway.turn(RequestArrived(1_000_000, "hot"))
    gateway.loaded("hot")
    for number in range(models):
        gateway.turn(RequestArrived(1_000_001 + number, f"m{number}"))
        gateway.loaded(f"m{number}")
    for number in range(queued):
        gateway.machine.step(RequestArrived(2_000_000 + number, "cold"), gateway.now)
    return gateway


def test_the_hot_path_costs_the_same_however_many_models_there_are_and_however_many_wait() -> None:
    costs = set()
    for models, queued in ((2, 1), (60, 1), (2, 1000)):
        machine = busy_gateway(models, queued).machine
        costs.add(calls(lambda machine=machine: machine.step(RequestArrived(1, "hot"), 1.0)))
        costs.add(1000 * calls(lambda machine=machine: machine.step(ServeDone(1), 2.0)))
    assert len(costs) == 2, costs


def test_the_hot_path_asks_nobody_for_room() -> None:
    gateway = CoreGateway(Fifo)
    gateway.make_ready("a")
    asked = gateway.capacity.asked
    gateway.machine.step(RequestArrived(100, "a"), gateway.now)
    gateway.machine.step(ServeDone(100), gateway.now)
    assert gateway.capacity.asked == asked


def test_a_blocked_row_costs_the_same_however_long_it_is() -> None:
    stands = [busy_gateway(3, queued) for queued in (2, 2000)]
    short, long = (calls(lambda machine=gateway.machine: machine.settle(5.0)) for gateway in stands)
    assert short == long


def test_one_more_in_the_row_of_a_model_that_cannot_grow_costs_the_same_however_long_the_row_is() -> None:
    costs = set()
    for queued in (30, 3000):
        gateway = CoreGateway(Fifo, "a", room=1.0, a={"concurrency": 1, "max_instances": 2})
        gateway.ask("a")
        gateway.loaded("a")
        for number in range(queued):
            gateway.machine.step(RequestArrived(1_000 + number, "a", user=f"user {number % 3}"), gateway.now)
        machine = gateway.machine
        assert "no room for another process" in machine.why(1_000, gateway.now)
        costs.add(calls(lambda machine=machine: machine.step(RequestArrived(9_999, "a", user="user 1"), 1.0)))
    assert len(costs) == 1, costs


@pytest.mark.parametrize("seed", range(20))
def test_overtakings_are_counted_exactly(seed: int) -> None:
    rng = random.Random(seed)
    counted, waiting, truth = Overtakings(), {}, {}
    for seq in range(1, 1200):
        if rng.random() < 0.4:
            waiting[seq] = Request(seq, "m", seq, 0.0)
            truth[seq] = 0
            continue
        granted = rng.choice([*waiting, seq]) if rng.random() < 0.5 else seq
        waiting.pop(granted, None)
        for other in waiting:
            truth[other] += other < granted
        counted.granted(granted, waiting)
        if rng.random() < 0.05 and waiting:
            waiting.pop(rng.choice([*waiting]))
    assert {seq: counted.of(seq) for seq in waiting} == {seq: truth[seq] for seq in waiting}


def test_the_core_imports_nothing_but_itself_and_the_domain() -> None:
    for path in CORE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            named = []
            if isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                named = [node.module or ""]
            for name in named:
                inside = name.startswith(("ostler.domain", "ostler.gateway.core")) or not name.startswith("ostler")
                assert inside and name.split(".")[0] not in NOT_PURE, f"{path.name} imports {name}"
