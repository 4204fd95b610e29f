"""Of all sets that suffice, the cheapest is found: compared with looking at every set."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from ostler.core.queueing.cheapest import EXACT_UP_TO, cheapest_set

Item = tuple[int, int, int]
"""Its cost, and how much it frees of two things."""
items = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4), st.integers(0, 4)), max_size=7)


def frees(some: list[Item], first: int, second: int) -> bool:
    return sum(one[1] for one in some) >= first and sum(one[2] for one in some) >= second


def cost(item: Item) -> float:
    return float(item[0])


@given(items, st.integers(0, 10), st.integers(0, 10))
def test_no_set_that_suffices_is_cheaper(candidates: list[Item], first: int, second: int) -> None:
    found = cheapest_set(candidates, cost, lambda some: frees(some, first, second))
    every = [list(some) for size in range(len(candidates) + 1) for some in combinations(candidates, size)]
    enough = [sum(map(cost, some)) for some in every if frees(some, first, second)]
    if not candidates or not enough:
        assert found is None
    else:
        assert found is not None
        assert frees(found, first, second)
        assert sum(map(cost, found)) == min(enough)


@given(items, st.integers(1, 10), st.integers(1, 10))
def test_nobody_is_taken_who_is_not_needed(candidates: list[Item], first: int, second: int) -> None:
    found = cheapest_set(candidates, cost, lambda some: frees(some, first, second)) or []
    for place in range(len(found)):
        assert not frees(found[:place] + found[place + 1 :], first, second)


def test_among_too_many_a_set_is_found_that_suffices_and_wastes_nobody() -> None:
    many = [(number % 7, 1, number % 2) for number in range(3 * EXACT_UP_TO)]
    found = cheapest_set(many, cost, lambda some: frees(some, 5, 3))
    assert found is not None and len(found) == 5
    assert frees(found, 5, 3)
