"""A few of the points at which `make crash` kills a hub and a worker, other ones each time."""

import random

import pytest
from tests.crash.campaign import run
from tests.crash.scenario import ROLES

FIRST, LAST = {"hub": 15, "worker": 5}, {"hub": 150, "worker": 70}
"""Between the first submit and the last."""


@pytest.mark.parametrize("role", ROLES)
def test_what_was_acknowledged_is_there_and_ends_once_when_a_process_is_killed_at_a_commit_or_a_send(role: str) -> None:
    at = random.randrange(FIRST[role], LAST[role])
    print(f"point {at}")
    died = run(role, at)
    assert not died.broken, f"killed {died.what}\n{died.broken}"
    assert died.what, "it came to its end before"
