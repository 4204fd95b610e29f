"""Quotas per user: hold what would exceed them, refuse what may not even wait, and say which."""

from tests.core.core_fleet import CoreFleet

from ostler.core.effects import Refuse
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
