"""The rules of `fifo`."""

from tests.gateway.core.stand import Stand

from ostler.gateway.core.effects import Grant
from ostler.gateway.core.events import LoadDone
from ostler.gateway.core.fifo import Fifo

ONE_AT_A_TIME = 1.0


def alone(names: str = "abcde", **more) -> Stand:
    """Room for one model."""
    return Stand(Fifo, names, room=ONE_AT_A_TIME, **more)


# 1: who is let in


def test_an_unknown_model_is_refused_and_nothing_is_loaded() -> None:
    stand = Stand(Fifo)
    request = stand.ask("nobody")
    assert stand.code(request) == "model_not_found" and stand.loads == []


def test_a_model_answers_to_its_aliases() -> None:
    stand = Stand(Fifo, a={"aliases": ("gpt-4",)})
    request = stand.ask("gpt-4")
    stand.loaded("a")
    assert stand.of(Grant) == [Grant(request, stand.load("a"))]


def test_over_the_queue_limit_a_request_is_refused_with_a_time_to_come_back() -> None:
    stand = Stand(Fifo, a={"queue_limit": 2, "load_s": 12.0})
    stand.ask("a", "a")
    stand.now = 5.0
    refused = stand.refused[stand.ask("a")]
    assert (refused.code, refused.status, refused.retry_after_s) == ("queue_full", 429, 7.0)
    stand.loaded("a")
    assert stand.ask("a") in stand.granted, "who is served does not wait"


def test_queued_requests_count_for_the_queue_limit_and_cancelled_ones_no_more() -> None:
    stand = alone(a={"queue_limit": 1})
    serving = stand.ask("b")
    stand.loaded("b")
    queued = stand.ask("a")
    assert stand.code(stand.ask("a")) == "queue_full"
    stand.cancel(queued)
    accepted = stand.ask("a")
    assert stand.code(accepted) == ""
    stand.done(serving)
    stand.loaded("a")
    assert accepted in stand.granted


def test_the_refusal_is_the_only_word_a_refused_request_hears() -> None:
    stand = Stand(Fifo, a={"queue_limit": 0})
    stand.ask("a")
    assert len(stand.heard) == 1


# 2: one load for all


def test_all_who_wait_for_a_load_are_served_by_it() -> None:
    stand = Stand(Fifo)
    asked = [stand.ask("a") for _ in range(5)]
    assert stand.loads == [("a", [])]
    stand.loaded("a")
    assert stand.granted == asked and stand.loads == [("a", [])]


def test_a_failed_load_fails_all_who_wait_for_it_and_nobody_else() -> None:
    stand = Stand(Fifo)
    asked = [stand.ask("a") for _ in range(3)]
    other = stand.ask("b")
    stand.loaded("a", error="out of memory")
    assert all(stand.refused[request].status == 502 for request in asked)
    assert "out of memory" in stand.refused[asked[0]].message
    stand.loaded("b")
    assert stand.granted == [other]


# 3: served at once


def test_a_ready_model_serves_at_once_and_many_at_a_time() -> None:
    stand = Stand(Fifo)
    stand.make_ready("a")
    asked = [stand.ask("a") for _ in range(4)]
    assert stand.granted[1:] == asked and len(stand.loads) == 1


def test_a_model_serves_no_more_at_once_than_it_may() -> None:
    stand = Stand(Fifo, a={"concurrency": 2})
    asked = [stand.ask("a") for _ in range(4)]
    stand.loaded("a")
    assert stand.granted == asked[:2] and "as many requests" in stand.why(asked[2])
    stand.done(asked[0])
    assert stand.granted == asked[:3]
    stand.done(asked[1], asked[2])
    assert stand.granted == asked


def test_a_model_that_is_being_evicted_serves_nobody_and_comes_back_after() -> None:
    stand = alone()
    stand.make_ready("a")
    stand.ask("b")
    request = stand.ask("a")
    assert stand.granted == [1] and "is being stopped" in stand.why(request)
    stand.stopped("a")
    assert "'b' is being loaded" in stand.why(request)


# 4: what waits


def test_a_serving_model_is_never_displaced() -> None:
    stand = alone()
    first = stand.ask("a")
    stand.loaded("a")
    second = stand.ask("a")
    waiting = stand.ask("b")
    assert "'a' is in its room and is serving" in stand.why(waiting)
    stand.done(first)
    assert len(stand.loads) == 1, "every request of it must have ended"
    stand.done(second)
    assert stand.loads[-1] == ("b", ["a"])


def test_a_model_waits_for_the_load_and_the_service_of_the_one_it_would_evict() -> None:
    stand = alone()
    first = stand.ask("a")
    second = stand.ask("b")
    assert "'a' is being loaded" in stand.why(second)
    stand.loaded("a")
    assert len(stand.loads) == 1
    stand.done(first)
    assert stand.loads[-1] == ("b", ["a"])


def test_a_load_that_would_evict_the_one_under_way_waits_for_it_and_the_other_way_round() -> None:
    stand = Stand(Fifo, "ab", room=2.0, sizes={"a": 2.0, "b": 2.0})
    first = stand.ask("a")
    second = stand.ask("b")
    third = stand.ask("a")
    assert [model for model, _ in stand.loads] == ["a"] and "'a' is being loaded" in stand.why(second)
    stand.loaded("a")
    stand.done(first, third)
    fourth = stand.ask("a")
    assert stand.loads[-1] == ("b", ["a"]) and fourth not in stand.granted, "it is the victim of a load under way"


def test_a_model_that_was_just_loaded_serves_those_it_was_loaded_for_before_it_gives_way() -> None:
    stand = alone(quantum=0.0)
    asked = [stand.ask("a"), stand.ask("a")]
    stand.ask("b")
    stand.loaded("a")
    assert stand.granted == asked and len(stand.loads) == 1
    stand.done(*asked)
    assert stand.loads[-1] == ("b", ["a"])


def test_two_loads_never_share_a_victim() -> None:
    stand = Stand(Fifo, "xbc", room=2.0, sizes={"x": 2.0, "b": 2.0, "c": 2.0})
    stand.make_ready("x")
    stand.ask("b")
    waiting = stand.ask("c")
    assert stand.loads[1:] == [("b", ["x"])]
    stand.loaded("b")
    assert stand.state("c") == "" and "'b' is in its room" in stand.why(waiting)


def test_a_grant_that_found_nobody_does_not_hold_the_model() -> None:
    stand = alone()
    first = stand.ask("a")
    stand.ask("b")
    stand.loaded("a")
    assert len(stand.loads) == 1
    stand.gone(first)
    assert stand.loads[-1] == ("b", ["a"])


# 5: loads side by side


def test_loads_that_do_not_collide_run_side_by_side() -> None:
    stand = Stand(Fifo, room=2.0)
    stand.ask("a", "b")
    assert stand.loads == [("a", []), ("b", [])]


def test_one_end_starts_all_that_it_unblocks() -> None:
    stand = Stand(Fifo, "xab", room=2.0, sizes={"x": 2.0})
    serving = stand.ask("x")
    stand.loaded("x")
    stand.ask("a", "b")
    stand.done(serving)
    assert stand.loads[1:] == [("a", ["x"])], "the room of x is that of a"
    stand.stopped("x")
    assert stand.loads[2:] == [("b", [])]


# 6: order


def test_the_queue_is_collated_by_model_with_one_load_each() -> None:
    stand = alone()
    asked = [stand.ask(model) for model in "abcabc"]
    for model in "abc":
        stand.loaded(model)
        stand.done(*[request for request, name in zip(asked, "abcabc", strict=True) if name == model])
    assert [model for model, _ in stand.loads] == ["a", "b", "c"]
    assert stand.granted == [asked[index] for index in (0, 3, 1, 4, 2, 5)]


def test_higher_priorities_come_first_and_equal_ones_in_the_order_of_arrival() -> None:
    stand = alone("xabcd", a={"priority": 10}, b={"priority": 5}, c={"priority": 5}, d={"priority": 1})
    serving = stand.ask("x")
    stand.loaded("x")
    asked = {model: stand.ask(model) for model in "dbca"}
    assert [place.model for place in stand.machine.places(stand.now)] == ["a", "b", "c", "d"]
    stand.done(serving)
    for model in "abcd":
        stand.loaded(model)
        stand.done(asked[model])
    assert [model for model, _ in stand.loads] == ["x", "a", "b", "c", "d"]


def test_a_blocked_request_keeps_its_place_while_others_pass() -> None:
    stand = Stand(Fifo, room=3.0, sizes={"big": 3.0}, names=["a", "b", "big"])
    serving = stand.ask("a")
    stand.loaded("a")
    big = stand.ask("big")
    passes = stand.ask("b")
    assert [model for model, _ in stand.loads] == ["a", "b"]
    stand.loaded("b")
    assert passes in stand.granted
    stand.done(serving, passes)
    assert stand.loads[-1] == ("big", ["a", "b"])
    assert stand.machine.places(stand.now)[0].request == big
    assert stand.machine.places(stand.now)[0].overtaken == 1


def test_a_waiting_request_is_told_its_place_and_then_that_its_load_began() -> None:
    stand = alone()
    first = stand.ask("a")
    assert stand.told() == [(first, 0)]
    second = stand.ask("b")
    assert stand.told() == [(second, 1)]
    third = stand.ask("c")
    assert stand.told() == [(third, 2)]
    stand.loaded("a")
    stand.done(first)
    assert stand.told() == [(second, 0)]


# Callers who leave


def test_a_cancelled_queued_request_causes_no_load() -> None:
    stand = alone()
    first, second = stand.ask("a"), stand.ask("b")
    stand.cancel(second)
    stand.loaded("a")
    stand.done(first)
    assert [model for model, _ in stand.loads] == ["a"]


def test_a_cancelled_request_no_longer_waits_for_its_load_and_the_others_do() -> None:
    stand = Stand(Fifo)
    leaves, stays = stand.ask("a"), stand.ask("a")
    stand.cancel(leaves)
    stand.loaded("a")
    assert stand.granted == [stays]


def test_a_load_that_nobody_waits_for_any_more_is_finished_where_it_is_in_nobodys_way() -> None:
    stand = alone()
    stand.cancel(stand.ask("a"))
    stand.loaded("a")
    assert stand.ask("a") in stand.granted


def test_a_load_that_nobody_waits_for_any_more_is_given_up_for_one_that_is_wanted() -> None:
    stand = alone()
    first, second = stand.ask("a"), stand.ask("b")
    stand.cancel(first)
    assert stand.stops() == [(["a"], "abandoned")]
    stand.stopped("a")
    stand.loaded("b")
    assert stand.granted == [second]


def test_a_cancel_after_the_grant_or_after_the_end_changes_nothing() -> None:
    stand = Stand(Fifo)
    request = stand.ask("a")
    stand.loaded("a")
    assert stand.cancel(request) == []
    stand.done(request)
    assert stand.cancel(request) == [] and stand.done(request) == []


def test_the_late_end_of_an_abandoned_load_changes_nothing() -> None:
    stand = Stand(Fifo)
    stand.ask("a")
    old = stand.load("a")
    stand.unload("a")
    stand.stopped("a")
    request = stand.ask("a")
    assert stand.turn(LoadDone(old)) == [] and stand.turn(LoadDone(old, "late")) == []
    stand.loaded("a")
    assert stand.granted == [request]
