"""Unloading, yielding to jobs, reconfiguring, preloading, shutting down."""

import pytest
from tests.gateway.core.core_gateway import CoreGateway, Sizes

from ostler.domain.errors import BadInput
from ostler.gateway.core.events import ConfigChanged, PreloadAsked, YieldAsked
from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.models import Catalogue, Config, Group, Recipe, Sets
from ostler.gateway.core.scheduler import SCHEDULERS, make

# Unloading


def test_unloading_refuses_those_who_wait_for_the_load_and_stops_the_process() -> None:
    gateway = CoreGateway(Fifo)
    waiting = [gateway.ask("a"), gateway.ask("a")]
    other = gateway.ask("b")
    gateway.unload("a")
    assert [gateway.refused[request].status for request in waiting] == [503, 503]
    assert gateway.stops() == [(["a"], "unloaded")] and gateway.answered() == []
    gateway.stopped("a")
    assert gateway.answered() == [7]
    gateway.loaded("b")
    assert gateway.granted == [other]


def test_unloading_refuses_the_queued_requests_of_that_model_only() -> None:
    gateway = CoreGateway(Fifo, room=1.0)
    gateway.ask("a")
    dropped, kept = gateway.ask("b"), gateway.ask("c")
    gateway.unload("b")
    assert gateway.code(dropped) == "unloaded" and gateway.code(kept) == ""
    assert gateway.answered() == [7], "nothing of it is there"
    assert gateway.state("a") == "loading"


def test_unloading_a_serving_model_stops_it_at_once_and_cut_requests_are_not_tried_again() -> None:
    gateway = CoreGateway(Fifo)
    cut, streaming = gateway.ask("a"), gateway.ask("a")
    gateway.loaded("a")
    gateway.unload("a")
    assert gateway.stops() == [(["a"], "unloaded")]
    gateway.failed(cut)
    assert gateway.code(cut) == "unloaded"
    gateway.stopped("a")
    gateway.done(streaming)
    assert len(gateway.loads) == 1


def test_unloading_nothing_in_particular_unloads_everything() -> None:
    gateway = CoreGateway(Fifo, room=3.0)
    gateway.make_ready("a", "b")
    gateway.ask("c")
    gateway.unload()
    assert gateway.stops() == [(["a", "b", "c"], "unloaded")]
    for model in "abc":
        assert gateway.answered() == []
        gateway.stopped(model)
    assert gateway.answered() == [7]


def test_unloading_knows_aliases_and_skips_what_is_unknown() -> None:
    gateway = CoreGateway(Fifo, a={"aliases": ("gpt-4",)})
    gateway.make_ready("a")
    gateway.unload("gpt-4", "nobody")
    assert gateway.stops() == [(["a"], "unloaded")]


def test_a_request_after_the_unload_has_the_model_loaded_anew() -> None:
    gateway = CoreGateway(Fifo)
    gateway.make_ready("a")
    gateway.unload("a")
    request = gateway.ask("a")
    gateway.stopped("a")
    gateway.loaded("a")
    assert request in gateway.granted


def test_unloading_makes_room_for_those_who_wait() -> None:
    gateway = CoreGateway(Fifo, room=1.0)
    gateway.ask("a")
    gateway.loaded("a")
    gateway.ask("b")
    gateway.unload("a")
    gateway.stopped("a")
    assert gateway.loads[-1] == ("b", [])


# Jobs


def test_an_idle_model_yields_its_room_to_a_job_at_once() -> None:
    gateway = CoreGateway(Fifo)
    gateway.make_ready("a")
    gateway.yield_room("a")
    assert gateway.stops() == [(["a"], "yielded")]


def test_a_serving_model_takes_no_new_requests_and_yields_when_its_last_has_ended() -> None:
    gateway = CoreGateway(Fifo, room=1.0)
    serving = gateway.ask("a")
    gateway.loaded("a")
    gateway.yield_room("a")
    waiting = gateway.ask("a")
    assert "a job wants its room" in gateway.why(waiting)
    gateway.done(serving)
    assert gateway.stops() == [(["a"], "yielded")]
    gateway.capacity.jobs = 1.0
    gateway.stopped("a")
    assert len(gateway.loads) == 1 and "jobs" in gateway.why(waiting)
    gateway.jobs_take(0.0)
    gateway.loaded("a")
    assert waiting in gateway.granted


def test_a_pinned_model_does_not_yield_nor_does_one_that_is_being_loaded_for_somebody() -> None:
    gateway = CoreGateway(Fifo, a={"pinned": True})
    gateway.make_ready("a")
    assert gateway.yield_room("a") == [] and gateway.turn(YieldAsked(99)) == []
    leaves = gateway.ask("b")
    assert gateway.yield_room("b") == []
    gateway.cancel(leaves)
    gateway.yield_room("b")
    assert gateway.stops() == [(["b"], "yielded")]


def test_a_request_waits_for_the_jobs_and_goes_on_when_there_is_room() -> None:
    gateway = CoreGateway(Fifo, room=2.0)
    gateway.jobs_take(2.0)
    request = gateway.ask("a")
    assert gateway.loads == [] and "jobs" in gateway.why(request)
    gateway.jobs_take(1.0)
    assert gateway.loads == [("a", [])]


def test_the_price_of_an_idle_models_room_is_what_its_loss_would_cost() -> None:
    gateway = CoreGateway(Fifo, b={"pinned": True})
    gateway.make_ready("a", "b")
    price = gateway.price("a")
    assert price is not None and 0.0 < price < 10.0
    assert gateway.price("b") is None and gateway.machine.price(99, gateway.now) is None
    gateway.ask("a")
    assert gateway.price("a") is None


# The configuration


def test_only_what_changed_is_stopped_and_who_waits_gets_the_new_one() -> None:
    gateway = CoreGateway(Fifo, "abc")
    gateway.make_ready("a", "b")
    waiting = gateway.ask("c")
    gateway.reconfigure("abc", a={"digest": "2"}, b={"priority": 3}, c={"digest": "2"})
    assert {(tuple(models), why) for models, why in gateway.stops()} == {(("a",), "changed"), (("c",), "changed")}
    assert gateway.state("b") == "ready" and gateway.refused == {}
    gateway.stopped("c")
    gateway.loaded("c")
    assert waiting in gateway.granted


def test_a_changed_model_ends_what_it_serves_first() -> None:
    gateway = CoreGateway(Fifo, "a")
    serving = gateway.ask("a")
    gateway.loaded("a")
    gateway.reconfigure("a", a={"digest": "2"})
    waiting = gateway.ask("a")
    assert gateway.stops() == [] and "recipe has changed" in gateway.why(waiting)
    gateway.done(serving)
    assert gateway.stops() == [(["a"], "changed")]
    gateway.stopped("a")
    gateway.loaded("a")
    assert waiting in gateway.granted


def test_a_recipe_that_changes_back_in_time_changes_nothing() -> None:
    gateway = CoreGateway(Fifo, "a")
    gateway.ask("a")
    gateway.loaded("a")
    gateway.reconfigure("a", a={"digest": "2"})
    queued = gateway.ask("a")
    gateway.reconfigure("a")
    assert queued in gateway.granted and gateway.state("a") == "ready"


def test_requests_for_a_model_that_vanished_are_refused_and_its_process_is_stopped() -> None:
    gateway = CoreGateway(Fifo, "ab", room=1.0)
    serving = gateway.ask("a")
    gateway.loaded("a")
    queued = gateway.ask("b")
    gateway.reconfigure("a")
    assert gateway.code(queued) == "model_not_found"
    gateway.reconfigure("b")
    assert gateway.code(gateway.ask("a")) == "model_not_found"
    gateway.done(serving)
    assert gateway.stops() == [(["a"], "removed")]


def test_a_new_model_can_be_asked_for() -> None:
    gateway = CoreGateway(Fifo, "a")
    gateway.reconfigure("ab")
    gateway.ask("b")
    assert gateway.state("b") == "loading"


def test_a_new_limit_holds_for_those_who_come_after() -> None:
    gateway = CoreGateway(Fifo, "a")
    serving = [gateway.ask("a") for _ in range(3)]
    gateway.loaded("a")
    gateway.reconfigure("a", a={"concurrency": 1})
    later = gateway.ask("a")
    gateway.done(*serving[:2])
    assert later not in gateway.granted
    gateway.done(serving[2])
    assert later in gateway.granted


def test_a_shorter_time_to_live_counts_from_now_on() -> None:
    gateway = CoreGateway(Fifo, "a")
    gateway.make_ready("a")
    gateway.wait(10.0)
    gateway.reconfigure("a", a={"ttl_s": 15.0})
    gateway.wait(5.0)
    assert gateway.stops() == [(["a"], "idle")]


def test_a_configuration_that_contradicts_itself_changes_nothing() -> None:
    gateway = CoreGateway(Fifo, "ab")
    gateway.make_ready("a")
    with pytest.raises(BadInput, match="'a' is a member twice"):
        gateway.turn(ConfigChanged(Config(models=gateway.config.models, groups=(Group(members=("a", "a")),))))
    assert gateway.ask("a") in gateway.granted


@pytest.mark.parametrize(
    ("config", "where"),
    [
        ({"models": (Recipe(name="a"), Recipe(name="a"))}, "models"),
        ({"models": (Recipe(name="a"), Recipe(name="b", aliases=("a",)))}, "models"),
        ({"groups": (Group(members=("a",)), Group(members=("a", "b")))}, "groups"),
        ({"groups": (Group(members=("x",)),)}, "groups[0]"),
        ({"sets": Sets(members=(("a", "x"),))}, "sets[0]"),
        ({"sets": Sets(evict_costs={"x": 2.0})}, "evict_costs"),
        ({"preload": ("x",)}, "preload"),
        ({"quantum": -1.0}, "quantum"),
        ({"quantum": float("nan")}, "quantum"),
    ],
)
def test_what_is_wrong_in_a_configuration_is_said_with_its_place(config: dict, where: str) -> None:
    with pytest.raises(BadInput) as caught:
        Catalogue(Config(**{"models": (Recipe(name="a"), Recipe(name="b")), **config}))
    assert where in [place for place, _ in caught.value.errors]


# Preloading


def test_what_is_configured_to_be_preloaded_is_loaded_when_there_is_room() -> None:
    gateway = CoreGateway(Fifo, "abc", room=2.0)
    gateway.capacity.jobs = 2.0
    gateway.turn(ConfigChanged(Config(models=gateway.config.models, preload=("b", "a", "c"))))
    assert gateway.loads == []
    gateway.jobs_take(0.0)
    assert gateway.loads == [("b", []), ("a", [])], "c would have to displace one of them"
    gateway.loaded("a")
    gateway.loaded("b")
    gateway.unload("a")
    gateway.stopped("a")
    assert gateway.loads[2:] == [("c", [])], "it gets room when there is some"


def test_a_preload_takes_no_room_that_somebody_waits_for() -> None:
    gateway = CoreGateway(Fifo, "abc", room=2.0, sizes={"b": 2.0})
    serving = gateway.ask("a")
    gateway.loaded("a")
    gateway.ask("b")
    gateway.turn(PreloadAsked(["c"]))
    assert len(gateway.loads) == 1
    gateway.done(serving)
    assert gateway.loads[-1] == ("b", ["a"])


def test_a_preload_that_fails_is_not_tried_again_until_somebody_asks() -> None:
    gateway = CoreGateway(Fifo)
    gateway.turn(PreloadAsked(["a", "nobody"]))
    gateway.loaded("a", error="exit code 1")
    gateway.jobs_take(0.0)
    assert len(gateway.loads) == 1
    gateway.ask("a")
    assert len(gateway.loads) == 2


def test_a_preload_that_lost_its_room_is_tried_again() -> None:
    gateway = CoreGateway(Fifo)
    gateway.turn(PreloadAsked(["a"]))
    gateway.loaded("a", no_room=True)
    gateway.wait(1.0)
    assert len(gateway.loads) == 2


def test_unloading_takes_a_preload_back() -> None:
    gateway = CoreGateway(Fifo, room=1.0)
    gateway.make_ready("a")
    gateway.turn(PreloadAsked(["b"]))
    gateway.unload()
    gateway.stopped("a")
    assert len(gateway.loads) == 1


# Shutting down


def test_shutdown_refuses_all_who_wait_and_stops_what_is_idle_or_being_loaded() -> None:
    gateway = CoreGateway(Fifo, room=4.0)
    gateway.make_ready("a")
    serving = gateway.ask("b")
    gateway.loaded("b")
    waiting = [gateway.ask("c"), gateway.ask("c"), gateway.ask("d")]
    gateway.shut_down()
    assert {gateway.code(request) for request in waiting} == {"shutting_down"}
    stopped = [model for models, _ in gateway.stops() for model in models]
    assert sorted(stopped) == ["a", "c", "d"]
    gateway.done(serving)
    assert gateway.stops() == [(["b"], "shutdown")]


def test_after_the_shutdown_nothing_is_loaded_any_more() -> None:
    gateway = CoreGateway(Fifo)
    serving = gateway.ask("a")
    gateway.loaded("a")
    gateway.shut_down()
    assert gateway.code(gateway.ask("b")) == "shutting_down"
    gateway.turn(PreloadAsked(["b"]))
    gateway.failed(serving)
    assert gateway.code(serving) == "shutting_down" and len(gateway.loads) == 1


def test_a_scheduler_is_made_by_its_name() -> None:
    for name in SCHEDULERS:
        scheduler = make(name, Config(models=(Recipe(name="a"),)), Sizes(1.0))
        assert type(scheduler).__name__.lower() == name
        assert scheduler.why(1, 0.0).startswith("It is not here")
