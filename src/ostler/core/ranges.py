"""Sets of task indices as sorted half-open ranges: an array of a million tasks that wait is one pair of numbers."""

from collections.abc import Collection, Iterator

Ranges = tuple[tuple[int, int], ...]
ONE: Ranges = ((0, 1),)
"""Shared by all single-task jobs."""


class RangeSet:
    """Membership in a few ranges, without spelling them out."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges

    def __contains__(self, index: int) -> bool:
        return any(low <= index < high for low, high in self._ranges)


def indices(ranges: Ranges) -> Iterator[int]:
    """All indices, lowest first."""
    return (index for low, high in ranges for index in range(low, high))


def merge(first: Ranges, second: Ranges) -> Ranges:
    """All indices of both, joined where they meet."""
    out: list[tuple[int, int]] = []
    for low, high in sorted((*first, *second)):
        if out and low <= out[-1][1]:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return tuple(out)


def with_index(ranges: Ranges, index: int) -> Ranges:
    if not ranges and index == 0:
        return ONE
    return merge(ranges, ((index, index + 1),))


def without_index(ranges: Ranges, index: int) -> Ranges:
    if ranges == ONE:
        return () if index == 0 else ranges
    out: list[tuple[int, int]] = []
    for low, high in ranges:
        if low <= index < high:
            out += [part for part in ((low, index), (index + 1, high)) if part[0] < part[1]]
        else:
            out.append((low, high))
    return tuple(out)


def split_ranges(ranges: Ranges, apart: Collection[int]) -> tuple[Ranges, Ranges]:
    """The ranges without these indices, and the part of them that these indices are."""
    rest = ranges
    for index in apart:
        rest = without_index(rest, index)
    inside = RangeSet(ranges)
    taken: Ranges = ()
    for index in sorted(apart):
        if index in inside:
            taken = with_index(taken, index)
    return rest, taken
