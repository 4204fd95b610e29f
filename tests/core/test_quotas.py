"""Quotas per user: hold what would exceed them, refuse what may not even wait, and say which."""

from tests.core.yard import Yard

from ostler.core.effects import Refuse
from ostler.domain.quota import Quota, Quotas


def yard_with(**quota: int) -> Yard:
    yard = Yard()
    yard.fleet.set_quotas(Quotas(users={"ann": Quota(**quota)}))
    yard.worker("box", gpus=8, vram=192)
    return yard


def test_running_gpus_hold_back_what_would_exceed_them_and_nobody_else() -> None:
    yard = yard_with(running_gpus=2)
    first = yard.submit("first", gpu_count=2)
    second = yard.submit("second", gpu_count=1)
    cpu = yard.submit("cpu")
    other = yard.submit("other", gpu_count=4, user_id="bob")
    assert [yard.where(job) for job in (first, second, cpu, other)] == ["box", "", "box", "box"]
    assert yard.why(second).summary == "held by a quota: ann has 2 of 2 running_gpus"
    yard.end(first)
    assert yard.where(second) == "box"


def test_running_jobs_hold_back_one_more() -> None:
    yard = yard_with(running_jobs=1)
    first, second = yard.submit("first"), yard.submit("second")
    assert yard.where(second) == ""
    assert "ann has 1 of 1 running_jobs" in yard.why(second).summary
    yard.end(first)
    assert yard.where(second) == "box"


def test_queued_jobs_over_the_quota_are_refused_with_its_name() -> None:
    yard = yard_with(running_jobs=1, queued_jobs=1)
    yard.submit("runs")
    yard.submit("waits")
    yard.submit("refused")
    errors = [str(effect.error) for effect in yard.heard if isinstance(effect, Refuse)]
    told = "ann has 1 queued jobs and asks for 1 more; the quota queued_jobs is 1: "
    assert errors == [told + "wait until some have started, cancel some, or ask an operator for more"]
    assert "refused" not in yard.fleet.jobs


def test_a_part_of_a_gpu_counts_as_that_part_before_it_runs() -> None:
    yard = yard_with(running_gpus=1)
    first, second = yard.submit("first", gpu_share=0.7), yard.submit("second", gpu_share=0.7)
    rest = yard.submit("rest", gpu_share=0.3)
    assert [yard.where(job) for job in (first, second, rest)] == ["box", "", "box"]


def test_what_a_quota_held_back_starts_on_another_machine_than_the_one_that_gained_room() -> None:
    yard = Yard()
    yard.fleet.set_quotas(Quotas(users={"ann": Quota(running_jobs=1)}))
    yard.worker("plain", cores=4)
    yard.worker("box", gpus=8, vram=192)
    first = yard.submit("first", min_cpu_cores=4, gpu_backend="cpu")
    waits = yard.submit("waits", gpu_count=8)
    for _ in range(3):
        yard.wait(1)
    assert (yard.where(first), yard.where(waits)) == ("plain", "")
    yard.end(first)
    assert yard.where(waits) == "box"
