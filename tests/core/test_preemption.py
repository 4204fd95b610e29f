"""Preemption: the cheapest set that makes room, at no cost to the victims, and the room is the preemptor's."""

from tests.core.yard import Yard

from ostler.core.effects import CancelTask


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
