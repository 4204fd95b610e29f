"""Several processes of one model."""

from typing import Any

import pytest
from tests.gateway.core.stand import Stand

from ostler.gateway.core.effects import Grant
from ostler.gateway.core.events import LoadDone, ModelFound, Stopped, YieldAsked
from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.serial import Serial


def served_one_by_one(
    names: str = "abcd", *, room: float = 4.0, more: dict[str, Any] | None = None, **each: Any
) -> Stand:
    """`a` serves one request at a time, for 5 s or so; a load takes 10 s."""
    a = {"concurrency": 1, "max_instances": 2, "load_s": 10.0, **(more or {})}
    return Stand(Fifo, names, room=room, a=a, **each)


def with_one(*names: str, **more: Any) -> Stand:
    """One process of `a`, which serves."""
    stand = served_one_by_one(*names, **more)
    stand.ask("a")
    stand.wait(10.0)
    stand.loaded("a")
    return stand


def with_two(**more: Any) -> tuple[Stand, list[int]]:
    """Two processes of `a`, both of which serve, and those who asked."""
    stand = served_one_by_one(**more)
    asked = [stand.ask("a") for _ in range(4)]
    stand.wait(10.0)
    for _ in range(2):
        stand.loaded("a")
    return stand, asked


def processes_of_grants(stand: Stand) -> list[int]:
    return [grant.load for grant in stand.of(Grant)]


def test_a_model_at_its_limit_gets_another_process_when_waiting_costs_more_than_loading() -> None:
    stand = with_one()
    stand.ask("a", "a")
    assert len(stand.loads) == 1, "the last of two waits for 10 s, as long as a load"
    assert "would take longer than to wait" in stand.why(3)
    waiting = stand.ask("a")
    assert stand.loads[1:] == [("a", [])]
    assert "another process of it is being loaded" in stand.why(waiting)


def test_a_load_under_way_counts_as_a_process_that_will_serve() -> None:
    stand = served_one_by_one(more={"max_instances": 9})
    for _ in range(4):
        stand.ask("a")
    assert len(stand.loads) == 2, "two processes will serve four within the 10 s of a third load"
    stand.ask("a")
    assert len(stand.loads) == 3


def test_no_more_processes_are_begun_than_may_be() -> None:
    stand = served_one_by_one()
    for _ in range(50):
        stand.ask("a")
    assert len(stand.loads) == 2


def test_a_model_without_a_limit_never_needs_a_second_process() -> None:
    stand = served_one_by_one(more={"concurrency": None})
    for _ in range(50):
        stand.ask("a")
    stand.wait(10.0)
    stand.loaded("a")
    for _ in range(50):
        stand.ask("a")
    assert len(stand.loads) == 1 and len(stand.granted) == 100


def test_none_is_begun_while_it_is_unknown_whether_the_first_still_runs() -> None:
    stand = with_one()
    stand.failed(1)
    for _ in range(5):
        stand.ask("a")
    assert len(stand.loads) == 1
    stand.wait(1.0)
    assert len(stand.loads) == 2


def test_a_load_that_its_row_waits_for_is_not_given_up_for_another_model() -> None:
    stand = with_one("ab", room=2.0)
    for _ in range(3):
        stand.ask("a")
    waiting = stand.ask("b")
    assert stand.stops() == [] and "'a'" in stand.why(waiting)
    assert stand.state("a") == "ready, loading"


def test_requests_go_to_the_process_with_most_free_places() -> None:
    stand = served_one_by_one(more={"concurrency": 3})
    asked = [stand.ask("a") for _ in range(9)]
    stand.loaded("a")
    stand.loaded("a")
    first, second = stand.all_loads("a")
    assert len(stand.granted) == 6
    stand.done(*asked)
    stand.ask("a")
    assert processes_of_grants(stand) == [first], "the older of two that are idle"
    stand.ask("a")
    assert processes_of_grants(stand) == [second]
    stand.ask("a")
    assert processes_of_grants(stand) == [first]


def test_both_processes_serve_the_row_in_the_order_of_arrival() -> None:
    stand, asked = with_two()
    assert stand.granted == asked[:2]
    stand.done(asked[1])
    stand.done(asked[0])
    assert stand.granted == asked


def test_nobody_who_serves_gives_way_to_a_further_process() -> None:
    stand = served_one_by_one("ab", room=2.0, quantum=1.0)
    serving = stand.ask("b")
    stand.loaded("b")
    stand.ask("a")
    stand.wait(10.0)
    stand.loaded("a")
    for _ in range(20):
        waiting = stand.ask("a")
    stand.wait(1000.0)
    assert [model for model, _ in stand.loads] == ["b", "a"] and "no room for another" in stand.why(waiting)
    assert stand.ask("b") in stand.granted, "it was not closed either"
    assert serving in stand.granted


def test_an_idle_model_gives_way_to_a_further_process_when_its_loss_is_less_than_the_waiting() -> None:
    stand = served_one_by_one("ab", room=2.0)
    stand.make_ready("b")
    stand.wait(3600.0)
    stand.ask("a")
    stand.wait(10.0)
    stand.loaded("a")
    for _ in range(5):
        stand.ask("a")
    assert stand.loads[-1] == ("a", ["b"])


def test_an_idle_model_that_is_often_used_stays_until_the_waiting_costs_more() -> None:
    stand = served_one_by_one("ab", room=2.0, b={"load_s": 40.0})
    stand.make_ready("b")
    for _ in range(300):
        stand.wait(1.0)
        stand.done(stand.ask("b"))
    stand.machine.state.learnt["b"].load_s = 40.0
    stand.ask("a")
    stand.wait(10.0)
    stand.loaded("a")
    for _ in range(8):
        stand.ask("a")
    assert len(stand.loads) == 2, "a reload of b costs 40 s"
    for _ in range(20):
        stand.ask("a")
    assert stand.loads[-1] == ("a", ["b"])


def test_a_further_process_waits_until_every_model_that_waits_has_its_first() -> None:
    stand = served_one_by_one("ab", room=2.0, sizes={"b": 2.0})
    stand.ask("a")
    stand.wait(10.0)
    stand.loaded("a")
    stand.ask("b")
    for _ in range(9):
        waiting = stand.ask("a")
    assert [model for model, _ in stand.loads] == ["a"] and "models that have none wait" in stand.why(waiting)


def test_a_model_that_waits_for_jobs_alone_keeps_nobody_from_growing() -> None:
    stand = served_one_by_one("ab", room=2.0, sizes={"b": 9.0})
    stand.ask("a")
    stand.wait(10.0)
    stand.loaded("a")
    stand.ask("b")
    for _ in range(9):
        stand.ask("a")
    assert [model for model, _ in stand.loads] == ["a", "a"]


def test_the_extra_process_is_the_first_to_be_evicted() -> None:
    stand, asked = with_two(names="abc", room=3.0)
    stand.done(*asked)
    stand.make_ready("b")
    stand.done(stand.ask("a"))
    first, second = stand.all_loads("a")
    stand.ask("c")
    assert stand.loads[-1] == ("c", ["a"])
    assert stand.machine.state.present[second].phase == "stopping" and stand.machine.state.present[first].open


def test_the_extra_process_of_a_pinned_model_may_go_and_the_last_one_may_not() -> None:
    stand, asked = with_two(names="abc", room=2.0, more={"pinned": True})
    stand.done(*asked)
    first, second = stand.all_loads("a")
    assert stand.machine.price(first, stand.now) is None and stand.machine.price(second, stand.now) is not None
    assert stand.turn(YieldAsked(first)) == []
    stand.ask("b")
    assert stand.loads[-1] == ("b", ["a"])
    stand.loaded("b")
    assert stand.states("ab") == ["ready", "ready"]


def test_the_extra_process_of_a_pinned_model_yields_to_a_job_and_ends_when_it_is_idle_for_long() -> None:
    stand, asked = with_two(more={"pinned": True, "ttl_s": 30.0})
    stand.done(*asked)
    stand.wait(1000.0)
    assert stand.state("a") == "ready, stopping"
    stand, asked = with_two(more={"pinned": True})
    stand.done(*asked)
    stand.turn(YieldAsked(stand.all_loads("a")[1]))
    assert stand.stops() == [(["a"], "yielded")]


def test_the_extra_process_ends_first_when_little_is_asked() -> None:
    stand, asked = with_two(more={"ttl_s": 30.0})
    stand.done(*asked)
    for _ in range(4):
        stand.wait(10.0)
        stand.done(stand.ask("a"))
    assert stand.state("a") == "ready, stopping"


def test_a_crash_takes_only_the_requests_of_its_own_process() -> None:
    stand, asked = with_two()
    first, second = stand.all_loads("a")
    stand.turn(Stopped(first, "killed by signal 9"))
    stand.failed(asked[0])
    assert stand.refused == {} and stand.all_loads("a", "ready") == [second]
    stand.done(asked[1])
    assert stand.granted == [asked[0], asked[1], asked[0]], "it keeps its place before those who came later"


def test_those_who_wait_stay_with_the_process_that_is_left_while_the_model_backs_off() -> None:
    stand, asked = with_two()
    for _ in range(2):
        stand.turn(Stopped(stand.all_loads("a")[1], "killed"))
        stand.failed(asked[1])
        if stand.all_loads("a", "loading"):
            stand.loaded("a")
    assert [stand.code(request) for request in asked] == ["", "model_load_failed", "", ""]
    late = stand.ask("a")
    assert stand.code(late) == "" and stand.state("a") == "ready"
    stand.turn(Stopped(stand.load("a"), "killed"))
    assert stand.code(late) == "model_load_failed", "nothing is left to wait for"


def test_nobody_waits_for_a_model_that_backs_off_once_its_last_process_is_to_leave() -> None:
    stand = with_one()
    waiting = [stand.ask("a") for _ in range(4)]
    stand.loaded("a", error="out of memory")
    stand.loaded("a", error="out of memory")
    stand.yield_room("a")
    assert {stand.code(request) for request in waiting} == {"model_load_failed"}
    assert stand.all_loads("a", "loading") == []


def test_a_further_process_that_cannot_be_loaded_costs_nobody_anything() -> None:
    stand = served_one_by_one()
    stand.ask("a")
    stand.wait(10.0)
    stand.loaded("a")
    waiting = [stand.ask("a") for _ in range(4)]
    stand.loaded("a", error="out of memory")
    stand.loaded("a", error="out of memory")
    assert stand.refused == {} and "is tried in 1 s" in stand.why(waiting[0])
    stand.wait(1.0)
    assert stand.state("a") == "ready, loading"


def test_who_waited_for_a_load_that_failed_goes_on_to_the_other() -> None:
    stand = served_one_by_one()
    asked = [stand.ask("a") for _ in range(5)]
    stand.turn(LoadDone(stand.all_loads("a")[0], "exit code 1"))
    assert stand.refused == {}
    stand.loaded("a")
    assert stand.granted == asked[:1]


def test_unloading_stops_every_process_and_is_answered_when_all_are_gone() -> None:
    stand, _ = with_two()
    both = stand.all_loads("a")
    stand.unload("a")
    assert stand.stops() == [(["a", "a"], "unloaded")]
    stand.turn(Stopped(both[1]))
    assert stand.answered() == []
    stand.turn(Stopped(both[0]))
    assert stand.answered() == [7]


def test_several_processes_are_found_running() -> None:
    stand = served_one_by_one()
    stand.turn(ModelFound("a", load=-1))
    stand.turn(ModelFound("a", load=-2))
    asked = [stand.ask("a"), stand.ask("a")]
    assert stand.granted == asked and stand.loads == []


def test_fewer_processes_in_the_configuration_end_the_newest_when_it_is_idle() -> None:
    stand, asked = with_two()
    first, second = stand.all_loads("a")
    stand.reconfigure("a", a={"concurrency": 1})
    assert stand.stops() == []
    stand.done(*asked)
    assert stand.stops() == [(["a"], "surplus")] and stand.all_loads("a", "ready") == [first]
    assert second in stand.all_loads("a", "stopping")


def test_a_configuration_that_allows_them_again_in_time_keeps_all_processes() -> None:
    stand, asked = with_two()
    stand.reconfigure("a", a={"concurrency": 1})
    stand.reconfigure("a", a={"concurrency": 1, "max_instances": 2})
    stand.done(*asked)
    assert stand.state("a") == "ready, ready"


def test_a_job_gets_the_room_of_one_process_and_the_other_serves_on() -> None:
    stand, asked = with_two()
    first, second = stand.all_loads("a")
    stand.yield_room("a")
    stand.done(asked[0])
    assert stand.stops() == [(["a"], "yielded")]
    stand.done(asked[1])
    assert processes_of_grants(stand) == [second] and first != second


def test_places_are_estimated_from_all_processes_there_are_and_will_be() -> None:
    stand = served_one_by_one()
    stand.ask("a")
    stand.wait(10.0)
    stand.loaded("a")
    for _ in range(3):
        stand.ask("a")
    assert stand.state("a") == "ready, loading"
    assert [place.estimate_s for place in stand.machine.places(stand.now)] == [5.0, 10.0, 12.5]


@pytest.mark.parametrize("found", [0, 2])
def test_serial_has_one_process_whatever_may_be(found: int) -> None:
    stand = Stand(Serial, a={"max_instances": 3, "concurrency": 1})
    for number in range(found):
        stand.turn(ModelFound("a", load=-1 - number))
    asked = [stand.ask("a") for _ in range(20)]
    if not found:
        stand.loaded("a")
    assert stand.granted == asked[:1]
    assert len([load for load in stand.all_loads("a") if load not in stand.all_loads("a", "stopping")]) == 1


# Users


def test_of_those_who_wait_for_a_model_the_user_with_the_fewest_served_is_next() -> None:
    stand = Stand(Fifo, a={"concurrency": 2})
    many = [stand.ask_for("eve", "a") for _ in range(5)]
    few = [stand.ask_for("bob", "a") for _ in range(2)]
    stand.loaded("a")
    assert stand.granted == [many[0], few[0]]
    stand.done(few[0])
    assert stand.granted[2:] == [few[1]], "the other user has one served already"
    stand.done(few[1], many[0])
    assert stand.granted[3:] == many[1:3], "and nobody else waits any more"


def test_users_do_not_change_the_exact_order_of_serial() -> None:
    stand = Stand(Serial)
    asked = [stand.ask_for(user, "a") for user in ("eve", "eve", "bob")]
    stand.loaded("a")
    stand.done(asked[0])
    assert stand.granted == asked[:2]
