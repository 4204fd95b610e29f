"""Preemption: the cheapest set that makes room, at no cost to the victims, and the room is the preemptor's."""

from typing import Any

import pytest
from tests.core.plain import only_plain
from tests.core.yard import Yard, holding, submission

from ostler.core.effects import CancelTask
from ostler.core.fleet import Worker
from ostler.core.queueing import preempt
from ostler.core.queueing.preempt import HEADS_LOOKED_AT
from ostler.domain.quota import Quota, Quotas
from ostler.domain.worker import Slots


def told_to_stop(yard: Yard) -> list[str]:
    return sorted(effect.task_id for effect in yard.heard if isinstance(effect, CancelTask))


def test_a_waiting_job_of_higher_priority_takes_the_room_of_the_cheapest_preemptible_task() -> None:
    yard = Yard()
    yard.worker("box", gpus=2, vram=48)
    old = yard.submit("old", gpu_count=1, preemptible=True)
    yard.start(old)
    yard.wait(100)
    young = yard.submit("young", gpu_count=1, preemptible=True)
    yard.start(young)
    yard.wait(10)
    urgent = yard.submit("urgent", gpu_count=1, priority=5)
    assert told_to_stop(yard) == [young]
    assert yard.state(young) == "pending"
    assert yard.task(young).reason == "preempted by urgent"
    assert yard.where(urgent) == "", "the room is taken until the victim is gone"
    sneaky = yard.submit("sneaky", gpu_count=1, priority=5)
    yard.end(young, "cancelled")
    assert yard.where(urgent) == "box"
    assert yard.where(sneaky) == ""
    assert (yard.task(young).losses, yard.task(young).failures) == (0, 0)


def test_equal_priority_never_preempts_and_neither_does_what_is_not_preemptible_yield() -> None:
    yard = Yard()
    yard.worker("box", gpus=1, vram=24)
    yard.start(yard.submit("holder", gpu_count=1, preemptible=True, priority=5))
    yard.submit("equal", gpu_count=1, priority=5)
    assert told_to_stop(yard) == []
    other = Yard()
    other.worker("box", gpus=1, vram=24)
    other.start(other.submit("firm", gpu_count=1))
    other.submit("urgent", gpu_count=1, priority=5)
    assert told_to_stop(other) == []


def test_no_more_is_displaced_than_is_needed_and_only_once() -> None:
    yard = Yard()
    yard.worker("box", gpus=4, vram=96)
    for number in range(4):
        yard.start(yard.submit(f"v{number}", gpu_count=1, preemptible=True))
    yard.submit("urgent", gpu_count=2, priority=1)
    first = told_to_stop(yard)
    assert len(first) == 2
    yard.wait(5)
    assert told_to_stop(yard) == [], "one round of victims is enough"


def test_a_job_that_was_cancelled_leaves_the_room_that_was_made_for_it_to_others() -> None:
    yard = Yard()
    yard.worker("box", gpus=1, vram=24)
    victim = yard.submit("victim", gpu_count=1, preemptible=True)
    yard.start(victim)
    yard.submit("urgent", gpu_count=1, priority=1)
    yard.cancel("urgent")
    yard.end(victim, "cancelled")
    assert yard.where(victim) == "box"


def test_the_victim_goes_back_to_the_head_of_its_class() -> None:
    yard = Yard()
    yard.worker("box", gpus=1, vram=24)
    victim = yard.submit("victim", gpu_count=1, preemptible=True)
    yard.start(victim)
    behind = yard.submit("behind", gpu_count=1)
    urgent = yard.submit("urgent", gpu_count=1, priority=1)
    yard.end(victim, "cancelled")
    yard.end(urgent)
    assert yard.where(victim) == "box"
    assert yard.where(behind) == ""


def test_a_gang_is_preempted_whole() -> None:
    yard = Yard()
    yard.worker("a", gpus=1, vram=24)
    yard.worker("b", gpus=1, vram=24)
    yard.submit("gang", node_count=2, gpu_count=1, preemptible=True)
    yard.start("gang.0", "gang.1")
    urgent = yard.submit("urgent", gpu_count=1, priority=1)
    assert told_to_stop(yard) == ["gang.0", "gang.1"]
    yard.end("gang.0", "cancelled")
    yard.end("gang.1", "cancelled")
    assert yard.where(urgent) != ""
    assert yard.states("gang.0", "gang.1") == ["pending", "pending"]


def test_the_cheapest_set_is_taken_even_where_the_cheapest_task_is_not_in_it() -> None:
    """Two that are cheap one by one cost more together than the one that frees enough alone."""
    yard = Yard()
    yard.worker("box", gpus=4, vram=96)
    yard.start(yard.submit("firm", gpu_count=1))
    one = yard.submit("one", gpu_count=1, preemptible=True)
    yard.start(one)
    yard.wait(60)
    two = yard.submit("two", gpu_count=2, preemptible=True)
    yard.start(two)
    yard.wait(50)
    yard.submit("urgent", gpu_count=2, priority=1)
    assert told_to_stop(yard) == [two], "100 GPU-seconds, where both would be 210"


def test_what_a_checkpoint_has_saved_is_not_lost() -> None:
    yard = Yard()
    yard.worker("box", gpus=2, vram=48)
    saved = yard.submit("saved", gpu_count=1, preemptible=True)
    yard.start(saved)
    yard.wait(900)
    fresh = yard.submit("fresh", gpu_count=1, preemptible=True)
    yard.start(fresh)
    yard.wait(100)
    account = holding((saved, yard.attempt(saved)), (fresh, yard.attempt(fresh)))
    account[0].checkpoint = "c" * 64
    yard.beat("box", holds=account)
    yard.wait(50)
    yard.submit("urgent", gpu_count=1, priority=1)
    assert told_to_stop(yard) == [saved]


def test_a_second_on_a_large_device_is_a_larger_loss() -> None:
    yard = Yard()
    yard.worker("large", gpus=1, vram=80, gpu_type="A100")
    yard.worker("small", gpus=1, vram=16, gpu_type="T4")
    yard.start(yard.submit("on the large one", gpu_count=1, gpu_type="A100", preemptible=True))
    yard.start(yard.submit("on the small one", gpu_count=1, gpu_type="T4", preemptible=True))
    yard.wait(100)
    yard.submit("urgent", gpu_count=1, priority=1)
    assert told_to_stop(yard) == ["on the small one"]


def test_a_gang_takes_the_cheapest_room_on_as_many_machines_as_it_lacks_and_keeps_what_is_free() -> None:
    yard = Yard()
    for name in "abcd":
        yard.worker(name, gpus=1, vram=24, labels={"name": name})
    for name, lead in (("a", 500), ("b", 100), ("c", 10)):
        yard.start(yard.submit(f"on {name}", gpu_count=1, preemptible=True, labels=[f"name = {name}"]))
        yard.wait(lead)
    yard.submit("gang", node_count=3, gpu_count=1, priority=1)
    assert told_to_stop(yard) == ["on b", "on c"]
    sneaky = yard.submit("sneaky", gpu_count=1, priority=1)
    assert yard.where(sneaky) == "", "the free machine is the gang's too"
    yard.end("on b", "cancelled")
    assert yard.where("gang.0") == ""
    yard.end("on c", "cancelled")
    assert sorted(yard.where(f"gang.{rank}") for rank in range(3)) == ["b", "c", "d"]


def test_a_gang_that_lacks_more_than_others_may_yield_displaces_nobody() -> None:
    yard = Yard()
    for name in "abc":
        yard.worker(name, gpus=1, vram=24, labels={"name": name})
    yard.start(yard.submit("soft", gpu_count=1, preemptible=True))
    yard.start(yard.submit("firm", gpu_count=1))
    yard.submit("gang", node_count=3, gpu_count=1, priority=1)
    assert told_to_stop(yard) == []


@pytest.mark.parametrize("lead", [0, 10])
def test_a_gang_that_yields_on_one_machine_yields_on_all_and_is_counted_once(lead: float) -> None:
    """Both pairs of machines cost the same, or the gang a little more: never twice as much for being one."""
    yard = Yard()
    for name in "abcd":
        yard.worker(name, gpus=1, vram=24, labels={"name": name})
    yard.submit("pair", node_count=2, gpu_count=1, preemptible=True)
    yard.start("pair.0", "pair.1")
    yard.wait(lead)
    singles = [yard.submit(f"single{number}", gpu_count=1, preemptible=True) for number in range(2)]
    yard.start(*singles)
    yard.wait(100)
    yard.submit("gang", node_count=2, gpu_count=1, priority=1)
    assert told_to_stop(yard) == (["single0", "single1"] if lead else ["pair.0", "pair.1"])


def test_after_a_restart_the_room_that_was_cleared_goes_where_the_order_says() -> None:
    yard = Yard()
    yard.worker("box", gpus=1, vram=24)
    victim = yard.submit("victim", gpu_count=1, preemptible=True)
    yard.start(victim)
    urgent = yard.submit("urgent", gpu_count=1, priority=1)
    attempt = yard.attempt(victim)
    yard.restart()
    later = yard.submit("later", gpu_count=1, priority=1)
    yard.register("box", holds=holding((victim, attempt)), slots=64)
    yard.end(victim, "cancelled", attempt=attempt, worker="box")
    assert [yard.where(job) for job in (urgent, later, victim)] == ["box", "", ""]


def test_what_is_free_beside_the_victim_is_kept_too() -> None:
    yard = Yard()
    yard.worker("box", devices=[24] * 4, cores=8)
    yard.start(yard.submit("victim", gpu_count=2, preemptible=True, min_cpu_cores=1))
    yard.submit("urgent", gpu_count=4, priority=5, min_cpu_cores=8)
    assert told_to_stop(yard) == ["victim"]
    sneaky = [yard.submit("gpu", gpu_count=1), yard.submit("share", min_vram_gb=4), yard.submit("cpu", min_cpu_cores=1)]
    assert [yard.where(job) for job in sneaky] == ["", "", ""]
    yard.end("victim", "cancelled")
    assert yard.where("urgent") == "box"


@pytest.mark.parametrize("urgent", [{"gpu_count": 1}, {"min_vram_gb": 20}])
def test_the_rest_of_the_device_that_a_victim_shares_is_kept_too(urgent: dict[str, int]) -> None:
    yard = Yard()
    yard.worker("box", devices=[24])
    yard.start(yard.submit("victim", min_vram_gb=8, preemptible=True))
    yard.submit("urgent", priority=5, **urgent)
    assert told_to_stop(yard) == ["victim"]
    sneaky = yard.submit("sneaky", min_vram_gb=8)
    assert yard.where(sneaky) == ""
    yard.end("victim", "cancelled")
    assert yard.where("urgent") == "box"


def test_a_gang_counts_the_room_that_it_may_have_on_a_machine_held_for_a_lower_priority() -> None:
    yard = Yard()
    yard.worker("held", devices=[24, 24], labels={"name": "held"})
    yard.worker("other", devices=[24], labels={"name": "other"})
    yard.start(yard.submit("stays", gpu_count=1, max_runtime_hours=10, labels=["name = held"]))
    yard.start(yard.submit("victim", gpu_count=1, preemptible=True, priority=-1, labels=["name = other"]))
    yard.submit("owner", gpu_count=2)
    yard.wait(700)
    assert list(yard.fleet.holds.on) == ["held"]
    yard.submit("gang", gpu_count=1, node_count=2, priority=5)
    assert told_to_stop(yard) == ["victim"]
    yard.end("victim", "cancelled")
    assert {yard.where("gang.0"), yard.where("gang.1")} == {"held", "other"}


def test_those_for_whom_nothing_would_make_room_do_not_keep_others_from_it() -> None:
    yard = Yard()
    yard.worker("box", devices=[24, 24])
    yard.start(yard.submit("victim", gpu_count=2, preemptible=True))
    for number in range(HEADS_LOOKED_AT):
        yard.submit(f"never{number}", gpu_count=4, min_cpu_cores=number + 1, priority=5)
    yard.submit("urgent", gpu_count=2, priority=5)
    assert told_to_stop(yard) == ["victim"]


def test_whom_nothing_helped_is_helped_when_what_is_in_the_way_has_gone() -> None:
    yard = Yard()
    yard.worker("box", devices=[24, 24])
    yard.start(yard.submit("victim", gpu_count=1, preemptible=True), yard.submit("firm", gpu_count=1))
    yard.submit("urgent", gpu_count=2, priority=5)
    assert told_to_stop(yard) == []
    yard.end("firm")
    assert told_to_stop(yard) == ["victim"]


def test_a_gang_that_lacked_too_much_is_helped_when_room_has_come() -> None:
    yard = Yard()
    for name in ("one", "two"):
        yard.worker(name, devices=[24], labels={"name": name})
    yard.start(yard.submit("victim", gpu_count=1, preemptible=True, labels=["name = one"]))
    yard.start(yard.submit("firm", gpu_count=1, labels=["name = two"]))
    yard.submit("gang", gpu_count=1, node_count=2, priority=5)
    assert told_to_stop(yard) == []
    yard.end("firm")
    assert told_to_stop(yard) == ["victim"]


@only_plain
def test_a_pass_looks_for_victims_only_where_something_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    yard = Yard()
    for number in range(8):
        yard.worker(f"box{number}", devices=[24, 24], labels={"box": str(number)})
        for job, is_preemptible in (("firm", False), ("victim", True)):
            labels = [f"box = {number}"]
            yard.start(yard.submit(f"{job}{number}", gpu_count=1, preemptible=is_preemptible, labels=labels))
    yard.submit("urgent", gpu_count=2, priority=5)
    looked_at: list[str] = []
    really = preempt._suffices

    def noted(worker: Worker, *more: Any) -> bool:
        looked_at.append(worker.id)
        return really(worker, *more)

    monkeypatch.setattr(preempt, "_suffices", noted)
    yard.beat("box3", slots=Slots(batch_total=65))
    assert set(looked_at) == {"box3"}


def test_the_victim_goes_before_what_other_users_have_waiting_in_its_class() -> None:
    yard = Yard()
    yard.worker("box", gpus=1, vram=24)
    victim = yard.submit("victim", gpu_count=1, preemptible=True, user_id="ann")
    yard.start(victim)
    yard.wait(3600)
    behind = yard.submit("behind", gpu_count=1, user_id="bob")
    higher = yard.submit("higher", gpu_count=1, job_tier="training", user_id="bob")
    urgent = yard.submit("urgent", gpu_count=1, priority=1)
    yard.end(victim, "cancelled")
    yard.restart()
    yard.register("box", slots=64, holds=holding((urgent, yard.attempt(urgent))))
    assert yard.queue() == [higher, victim, behind]
    yard.end(urgent)
    yard.end(higher)
    assert yard.where(victim) == "box"


def test_of_an_array_only_as_many_go_first_as_were_displaced() -> None:
    yard = Yard()
    yard.worker("box", gpus=1, vram=24)
    yard.submit("a", array=3, gpu_count=1, preemptible=True, user_id="ann")
    yard.start("a.0")
    other = yard.submit("other", gpu_count=1, user_id="bob")
    urgent = yard.submit("urgent", gpu_count=1, priority=1)
    yard.end("a.0", "cancelled")
    yard.end(urgent)
    assert yard.where("a.0") == "box"
    yard.end("a.0")
    assert yard.where(other) == "box"


def gang_of_two(yard: Yard, *, preemptible: bool = True) -> None:
    """On one and two, before the work of others on three."""
    for name in ("one", "two"):
        yard.worker(name, gpus=1, vram=24)
    yard.submit("gang", node_count=2, gpu_count=1, priority=10)
    yard.start("gang.0", "gang.1")
    yard.worker("three", gpus=1, vram=24)
    yard.start(yard.submit("low", gpu_count=1, preemptible=preemptible))


def test_a_gang_that_lost_a_machine_makes_room_for_what_it_lacks_beside_what_was_kept_for_it() -> None:
    yard = Yard()
    gang_of_two(yard)
    first = yard.attempt("gang.0")
    yard.submit("sneaky", gpu_count=1)
    yard.leave("two")
    yard.wait(yard.fleet.jobs["gang"].terms.grace_s)
    yard.end("gang.0", "cancelled", attempt=first, worker="one")
    assert told_to_stop(yard) == ["low"]
    yard.end("low", "cancelled")
    assert sorted((yard.where("gang.0"), yard.where("gang.1"))) == ["one", "three"]
    assert yard.where("sneaky") == ""


def test_room_that_is_kept_on_a_machine_that_is_drained_is_made_elsewhere() -> None:
    yard = Yard()
    for name in ("one", "two", "three"):
        yard.worker(name, gpus=1, vram=24, labels={"is": name})
        yard.start(yard.submit(f"low-{name}", gpu_count=1, preemptible=True, labels=[f"is = {name}"]))
    yard.submit("gang", node_count=2, gpu_count=1, priority=10)
    first, second = told_to_stop(yard)
    yard.end(first, "cancelled")
    yard.drain(first.removeprefix("low-"))
    yard.end(second, "cancelled")
    (third,) = {"low-one", "low-two", "low-three"} - {first, second}
    assert told_to_stop(yard) == [third]
    yard.end(third, "cancelled")
    assert {yard.where("gang.0"), yard.where("gang.1")} == {name.removeprefix("low-") for name in (second, third)}


def test_no_more_is_displaced_for_a_user_than_the_quota_lets_run() -> None:
    yard = Yard()
    yard.fleet.set_quotas(Quotas(users={"bob": Quota(running_gpus=1)}))
    for name in ("one", "two"):
        yard.worker(name, gpus=1, vram=24)
        yard.start(yard.submit(f"low-{name}", gpu_count=1, preemptible=True))
    yard.turn(
        submission(1, "small", gpu_count=1, priority=5, user_id="bob"),
        submission(2, "large", gpu_count=1, min_cpu_cores=2, priority=5, user_id="bob"),
    )
    assert len(told_to_stop(yard)) == 1


def test_what_is_kept_for_a_job_is_no_process_that_has_ended() -> None:
    """A pass takes it and gives it back; the slots that its worker says are in use stay so."""
    yard = Yard()
    gang_of_two(yard, preemptible=False)
    first = yard.attempt("gang.0")
    yard.leave("two")
    yard.wait(yard.fleet.jobs["gang"].terms.grace_s)
    yard.end("gang.0", "cancelled", attempt=first, worker="one")
    assert "gang" in yard.fleet.bound
    yard.beat("one", slots=Slots(batch_total=4, batch_in_use=3))
    yard.wait(60)
    assert yard.fleet.workers["one"].in_use["batch"] == 3
