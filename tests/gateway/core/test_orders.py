"""Unloading, yielding to jobs, reconfiguring, preloading, shutting down."""

import pytest
from tests.gateway.core.stand import Sizes, Stand

from ostler.domain.errors import BadInput
from ostler.gateway.core.events import ConfigChanged, PreloadAsked, YieldAsked
from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.models import Catalogue, Config, Group, Recipe, Sets
from ostler.gateway.core.scheduler import SCHEDULERS, make

# Unloading


def test_unloading_refuses_those_who_wait_for_the_load_and_stops_the_process() -> None:
    stand = Stand(Fifo)
    waiting = [stand.ask("a"), stand.ask("a")]
    other = stand.ask("b")
    stand.unload("a")
    assert [stand.refused[request].status for request in waiting] == [503, 503]
    assert stand.stops() == [(["a"], "unloaded")] and stand.answered() == []
    stand.stopped("a")
    assert stand.answered() == [7]
    stand.loaded("b")
    assert stand.granted == [other]


def test_unloading_refuses_the_queued_requests_of_that_model_only() -> None:
    stand = Stand(Fifo, room=1.0)
    stand.ask("a")
    dropped, kept = stand.ask("b"), stand.ask("c")
    stand.unload("b")
    assert stand.code(dropped) == "unloaded" and stand.code(kept) == ""
    assert stand.answered() == [7], "nothing of it is there"
    assert stand.state("a") == "loading"


def test_unloading_a_serving_model_stops_it_at_once_and_cut_requests_are_not_tried_again() -> None:
    stand = Stand(Fifo)
    cut, streaming = stand.ask("a"), stand.ask("a")
    stand.loaded("a")
    stand.unload("a")
    assert stand.stops() == [(["a"], "unloaded")]
    stand.failed(cut)
    assert stand.code(cut) == "unloaded"
    stand.stopped("a")
    stand.done(streaming)
    assert len(stand.loads) == 1


def test_unloading_nothing_in_particular_unloads_everything() -> None:
    stand = Stand(Fifo, room=3.0)
    stand.make_ready("a", "b")
    stand.ask("c")
    stand.unload()
    assert stand.stops() == [(["a", "b", "c"], "unloaded")]
    for model in "abc":
        assert stand.answered() == []
        stand.stopped(model)
    assert stand.answered() == [7]


def test_unloading_knows_aliases_and_skips_what_is_unknown() -> None:
    stand = Stand(Fifo, a={"aliases": ("gpt-4",)})
    stand.make_ready("a")
    stand.unload("gpt-4", "nobody")
    assert stand.stops() == [(["a"], "unloaded")]


def test_a_request_after_the_unload_has_the_model_loaded_anew() -> None:
    stand = Stand(Fifo)
    stand.make_ready("a")
    stand.unload("a")
    request = stand.ask("a")
    stand.stopped("a")
    stand.loaded("a")
    assert request in stand.granted


def test_unloading_makes_room_for_those_who_wait() -> None:
    stand = Stand(Fifo, room=1.0)
    stand.ask("a")
    stand.loaded("a")
    stand.ask("b")
    stand.unload("a")
    stand.stopped("a")
    assert stand.loads[-1] == ("b", [])


# Jobs


def test_an_idle_model_yields_its_room_to_a_job_at_once() -> None:
    stand = Stand(Fifo)
    stand.make_ready("a")
    stand.yield_room("a")
    assert stand.stops() == [(["a"], "yielded")]


def test_a_serving_model_takes_no_new_requests_and_yields_when_its_last_has_ended() -> None:
    stand = Stand(Fifo, room=1.0)
    serving = stand.ask("a")
    stand.loaded("a")
    stand.yield_room("a")
    waiting = stand.ask("a")
    assert "a job wants its room" in stand.why(waiting)
    stand.done(serving)
    assert stand.stops() == [(["a"], "yielded")]
    stand.capacity.jobs = 1.0
    stand.stopped("a")
    assert len(stand.loads) == 1 and "jobs" in stand.why(waiting)
    stand.jobs_take(0.0)
    stand.loaded("a")
    assert waiting in stand.granted


def test_a_pinned_model_does_not_yield_nor_does_one_that_is_being_loaded_for_somebody() -> None:
    stand = Stand(Fifo, a={"pinned": True})
    stand.make_ready("a")
    assert stand.yield_room("a") == [] and stand.turn(YieldAsked(99)) == []
    leaves = stand.ask("b")
    assert stand.yield_room("b") == []
    stand.cancel(leaves)
    stand.yield_room("b")
    assert stand.stops() == [(["b"], "yielded")]


def test_a_request_waits_for_the_jobs_and_goes_on_when_there_is_room() -> None:
    stand = Stand(Fifo, room=2.0)
    stand.jobs_take(2.0)
    request = stand.ask("a")
    assert stand.loads == [] and "jobs" in stand.why(request)
    stand.jobs_take(1.0)
    assert stand.loads == [("a", [])]


def test_the_price_of_an_idle_models_room_is_what_its_loss_would_cost() -> None:
    stand = Stand(Fifo, b={"pinned": True})
    stand.make_ready("a", "b")
    price = stand.price("a")
    assert price is not None and 0.0 < price < 10.0
    assert stand.price("b") is None and stand.machine.price(99, stand.now) is None
    stand.ask("a")
    assert stand.price("a") is None


# The configuration


def test_only_what_changed_is_stopped_and_who_waits_gets_the_new_one() -> None:
    stand = Stand(Fifo, "abc")
    stand.make_ready("a", "b")
    waiting = stand.ask("c")
    stand.reconfigure("abc", a={"digest": "2"}, b={"priority": 3}, c={"digest": "2"})
    assert {(tuple(models), why) for models, why in stand.stops()} == {(("a",), "changed"), (("c",), "changed")}
    assert stand.state("b") == "ready" and stand.refused == {}
    stand.stopped("c")
    stand.loaded("c")
    assert waiting in stand.granted


def test_a_changed_model_ends_what_it_serves_first() -> None:
    stand = Stand(Fifo, "a")
    serving = stand.ask("a")
    stand.loaded("a")
    stand.reconfigure("a", a={"digest": "2"})
    waiting = stand.ask("a")
    assert stand.stops() == [] and "recipe has changed" in stand.why(waiting)
    stand.done(serving)
    assert stand.stops() == [(["a"], "changed")]
    stand.stopped("a")
    stand.loaded("a")
    assert waiting in stand.granted


def test_a_recipe_that_changes_back_in_time_changes_nothing() -> None:
    stand = Stand(Fifo, "a")
    stand.ask("a")
    stand.loaded("a")
    stand.reconfigure("a", a={"digest": "2"})
    queued = stand.ask("a")
    stand.reconfigure("a")
    assert queued in stand.granted and stand.state("a") == "ready"


def test_requests_for_a_model_that_vanished_are_refused_and_its_process_is_stopped() -> None:
    stand = Stand(Fifo, "ab", room=1.0)
    serving = stand.ask("a")
    stand.loaded("a")
    queued = stand.ask("b")
    stand.reconfigure("a")
    assert stand.code(queued) == "model_not_found"
    stand.reconfigure("b")
    assert stand.code(stand.ask("a")) == "model_not_found"
    stand.done(serving)
    assert stand.stops() == [(["a"], "removed")]


def test_a_new_model_can_be_asked_for() -> None:
    stand = Stand(Fifo, "a")
    stand.reconfigure("ab")
    stand.ask("b")
    assert stand.state("b") == "loading"


def test_a_new_limit_holds_for_those_who_come_after() -> None:
    stand = Stand(Fifo, "a")
    serving = [stand.ask("a") for _ in range(3)]
    stand.loaded("a")
    stand.reconfigure("a", a={"concurrency": 1})
    later = stand.ask("a")
    stand.done(*serving[:2])
    assert later not in stand.granted
    stand.done(serving[2])
    assert later in stand.granted


def test_a_shorter_time_to_live_counts_from_now_on() -> None:
    stand = Stand(Fifo, "a")
    stand.make_ready("a")
    stand.wait(10.0)
    stand.reconfigure("a", a={"ttl_s": 15.0})
    stand.wait(5.0)
    assert stand.stops() == [(["a"], "idle")]


def test_a_configuration_that_contradicts_itself_changes_nothing() -> None:
    stand = Stand(Fifo, "ab")
    stand.make_ready("a")
    with pytest.raises(BadInput, match="'a' is a member twice"):
        stand.turn(ConfigChanged(Config(models=stand.config.models, groups=(Group(members=("a", "a")),))))
    assert stand.ask("a") in stand.granted


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
    stand = Stand(Fifo, "abc", room=2.0)
    stand.capacity.jobs = 2.0
    stand.turn(ConfigChanged(Config(models=stand.config.models, preload=("b", "a", "c"))))
    assert stand.loads == []
    stand.jobs_take(0.0)
    assert stand.loads == [("b", []), ("a", [])], "c would have to displace one of them"
    stand.loaded("a")
    stand.loaded("b")
    stand.unload("a")
    stand.stopped("a")
    assert stand.loads[2:] == [("c", [])], "it gets room when there is some"


def test_a_preload_takes_no_room_that_somebody_waits_for() -> None:
    stand = Stand(Fifo, "abc", room=2.0, sizes={"b": 2.0})
    serving = stand.ask("a")
    stand.loaded("a")
    stand.ask("b")
    stand.turn(PreloadAsked(["c"]))
    assert len(stand.loads) == 1
    stand.done(serving)
    assert stand.loads[-1] == ("b", ["a"])


def test_a_preload_that_fails_is_not_tried_again_until_somebody_asks() -> None:
    stand = Stand(Fifo)
    stand.turn(PreloadAsked(["a", "nobody"]))
    stand.loaded("a", error="exit code 1")
    stand.jobs_take(0.0)
    assert len(stand.loads) == 1
    stand.ask("a")
    assert len(stand.loads) == 2


def test_a_preload_that_lost_its_room_is_tried_again() -> None:
    stand = Stand(Fifo)
    stand.turn(PreloadAsked(["a"]))
    stand.loaded("a", no_room=True)
    stand.wait(1.0)
    assert len(stand.loads) == 2


def test_unloading_takes_a_preload_back() -> None:
    stand = Stand(Fifo, room=1.0)
    stand.make_ready("a")
    stand.turn(PreloadAsked(["b"]))
    stand.unload()
    stand.stopped("a")
    assert len(stand.loads) == 1


# Shutting down


def test_shutdown_refuses_all_who_wait_and_stops_what_is_idle_or_being_loaded() -> None:
    stand = Stand(Fifo, room=4.0)
    stand.make_ready("a")
    serving = stand.ask("b")
    stand.loaded("b")
    waiting = [stand.ask("c"), stand.ask("c"), stand.ask("d")]
    stand.shut_down()
    assert {stand.code(request) for request in waiting} == {"shutting_down"}
    stopped = [model for models, _ in stand.stops() for model in models]
    assert sorted(stopped) == ["a", "c", "d"]
    stand.done(serving)
    assert stand.stops() == [(["b"], "shutdown")]


def test_after_the_shutdown_nothing_is_loaded_any_more() -> None:
    stand = Stand(Fifo)
    serving = stand.ask("a")
    stand.loaded("a")
    stand.shut_down()
    assert stand.code(stand.ask("b")) == "shutting_down"
    stand.turn(PreloadAsked(["b"]))
    stand.failed(serving)
    assert stand.code(serving) == "shutting_down" and len(stand.loads) == 1


def test_a_scheduler_is_made_by_its_name() -> None:
    for name in SCHEDULERS:
        scheduler = make(name, Config(models=(Recipe(name="a"),)), Sizes(1.0))
        assert type(scheduler).__name__.lower() == name
        assert scheduler.why(1, 0.0).startswith("It is not here")
