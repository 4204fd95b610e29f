"""Whoever is passed over for too long gets machines held for it, and others pass there only if that costs it nothing."""

import math
from typing import Any

import pytest
from tests.core.core_fleet import CoreFleet, capabilities, holding
from tests.core.plain import only_plain

from ostler.core.effects import CancelTask
from ostler.core.fleet import Fleet, Job
from ostler.core.queueing import backfill
from ostler.core.queueing.backfill import IN_LINE_LOOKED_AT, LOOK_MOST_S, OLD_AFTER
from ostler.core.queueing.holds import HeldMachine, Way
from ostler.domain.quota import Quota, Quotas
from ostler.domain.scheduling import HOLD_AFTER_S, Scheduling

MINUTE = 1 / 60
"""Of an hour: budgets are given in hours."""


def busy(*, boxes: int = 1, gpus: int = 2) -> CoreFleet:
    """Machines on each of which one GPU runs a job, with an hour's budget."""
    core = CoreFleet()
    for box in range(boxes):
        core.worker(f"box{box}", gpus=gpus, vram=24 * gpus, labels={"box": str(box)})
        core.start(core.submit(f"old{box}", gpu_count=1, max_runtime_hours=1, labels=[f"box = {box}"]))
    return core


def held(core: CoreFleet) -> dict[str, list[str]]:
    return {job_id: list(hold.machines) for job_id, hold in core.fleet.holds.of.items()}


def passed_over(core: CoreFleet, job_id: str, **spec: object) -> str:
    """A job that has waited for long enough to have a hold."""
    core.submit(job_id, **spec)
    core.wait(HOLD_AFTER_S + LOOK_MOST_S)
    return job_id


def test_a_job_that_was_passed_over_for_too_long_gets_a_machine_held() -> None:
    core = busy()
    core.submit("whole", gpu_count=2)
    core.wait(HOLD_AFTER_S - LOOK_MOST_S)
    assert held(core) == {}
    core.wait(2 * LOOK_MOST_S)
    assert held(core) == {"whole": ["box0"]}
    core.submit("small", gpu_count=1)
    assert core.where("small") == "", "there is a GPU free, and it is not for everybody any more"
    core.end("old0")
    assert core.where("whole") == "box0"
    assert held(core) == {}


def test_who_surely_ends_before_the_owner_could_start_passes() -> None:
    core = busy()
    passed_over(core, "whole", gpu_count=2)
    until = core.fleet.holds.of["whole"].free_until
    left_h = (until - core.now) / 3600
    core.submit("long", gpu_count=1, max_runtime_hours=left_h + MINUTE)
    core.submit("short", gpu_count=1, max_runtime_hours=left_h - MINUTE)
    assert core.where("long") == ""
    assert core.where("short") == "box0"
    holder = core.holder("short")
    assert holder is not None and "held for whole, and this ends before that can start" in holder.why


def test_who_leaves_the_room_that_the_owner_needs_passes_however_long_it_takes() -> None:
    core = busy(gpus=5)
    for number in range(2):
        core.start(core.submit(f"other{number}", gpu_count=1, max_runtime_hours=1))
    passed_over(core, "four", gpu_count=4)
    core.submit("cores only", min_cpu_cores=1, max_runtime_hours=100)
    core.submit("a gpu", gpu_count=1, max_runtime_hours=100)
    core.submit("another", gpu_count=1, max_runtime_hours=100)
    assert [core.where(job) for job in ("cores only", "a gpu", "another")] == ["box0", "box0", ""]
    holder = core.holder("a gpu")
    assert holder is not None and "this leaves the room that it needs" in holder.why
    core.start("a gpu")
    core.end("a gpu")
    assert core.where("another") == "box0", "now it is the only one beside the owner"
    for job in ("old0", "other0", "other1"):
        core.end(job)
    assert core.where("four") == "box0"


def test_a_gang_gets_as_many_machines_held_as_it_needs() -> None:
    core = busy(boxes=4)
    passed_over(core, "gang", node_count=3, gpu_count=2)
    machines = held(core)["gang"]
    assert len(machines) == 3
    [open_box] = {f"box{n}" for n in range(4)} - set(machines)
    smalls = [core.submit(gpu_count=1) for _ in range(2)]
    assert [core.where(job) for job in smalls] == [open_box, ""]
    for box in machines:
        core.end(f"old{box.removeprefix('box')}")
    assert sorted(core.where(f"gang.{rank}") for rank in range(3)) == sorted(machines)


def test_who_was_let_in_for_the_room_it_leaves_is_not_taken_for_gone_when_another_asks() -> None:
    """Nobody knows how long it takes: that it may end before the last machine of the gang opens is no promise."""
    core = CoreFleet()
    for name, hours in (("soon", 0.1), ("late", 10)):
        core.worker(name, gpus=1, vram=24, cores=3, labels={"name": name})
        needs = {"gpu_count": 1, "min_cpu_cores": 1, "max_runtime_hours": hours}
        core.start(core.submit(f"on {name}", labels=[f"name = {name}"], **needs))
    core.submit("gang", node_count=2, gpu_count=1, min_cpu_cores=2)
    core.wait(HOLD_AFTER_S + LOOK_MOST_S)
    guests = [core.submit(min_cpu_cores=1, labels=["name = soon"]) for _ in range(3)]
    core.end("on soon")
    assert [core.where(guest) for guest in guests] == ["soon", "", ""]


def test_higher_priority_passes_a_hold_and_equal_priority_does_not() -> None:
    core = busy()
    passed_over(core, "whole", gpu_count=2)
    core.submit("equal", gpu_count=1, job_tier="training")
    core.submit("higher", gpu_count=1, priority=1)
    assert core.where("equal") == ""
    assert core.where("higher") == "box0"


def test_no_room_is_cleared_on_a_machine_that_is_held_for_a_higher_priority() -> None:
    core = CoreFleet()
    core.worker("box", gpus=2, vram=48)
    core.start(core.submit("firm", gpu_count=1, priority=9, max_runtime_hours=1))
    core.start(core.submit("soft", gpu_count=1, priority=5, preemptible=True))
    passed_over(core, "whole", gpu_count=2, priority=7)
    assert held(core) == {"whole": ["box"]}
    core.submit("below", gpu_count=1, priority=6)
    assert core.of(CancelTask) == []
    core.submit("above", gpu_count=1, priority=8)
    assert [effect.task_id for effect in core.of(CancelTask)] == ["soft"]


def test_the_machine_is_the_one_that_opens_first() -> None:
    core = CoreFleet()
    for name, hours in (("late", 9), ("soon", 1), ("later", 20)):
        core.worker(name, gpus=2, vram=48, labels={"name": name})
        core.start(core.submit(f"on {name}", gpu_count=1, max_runtime_hours=hours, labels=[f"name = {name}"]))
    passed_over(core, "whole", gpu_count=2)
    assert held(core) == {"whole": ["soon"]}


def test_a_machine_that_is_free_earlier_takes_the_job_anyway() -> None:
    core = busy()
    passed_over(core, "whole", gpu_count=2)
    core.worker("fresh", gpus=2, vram=48)
    assert core.where("whole") == "fresh"
    assert held(core) == {}
    assert core.where(core.submit(gpu_count=1)) == "box0"


@pytest.mark.parametrize("lost", ["drained", "gone"])
def test_a_hold_moves_when_its_machine_is_lost(lost: str) -> None:
    core = busy(boxes=2)
    passed_over(core, "whole", gpu_count=2)
    [first] = held(core)["whole"]
    if lost == "drained":
        core.drain(first)
    else:
        core.leave(first)
    [second] = held(core)["whole"]
    assert second != first


def test_what_takes_longer_than_foreseen_moves_the_start_and_lets_nobody_in_for_longer() -> None:
    core = busy()
    passed_over(core, "whole", gpu_count=2)
    hold = core.fleet.holds.of["whole"]
    promised = hold.promised
    core.wait(promised - core.now + 1.0)
    assert core.where("whole") == ""
    assert core.fleet.holds.of["whole"] is hold
    assert hold.shadow > promised
    core.submit("quick", gpu_count=1, max_runtime_hours=0.001)
    assert core.where("quick") == "", "it has waited for longer than was promised: nobody passes any more"


def test_a_cancelled_owner_leaves_the_machine_to_others() -> None:
    core = busy()
    passed_over(core, "whole", gpu_count=2)
    small = core.submit(gpu_count=1)
    core.cancel("whole")
    assert held(core) == {}
    assert core.where(small) == "box0"


def test_who_may_not_start_for_its_quota_holds_nothing() -> None:
    core = busy()
    core.fleet.set_quotas(Quotas(users={"bob": Quota(running_gpus=2)}))
    passed_over(core, "whole", gpu_count=2, user_id="bob")
    assert held(core) == {"whole": ["box0"]}
    core.start(core.submit("ahead", gpu_count=1, user_id="bob", priority=1))
    assert held(core) == {}


def test_holds_follow_again_from_how_long_jobs_have_waited_when_the_hub_restarts() -> None:
    core = busy()
    passed_over(core, "whole", gpu_count=2)
    running = core.attempt("old0")
    core.restart(away=5)
    assert held(core) == {}
    core.register("box0", holds=holding(("old0", running)), slots=64)
    core.wait(LOOK_MOST_S)
    assert held(core) == {"whole": ["box0"]}


def test_where_nobody_gets_holds_small_jobs_go_on_passing() -> None:
    core = busy()
    core.fleet.policy = Scheduling(hold_after_s=math.inf)
    passed_over(core, "whole", gpu_count=2)
    assert held(core) == {}
    assert core.where(core.submit(gpu_count=1)) == "box0"


def test_one_that_could_never_run_holds_nothing_and_keeps_no_hold_from_others() -> None:
    core = busy()
    core.submit("never", gpu_count=64)
    passed_over(core, "whole", gpu_count=2)
    assert held(core) == {"whole": ["box0"]}


def test_many_that_could_never_run_keep_no_hold_from_others() -> None:
    core = busy()
    for number in range(IN_LINE_LOOKED_AT + 1):
        core.submit(f"never{number}", gpu_count=64, min_cpu_cores=number + 1)
    passed_over(core, "whole", gpu_count=2)
    assert held(core) == {"whole": ["box0"]}


def test_many_whom_a_quota_keeps_back_keep_no_hold_from_others() -> None:
    core = busy()
    core.fleet.set_quotas(Quotas(users={"bob": Quota(running_gpus=1)}))
    for number in range(IN_LINE_LOOKED_AT):
        core.submit(f"over{number}", gpu_count=2, min_cpu_cores=number + 1, user_id="bob")
    passed_over(core, "whole", gpu_count=2)
    assert held(core) == {"whole": ["box0"]}


def test_those_that_need_other_machines_get_holds_beside_each_other() -> None:
    core = CoreFleet()
    for kind in ("A100", "A100", "T4"):
        name = f"{kind}.{len(core.fleet.workers)}"
        core.worker(name, gpus=2, vram=48, gpu_type=kind, labels={"name": name})
        core.start(core.submit(f"on-{name}", gpu_count=1, labels=[f"name = {name}"], max_runtime_hours=1))
    core.submit("first", gpu_count=2, gpu_type="A100")
    core.submit("second", gpu_count=2, gpu_type="A100", min_cpu_cores=1)
    passed_over(core, "third", gpu_count=2, gpu_type="T4")
    assert held(core) == {"first": ["A100.0"], "third": ["T4.2"]}, "the second waits its turn"


def test_the_oldest_gets_a_hold_some_day_though_others_are_always_before_it_in_the_order() -> None:
    core = busy()
    core.fleet.charge("hog", 1e9, core.now)
    for name in ("hogs", "hogs too"):
        core.submit(name, gpu_count=2, user_id="hog")
    newcomers_pass(core, OLD_AFTER * HOLD_AFTER_S - LOOK_MOST_S)
    assert held(core) == {}
    newcomers_pass(core, 2 * LOOK_MOST_S)
    assert held(core) == {"hogs": ["box0"]}
    core.end("old0")
    core.start("hogs")
    newcomers_pass(core, HOLD_AFTER_S / 2)
    assert held(core) == {}, "one that is only old gets a hold now and then, not always"
    newcomers_pass(core, HOLD_AFTER_S / 2)
    assert held(core) == {"hogs too": ["box0"]}


def newcomers_pass(core: CoreFleet, seconds: float) -> None:
    """All the while somebody waits who has used nothing yet and has not waited for long."""
    until = core.now + seconds
    while core.now < until:
        job = core.submit(gpu_count=2, user_id=f"newcomer at {core.now}")
        core.wait(min(HOLD_AFTER_S / 2, until - core.now))
        core.cancel(job)


def test_a_gang_that_lost_a_member_comes_back_to_its_machines_though_one_is_held() -> None:
    core = busy(boxes=2)
    core.submit("gang", node_count=2, gpu_count=1, max_retries=1, max_runtime_hours=10)
    core.start("gang.0", "gang.1")
    passed_over(core, "whole", gpu_count=2)
    [box] = held(core)["whole"]
    kept, lost = sorted(("gang.0", "gang.1"), key=lambda task: core.where(task) != box)
    core.end(lost, "failed")
    core.end(kept, "cancelled")
    assert sorted(core.where(f"gang.{rank}") for rank in range(2)) == ["box0", "box1"]


def test_a_hold_for_an_array_is_for_its_next_task_only() -> None:
    core = busy()
    passed_over(core, "many", gpu_count=2, array=3)
    core.end("old0")
    assert core.where("many.0") == "box0"
    assert held(core) == {}


def test_plain_fifo_lets_the_head_block_those_behind_it() -> None:
    core = busy()
    core.fleet.policy = Scheduling(hold_after_s=math.inf, head_blocks=True)
    core.submit("whole", gpu_count=2)
    core.submit("small", gpu_count=1)
    assert core.where("small") == ""
    core.end("old0")
    assert core.where("whole") == "box0"


def test_whom_a_quota_kept_from_a_held_machine_passes_as_soon_as_it_may() -> None:
    core = busy(boxes=2)
    core.fleet.set_quotas(Quotas(users={"bob": Quota(running_gpus=1)}))
    core.start(core.submit("bobs", user_id="bob", gpu_count=1, labels=["box = 1"]))
    passed_over(core, "whole", gpu_count=2, labels=["box = 0"])
    assert held(core) == {"whole": ["box0"]}
    core.submit("short", user_id="bob", gpu_count=1, max_runtime_hours=MINUTE, labels=["box = 0"])
    assert core.where("short") == ""
    core.end("bobs")
    assert core.where("short") == "box0"


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
    core = busy()
    passed_over(core, "whole", gpu_count=2)
    assert core.where(core.submit(gpu_count=1, user_id="first")) == ""
    looked_at = counted_looks(monkeypatch)
    for number in range(40):
        assert core.where(core.submit(gpu_count=1, user_id=f"u{number}")) == ""
    assert looked_at == []
    core.wait(LOOK_MOST_S)
    assert looked_at, "it may have become known that they take less long"


@only_plain
def test_one_that_is_shorter_than_who_was_not_let_in_is_looked_at_and_longer_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = busy()
    passed_over(core, "whole", gpu_count=2)
    looked_at = counted_looks(monkeypatch)
    for user, hours in (("first", 50), ("longer", 60), ("as long", 50), ("shorter", 40), ("between", 45)):
        assert core.where(core.submit(gpu_count=1, user_id=user, max_runtime_hours=hours)) == ""
    assert set(looked_at) == {"first", "shorter"}
    assert core.where(core.submit(gpu_count=1, user_id="short", max_runtime_hours=MINUTE)) == "box0"


def test_the_owner_of_an_older_hold_goes_ahead_though_one_like_it_was_not_let_in() -> None:
    core = busy(boxes=2)
    passed_over(core, "older", gpu_count=2, user_id="bob")
    core.submit("younger", gpu_count=2, user_id="carol")
    younger, box = core.fleet.jobs["younger"], core.fleet.workers["box1"]
    machine = HeldMachine(box, *backfill.opens_at(core.fleet, younger.shape.request, box, core.now))
    backfill._give(core.fleet, younger, [machine], core.now)
    core.submit("first in order", gpu_count=2, user_id="alice")
    core.end("old1")
    assert core.where("older") == "box1"
    assert [core.where(job) for job in ("first in order", "younger")] == ["", ""]


def test_a_hold_ends_when_its_owner_may_not_run_on_the_machine_any_more() -> None:
    core = busy()
    whole = passed_over(core, "whole", gpu_count=2, labels=["box = 0"])
    assert held(core) == {whole: ["box0"]}
    core.beat("box0", capabilities=capabilities(gpus=2, vram=48, labels={"box": "another"}))
    assert held(core) == {}
    core.end("old0")
    assert core.where(core.submit("other", gpu_count=2)) == "box0"


def test_who_waits_behind_a_newcomer_that_needs_another_machine_gets_a_hold() -> None:
    core = busy()
    core.worker("mac", gpus=1, vram=24, backend="metal")
    core.start(core.submit("macs", gpu_backend="metal", gpu_count=1, max_runtime_hours=9))
    core.submit("whole", gpu_count=2)
    core.wait(HOLD_AFTER_S - LOOK_MOST_S)
    core.submit("newcomer", gpu_backend="metal", gpu_count=1, job_tier="training")
    assert core.queue()[0] == "newcomer"
    core.wait(2 * LOOK_MOST_S)
    assert held(core) == {"whole": ["box0"]}
