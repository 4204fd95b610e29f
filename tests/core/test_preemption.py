"""Preemption: the cheapest set that makes room, at no cost to the victims, and the room is the preemptor's."""

from typing import Any

import pytest
from tests.core.core_fleet import CoreFleet, holding, submission
from tests.core.plain import only_plain

from ostler.core.effects import CancelTask
from ostler.core.fleet import Worker
from ostler.core.queueing import preempt
from ostler.core.queueing.preempt import HEADS_LOOKED_AT
from ostler.domain.quota import Quota, Quotas
from ostler.domain.worker import Slots


def told_to_stop(core: CoreFleet) -> list[str]:
    return sorted(effect.task_id for effect in core.heard if isinstance(effect, CancelTask))


def test_a_waiting_job_of_higher_priority_takes_the_room_of_the_cheapest_preemptible_task() -> None:
    core = CoreFleet()
    core.worker("box", gpus=2, vram=48)
    old = core.submit("old", gpu_count=1, preemptible=True)
    core.start(old)
    core.wait(100)
    young = core.submit("young", gpu_count=1, preemptible=True)
    core.start(young)
    core.wait(10)
    urgent = core.submit("urgent", gpu_count=1, priority=5)
    assert told_to_stop(core) == [young]
    assert core.state(young) == "pending"
    assert core.task(young).reason == "preempted by urgent"
    assert core.where(urgent) == "", "the room is taken until the victim is gone"
    sneaky = core.submit("sneaky", gpu_count=1, priority=5)
    core.end(young, "cancelled")
    assert core.where(urgent) == "box"
    assert core.where(sneaky) == ""
    assert (core.task(young).losses, core.task(young).failures) == (0, 0)


def test_equal_priority_never_preempts_and_neither_does_what_is_not_preemptible_yield() -> None:
    core = CoreFleet()
    core.worker("box", gpus=1, vram=24)
    core.start(core.submit("holder", gpu_count=1, preemptible=True, priority=5))
    core.submit("equal", gpu_count=1, priority=5)
    assert told_to_stop(core) == []
    other = CoreFleet()
    other.worker("box", gpus=1, vram=24)
    other.start(other.submit("firm", gpu_count=1))
    other.submit("urgent", gpu_count=1, priority=5)
    assert told_to_stop(other) == []


def test_no_more_is_displaced_than_is_needed_and_only_once() -> None:
    core = CoreFleet()
    core.worker("box", gpus=4, vram=96)
    for number in range(4):
        core.start(core.submit(f"v{number}", gpu_count=1, preemptible=True))
    core.submit("urgent", gpu_count=2, priority=1)
    first = told_to_stop(core)
    assert len(first) == 2
    core.wait(5)
    assert told_to_stop(core) == [], "one round of victims is enough"


def test_a_job_that_was_cancelled_leaves_the_room_that_was_made_for_it_to_others() -> None:
    core = CoreFleet()
    core.worker("box", gpus=1, vram=24)
    victim = core.submit("victim", gpu_count=1, preemptible=True)
    core.start(victim)
    core.submit("urgent", gpu_count=1, priority=1)
    core.cancel("urgent")
    core.end(victim, "cancelled")
    assert core.where(victim) == "box"


def test_the_victim_goes_back_to_the_head_of_its_class() -> None:
    core = CoreFleet()
    core.worker("box", gpus=1, vram=24)
    victim = core.submit("victim", gpu_count=1, preemptible=True)
    core.start(victim)
    behind = core.submit("behind", gpu_count=1)
    urgent = core.submit("urgent", gpu_count=1, priority=1)
    core.end(victim, "cancelled")
    core.end(urgent)
    assert core.where(victim) == "box"
    assert core.where(behind) == ""


def test_a_gang_is_preempted_whole() -> None:
    core = CoreFleet()
    core.worker("a", gpus=1, vram=24)
    core.worker("b", gpus=1, vram=24)
    core.submit("gang", node_count=2, gpu_count=1, preemptible=True)
    core.start("gang.0", "gang.1")
    urgent = core.submit("urgent", gpu_count=1, priority=1)
    assert told_to_stop(core) == ["gang.0", "gang.1"]
    core.end("gang.0", "cancelled")
    core.end("gang.1", "cancelled")
    assert core.where(urgent) != ""
    assert core.states("gang.0", "gang.1") == ["pending", "pending"]


def test_the_cheapest_set_is_taken_even_where_the_cheapest_task_is_not_in_it() -> None:
    """Two that are cheap one by one cost more together than the one that frees enough alone."""
    core = CoreFleet()
    core.worker("box", gpus=4, vram=96)
    core.start(core.submit("firm", gpu_count=1))
    one = core.submit("one", gpu_count=1, preemptible=True)
    core.start(one)
    core.wait(60)
    two = core.submit("two", gpu_count=2, preemptible=True)
    core.start(two)
    core.wait(50)
    core.submit("urgent", gpu_count=2, priority=1)
    assert told_to_stop(core) == [two], "100 GPU-seconds, where both would be 210"


def test_what_a_checkpoint_has_saved_is_not_lost() -> None:
    core = CoreFleet()
    core.worker("box", gpus=2, vram=48)
    saved = core.submit("saved", gpu_count=1, preemptible=True)
    core.start(saved)
    core.wait(900)
    fresh = core.submit("fresh", gpu_count=1, preemptible=True)
    core.start(fresh)
    core.wait(100)
    account = holding((saved, core.attempt(saved)), (fresh, core.attempt(fresh)))
    account[0].checkpoint = "c" * 64
    core.beat("box", holds=account)
    core.wait(50)
    core.submit("urgent", gpu_count=1, priority=1)
    assert told_to_stop(core) == [saved]


def test_a_second_on_a_large_device_is_a_larger_loss() -> None:
    core = CoreFleet()
    core.worker("large", gpus=1, vram=80, gpu_type="A100")
    core.worker("small", gpus=1, vram=16, gpu_type="T4")
    core.start(core.submit("on the large one", gpu_count=1, gpu_type="A100", preemptible=True))
    core.start(core.submit("on the small one", gpu_count=1, gpu_type="T4", preemptible=True))
    core.wait(100)
    core.submit("urgent", gpu_count=1, priority=1)
    assert told_to_stop(core) == ["on the small one"]


def test_a_gang_takes_the_cheapest_room_on_as_many_machines_as_it_lacks_and_keeps_what_is_free() -> None:
    core = CoreFleet()
    for name in "abcd":
        core.worker(name, gpus=1, vram=24, labels={"name": name})
    for name, lead in (("a", 500), ("b", 100), ("c", 10)):
        core.start(core.submit(f"on {name}", gpu_count=1, preemptible=True, labels=[f"name = {name}"]))
        core.wait(lead)
    core.submit("gang", node_count=3, gpu_count=1, priority=1)
    assert told_to_stop(core) == ["on b", "on c"]
    sneaky = core.submit("sneaky", gpu_count=1, priority=1)
    assert core.where(sneaky) == "", "the free machine is the gang's too"
    core.end("on b", "cancelled")
    assert core.where("gang.0") == ""
    core.end("on c", "cancelled")
    assert sorted(core.where(f"gang.{rank}") for rank in range(3)) == ["b", "c", "d"]


def test_a_gang_that_lacks_more_than_others_may_yield_displaces_nobody() -> None:
    core = CoreFleet()
    for name in "abc":
        core.worker(name, gpus=1, vram=24, labels={"name": name})
    core.start(core.submit("soft", gpu_count=1, preemptible=True))
    core.start(core.submit("firm", gpu_count=1))
    core.submit("gang", node_count=3, gpu_count=1, priority=1)
    assert told_to_stop(core) == []


@pytest.mark.parametrize("lead", [0, 10])
def test_a_gang_that_yields_on_one_machine_yields_on_all_and_is_counted_once(lead: float) -> None:
    """Both pairs of machines cost the same, or the gang a little more: never twice as much for being one."""
    core = CoreFleet()
    for name in "abcd":
        core.worker(name, gpus=1, vram=24, labels={"name": name})
    core.submit("pair", node_count=2, gpu_count=1, preemptible=True)
    core.start("pair.0", "pair.1")
    core.wait(lead)
    singles = [core.submit(f"single{number}", gpu_count=1, preemptible=True) for number in range(2)]
    core.start(*singles)
    core.wait(100)
    core.submit("gang", node_count=2, gpu_count=1, priority=1)
    assert told_to_stop(core) == (["single0", "single1"] if lead else ["pair.0", "pair.1"])


def test_after_a_restart_the_room_that_was_cleared_goes_where_the_order_says() -> None:
    core = CoreFleet()
    core.worker("box", gpus=1, vram=24)
    victim = core.submit("victim", gpu_count=1, preemptible=True)
    core.start(victim)
    urgent = core.submit("urgent", gpu_count=1, priority=1)
    attempt = core.attempt(victim)
    core.restart()
    later = core.submit("later", gpu_count=1, priority=1)
    core.register("box", holds=holding((victim, attempt)), slots=64)
    core.end(victim, "cancelled", attempt=attempt, worker="box")
    assert [core.where(job) for job in (urgent, later, victim)] == ["box", "", ""]


def test_what_is_free_beside_the_victim_is_kept_too() -> None:
    core = CoreFleet()
    core.worker("box", devices=[24] * 4, cores=8)
    core.start(core.submit("victim", gpu_count=2, preemptible=True, min_cpu_cores=1))
    core.submit("urgent", gpu_count=4, priority=5, min_cpu_cores=8)
    assert told_to_stop(core) == ["victim"]
    sneaky = [core.submit("gpu", gpu_count=1), core.submit("share", min_vram_gb=4), core.submit("cpu", min_cpu_cores=1)]
    assert [core.where(job) for job in sneaky] == ["", "", ""]
    core.end("victim", "cancelled")
    assert core.where("urgent") == "box"


@pytest.mark.parametrize("urgent", [{"gpu_count": 1}, {"min_vram_gb": 20}])
def test_the_rest_of_the_device_that_a_victim_shares_is_kept_too(urgent: dict[str, int]) -> None:
    core = CoreFleet()
    core.worker("box", devices=[24])
    core.start(core.submit("victim", min_vram_gb=8, preemptible=True))
    core.submit("urgent", priority=5, **urgent)
    assert told_to_stop(core) == ["victim"]
    sneaky = core.submit("sneaky", min_vram_gb=8)
    assert core.where(sneaky) == ""
    core.end("victim", "cancelled")
    assert core.where("urgent") == "box"


def test_a_gang_counts_the_room_that_it_may_have_on_a_machine_held_for_a_lower_priority() -> None:
    core = CoreFleet()
    core.worker("held", devices=[24, 24], labels={"name": "held"})
    core.worker("other", devices=[24], labels={"name": "other"})
    core.start(core.submit("stays", gpu_count=1, max_runtime_hours=10, labels=["name = held"]))
    core.start(core.submit("victim", gpu_count=1, preemptible=True, priority=-1, labels=["name = other"]))
    core.submit("owner", gpu_count=2)
    core.wait(700)
    assert list(core.fleet.holds.on) == ["held"]
    core.submit("gang", gpu_count=1, node_count=2, priority=5)
    assert told_to_stop(core) == ["victim"]
    core.end("victim", "cancelled")
    assert {core.where("gang.0"), core.where("gang.1")} == {"held", "other"}


def test_those_for_whom_nothing_would_make_room_do_not_keep_others_from_it() -> None:
    core = CoreFleet()
    core.worker("box", devices=[24, 24])
    core.start(core.submit("victim", gpu_count=2, preemptible=True))
    for number in range(HEADS_LOOKED_AT):
        core.submit(f"never{number}", gpu_count=4, min_cpu_cores=number + 1, priority=5)
    core.submit("urgent", gpu_count=2, priority=5)
    assert told_to_stop(core) == ["victim"]


def test_whom_nothing_helped_is_helped_when_what_is_in_the_way_has_gone() -> None:
    core = CoreFleet()
    core.worker("box", devices=[24, 24])
    core.start(core.submit("victim", gpu_count=1, preemptible=True), core.submit("firm", gpu_count=1))
    core.submit("urgent", gpu_count=2, priority=5)
    assert told_to_stop(core) == []
    core.end("firm")
    assert told_to_stop(core) == ["victim"]


def test_a_gang_that_lacked_too_much_is_helped_when_room_has_come() -> None:
    core = CoreFleet()
    for name in ("one", "two"):
        core.worker(name, devices=[24], labels={"name": name})
    core.start(core.submit("victim", gpu_count=1, preemptible=True, labels=["name = one"]))
    core.start(core.submit("firm", gpu_count=1, labels=["name = two"]))
    core.submit("gang", gpu_count=1, node_count=2, priority=5)
    assert told_to_stop(core) == []
    core.end("firm")
    assert told_to_stop(core) == ["victim"]


@only_plain
def test_a_pass_looks_for_victims_only_where_something_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    core = CoreFleet()
    for number in range(8):
        core.worker(f"box{number}", devices=[24, 24], labels={"box": str(number)})
        for job, is_preemptible in (("firm", False), ("victim", True)):
            labels = [f"box = {number}"]
            core.start(core.submit(f"{job}{number}", gpu_count=1, preemptible=is_preemptible, labels=labels))
    core.submit("urgent", gpu_count=2, priority=5)
    looked_at: list[str] = []
    really = preempt._suffices

    def noted(worker: Worker, *more: Any) -> bool:
        looked_at.append(worker.id)
        return really(worker, *more)

    monkeypatch.setattr(preempt, "_suffices", noted)
    core.beat("box3", slots=Slots(batch_total=65))
    assert set(looked_at) == {"box3"}


def test_the_victim_goes_before_what_other_users_have_waiting_in_its_class() -> None:
    core = CoreFleet()
    core.worker("box", gpus=1, vram=24)
    victim = core.submit("victim", gpu_count=1, preemptible=True, user_id="ann")
    core.start(victim)
    core.wait(3600)
    behind = core.submit("behind", gpu_count=1, user_id="bob")
    higher = core.submit("higher", gpu_count=1, job_tier="training", user_id="bob")
    urgent = core.submit("urgent", gpu_count=1, priority=1)
    core.end(victim, "cancelled")
    core.restart()
    core.register("box", slots=64, holds=holding((urgent, core.attempt(urgent))))
    assert core.queue() == [higher, victim, behind]
    core.end(urgent)
    core.end(higher)
    assert core.where(victim) == "box"


def test_of_an_array_only_as_many_go_first_as_were_displaced() -> None:
    core = CoreFleet()
    core.worker("box", gpus=1, vram=24)
    core.submit("a", array=3, gpu_count=1, preemptible=True, user_id="ann")
    core.start("a.0")
    other = core.submit("other", gpu_count=1, user_id="bob")
    urgent = core.submit("urgent", gpu_count=1, priority=1)
    core.end("a.0", "cancelled")
    core.end(urgent)
    assert core.where("a.0") == "box"
    core.end("a.0")
    assert core.where(other) == "box"


def gang_of_two(core: CoreFleet, *, preemptible: bool = True) -> None:
    """On one and two, before the work of others on three."""
    for name in ("one", "two"):
        core.worker(name, gpus=1, vram=24)
    core.submit("gang", node_count=2, gpu_count=1, priority=10)
    core.start("gang.0", "gang.1")
    core.worker("three", gpus=1, vram=24)
    core.start(core.submit("low", gpu_count=1, preemptible=preemptible))


def test_a_gang_that_lost_a_machine_makes_room_for_what_it_lacks_beside_what_was_kept_for_it() -> None:
    core = CoreFleet()
    gang_of_two(core)
    first = core.attempt("gang.0")
    core.submit("sneaky", gpu_count=1)
    core.leave("two")
    core.wait(core.fleet.jobs["gang"].terms.grace_s)
    core.end("gang.0", "cancelled", attempt=first, worker="one")
    assert told_to_stop(core) == ["low"]
    core.end("low", "cancelled")
    assert sorted((core.where("gang.0"), core.where("gang.1"))) == ["one", "three"]
    assert core.where("sneaky") == ""


def test_room_that_is_kept_on_a_machine_that_is_drained_is_made_elsewhere() -> None:
    core = CoreFleet()
    for name in ("one", "two", "three"):
        core.worker(name, gpus=1, vram=24, labels={"is": name})
        core.start(core.submit(f"low-{name}", gpu_count=1, preemptible=True, labels=[f"is = {name}"]))
    core.submit("gang", node_count=2, gpu_count=1, priority=10)
    first, second = told_to_stop(core)
    core.end(first, "cancelled")
    core.drain(first.removeprefix("low-"))
    core.end(second, "cancelled")
    (third,) = {"low-one", "low-two", "low-three"} - {first, second}
    assert told_to_stop(core) == [third]
    core.end(third, "cancelled")
    assert {core.where("gang.0"), core.where("gang.1")} == {name.removeprefix("low-") for name in (second, third)}


def test_no_more_is_displaced_for_a_user_than_the_quota_lets_run() -> None:
    core = CoreFleet()
    core.fleet.set_quotas(Quotas(users={"bob": Quota(running_gpus=1)}))
    for name in ("one", "two"):
        core.worker(name, gpus=1, vram=24)
        core.start(core.submit(f"low-{name}", gpu_count=1, preemptible=True))
    core.turn(
        submission(1, "small", gpu_count=1, priority=5, user_id="bob"),
        submission(2, "large", gpu_count=1, min_cpu_cores=2, priority=5, user_id="bob"),
    )
    assert len(told_to_stop(core)) == 1


def test_what_is_kept_for_a_job_is_no_process_that_has_ended() -> None:
    """A pass takes it and gives it back; the slots that its worker says are in use stay so."""
    core = CoreFleet()
    gang_of_two(core, preemptible=False)
    first = core.attempt("gang.0")
    core.leave("two")
    core.wait(core.fleet.jobs["gang"].terms.grace_s)
    core.end("gang.0", "cancelled", attempt=first, worker="one")
    assert "gang" in core.fleet.bound
    core.beat("one", slots=Slots(batch_total=4, batch_in_use=3))
    core.wait(60)
    assert core.fleet.workers["one"].report.in_use["batch"] == 3
