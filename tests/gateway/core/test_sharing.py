"""The time of a process is shared among the requests that it has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostler.gateway.sharing import Sharing

Visit = tuple[str, float, float]
"""A request of a user, from one moment to another."""
visits = st.tuples(st.sampled_from(["ann", "bob", "cleo"]), st.floats(0, 1e5), st.floats(0, 1e5)).map(
    lambda drawn: (drawn[0], min(drawn[1:]), max(drawn[1:]))
)


def shared(requests: list[Visit], reports: list[float]) -> dict[str, float]:
    """What each user pays for these; whoever is there at a report pays a part then."""
    sharing, total = Sharing(), dict[str, float]()
    there: dict[int, float] = {}
    events = [(begin, 0, number) for number, (_, begin, _) in enumerate(requests)]
    events += [(end, 2, number) for number, (_, _, end) in enumerate(requests)] + [(at, 1, 0) for at in reports]
    for at, kind, number in sorted(events):
        if kind == 0:
            there[number] = sharing.enter(at)
        elif kind == 2:
            sharing.leave(requests[number][0], there.pop(number), at)
        else:
            for one in there:
                sharing.leave(requests[one][0], there[one], at)
                there[one] = sharing.enter(at)
            for user, seconds in sharing.take().items():
                total[user] = total.get(user, 0.0) + seconds
    for user, seconds in sharing.take().items():
        total[user] = total.get(user, 0.0) + seconds
    return total


def worked(requests: list[Visit]) -> float:
    """For how long at least one of them was there."""
    busy, until = 0.0, 0.0
    for _, begin, end in sorted(requests, key=lambda one: one[1:]):
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return busy


@given(st.lists(visits, max_size=30), st.lists(st.floats(0, 1e5), max_size=5))
def test_the_sum_over_users_is_the_time_in_which_the_process_worked(
    requests: list[Visit], reports: list[float]
) -> None:
    assert sum(shared(requests, reports).values()) == pytest.approx(worked(requests), rel=1e-6, abs=1e-6)


@given(st.lists(visits, max_size=30), st.lists(st.floats(0, 1e5), max_size=5))
def test_reports_in_between_change_nothing(requests: list[Visit], reports: list[float]) -> None:
    with_reports, without = shared(requests, reports), shared(requests, [])
    for user in {*with_reports, *without}:
        assert with_reports.get(user, 0.0) == pytest.approx(without.get(user, 0.0), rel=1e-6, abs=1e-6)


def test_requests_at_the_same_time_pay_the_same_and_one_that_is_alone_pays_all() -> None:
    requests = [("ann", 0.0, 10.0), ("bob", 4.0, 10.0), ("bob", 4.0, 10.0)]
    assert shared(requests, []) == pytest.approx({"ann": 4.0 + 2.0, "bob": 2 * 2.0})
