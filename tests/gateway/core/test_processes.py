"""Processes that die, that cannot be loaded, that are idle; and what is learnt from them."""

import pytest
from tests.gateway.core.core_gateway import CoreGateway

from ostler.gateway.core.events import LoadDone, ModelFound, RequestArrived
from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.learnt import MAX_BACKOFF_S

# Dying while ready


@pytest.mark.parametrize("told_first", ["of the process", "of the request"])
def test_a_model_that_dies_is_loaded_once_more_for_requests_without_a_byte(told_first: str) -> None:
    gateway = CoreGateway(Fifo)
    first, second = gateway.ask("a"), gateway.ask("a")
    gateway.loaded("a")
    if told_first == "of the process":
        gateway.stopped("a", "killed by signal 9")
    gateway.failed(first)
    gateway.done(second)
    if told_first == "of the request":
        assert "failed a request" in gateway.why(first)
        gateway.stopped("a", "killed by signal 9")
    assert [model for model, _ in gateway.loads] == ["a", "a"]
    gateway.loaded("a")
    assert gateway.granted == [first, second, first] and gateway.refused == {}


def test_a_request_that_fails_twice_is_refused() -> None:
    gateway = CoreGateway(Fifo)
    request = gateway.ask("a")
    for _ in range(2):
        gateway.loaded("a")
        gateway.stopped("a", "exit code 139")
        gateway.failed(request)
    assert gateway.refused[request].status == 502 and "exit code 139" in gateway.refused[request].message


def test_a_request_that_failed_while_its_process_lives_goes_back_to_it_after_a_pause() -> None:
    gateway = CoreGateway(Fifo)
    request = gateway.ask("a")
    gateway.loaded("a")
    gateway.failed(request)
    later = gateway.ask("a")
    assert gateway.granted == [request]
    gateway.wait(1.0)
    assert gateway.granted == [request, request, later] and len(gateway.loads) == 1


def test_a_retried_request_keeps_the_place_of_its_arrival() -> None:
    gateway = CoreGateway(Fifo, room=1.0)
    first = gateway.ask("a")
    gateway.loaded("a")
    gateway.ask("b")
    gateway.stopped("a", "killed")
    assert gateway.loads[-1][0] == "b"
    gateway.failed(first)
    assert [place.request for place in gateway.machine.places(gateway.now) if place.position] == [first]


def test_what_went_through_a_gate_and_failed_is_tried_once_more_and_not_twice() -> None:
    gateway = CoreGateway(Fifo)
    gateway.turn(RequestArrived(900, "a", again=True))
    gateway.loaded("a")
    gateway.stopped("a", "killed")
    gateway.failed(900)
    assert gateway.refused[900].status == 502


def test_word_of_another_process_than_the_present_one_changes_nothing() -> None:
    gateway = CoreGateway(Fifo)
    gateway.make_ready("a")
    old = gateway.load("a")
    gateway.unload("a")
    gateway.stopped("a", load=old)
    gateway.make_ready("a")
    gateway.stopped("a", "killed", load=old)
    assert gateway.state("a") == "ready"


# Failing again and again


def fail_to_load(gateway: CoreGateway, model: str) -> int:
    request = gateway.ask(model)
    gateway.loaded(model, error="exit code 1")
    return request


def test_the_first_failure_is_not_held_against_a_model() -> None:
    gateway = CoreGateway(Fifo)
    fail_to_load(gateway, "a")
    gateway.ask("a")
    assert gateway.state("a") == "loading"


def test_repeated_failures_back_off_from_one_second_to_a_minute_and_say_so() -> None:
    gateway = CoreGateway(Fifo)
    fail_to_load(gateway, "a")
    waits = []
    for _ in range(9):
        fail_to_load(gateway, "a")
        refused = gateway.refused[gateway.ask("a")]
        assert refused.status == 502 and "in a row" in refused.message
        waits.append(refused.retry_after_s)
        gateway.now += refused.retry_after_s
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, MAX_BACKOFF_S, MAX_BACKOFF_S, MAX_BACKOFF_S]


def test_a_model_that_ran_for_long_starts_with_a_clean_record() -> None:
    gateway = CoreGateway(Fifo)
    fail_to_load(gateway, "a")
    gateway.make_ready("a")
    gateway.wait(3600.0)
    gateway.stopped("a", "killed")
    gateway.ask("a")
    assert gateway.state("a") == "loading"


def test_a_model_that_crashes_soon_after_each_load_backs_off_too() -> None:
    gateway = CoreGateway(Fifo)
    for _ in range(2):
        gateway.make_ready("a")
        gateway.stopped("a", "killed")
    assert gateway.code(gateway.ask("a")) == "model_load_failed"
    gateway.wait(1.0)
    gateway.ask("a")
    assert gateway.state("a") == "loading"


def test_nobody_goes_on_waiting_for_a_model_that_backs_off() -> None:
    gateway = CoreGateway(Fifo, a={"concurrency": 1})
    fail_to_load(gateway, "a")
    serving, queued = gateway.ask("a"), gateway.ask("a")
    gateway.loaded("a")
    gateway.stopped("a", "killed")
    assert gateway.refused[queued].retry_after_s == 1.0
    gateway.failed(serving)
    assert gateway.refused[serving].status == 502


def test_a_changed_recipe_gets_another_chance() -> None:
    gateway = CoreGateway(Fifo, "a")
    for _ in range(3):
        fail_to_load(gateway, "a")
        gateway.now += 4.0
    fail_to_load(gateway, "a")
    gateway.reconfigure("a", a={"digest": "new"})
    gateway.ask("a")
    assert gateway.state("a") == "loading"


def test_lost_room_is_nobodys_failure_and_is_looked_for_again() -> None:
    gateway = CoreGateway(Fifo)
    request = gateway.ask("a")
    gateway.loaded("a", no_room=True)
    assert "is looked for again in 1 s" in gateway.why(request) and gateway.refused == {}
    gateway.wait(1.0)
    assert len(gateway.loads) == 2
    gateway.loaded("a")
    assert gateway.granted == [request]


def test_a_process_that_ends_while_it_is_loaded_is_a_failed_load() -> None:
    gateway = CoreGateway(Fifo)
    request = gateway.ask("a")
    gateway.stopped("a", "exit code 1", load=gateway.load("a"))
    assert gateway.refused[request].status == 502


# Idle


def test_an_idle_model_is_unloaded_after_its_time_counted_from_its_last_use() -> None:
    gateway = CoreGateway(Fifo, a={"ttl_s": 60.0})
    gateway.make_ready("a")
    gateway.wait(50.0)
    request = gateway.ask("a")
    gateway.wait(500.0)
    assert gateway.state("a") == "ready", "it serves"
    gateway.done(request)
    gateway.wait(59.0)
    assert gateway.state("a") == "ready"
    gateway.wait(1.0)
    assert gateway.stops() == [(["a"], "idle")]


def test_a_model_whose_only_caller_left_during_the_load_has_its_time_from_the_load_on() -> None:
    gateway = CoreGateway(Fifo, a={"ttl_s": 60.0})
    gateway.cancel(gateway.ask("a"))
    gateway.wait(100.0)
    gateway.loaded("a")
    gateway.wait(59.0)
    assert gateway.state("a") == "ready"
    gateway.wait(1.0)
    assert gateway.state("a") == "stopping"


def test_without_a_time_or_with_a_pin_a_model_stays() -> None:
    gateway = CoreGateway(Fifo, a={"ttl_s": 0.0}, b={"ttl_s": 5.0, "pinned": True})
    gateway.make_ready("a", "b")
    gateway.wait(100_000.0)
    assert gateway.states("ab") == ["ready", "ready"] and gateway.machine.due() is None


def test_a_request_that_meets_the_stop_of_an_idle_model_has_it_loaded_again() -> None:
    gateway = CoreGateway(Fifo, a={"ttl_s": 5.0})
    gateway.make_ready("a")
    gateway.wait(5.0)
    request = gateway.ask("a")
    gateway.stopped("a")
    gateway.loaded("a")
    assert request in gateway.granted


# What is learnt


def test_a_load_that_was_never_measured_counts_as_the_longest_of_what_is_known() -> None:
    gateway = CoreGateway(Fifo, "abc")
    state = gateway.machine.state
    assert state.load_s("a", gateway.now) == 5.0, "nothing is known"
    gateway.ask("a")
    gateway.wait(7.0)
    assert state.load_s("a", gateway.now) == 7.0, "so long it has taken already"
    gateway.wait(5.0)
    gateway.loaded("a")
    assert state.load_s("b", gateway.now) == 12.0, "as long as the others take"
    gateway.ask("b")
    gateway.wait(20.0)
    gateway.loaded("b")
    assert state.load_s("c", gateway.now) == 16.0, "the median of two"


def test_the_cost_of_a_load_is_measured_and_the_newest_counts_most() -> None:
    gateway = CoreGateway(Fifo, a={"load_s": 7.0})
    seen = gateway.machine.state.learnt["a"]
    assert seen.measured_load_s == 7.0
    for took, believed in ((40.0, 40.0), (20.0, 34.0)):
        request = gateway.ask("a")
        gateway.wait(took)
        gateway.loaded("a")
        gateway.done(request)
        assert seen.measured_load_s == pytest.approx(believed)
        gateway.unload("a")
        gateway.stopped("a")


def test_the_rate_of_arrivals_fades() -> None:
    gateway = CoreGateway(Fifo)
    seen = gateway.machine.state.learnt["a"]
    for _ in range(2000):
        gateway.wait(2.0)
        seen.arrived(gateway.now)
    assert seen.rate(gateway.now) == pytest.approx(0.5, rel=0.05)
    assert seen.rate(gateway.now + 3600.0) < 0.01


def test_a_process_that_is_found_running_serves_without_a_load() -> None:
    gateway = CoreGateway(Fifo)
    gateway.turn(ModelFound("a", load=-1))
    assert gateway.ask("a") in gateway.granted and gateway.loads == []
    assert gateway.turn(ModelFound("a", load=-1)) == [], "it is known"


def test_a_process_that_is_found_beside_as_many_as_may_be_is_stopped() -> None:
    gateway = CoreGateway(Fifo)
    gateway.turn(ModelFound("a", load=-1))
    gateway.turn(ModelFound("a", load=-2))
    assert gateway.stops() == [(["a"], "surplus")] and gateway.all_loads("a", "ready") == [-1]


def test_a_process_that_is_found_with_an_old_recipe_is_stopped() -> None:
    gateway = CoreGateway(Fifo, a={"digest": "new"})
    gateway.turn(ModelFound("a", "old"))
    assert gateway.stops() == [(["a"], "changed")]
    gateway.turn(ModelFound("nobody"))
    assert gateway.stops() == [(["nobody"], "removed")]


def test_a_second_end_of_a_load_changes_nothing() -> None:
    gateway = CoreGateway(Fifo)
    gateway.ask("a")
    load = gateway.load("a")
    gateway.loaded("a")
    assert gateway.turn(LoadDone(load)) == [] and gateway.turn(LoadDone(load, "no")) == []
