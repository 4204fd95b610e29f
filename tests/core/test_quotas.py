"""Quotas per user: hold what would exceed them, refuse what may not even wait, and say which."""

from typing import Any

import pytest
from tests.core.core_fleet import CoreFleet

from ostler.core.effects import Refuse
from ostler.core.foresight.explain import never_within_quota, why
from ostler.domain.quota import Quota, Quotas


def core_with(**quota: int) -> CoreFleet:
    core = CoreFleet()
    core.fleet.set_quotas(Quotas(users={"ann": Quota(**quota)}))
    core.worker("box", gpus=8, vram=192)
    return core


def test_running_gpus_hold_back_what_would_exceed_them_and_nobody_else() -> None:
    core = core_with(running_gpus=2)
    first = core.submit("first", gpu_count=2)
    second = core.submit("second", gpu_count=1)
    cpu = core.submit("cpu")
    other = core.submit("other", gpu_count=4, user_id="bob")
    assert [core.where(job) for job in (first, second, cpu, other)] == ["box", "", "box", "box"]
    assert core.why(second).summary == "held by a quota: ann has 2 of 2 running_gpus"
    core.end(first)
    assert core.where(second) == "box"


def test_running_jobs_hold_back_one_more() -> None:
    core = core_with(running_jobs=1)
    first, second = core.submit("first"), core.submit("second")
    assert core.where(second) == ""
    assert "ann has 1 of 1 running_jobs" in core.why(second).summary
    core.end(first)
    assert core.where(second) == "box"


def test_queued_jobs_over_the_quota_are_refused_with_its_name() -> None:
    core = core_with(running_jobs=1, queued_jobs=1)
    core.submit("runs")
    core.submit("waits")
    core.submit("refused")
    errors = [str(effect.error) for effect in core.heard if isinstance(effect, Refuse)]
    told = "ann has 1 queued jobs and asks for 1 more; the quota queued_jobs is 1: "
    assert errors == [told + "wait until some have started, cancel some, or ask an operator for more"]
    assert "refused" not in core.fleet.jobs


def test_a_part_of_a_gpu_counts_as_that_part_before_it_runs() -> None:
    core = core_with(running_gpus=1)
    first, second = core.submit("first", gpu_share=0.7), core.submit("second", gpu_share=0.7)
    rest = core.submit("rest", gpu_share=0.3)
    assert [core.where(job) for job in (first, second, rest)] == ["box", "", "box"]


def test_what_a_quota_held_back_starts_on_another_machine_than_the_one_that_gained_room() -> None:
    core = CoreFleet()
    core.fleet.set_quotas(Quotas(users={"ann": Quota(running_jobs=1)}))
    core.worker("plain", cores=4)
    core.worker("box", gpus=8, vram=192)
    first = core.submit("first", min_cpu_cores=4, gpu_backend="cpu")
    waits = core.submit("waits", gpu_count=8)
    for _ in range(3):
        core.wait(1)
    assert (core.where(first), core.where(waits)) == ("plain", "")
    core.end(first)
    assert core.where(waits) == "box"


def test_an_array_that_a_quota_holds_names_the_quota() -> None:
    core = core_with(running_jobs=1)
    core.submit("a", array=3)
    core.start("a.0")
    array = core.fleet.jobs["a"]
    told = why(core.fleet, array, None, core.now)
    assert told.summary.startswith("a.0 is running on box: ")
    assert told.summary.endswith("; 2 of its tasks wait: held by a quota: ann has 1 of 1 running_jobs")
    assert (told.dominant, told.blockers[0].axis) == ("quota", "quota")
    one = why(core.fleet, array, None, core.now, waits=True)
    assert one.summary == "held by a quota: ann has 1 of 1 running_jobs"


def test_a_quota_that_ran_out_the_scheduling_timeout_is_the_cause() -> None:
    core = core_with(running_jobs=1)
    core.submit("first")
    core.start("first")
    core.submit("second", scheduling_timeout_seconds=30)
    core.wait(31)
    reason = "not placed within 30 s: held by a quota: ann has 1 of 1 running_jobs"
    assert (core.job("second").state, core.job("second").reason) == ("unschedulable", reason)


@pytest.mark.parametrize(
    ("quota", "needs", "cause"),
    [
        ({"running_gpus": 2}, {"gpu_count": 4}, "it needs 4 GPUs, and the quota running_gpus of ann is 2"),
        (
            {"running_gpus": 1},
            {"gpu_share": 0.6, "node_count": 2},
            "it needs 1.2 GPUs, and the quota running_gpus of ann is 1",
        ),
        ({"running_jobs": 2}, {"node_count": 3}, "it starts 3 tasks at once, and the quota running_jobs of ann is 2"),
        (
            {"running_jobs": 1},
            {"node_count": 2, "type": "batch"},
            "it starts 2 tasks at once, and the quota running_jobs of ann is 1",
        ),
    ],
)
def test_a_job_that_wants_more_than_its_quota_ever_allows_can_never_start(
    quota: dict[str, int], needs: dict[str, Any], cause: str
) -> None:
    core = core_with(**quota)
    job = core.submit("big", **needs)
    told = core.why(job)
    assert told.summary == f"it can never start: {cause}"
    assert (told.dominant, told.blockers[0].reason) == ("quota", told.summary)
    assert never_within_quota(core.fleet, core.fleet.jobs[job]) == told.summary


def test_a_job_that_a_quota_will_admit_later_is_not_said_to_start_never() -> None:
    core = core_with(running_gpus=2, running_jobs=1)
    core.submit("first", gpu_count=2)
    assert never_within_quota(core.fleet, core.fleet.jobs[core.submit("second", gpu_count=2)]) == ""
    assert never_within_quota(core.fleet, core.fleet.jobs[core.submit("many", array=9)]) == ""
