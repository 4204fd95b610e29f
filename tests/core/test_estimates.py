"""Estimates: ordered bands, never above the budget, the later the longer it has run; and true as often as they say."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.core_fleet import CoreFleet

from ostler.core.fleet import Job
from ostler.core.learning import estimates
from ostler.core.learning.estimates import Estimate, inside
from ostler.core.learning.run import Run

RUNS = st.lists(st.tuples(st.floats(0.01, 1e6), st.sampled_from(["succeeded", "failed", "cut"])), max_size=25)


def learnt(
    runs: list[tuple[float, str]], hours: float = 0.0, user: str = "ann", kind: str = ""
) -> tuple[CoreFleet, Job]:
    """A job of a kind of which these runs are known, on a worker that has just begun it."""
    core = CoreFleet(checked=False)
    core.worker("w")
    core.submit("j", name=kind, max_runtime_hours=hours)
    core.start("j")
    job = core.fleet.jobs["j"]
    for ran_s, outcome in runs:
        core.fleet.kinds.learn(job.kind, user, Run(ran_s, outcome, limit_s=hours * 3600))
    return core, job


@given(RUNS, st.sampled_from([0.0, 0.001, 1.0, 168.0]), st.lists(st.floats(0, 2e5), max_size=5))
def test_a_band_is_ordered_within_the_budget_and_moves_on_with_the_time(
    runs: list[tuple[float, str]], hours: float, passed: list[float]
) -> None:
    core, job = learnt(runs, hours)
    attempt = core.holder("j")
    assert attempt is not None and attempt.started is not None
    whole = estimates.run_time(core.fleet, job)
    assert 0 < whole.low_s <= whole.likely_s <= whole.high_s <= job.terms.max_runtime_s
    last = Estimate(0.0, 0.0, 0.0)
    for ran_s in sorted(passed):
        left = estimates.left(core.fleet, attempt, attempt.started + ran_s)
        assert 0 <= left.low_s <= left.likely_s <= left.high_s
        assert left.high_s <= max(0.0, job.terms.max_runtime_s - ran_s) + 1e-6
        ends = Estimate(*(ran_s + part for part in left))
        assert all(later >= earlier - 1e-6 for later, earlier in zip(ends, last, strict=True))
        last = ends


def test_nothing_known_gives_a_wide_band_and_a_limit_narrows_it() -> None:
    core, job = learnt([])
    unknown = estimates.run_time(core.fleet, job)
    assert unknown.low_s < 60 < unknown.likely_s < 3600 < unknown.high_s
    core, job = learnt([], hours=1.0)
    limited = estimates.run_time(core.fleet, job)
    assert 100 < limited.low_s < limited.likely_s < limited.high_s == 3600


def test_a_new_kind_is_judged_by_what_its_user_has_run_and_else_by_all() -> None:
    core, job = learnt([])
    for _ in range(10):
        core.fleet.kinds.learn(77, "bob", Run(10.0, "succeeded"))
    assert estimates.run_time(core.fleet, job).likely_s == pytest.approx(10, rel=0.1)
    for _ in range(10):
        core.fleet.kinds.learn(78, "ann", Run(1000.0, "succeeded"))
    assert estimates.run_time(core.fleet, job).likely_s == pytest.approx(1000, rel=0.1)


def test_a_new_kind_with_a_limit_takes_the_part_of_it_that_others_have_taken() -> None:
    core, job = learnt([], hours=10.0)
    for _ in range(20):
        core.fleet.kinds.learn(77, "ann", Run(360.0, "succeeded", limit_s=3600.0))
    assert estimates.run_time(core.fleet, job).likely_s == pytest.approx(3600, rel=0.1)


def test_failures_are_not_taken_for_short_runs_unless_there_is_nothing_else() -> None:
    core, job = learnt([(1000.0, "succeeded")] * 5 + [(2.0, "failed")] * 20)
    assert estimates.run_time(core.fleet, job).likely_s > 800
    core, job = learnt([(2.0, "failed")] * 20)
    assert estimates.run_time(core.fleet, job).likely_s < 5


def test_what_it_surely_ends_within_is_the_users_limit_or_what_its_kind_took_or_its_budget() -> None:
    core, job = learnt([(100.0, "succeeded")] * 10, hours=2.0)
    assert estimates.surely_ends(core.fleet, job) == 7200
    core, job = learnt([(100.0, "succeeded")] * 10)
    assert 100 < estimates.surely_ends(core.fleet, job) < 200
    core, job = learnt([(100.0, "succeeded")] * 2)
    assert estimates.surely_ends(core.fleet, job) == job.terms.max_runtime_s == 24 * 3600


def test_a_service_is_not_expected_to_end() -> None:
    core = CoreFleet()
    core.worker("w", service_slots=1)
    core.submit("s", type="service")
    job = core.fleet.jobs["s"]
    assert estimates.surely_ends(core.fleet, job) == math.inf
    assert estimates.run_time(core.fleet, job) == Estimate(math.inf, math.inf, math.inf)


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.2])
@pytest.mark.parametrize("runs", [1, 2, 5, 40])
def test_four_of_five_truths_fall_into_the_band_however_few_runs_are_known(runs: int, sigma: float) -> None:
    """Where little is known and runs differ little, the band is wider than need be; and one run does not show how much
    they differ."""
    rng = random.Random(runs)
    told = []
    for _ in range(150):
        middle = rng.lognormvariate(6, 2)
        core, job = _known([middle * rng.lognormvariate(0, sigma) for _ in range(runs)])
        told.append((estimates.run_time(core.fleet, job), middle * rng.lognormvariate(0, sigma)))
    most = 1.0 if sigma < 0.5 or runs < 5 else 0.92
    least = 0.3 if runs == 1 and sigma > 1 else 0.68
    assert least <= inside(told) <= most


def test_what_is_left_is_as_true_as_the_whole() -> None:
    rng = random.Random(3)
    told = []
    for _ in range(200):
        core, job = _known([rng.lognormvariate(6, 0.6) for _ in range(30)])
        truth = rng.lognormvariate(6, 0.6)
        ran_s = truth * rng.random()
        low, high = (estimates.run_s(core.fleet, job, part, ran_s) for part in (estimates.LOW, estimates.HIGH))
        told.append((Estimate(low, low, high), truth))
    assert 0.68 <= inside(told) <= 0.92


def _known(runs: list[float]) -> tuple[CoreFleet, Job]:
    core = CoreFleet(checked=False)
    core.submit("j", max_runtime_hours=0)
    job = core.fleet.jobs["j"]
    for ran_s in runs:
        core.fleet.kinds.learn(job.kind, "ann", Run(ran_s, "succeeded"))
    return core, job
