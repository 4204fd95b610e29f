"""Models on the ledger: room is traded, never taken."""

import random
from typing import Any

import pytest
from tests.core.core_fleet import CoreFleet, new_job
from tests.core.test_holds import held, passed_over

from ostler.core.effects import AskYield, Refuse
from ostler.core.events import ModelLoad, ModelPriced, ModelUsed
from ostler.core.models import PRIORITY, could_place, in_the_way
from ostler.domain import states
from ostler.domain.job import JobSpec
from ostler.domain.quota import Quota, Quotas


def load(
    core: CoreFleet, name: str, *, evict: tuple[str, ...] = (), load_s: dict[str, float] | None = None, **spec: Any
) -> None:
    terms = {"type": "model", "user_id": "gateway", "priority": PRIORITY, "max_attempts": 0, **spec}
    core.turn(ModelLoad(ref=0, job=new_job(name, **terms), evict=list(evict), load_s=load_s or {}))


def price(core: CoreFleet, name: str, seconds: float | None) -> list[str]:
    """Who was asked to yield."""
    core.turn(ModelPriced(job_id=name, price_s=seconds))
    return [effect.job_id for effect in core.of(AskYield)]


def core_with_one_gpu() -> CoreFleet:
    core = CoreFleet()
    core.worker("box", gpus=1, vram=24, service_slots=8)
    return core


def test_what_the_evicted_leave_is_the_new_models_and_nobody_elses() -> None:
    core = core_with_one_gpu()
    load(core, "a", gpu_count=1)
    core.start("a")
    core.submit("job", gpu_count=1, priority=5000)
    load(core, "b", gpu_count=1, evict=("a",))
    assert core.states("a", "b", "job") == [states.CANCELLED, states.PENDING, states.PENDING]
    core.end("a", "cancelled")
    assert core.where("b") == "box"
    assert core.where("job") == ""


@pytest.mark.parametrize("placed", ["assigned", "running"])
def test_a_model_that_its_worker_hands_back_ends_and_is_not_placed_again(placed: str) -> None:
    """Its address would be another one, and the gateway decides on the next load."""
    core = core_with_one_gpu()
    core.worker("other", gpus=1, vram=24, service_slots=8)
    load(core, "a", gpu_count=1)
    if placed == "running":
        core.start("a")
    core.end("a", "returned", fault="drain")
    assert core.state("a") == states.CANCELLED and core.where("a") == ""
    core.wait(100.0)
    assert core.state("a") == states.CANCELLED


def test_a_model_whose_worker_comes_back_without_it_ends() -> None:
    core = core_with_one_gpu()
    load(core, "a", gpu_count=1)
    core.leave("box")
    core.register("box")
    assert core.state("a") == states.CANCELLED


def test_a_models_process_is_not_requeued() -> None:
    core = core_with_one_gpu()
    load(core, "a", gpu_count=1)
    core.start("a")
    core.requeue("a")
    [refused] = core.of(Refuse)
    assert "gateway loads the model anew" in str(refused.error) and core.state("a") == states.RUNNING
    core.end("a")
    core.requeue("a")
    assert core.of(Refuse) and core.state("a") == states.SUCCEEDED


def used(core: CoreFleet) -> dict[str, float]:
    users = core.fleet.usage.users()
    return {user: round(core.fleet.usage.gpu_seconds(user, core.now), 3) for user in users}


def test_a_models_time_counts_for_its_callers_and_idle_time_for_nobody() -> None:
    core = core_with_one_gpu()
    load(core, "a", gpu_count=1)
    core.start("a")
    core.wait(4000.0)
    assert used(core) == {}
    core.turn(ModelUsed(gpu_seconds={"ann": 30.0, "bob": 10.0}))
    assert used(core) == {"ann": 30.0, "bob": 10.0}
    core.end("a", "cancelled")
    assert used(core) == {"ann": 30.0, "bob": 10.0}
    core.restart()
    assert used(core) == pytest.approx({"ann": 30.0, "bob": 10.0}, rel=0.01), "it is on the ledger"


def test_who_called_models_more_has_the_next_job_later() -> None:
    core = core_with_one_gpu()
    first = core.submit("first", gpu_count=1, user_id="cleo")
    core.start(first)
    core.turn(ModelUsed(gpu_seconds={"ann": 30.0}))
    anns, bobs = core.submit("anns", gpu_count=1, user_id="ann"), core.submit("bobs", gpu_count=1, user_id="bob")
    core.end(first)
    assert (core.where(anns), core.where(bobs)) == ("", "box")


def test_no_quota_counts_or_holds_a_model() -> None:
    core = CoreFleet()
    core.fleet.set_quotas(Quotas(default=Quota(running_gpus=1, running_jobs=1)))
    core.worker("box", gpus=4, vram=96, service_slots=8)
    load(core, "a", gpu_count=2)
    load(core, "b", gpu_count=1)
    assert [core.where("a"), core.where("b")] == ["box", "box"]
    core.turn(ModelUsed(gpu_seconds={"ann": 1e6}))
    assert core.where(core.submit("anns", gpu_count=1, user_id="ann")) == "box"


def test_a_model_never_takes_the_room_of_a_job() -> None:
    core = core_with_one_gpu()
    core.submit("job", gpu_count=1, preemptible=True)
    core.start("job")
    load(core, "a", gpu_count=1)
    assert core.cancelled() == []
    assert core.state("a") == states.PENDING
    core.end("job")
    assert core.where("a") == "box"


def test_a_job_gets_the_room_of_an_idle_model_when_the_gateway_lets_it_go() -> None:
    core = core_with_one_gpu()
    load(core, "a", gpu_count=1)
    core.start("a")
    core.submit("job", gpu_count=1)
    assert core.of(AskYield) == []
    assert price(core, "a", 20.0) == ["a"]
    assert core.cancelled() == []
    core.turn()
    assert core.of(AskYield) == []
    core.cancel("a")
    core.end("a", "cancelled")
    assert core.where("job") == "box"


def test_a_model_that_is_wanted_again_keeps_its_room_and_the_job_waits_on() -> None:
    core = core_with_one_gpu()
    load(core, "a", gpu_count=1)
    core.start("a")
    core.submit("job", gpu_count=1)
    assert price(core, "a", 20.0) == ["a"]
    assert price(core, "a", None) == []
    assert core.fleet.room_makers == {}
    assert price(core, "a", 20.0) == ["a"]


def test_a_job_whose_promised_room_another_model_gets_asks_again() -> None:
    core = core_with_one_gpu()
    load(core, "a", gpu_count=1)
    core.start("a")
    core.submit("job", gpu_count=1)
    assert price(core, "a", 20.0) == ["a"]
    load(core, "b", gpu_count=1, evict=("a",))
    assert list(core.fleet.room_makers) == ["b"]
    core.end("a", "cancelled")
    assert core.where("b") == "box"
    core.start("b")
    assert price(core, "b", 20.0) == ["b"]


def test_the_cheapest_idle_model_is_asked_and_no_more_than_needed() -> None:
    core = CoreFleet()
    core.worker("box", gpus=2, vram=48, service_slots=8)
    for name, seconds in (("dear", 60.0), ("cheap", 5.0)):
        load(core, name, gpu_count=1)
        core.start(name)
        price(core, name, seconds)
    core.submit("job", gpu_count=1)
    assert [effect.job_id for effect in core.of(AskYield)] == ["cheap"]


def test_a_lost_model_is_not_started_again_by_the_fleet() -> None:
    core = core_with_one_gpu()
    load(core, "a", gpu_count=1)
    core.start("a")
    core.end("a", "failed")
    assert core.state("a") == states.FAILED
    load(core, "b", gpu_count=1)
    core.start("b")
    core.leave("box")
    core.wait(3600, silent=True)
    assert core.state("b") == states.FAILED


def test_whether_a_model_could_be_placed_is_asked_of_the_ledger() -> None:
    core = CoreFleet()
    core.worker("box", gpus=2, vram=48, service_slots=8)
    whole = JobSpec(command=["m"], type="model", gpu_count=1).request()
    load(core, "a", gpu_count=1)
    core.submit("job", gpu_count=1)
    assert not could_place(core.fleet, whole, (), (), core.now)
    assert could_place(core.fleet, whole, ("a",), (), core.now)
    assert not could_place(core.fleet, whole, ("a",), (whole,), core.now)
    assert not could_place(core.fleet, whole, ("job-that-is-not-there",), (), core.now)


def test_the_jobs_in_a_models_way_are_those_that_would_leave_enough() -> None:
    core = CoreFleet()
    core.worker("box", gpus=2, vram=48, service_slots=8)
    one, both = (JobSpec(command=["m"], type="model", gpu_count=count).request() for count in (1, 2))
    assert in_the_way(core.fleet, both, (), core.now) == []
    core.submit("first", gpu_count=1)
    core.submit("second", gpu_count=1)
    assert in_the_way(core.fleet, one, (), core.now) == ["first", "second"]
    core.submit("third", gpu_count=1)
    assert in_the_way(core.fleet, both, (), core.now) == ["first", "second"]
    assert in_the_way(core.fleet, both, ("first",), core.now) == ["second"]
    never = JobSpec(command=["m"], type="model", gpu_count=3).request()
    assert in_the_way(core.fleet, never, (), core.now) == []


@pytest.mark.parametrize("seed", range(20))
def test_a_model_is_placed_when_it_was_said_that_it_could_be_and_only_then(seed: int) -> None:
    """The index answers for workers as they are; this compares it with what is done."""
    chance, core = random.Random(seed), CoreFleet()
    for number in range(4):
        devices = [chance.choice((16, 24, 80)) for _ in range(chance.randrange(4))]
        core.worker(f"box{number}", devices=devices, memory=64, service_slots=chance.randrange(3))
    for number in range(30):
        needs: dict[str, Any] = {"gpu_count": chance.randrange(3), "min_memory_gb": chance.choice((0, 8, 40))}
        if not needs["gpu_count"]:
            needs["min_vram_gb"] = chance.choice((0, 4, 12, 30))
        request = JobSpec(command=["m"], type="model", **needs).request()
        there = [name for name in core.fleet.jobs if name.startswith("m") and core.where(name)]
        gone = chance.sample(there, min(len(there), chance.randrange(3)))
        says = could_place(core.fleet, request, gone, (), core.now)
        for name in gone:
            core.start(name)
            core.cancel(name)
            core.end(name, "cancelled")
        load(core, f"m{number}", **needs)
        assert bool(core.where(f"m{number}")) == says
        if not says:
            core.cancel(f"m{number}")


def test_a_model_is_loaded_where_it_is_ready_soonest() -> None:
    core = CoreFleet()
    for name in ("a-slow", "b-never-tried", "c-quick"):
        core.worker(name, gpus=1, vram=24, service_slots=8)
    seconds = {"a-slow": 60.0, "c-quick": 5.0}
    for number, where in enumerate(("c-quick", "b-never-tried", "a-slow")):
        load(core, f"m{number}", gpu_count=1, load_s=seconds)
        assert core.where(f"m{number}") == where
    core.start("m0")
    core.cancel("m0")
    core.end("m0", "cancelled")
    assert set(core.fleet.load_s) == {"m1", "m2"}, "it is forgotten with its job"


def test_machines_where_it_is_ready_about_as_soon_are_told_apart_by_all_else() -> None:
    core = CoreFleet()
    core.worker("a", gpus=1, vram=24, service_slots=8)
    core.worker("b", gpus=1, vram=24, service_slots=8)
    load(core, "m", gpu_count=1, load_s={"a": 10.4, "b": 10.0})
    assert core.where("m") == "a", "the first by name"


def test_a_model_passes_a_hold_and_that_is_said_beforehand() -> None:
    core = CoreFleet()
    core.worker("box0", gpus=2, vram=48, service_slots=8)
    core.start(core.submit("old", gpu_count=1, max_runtime_hours=1))
    passed_over(core, "whole", gpu_count=2)
    assert held(core) == {"whole": ["box0"]}
    request = JobSpec(command=["m"], type="model", gpu_count=1).request()
    assert could_place(core.fleet, request, (), (), core.now)
    load(core, "m", gpu_count=1)
    assert core.where("m") == "box0"
