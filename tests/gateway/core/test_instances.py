"""Several processes of one model."""

from typing import Any

import pytest
from tests.gateway.core.core_gateway import CoreGateway

from ostler.gateway.core.effects import Grant
from ostler.gateway.core.events import LoadDone, ModelFound, Stopped, YieldAsked
from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.serial import Serial


def served_one_by_one(
    names: str = "abcd", *, room: float = 4.0, more: dict[str, Any] | None = None, **each: Any
) -> CoreGateway:
    """`a` serves one request at a time, for 5 s or so; a load takes 10 s."""
    a = {"concurrency": 1, "max_instances": 2, "load_s": 10.0, **(more or {})}
    return CoreGateway(Fifo, names, room=room, a=a, **each)


def with_one(*names: str, **more: Any) -> CoreGateway:
    """One process of `a`, which serves."""
    gateway = served_one_by_one(*names, **more)
    gateway.ask("a")
    gateway.wait(10.0)
    gateway.loaded("a")
    return gateway


def with_two(**more: Any) -> tuple[CoreGateway, list[int]]:
    """Two processes of `a`, both of which serve, and those who asked."""
    gateway = served_one_by_one(**more)
    asked = [gateway.ask("a") for _ in range(4)]
    gateway.wait(10.0)
    for _ in range(2):
        gateway.loaded("a")
    return gateway, asked


def processes_of_grants(gateway: CoreGateway) -> list[int]:
    return [grant.load for grant in gateway.of(Grant)]


def test_a_model_at_its_limit_gets_another_process_when_waiting_costs_more_than_loading() -> None:
    gateway = with_one()
    gateway.ask("a", "a")
    assert len(gateway.loads) == 1, "the last of two waits for 10 s, as long as a load"
    assert "would take longer than to wait" in gateway.why(3)
    waiting = gateway.ask("a")
    assert gateway.loads[1:] == [("a", [])]
    assert "another process of it is being loaded" in gateway.why(waiting)


def test_a_load_under_way_counts_as_a_process_that_will_serve() -> None:
    gateway = served_one_by_one(more={"max_instances": 9})
    for _ in range(4):
        gateway.ask("a")
    assert len(gateway.loads) == 2, "two processes will serve four within the 10 s of a third load"
    gateway.ask("a")
    assert len(gateway.loads) == 3


def test_no_more_processes_are_begun_than_may_be() -> None:
    gateway = served_one_by_one()
    for _ in range(50):
        gateway.ask("a")
    assert len(gateway.loads) == 2


def test_a_model_without_a_limit_never_needs_a_second_process() -> None:
    gateway = served_one_by_one(more={"concurrency": None})
    for _ in range(50):
        gateway.ask("a")
    gateway.wait(10.0)
    gateway.loaded("a")
    for _ in range(50):
        gateway.ask("a")
    assert len(gateway.loads) == 1 and len(gateway.granted) == 100


def test_none_is_begun_while_it_is_unknown_whether_the_first_still_runs() -> None:
    gateway = with_one()
    gateway.failed(1)
    for _ in range(5):
        gateway.ask("a")
    assert len(gateway.loads) == 1
    gateway.wait(1.0)
    assert len(gateway.loads) == 2


def test_a_load_that_its_row_waits_for_is_not_given_up_for_another_model() -> None:
    gateway = with_one("ab", room=2.0)
    for _ in range(3):
        gateway.ask("a")
    waiting = gateway.ask("b")
    assert gateway.stops() == [] and "'a'" in gateway.why(waiting)
    assert gateway.state("a") == "ready, loading"


def test_requests_go_to_the_process_with_most_free_places() -> None:
    gateway = served_one_by_one(more={"concurrency": 3})
    asked = [gateway.ask("a") for _ in range(9)]
    gateway.loaded("a")
    gateway.loaded("a")
    first, second = gateway.all_loads("a")
    assert len(gateway.granted) == 6
    gateway.done(*asked)
    gateway.ask("a")
    assert processes_of_grants(gateway) == [first], "the older of two that are idle"
    gateway.ask("a")
    assert processes_of_grants(gateway) == [second]
    gateway.ask("a")
    assert processes_of_grants(gateway) == [first]


def test_both_processes_serve_the_row_in_the_order_of_arrival() -> None:
    gateway, asked = with_two()
    assert gateway.granted == asked[:2]
    gateway.done(asked[1])
    gateway.done(asked[0])
    assert gateway.granted == asked


def test_nobody_who_serves_gives_way_to_a_further_process() -> None:
    gateway = served_one_by_one("ab", room=2.0, quantum=1.0)
    serving = gateway.ask("b")
    gateway.loaded("b")
    gateway.ask("a")
    gateway.wait(10.0)
    gateway.loaded("a")
    for _ in range(20):
        waiting = gateway.ask("a")
    gateway.wait(1000.0)
    assert [model for model, _ in gateway.loads] == ["b", "a"] and "no room for another" in gateway.why(waiting)
    assert gateway.ask("b") in gateway.granted, "it was not closed either"
    assert serving in gateway.granted


def test_an_idle_model_gives_way_to_a_further_process_when_its_loss_is_less_than_the_waiting() -> None:
    gateway = served_one_by_one("ab", room=2.0)
    gateway.make_ready("b")
    gateway.wait(3600.0)
    gateway.ask("a")
    gateway.wait(10.0)
    gateway.loaded("a")
    for _ in range(5):
        gateway.ask("a")
    assert gateway.loads[-1] == ("a", ["b"])


def test_an_idle_model_that_is_often_used_stays_until_the_waiting_costs_more() -> None:
    gateway = served_one_by_one("ab", room=2.0, b={"load_s": 40.0})
    gateway.make_ready("b")
    for _ in range(300):
        gateway.wait(1.0)
        gateway.done(gateway.ask("b"))
    gateway.machine.state.learnt["b"].measured_load_s = 40.0
    gateway.ask("a")
    gateway.wait(10.0)
    gateway.loaded("a")
    for _ in range(8):
        gateway.ask("a")
    assert len(gateway.loads) == 2, "a reload of b costs 40 s"
    for _ in range(20):
        gateway.ask("a")
    assert gateway.loads[-1] == ("a", ["b"])


def test_a_further_process_waits_until_every_model_that_waits_has_its_first() -> None:
    gateway = served_one_by_one("ab", room=2.0, sizes={"b": 2.0})
    gateway.ask("a")
    gateway.wait(10.0)
    gateway.loaded("a")
    gateway.ask("b")
    for _ in range(9):
        waiting = gateway.ask("a")
    assert [model for model, _ in gateway.loads] == ["a"] and "models that have none wait" in gateway.why(waiting)


def test_a_model_that_waits_for_jobs_alone_keeps_nobody_from_growing() -> None:
    gateway = served_one_by_one("ab", room=2.0, sizes={"b": 9.0})
    gateway.ask("a")
    gateway.wait(10.0)
    gateway.loaded("a")
    gateway.ask("b")
    for _ in range(9):
        gateway.ask("a")
    assert [model for model, _ in gateway.loads] == ["a", "a"]


def test_the_extra_process_is_the_first_to_be_evicted() -> None:
    gateway, asked = with_two(names="abc", room=3.0)
    gateway.done(*asked)
    gateway.make_ready("b")
    gateway.done(gateway.ask("a"))
    first, second = gateway.all_loads("a")
    gateway.ask("c")
    assert gateway.loads[-1] == ("c", ["a"])
    assert gateway.machine.state.present[second].phase == "stopping" and gateway.machine.state.present[first].open


def test_the_extra_process_of_a_pinned_model_may_go_and_the_last_one_may_not() -> None:
    gateway, asked = with_two(names="abc", room=2.0, more={"pinned": True})
    gateway.done(*asked)
    first, second = gateway.all_loads("a")
    assert gateway.machine.price(first, gateway.now) is None and gateway.machine.price(second, gateway.now) is not None
    assert gateway.turn(YieldAsked(first)) == []
    gateway.ask("b")
    assert gateway.loads[-1] == ("b", ["a"])
    gateway.loaded("b")
    assert gateway.states("ab") == ["ready", "ready"]


def test_the_extra_process_of_a_pinned_model_yields_to_a_job_and_ends_when_it_is_idle_for_long() -> None:
    gateway, asked = with_two(more={"pinned": True, "ttl_s": 30.0})
    gateway.done(*asked)
    gateway.wait(1000.0)
    assert gateway.state("a") == "ready, stopping"
    gateway, asked = with_two(more={"pinned": True})
    gateway.done(*asked)
    gateway.turn(YieldAsked(gateway.all_loads("a")[1]))
    assert gateway.stops() == [(["a"], "yielded")]


def test_the_extra_process_ends_first_when_little_is_asked() -> None:
    gateway, asked = with_two(more={"ttl_s": 30.0})
    gateway.done(*asked)
    for _ in range(4):
        gateway.wait(10.0)
        gateway.done(gateway.ask("a"))
    assert gateway.state("a") == "ready, stopping"


def test_a_crash_takes_only_the_requests_of_its_own_process() -> None:
    gateway, asked = with_two()
    first, second = gateway.all_loads("a")
    gateway.turn(Stopped(first, "killed by signal 9"))
    gateway.failed(asked[0])
    assert gateway.refused == {} and gateway.all_loads("a", "ready") == [second]
    gateway.done(asked[1])
    assert gateway.granted == [asked[0], asked[1], asked[0]], "it keeps its place before those who came later"


def test_those_who_wait_stay_with_the_process_that_is_left_while_the_model_backs_off() -> None:
    gateway, asked = with_two()
    for _ in range(2):
        gateway.turn(Stopped(gateway.all_loads("a")[1], "killed"))
        gateway.failed(asked[1])
        if gateway.all_loads("a", "loading"):
            gateway.loaded("a")
    assert [gateway.code(request) for request in asked] == ["", "model_load_failed", "", ""]
    late = gateway.ask("a")
    assert gateway.code(late) == "" and gateway.state("a") == "ready"
    gateway.turn(Stopped(gateway.load("a"), "killed"))
    assert gateway.code(late) == "model_load_failed", "nothing is left to wait for"


def test_nobody_waits_for_a_model_that_backs_off_once_its_last_process_is_to_leave() -> None:
    gateway = with_one()
    waiting = [gateway.ask("a") for _ in range(4)]
    gateway.loaded("a", error="out of memory")
    gateway.loaded("a", error="out of memory")
    gateway.yield_room("a")
    assert {gateway.code(request) for request in waiting} == {"model_load_failed"}
    assert gateway.all_loads("a", "loading") == []


def test_a_further_process_that_cannot_be_loaded_costs_nobody_anything() -> None:
    gateway = served_one_by_one()
    gateway.ask("a")
    gateway.wait(10.0)
    gateway.loaded("a")
    waiting = [gateway.ask("a") for _ in range(4)]
    gateway.loaded("a", error="out of memory")
    gateway.loaded("a", error="out of memory")
    assert gateway.refused == {} and "is tried in 1 s" in gateway.why(waiting[0])
    gateway.wait(1.0)
    assert gateway.state("a") == "ready, loading"


def test_who_waited_for_a_load_that_failed_goes_on_to_the_other() -> None:
    gateway = served_one_by_one()
    asked = [gateway.ask("a") for _ in range(5)]
    gateway.turn(LoadDone(gateway.all_loads("a")[0], "exit code 1"))
    assert gateway.refused == {}
    gateway.loaded("a")
    assert gateway.granted == asked[:1]


def test_unloading_stops_every_process_and_is_answered_when_all_are_gone() -> None:
    gateway, _ = with_two()
    both = gateway.all_loads("a")
    gateway.unload("a")
    assert gateway.stops() == [(["a", "a"], "unloaded")]
    gateway.turn(Stopped(both[1]))
    assert gateway.answered() == []
    gateway.turn(Stopped(both[0]))
    assert gateway.answered() == [7]


def test_several_processes_are_found_running() -> None:
    gateway = served_one_by_one()
    gateway.turn(ModelFound("a", load=-1))
    gateway.turn(ModelFound("a", load=-2))
    asked = [gateway.ask("a"), gateway.ask("a")]
    assert gateway.granted == asked and gateway.loads == []


def test_fewer_processes_in_the_configuration_end_the_newest_when_it_is_idle() -> None:
    gateway, asked = with_two()
    first, second = gateway.all_loads("a")
    gateway.reconfigure("a", a={"concurrency": 1})
    assert gateway.stops() == []
    gateway.done(*asked)
    assert gateway.stops() == [(["a"], "surplus")] and gateway.all_loads("a", "ready") == [first]
    assert second in gateway.all_loads("a", "stopping")


def test_a_configuration_that_allows_them_again_in_time_keeps_all_processes() -> None:
    gateway, asked = with_two()
    gateway.reconfigure("a", a={"concurrency": 1})
    gateway.reconfigure("a", a={"concurrency": 1, "max_instances": 2})
    gateway.done(*asked)
    assert gateway.state("a") == "ready, ready"


def test_a_job_gets_the_room_of_one_process_and_the_other_serves_on() -> None:
    gateway, asked = with_two()
    first, second = gateway.all_loads("a")
    gateway.yield_room("a")
    gateway.done(asked[0])
    assert gateway.stops() == [(["a"], "yielded")]
    gateway.done(asked[1])
    assert processes_of_grants(gateway) == [second] and first != second


def test_places_are_estimated_from_all_processes_there_are_and_will_be() -> None:
    gateway = served_one_by_one()
    gateway.ask("a")
    gateway.wait(10.0)
    gateway.loaded("a")
    for _ in range(3):
        gateway.ask("a")
    assert gateway.state("a") == "ready, loading"
    assert [place.estimate_s for place in gateway.machine.places(gateway.now)] == [5.0, 10.0, 12.5]


@pytest.mark.parametrize("found", [0, 2])
def test_serial_has_one_process_whatever_may_be(found: int) -> None:
    gateway = CoreGateway(Serial, a={"max_instances": 3, "concurrency": 1})
    for number in range(found):
        gateway.turn(ModelFound("a", load=-1 - number))
    asked = [gateway.ask("a") for _ in range(20)]
    if not found:
        gateway.loaded("a")
    assert gateway.granted == asked[:1]
    assert len([load for load in gateway.all_loads("a") if load not in gateway.all_loads("a", "stopping")]) == 1


# Users


def test_of_those_who_wait_for_a_model_the_user_with_the_fewest_served_is_next() -> None:
    gateway = CoreGateway(Fifo, a={"concurrency": 2})
    many = [gateway.ask_for("eve", "a") for _ in range(5)]
    few = [gateway.ask_for("bob", "a") for _ in range(2)]
    gateway.loaded("a")
    assert gateway.granted == [many[0], few[0]]
    gateway.done(few[0])
    assert gateway.granted[2:] == [few[1]], "the other user has one served already"
    gateway.done(few[1], many[0])
    assert gateway.granted[3:] == many[1:3], "and nobody else waits any more"


def test_users_do_not_change_the_exact_order_of_serial() -> None:
    gateway = CoreGateway(Serial)
    asked = [gateway.ask_for(user, "a") for user in ("eve", "eve", "bob")]
    gateway.loaded("a")
    gateway.done(asked[0])
    assert gateway.granted == asked[:2]
