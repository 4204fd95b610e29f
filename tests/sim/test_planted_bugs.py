"""A simulator that finds nothing proves nothing: defects are planted into the core, and each must be found.

That the same seeds find nothing without a planted bug is what test_campaign.py's witness shows.
"""

from collections.abc import Callable, Iterable

import pytest
from tests.sim.planted import CLAIM_PLANTS, PLANTS, Plant
from tests.sim.witness import run, run_claims

SEEDS = range(30)
CLAIM_SEEDS = (0, 5, 7, 10, 26, *range(30))
"""First some that are known to find much, so that most defects are found at once."""


def must_be_caught(defect: Plant, witnessed: Callable[[int], object], seeds: Iterable[int]) -> None:
    for seed in seeds:
        try:
            with pytest.MonkeyPatch.context() as patch:
                defect(patch)
                witnessed(seed)
        except Exception as error:
            print(f"caught by seed {seed}: {type(error).__name__}: {str(error)[:120]}")
            return
    pytest.fail("not caught by any seed")


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    must_be_caught(PLANTS[name], run, SEEDS)


@pytest.mark.parametrize("name", CLAIM_PLANTS)
def test_a_planted_bug_among_claims_is_caught(name: str) -> None:
    must_be_caught(CLAIM_PLANTS[name], run_claims, CLAIM_SEEDS)
