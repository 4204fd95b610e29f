"""What is old leaves, held against what the same batch brings; and events that are large, stepped in portions."""

from tests.core.yard import Yard, submission

from ostler.core.effects import Pruned, Refuse
from ostler.core.events import JobsSubmitted, PruneRequested, Remains
from ostler.core.portions import AT_ONCE
from ostler.core.step import large, step
from ostler.domain.errors import NotFound
from ostler.domain.records import DepartedRecord, digest_of


def over(yard: Yard, job_id: str) -> str:
    """A job that has ended and left memory."""
    yard.submit(job_id)
    yard.accept(job_id)
    yard.end(job_id)
    yard.turn()
    assert job_id not in yard.fleet.jobs
    return job_id


def pruning(job_id: str) -> PruneRequested:
    return PruneRequested(ref=99, jobs=[Remains(job_id=job_id, state="succeeded", tasks=[job_id])])


def gone(yard: Yard) -> int:
    return sum(answer.jobs for answer in yard.of(Pruned))


def test_the_tally_of_what_has_ended_follows_every_end_requeue_removal_and_restart() -> None:
    yard = Yard()
    yard.worker("w")
    for name in ("a", "b", "c"):
        over(yard, name)
    yard.cancel(yard.submit("d", gpu_count=8))
    assert (yard.fleet.tally["succeeded"], yard.fleet.tally["cancelled"]) == (3, 1)
    yard.requeue("a")
    yard.turn(pruning("b"))
    assert (gone(yard), yard.fleet.tally["succeeded"]) == (1, 1)
    yard.restart()
    assert (yard.fleet.tally["succeeded"], yard.fleet.tally["cancelled"]) == (1, 1)


def test_a_job_that_is_run_again_in_the_same_batch_stays_or_is_refused_by_what_came_first() -> None:
    yard = Yard()
    yard.worker("w")
    for name in ("a", "b"):
        over(yard, name)
    yard.turn(yard.requeueing("a"), pruning("a"))
    assert (gone(yard), yard.state("a")) == (0, "assigned")
    yard.turn(pruning("b"), yard.requeueing("b"))
    [refused] = yard.of(Refuse)
    assert isinstance(refused.error, NotFound)
    assert (gone(yard), yard.ledger.jobs(["b"]), yard.ledger.tasks(["b"])) == (1, {}, {})


def test_a_job_that_one_of_the_same_batch_depends_on_stays() -> None:
    yard = Yard()
    yard.worker("w")
    over(yard, "a")
    newcomer = yard.known(submission(7, "b", depends_on=["a"], gpu_count=8))
    yard.turn(newcomer, pruning("a"))
    assert (gone(yard), set(yard.ledger.jobs(["a", "b"]))) == (0, {"a", "b"})


def test_a_job_on_which_one_depends_that_is_run_again_stays() -> None:
    yard = Yard()
    yard.worker("w")
    over(yard, "a")
    yard.turn(yard.known(submission(7, "b", depends_on=["a"])))
    yard.accept("b")
    yard.end("b")
    again = yard.requeueing("b")
    again.depends_on = ["a"]
    yard.turn(again, pruning("a"))
    assert (gone(yard), set(yard.ledger.jobs(["a", "b"]))) == (0, {"a", "b"})


def test_a_job_that_is_gone_counts_as_ended_for_whoever_depends_on_it() -> None:
    yard = Yard()
    yard.worker("w")
    for state, expected in (("succeeded", "assigned"), ("failed", "cancelled")):
        event = submission(7, f"after-{state}", depends_on=["old"])
        event.departed = {"old": DepartedRecord(id="old", digest="", state=state, at=0.0)}
        yard.turn(event)
        assert yard.state(f"after-{state}") == expected


def test_an_id_that_is_gone_is_taken_by_the_same_spec_and_by_no_other() -> None:
    yard = Yard()
    same, other = submission(7, "old"), submission(8, "old", name="another")
    for event in (same, other):
        event.departed = {"old": DepartedRecord(id="old", digest=digest_of(same.jobs[0].spec), state="failed", at=0.0)}
    yard.turn(same, other)
    assert [refused.ref for refused in yard.of(Refuse)] == [8]
    assert not yard.fleet.jobs


def test_thousands_of_jobs_are_entered_in_portions_and_come_out_the_same() -> None:
    at_once, paused = Yard(checked=False), Yard(checked=False)
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
