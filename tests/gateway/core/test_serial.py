"""The ten rules of `serial`, and what they leave open."""

import pytest
from tests.gateway.core.core_gateway import CoreGateway

from ostler.gateway.core.events import LoadDone, ModelFound, PreloadAsked
from ostler.gateway.core.serial import Serial

# 1: ready, and nothing else is running


def test_a_ready_model_with_nothing_else_running_serves_at_once() -> None:
    gateway = CoreGateway(Serial)
    gateway.make_ready("a")
    request = gateway.ask("a")
    assert gateway.grants() == [request]
    assert gateway.loads == [("a", [])]


# 2: cold


def test_a_cold_model_is_loaded_before_its_request_is_served() -> None:
    gateway = CoreGateway(Serial)
    request = gateway.ask("a")
    assert gateway.grants() == [] and gateway.loads == [("a", [])]
    gateway.loaded("a")
    assert gateway.grants() == [request]


# 3: unknown


def test_an_unknown_model_is_refused_at_once_and_nothing_is_loaded() -> None:
    gateway = CoreGateway(Serial)
    request = gateway.ask("nobody")
    assert gateway.code(request) == "model_not_found" and gateway.refused[request].status == 404
    assert gateway.loads == []


# 4: one model in memory


def test_every_other_model_that_is_not_stopped_is_evicted_before_a_load() -> None:
    gateway = CoreGateway(Serial)
    gateway.make_ready("c")
    gateway.unload("c")
    first = gateway.ask("b")
    assert gateway.loads[-1] == ("b", ["c"]), "it is being stopped and not yet gone"
    gateway.ask("a")
    gateway.turn(LoadDone(gateway.load("b")))
    gateway.done(first)
    assert gateway.loads[-1] == ("a", ["b", "c"])
    gateway.loaded("a")
    assert gateway.states("abc") == ["ready", "", ""]


def test_what_is_found_running_beside_the_model_that_serves_is_stopped() -> None:
    gateway = CoreGateway(Serial)
    gateway.turn(ModelFound("a"))
    request = gateway.ask("a")
    assert gateway.grants() == [request], "what runs already needs no load"
    gateway.turn(ModelFound("b"))
    assert gateway.stops() == [(["b"], "evicted")]


# 5: one request at a time


def test_while_one_request_is_served_the_next_waits_even_for_the_same_model() -> None:
    gateway = CoreGateway(Serial)
    first = gateway.ask("a")
    gateway.loaded("a")
    second = gateway.ask("a")
    assert gateway.granted == [first]
    gateway.done(first)
    assert gateway.granted == [first, second]
    assert gateway.loads == [("a", [])], "the same model twice needs no second load"


def test_the_next_model_is_loaded_only_when_the_request_before_it_has_ended() -> None:
    gateway = CoreGateway(Serial)
    first = gateway.ask("a")
    gateway.loaded("a")
    gateway.ask("b")
    assert gateway.loads == [("a", [])]
    gateway.done(first)
    assert gateway.loads == [("a", []), ("b", ["a"])]


# 6: the exact order of arrival


def test_requests_are_never_reordered_or_batched() -> None:
    gateway = CoreGateway(Serial)
    asked = [gateway.ask(model) for model in "abca"]
    for model, request in zip("abca", asked, strict=True):
        gateway.loaded(model)
        gateway.done(request)
    assert gateway.granted == asked
    assert [model for model, _ in gateway.loads] == ["a", "b", "c", "a"]


def test_groups_sets_and_priorities_are_ignored() -> None:
    gateway = CoreGateway(Serial, "ab", b={"priority": 9}, a={"pinned": True})
    first, second = gateway.ask("a"), gateway.ask("b")
    gateway.loaded("a")
    gateway.done(first)
    assert gateway.loads[-1] == ("b", ["a"]), "pinned or not: one model in memory"
    gateway.loaded("b")
    assert gateway.granted == [first, second]


# 7: loads that fail and callers who leave


def test_a_failed_load_fails_its_caller_and_the_queue_goes_on() -> None:
    gateway = CoreGateway(Serial)
    lost, next_one = gateway.ask("a"), gateway.ask("b")
    gateway.loaded("a", error="exit code 1")
    assert gateway.code(lost) == "model_load_failed" and "exit code 1" in gateway.refused[lost].message
    gateway.loaded("b")
    assert gateway.granted == [next_one]


def test_a_caller_who_has_gone_by_the_time_of_the_grant_holds_up_nobody() -> None:
    gateway = CoreGateway(Serial)
    first = gateway.ask("a")
    gateway.ask("b")
    gateway.loaded("a")
    gateway.gone(first)
    assert gateway.loads[-1] == ("b", ["a"])


def test_a_cancelled_queued_request_is_removed_and_its_model_is_never_loaded() -> None:
    gateway = CoreGateway(Serial)
    first, second, third = (gateway.ask(model) for model in "abc")
    gateway.cancel(second)
    gateway.loaded("a")
    gateway.done(first)
    gateway.loaded("c")
    assert gateway.granted == [first, third]
    assert [model for model, _ in gateway.loads] == ["a", "c"]


def test_a_load_whose_caller_left_goes_to_the_next_request_for_the_model() -> None:
    gateway = CoreGateway(Serial)
    first, second = gateway.ask("a"), gateway.ask("a")
    gateway.cancel(first)
    gateway.loaded("a")
    assert gateway.granted == [second] and len(gateway.loads) == 1


def test_a_load_whose_caller_left_is_given_up_when_another_model_is_next() -> None:
    gateway = CoreGateway(Serial)
    first, second = gateway.ask("a"), gateway.ask("b")
    gateway.cancel(first)
    assert gateway.loads[-1] == ("b", ["a"])
    gateway.loaded("b")
    assert gateway.granted == [second]


def test_a_load_whose_caller_left_is_finished_when_nobody_else_waits() -> None:
    gateway = CoreGateway(Serial)
    gateway.cancel(gateway.ask("a"))
    assert gateway.state("a") == "loading"
    gateway.loaded("a")
    request = gateway.ask("a")
    assert gateway.granted == [request]


# 8: unloading


def test_unloading_a_model_that_is_being_loaded_refuses_its_caller_and_the_queue_goes_on() -> None:
    gateway = CoreGateway(Serial)
    lost, also_lost, other = gateway.ask("a"), gateway.ask("a"), gateway.ask("b")
    gateway.unload("a")
    assert [gateway.code(request) for request in (lost, also_lost)] == ["unloaded", "unloaded"]
    assert (["a"], "unloaded") in gateway.stops()
    assert gateway.loads[-1] == ("b", ["a"])
    gateway.loaded("b")
    assert gateway.granted == [other]


def test_unloading_the_model_that_serves_stops_it_and_the_queue_waits_for_the_request_to_end() -> None:
    gateway = CoreGateway(Serial)
    first, dropped, other = gateway.ask("a"), gateway.ask("a"), gateway.ask("b")
    gateway.loaded("a")
    gateway.unload("a")
    assert gateway.stops() == [(["a"], "unloaded")]
    assert gateway.code(dropped) == "unloaded" and gateway.code(first) == ""
    gateway.stopped("a")
    assert gateway.answered() == [7]
    assert [model for model, _ in gateway.loads] == ["a"]
    gateway.done(first)
    assert gateway.loads[-1] == ("b", [])
    gateway.loaded("b")
    assert gateway.granted == [first, other]


def test_queued_requests_for_an_unloaded_model_get_an_error_and_those_for_others_go_on() -> None:
    gateway = CoreGateway(Serial)
    serving, dropped, other = gateway.ask("a"), gateway.ask("b"), gateway.ask("c")
    gateway.loaded("a")
    gateway.unload("b")
    assert gateway.code(dropped) == "unloaded" and gateway.answered() == [7]
    gateway.done(serving)
    gateway.loaded("c")
    assert gateway.granted == [serving, other]


def test_a_model_that_is_being_stopped_is_loaded_again_only_when_it_is_gone() -> None:
    gateway = CoreGateway(Serial)
    gateway.make_ready("a")
    gateway.unload("a")
    request = gateway.ask("a")
    assert len(gateway.loads) == 1 and "is being stopped" in gateway.why(request)
    gateway.stopped("a")
    assert len(gateway.loads) == 2


# 9: shutting down


def test_shutdown_refuses_the_loading_request_and_all_queued_ones() -> None:
    gateway = CoreGateway(Serial)
    asked = [gateway.ask(model) for model in "abc"]
    gateway.shut_down()
    assert {gateway.code(request) for request in asked} == {"shutting_down"}
    assert (["a"], "shutdown") in gateway.stops()
    assert not gateway.machine.state.requests and gateway.machine.places(gateway.now) == []
    gateway.stopped("a")
    assert [model for model, _ in gateway.loads] == ["a"], "nothing is loaded any more"
    late = gateway.ask("a")
    assert gateway.refused[late].status == 503


def test_shutdown_lets_the_request_end_that_is_being_served() -> None:
    gateway = CoreGateway(Serial)
    request = gateway.ask("a")
    gateway.loaded("a")
    gateway.shut_down()
    assert gateway.stops() == [] and gateway.code(request) == ""
    gateway.done(request)
    assert gateway.stops() == [(["a"], "shutdown")]


# 10: a load is known by its token


def test_the_late_end_of_an_abandoned_load_changes_nothing() -> None:
    gateway = CoreGateway(Serial)
    gateway.ask("a")
    abandoned = gateway.load("a")
    gateway.unload("a")
    gateway.stopped("a")
    request = gateway.ask("a")
    assert gateway.turn(LoadDone(abandoned)) == []
    assert gateway.turn(LoadDone(abandoned, "too late")) == []
    assert gateway.state("a") == "loading" and gateway.granted == []
    gateway.loaded("a")
    assert gateway.granted == [request]


# What the rules leave open


def test_a_request_waits_for_jobs_to_leave_room_and_none_of_them_is_killed() -> None:
    gateway = CoreGateway(Serial, room=1.0)
    gateway.make_ready("a")
    gateway.jobs_take(1.0)
    request = gateway.ask("b")
    assert len(gateway.loads) == 1 and "jobs" in gateway.why(request)
    gateway.jobs_take(0.0)
    assert gateway.loads[-1] == ("b", ["a"])


def test_the_first_in_line_holds_up_those_behind_it_and_why_says_so() -> None:
    gateway = CoreGateway(Serial, room=1.0, sizes={"b": 2.0})
    gateway.make_ready("a")
    gateway.ask("b")
    behind = gateway.ask("a")
    assert "order" in gateway.why(behind) and "'b'" in gateway.why(behind)


@pytest.mark.parametrize("first", ["stopped", "failed"])
def test_a_process_that_dies_before_the_first_byte_is_started_once_more_for_the_request(first: str) -> None:
    gateway = CoreGateway(Serial)
    request, behind = gateway.ask("a"), gateway.ask("b")
    gateway.loaded("a")
    if first == "stopped":
        gateway.stopped("a", "killed by signal 9")
        gateway.failed(request)
    else:
        gateway.failed(request)
        gateway.stopped("a", "killed by signal 9")
    assert gateway.loads[-1] == ("a", []), "it keeps its place before the others"
    gateway.loaded("a")
    assert gateway.granted == [request, request]
    gateway.failed(request)
    assert gateway.refused[request].status == 502
    gateway.wait(1.0)
    assert gateway.code(behind) == ""


def test_an_idle_model_is_unloaded_after_its_time() -> None:
    gateway = CoreGateway(Serial, a={"ttl_s": 30.0})
    gateway.make_ready("a")
    gateway.wait(29.0)
    assert gateway.state("a") == "ready"
    gateway.wait(1.0)
    assert gateway.stops() == [(["a"], "idle")]


def test_over_the_queue_limit_a_request_is_refused() -> None:
    gateway = CoreGateway(Serial, a={"queue_limit": 1})
    gateway.ask("a")
    refused = gateway.ask("a")
    assert gateway.refused[refused].status == 429


def test_preloading_fills_an_empty_memory_only() -> None:
    gateway = CoreGateway(Serial)
    gateway.turn(PreloadAsked(["b", "c"]))
    assert gateway.loads == [("b", [])]
    gateway.loaded("b")
    assert gateway.loads == [("b", [])]
    request = gateway.ask("a")
    assert gateway.loads[-1] == ("a", ["b"])
    gateway.loaded("a")
    assert gateway.granted == [request]


def test_places_are_told_in_the_order_of_arrival_with_what_each_still_waits() -> None:
    gateway = CoreGateway(Serial, "ab", a={"load_s": 10.0}, b={"load_s": 30.0})
    gateway.ask("a", "b", "b")
    gateway.now = 4.0
    places = gateway.machine.places(gateway.now)
    assert [(place.request, place.position) for place in places] == [(1, 0), (2, 1), (3, 2)]
    assert [place.waited_s for place in places] == [4.0, 4.0, 4.0]
    assert [place.estimate_s for place in places] == [6.0, 6.0 + 5.0 + 30.0, 6.0 + 5.0 + 30.0 + 5.0]
