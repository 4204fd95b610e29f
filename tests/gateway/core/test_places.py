"""How long a load takes depends on where."""

import pytest
from tests.gateway.core.core_gateway import CoreGateway

from ostler.gateway.core.effects import StartLoad
from ostler.gateway.core.events import LoadTimesKnown, ModelFound
from ostler.gateway.core.eviction import EXPECTED_LOSS
from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.learnt import LoadTimes


def know(gateway: CoreGateway, model: str, load_s: float, **places: float) -> None:
    gateway.turn(LoadTimesKnown({model: LoadTimes(load_s, places)}))


def loads_at(gateway: CoreGateway, model: str, took_s: float, place: str) -> None:
    request = gateway.ask(model)
    gateway.wait(took_s)
    gateway.loaded(model, place=place)
    gateway.done(request)


def test_load_times_are_learnt_by_place_and_for_the_model_as_a_whole() -> None:
    gateway = CoreGateway(Fifo)
    for took_s, place in ((40.0, "disk"), (4.0, "cache"), (6.0, "cache")):
        loads_at(gateway, "a", took_s, place)
        gateway.unload("a")
        gateway.stopped("a")
    state = gateway.machine.state
    assert state.learnt["a"].places == pytest.approx({"disk": 40.0, "cache": 4.6})
    elsewhere_s, anywhere_s = state.load_at("a", "elsewhere", gateway.now), state.load_s("a", gateway.now)
    assert elsewhere_s == anywhere_s == pytest.approx(40.0 + 0.3 * -36.0 + 0.3 * (6.0 - 29.2))


def test_whoever_starts_a_load_is_told_how_long_it_takes_in_each_place() -> None:
    gateway = CoreGateway(Fifo)
    know(gateway, "a", 20.0, near=5.0, far=50.0)
    gateway.ask("a")
    assert gateway.of(StartLoad)[0].load_s == {"near": 5.0, "far": 50.0}


def test_of_two_that_are_alike_the_one_goes_in_whose_place_the_target_loads_sooner() -> None:
    gateway = CoreGateway(Fifo, "abc", room=2.0)
    know(gateway, "c", 20.0, near=5.0, far=50.0)
    for model, place in (("a", "far"), ("b", "near")):
        loads_at(gateway, model, 10.0, place)
    gateway.ask("c")
    assert gateway.loads[-1] == ("c", ["b"]), "the least recently used one would have been a"


def test_the_loss_counts_by_how_much_a_load_there_is_slower_than_in_the_best_place() -> None:
    gateway = CoreGateway(Fifo, "abc")
    loads_at(gateway, "a", 10.0, "far")
    know(gateway, "c", 20.0)
    before = EXPECTED_LOSS.loss(gateway.machine.state, gateway.instance("a"), "c", gateway.now)
    know(gateway, "c", 20.0, near=5.0, far=50.0)
    slower = EXPECTED_LOSS.loss(gateway.machine.state, gateway.instance("a"), "c", gateway.now)
    assert slower == pytest.approx(before + 45.0)


def test_the_first_byte_decides_between_a_drain_that_is_long_and_a_load_that_is_slow() -> None:
    gateway = CoreGateway(Fifo, "abc", room=2.0, quantum=1.0, a={"load_s": 5.0}, b={"load_s": 5.0})
    know(gateway, "c", 5.0, near=5.0, far=300.0)
    for model, place in (("a", "near"), ("b", "far")):
        gateway.turn(ModelFound(model, place=place))
        gateway.ask(model)
    gateway.ask("c")
    gateway.wait(5.0)
    assert gateway.instance("a").promised_to == "c", "what a serves ends sooner than a load in the place of b"


def test_of_two_whose_turn_is_over_the_one_goes_that_is_drained_sooner() -> None:
    gateway = CoreGateway(Fifo, "abc", room=2.0, quantum=0.0)
    for model in "ab":
        gateway.turn(ModelFound(model))
        gateway.ask(model)
    gateway.machine.state.learnt["a"].serve_s = 60.0
    gateway.ask("c")
    assert gateway.instance("b").promised_to == "c", "by name it would have been a"


def test_who_waits_for_a_model_whose_turn_is_over_waits_for_its_next_load() -> None:
    gateway = CoreGateway(Fifo, "ab", room=1.0, quantum=0.0)
    know(gateway, "a", 30.0)
    gateway.turn(ModelFound("a"))
    gateway.ask("a")
    gateway.ask("b")
    gateway.ask("a")
    assert gateway.machine.places(gateway.now)[1].estimate_s == 35.0


def test_estimates_count_the_load_where_it_will_be() -> None:
    gateway = CoreGateway(Fifo, "ab", room=1.0, quantum=0.0)
    know(gateway, "b", 20.0, near=5.0, far=50.0)
    loads_at(gateway, "a", 10.0, "far")
    serving = gateway.ask("a")
    serve_s = gateway.machine.state.learnt["a"].serve_s
    gateway.ask("b")
    assert gateway.machine.places(gateway.now)[0].estimate_s == serve_s + 50.0
    gateway.done(serving)
    gateway.wait(10.0)
    assert gateway.machine.places(gateway.now)[0].estimate_s == 40.0


def test_what_was_learnt_outlives_the_gateway() -> None:
    before = CoreGateway(Fifo)
    loads_at(before, "a", 40.0, "disk")
    assert list(before.machine.load_times()) == ["a"], "nothing was seen of the others"
    after = CoreGateway(Fifo, "ab")
    after.turn(LoadTimesKnown({**before.machine.load_times(), "gone": LoadTimes(1.0)}))
    seen = after.machine.state.learnt["a"]
    assert (seen.measured_load_s, seen.places) == (40.0, {"disk": 40.0})
    assert after.machine.load_times() == before.machine.load_times()
