"""One run ahead: the real core, in virtual time."""

from collections.abc import Callable

import pytest
from tests.core.core_fleet import CoreFleet

from ostler.core.foresight import forecast
from ostler.core.foresight.forecast import Ahead, drawn, likely
from ostler.core.foresight.outlook import RUNS, Outlook, span
from ostler.core.foresight.whatif import Altered, Machine, Plan, apply
from ostler.domain.job import JobSpec
from ostler.domain.quota import Quota, Quotas
from ostler.domain.worker import Slots


def ahead_of(core: CoreFleet, draw: forecast.Draw = likely) -> Ahead:
    """To the end of what can be foreseen. The fleet cannot be used after it."""
    ahead = Ahead(core.fleet, core.now, draw)
    while ahead.advance():
        pass
    return ahead


def takes(seconds: float) -> forecast.Draw:
    return lambda fleet, job, task, ran_s: max(seconds, ran_s)


def test_what_waits_begins_when_what_runs_has_ended() -> None:
    core = CoreFleet()
    core.worker("box", gpus=1)
    running = core.submit(gpu_count=1)
    core.start(running)
    first, second = core.submit(gpu_count=1), core.submit(gpu_count=1)
    core.wait(40)
    ahead = ahead_of(core, takes(100))
    assert ahead.starts == {first: 100, second: 200}
    assert (ahead.ends[running], ahead.ends[first], ahead.ends[second]) == (100, 200, 300)


def test_what_depends_on_others_begins_after_them_and_an_array_ends_with_its_last_task() -> None:
    core = CoreFleet()
    core.worker("box", gpus=2)
    array = core.submit(gpu_count=1, array=5)
    core.start(f"{array}.0", f"{array}.1")
    after = core.submit(depends_on=[array])
    ahead = ahead_of(core, takes(100))
    assert ahead.ends[array] == 300
    assert ahead.starts[after] == 300


def test_a_service_never_ends_and_what_waits_behind_it_never_begins() -> None:
    core = CoreFleet()
    core.worker("box", gpus=1, service_slots=1)
    core.start(core.submit(type="service", gpu_count=1))
    waiting = core.submit(gpu_count=1)
    assert waiting not in ahead_of(core).starts


def test_a_preference_opens_when_its_grace_is_over() -> None:
    core = CoreFleet()
    core.worker("box")
    job = core.submit(prefer_cuda=True)
    assert ahead_of(core).starts == {job: 300}


def test_an_urgent_job_begins_as_soon_as_a_preemptible_one_has_gone_and_that_one_begins_again() -> None:
    core = CoreFleet()
    core.worker("box", gpus=1)
    weak = core.submit(gpu_count=1, preemptible=True)
    core.start(weak)
    urgent = core.submit(gpu_count=1, priority=5)
    ahead = ahead_of(core, takes(100))
    assert ahead.starts[urgent] < 10
    assert ahead.starts[weak] == ahead.starts[urgent] + 100


def test_what_an_absent_worker_had_runs_elsewhere_when_its_grace_is_over() -> None:
    core = CoreFleet()
    core.worker("gone", gpus=1)
    job = core.submit(gpu_count=1)
    core.start(job)
    core.worker("box", gpus=1)
    core.leave("gone")
    assert ahead_of(core).starts == {job: 30}


def test_a_quota_lets_the_next_begin_when_one_has_ended() -> None:
    core = CoreFleet()
    core.worker("box")
    core.fleet.set_quotas(Quotas(default=Quota(running_jobs=1)))
    first, second = core.submit(), core.submit()
    core.start(first)
    assert ahead_of(core, takes(100)).starts == {second: 100}


def test_a_machine_that_claims_takes_one_task_after_the_other() -> None:
    core = CoreFleet()
    core.claim("puller")
    jobs = [core.submit() for _ in range(3)]
    assert ahead_of(core, takes(100)).starts == dict(zip(jobs, (0, 100, 200), strict=True))


def test_run_times_drawn_by_one_number_are_the_same_and_by_another_differ() -> None:
    def starts(draw: forecast.Draw) -> dict[str, float]:
        core = CoreFleet()
        core.worker("box", gpus=1)
        core.start(core.submit(gpu_count=1))
        for _ in range(4):
            core.submit(gpu_count=1)
        return ahead_of(core, draw).starts

    assert starts(drawn(1)) == starts(drawn(1))
    assert starts(drawn(1)) != starts(drawn(2))


def test_nothing_is_learnt_from_what_is_only_foreseen() -> None:
    core = CoreFleet()
    core.worker("box", gpus=1)
    job = core.submit(gpu_count=1, name="train")
    kind = core.fleet.jobs[job].kind
    ahead_of(core)
    assert core.fleet.kinds.of(kind) is None


def queue_behind(runs: int) -> Callable[[Plan], Ahead]:
    def ahead(plan: Plan) -> Ahead:
        core = CoreFleet()
        core.worker("box", gpus=1)
        core.worker("closed", gpus=1)
        core.drain("closed")
        for number in range(runs):
            core.submit(f"job-{number}", gpu_count=1)
        core.start("job-0")
        apply(core.fleet, plan, core.now)
        return ahead_of(core, takes(100))

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
    core = CoreFleet()
    like = core.worker("box", gpus=1).capabilities
    core.drain("box")
    jobs = [core.submit(gpu_count=1) for _ in range(3)]
    apply(core.fleet, Plan(add=[Machine(name, like, Slots(batch_total=4)) for name in ("x", "y")]), core.now)
    assert ahead_of(core, takes(100)).starts == dict(zip(jobs, (0, 0, 100), strict=True))


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
