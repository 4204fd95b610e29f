"""A job's priority may change while it waits and while it runs."""

from tests.core.yard import Yard

from ostler.core.effects import Answer, Effect, Refuse
from ostler.core.events import PriorityRequested


def prioritize(yard: Yard, job_id: str, priority: int) -> Effect:
    row = yard.ledger.jobs([job_id]).get(job_id)
    [said] = [
        effect
        for effect in yard.turn(PriorityRequested(ref=1, job_id=job_id, priority=priority, row=row))
        if isinstance(effect, Answer | Refuse)
    ]
    return said


def test_a_waiting_job_moves_among_the_others_and_keeps_its_arrival() -> None:
    yard = Yard()
    for name in ("a", "b", "c", "d"):
        yard.submit(name)
    prioritize(yard, "c", 5)
    prioritize(yard, "b", 5)
    prioritize(yard, "a", -1)
    assert yard.queue() == ["b", "c", "d", "a"]


def test_a_new_priority_is_durable_and_the_spec_stays_as_it_was_submitted() -> None:
    yard = Yard()
    yard.submit("a")
    yard.submit("b")
    before = yard.job("b").spec
    prioritize(yard, "b", 3)
    yard.restart()
    assert yard.queue() == ["b", "a"]
    assert (yard.job("b").terms.priority, yard.job("b").spec) == (3, before)


def test_what_runs_gives_way_by_its_new_priority() -> None:
    yard = Yard()
    yard.worker("box", gpus=1, vram=24)
    yard.submit("running", gpu_count=1, preemptible=True, priority=5)
    yard.start("running")
    yard.submit("urgent", gpu_count=1, priority=4)
    assert yard.cancelled() == []
    prioritize(yard, "running", 0)
    assert yard.cancelled() == [("box", yard.attempt("running"))]


def test_of_what_has_ended_or_never_was_it_is_refused() -> None:
    yard = Yard()
    yard.worker("box")
    yard.submit("done")
    yard.start("done")
    yard.end("done")
    assert isinstance(prioritize(yard, "done", 1), Refuse)
    assert isinstance(prioritize(yard, "nobody", 1), Refuse)


def test_two_changes_in_one_batch_leave_the_last() -> None:
    yard = Yard()
    yard.submit("a")
    row = yard.job("a")
    yard.turn(
        PriorityRequested(ref=1, job_id="a", priority=1, row=row),
        PriorityRequested(ref=2, job_id="a", priority=2, row=row),
    )
    assert yard.job("a").terms.priority == 2
