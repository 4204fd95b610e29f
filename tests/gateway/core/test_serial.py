"""The ten rules of `serial`, and what they leave open."""

import pytest
from tests.gateway.core.stand import Stand

from ostler.gateway.core.events import LoadDone, ModelFound, PreloadAsked
from ostler.gateway.core.serial import Serial

# 1: ready, and nothing else is running


def test_a_ready_model_with_nothing_else_running_serves_at_once() -> None:
    stand = Stand(Serial)
    stand.make_ready("a")
    request = stand.ask("a")
    assert stand.grants() == [request]
    assert stand.loads == [("a", [])]


# 2: cold


def test_a_cold_model_is_loaded_before_its_request_is_served() -> None:
    stand = Stand(Serial)
    request = stand.ask("a")
    assert stand.grants() == [] and stand.loads == [("a", [])]
    stand.loaded("a")
    assert stand.grants() == [request]


# 3: unknown


def test_an_unknown_model_is_refused_at_once_and_nothing_is_loaded() -> None:
    stand = Stand(Serial)
    request = stand.ask("nobody")
    assert stand.code(request) == "model_not_found" and stand.refused[request].status == 404
    assert stand.loads == []


# 4: one model in memory


def test_every_other_model_that_is_not_stopped_is_evicted_before_a_load() -> None:
    stand = Stand(Serial)
    stand.make_ready("c")
    stand.unload("c")
    first = stand.ask("b")
    assert stand.loads[-1] == ("b", ["c"]), "it is being stopped and not yet gone"
    stand.ask("a")
    stand.turn(LoadDone(stand.load("b")))
    stand.done(first)
    assert stand.loads[-1] == ("a", ["b", "c"])
    stand.loaded("a")
    assert stand.states("abc") == ["ready", "", ""]


def test_what_is_found_running_beside_the_model_that_serves_is_stopped() -> None:
    stand = Stand(Serial)
    stand.turn(ModelFound("a"))
    request = stand.ask("a")
    assert stand.grants() == [request], "what runs already needs no load"
    stand.turn(ModelFound("b"))
    assert stand.stops() == [(["b"], "evicted")]


# 5: one request at a time


def test_while_one_request_is_served_the_next_waits_even_for_the_same_model() -> None:
    stand = Stand(Serial)
    first = stand.ask("a")
    stand.loaded("a")
    second = stand.ask("a")
    assert stand.granted == [first]
    stand.done(first)
    assert stand.granted == [first, second]
    assert stand.loads == [("a", [])], "the same model twice needs no second load"


def test_the_next_model_is_loaded_only_when_the_request_before_it_has_ended() -> None:
    stand = Stand(Serial)
    first = stand.ask("a")
    stand.loaded("a")
    stand.ask("b")
    assert stand.loads == [("a", [])]
    stand.done(first)
    assert stand.loads == [("a", []), ("b", ["a"])]


# 6: the exact order of arrival


def test_requests_are_never_reordered_or_batched() -> None:
    stand = Stand(Serial)
    asked = [stand.ask(model) for model in "abca"]
    for model, request in zip("abca", asked, strict=True):
        stand.loaded(model)
        stand.done(request)
    assert stand.granted == asked
    assert [model for model, _ in stand.loads] == ["a", "b", "c", "a"]


def test_groups_sets_and_priorities_are_ignored() -> None:
    stand = Stand(Serial, "ab", b={"priority": 9}, a={"pinned": True})
    first, second = stand.ask("a"), stand.ask("b")
    stand.loaded("a")
    stand.done(first)
    assert stand.loads[-1] == ("b", ["a"]), "pinned or not: one model in memory"
    stand.loaded("b")
    assert stand.granted == [first, second]


# 7: loads that fail and callers who leave


def test_a_failed_load_fails_its_caller_and_the_queue_goes_on() -> None:
    stand = Stand(Serial)
    lost, next_one = stand.ask("a"), stand.ask("b")
    stand.loaded("a", error="exit code 1")
    assert stand.code(lost) == "model_load_failed" and "exit code 1" in stand.refused[lost].message
    stand.loaded("b")
    assert stand.granted == [next_one]


def test_a_caller_who_has_gone_by_the_time_of_the_grant_holds_up_nobody() -> None:
    stand = Stand(Serial)
    first = stand.ask("a")
    stand.ask("b")
    stand.loaded("a")
    stand.gone(first)
    assert stand.loads[-1] == ("b", ["a"])


def test_a_cancelled_queued_request_is_removed_and_its_model_is_never_loaded() -> None:
    stand = Stand(Serial)
    first, second, third = (stand.ask(model) for model in "abc")
    stand.cancel(second)
    stand.loaded("a")
    stand.done(first)
    stand.loaded("c")
    assert stand.granted == [first, third]
    assert [model for model, _ in stand.loads] == ["a", "c"]


def test_a_load_whose_caller_left_goes_to_the_next_request_for_the_model() -> None:
    stand = Stand(Serial)
    first, second = stand.ask("a"), stand.ask("a")
    stand.cancel(first)
    stand.loaded("a")
    assert stand.granted == [second] and len(stand.loads) == 1


def test_a_load_whose_caller_left_is_given_up_when_another_model_is_next() -> None:
    stand = Stand(Serial)
    first, second = stand.ask("a"), stand.ask("b")
    stand.cancel(first)
    assert stand.loads[-1] == ("b", ["a"])
    stand.loaded("b")
    assert stand.granted == [second]


def test_a_load_whose_caller_left_is_finished_when_nobody_else_waits() -> None:
    stand = Stand(Serial)
    stand.cancel(stand.ask("a"))
    assert stand.state("a") == "loading"
    stand.loaded("a")
    request = stand.ask("a")
    assert stand.granted == [request]


# 8: unloading


def test_unloading_a_model_that_is_being_loaded_refuses_its_caller_and_the_queue_goes_on() -> None:
    stand = Stand(Serial)
    lost, also_lost, other = stand.ask("a"), stand.ask("a"), stand.ask("b")
    stand.unload("a")
    assert [stand.code(request) for request in (lost, also_lost)] == ["unloaded", "unloaded"]
    assert (["a"], "unloaded") in stand.stops()
    assert stand.loads[-1] == ("b", ["a"])
    stand.loaded("b")
    assert stand.granted == [other]


def test_unloading_the_model_that_serves_stops_it_and_the_queue_waits_for_the_request_to_end() -> None:
    stand = Stand(Serial)
    first, dropped, other = stand.ask("a"), stand.ask("a"), stand.ask("b")
    stand.loaded("a")
    stand.unload("a")
    assert stand.stops() == [(["a"], "unloaded")]
    assert stand.code(dropped) == "unloaded" and stand.code(first) == ""
    stand.stopped("a")
    assert stand.answered() == [7]
    assert [model for model, _ in stand.loads] == ["a"]
    stand.done(first)
    assert stand.loads[-1] == ("b", [])
    stand.loaded("b")
    assert stand.granted == [first, other]


def test_queued_requests_for_an_unloaded_model_get_an_error_and_those_for_others_go_on() -> None:
    stand = Stand(Serial)
    serving, dropped, other = stand.ask("a"), stand.ask("b"), stand.ask("c")
    stand.loaded("a")
    stand.unload("b")
    assert stand.code(dropped) == "unloaded" and stand.answered() == [7]
    stand.done(serving)
    stand.loaded("c")
    assert stand.granted == [serving, other]


def test_a_model_that_is_being_stopped_is_loaded_again_only_when_it_is_gone() -> None:
    stand = Stand(Serial)
    stand.make_ready("a")
    stand.unload("a")
    request = stand.ask("a")
    assert len(stand.loads) == 1 and "is being stopped" in stand.why(request)
    stand.stopped("a")
    assert len(stand.loads) == 2


# 9: shutting down


def test_shutdown_refuses_the_loading_request_and_all_queued_ones() -> None:
    stand = Stand(Serial)
    asked = [stand.ask(model) for model in "abc"]
    stand.shut_down()
    assert {stand.code(request) for request in asked} == {"shutting_down"}
    assert (["a"], "shutdown") in stand.stops()
    assert not stand.machine.state.requests and stand.machine.places(stand.now) == []
    stand.stopped("a")
    assert [model for model, _ in stand.loads] == ["a"], "nothing is loaded any more"
    late = stand.ask("a")
    assert stand.refused[late].status == 503


def test_shutdown_lets_the_request_end_that_is_being_served() -> None:
    stand = Stand(Serial)
    request = stand.ask("a")
    stand.loaded("a")
    stand.shut_down()
    assert stand.stops() == [] and stand.code(request) == ""
    stand.done(request)
    assert stand.stops() == [(["a"], "shutdown")]


# 10: a load is known by its token


def test_the_late_end_of_an_abandoned_load_changes_nothing() -> None:
    stand = Stand(Serial)
    stand.ask("a")
    abandoned = stand.load("a")
    stand.unload("a")
    stand.stopped("a")
    request = stand.ask("a")
    assert stand.turn(LoadDone(abandoned)) == []
    assert stand.turn(LoadDone(abandoned, "too late")) == []
    assert stand.state("a") == "loading" and stand.granted == []
    stand.loaded("a")
    assert stand.granted == [request]


# What the rules leave open


def test_a_request_waits_for_jobs_to_leave_room_and_none_of_them_is_killed() -> None:
    stand = Stand(Serial, room=1.0)
    stand.make_ready("a")
    stand.jobs_take(1.0)
    request = stand.ask("b")
    assert len(stand.loads) == 1 and "jobs" in stand.why(request)
    stand.jobs_take(0.0)
    assert stand.loads[-1] == ("b", ["a"])


def test_the_first_in_line_holds_up_those_behind_it_and_why_says_so() -> None:
    stand = Stand(Serial, room=1.0, sizes={"b": 2.0})
    stand.make_ready("a")
    stand.ask("b")
    behind = stand.ask("a")
    assert "order" in stand.why(behind) and "'b'" in stand.why(behind)


@pytest.mark.parametrize("first", ["stopped", "failed"])
def test_a_process_that_dies_before_the_first_byte_is_started_once_more_for_the_request(first: str) -> None:
    stand = Stand(Serial)
    request, behind = stand.ask("a"), stand.ask("b")
    stand.loaded("a")
    if first == "stopped":
        stand.stopped("a", "killed by signal 9")
        stand.failed(request)
    else:
        stand.failed(request)
        stand.stopped("a", "killed by signal 9")
    assert stand.loads[-1] == ("a", []), "it keeps its place before the others"
    stand.loaded("a")
    assert stand.granted == [request, request]
    stand.failed(request)
    assert stand.refused[request].status == 502
    stand.wait(1.0)
    assert stand.code(behind) == ""


def test_an_idle_model_is_unloaded_after_its_time() -> None:
    stand = Stand(Serial, a={"ttl_s": 30.0})
    stand.make_ready("a")
    stand.wait(29.0)
    assert stand.state("a") == "ready"
    stand.wait(1.0)
    assert stand.stops() == [(["a"], "idle")]


def test_over_the_queue_limit_a_request_is_refused() -> None:
    stand = Stand(Serial, a={"queue_limit": 1})
    stand.ask("a")
    refused = stand.ask("a")
    assert stand.refused[refused].status == 429


def test_preloading_fills_an_empty_memory_only() -> None:
    stand = Stand(Serial)
    stand.turn(PreloadAsked(["b", "c"]))
    assert stand.loads == [("b", [])]
    stand.loaded("b")
    assert stand.loads == [("b", [])]
    request = stand.ask("a")
    assert stand.loads[-1] == ("a", ["b"])
    stand.loaded("a")
    assert stand.granted == [request]


def test_places_are_told_in_the_order_of_arrival_with_what_each_still_waits() -> None:
    stand = Stand(Serial, "ab", a={"load_s": 10.0}, b={"load_s": 30.0})
    stand.ask("a", "b", "b")
    stand.now = 4.0
    places = stand.machine.places(stand.now)
    assert [(place.request, place.position) for place in places] == [(1, 0), (2, 1), (3, 2)]
    assert [place.waited_s for place in places] == [4.0, 4.0, 4.0]
    assert [place.estimate_s for place in places] == [6.0, 6.0 + 5.0 + 30.0, 6.0 + 5.0 + 30.0 + 5.0]
