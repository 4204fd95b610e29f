"""One run ahead: the real core, in virtual time."""

from collections.abc import Callable

import pytest
from tests.core.yard import Yard

from ostler.core.foresight import forecast
from ostler.core.foresight.forecast import Ahead, drawn, likely
from ostler.core.foresight.outlook import RUNS, Outlook, span
from ostler.core.foresight.whatif import Altered, Machine, Plan, apply
from ostler.domain.job import JobSpec
from ostler.domain.quota import Quota, Quotas
from ostler.domain.worker import Slots


def ahead_of(yard: Yard, draw: forecast.Draw = likely) -> Ahead:
    """To the end of what can be foreseen. The yard is given away."""
    ahead = Ahead(yard.fleet, yard.now, draw)
    while ahead.advance():
        pass
    return ahead


def takes(seconds: float) -> forecast.Draw:
    return lambda fleet, job, task, ran_s: max(seconds, ran_s)


def test_what_waits_begins_when_what_runs_has_ended() -> None:
    yard = Yard()
    yard.worker("box", gpus=1)
    running = yard.submit(gpu_count=1)
    yard.start(running)
    first, second = yard.submit(gpu_count=1), yard.submit(gpu_count=1)
    yard.wait(40)
    ahead = ahead_of(yard, takes(100))
    assert ahead.starts == {first: 100, second: 200}
    assert (ahead.ends[running], ahead.ends[first], ahead.ends[second]) == (100, 200, 300)


def test_what_depends_on_others_begins_after_them_and_an_array_ends_with_its_last_task() -> None:
    yard = Yard()
    yard.worker("box", gpus=2)
    array = yard.submit(gpu_count=1, array=5)
    yard.start(f"{array}.0", f"{array}.1")
    after = yard.submit(depends_on=[array])
    ahead = ahead_of(yard, takes(100))
    assert ahead.ends[array] == 300
    assert ahead.starts[after] == 300


def test_a_service_never_ends_and_what_waits_behind_it_never_begins() -> None:
    yard = Yard()
    yard.worker("box", gpus=1, service_slots=1)
    yard.start(yard.submit(type="service", gpu_count=1))
    waiting = yard.submit(gpu_count=1)
    assert waiting not in ahead_of(yard).starts


def test_a_preference_opens_when_its_grace_is_over() -> None:
    yard = Yard()
    yard.worker("box")
    job = yard.submit(prefer_cuda=True)
    assert ahead_of(yard).starts == {job: 300}


def test_an_urgent_job_begins_as_soon_as_a_preemptible_one_has_gone_and_that_one_begins_again() -> None:
    yard = Yard()
    yard.worker("box", gpus=1)
    weak = yard.submit(gpu_count=1, preemptible=True)
    yard.start(weak)
    urgent = yard.submit(gpu_count=1, priority=5)
    ahead = ahead_of(yard, takes(100))
    assert ahead.starts[urgent] < 10
    assert ahead.starts[weak] == ahead.starts[urgent] + 100


def test_what_an_absent_worker_had_runs_elsewhere_when_its_grace_is_over() -> None:
    yard = Yard()
    yard.worker("gone", gpus=1)
    job = yard.submit(gpu_count=1)
    yard.start(job)
    yard.worker("box", gpus=1)
    yard.leave("gone")
    assert ahead_of(yard).starts == {job: 30}


def test_a_quota_lets_the_next_begin_when_one_has_ended() -> None:
    yard = Yard()
    yard.worker("box")
    yard.fleet.set_quotas(Quotas(default=Quota(running_jobs=1)))
    first, second = yard.submit(), yard.submit()
    yard.start(first)
    assert ahead_of(yard, takes(100)).starts == {second: 100}


def test_a_machine_that_claims_takes_one_task_after_the_other() -> None:
    yard = Yard()
    yard.claim("puller")
    jobs = [yard.submit() for _ in range(3)]
    assert ahead_of(yard, takes(100)).starts == dict(zip(jobs, (0, 100, 200), strict=True))


def test_run_times_drawn_by_one_number_are_the_same_and_by_another_differ() -> None:
    def starts(draw: forecast.Draw) -> dict[str, float]:
        yard = Yard()
        yard.worker("box", gpus=1)
        yard.start(yard.submit(gpu_count=1))
        for _ in range(4):
            yard.submit(gpu_count=1)
        return ahead_of(yard, draw).starts

    assert starts(drawn(1)) == starts(drawn(1))
    assert starts(drawn(1)) != starts(drawn(2))


def test_nothing_is_learnt_from_what_is_only_foreseen() -> None:
    yard = Yard()
    yard.worker("box", gpus=1)
    job = yard.submit(gpu_count=1, name="train")
    kind = yard.fleet.jobs[job].kind
    ahead_of(yard)
    assert yard.fleet.kinds.of(kind) is None


def queue_behind(runs: int) -> Callable[[Plan], Ahead]:
    def ahead(plan: Plan) -> Ahead:
        yard = Yard()
        yard.worker("box", gpus=1)
        yard.worker("closed", gpus=1)
        yard.drain("closed")
        for number in range(runs):
            yard.submit(f"job-{number}", gpu_count=1)
        yard.start("job-0")
        apply(yard.fleet, plan, yard.now)
        return ahead_of(yard, takes(100))

    return ahead


REQUEST = JobSpec(command=["true"], gpu_count=1)


@pytest.mark.parametrize(
    ("plan", "starts"),
    [
        (Plan(), {"job-1": 100, "job-2": 200, "job-3": 300}),
        (Plan(resume=["closed"]), {"job-1": 0, "job-2": 100, "job-3": 100}),
        (Plan(drain=["box"]), {}),
        (Plan(remove=["box"], resume=["closed"]), {"job-0": 100, "job-1": 0, "job-2": 200, "job-3": 300}),
        (
            Plan(alter=[Altered("job-3", REQUEST.request(), JobSpec(command=["true"], priority=1).terms())]),
            {"job-1": 200, "job-2": 300, "job-3": 100},
        ),
        (
            Plan(alter=[Altered("job-3", JobSpec(command=["true"]).request(), REQUEST.terms())]),
            {"job-1": 100, "job-2": 200, "job-3": 0},
        ),
    ],
)
def test_a_plan_is_made_true_by_the_events_that_would_make_it_so(plan: Plan, starts: dict[str, float]) -> None:
    assert queue_behind(4)(plan).starts == starts


def test_machines_that_are_added_take_what_waits() -> None:
    yard = Yard()
    like = yard.worker("box", gpus=1).capabilities
    yard.drain("box")
    jobs = [yard.submit(gpu_count=1) for _ in range(3)]
    apply(yard.fleet, Plan(add=[Machine(name, like, Slots(batch_total=4)) for name in ("x", "y")]), yard.now)
    assert ahead_of(yard, takes(100)).starts == dict(zip(jobs, (0, 0, 100), strict=True))


def test_a_band_of_nine_runs_is_from_the_least_to_the_largest_and_fewer_give_a_wider_one() -> None:
    nine = span([100.0, *range(60, 150, 10)])
    assert (nine.low_s, nine.likely_s, nine.high_s) == (60, 100, 140)
    three = span([100.0, 90.0, 100.0, 110.0])
    assert three.high_s is not None
    assert three.low_s < 90 and three.high_s > 110
    alone = span([100.0])
    assert (alone.low_s, alone.likely_s, alone.high_s) == (40, 100, 250)


def test_what_begins_in_some_runs_only_has_no_latest_moment() -> None:
    some = span([10.0, 20.0, float("inf"), float("inf"), 30.0])
    assert (some.low_s, some.likely_s, some.high_s) == (10, 30, None)


def test_an_outlook_says_later_than_what_every_run_has_seen_so_far_and_never_when_all_are_over() -> None:
    outlook = Outlook()
    outlook.heard(0, 500.0, False, {"a": 100.0}, {})
    outlook.heard(1, 400.0, False, {}, {})
    assert outlook.expected("b").later_than_s == 400
    assert outlook.expected("a").start is not None and not outlook.knows("a")
    for number in range(RUNS + 1):
        outlook.heard(number, 900.0, True, {"a": 100.0}, {"a": 200.0})
    assert outlook.expected("b").never and outlook.knows("b")
    assert outlook.knows("a")
