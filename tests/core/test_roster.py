"""The first of a set of workers by their ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostler.core.roster import MOST_IN_A_BLOCK, Roster

NAMES = st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=3 * MOST_IN_A_BLOCK, unique=True)


@given(names=NAMES, data=st.data())
def test_the_first_of_any_set_is_found_in_whatever_order_they_came(names: list[str], data: st.DataObject) -> None:
    roster = Roster()
    for number, name in enumerate(names):
        roster.add(name, 1 << number)
    numbers = data.draw(st.sets(st.integers(0, len(names) - 1), min_size=1))
    assert roster.first(sum(1 << number for number in numbers)) == min(names[number] for number in numbers)


@pytest.mark.parametrize("step", [1, -1, 7])
def test_many_that_come_in_order_are_all_found(step: int) -> None:
    names = [f"{number:04d}" for number in range(1000)]
    coming = [names[step * number % 1000] for number in range(1000)]
    roster = Roster()
    for number, name in enumerate(coming):
        roster.add(name, 1 << number)
    left = (1 << 1000) - 1
    found = []
    while left:
        found.append(roster.first(left))
        left ^= 1 << coming.index(found[-1])
    assert found == names


def test_of_nobody_there_is_no_first() -> None:
    roster = Roster()
    roster.add("a", 1)
    with pytest.raises(KeyError):
        roster.first(0)
