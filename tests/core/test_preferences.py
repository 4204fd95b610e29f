"""A preference gives way with time: what begins its wait anew, what changes it, and what it leaves behind."""

import pytest
from tests.core.portrait import difference, portrait
from tests.core.yard import Yard, entry

from ostler.core import index
from ostler.core.effects import Claimed
from ostler.domain import states
from ostler.domain.quota import Quota, Quotas


def is_closed(yard: Yard, job_id: str) -> bool:
    return yard.fleet.jobs[job_id].shape.request.cuda_first_s > 0


def survives_a_restart(yard: Yard) -> None:
    assert not difference(portrait(yard.fleet, yard.now)["jobs"], portrait(yard.restored(), yard.now)["jobs"])


def preferring(grace_s: float, **spec: object) -> object:
    return entry("a", prefer_cuda=True, prefer_cuda_grace_seconds=grace_s, **spec)


def test_a_grace_that_is_shortened_below_what_it_has_waited_opens_it_at_once() -> None:
    yard = Yard()
    yard.follow(preferring(300))
    yard.wait(200)
    yard.follow(preferring(100))
    assert not is_closed(yard, "a")
    assert isinstance(yard.claim("pi"), Claimed)


def test_a_grace_that_is_lengthened_is_not_ended_by_the_old_one() -> None:
    yard = Yard()
    yard.follow(preferring(300))
    yard.wait(200)
    yard.follow(preferring(400))
    yard.wait(199)
    assert is_closed(yard, "a")
    survives_a_restart(yard)
    yard.wait(1)
    assert not is_closed(yard, "a")


def test_a_preference_that_is_opened_is_closed_again_by_a_longer_grace_and_opens_in_its_time() -> None:
    yard = Yard()
    yard.follow(preferring(300))
    yard.wait(301)
    assert not is_closed(yard, "a")
    yard.follow(preferring(400))
    assert is_closed(yard, "a")
    survives_a_restart(yard)
    yard.wait(99)
    assert not is_closed(yard, "a")


def test_an_edit_of_something_else_does_not_close_a_preference_that_is_over() -> None:
    yard = Yard()
    yard.follow(preferring(300))
    yard.wait(301)
    yard.follow(preferring(300, priority=4))
    assert not is_closed(yard, "a")
    survives_a_restart(yard)


def test_a_preference_that_is_taken_back_opens_at_once_and_one_that_is_given_later_counts_from_the_submit() -> None:
    yard = Yard()
    yard.follow(preferring(300))
    yard.follow(entry("a"))
    yard.wait(250)
    assert not is_closed(yard, "a")
    yard.follow(preferring(300))
    assert is_closed(yard, "a")
    yard.wait(50)
    assert not is_closed(yard, "a")


@pytest.mark.parametrize("restarted", [False, True])
def test_a_requeue_of_what_still_waits_begins_its_wait_anew(restarted: bool) -> None:
    yard = Yard()
    yard.submit("a", prefer_cuda=True, prefer_cuda_grace_seconds=300, scheduling_timeout_seconds=500)
    yard.wait(200)
    yard.requeue("a")
    survives_a_restart(yard)
    if restarted:
        yard.restart()
    yard.wait(299)
    assert is_closed(yard, "a")
    yard.wait(2)
    assert not is_closed(yard, "a")
    yard.wait(190)
    assert yard.state("a") == states.PENDING
    yard.wait(10)
    assert yard.state("a") == states.UNSCHEDULABLE


def test_a_requeue_while_the_old_process_is_stopped_closes_it_for_a_whole_grace() -> None:
    yard = Yard()
    yard.submit("a", prefer_cuda=True)
    yard.wait(301)
    yard.claim("pi")
    yard.requeue("a")
    yard.wait(100)
    yard.claim_end("pi", "a", "failed")
    assert is_closed(yard, "a")
    yard.wait(200)
    assert isinstance(yard.claim("pi"), Claimed)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_job_that_waited_for_another_begins_to_wait_for_cuda_when_it_is_let_go(restarted: bool) -> None:
    yard = Yard()
    yard.submit("first")
    yard.submit("second", prefer_cuda=True, depends_on=["first"])
    yard.wait(400)
    yard.claim("pi")
    yard.claim_end("pi", "first")
    survives_a_restart(yard)
    if restarted:
        yard.restart()
    yard.wait(299)
    assert is_closed(yard, "second")
    yard.wait(2)
    assert not is_closed(yard, "second")


def test_a_scheduling_timeout_that_is_taken_back_ends_nothing() -> None:
    yard = Yard()
    yard.follow(entry("a", scheduling_timeout_seconds=40))
    yard.follow(entry("a"))
    yard.wait(100)
    assert yard.state("a") == states.PENDING


# What is held on a CUDA worker counts as a GPU


def test_a_gpu_that_was_only_preferred_counts_against_the_quota() -> None:
    yard = Yard()
    yard.fleet.set_quotas(Quotas(users={"ann": Quota(running_gpus=1)}))
    yard.worker("box", gpus=4, vram=96)
    for name in ("a", "b"):
        yard.submit(name, prefer_cuda=True)
    assert (yard.where("a"), yard.where("b")) == ("box", "")
    assert yard.why("b").summary == "held by a quota: ann has 1 of 1 running_gpus"
    yard.end("a")
    assert yard.where("b") == "box"


def test_a_gpu_that_was_only_preferred_is_charged_to_its_user() -> None:
    yard = Yard()
    yard.worker("box", gpus=1, vram=24)
    yard.submit("a", prefer_cuda=True, user_id="ann")
    yard.start("a")
    yard.wait(3600)
    yard.end("a")
    assert yard.fleet.usage.gpu_seconds("ann", yard.now) > 3000


# Shapes


def test_shapes_that_preferences_and_edits_leave_behind_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MAX_IDLE_SHAPES", 4)
    yard = Yard()
    for number in range(30):
        yard.submit(f"j{number}", prefer_cuda=True, min_memory_gb=1 + number / 8)
        yard.follow(entry("edited", min_memory_gb=1 + number / 16))
    yard.wait(301)
    assert len(yard.fleet.index.shapes()) <= 31 + 4
    for number in range(30):
        yard.cancel(f"j{number}")
    yard.cancel("edited")
    assert len(yard.fleet.index.shapes()) <= 4


def test_a_shape_is_kept_while_another_job_is_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MAX_IDLE_SHAPES", 0)
    yard = Yard()
    yard.follow(entry("a", min_cpu_cores=2), entry("b", min_cpu_cores=2))
    yard.follow(entry("a", min_cpu_cores=3), entry("b", min_cpu_cores=2))
    yard.cancel("a")
    yard.submit("c", min_memory_gb=2)
    yard.worker("w", cores=2, memory=2)
    assert (yard.where("b"), yard.where("c")) == ("w", "w")


@pytest.mark.parametrize("gpus", [0, 1])
def test_what_it_needs_of_a_cuda_device_it_does_not_need_where_there_is_none(gpus: int) -> None:
    yard = Yard()
    yard.worker("box", gpus=gpus, vram=8 * gpus, backend="vulkan" if gpus else "cpu")
    yard.submit("a", prefer_cuda=True, prefer_cuda_grace_seconds=300, min_vram_gb=16)
    yard.wait(299)
    assert yard.where("a") == ""
    yard.wait(1)
    assert (yard.where("a"), yard.devices("a")) == ("box", ())


def test_on_a_cuda_worker_it_needs_a_device_with_as_much_memory_as_it_says() -> None:
    yard = Yard()
    yard.worker("small", gpus=1, vram=8)
    yard.submit("a", prefer_cuda=True, prefer_cuda_grace_seconds=300, min_vram_gb=16)
    assert yard.where("a") == ""
    yard.worker("large", gpus=1, vram=24)
    assert (yard.where("a"), yard.devices("a")) == ("large", (0,))
