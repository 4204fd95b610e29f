"""The rules of `fifo`."""

from tests.gateway.core.core_gateway import CoreGateway

from ostler.gateway.core.effects import Grant
from ostler.gateway.core.events import LoadDone
from ostler.gateway.core.fifo import Fifo

ONE_AT_A_TIME = 1.0


def alone(names: str = "abcde", **more) -> CoreGateway:
    """Room for one model."""
    return CoreGateway(Fifo, names, room=ONE_AT_A_TIME, **more)


# 1: who is let in


def test_an_unknown_model_is_refused_and_nothing_is_loaded() -> None:
    gateway = CoreGateway(Fifo)
    request = gateway.ask("nobody")
    assert gateway.code(request) == "model_not_found" and gateway.loads == []


def test_a_model_answers_to_its_aliases() -> None:
    gateway = CoreGateway(Fifo, a={"aliases": ("gpt-4",)})
    request = gateway.ask("gpt-4")
    gateway.loaded("a")
    assert gateway.of(Grant) == [Grant(request, gateway.load("a"))]


def test_over_the_queue_limit_a_request_is_refused_with_a_time_to_come_back() -> None:
    gateway = CoreGateway(Fifo, a={"queue_limit": 2, "load_s": 12.0})
    gateway.ask("a", "a")
    gateway.now = 5.0
    refused = gateway.refused[gateway.ask("a")]
    assert (refused.code, refused.status, refused.retry_after_s) == ("queue_full", 429, 7.0)
    gateway.loaded("a")
    assert gateway.ask("a") in gateway.granted, "who is served does not wait"


def test_queued_requests_count_for_the_queue_limit_and_cancelled_ones_no_more() -> None:
    gateway = alone(a={"queue_limit": 1})
    serving = gateway.ask("b")
    gateway.loaded("b")
    queued = gateway.ask("a")
    assert gateway.code(gateway.ask("a")) == "queue_full"
    gateway.cancel(queued)
    accepted = gateway.ask("a")
    assert gateway.code(accepted) == ""
    gateway.done(serving)
    gateway.loaded("a")
    assert accepted in gateway.granted


def test_the_refusal_is_the_only_word_a_refused_request_hears() -> None:
    gateway = CoreGateway(Fifo, a={"queue_limit": 0})
    gateway.ask("a")
    assert len(gateway.heard) == 1


# 2: one load for all


def test_all_who_wait_for_a_load_are_served_by_it() -> None:
    gateway = CoreGateway(Fifo)
    asked = [gateway.ask("a") for _ in range(5)]
    assert gateway.loads == [("a", [])]
    gateway.loaded("a")
    assert gateway.granted == asked and gateway.loads == [("a", [])]


def test_a_failed_load_fails_all_who_wait_for_it_and_nobody_else() -> None:
    gateway = CoreGateway(Fifo)
    asked = [gateway.ask("a") for _ in range(3)]
    other = gateway.ask("b")
    gateway.loaded("a", error="out of memory")
    assert all(gateway.refused[request].status == 502 for request in asked)
    assert "out of memory" in gateway.refused[asked[0]].message
    gateway.loaded("b")
    assert gateway.granted == [other]


# 3: served at once


def test_a_ready_model_serves_at_once_and_many_at_a_time() -> None:
    gateway = CoreGateway(Fifo)
    gateway.make_ready("a")
    asked = [gateway.ask("a") for _ in range(4)]
    assert gateway.granted[1:] == asked and len(gateway.loads) == 1


def test_a_model_serves_no_more_at_once_than_it_may() -> None:
    gateway = CoreGateway(Fifo, a={"concurrency": 2})
    asked = [gateway.ask("a") for _ in range(4)]
    gateway.loaded("a")
    assert gateway.granted == asked[:2] and "as many requests" in gateway.why(asked[2])
    gateway.done(asked[0])
    assert gateway.granted == asked[:3]
    gateway.done(asked[1], asked[2])
    assert gateway.granted == asked


def test_a_model_that_is_being_evicted_serves_nobody_and_comes_back_after() -> None:
    gateway = alone()
    gateway.make_ready("a")
    gateway.ask("b")
    request = gateway.ask("a")
    assert gateway.granted == [1] and "is being stopped" in gateway.why(request)
    gateway.stopped("a")
    assert "'b' is being loaded" in gateway.why(request)


# 4: what waits


def test_a_serving_model_is_never_displaced() -> None:
    gateway = alone()
    first = gateway.ask("a")
    gateway.loaded("a")
    second = gateway.ask("a")
    waiting = gateway.ask("b")
    assert "'a' is in its room and is serving" in gateway.why(waiting)
    gateway.done(first)
    assert len(gateway.loads) == 1, "every request of it must have ended"
    gateway.done(second)
    assert gateway.loads[-1] == ("b", ["a"])


def test_a_model_waits_for_the_load_and_the_service_of_the_one_it_would_evict() -> None:
    gateway = alone()
    first = gateway.ask("a")
    second = gateway.ask("b")
    assert "'a' is being loaded" in gateway.why(second)
    gateway.loaded("a")
    assert len(gateway.loads) == 1
    gateway.done(first)
    assert gateway.loads[-1] == ("b", ["a"])


def test_a_load_that_would_evict_the_one_under_way_waits_for_it_and_the_other_way_round() -> None:
    gateway = CoreGateway(Fifo, "ab", room=2.0, sizes={"a": 2.0, "b": 2.0})
    first = gateway.ask("a")
    second = gateway.ask("b")
    third = gateway.ask("a")
    assert [model for model, _ in gateway.loads] == ["a"] and "'a' is being loaded" in gateway.why(second)
    gateway.loaded("a")
    gateway.done(first, third)
    fourth = gateway.ask("a")
    assert gateway.loads[-1] == ("b", ["a"]) and fourth not in gateway.granted, "it is the victim of a load under way"


def test_a_model_that_was_just_loaded_serves_those_it_was_loaded_for_before_it_gives_way() -> None:
    gateway = alone(quantum=0.0)
    asked = [gateway.ask("a"), gateway.ask("a")]
    gateway.ask("b")
    gateway.loaded("a")
    assert gateway.granted == asked and len(gateway.loads) == 1
    gateway.done(*asked)
    assert gateway.loads[-1] == ("b", ["a"])


def test_two_loads_never_share_a_victim() -> None:
    gateway = CoreGateway(Fifo, "xbc", room=2.0, sizes={"x": 2.0, "b": 2.0, "c": 2.0})
    gateway.make_ready("x")
    gateway.ask("b")
    waiting = gateway.ask("c")
    assert gateway.loads[1:] == [("b", ["x"])]
    gateway.loaded("b")
    assert gateway.state("c") == "" and "'b' is in its room" in gateway.why(waiting)


def test_a_grant_that_found_nobody_does_not_hold_the_model() -> None:
    gateway = alone()
    first = gateway.ask("a")
    gateway.ask("b")
    gateway.loaded("a")
    assert len(gateway.loads) == 1
    gateway.gone(first)
    assert gateway.loads[-1] == ("b", ["a"])


# 5: loads side by side


def test_loads_that_do_not_collide_run_side_by_side() -> None:
    gateway = CoreGateway(Fifo, room=2.0)
    gateway.ask("a", "b")
    assert gateway.loads == [("a", []), ("b", [])]


def test_one_end_starts_all_that_it_unblocks() -> None:
    gateway = CoreGateway(Fifo, "xab", room=2.0, sizes={"x": 2.0})
    serving = gateway.ask("x")
    gateway.loaded("x")
    gateway.ask("a", "b")
    gateway.done(serving)
    assert gateway.loads[1:] == [("a", ["x"])], "the room of x is that of a"
    gateway.stopped("x")
    assert gateway.loads[2:] == [("b", [])]


# 6: order


def test_the_queue_is_collated_by_model_with_one_load_each() -> None:
    gateway = alone()
    asked = [gateway.ask(model) for model in "abcabc"]
    for model in "abc":
        gateway.loaded(model)
        gateway.done(*[request for request, name in zip(asked, "abcabc", strict=True) if name == model])
    assert [model for model, _ in gateway.loads] == ["a", "b", "c"]
    assert gateway.granted == [asked[index] for index in (0, 3, 1, 4, 2, 5)]


def test_higher_priorities_come_first_and_equal_ones_in_the_order_of_arrival() -> None:
    gateway = alone("xabcd", a={"priority": 10}, b={"priority": 5}, c={"priority": 5}, d={"priority": 1})
    serving = gateway.ask("x")
    gateway.loaded("x")
    asked = {model: gateway.ask(model) for model in "dbca"}
    assert [place.model for place in gateway.machine.places(gateway.now)] == ["a", "b", "c", "d"]
    gateway.done(serving)
    for model in "abcd":
        gateway.loaded(model)
        gateway.done(asked[model])
    assert [model for model, _ in gateway.loads] == ["x", "a", "b", "c", "d"]


def test_a_blocked_request_keeps_its_place_while_others_pass() -> None:
    gateway = CoreGateway(Fifo, room=3.0, sizes={"big": 3.0}, names=["a", "b", "big"])
    serving = gateway.ask("a")
    gateway.loaded("a")
    big = gateway.ask("big")
    passes = gateway.ask("b")
    assert [model for model, _ in gateway.loads] == ["a", "b"]
    gateway.loaded("b")
    assert passes in gateway.granted
    gateway.done(serving, passes)
    assert gateway.loads[-1] == ("big", ["a", "b"])
    assert gateway.machine.places(gateway.now)[0].request == big
    assert gateway.machine.places(gateway.now)[0].overtaken == 1


def test_a_waiting_request_is_told_its_place_and_then_that_its_load_began() -> None:
    gateway = alone()
    first = gateway.ask("a")
    assert gateway.told() == [(first, 0)]
    second = gateway.ask("b")
    assert gateway.told() == [(second, 1)]
    third = gateway.ask("c")
    assert gateway.told() == [(third, 2)]
    gateway.loaded("a")
    gateway.done(first)
    assert gateway.told() == [(second, 0)]


# Callers who leave


def test_a_cancelled_queued_request_causes_no_load() -> None:
    gateway = alone()
    first, second = gateway.ask("a"), gateway.ask("b")
    gateway.cancel(second)
    gateway.loaded("a")
    gateway.done(first)
    assert [model for model, _ in gateway.loads] == ["a"]


def test_a_cancelled_request_no_longer_waits_for_its_load_and_the_others_do() -> None:
    gateway = CoreGateway(Fifo)
    leaves, stays = gateway.ask("a"), gateway.ask("a")
    gateway.cancel(leaves)
    gateway.loaded("a")
    assert gateway.granted == [stays]


def test_a_load_that_nobody_waits_for_any_more_is_finished_where_it_is_in_nobodys_way() -> None:
    gateway = alone()
    gateway.cancel(gateway.ask("a"))
    gateway.loaded("a")
    assert gateway.ask("a") in gateway.granted


def test_a_load_that_nobody_waits_for_any_more_is_given_up_for_one_that_is_wanted() -> None:
    gateway = alone()
    first, second = gateway.ask("a"), gateway.ask("b")
    gateway.cancel(first)
    assert gateway.stops() == [(["a"], "abandoned")]
    gateway.stopped("a")
    gateway.loaded("b")
    assert gateway.granted == [second]


def test_a_cancel_after_the_grant_or_after_the_end_changes_nothing() -> None:
    gateway = CoreGateway(Fifo)
    request = gateway.ask("a")
    gateway.loaded("a")
    assert gateway.cancel(request) == []
    gateway.done(request)
    assert gateway.cancel(request) == [] and gateway.done(request) == []


def test_the_late_end_of_an_abandoned_load_changes_nothing() -> None:
    gateway = CoreGateway(Fifo)
    gateway.ask("a")
    old = gateway.load("a")
    gateway.unload("a")
    gateway.stopped("a")
    request = gateway.ask("a")
    assert gateway.turn(LoadDone(old)) == [] and gateway.turn(LoadDone(old, "late")) == []
    gateway.loaded("a")
    assert gateway.granted == [request]
