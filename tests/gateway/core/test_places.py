"""How long a load takes depends on where."""

import pytest
from tests.gateway.core.stand import Stand

from ostler.gateway.core.effects import StartLoad
from ostler.gateway.core.events import LoadTimesKnown, ModelFound
from ostler.gateway.core.eviction import EXPECTED_LOSS
from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.learnt import LoadTimes


def know(stand: Stand, model: str, load_s: float, **places: float) -> None:
    stand.turn(LoadTimesKnown({model: LoadTimes(load_s, places)}))


def loads_at(stand: Stand, model: str, took_s: float, place: str) -> None:
    request = stand.ask(model)
    stand.wait(took_s)
    stand.loaded(model, place=place)
    stand.done(request)


def test_load_times_are_learnt_by_place_and_for_the_model_as_a_whole() -> None:
    stand = Stand(Fifo)
    for took_s, place in ((40.0, "disk"), (4.0, "cache"), (6.0, "cache")):
        loads_at(stand, "a", took_s, place)
        stand.unload("a")
        stand.stopped("a")
    seen = stand.machine.state.learnt["a"]
    assert seen.places == pytest.approx({"disk": 40.0, "cache": 4.6})
    assert seen.load_at("elsewhere") == seen.load_s == pytest.approx(40.0 + 0.3 * -36.0 + 0.3 * (6.0 - 29.2))


def test_whoever_starts_a_load_is_told_how_long_it_takes_in_each_place() -> None:
    stand = Stand(Fifo)
    know(stand, "a", 20.0, near=5.0, far=50.0)
    stand.ask("a")
    assert stand.of(StartLoad)[0].load_s == {"near": 5.0, "far": 50.0}


def test_of_two_that_are_alike_the_one_goes_in_whose_place_the_target_loads_sooner() -> None:
    stand = Stand(Fifo, "abc", room=2.0)
    know(stand, "c", 20.0, near=5.0, far=50.0)
    for model, place in (("a", "far"), ("b", "near")):
        loads_at(stand, model, 10.0, place)
    stand.ask("c")
    assert stand.loads[-1] == ("c", ["b"]), "the least recently used one would have been a"


def test_the_loss_counts_by_how_much_a_load_there_is_slower_than_in_the_best_place() -> None:
    stand = Stand(Fifo, "abc")
    loads_at(stand, "a", 10.0, "far")
    before = EXPECTED_LOSS.loss(stand.machine.state, stand.instance("a"), "c", stand.now)
    know(stand, "c", 20.0, near=5.0, far=50.0)
    slower = EXPECTED_LOSS.loss(stand.machine.state, stand.instance("a"), "c", stand.now)
    assert slower == pytest.approx(before + 45.0)


def test_the_first_byte_decides_between_a_drain_that_is_long_and_a_load_that_is_slow() -> None:
    stand = Stand(Fifo, "abc", room=2.0, quantum=1.0, a={"load_s": 5.0}, b={"load_s": 5.0})
    know(stand, "c", 5.0, near=5.0, far=300.0)
    for model, place in (("a", "near"), ("b", "far")):
        stand.turn(ModelFound(model, place=place))
        stand.ask(model)
    stand.ask("c")
    stand.wait(5.0)
    assert stand.instance("a").promised_to == "c", "what a serves ends sooner than a load in the place of b"


def test_of_two_whose_turn_is_over_the_one_goes_that_is_drained_sooner() -> None:
    stand = Stand(Fifo, "abc", room=2.0, quantum=0.0)
    for model in "ab":
        stand.turn(ModelFound(model))
        stand.ask(model)
    stand.machine.state.learnt["a"].serve_s = 60.0
    stand.ask("c")
    assert stand.instance("b").promised_to == "c", "by name it would have been a"


def test_who_waits_for_a_model_whose_turn_is_over_waits_for_its_next_load() -> None:
    stand = Stand(Fifo, "ab", room=1.0, quantum=0.0)
    know(stand, "a", 30.0)
    stand.turn(ModelFound("a"))
    stand.ask("a")
    stand.ask("b")
    stand.ask("a")
    assert stand.machine.places(stand.now)[1].estimate_s == 35.0


def test_estimates_count_the_load_where_it_will_be() -> None:
    stand = Stand(Fifo, "ab", room=1.0, quantum=0.0)
    know(stand, "b", 20.0, near=5.0, far=50.0)
    loads_at(stand, "a", 10.0, "far")
    serving = stand.ask("a")
    serve_s = stand.machine.state.learnt["a"].serve_s
    stand.ask("b")
    assert stand.machine.places(stand.now)[0].estimate_s == serve_s + 50.0
    stand.done(serving)
    stand.wait(10.0)
    assert stand.machine.places(stand.now)[0].estimate_s == 40.0


def test_what_was_learnt_outlives_the_gateway() -> None:
    before = Stand(Fifo)
    loads_at(before, "a", 40.0, "disk")
    assert list(before.machine.load_times()) == ["a"], "nothing was seen of the others"
    after = Stand(Fifo, "ab")
    after.turn(LoadTimesKnown({**before.machine.load_times(), "gone": LoadTimes(1.0)}))
    seen = after.machine.state.learnt["a"]
    assert (seen.load_s, seen.places) == (40.0, {"disk": 40.0})
    assert after.machine.load_times() == before.machine.load_times()
