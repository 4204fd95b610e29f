"""Of all sets that suffice, the one that costs least."""

import heapq
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

EXACT_UP_TO: Final = 12
"""Candidates among which the best set is found for certain; among more, a good one."""

T = TypeVar("T")


def cheapest_set(
    candidates: Sequence[T], cost: Callable[[T], float], suffices: Callable[[list[T]], bool]
) -> list[T] | None:
    """None: not even all of them do. Of equal costs the smaller set, then the candidates that come first. `suffices`
    may not turn false when there are more."""
    everything = list(candidates)
    if not everything or not suffices(everything):
        return None
    needed = {place for place in range(len(everything)) if not suffices(_without(everything, place))}
    rest = sorted((place for place in range(len(everything)) if place not in needed), key=lambda i: cost(everything[i]))

    def enough(chosen: Sequence[int]) -> bool:
        return suffices([everything[place] for place in sorted({*needed, *chosen})])

    if enough(()):
        found: list[int] = []
    elif len(rest) <= EXACT_UP_TO:
        found = _exact(rest, [cost(everything[place]) for place in rest], enough)
    else:
        found = _greedy(rest, enough)
    return [everything[place] for place in sorted({*needed, *found})]


def _without(everything: list[T], place: int) -> list[T]:
    return everything[:place] + everything[place + 1 :]


def _exact(rest: list[int], costs: list[float], enough: Callable[[Sequence[int]], bool]) -> list[int]:
    """Sets in the order of their cost, each made from a cheaper one; the first that suffices."""
    heap: list[tuple[float, int, tuple[int, ...]]] = [(costs[0], 1, (0,))]
    while True:
        spent, size, chosen = heapq.heappop(heap)
        places = [rest[position] for position in chosen]
        if enough(places):
            return _spare(places, enough)
        following = chosen[-1] + 1
        if following < len(rest):
            more = spent + costs[following]
            heapq.heappush(heap, (more, size + 1, (*chosen, following)))
            heapq.heappush(heap, (more - costs[chosen[-1]], size, (*chosen[:-1], following)))


def _greedy(rest: list[int], enough: Callable[[Sequence[int]], bool]) -> list[int]:
    chosen: list[int] = []
    for place in rest:
        chosen.append(place)
        if enough(chosen):
            break
    return _spare(chosen, enough)


def _spare(chosen: list[int], enough: Callable[[Sequence[int]], bool]) -> list[int]:
    """Without those that turn out not to be needed, the dearest first: what costs nothing is no reason to take it."""
    kept = list(chosen)
    for place in reversed(chosen):
        fewer = [one for one in kept if one != place]
        if enough(fewer):
            kept = fewer
    return kept
