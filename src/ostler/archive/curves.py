"""Numbers that a task told one after the other, as curves: the lines of its metrics.jsonl or its log that are JSON."""

import io
from array import array
from collections.abc import Iterable
from typing import IO, NamedTuple

from ostler.archive.errors import BadArchive
from ostler.archive.metrics import MOST_LINE_BYTES, MOST_NAMES, content_of, is_name, numbers_in

ALONG = ("step", "global_step", "epoch", "iteration", "iter", "batch")
"""What a curve goes along, where a task tells it; else its lines are counted."""
MOST_POINTS = 500

Points = list[tuple[float, float]]


class Curves(NamedTuple):
    along: str
    points: dict[str, Points]


def curves_of(bundle: IO[bytes]) -> Curves:
    """Those in the metrics.jsonl of an artifact; none of one that cannot be read, or has no such file."""
    try:
        return curves_in(io.BytesIO(content_of(bundle)))
    except (OSError, ValueError, OverflowError, BadArchive):
        return Curves("", {})


def curves_in(lines: Iterable[bytes]) -> Curves:
    told: dict[str, Told] = {}
    number = 0
    for line in lines:
        found = dict(numbers_in(line)) if len(line) <= MOST_LINE_BYTES else {}
        number += bool(found)
        for name, value in found.items():
            if name in told or name in ALONG or (len(told) < MOST_NAMES and is_name(name)):
                told.setdefault(name, Told()).add(number, value)
    along = next((name for name in ALONG if name in told and len(told[name].at) > 1), "")
    steps = told.pop(along, None)
    if steps is not None:
        told = {name: one.along(steps) for name, one in told.items()}
    return Curves(along, {name: one.points() for name, one in told.items() if one.at})


class Told:
    """One name's numbers, and the line of each. They may be millions, so none is an object of its own."""

    __slots__ = ("at", "values")

    def __init__(self) -> None:
        self.at, self.values = array("d"), array("d")

    def add(self, at: float, value: float) -> None:
        self.at.append(at)
        self.values.append(value)

    def along(self, steps: "Told") -> "Told":
        """The same, each at the step that its line tells; without those whose line tells none."""
        found, place = Told(), 0
        for line, value in zip(self.at, self.values, strict=True):
            while place < len(steps.at) and steps.at[place] < line:
                place += 1
            if place < len(steps.at) and steps.at[place] == line:
                found.add(steps.values[place], value)
        return found

    def points(self) -> Points:
        """So many at most, the last one always; in the order of the steps, which a task may begin anew."""
        every = -(-len(self.at) // MOST_POINTS)
        at, values = (numbers[-1::-every][::-1] for numbers in (self.at, self.values))
        return sorted(zip(at, values, strict=True), key=lambda point: point[0])
