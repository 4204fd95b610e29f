"""Mechanisms that rarely meet: what is sent ahead and preemption, quotas and holds."""

from tests.core.core_fleet import CoreFleet
from tests.core.test_ahead import ahead, called_back, fleet, give_back
from tests.core.test_holds import held, passed_over

from ostler.core.events import WorkerBeat
from ostler.core.holding import NOTHING
from ostler.domain.quota import Quota, Quotas


def preempted() -> CoreFleet:
    """One that may be displaced was told to end for an urgent job, and is gone before the one that was sent to come
    after it has been handed back."""
    core = fleet(ahead=1)
    core.submit("before")
    core.submit("runs", preemptible=True)
    core.submit("behind")
    core.end("before", run_s=0.01)
    assert ahead(core) == {"behind": "runs"}
    core.accept("runs")
    attempt = core.attempt("runs")
    core.submit("urgent", priority=5)
    assert called_back(core) == ["behind"]
    core.end("runs", "cancelled", attempt=attempt, worker="w")
    return core


def waits_for(core: CoreFleet, job_id: str) -> list[str]:
    """The tasks whose room is to be its own."""
    return [core.fleet.held[name].task_id for name in core.fleet.room_makers.get(job_id, ())]


def test_whoever_room_was_cleared_for_waits_for_the_one_that_has_it_meanwhile() -> None:
    core = preempted()
    assert (waits_for(core, "urgent"), core.where("urgent")) == (["behind"], "")
    assert not any(one.held is NOTHING for kept in core.fleet.bound.values() for one in kept)
    give_back(core, "behind")
    assert (core.where("urgent"), core.fleet.room_makers) == ("w", {})


def test_it_gets_the_room_at_the_end_of_one_that_began_before_it_could_be_called_back() -> None:
    core = preempted()
    core.accept("behind")
    core.submit("other", priority=5, user_id="bob")
    core.end("behind", run_s=0.01)
    assert (core.where("urgent"), core.where("other")) == ("w", "")


def test_it_gets_the_room_when_nothing_is_heard_of_that_one() -> None:
    core = preempted()
    core.wait(31)
    assert core.where("urgent") == "w"


def test_a_user_whose_lost_machine_counts_no_more_may_pass_a_hold_at_once() -> None:
    core = CoreFleet()
    core.fleet.set_quotas(Quotas(users={"bob": Quota(running_jobs=1)}))
    core.worker("box", gpus=2, vram=48)
    core.start(core.submit("old", gpu_count=1, max_runtime_hours=2))
    core.worker("far")
    core.start(core.submit("bobs", user_id="bob", gpu_backend="cpu", min_cpu_cores=1))
    lost = core.where("bobs")
    passed_over(core, "whole", gpu_count=2)
    assert held(core) == {"whole": ["box"]}
    core.submit("short", user_id="bob", gpu_count=1, max_runtime_hours=0.1)
    assert (lost, core.where("short")) == ("far", "")
    core.wait(20)
    core.leave("far")
    core.wait(15)
    core.now = core.fleet.workers["far"].last_contact + 30.0
    assert core.now < core.fleet.holds.look_at, "nobody looks at the holds for another while"
    core.turn(WorkerBeat(worker_id="box", session=core.session("box")))
    assert core.where("short") == "box"
