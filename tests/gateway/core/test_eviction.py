"""Whom to displace."""

import itertools
import random
from collections.abc import Callable, Collection

import pytest
from tests.gateway.core.core_gateway import CoreGateway

from ostler.gateway.core.eviction import EXACT_UP_TO, EXPECTED_LOSS, Candidate, choose
from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.models import Sets


def candidates(**losses: float) -> list[Candidate]:
    return [Candidate(ord(model), loss, 0.0, model) for model, loss in losses.items()]


def needs(room: float, **sizes: float) -> Callable[[Collection[int]], bool]:
    return lambda gone: sum(sizes[chr(load)] for load in gone) >= room


def chosen(found: list[int] | None) -> str | None:
    return None if found is None else "".join(chr(load) for load in found)


def test_nothing_is_displaced_where_there_is_room() -> None:
    assert chosen(choose(candidates(a=0.0), lambda gone: True)) == ""


def test_it_is_impossible_where_not_even_all_suffice() -> None:
    assert choose(candidates(a=1.0, b=1.0), needs(3, a=1, b=1)) is None
    assert choose([], lambda gone: False) is None


def test_the_least_loss_wins() -> None:
    assert chosen(choose(candidates(a=3.0, b=1.0, c=2.0), needs(1, a=1, b=1, c=1))) == "b"


def test_one_that_is_dear_may_be_cheaper_than_two_that_are_not() -> None:
    assert chosen(choose(candidates(a=2.0, b=2.0, c=3.0), needs(2, a=1, b=1, c=2))) == "c"
    assert chosen(choose(candidates(a=1.0, b=1.0, c=3.0), needs(2, a=1, b=1, c=2))) == "ab"


def test_ties_go_to_the_least_recently_used_and_then_by_name() -> None:
    enough = needs(1, a=1, b=1, c=1)
    used = [Candidate(ord(model), 1.0, at, model) for model, at in (("a", 9.0), ("b", 5.0), ("c", 7.0))]
    assert chosen(choose(used, enough)) == "b"
    assert chosen(choose([Candidate(98, 1.0, 5.0, "c"), Candidate(99, 1.0, 5.0, "b")], enough)) == "c"


def test_no_more_is_displaced_than_needed_where_nothing_would_be_lost() -> None:
    assert chosen(choose(candidates(a=0.0, b=0.0, c=0.0), needs(2, a=1, b=2, c=1))) == "b"


@pytest.mark.parametrize("seed", range(30))
def test_the_best_set_is_found_among_few_and_a_sufficient_one_without_spares_among_many(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.choice((3, 6, 9, EXACT_UP_TO + 4))
    names = range(count)
    losses = {name: rng.choice((0.0, 1.0, 2.5, 7.0)) for name in names}
    sizes = {name: rng.choice((1, 2, 4)) for name in names}
    room = rng.randint(1, sum(sizes.values()))

    def suffices(gone: Collection[int]) -> bool:
        return sum(sizes[name] for name in gone) >= room

    found = choose([Candidate(name, losses[name], rng.random()) for name in names], suffices)
    assert found is not None and suffices(found)
    assert not any(suffices(set(found) - {name}) for name in found)
    if count <= EXACT_UP_TO:
        sets = (some for size in range(count + 1) for some in itertools.combinations(names, size))
        least = min(sum(losses[name] for name in some) for some in sets if suffices(some))
        assert sum(losses[name] for name in found) == pytest.approx(least)


def test_a_model_that_is_asked_for_often_stays_and_one_that_is_not_goes() -> None:
    gateway = CoreGateway(Fifo, room=2.0)
    gateway.make_ready("a", "b")
    for _ in range(20):
        gateway.wait(1.0)
        gateway.done(gateway.ask("a"))
    gateway.wait(1.0)
    gateway.done(gateway.ask("b"))
    gateway.ask("c")
    assert gateway.loads[-1] == ("c", ["b"]), "the least recently used one would have been a"


def test_a_model_that_takes_long_to_load_stays_where_all_else_is_equal() -> None:
    gateway = CoreGateway(Fifo, room=2.0, a={"load_s": 100.0}, b={"load_s": 5.0})
    for model, load_s in (("a", 100.0), ("b", 5.0)):
        request = gateway.ask(model)
        gateway.wait(load_s)
        gateway.loaded(model)
        gateway.done(request)
    gateway.ask("c")
    assert gateway.loads[-1] == ("c", ["b"])


def test_the_loss_is_what_a_reload_costs_times_the_chance_of_use() -> None:
    gateway = CoreGateway(Fifo, room=2.0, a={"load_s": 40.0})
    gateway.ask("a")
    gateway.wait(40.0)
    gateway.loaded("a")
    resident = gateway.instance("a")
    state = gateway.machine.state
    resident.in_flight, before = 0, EXPECTED_LOSS.loss(state, resident, "b", gateway.now)
    resident.in_flight = 1
    assert 0.0 < before < 40.0
    assert EXPECTED_LOSS.loss(state, resident, "b", gateway.now + 3600.0) < before / 10.0, "chances fade"


def test_pinned_models_are_never_displaced() -> None:
    gateway = CoreGateway(Fifo, room=2.0, a={"pinned": True})
    gateway.make_ready("b", "a")
    gateway.ask("c")
    assert gateway.loads[-1] == ("c", ["b"])
    alone = CoreGateway(Fifo, room=1.0, a={"pinned": True})
    alone.make_ready("a")
    request = alone.ask("b")
    assert len(alone.loads) == 1 and "pinned" in alone.why(request)
    alone.unload("a")
    alone.stopped("a")
    assert alone.loads[-1] == ("b", []), "who unloads it means it"


def test_an_idle_model_that_will_be_asked_for_stays_while_the_other_has_not_waited_for_long() -> None:
    gateway = CoreGateway(Fifo, room=1.0)
    gateway.make_ready("a")
    for _ in range(900):
        gateway.wait(0.5)
        gateway.done(gateway.ask("a"))
    gateway.machine.state.usual_wait_s = 100.0
    waiting = gateway.ask("b")
    assert len(gateway.loads) == 1 and "likely to be asked for" in gateway.why(waiting)
    gateway.done(gateway.ask("a"))
    assert len(gateway.loads) == 1, "that is what it was kept for"
    gateway.wait(80.0)
    assert gateway.loads[-1] == ("b", ["a"])


def test_a_model_that_fell_silent_is_not_kept_for_what_it_once_was() -> None:
    gateway = CoreGateway(Fifo, room=1.0)
    gateway.make_ready("a")
    for _ in range(900):
        gateway.wait(0.5)
        gateway.done(gateway.ask("a"))
    gateway.machine.state.usual_wait_s = 100.0
    gateway.wait(30.0)
    gateway.ask("b")
    assert gateway.loads[-1] == ("b", ["a"])


def test_where_nobody_usually_waits_nobody_waits_for_an_idle_model() -> None:
    gateway = CoreGateway(Fifo, room=1.0)
    gateway.make_ready("a")
    for _ in range(900):
        gateway.wait(0.5)
        gateway.done(gateway.ask("a"))
    gateway.ask("b")
    assert gateway.loads[-1] == ("b", ["a"])


# Sets of models that may be together


def in_sets(*members: str, names: str = "abcd", **costs: float) -> CoreGateway:
    return CoreGateway(Fifo, names, sets=Sets(members=tuple(tuple(some) for some in members), evict_costs=costs))


def test_models_of_one_set_are_loaded_beside_each_other() -> None:
    gateway = in_sets("abc", "ad")
    gateway.ask("a", "b", "c")
    assert [evict for _, evict in gateway.loads] == [[], [], []]


def test_models_of_no_common_set_displace_each_other() -> None:
    gateway = in_sets("ab", "cd")
    gateway.make_ready("a", "b")
    gateway.ask("c")
    assert gateway.loads[-1] == ("c", ["a", "b"])


def test_a_model_of_no_common_set_waits_for_a_load_under_way() -> None:
    gateway = in_sets("ab", "cd")
    first = gateway.ask("a")
    request = gateway.ask("c")
    assert "'a' is being loaded" in gateway.why(request)
    gateway.loaded("a")
    gateway.done(first)
    assert gateway.loads[-1] == ("c", ["a"])


def test_the_set_is_chosen_whose_loss_is_least() -> None:
    gateway = in_sets("ab", "ac", "bcd", names="abcd")
    gateway.make_ready("b", "c")
    gateway.wait(1.0)
    gateway.done(gateway.ask("b"))
    gateway.ask("a")
    assert gateway.loads[-1] == ("a", ["c"])


def test_eviction_costs_weigh_the_loss() -> None:
    gateway = in_sets("ab", "ac", "bcd", names="abcd", c=50.0)
    gateway.make_ready("b", "c")
    gateway.wait(1.0)
    gateway.done(gateway.ask("b"))
    gateway.ask("a")
    assert gateway.loads[-1] == ("a", ["b"])


def test_a_model_in_no_set_is_bound_by_the_ledger_alone() -> None:
    gateway = in_sets("ab", names="abx")
    gateway.make_ready("a", "x")
    gateway.ask("b")
    assert gateway.loads[-1] == ("b", [])
