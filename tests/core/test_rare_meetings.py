"""Mechanisms that rarely meet: what is sent ahead and preemption, quotas and holds."""

from tests.core.test_ahead import ahead, called_back, fleet, give_back
from tests.core.test_holds import held, passed_over
from tests.core.yard import Yard

from ostler.core.events import WorkerBeat
from ostler.core.holding import NOTHING
from ostler.domain.quota import Quota, Quotas


def preempted() -> Yard:
    """One that may be displaced was told to end for an urgent job, and is gone before the one that was sent to come
    after it has been handed back."""
    yard = fleet(ahead=1)
    yard.submit("before")
    yard.submit("runs", preemptible=True)
    yard.submit("behind")
    yard.end("before", run_s=0.01)
    assert ahead(yard) == {"behind": "runs"}
    yard.accept("runs")
    attempt = yard.attempt("runs")
    yard.submit("urgent", priority=5)
    assert called_back(yard) == ["behind"]
    yard.end("runs", "cancelled", attempt=attempt, worker="w")
    return yard


def waits_for(yard: Yard, job_id: str) -> list[str]:
    """The tasks whose room is to be its own."""
    return [yard.fleet.held[name].task_id for name in yard.fleet.room_makers.get(job_id, ())]


def test_whoever_room_was_cleared_for_waits_for_the_one_that_has_it_meanwhile() -> None:
    yard = preempted()
    assert (waits_for(yard, "urgent"), yard.where("urgent")) == (["behind"], "")
    assert not any(one.held is NOTHING for kept in yard.fleet.bound.values() for one in kept)
    give_back(yard, "behind")
    assert (yard.where("urgent"), yard.fleet.room_makers) == ("w", {})


def test_it_gets_the_room_at_the_end_of_one_that_began_before_it_could_be_called_back() -> None:
    yard = preempted()
    yard.accept("behind")
    yard.submit("other", priority=5, user_id="bob")
    yard.end("behind", run_s=0.01)
    assert (yard.where("urgent"), yard.where("other")) == ("w", "")


def test_it_gets_the_room_when_nothing_is_heard_of_that_one() -> None:
    yard = preempted()
    yard.wait(31)
    assert yard.where("urgent") == "w"


def test_a_user_whose_lost_machine_counts_no_more_may_pass_a_hold_at_once() -> None:
    yard = Yard()
    yard.fleet.set_quotas(Quotas(users={"bob": Quota(running_jobs=1)}))
    yard.worker("box", gpus=2, vram=48)
    yard.start(yard.submit("old", gpu_count=1, max_runtime_hours=2))
    yard.worker("far")
    yard.start(yard.submit("bobs", user_id="bob", gpu_backend="cpu", min_cpu_cores=1))
    lost = yard.where("bobs")
    passed_over(yard, "whole", gpu_count=2)
    assert held(yard) == {"whole": ["box"]}
    yard.submit("short", user_id="bob", gpu_count=1, max_runtime_hours=0.1)
    assert (lost, yard.where("short")) == ("far", "")
    yard.wait(20)
    yard.leave("far")
    yard.wait(15)
    yard.now = yard.fleet.workers["far"].last_contact + 30.0
    assert yard.now < yard.fleet.holds.look_at, "nobody looks at the holds for another while"
    yard.turn(WorkerBeat(worker_id="box", session=yard.session("box")))
    assert yard.where("short") == "box"
