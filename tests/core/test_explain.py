"""`why`: the first line says what matters, and every axis has its words."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.core_fleet import CoreFleet
from tests.core.strategies import needs, offers

from ostler.core.events import ModelPriced
from ostler.core.foresight.explain import why
from ostler.core.foresight.holders import Holder, holders
from ostler.core.foresight.outlook import Span
from ostler.core.match import never_fits, unmet
from ostler.domain.job import JobSpec
from ostler.domain.quota import Quota, Quotas
from ostler.domain.worker import Capabilities, Slots

NEVER = "no registered worker could ever run this, even empty"


def test_without_any_worker_it_says_how_to_start_one() -> None:
    core = CoreFleet()
    told = core.why(core.submit())
    assert told.summary.startswith("no worker has registered yet")
    assert told.state == "pending"
    assert told.workers == [] and told.dominant == ""


def test_what_no_worker_could_ever_run_is_said_in_the_first_line_with_the_nearest_miss() -> None:
    core = CoreFleet()
    core.worker("small", gpus=2, vram=48, cores=4)
    core.worker("none", cores=2)
    told = core.why(core.submit(gpu_count=4, min_cpu_cores=4))
    assert told.summary.startswith(NEVER)
    assert "needs 4 GPUs; small has 2 free of 2" in told.summary
    assert told.state == "pending"


def test_a_service_where_no_worker_has_a_slot_for_services_can_never_run() -> None:
    core = CoreFleet()
    core.worker("box", slots=4, service_slots=0)
    assert core.why(core.submit(type="service")).summary.startswith(NEVER)


def test_what_waits_for_room_says_so_and_does_not_say_never() -> None:
    core = CoreFleet()
    core.worker("box", gpus=2, vram=48)
    core.submit(gpu_count=2)
    told = core.why(core.submit(gpu_count=1))
    assert told.summary == "waits for room: needs 1 GPU; box has 0 free of 2"


def test_a_worker_that_is_away_could_still_run_it() -> None:
    core = CoreFleet()
    core.worker("box")
    core.leave("box")
    assert core.why(core.submit()).summary == "waits for room: box is offline"


def test_a_machine_that_joins_takes_what_nobody_could_run() -> None:
    core = CoreFleet()
    core.worker("small")
    job = core.submit(gpu_count=1)
    assert core.why(job).summary.startswith(NEVER)
    core.worker("big", gpus=1, vram=24)
    assert core.where(job) == "big"


def test_blockers_are_told_by_axis_the_widest_first_with_the_workers_they_close() -> None:
    core = CoreFleet()
    core.worker("a", cores=1, memory=1)
    core.worker("b", cores=1, memory=64)
    core.worker("c", cores=2, memory=64)
    told = core.why(core.submit(min_cpu_cores=4, min_memory_gb=32))
    assert [(blocker.axis, blocker.workers) for blocker in told.blockers] == [
        ("cores", ["a", "b", "c"]),
        ("memory", ["a"]),
    ]
    assert [(view.id, view.fits, len(view.reasons)) for view in told.workers] == [
        ("a", False, 2),
        ("b", False, 1),
        ("c", False, 1),
    ]


def test_of_a_running_job_it_says_why_this_worker() -> None:
    core = CoreFleet()
    core.worker("box")
    job = core.submit()
    core.start(job)
    assert re.match(rf"{job} is running on box: box scored best \(.*\)", core.why(job).summary)


def test_of_an_orphan_it_says_how_long_it_waits_for_whom() -> None:
    core = CoreFleet()
    core.worker("box")
    job = core.submit(job_tier="evaluation")
    core.start(job)
    core.leave("box")
    assert "it waits up to 120 s for box" in core.why(job).summary


def test_of_a_requeued_job_whose_process_still_runs_it_names_that_worker() -> None:
    core = CoreFleet()
    core.worker("box")
    job = core.submit()
    core.start(job)
    core.requeue(job)
    told = core.why(job)
    assert told.summary == "waits until its old process on box is gone"
    assert [blocker.axis for blocker in told.blockers] == ["release"]


@settings(max_examples=100, deadline=None)
@given(st.lists(offers(), min_size=1, max_size=4), st.lists(needs(), max_size=3), needs())
def test_a_job_waits_exactly_where_every_worker_gives_a_reason(
    fleet: list[Capabilities], running: list[dict[str, Any]], wanted: dict[str, Any]
) -> None:
    core = fleet_of(fleet)
    for one in running:
        core.submit(**one)
    request = JobSpec(command=["true"], **wanted).request()
    found = {worker.id: unmet(request, worker, core.now) for worker in core.fleet.workers.values()}
    never = {worker.id: never_fits(request, worker) for worker in core.fleet.workers.values()}
    job = core.submit(**wanted)
    if core.where(job):
        assert found[core.where(job)] == []
        return
    assert all(found.values())
    assert core.why(job).summary.startswith(NEVER) == all(never.values())
    for name, reasons in found.items():
        assert {reason.text for reason in reasons if reason.lasting} <= {reason.text for reason in reasons}
        assert bool(never[name]) == any(reason.lasting for reason in reasons)


def fleet_of(fleet: list[Capabilities]) -> CoreFleet:
    core = CoreFleet()
    for number, offer in enumerate(fleet):
        core.register(f"w{number}", offer)
        core.beat(f"w{number}", slots=Slots(batch_total=8))
    return core


@pytest.mark.parametrize(
    ("offer", "wanted", "axis", "lasting", "words"),
    [
        ({"gpus": 2}, {"gpu_count": 4}, "gpu_count", True, "needs 4 GPUs; box has 2 free of 2"),
        ({"devices": [24]}, {"gpu_count": 1, "min_vram_gb": 40}, "vram", True, "needs 1 GPU with 40 GiB of VRAM"),
        ({"devices": [24]}, {"gpu_share": 0.5}, "", False, ""),
        ({}, {"gpu_share": 0.5}, "vram", True, "needs 0.5 of one GPU"),
        ({"cores": 4}, {"min_cpu_cores": 8}, "cores", True, "needs 8 cores; box has 4 free of 4"),
        ({"memory": 4}, {"min_memory_gb": 8}, "memory", True, "needs 8 GiB of memory; box has 4 GiB free of 4 GiB"),
        ({"slots": 0}, {}, "slots", True, "needs a batch slot; box has 0 free of 0"),
        ({}, {"labels": ["zone = eu"]}, "labels", True, "needs zone = eu; box has no label zone"),
        ({"gpus": 1, "gpu_type": "L4"}, {"gpu_type": "A100|H100"}, "gpu_type", True, "needs GPU type a100 or h100"),
        ({"backend": "metal", "gpus": 1}, {"gpu_backend": "nvidia"}, "backend", True, "needs backend nvidia"),
        ({}, {"allowed_hosts": ["alpha"]}, "host", True, "may run only on alpha"),
        ({}, {"prefer_cuda": True}, "preference", False, "prefers CUDA until it has waited 300 s"),
    ],
)
def test_every_axis_says_what_is_missing_and_whether_that_lasts(
    offer: dict[str, Any], wanted: dict[str, Any], axis: str, lasting: bool, words: str
) -> None:
    core = CoreFleet()
    core.worker("box", **offer)
    job = core.submit(**wanted)
    if not axis:
        assert core.where(job) == "box"
        return
    told = core.why(job)
    assert told.dominant == axis
    (unmet_there,) = told.alike[0].unmet
    assert (unmet_there.axis, unmet_there.lasting) == (axis, lasting)
    assert unmet_there.reason.startswith(words)


def test_workers_that_the_same_keeps_from_it_are_one_group_and_the_nearest_group_is_first() -> None:
    core = CoreFleet()
    for number in range(5):
        core.worker(f"small-{number}", cores=2, memory=1)
    core.worker("near", cores=4)
    told = core.why(core.submit(min_cpu_cores=8, min_memory_gb=4))
    assert [(group.workers[0], len(group.workers)) for group in told.alike] == [("near", 1), ("small-0", 5)]
    assert len(told.workers) == 6


def test_a_quota_is_the_dominant_blocker_and_names_its_numbers() -> None:
    core = CoreFleet()
    core.worker("box")
    core.fleet.set_quotas(Quotas(default=Quota(running_jobs=1)))
    core.submit()
    told = core.why(core.submit())
    assert (told.dominant, told.summary) == ("quota", "held by a quota: ann has 1 of 1 running_jobs")


def test_room_that_is_being_made_is_told_with_who_makes_it() -> None:
    core = CoreFleet()
    core.worker("box", gpus=1)
    weak = core.submit(gpu_count=1, preemptible=True)
    core.start(weak)
    told = core.why(core.submit(gpu_count=1, priority=5))
    assert (told.dominant, told.summary) == (
        "preemption",
        f"room is being made for it: {weak} on box was told to end",
    )


def test_other_users_jobs_are_not_named() -> None:
    core = CoreFleet()
    core.worker("box", gpus=2)
    core.start(core.submit("old", gpu_count=1, preemptible=True, user_id="bob", max_runtime_hours=1))
    core.submit("owner", gpu_count=2, user_id="bob")
    core.wait(700)
    told = core.why(core.submit(gpu_count=1, user_id="ann"))
    assert told.summary == "box is held for another user's job"
    told = core.why(core.submit(gpu_count=2, priority=5, user_id="ann"))
    assert told.summary == "room is being made for it: another user's job on box was told to end"


def test_a_machine_that_is_held_for_another_is_told_as_that() -> None:
    core, owner, passing = held_machine()
    told = core.why(passing)
    assert (told.dominant, told.summary) == ("hold", f"box is held for {owner}")
    (by,) = holders_of(core, passing)
    assert (by.worker, by.job, by.kind) == ("box", owner, "held")


def test_who_holds_it_are_those_that_must_end_where_it_could_start_first() -> None:
    core = CoreFleet()
    core.worker("box", gpus=2, cores=8)
    core.worker("slow", gpus=2, cores=8)
    short = core.submit(gpu_count=2, max_runtime_hours=0.1)
    long = core.submit(gpu_count=2, max_runtime_hours=50)
    beside = core.submit(min_cpu_cores=1)
    core.start(short, long, beside)
    (by,) = holders_of(core, core.submit(gpu_count=1, min_cpu_cores=2))
    assert (by.worker, by.job, by.kind, by.what) == (core.where(short), short, "job", "GPUs 0, 1")
    assert by.until is not None and by.until.high_s is not None
    assert by.until.low_s < 180 < by.until.high_s <= 360


def test_of_several_on_one_machine_the_next_to_end_is_the_one_that_is_waited_for() -> None:
    core = CoreFleet()
    core.worker("box", gpus=2)
    long, short = core.submit(gpu_count=1, max_runtime_hours=50), core.submit(gpu_count=1, max_runtime_hours=0.1)
    core.start(long, short)
    assert [by.job for by in holders_of(core, core.submit(gpu_count=1))] == [short]
    assert {by.job for by in holders_of(core, core.submit(gpu_count=2))} == {short, long}


def test_a_models_process_in_the_way_is_told_as_that_and_nobody_knows_until_when() -> None:
    core = CoreFleet()
    core.worker("box", gpus=1, service_slots=1)
    model = core.submit(type="model", gpu_count=1)
    core.start(model)
    (by,) = holders_of(core, core.submit(gpu_count=1))
    assert (by.job, by.kind, by.until) == (model, "model", None)


def test_an_idle_model_in_the_way_gives_its_room_at_once() -> None:
    core = CoreFleet()
    core.worker("box", gpus=2, service_slots=1)
    model, busy = core.submit(type="model", gpu_count=1), core.submit(gpu_count=1)
    core.start(model, busy)
    core.turn(ModelPriced(job_id=model, price_s=20.0))
    until = {by.job: by.until for by in holders_of(core, core.submit(gpu_count=2))}
    assert until.keys() == {model, busy}
    assert until[model] == Span(0.0, 0.0, 0.0)


def test_a_gang_waits_for_as_many_machines_as_it_needs() -> None:
    core = CoreFleet()
    for name in ("a", "b", "c"):
        core.worker(name, gpus=1)
    running = [core.submit(gpu_count=1) for _ in range(3)]
    core.start(*running)
    found = holders_of(core, core.submit(gpu_count=1, node_count=2))
    assert len({by.worker for by in found}) == 2


def test_an_array_that_runs_in_part_says_what_the_rest_waits_for() -> None:
    core = CoreFleet()
    core.worker("box", gpus=1)
    job = core.submit(gpu_count=1, array=3)
    core.start(f"{job}.0")
    told = why(core.fleet, core.fleet.jobs[job], None, core.now)
    assert told.state == "running"
    assert "2 of its tasks wait: waits for room: needs 1 GPU; box has 0 free of 1" in told.summary


def held_machine() -> tuple[CoreFleet, str, str]:
    """A machine with room for one more, held for a job that needs more than that."""
    core = CoreFleet()
    core.worker("box", gpus=2, vram=48)
    core.start(core.submit(gpu_count=1, max_runtime_hours=1))
    owner = core.submit(gpu_count=2)
    core.wait(700)
    return core, owner, core.submit(gpu_count=1)


def holders_of(core: CoreFleet, job_id: str) -> list[Holder]:
    return holders(core.fleet, core.fleet.jobs[job_id], core.now)
