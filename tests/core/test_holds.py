"""Whoever is passed over for too long gets machines held for it, and others pass there only if that costs it nothing."""

import math
from typing import Any

import pytest
from tests.core.plain import only_plain
from tests.core.yard import Yard, capabilities, holding

from ostler.core.effects import CancelTask
from ostler.core.fleet import Fleet, Job
from ostler.core.queueing import backfill
from ostler.core.queueing.backfill import IN_LINE_LOOKED_AT, LOOK_MOST_S, OLD_AFTER
from ostler.core.queueing.holds import HeldMachine, Way
from ostler.domain.quota import Quota, Quotas
from ostler.domain.scheduling import HOLD_AFTER_S, Scheduling

MINUTE = 1 / 60
"""Of an hour: budgets are given in hours."""


def busy(*, boxes: int = 1, gpus: int = 2) -> Yard:
    """Machines on each of which one GPU runs a job, with an hour's budget."""
    yard = Yard()
    for box in range(boxes):
        yard.worker(f"box{box}", gpus=gpus, vram=24 * gpus, labels={"box": str(box)})
        yard.start(yard.submit(f"old{box}", gpu_count=1, max_runtime_hours=1, labels=[f"box = {box}"]))
    return yard


def held(yard: Yard) -> dict[str, list[str]]:
    return {job_id: list(hold.machines) for job_id, hold in yard.fleet.holds.of.items()}


def passed_over(yard: Yard, job_id: str, **spec: object) -> str:
    """A job that has waited for long enough to have a hold."""
    yard.submit(job_id, **spec)
    yard.wait(HOLD_AFTER_S + LOOK_MOST_S)
    return job_id


def test_a_job_that_was_passed_over_for_too_long_gets_a_machine_held() -> None:
    yard = busy()
    yard.submit("whole", gpu_count=2)
    yard.wait(HOLD_AFTER_S - LOOK_MOST_S)
    assert held(yard) == {}
    yard.wait(2 * LOOK_MOST_S)
    assert held(yard) == {"whole": ["box0"]}
    yard.submit("small", gpu_count=1)
    assert yard.where("small") == "", "there is a GPU free, and it is not for everybody any more"
    yard.end("old0")
    assert yard.where("whole") == "box0"
    assert held(yard) == {}


def test_who_surely_ends_before_the_owner_could_start_passes() -> None:
    yard = busy()
    passed_over(yard, "whole", gpu_count=2)
    until = yard.fleet.holds.of["whole"].free_until
    left_h = (until - yard.now) / 3600
    yard.submit("long", gpu_count=1, max_runtime_hours=left_h + MINUTE)
    yard.submit("short", gpu_count=1, max_runtime_hours=left_h - MINUTE)
    assert yard.where("long") == ""
    assert yard.where("short") == "box0"
    holder = yard.holder("short")
    assert holder is not None and "held for whole, and this ends before that can start" in holder.why


def test_who_leaves_the_room_that_the_owner_needs_passes_however_long_it_takes() -> None:
    yard = busy(gpus=5)
    for number in range(2):
        yard.start(yard.submit(f"other{number}", gpu_count=1, max_runtime_hours=1))
    passed_over(yard, "four", gpu_count=4)
    yard.submit("cores only", min_cpu_cores=1, max_runtime_hours=100)
    yard.submit("a gpu", gpu_count=1, max_runtime_hours=100)
    yard.submit("another", gpu_count=1, max_runtime_hours=100)
    assert [yard.where(job) for job in ("cores only", "a gpu", "another")] == ["box0", "box0", ""]
    holder = yard.holder("a gpu")
    assert holder is not None and "this leaves the room that it needs" in holder.why
    yard.start("a gpu")
    yard.end("a gpu")
    assert yard.where("another") == "box0", "now it is the only one beside the owner"
    for job in ("old0", "other0", "other1"):
        yard.end(job)
    assert yard.where("four") == "box0"


def test_a_gang_gets_as_many_machines_held_as_it_needs() -> None:
    yard = busy(boxes=4)
    passed_over(yard, "gang", node_count=3, gpu_count=2)
    machines = held(yard)["gang"]
    assert len(machines) == 3
    [open_box] = {f"box{n}" for n in range(4)} - set(machines)
    smalls = [yard.submit(gpu_count=1) for _ in range(2)]
    assert [yard.where(job) for job in smalls] == [open_box, ""]
    for box in machines:
        yard.end(f"old{box.removeprefix('box')}")
    assert sorted(yard.where(f"gang.{rank}") for rank in range(3)) == sorted(machines)


def test_who_was_let_in_for_the_room_it_leaves_is_not_taken_for_gone_when_another_asks() -> None:
    """Nobody knows how long it takes: that it may end before the last machine of the gang opens is no promise."""
    yard = Yard()
    for name, hours in (("soon", 0.1), ("late", 10)):
        yard.worker(name, gpus=1, vram=24, cores=3, labels={"name": name})
        needs = {"gpu_count": 1, "min_cpu_cores": 1, "max_runtime_hours": hours}
        yard.start(yard.submit(f"on {name}", labels=[f"name = {name}"], **needs))
    yard.submit("gang", node_count=2, gpu_count=1, min_cpu_cores=2)
    yard.wait(HOLD_AFTER_S + LOOK_MOST_S)
    guests = [yard.submit(min_cpu_cores=1, labels=["name = soon"]) for _ in range(3)]
    yard.end("on soon")
    assert [yard.where(guest) for guest in guests] == ["soon", "", ""]


def test_higher_priority_passes_a_hold_and_equal_priority_does_not() -> None:
    yard = busy()
    passed_over(yard, "whole", gpu_count=2)
    yard.submit("equal", gpu_count=1, job_tier="training")
    yard.submit("higher", gpu_count=1, priority=1)
    assert yard.where("equal") == ""
    assert yard.where("higher") == "box0"


def test_no_room_is_cleared_on_a_machine_that_is_held_for_a_higher_priority() -> None:
    yard = Yard()
    yard.worker("box", gpus=2, vram=48)
    yard.start(yard.submit("firm", gpu_count=1, priority=9, max_runtime_hours=1))
    yard.start(yard.submit("soft", gpu_count=1, priority=5, preemptible=True))
    passed_over(yard, "whole", gpu_count=2, priority=7)
    assert held(yard) == {"whole": ["box"]}
    yard.submit("below", gpu_count=1, priority=6)
    assert yard.of(CancelTask) == []
    yard.submit("above", gpu_count=1, priority=8)
    assert [effect.task_id for effect in yard.of(CancelTask)] == ["soft"]


def test_the_machine_is_the_one_that_opens_first() -> None:
    yard = Yard()
    for name, hours in (("late", 9), ("soon", 1), ("later", 20)):
        yard.worker(name, gpus=2, vram=48, labels={"name": name})
        yard.start(yard.submit(f"on {name}", gpu_count=1, max_runtime_hours=hours, labels=[f"name = {name}"]))
    passed_over(yard, "whole", gpu_count=2)
    assert held(yard) == {"whole": ["soon"]}


def test_a_machine_that_is_free_earlier_takes_the_job_anyway() -> None:
    yard = busy()
    passed_over(yard, "whole", gpu_count=2)
    yard.worker("fresh", gpus=2, vram=48)
    assert yard.where("whole") == "fresh"
    assert held(yard) == {}
    assert yard.where(yard.submit(gpu_count=1)) == "box0"


@pytest.mark.parametrize("lost", ["drained", "gone"])
def test_a_hold_moves_when_its_machine_is_lost(lost: str) -> None:
    yard = busy(boxes=2)
    passed_over(yard, "whole", gpu_count=2)
    [first] = held(yard)["whole"]
    if lost == "drained":
        yard.drain(first)
    else:
        yard.leave(first)
    [second] = held(yard)["whole"]
    assert second != first


def test_what_takes_longer_than_foreseen_moves_the_start_and_lets_nobody_in_for_longer() -> None:
    yard = busy()
    passed_over(yard, "whole", gpu_count=2)
    hold = yard.fleet.holds.of["whole"]
    promised = hold.promised
    yard.wait(promised - yard.now + 1.0)
    assert yard.where("whole") == ""
    assert yard.fleet.holds.of["whole"] is hold
    assert hold.shadow > promised
    yard.submit("quick", gpu_count=1, max_runtime_hours=0.001)
    assert yard.where("quick") == "", "it has waited for longer than was promised: nobody passes any more"


def test_a_cancelled_owner_leaves_the_machine_to_others() -> None:
    yard = busy()
    passed_over(yard, "whole", gpu_count=2)
    small = yard.submit(gpu_count=1)
    yard.cancel("whole")
    assert held(yard) == {}
    assert yard.where(small) == "box0"


def test_who_may_not_start_for_its_quota_holds_nothing() -> None:
    yard = busy()
    yard.fleet.set_quotas(Quotas(users={"bob": Quota(running_gpus=2)}))
    passed_over(yard, "whole", gpu_count=2, user_id="bob")
    assert held(yard) == {"whole": ["box0"]}
    yard.start(yard.submit("ahead", gpu_count=1, user_id="bob", priority=1))
    assert held(yard) == {}


def test_holds_follow_again_from_how_long_jobs_have_waited_when_the_hub_restarts() -> None:
    yard = busy()
    passed_over(yard, "whole", gpu_count=2)
    running = yard.attempt("old0")
    yard.restart(away=5)
    assert held(yard) == {}
    yard.register("box0", holds=holding(("old0", running)), slots=64)
    yard.wait(LOOK_MOST_S)
    assert held(yard) == {"whole": ["box0"]}


def test_where_nobody_gets_holds_small_jobs_go_on_passing() -> None:
    yard = busy()
    yard.fleet.policy = Scheduling(hold_after_s=math.inf)
    passed_over(yard, "whole", gpu_count=2)
    assert held(yard) == {}
    assert yard.where(yard.submit(gpu_count=1)) == "box0"


def test_one_that_could_never_run_holds_nothing_and_keeps_no_hold_from_others() -> None:
    yard = busy()
    yard.submit("never", gpu_count=64)
    passed_over(yard, "whole", gpu_count=2)
    assert held(yard) == {"whole": ["box0"]}


def test_many_that_could_never_run_keep_no_hold_from_others() -> None:
    yard = busy()
    for number in range(IN_LINE_LOOKED_AT + 1):
        yard.submit(f"never{number}", gpu_count=64, min_cpu_cores=number + 1)
    passed_over(yard, "whole", gpu_count=2)
    assert held(yard) == {"whole": ["box0"]}


def test_many_whom_a_quota_keeps_back_keep_no_hold_from_others() -> None:
    yard = busy()
    yard.fleet.set_quotas(Quotas(users={"bob": Quota(running_gpus=1)}))
    for number in range(IN_LINE_LOOKED_AT):
        yard.submit(f"over{number}", gpu_count=2, min_cpu_cores=number + 1, user_id="bob")
    passed_over(yard, "whole", gpu_count=2)
    assert held(yard) == {"whole": ["box0"]}


def test_those_that_need_other_machines_get_holds_beside_each_other() -> None:
    yard = Yard()
    for kind in ("A100", "A100", "T4"):
        name = f"{kind}.{len(yard.fleet.workers)}"
        yard.worker(name, gpus=2, vram=48, gpu_type=kind, labels={"name": name})
        yard.start(yard.submit(f"on-{name}", gpu_count=1, labels=[f"name = {name}"], max_runtime_hours=1))
    yard.submit("first", gpu_count=2, gpu_type="A100")
    yard.submit("second", gpu_count=2, gpu_type="A100", min_cpu_cores=1)
    passed_over(yard, "third", gpu_count=2, gpu_type="T4")
    assert held(yard) == {"first": ["A100.0"], "third": ["T4.2"]}, "the second waits its turn"


def test_the_oldest_gets_a_hold_some_day_though_others_are_always_before_it_in_the_order() -> None:
    yard = busy()
    yard.fleet.charge("hog", 1e9, yard.now)
    for name in ("hogs", "hogs too"):
        yard.submit(name, gpu_count=2, user_id="hog")
    newcomers_pass(yard, OLD_AFTER * HOLD_AFTER_S - LOOK_MOST_S)
    assert held(yard) == {}
    newcomers_pass(yard, 2 * LOOK_MOST_S)
    assert held(yard) == {"hogs": ["box0"]}
    yard.end("old0")
    yard.start("hogs")
    newcomers_pass(yard, HOLD_AFTER_S / 2)
    assert held(yard) == {}, "one that is only old gets a hold now and then, not always"
    newcomers_pass(yard, HOLD_AFTER_S / 2)
    assert held(yard) == {"hogs too": ["box0"]}


def newcomers_pass(yard: Yard, seconds: float) -> None:
    """All the while somebody waits who has used nothing yet and has not waited for long."""
    until = yard.now + seconds
    while yard.now < until:
        job = yard.submit(gpu_count=2, user_id=f"newcomer at {yard.now}")
        yard.wait(min(HOLD_AFTER_S / 2, until - yard.now))
        yard.cancel(job)


def test_a_gang_that_lost_a_member_comes_back_to_its_machines_though_one_is_held() -> None:
    yard = busy(boxes=2)
    yard.submit("gang", node_count=2, gpu_count=1, max_retries=1, max_runtime_hours=10)
    yard.start("gang.0", "gang.1")
    passed_over(yard, "whole", gpu_count=2)
    [box] = held(yard)["whole"]
    kept, lost = sorted(("gang.0", "gang.1"), key=lambda task: yard.where(task) != box)
    yard.end(lost, "failed")
    yard.end(kept, "cancelled")
    assert sorted(yard.where(f"gang.{rank}") for rank in range(2)) == ["box0", "box1"]


def test_a_hold_for_an_array_is_for_its_next_task_only() -> None:
    yard = busy()
    passed_over(yard, "many", gpu_count=2, array=3)
    yard.end("old0")
    assert yard.where("many.0") == "box0"
    assert held(yard) == {}


def test_plain_fifo_lets_the_head_block_those_behind_it() -> None:
    yard = busy()
    yard.fleet.policy = Scheduling(hold_after_s=math.inf, head_blocks=True)
    yard.submit("whole", gpu_count=2)
    yard.submit("small", gpu_count=1)
    assert yard.where("small") == ""
    yard.end("old0")
    assert yard.where("whole") == "box0"


def test_whom_a_quota_kept_from_a_held_machine_passes_as_soon_as_it_may() -> None:
    yard = busy(boxes=2)
    yard.fleet.set_quotas(Quotas(users={"bob": Quota(running_gpus=1)}))
    yard.start(yard.submit("bobs", user_id="bob", gpu_count=1, labels=["box = 1"]))
    passed_over(yard, "whole", gpu_count=2, labels=["box = 0"])
    assert held(yard) == {"whole": ["box0"]}
    yard.submit("short", user_id="bob", gpu_count=1, max_runtime_hours=MINUTE, labels=["box = 0"])
    assert yard.where("short") == ""
    yard.end("bobs")
    assert yard.where("short") == "box0"


def counted_looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of which users somebody's room beside an owner was looked at."""
    looked_at: list[str] = []
    way_in = backfill._way_in

    def counted(fleet: Fleet, job: Job, *more: Any) -> Way | None:
        looked_at.append(job.user)
        return way_in(fleet, job, *more)

    monkeypatch.setattr(backfill, "_way_in", counted)
    return looked_at


@only_plain
def test_who_is_like_one_that_was_not_let_in_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or each who comes or goes would cost a look at all who wait for such room."""
    yard = busy()
    passed_over(yard, "whole", gpu_count=2)
    assert yard.where(yard.submit(gpu_count=1, user_id="first")) == ""
    looked_at = counted_looks(monkeypatch)
    for number in range(40):
        assert yard.where(yard.submit(gpu_count=1, user_id=f"u{number}")) == ""
    assert looked_at == []
    yard.wait(LOOK_MOST_S)
    assert looked_at, "it may have become known that they take less long"


@only_plain
def test_one_that_is_shorter_than_who_was_not_let_in_is_looked_at_and_longer_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    yard = busy()
    passed_over(yard, "whole", gpu_count=2)
    looked_at = counted_looks(monkeypatch)
    for user, hours in (("first", 50), ("longer", 60), ("as long", 50), ("shorter", 40), ("between", 45)):
        assert yard.where(yard.submit(gpu_count=1, user_id=user, max_runtime_hours=hours)) == ""
    assert set(looked_at) == {"first", "shorter"}
    assert yard.where(yard.submit(gpu_count=1, user_id="short", max_runtime_hours=MINUTE)) == "box0"


def test_the_owner_of_an_older_hold_goes_ahead_though_one_like_it_was_not_let_in() -> None:
    yard = busy(boxes=2)
    passed_over(yard, "older", gpu_count=2, user_id="bob")
    yard.submit("younger", gpu_count=2, user_id="carol")
    younger, box = yard.fleet.jobs["younger"], yard.fleet.workers["box1"]
    machine = HeldMachine(box, *backfill.opens_at(yard.fleet, younger.shape.request, box, yard.now))
    backfill._give(yard.fleet, younger, [machine], yard.now)
    yard.submit("first in order", gpu_count=2, user_id="alice")
    yard.end("old1")
    assert yard.where("older") == "box1"
    assert [yard.where(job) for job in ("first in order", "younger")] == ["", ""]


def test_a_hold_ends_when_its_owner_may_not_run_on_the_machine_any_more() -> None:
    yard = busy()
    whole = passed_over(yard, "whole", gpu_count=2, labels=["box = 0"])
    assert held(yard) == {whole: ["box0"]}
    yard.beat("box0", capabilities=capabilities(gpus=2, vram=48, labels={"box": "another"}))
    assert held(yard) == {}
    yard.end("old0")
    assert yard.where(yard.submit("other", gpu_count=2)) == "box0"


def test_who_waits_behind_a_newcomer_that_needs_another_machine_gets_a_hold() -> None:
    yard = busy()
    yard.worker("mac", gpus=1, vram=24, backend="metal")
    yard.start(yard.submit("macs", gpu_backend="metal", gpu_count=1, max_runtime_hours=9))
    yard.submit("whole", gpu_count=2)
    yard.wait(HOLD_AFTER_S - LOOK_MOST_S)
    yard.submit("newcomer", gpu_backend="metal", gpu_count=1, job_tier="training")
    assert yard.queue()[0] == "newcomer"
    yard.wait(2 * LOOK_MOST_S)
    assert held(yard) == {"whole": ["box0"]}
