"""A simulator that finds nothing proves nothing: defects are planted into the core, and each must be found.

That the same seeds find nothing without a planted bug is what test_campaign.py's witness shows.
"""

import pytest
from tests.sim.planted import PLANTS
from tests.sim.witness import run

SEEDS = 30


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(SEEDS):
        try:
            with monkeypatch.context() as patch:
                PLANTS[name](patch)
                run(seed)
        except Exception as error:
            print(f"{name}: caught by seed {seed}: {type(error).__name__}: {str(error)[:120]}")
            return
    pytest.fail(f"{name}: not caught by {SEEDS} seeds")
