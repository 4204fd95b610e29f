"""Processes that die, that cannot be loaded, that are idle; and what is learnt from them."""

import pytest
from tests.gateway.core.stand import Stand

from ostler.gateway.core.events import LoadDone, ModelFound, RequestArrived
from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.learnt import MAX_BACKOFF_S

# Dying while ready


@pytest.mark.parametrize("told_first", ["of the process", "of the request"])
def test_a_model_that_dies_is_loaded_once_more_for_requests_without_a_byte(told_first: str) -> None:
    stand = Stand(Fifo)
    first, second = stand.ask("a"), stand.ask("a")
    stand.loaded("a")
    if told_first == "of the process":
        stand.stopped("a", "killed by signal 9")
    stand.failed(first)
    stand.done(second)
    if told_first == "of the request":
        assert "failed a request" in stand.why(first)
        stand.stopped("a", "killed by signal 9")
    assert [model for model, _ in stand.loads] == ["a", "a"]
    stand.loaded("a")
    assert stand.granted == [first, second, first] and stand.refused == {}


def test_a_request_that_fails_twice_is_refused() -> None:
    stand = Stand(Fifo)
    request = stand.ask("a")
    for _ in range(2):
        stand.loaded("a")
        stand.stopped("a", "exit code 139")
        stand.failed(request)
    assert stand.refused[request].status == 502 and "exit code 139" in stand.refused[request].message


def test_a_request_that_failed_while_its_process_lives_goes_back_to_it_after_a_pause() -> None:
    stand = Stand(Fifo)
    request = stand.ask("a")
    stand.loaded("a")
    stand.failed(request)
    later = stand.ask("a")
    assert stand.granted == [request]
    stand.wait(1.0)
    assert stand.granted == [request, request, later] and len(stand.loads) == 1


def test_a_retried_request_keeps_the_place_of_its_arrival() -> None:
    stand = Stand(Fifo, room=1.0)
    first = stand.ask("a")
    stand.loaded("a")
    stand.ask("b")
    stand.stopped("a", "killed")
    assert stand.loads[-1][0] == "b"
    stand.failed(first)
    assert [place.request for place in stand.machine.places(stand.now) if place.position] == [first]


def test_what_went_through_a_gate_and_failed_is_tried_once_more_and_not_twice() -> None:
    stand = Stand(Fifo)
    stand.turn(RequestArrived(900, "a", again=True))
    stand.loaded("a")
    stand.stopped("a", "killed")
    stand.failed(900)
    assert stand.refused[900].status == 502


def test_word_of_another_process_than_the_present_one_changes_nothing() -> None:
    stand = Stand(Fifo)
    stand.make_ready("a")
    old = stand.load("a")
    stand.unload("a")
    stand.stopped("a", load=old)
    stand.make_ready("a")
    stand.stopped("a", "killed", load=old)
    assert stand.state("a") == "ready"


# Failing again and again


def fail_to_load(stand: Stand, model: str) -> int:
    request = stand.ask(model)
    stand.loaded(model, error="exit code 1")
    return request


def test_the_first_failure_is_not_held_against_a_model() -> None:
    stand = Stand(Fifo)
    fail_to_load(stand, "a")
    stand.ask("a")
    assert stand.state("a") == "loading"


def test_repeated_failures_back_off_from_one_second_to_a_minute_and_say_so() -> None:
    stand = Stand(Fifo)
    fail_to_load(stand, "a")
    waits = []
    for _ in range(9):
        fail_to_load(stand, "a")
        refused = stand.refused[stand.ask("a")]
        assert refused.status == 502 and "in a row" in refused.message
        waits.append(refused.retry_after_s)
        stand.now += refused.retry_after_s
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, MAX_BACKOFF_S, MAX_BACKOFF_S, MAX_BACKOFF_S]


def test_a_model_that_ran_for_long_starts_with_a_clean_record() -> None:
    stand = Stand(Fifo)
    fail_to_load(stand, "a")
    stand.make_ready("a")
    stand.wait(3600.0)
    stand.stopped("a", "killed")
    stand.ask("a")
    assert stand.state("a") == "loading"


def test_a_model_that_crashes_soon_after_each_load_backs_off_too() -> None:
    stand = Stand(Fifo)
    for _ in range(2):
        stand.make_ready("a")
        stand.stopped("a", "killed")
    assert stand.code(stand.ask("a")) == "model_load_failed"
    stand.wait(1.0)
    stand.ask("a")
    assert stand.state("a") == "loading"


def test_nobody_goes_on_waiting_for_a_model_that_backs_off() -> None:
    stand = Stand(Fifo, a={"concurrency": 1})
    fail_to_load(stand, "a")
    serving, queued = stand.ask("a"), stand.ask("a")
    stand.loaded("a")
    stand.stopped("a", "killed")
    assert stand.refused[queued].retry_after_s == 1.0
    stand.failed(serving)
    assert stand.refused[serving].status == 502


def test_a_changed_recipe_gets_another_chance() -> None:
    stand = Stand(Fifo, "a")
    for _ in range(3):
        fail_to_load(stand, "a")
        stand.now += 4.0
    fail_to_load(stand, "a")
    stand.reconfigure("a", a={"digest": "new"})
    stand.ask("a")
    assert stand.state("a") == "loading"


def test_lost_room_is_nobodys_failure_and_is_looked_for_again() -> None:
    stand = Stand(Fifo)
    request = stand.ask("a")
    stand.loaded("a", no_room=True)
    assert "is looked for again in 1 s" in stand.why(request) and stand.refused == {}
    stand.wait(1.0)
    assert len(stand.loads) == 2
    stand.loaded("a")
    assert stand.granted == [request]


def test_a_process_that_ends_while_it_is_loaded_is_a_failed_load() -> None:
    stand = Stand(Fifo)
    request = stand.ask("a")
    stand.stopped("a", "exit code 1", load=stand.load("a"))
    assert stand.refused[request].status == 502


# Idle


def test_an_idle_model_is_unloaded_after_its_time_counted_from_its_last_use() -> None:
    stand = Stand(Fifo, a={"ttl_s": 60.0})
    stand.make_ready("a")
    stand.wait(50.0)
    request = stand.ask("a")
    stand.wait(500.0)
    assert stand.state("a") == "ready", "it serves"
    stand.done(request)
    stand.wait(59.0)
    assert stand.state("a") == "ready"
    stand.wait(1.0)
    assert stand.stops() == [(["a"], "idle")]


def test_a_model_whose_only_caller_left_during_the_load_has_its_time_from_the_load_on() -> None:
    stand = Stand(Fifo, a={"ttl_s": 60.0})
    stand.cancel(stand.ask("a"))
    stand.wait(100.0)
    stand.loaded("a")
    stand.wait(59.0)
    assert stand.state("a") == "ready"
    stand.wait(1.0)
    assert stand.state("a") == "stopping"


def test_without_a_time_or_with_a_pin_a_model_stays() -> None:
    stand = Stand(Fifo, a={"ttl_s": 0.0}, b={"ttl_s": 5.0, "pinned": True})
    stand.make_ready("a", "b")
    stand.wait(100_000.0)
    assert stand.states("ab") == ["ready", "ready"] and stand.machine.due() is None


def test_a_request_that_meets_the_stop_of_an_idle_model_has_it_loaded_again() -> None:
    stand = Stand(Fifo, a={"ttl_s": 5.0})
    stand.make_ready("a")
    stand.wait(5.0)
    request = stand.ask("a")
    stand.stopped("a")
    stand.loaded("a")
    assert request in stand.granted


# What is learnt


def test_the_cost_of_a_load_is_measured_and_the_newest_counts_most() -> None:
    stand = Stand(Fifo, a={"load_s": 7.0})
    seen = stand.machine.state.learnt["a"]
    assert seen.load_s == 7.0 and stand.machine.state.learnt["b"].load_s == 20.0
    for took, believed in ((40.0, 40.0), (20.0, 34.0)):
        request = stand.ask("a")
        stand.wait(took)
        stand.loaded("a")
        stand.done(request)
        assert seen.load_s == pytest.approx(believed)
        stand.unload("a")
        stand.stopped("a")


def test_the_rate_of_arrivals_fades() -> None:
    stand = Stand(Fifo)
    seen = stand.machine.state.learnt["a"]
    for _ in range(2000):
        stand.wait(2.0)
        seen.arrived(stand.now)
    assert seen.rate(stand.now) == pytest.approx(0.5, rel=0.05)
    assert seen.rate(stand.now + 3600.0) < 0.01


def test_a_process_that_is_found_running_serves_without_a_load() -> None:
    stand = Stand(Fifo)
    stand.turn(ModelFound("a", load=-1))
    assert stand.ask("a") in stand.granted and stand.loads == []
    assert stand.turn(ModelFound("a", load=-1)) == [], "it is known"


def test_a_process_that_is_found_beside_as_many_as_may_be_is_stopped() -> None:
    stand = Stand(Fifo)
    stand.turn(ModelFound("a", load=-1))
    stand.turn(ModelFound("a", load=-2))
    assert stand.stops() == [(["a"], "surplus")] and stand.all_loads("a", "ready") == [-1]


def test_a_process_that_is_found_with_an_old_recipe_is_stopped() -> None:
    stand = Stand(Fifo, a={"digest": "new"})
    stand.turn(ModelFound("a", "old"))
    assert stand.stops() == [(["a"], "changed")]
    stand.turn(ModelFound("nobody"))
    assert stand.stops() == [(["nobody"], "removed")]


def test_a_second_end_of_a_load_changes_nothing() -> None:
    stand = Stand(Fifo)
    stand.ask("a")
    load = stand.load("a")
    stand.loaded("a")
    assert stand.turn(LoadDone(load)) == [] and stand.turn(LoadDone(load, "no")) == []
