"""Models on the ledger: room is traded, never taken."""

import random
from typing import Any

import pytest
from tests.core.test_holds import held, passed_over
from tests.core.yard import Yard, new_job

from ostler.core.effects import AskYield
from ostler.core.events import ModelLoad, ModelPriced
from ostler.core.models import PRIORITY, could_place, in_the_way
from ostler.domain import states
from ostler.domain.job import JobSpec


def load(
    yard: Yard, name: str, *, evict: tuple[str, ...] = (), load_s: dict[str, float] | None = None, **spec: Any
) -> None:
    terms = {"type": "model", "user_id": "gateway", "priority": PRIORITY, "max_attempts": 0, **spec}
    yard.turn(ModelLoad(ref=0, job=new_job(name, **terms), evict=list(evict), load_s=load_s or {}))


def price(yard: Yard, name: str, seconds: float | None) -> list[str]:
    """Who was asked to yield."""
    yard.turn(ModelPriced(job_id=name, price_s=seconds))
    return [effect.job_id for effect in yard.of(AskYield)]


def yard_with_one_gpu() -> Yard:
    yard = Yard()
    yard.worker("box", gpus=1, vram=24, service_slots=8)
    return yard


def test_what_the_evicted_leave_is_the_new_models_and_nobody_elses() -> None:
    yard = yard_with_one_gpu()
    load(yard, "a", gpu_count=1)
    yard.start("a")
    yard.submit("job", gpu_count=1, priority=5000)
    load(yard, "b", gpu_count=1, evict=("a",))
    assert yard.states("a", "b", "job") == [states.CANCELLED, states.PENDING, states.PENDING]
    yard.end("a", "cancelled")
    assert yard.where("b") == "box"
    assert yard.where("job") == ""


def test_a_model_never_takes_the_room_of_a_job() -> None:
    yard = yard_with_one_gpu()
    yard.submit("job", gpu_count=1, preemptible=True)
    yard.start("job")
    load(yard, "a", gpu_count=1)
    assert yard.cancelled() == []
    assert yard.state("a") == states.PENDING
    yard.end("job")
    assert yard.where("a") == "box"


def test_a_job_gets_the_room_of_an_idle_model_when_the_gateway_lets_it_go() -> None:
    yard = yard_with_one_gpu()
    load(yard, "a", gpu_count=1)
    yard.start("a")
    yard.submit("job", gpu_count=1)
    assert yard.of(AskYield) == []
    assert price(yard, "a", 20.0) == ["a"]
    assert yard.cancelled() == []
    yard.turn()
    assert yard.of(AskYield) == []
    yard.cancel("a")
    yard.end("a", "cancelled")
    assert yard.where("job") == "box"


def test_a_model_that_is_wanted_again_keeps_its_room_and_the_job_waits_on() -> None:
    yard = yard_with_one_gpu()
    load(yard, "a", gpu_count=1)
    yard.start("a")
    yard.submit("job", gpu_count=1)
    assert price(yard, "a", 20.0) == ["a"]
    assert price(yard, "a", None) == []
    assert yard.fleet.room_makers == {}
    assert price(yard, "a", 20.0) == ["a"]


def test_a_job_whose_promised_room_another_model_gets_asks_again() -> None:
    yard = yard_with_one_gpu()
    load(yard, "a", gpu_count=1)
    yard.start("a")
    yard.submit("job", gpu_count=1)
    assert price(yard, "a", 20.0) == ["a"]
    load(yard, "b", gpu_count=1, evict=("a",))
    assert list(yard.fleet.room_makers) == ["b"]
    yard.end("a", "cancelled")
    assert yard.where("b") == "box"
    yard.start("b")
    assert price(yard, "b", 20.0) == ["b"]


def test_the_cheapest_idle_model_is_asked_and_no_more_than_needed() -> None:
    yard = Yard()
    yard.worker("box", gpus=2, vram=48, service_slots=8)
    for name, seconds in (("dear", 60.0), ("cheap", 5.0)):
        load(yard, name, gpu_count=1)
        yard.start(name)
        price(yard, name, seconds)
    yard.submit("job", gpu_count=1)
    assert [effect.job_id for effect in yard.of(AskYield)] == ["cheap"]


def test_a_lost_model_is_not_started_again_by_the_fleet() -> None:
    yard = yard_with_one_gpu()
    load(yard, "a", gpu_count=1)
    yard.start("a")
    yard.end("a", "failed")
    assert yard.state("a") == states.FAILED
    load(yard, "b", gpu_count=1)
    yard.start("b")
    yard.leave("box")
    yard.wait(3600, silent=True)
    assert yard.state("b") == states.FAILED


def test_whether_a_model_could_be_placed_is_asked_of_the_ledger() -> None:
    yard = Yard()
    yard.worker("box", gpus=2, vram=48, service_slots=8)
    whole = JobSpec(command=["m"], type="model", gpu_count=1).request()
    load(yard, "a", gpu_count=1)
    yard.submit("job", gpu_count=1)
    assert not could_place(yard.fleet, whole, (), (), yard.now)
    assert could_place(yard.fleet, whole, ("a",), (), yard.now)
    assert not could_place(yard.fleet, whole, ("a",), (whole,), yard.now)
    assert not could_place(yard.fleet, whole, ("job-that-is-not-there",), (), yard.now)


def test_the_jobs_in_a_models_way_are_those_that_would_leave_enough() -> None:
    yard = Yard()
    yard.worker("box", gpus=2, vram=48, service_slots=8)
    one, both = (JobSpec(command=["m"], type="model", gpu_count=count).request() for count in (1, 2))
    assert in_the_way(yard.fleet, both, (), yard.now) == []
    yard.submit("first", gpu_count=1)
    yard.submit("second", gpu_count=1)
    assert in_the_way(yard.fleet, one, (), yard.now) == ["first", "second"]
    yard.submit("third", gpu_count=1)
    assert in_the_way(yard.fleet, both, (), yard.now) == ["first", "second"]
    assert in_the_way(yard.fleet, both, ("first",), yard.now) == ["second"]
    never = JobSpec(command=["m"], type="model", gpu_count=3).request()
    assert in_the_way(yard.fleet, never, (), yard.now) == []


@pytest.mark.parametrize("seed", range(20))
def test_a_model_is_placed_when_it_was_said_that_it_could_be_and_only_then(seed: int) -> None:
    """The index answers for workers as they are; this compares it with what is done."""
    chance, yard = random.Random(seed), Yard()
    for number in range(4):
        devices = [chance.choice((16, 24, 80)) for _ in range(chance.randrange(4))]
        yard.worker(f"box{number}", devices=devices, memory=64, service_slots=chance.randrange(3))
    for number in range(30):
        needs: dict[str, Any] = {"gpu_count": chance.randrange(3), "min_memory_gb": chance.choice((0, 8, 40))}
        if not needs["gpu_count"]:
            needs["min_vram_gb"] = chance.choice((0, 4, 12, 30))
        request = JobSpec(command=["m"], type="model", **needs).request()
        there = [name for name in yard.fleet.jobs if name.startswith("m") and yard.where(name)]
        gone = chance.sample(there, min(len(there), chance.randrange(3)))
        says = could_place(yard.fleet, request, gone, (), yard.now)
        for name in gone:
            yard.start(name)
            yard.cancel(name)
            yard.end(name, "cancelled")
        load(yard, f"m{number}", **needs)
        assert bool(yard.where(f"m{number}")) == says
        if not says:
            yard.cancel(f"m{number}")


def test_a_model_is_loaded_where_it_is_ready_soonest() -> None:
    yard = Yard()
    for name in ("a-slow", "b-never-tried", "c-quick"):
        yard.worker(name, gpus=1, vram=24, service_slots=8)
    seconds = {"a-slow": 60.0, "c-quick": 5.0}
    for number, where in enumerate(("c-quick", "b-never-tried", "a-slow")):
        load(yard, f"m{number}", gpu_count=1, load_s=seconds)
        assert yard.where(f"m{number}") == where
    yard.start("m0")
    yard.cancel("m0")
    yard.end("m0", "cancelled")
    assert set(yard.fleet.load_s) == {"m1", "m2"}, "it is forgotten with its job"


def test_machines_where_it_is_ready_about_as_soon_are_told_apart_by_all_else() -> None:
    yard = Yard()
    yard.worker("a", gpus=1, vram=24, service_slots=8)
    yard.worker("b", gpus=1, vram=24, service_slots=8)
    load(yard, "m", gpu_count=1, load_s={"a": 10.4, "b": 10.0})
    assert yard.where("m") == "a", "the first by name"


def test_a_model_passes_a_hold_and_that_is_said_beforehand() -> None:
    yard = Yard()
    yard.worker("box0", gpus=2, vram=48, service_slots=8)
    yard.start(yard.submit("old", gpu_count=1, max_runtime_hours=1))
    passed_over(yard, "whole", gpu_count=2)
    assert held(yard) == {"whole": ["box0"]}
    request = JobSpec(command=["m"], type="model", gpu_count=1).request()
    assert could_place(yard.fleet, request, (), (), yard.now)
    load(yard, "m", gpu_count=1)
    assert yard.where("m") == "box0"
