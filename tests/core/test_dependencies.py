"""Jobs that wait for other jobs."""

from tests.core.core_fleet import CoreFleet, submission

from ostler.core.effects import Refuse


def refusal(core: CoreFleet) -> str:
    return "; ".join(str(effect.error) for effect in core.heard if isinstance(effect, Refuse))


def test_a_job_waits_until_those_it_depends_on_have_succeeded() -> None:
    core = CoreFleet()
    core.worker("box")
    first, second = core.submit("first"), core.submit("second")
    last = core.submit("last", depends_on=[first, second])
    assert core.where(last) == ""
    assert core.why(last).summary == "waits for first, second to succeed"
    core.end(first)
    assert core.where(last) == ""
    core.end(second)
    assert core.where(last) == "box"


def test_a_job_is_cancelled_with_the_reason_when_what_it_waits_for_cannot_succeed_any_more() -> None:
    core = CoreFleet()
    core.worker("box")
    first = core.submit("first")
    second = core.submit("second", depends_on=[first])
    third = core.submit("third", depends_on=[second])
    core.end(first, "failed")
    assert core.states(second, third) == ["cancelled", "cancelled"]
    assert core.job(second).reason == "depends on first, which is failed"
    assert core.job(third).reason == "depends on second, which is cancelled"


def test_what_has_succeeded_already_is_not_waited_for_and_what_has_failed_cancels_at_once() -> None:
    core = CoreFleet()
    core.worker("box")
    good, bad = core.submit("good"), core.submit("bad")
    core.end(good)
    core.end(bad, "failed")
    assert core.where(core.submit("after-good", depends_on=[good])) == "box"
    assert core.state(core.submit("after-bad", depends_on=[bad])) == "cancelled"


def test_an_unknown_job_is_refused_and_nothing_is_submitted() -> None:
    core = CoreFleet()
    core.submit("job", depends_on=["nobody"])
    assert "there is no job nobody" in refusal(core)
    assert core.ledger.jobs(["job"]) == {}


def test_jobs_that_wait_for_each_other_are_refused_all() -> None:
    core = CoreFleet()
    both = submission(1, "a", depends_on=["b"])
    both.jobs += submission(2, "b", depends_on=["c"]).jobs + submission(3, "c", depends_on=["a"]).jobs
    core.turn(both)
    assert "wait for each other: a → b → c → a" in refusal(core)
    assert core.fleet.jobs == {}


def test_what_waits_for_another_job_still_does_after_a_restart() -> None:
    core = CoreFleet()
    first = core.submit("first")
    last = core.submit("last", depends_on=[first])
    core.restart()
    core.worker("box")
    assert core.where(last) == ""
    core.end(first)
    assert core.where(last) == "box"


def test_the_scheduling_timeout_counts_from_when_it_waits_for_room() -> None:
    core = CoreFleet()
    core.worker("box", cores=1)
    first = core.submit("first", min_cpu_cores=1)
    last = core.submit("last", depends_on=[first], min_cpu_cores=8, scheduling_timeout_seconds=60)
    core.start(first)
    core.wait(300)
    assert core.state(last) == "pending"
    core.end(first)
    core.wait(61)
    assert core.state(last) == "unschedulable"
