"""Names that the hub gives."""

from itertools import pairwise

import pytest

from ostler.hub import ids

MANY = 3 * ids._AT_ONCE + 1


def test_jobs_and_attempts_never_share_a_name() -> None:
    assert len({ids.new_job_id() for _ in range(MANY)}) == MANY
    assert len({ids.new_attempt_id() for _ in range(MANY)}) == MANY


def test_attempts_are_named_in_the_order_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ids._unused.clear()
    named = []
    for second in range(3):
        monkeypatch.setattr(ids.time, "time", lambda at=1_800_000_000 + second: at)
        named += [ids.new_attempt_id() for _ in range(ids._AT_ONCE)]
    assert all(one < other for one, other in pairwise(named))


def test_what_is_not_time_in_the_name_of_an_attempt_is_random() -> None:
    rest = "".join(ids.new_attempt_id()[8:] for _ in range(MANY))
    assert len(rest) == 12 * MANY
    for digit in "0123456789abcdef":
        assert 0.8 < rest.count(digit) / (len(rest) / 16) < 1.25


def test_a_job_that_was_named_here_is_known_by_its_name() -> None:
    name = ids.new_job_id()
    now = ids.time.time()
    assert ids.given_here(name, now)
    assert not ids.given_here(name, now + 2 * ids.CLOCKS_APART_S)
    assert not ids.given_here("train", now)
