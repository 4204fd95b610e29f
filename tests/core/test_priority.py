"""A job's priority may change while it waits and while it runs."""

from tests.core.core_fleet import CoreFleet

from ostler.core.effects import Answer, Effect, Refuse
from ostler.core.events import PriorityRequested


def prioritize(core: CoreFleet, job_id: str, priority: int) -> Effect:
    row = core.ledger.jobs([job_id]).get(job_id)
    [said] = [
        effect
        for effect in core.turn(PriorityRequested(ref=1, job_id=job_id, priority=priority, row=row))
        if isinstance(effect, Answer | Refuse)
    ]
    return said


def test_a_waiting_job_moves_among_the_others_and_keeps_its_arrival() -> None:
    core = CoreFleet()
    for name in ("a", "b", "c", "d"):
        core.submit(name)
    prioritize(core, "c", 5)
    prioritize(core, "b", 5)
    prioritize(core, "a", -1)
    assert core.queue() == ["b", "c", "d", "a"]


def test_a_new_priority_is_durable_and_the_spec_stays_as_it_was_submitted() -> None:
    core = CoreFleet()
    core.submit("a")
    core.submit("b")
    before = core.job("b").spec
    prioritize(core, "b", 3)
    core.restart()
    assert core.queue() == ["b", "a"]
    assert (core.job("b").terms.priority, core.job("b").spec) == (3, before)


def test_what_runs_gives_way_by_its_new_priority() -> None:
    core = CoreFleet()
    core.worker("box", gpus=1, vram=24)
    core.submit("running", gpu_count=1, preemptible=True, priority=5)
    core.start("running")
    core.submit("urgent", gpu_count=1, priority=4)
    assert core.cancelled() == []
    prioritize(core, "running", 0)
    assert core.cancelled() == [("box", core.attempt("running"))]


def test_of_what_has_ended_or_never_was_it_is_refused() -> None:
    core = CoreFleet()
    core.worker("box")
    core.submit("done")
    core.start("done")
    core.end("done")
    assert isinstance(prioritize(core, "done", 1), Refuse)
    assert isinstance(prioritize(core, "nobody", 1), Refuse)


def test_two_changes_in_one_batch_leave_the_last() -> None:
    core = CoreFleet()
    core.submit("a")
    row = core.job("a")
    core.turn(
        PriorityRequested(ref=1, job_id="a", priority=1, row=row),
        PriorityRequested(ref=2, job_id="a", priority=2, row=row),
    )
    assert core.job("a").terms.priority == 2
