"""A preference gives way with time: what begins its wait anew, what changes it, and what it leaves behind."""

import pytest
from tests.core.core_fleet import CoreFleet, entry
from tests.core.portrait import difference, portrait

from ostler.core import index
from ostler.core.effects import Claimed
from ostler.domain import states
from ostler.domain.quota import Quota, Quotas


def is_closed(core: CoreFleet, job_id: str) -> bool:
    return core.fleet.jobs[job_id].shape.request.cuda_first_s > 0


def survives_a_restart(core: CoreFleet) -> None:
    assert not difference(portrait(core.fleet, core.now)["jobs"], portrait(core.restored(), core.now)["jobs"])


def preferring(grace_s: float, **spec: object) -> object:
    return entry("a", prefer_cuda=True, prefer_cuda_grace_seconds=grace_s, **spec)


def test_a_grace_that_is_shortened_below_what_it_has_waited_opens_it_at_once() -> None:
    core = CoreFleet()
    core.follow(preferring(300))
    core.wait(200)
    core.follow(preferring(100))
    assert not is_closed(core, "a")
    assert isinstance(core.claim("pi"), Claimed)


def test_a_grace_that_is_lengthened_is_not_ended_by_the_old_one() -> None:
    core = CoreFleet()
    core.follow(preferring(300))
    core.wait(200)
    core.follow(preferring(400))
    core.wait(199)
    assert is_closed(core, "a")
    survives_a_restart(core)
    core.wait(1)
    assert not is_closed(core, "a")


def test_a_preference_that_is_opened_is_closed_again_by_a_longer_grace_and_opens_in_its_time() -> None:
    core = CoreFleet()
    core.follow(preferring(300))
    core.wait(301)
    assert not is_closed(core, "a")
    core.follow(preferring(400))
    assert is_closed(core, "a")
    survives_a_restart(core)
    core.wait(99)
    assert not is_closed(core, "a")


def test_an_edit_of_something_else_does_not_close_a_preference_that_is_over() -> None:
    core = CoreFleet()
    core.follow(preferring(300))
    core.wait(301)
    core.follow(preferring(300, priority=4))
    assert not is_closed(core, "a")
    survives_a_restart(core)


def test_a_preference_that_is_taken_back_opens_at_once_and_one_that_is_given_later_counts_from_the_submit() -> None:
    core = CoreFleet()
    core.follow(preferring(300))
    core.follow(entry("a"))
    core.wait(250)
    assert not is_closed(core, "a")
    core.follow(preferring(300))
    assert is_closed(core, "a")
    core.wait(50)
    assert not is_closed(core, "a")


@pytest.mark.parametrize("restarted", [False, True])
def test_a_requeue_of_what_still_waits_begins_its_wait_anew(restarted: bool) -> None:
    core = CoreFleet()
    core.submit("a", prefer_cuda=True, prefer_cuda_grace_seconds=300, scheduling_timeout_seconds=500)
    core.wait(200)
    core.requeue("a")
    survives_a_restart(core)
    if restarted:
        core.restart()
    core.wait(299)
    assert is_closed(core, "a")
    core.wait(2)
    assert not is_closed(core, "a")
    core.wait(190)
    assert core.state("a") == states.PENDING
    core.wait(10)
    assert core.state("a") == states.UNSCHEDULABLE


def test_a_requeue_while_the_old_process_is_stopped_closes_it_for_a_whole_grace() -> None:
    core = CoreFleet()
    core.submit("a", prefer_cuda=True)
    core.wait(301)
    core.claim("pi")
    core.requeue("a")
    core.wait(100)
    core.claim_end("pi", "a", "failed")
    assert is_closed(core, "a")
    core.wait(200)
    assert isinstance(core.claim("pi"), Claimed)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_job_that_waited_for_another_begins_to_wait_for_cuda_when_it_is_let_go(restarted: bool) -> None:
    core = CoreFleet()
    core.submit("first")
    core.submit("second", prefer_cuda=True, depends_on=["first"])
    core.wait(400)
    core.claim("pi")
    core.claim_end("pi", "first")
    survives_a_restart(core)
    if restarted:
        core.restart()
    core.wait(299)
    assert is_closed(core, "second")
    core.wait(2)
    assert not is_closed(core, "second")


def test_a_scheduling_timeout_that_is_taken_back_ends_nothing() -> None:
    core = CoreFleet()
    core.follow(entry("a", scheduling_timeout_seconds=40))
    core.follow(entry("a"))
    core.wait(100)
    assert core.state("a") == states.PENDING


# What is held on a CUDA worker counts as a GPU


def test_a_gpu_that_was_only_preferred_counts_against_the_quota() -> None:
    core = CoreFleet()
    core.fleet.set_quotas(Quotas(users={"ann": Quota(running_gpus=1)}))
    core.worker("box", gpus=4, vram=96)
    for name in ("a", "b"):
        core.submit(name, prefer_cuda=True)
    assert (core.where("a"), core.where("b")) == ("box", "")
    assert core.why("b").summary == "held by a quota: ann has 1 of 1 running_gpus"
    core.end("a")
    assert core.where("b") == "box"


def test_a_gpu_that_was_only_preferred_is_charged_to_its_user() -> None:
    core = CoreFleet()
    core.worker("box", gpus=1, vram=24)
    core.submit("a", prefer_cuda=True, user_id="ann")
    core.start("a")
    core.wait(3600)
    core.end("a")
    assert core.fleet.usage.gpu_seconds("ann", core.now) > 3000


# Shapes


def test_shapes_that_preferences_and_edits_leave_behind_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MAX_IDLE_SHAPES", 4)
    core = CoreFleet()
    for number in range(30):
        core.submit(f"j{number}", prefer_cuda=True, min_memory_gb=1 + number / 8)
        core.follow(entry("edited", min_memory_gb=1 + number / 16))
    core.wait(301)
    assert len(core.fleet.index.shapes()) <= 31 + 4
    for number in range(30):
        core.cancel(f"j{number}")
    core.cancel("edited")
    assert len(core.fleet.index.shapes()) <= 4


def test_a_shape_is_kept_while_another_job_is_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MAX_IDLE_SHAPES", 0)
    core = CoreFleet()
    core.follow(entry("a", min_cpu_cores=2), entry("b", min_cpu_cores=2))
    core.follow(entry("a", min_cpu_cores=3), entry("b", min_cpu_cores=2))
    core.cancel("a")
    core.submit("c", min_memory_gb=2)
    core.worker("w", cores=2, memory=2)
    assert (core.where("b"), core.where("c")) == ("w", "w")


@pytest.mark.parametrize("gpus", [0, 1])
def test_what_it_needs_of_a_cuda_device_it_does_not_need_where_there_is_none(gpus: int) -> None:
    core = CoreFleet()
    core.worker("box", gpus=gpus, vram=8 * gpus, backend="vulkan" if gpus else "cpu")
    core.submit("a", prefer_cuda=True, prefer_cuda_grace_seconds=300, min_vram_gb=16)
    core.wait(299)
    assert core.where("a") == ""
    core.wait(1)
    assert (core.where("a"), core.devices("a")) == ("box", ())


def test_on_a_cuda_worker_it_needs_a_device_with_as_much_memory_as_it_says() -> None:
    core = CoreFleet()
    core.worker("small", gpus=1, vram=8)
    core.submit("a", prefer_cuda=True, prefer_cuda_grace_seconds=300, min_vram_gb=16)
    assert core.where("a") == ""
    core.worker("large", gpus=1, vram=24)
    assert (core.where("a"), core.devices("a")) == ("large", (0,))
