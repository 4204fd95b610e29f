"""Rule 7 of `fifo`, its bound: a resident keeps its turn, and then it yields."""

import math
from typing import Any

from tests.gateway.core.stand import Stand

from ostler.gateway.core.fifo import Fifo


def alone(names: str, **more: Any) -> Stand:
    """Room for one model."""
    return Stand(Fifo, names, room=1.0, **more)


def asked_forever(stand: Stand, model: str, seconds: float, every: float = 5.0) -> None:
    """One request ends only after the next has begun."""
    before = stand.ask(model)
    end = stand.now + seconds
    while stand.now < end:
        stand.wait(every)
        after = stand.ask(model)
        if before in stand.granted:
            stand.done(before)
        before = after


def test_a_resident_that_is_asked_without_end_yields_after_its_quantum_of_swaps() -> None:
    stand = alone("ab", a={"load_s": 10.0}, b={"load_s": 10.0})
    serving = stand.ask("a")
    stand.wait(10.0)
    stand.loaded("a")
    stand.wait(50.0)
    waiting = stand.ask("b")
    stand.wait(79.0)
    passes = stand.ask("a")
    assert passes in stand.granted, "it keeps its turn for 8 × 10 s from when another waits"
    stand.wait(1.0)
    queued = stand.ask("a")
    assert queued not in stand.granted and "has had its turn" in stand.why(queued)
    stand.done(serving)
    assert stand.loads[-1][0] == "a", "it drains first"
    stand.done(passes)
    assert stand.loads[-1] == ("b", ["a"])
    stand.loaded("b")
    assert waiting in stand.granted


def test_the_turn_of_a_resident_that_was_loaded_later_begins_with_its_load() -> None:
    stand = alone("ab", a={"load_s": 10.0}, b={"load_s": 10.0})
    stand.ask("a")
    stand.ask("b")
    stand.wait(10.0)
    stand.loaded("a")
    stand.wait(79.9)
    assert stand.ask("a") in stand.granted
    stand.wait(0.2)
    assert stand.ask("a") not in stand.granted


def test_the_bound_counts_the_longer_of_the_two_loads() -> None:
    stand = alone("ab", a={"load_s": 30.0}, b={"load_s": 1.0})
    stand.ask("a")
    stand.wait(30.0)
    stand.loaded("a")
    stand.ask("b")
    stand.wait(239.0)
    assert stand.ask("a") in stand.granted
    stand.wait(1.0)
    assert stand.ask("a") not in stand.granted


def test_with_a_quantum_of_0_nobody_overtakes() -> None:
    stand = alone("ab", quantum=0.0)
    serving = stand.ask("a")
    stand.loaded("a")
    stand.ask("b")
    behind = stand.ask("a")
    assert behind not in stand.granted
    stand.done(serving)
    assert stand.loads[-1] == ("b", ["a"])


def test_with_an_infinite_quantum_a_resident_never_yields() -> None:
    stand = alone("ab", quantum=math.inf)
    stand.make_ready("a")
    asked_forever(stand, "a", 10.0)
    stand.ask("b")
    asked_forever(stand, "a", 5_000.0, every=50.0)
    assert [model for model, _ in stand.loads] == ["a"] and stand.machine.due() is None


def test_a_resident_takes_requests_again_when_the_one_it_yields_to_has_left() -> None:
    stand = alone("ab", quantum=0.0)
    stand.ask("a")
    stand.loaded("a")
    waiting = stand.ask("b")
    queued = stand.ask("a")
    stand.cancel(waiting)
    assert stand.grants() == [queued] and stand.ask("a") in stand.granted


def test_what_was_promised_to_a_model_that_is_removed_is_no_more() -> None:
    stand = Stand(Fifo, "abxy", room=2.0, quantum=1.0)
    stand.make_ready("a", "b")
    serving = [stand.ask("a"), stand.ask("b")]
    waiting, vanished = stand.ask("x"), stand.ask("y")
    stand.wait(500.0)
    stand.reconfigure("abx")
    assert stand.refused[vanished].code == "model_not_found"
    stand.done(*serving)
    stand.loaded("x")
    assert waiting in stand.granted


def test_a_big_model_is_not_starved_by_small_ones() -> None:
    stand = Stand(Fifo, ["big", "s", "t", "u"], room=2.0, sizes={"big": 2.0}, quantum=2.0)
    stand.make_ready("s", "t")
    serving = {name: stand.ask(name) for name in "st"}
    big = stand.ask("big")
    for _ in range(100):
        if stand.state("big") == "loading":
            break
        stand.wait(5.0)
        for name in "stu":
            if stand.state(name) == "loading":
                stand.loaded(name)
            request = stand.ask(name)
            if name in serving and serving[name] in stand.granted:
                stand.done(serving.pop(name))
            serving.setdefault(name, request)
    stand.loaded("big")
    assert stand.granted[-1] == big
    assert [model for model, _ in stand.loads[2:]] == ["big"], "u came later and had to wait for its turn"


def test_a_promise_is_kept_even_against_a_higher_priority() -> None:
    stand = alone("abc", quantum=1.0, c={"priority": 9}, a={"load_s": 10.0}, b={"load_s": 10.0})
    serving = stand.ask("a")
    stand.loaded("a")
    stand.ask("b")
    stand.wait(20.0)
    urgent = stand.ask("c")
    stand.done(serving)
    assert stand.loads[-1] == ("b", ["a"])
    assert "'b' is being loaded" in stand.why(urgent)


def test_a_model_that_fits_beside_what_was_promised_is_not_held_up() -> None:
    stand = Stand(Fifo, ["a", "big", "tiny"], room=2.5, sizes={"a": 2.0, "big": 2.0, "tiny": 0.5}, quantum=0.0)
    stand.ask("a")
    stand.loaded("a")
    stand.ask("big")
    stand.ask("tiny")
    assert stand.loads[-1] == ("tiny", [])


def test_a_model_that_would_take_what_was_promised_waits() -> None:
    stand = Stand(Fifo, ["a", "big", "small"], room=3.0, sizes={"a": 2.0, "big": 3.0, "small": 1.0}, quantum=0.0)
    serving = stand.ask("a")
    stand.loaded("a")
    stand.ask("big")
    small = stand.ask("small")
    assert stand.loads == [("a", [])] and "promised to 'big'" in stand.why(small)
    stand.done(serving)
    assert stand.loads[-1] == ("big", ["a"])
