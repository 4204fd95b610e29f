"""Jobs that wait for other jobs."""

from tests.core.yard import Yard, submission

from ostler.core.effects import Refuse


def refusal(yard: Yard) -> str:
    return "; ".join(str(effect.error) for effect in yard.heard if isinstance(effect, Refuse))


def test_a_job_waits_until_those_it_depends_on_have_succeeded() -> None:
    yard = Yard()
    yard.worker("box")
    first, second = yard.submit("first"), yard.submit("second")
    last = yard.submit("last", depends_on=[first, second])
    assert yard.where(last) == ""
    assert yard.why(last).summary == "waits for first, second to succeed"
    yard.end(first)
    assert yard.where(last) == ""
    yard.end(second)
    assert yard.where(last) == "box"


def test_a_job_is_cancelled_with_the_reason_when_what_it_waits_for_cannot_succeed_any_more() -> None:
    yard = Yard()
    yard.worker("box")
    first = yard.submit("first")
    second = yard.submit("second", depends_on=[first])
    third = yard.submit("third", depends_on=[second])
    yard.end(first, "failed")
    assert yard.states(second, third) == ["cancelled", "cancelled"]
    assert yard.job(second).reason == "depends on first, which is failed"
    assert yard.job(third).reason == "depends on second, which is cancelled"


def test_what_has_succeeded_already_is_not_waited_for_and_what_has_failed_cancels_at_once() -> None:
    yard = Yard()
    yard.worker("box")
    good, bad = yard.submit("good"), yard.submit("bad")
    yard.end(good)
    yard.end(bad, "failed")
    assert yard.where(yard.submit("after-good", depends_on=[good])) == "box"
    assert yard.state(yard.submit("after-bad", depends_on=[bad])) == "cancelled"


def test_an_unknown_job_is_refused_and_nothing_is_submitted() -> None:
    yard = Yard()
    yard.submit("job", depends_on=["nobody"])
    assert "there is no job nobody" in refusal(yard)
    assert yard.ledger.jobs(["job"]) == {}


def test_jobs_that_wait_for_each_other_are_refused_all() -> None:
    yard = Yard()
    both = submission(1, "a", depends_on=["b"])
    both.jobs += submission(2, "b", depends_on=["c"]).jobs + submission(3, "c", depends_on=["a"]).jobs
    yard.turn(both)
    assert "wait for each other: a → b → c → a" in refusal(yard)
    assert yard.fleet.jobs == {}


def test_what_waits_for_another_job_still_does_after_a_restart() -> None:
    yard = Yard()
    first = yard.submit("first")
    last = yard.submit("last", depends_on=[first])
    yard.restart()
    yard.worker("box")
    assert yard.where(last) == ""
    yard.end(first)
    assert yard.where(last) == "box"


def test_the_scheduling_timeout_counts_from_when_it_waits_for_room() -> None:
    yard = Yard()
    yard.worker("box", cores=1)
    first = yard.submit("first", min_cpu_cores=1)
    last = yard.submit("last", depends_on=[first], min_cpu_cores=8, scheduling_timeout_seconds=60)
    yard.start(first)
    yard.wait(300)
    assert yard.state(last) == "pending"
    yard.end(first)
    yard.wait(61)
    assert yard.state(last) == "unschedulable"
