"""What is seen of an amount, and the curve that follows: ordered, robust, forgetting, honest about few runs."""

import random
from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostler.core.learning.counting import HALF_LIFE_RUNS, MAX_BUCKETS, SMALLEST, add, count_anew
from ostler.core.learning.curve import Curve
from ostler.core.learning.digest import Digest

AMOUNTS = st.lists(st.floats(0.01, 1e7), min_size=1, max_size=60)


def seen(amounts: list[float], cut: list[float] | None = None) -> Digest:
    digest = Digest()
    for amount in amounts:
        add(digest, amount)
    for amount in cut or ():
        add(digest, amount, cut=True)
    return digest


def curve(digest: Digest) -> Curve:
    return Curve.of(digest.weights(), digest.weights(cut=True))


@given(AMOUNTS, st.lists(st.floats(0.01, 1e7), max_size=20), st.floats(0.01, 0.98), st.floats(0.01, 0.99))
def test_quantiles_are_ordered_and_grow_with_what_has_passed(
    amounts: list[float], cut: list[float], low: float, high: float
) -> None:
    known = curve(seen(amounts, cut))
    low, high = sorted((low, high))
    assert 0 < known.quantile(low) <= known.quantile(high)
    last = 0.0
    for passed in (0.0, 0.1, 1.0, 10.0, 1e3, 1e5, 1e8):
        ends = known.quantile(low, passed)
        assert ends >= passed
        assert ends >= last
        last = ends


@given(AMOUNTS, st.floats(0.05, 0.95))
def test_a_quantile_is_where_the_curve_says(amounts: list[float], part: float) -> None:
    known = curve(seen(amounts))
    where = known.quantile(part)
    assert where < SMALLEST or known.above(where) == pytest.approx(1 - part, abs=1e-6)


def test_the_middle_of_many_runs_is_their_middle() -> None:
    rng = random.Random(7)
    known = curve(seen([rng.lognormvariate(log(100), 0.3) for _ in range(400)]))
    assert known.quantile(0.5) == pytest.approx(100, rel=0.15)
    assert known.quantile(0.9) == pytest.approx(100 * exp(0.3 * 1.2816), rel=0.2)


def test_one_outlier_among_many_moves_nothing() -> None:
    steady = curve(seen([60.0] * 40))
    with_one = curve(seen([60.0] * 20 + [1e6] + [60.0] * 19))
    assert with_one.quantile(0.5) == pytest.approx(steady.quantile(0.5), rel=0.05)
    assert with_one.quantile(0.9) < 100


def test_what_was_long_ago_is_forgotten() -> None:
    changed = curve(seen([10.0] * 200 + [1000.0] * (4 * HALF_LIFE_RUNS)))
    assert changed.quantile(0.1) > 500


def test_few_runs_give_a_wide_band_and_many_a_narrow_one() -> None:
    widths = [curve(seen([100.0] * runs)) for runs in (1, 3, 30)]
    bands = [known.quantile(0.9) / known.quantile(0.1) for known in widths]
    assert bands[0] > 4 > 3 > bands[1] > 1.5 > bands[2]


def test_what_was_cut_short_counts_as_longer() -> None:
    """Twenty runs of a minute, and twenty that were stopped after two: half of all take longer than that."""
    without, with_cut = curve(seen([60.0] * 20)), curve(seen([60.0] * 20, [120.0] * 20))
    assert without.quantile(0.7) < 80
    assert with_cut.quantile(0.7) > 120


def test_beyond_all_that_was_seen_it_goes_on_for_about_as_long_again() -> None:
    known = curve(seen([60.0] * 20))
    assert known.quantile(0.5, 6000.0) == pytest.approx(12_000, rel=0.01)


@given(st.lists(st.floats(1e-9, 1e15), max_size=300))
def test_it_stays_small_whatever_comes(amounts: list[float]) -> None:
    digest = seen(amounts)
    assert len(digest.seen) <= MAX_BUCKETS
    assert digest.runs() <= 1 / (1 - 2 ** (-1 / HALF_LIFE_RUNS)) + 1


def test_counting_anew_changes_nothing_that_is_seen() -> None:
    digest = seen([50.0, 60.0, 200.0] * 333)
    before = curve(digest).quantile(0.5), curve(digest).quantile(0.9)
    count_anew(digest)
    assert (curve(digest).quantile(0.5), curve(digest).quantile(0.9)) == pytest.approx(before, rel=0.01)


def test_a_high_amount_is_one_that_nearly_all_kept_within() -> None:
    digest = seen([1000.0] * 30 + [4000.0] * 3)
    assert 4000 <= digest.high(0.95) < 4400
    assert Digest().high(0.95) == 0
    assert seen([], [900.0]).high(0.95) == 0  # of one that was cut short nobody knows
