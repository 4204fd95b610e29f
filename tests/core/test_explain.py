"""`why`: the first line says what matters, and the change it offers really starts the job."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.strategies import greedy_needs, needs, offers
from tests.core.yard import Yard

from ostler.core.explain import smallest_change
from ostler.core.match import never_fits, unmet
from ostler.domain.job import JobSpec
from ostler.domain.quantities import needed_mib, needed_milli, parse_size
from ostler.domain.worker import Capabilities, Slots

NEVER = "no registered worker could ever run this, even empty"


def test_without_any_worker_it_says_how_to_start_one() -> None:
    yard = Yard()
    told = yard.why(yard.submit())
    assert told.summary.startswith("no worker has registered yet")
    assert told.state == "pending"
    assert told.workers == [] and told.change is None


def test_what_no_worker_could_ever_run_is_said_in_the_first_line_with_the_nearest_miss() -> None:
    yard = Yard()
    yard.worker("small", gpus=2, vram=48, cores=4)
    yard.worker("none", cores=2)
    told = yard.why(yard.submit(gpu_count=4, min_cpu_cores=4))
    assert told.summary.startswith(NEVER)
    assert "needs 4 GPUs; small has 2 free of 2" in told.summary
    assert told.state == "pending"


def test_a_service_where_no_worker_has_a_slot_for_services_can_never_run() -> None:
    yard = Yard()
    yard.worker("box", slots=4, service_slots=0)
    assert yard.why(yard.submit(type="service")).summary.startswith(NEVER)


def test_what_waits_for_room_says_so_and_does_not_say_never() -> None:
    yard = Yard()
    yard.worker("box", gpus=2, vram=48)
    yard.submit(gpu_count=2)
    told = yard.why(yard.submit(gpu_count=1))
    assert told.summary == "waits for room: needs 1 GPU; box has 0 free of 2"


def test_a_worker_that_is_away_could_still_run_it() -> None:
    yard = Yard()
    yard.worker("box")
    yard.leave("box")
    assert yard.why(yard.submit()).summary == "waits for room: box is offline"


def test_a_machine_that_joins_takes_what_nobody_could_run() -> None:
    yard = Yard()
    yard.worker("small")
    job = yard.submit(gpu_count=1)
    assert yard.why(job).summary.startswith(NEVER)
    yard.worker("big", gpus=1, vram=24)
    assert yard.where(job) == "big"


def test_blockers_are_told_by_axis_the_widest_first_with_the_workers_they_close() -> None:
    yard = Yard()
    yard.worker("a", cores=1, memory=1)
    yard.worker("b", cores=1, memory=64)
    yard.worker("c", cores=2, memory=64)
    told = yard.why(yard.submit(min_cpu_cores=4, min_memory_gb=32))
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
    yard = Yard()
    yard.worker("box")
    job = yard.submit()
    yard.start(job)
    assert re.match(rf"{job} is running on box: box scored best \(.*\)", yard.why(job).summary)


def test_of_an_orphan_it_says_how_long_it_waits_for_whom() -> None:
    yard = Yard()
    yard.worker("box")
    job = yard.submit(job_tier="evaluation")
    yard.start(job)
    yard.leave("box")
    assert "it waits up to 120 s for box" in yard.why(job).summary


def test_of_a_requeued_job_whose_process_still_runs_it_names_that_worker() -> None:
    yard = Yard()
    yard.worker("box")
    job = yard.submit()
    yard.start(job)
    yard.requeue(job)
    told = yard.why(job)
    assert told.summary == "waits until its old process on box is gone"
    assert [blocker.axis for blocker in told.blockers] == ["release"]


@pytest.mark.parametrize(
    ("offer", "wanted", "change"),
    [
        ({"gpus": 2, "vram": 48}, {"gpu_count": 4}, "ask for 2 GPUs instead of 4 (on box)"),
        ({"devices": [24]}, {"gpu_count": 1, "min_vram_gb": 40}, "ask for 24 GiB of VRAM instead of 40 GiB (on box)"),
        ({"devices": [24, 8]}, {"min_vram_gb": 40}, "ask for 24 GiB of VRAM instead of 40 GiB (on box)"),
        ({"cores": 4}, {"min_cpu_cores": 8}, "ask for 4 cores instead of 8 (on box)"),
        ({"memory": 4}, {"min_memory_gb": 8}, "ask for 4 GiB of memory instead of 8 GiB (on box)"),
        ({}, {"labels": ["zone = eu"]}, "drop the constraint 'zone = eu' (on box)"),
        (
            {"gpus": 1, "gpu_type": "L4"},
            {"gpu_count": 1, "gpu_type": "H100"},
            "take any GPU type, not only h100 (on box)",
        ),
        ({"backend": "metal", "gpus": 1}, {"gpu_backend": "nvidia"}, "take any backend, not only nvidia (on box)"),
        ({"cores": 1, "memory": 1}, {"min_cpu_cores": 8, "min_memory_gb": 8}, None),
    ],
)
def test_the_smallest_change_is_told_in_the_units_of_the_request(
    offer: dict[str, Any], wanted: dict[str, Any], change: str | None
) -> None:
    yard = Yard()
    yard.worker("box", **offer)
    assert yard.why(yard.submit(**wanted)).change == change


def test_where_only_a_drain_is_in_the_way_the_change_is_to_resume() -> None:
    yard = Yard()
    yard.worker("box")
    yard.drain("box")
    assert yard.why(yard.submit()).change == "resume box"


def applied(spec: JobSpec, change: str) -> JobSpec:
    """The spec as a person would write it after reading the change."""
    if found := re.match(r"ask for (\d+) GPUs? instead of", change):
        return _with(spec, gpu_count=int(found[1]))
    if found := re.match(r"ask for ([\d.e+]+) cores instead of", change):
        return _with(spec, min_cpu_cores=float(found[1]))
    if found := re.match(r"ask for ([\d.e+]+ \w+) of (VRAM|memory) instead of", change):
        field = {"VRAM": "min_vram_gb", "memory": "min_memory_gb"}[found[2]]
        return _with(spec, **{field: parse_size(found[1]) / 1024**3})
    if found := re.match(r"drop the constraint '(.+)' \(on", change):
        return _with(spec, labels=[label for label in spec.labels if label != found[1]])
    if change.startswith("take any GPU type"):
        return _with(spec, gpu_type="")
    assert change.startswith("take any backend"), change
    return _with(spec, gpu_backend="")


def _with(spec: JobSpec, **changes: Any) -> JobSpec:
    return msgspec.structs.replace(spec, **changes)


@settings(max_examples=200, deadline=None)
@given(st.lists(offers(), min_size=1, max_size=3), st.lists(needs(), max_size=3), st.one_of(greedy_needs(), needs()))
def test_the_smallest_change_starts_the_job_when_it_is_made(
    fleet: list[Capabilities], running: list[dict[str, Any]], wanted: dict[str, Any]
) -> None:
    yard = fleet_of(fleet)
    for one in running:
        yard.submit(**one)
    spec = JobSpec(command=["true"], **wanted)
    if any(not unmet(spec.request(), worker, yard.now) for worker in yard.fleet.workers.values()):
        return
    change = smallest_change(yard.fleet, spec.request(), yard.now)
    if change is None:
        return
    job = yard.submit(**{name: getattr(applied(spec, change), name) for name in wanted})
    assert yard.where(job), f"{change!r} did not start it: {yard.why(job).summary}"


@settings(max_examples=100, deadline=None)
@given(st.lists(offers(), min_size=1, max_size=4), st.lists(needs(), max_size=3), needs())
def test_a_job_waits_exactly_where_every_worker_gives_a_reason(
    fleet: list[Capabilities], running: list[dict[str, Any]], wanted: dict[str, Any]
) -> None:
    yard = fleet_of(fleet)
    for one in running:
        yard.submit(**one)
    request = JobSpec(command=["true"], **wanted).request()
    found = {worker.id: unmet(request, worker, yard.now) for worker in yard.fleet.workers.values()}
    never = {worker.id: never_fits(request, worker) for worker in yard.fleet.workers.values()}
    job = yard.submit(**wanted)
    if yard.where(job):
        assert found[yard.where(job)] == []
        return
    assert all(found.values())
    assert yard.why(job).summary.startswith(NEVER) == all(never.values())
    for name, reasons in found.items():
        assert {reason.text for reason in reasons if reason.lasting} <= {reason.text for reason in reasons}
        assert bool(never[name]) == any(reason.lasting for reason in reasons)


def fleet_of(fleet: list[Capabilities]) -> Yard:
    yard = Yard()
    for number, offer in enumerate(fleet):
        yard.register(f"w{number}", offer)
        yard.beat(f"w{number}", slots=Slots(batch_total=8))
    return yard


def test_a_need_that_is_read_off_the_screen_is_the_one_that_was_meant() -> None:
    """The change is written with few digits; what is written must still fit."""
    yard = Yard()
    yard.worker("box", cores=12.345, memory=503.75)
    for wanted in ({"min_cpu_cores": 16}, {"min_memory_gb": 600}):
        change = yard.why(yard.submit(**wanted)).change
        assert change is not None
        spec = applied(JobSpec(command=["true"], **wanted), change)
        assert needed_milli(spec.min_cpu_cores) <= 12_345, change
        assert needed_mib(spec.min_memory_gb) <= 503.75 * 1024, change
