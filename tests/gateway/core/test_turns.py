"""Rule 7 of `fifo`, its bound: a resident keeps its turn, and then it yields."""

import math
from typing import Any

from tests.gateway.core.core_gateway import CoreGateway

from ostler.gateway.core.fifo import Fifo


def alone(names: str, **more: Any) -> CoreGateway:
    """Room for one model."""
    return CoreGateway(Fifo, names, room=1.0, **more)


def asked_forever(gateway: CoreGateway, model: str, seconds: float, every: float = 5.0) -> None:
    """One request ends only after the next has begun."""
    before = gateway.ask(model)
    end = gateway.now + seconds
    while gateway.now < end:
        gateway.wait(every)
        after = gateway.ask(model)
        if before in gateway.granted:
            gateway.done(before)
        before = after


def test_a_resident_that_is_asked_without_end_yields_after_its_quantum_of_swaps() -> None:
    gateway = alone("ab", a={"load_s": 10.0}, b={"load_s": 10.0})
    serving = gateway.ask("a")
    gateway.wait(10.0)
    gateway.loaded("a")
    gateway.wait(50.0)
    waiting = gateway.ask("b")
    gateway.wait(79.0)
    passes = gateway.ask("a")
    assert passes in gateway.granted, "it keeps its turn for 8 × 10 s from when another waits"
    gateway.wait(1.0)
    queued = gateway.ask("a")
    assert queued not in gateway.granted and "has had its turn" in gateway.why(queued)
    gateway.done(serving)
    assert gateway.loads[-1][0] == "a", "it drains first"
    gateway.done(passes)
    assert gateway.loads[-1] == ("b", ["a"])
    gateway.loaded("b")
    assert waiting in gateway.granted


def test_the_turn_of_a_resident_that_was_loaded_later_begins_with_its_load() -> None:
    gateway = alone("ab", a={"load_s": 10.0}, b={"load_s": 10.0})
    gateway.ask("a")
    gateway.ask("b")
    gateway.wait(10.0)
    gateway.loaded("a")
    gateway.wait(79.9)
    assert gateway.ask("a") in gateway.granted
    gateway.wait(0.2)
    assert gateway.ask("a") not in gateway.granted


def test_the_bound_counts_the_longer_of_the_two_loads() -> None:
    gateway = alone("ab", a={"load_s": 30.0}, b={"load_s": 1.0})
    gateway.ask("a")
    gateway.wait(30.0)
    gateway.loaded("a")
    gateway.ask("b")
    gateway.wait(239.0)
    assert gateway.ask("a") in gateway.granted
    gateway.wait(1.0)
    assert gateway.ask("a") not in gateway.granted


def test_with_a_quantum_of_0_nobody_overtakes() -> None:
    gateway = alone("ab", quantum=0.0)
    serving = gateway.ask("a")
    gateway.loaded("a")
    gateway.ask("b")
    behind = gateway.ask("a")
    assert behind not in gateway.granted
    gateway.done(serving)
    assert gateway.loads[-1] == ("b", ["a"])


def test_with_an_infinite_quantum_a_resident_never_yields() -> None:
    gateway = alone("ab", quantum=math.inf)
    gateway.make_ready("a")
    asked_forever(gateway, "a", 10.0)
    gateway.ask("b")
    asked_forever(gateway, "a", 5_000.0, every=50.0)
    assert [model for model, _ in gateway.loads] == ["a"] and gateway.machine.due() is None


def test_a_resident_takes_requests_again_when_the_one_it_yields_to_has_left() -> None:
    gateway = alone("ab", quantum=0.0)
    gateway.ask("a")
    gateway.loaded("a")
    waiting = gateway.ask("b")
    queued = gateway.ask("a")
    gateway.cancel(waiting)
    assert gateway.grants() == [queued] and gateway.ask("a") in gateway.granted


def test_what_was_promised_to_a_model_that_is_removed_is_no_more() -> None:
    gateway = CoreGateway(Fifo, "abxy", room=2.0, quantum=1.0)
    gateway.make_ready("a", "b")
    serving = [gateway.ask("a"), gateway.ask("b")]
    waiting, vanished = gateway.ask("x"), gateway.ask("y")
    gateway.wait(500.0)
    gateway.reconfigure("abx")
    assert gateway.refused[vanished].code == "model_not_found"
    gateway.done(*serving)
    gateway.loaded("x")
    assert waiting in gateway.granted


def test_a_big_model_is_not_starved_by_small_ones() -> None:
    gateway = CoreGateway(Fifo, ["big", "s", "t", "u"], room=2.0, sizes={"big": 2.0}, quantum=2.0)
    gateway.make_ready("s", "t")
    serving = {name: gateway.ask(name) for name in "st"}
    big = gateway.ask("big")
    for _ in range(100):
        if gateway.state("big") == "loading":
            break
        gateway.wait(5.0)
        for name in "stu":
            if gateway.state(name) == "loading":
                gateway.loaded(name)
            request = gateway.ask(name)
            if name in serving and serving[name] in gateway.granted:
                gateway.done(serving.pop(name))
            serving.setdefault(name, request)
    gateway.loaded("big")
    assert gateway.granted[-1] == big
    assert [model for model, _ in gateway.loads[2:]] == ["big"], "u came later and had to wait for its turn"


def test_a_promise_is_kept_even_against_a_higher_priority() -> None:
    gateway = alone("abc", quantum=1.0, c={"priority": 9}, a={"load_s": 10.0}, b={"load_s": 10.0})
    serving = gateway.ask("a")
    gateway.loaded("a")
    gateway.ask("b")
    gateway.wait(20.0)
    urgent = gateway.ask("c")
    gateway.done(serving)
    assert gateway.loads[-1] == ("b", ["a"])
    assert "'b' is being loaded" in gateway.why(urgent)


def test_a_model_that_fits_beside_what_was_promised_is_not_held_up() -> None:
    gateway = CoreGateway(Fifo, ["a", "big", "tiny"], room=2.5, sizes={"a": 2.0, "big": 2.0, "tiny": 0.5}, quantum=0.0)
    gateway.ask("a")
    gateway.loaded("a")
    gateway.ask("big")
    gateway.ask("tiny")
    assert gateway.loads[-1] == ("tiny", [])


def test_a_model_that_would_take_what_was_promised_waits() -> None:
    gateway = CoreGateway(
        Fifo, ["a", "big", "small"], room=3.0, sizes={"a": 2.0, "big": 3.0, "small": 1.0}, quantum=0.0
    )
    serving = gateway.ask("a")
    gateway.loaded("a")
    gateway.ask("big")
    small = gateway.ask("small")
    assert gateway.loads == [("a", [])] and "promised to 'big'" in gateway.why(small)
    gateway.done(serving)
    assert gateway.loads[-1] == ("big", ["a"])
