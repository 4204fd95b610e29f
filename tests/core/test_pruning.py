"""What is old leaves, held against what the same batch brings; and events that are large, stepped in portions."""

from tests.core.core_fleet import CoreFleet, submission

from ostler.core.effects import Pruned, Refuse
from ostler.core.events import JobsSubmitted, PruneRequested, Remains
from ostler.core.portions import AT_ONCE
from ostler.core.step import large, step
from ostler.domain.errors import NotFound
from ostler.domain.records import DepartedRecord, digest_of


def over(core: CoreFleet, job_id: str) -> str:
    """A job that has ended and left memory."""
    core.submit(job_id)
    core.accept(job_id)
    core.end(job_id)
    core.turn()
    assert job_id not in core.fleet.jobs
    return job_id


def pruning(job_id: str) -> PruneRequested:
    return PruneRequested(ref=99, jobs=[Remains(job_id=job_id, state="succeeded", tasks=[job_id])])


def gone(core: CoreFleet) -> int:
    return sum(answer.jobs for answer in core.of(Pruned))


def test_the_tally_of_what_has_ended_follows_every_end_requeue_removal_and_restart() -> None:
    core = CoreFleet()
    core.worker("w")
    for name in ("a", "b", "c"):
        over(core, name)
    core.cancel(core.submit("d", gpu_count=8))
    assert (core.fleet.tally["succeeded"], core.fleet.tally["cancelled"]) == (3, 1)
    core.requeue("a")
    core.turn(pruning("b"))
    assert (gone(core), core.fleet.tally["succeeded"]) == (1, 1)
    core.restart()
    assert (core.fleet.tally["succeeded"], core.fleet.tally["cancelled"]) == (1, 1)


def test_a_job_that_is_run_again_in_the_same_batch_stays_or_is_refused_by_what_came_first() -> None:
    core = CoreFleet()
    core.worker("w")
    for name in ("a", "b"):
        over(core, name)
    core.turn(core.requeueing("a"), pruning("a"))
    assert (gone(core), core.state("a")) == (0, "assigned")
    core.turn(pruning("b"), core.requeueing("b"))
    [refused] = core.of(Refuse)
    assert isinstance(refused.error, NotFound)
    assert (gone(core), core.ledger.jobs(["b"]), core.ledger.tasks(["b"])) == (1, {}, {})


def test_a_job_that_one_of_the_same_batch_depends_on_stays() -> None:
    core = CoreFleet()
    core.worker("w")
    over(core, "a")
    newcomer = core.known(submission(7, "b", depends_on=["a"], gpu_count=8))
    core.turn(newcomer, pruning("a"))
    assert (gone(core), set(core.ledger.jobs(["a", "b"]))) == (0, {"a", "b"})


def test_a_job_on_which_one_depends_that_is_run_again_stays() -> None:
    core = CoreFleet()
    core.worker("w")
    over(core, "a")
    core.turn(core.known(submission(7, "b", depends_on=["a"])))
    core.accept("b")
    core.end("b")
    again = core.requeueing("b")
    again.depends_on = ["a"]
    core.turn(again, pruning("a"))
    assert (gone(core), set(core.ledger.jobs(["a", "b"]))) == (0, {"a", "b"})


def test_a_job_that_is_gone_counts_as_ended_for_whoever_depends_on_it() -> None:
    core = CoreFleet()
    core.worker("w")
    for state, expected in (("succeeded", "assigned"), ("failed", "cancelled")):
        event = submission(7, f"after-{state}", depends_on=["old"])
        event.departed = {"old": DepartedRecord(id="old", digest="", state=state, at=0.0)}
        core.turn(event)
        assert core.state(f"after-{state}") == expected


def test_an_id_that_is_gone_is_taken_by_the_same_spec_and_by_no_other() -> None:
    core = CoreFleet()
    same, other = submission(7, "old"), submission(8, "old", name="another")
    for event in (same, other):
        event.departed = {"old": DepartedRecord(id="old", digest=digest_of(same.jobs[0].spec), state="failed", at=0.0)}
    core.turn(same, other)
    assert [refused.ref for refused in core.of(Refuse)] == [8]
    assert not core.fleet.jobs


def test_thousands_of_jobs_are_entered_in_portions_and_come_out_the_same() -> None:
    at_once, paused = CoreFleet(checked=False), CoreFleet(checked=False)
    jobs = [job for number in range(3 * AT_ONCE) for job in submission(1, f"j{number:04}", gpu_count=8).jobs]
    assert step(at_once.fleet, JobsSubmitted(ref=1, jobs=jobs), 0.0)
    portions = large(paused.fleet, JobsSubmitted(ref=1, jobs=jobs), 0.0)
    assert portions is not None
    most, before = 0, 0
    for _ in portions:
        most, before = max(most, len(paused.fleet.jobs) - before), len(paused.fleet.jobs)
    assert most == AT_ONCE
    assert paused.queue() == at_once.queue() == [job.id for job in jobs]
    assert large(paused.fleet, pruning("a"), 0.0) is None
