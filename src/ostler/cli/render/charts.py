"""A metric over what was swept, drawn with characters: points, a shaded table, or bars."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ostler.cli.render.parts import quiet, state_text
from ostler.cli.render.words import clean, figure, setting

WIDEST = 76
HEIGHT = 10
MOST_BARS = 16
MOST_LABEL = 32
LOG_SPAN = 20
"""Values that lie further apart than this factor are drawn on a logarithmic axis."""
SHADES = (("░", "bright_black"), ("▒", "blue"), ("▓", "cyan"), ("█", "bold cyan"))
BEST = ("★", "bold cyan")


class Point(NamedTuple):
    name: str
    at: tuple[Any, ...]
    """The value of each swept parameter."""
    status: str
    value: float | None


class Axis(NamedTuple):
    low: float
    high: float
    is_log: bool

    @classmethod
    def over(cls, values: Sequence[float]) -> "Axis":
        low, high = min(values), max(values)
        return cls(low, high, low > 0 and high / low > LOG_SPAN)

    def place(self, value: float) -> float:
        """From 0 at the lowest value to 1 at the highest."""
        if self.low == self.high:
            return 0.5
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def middle(self) -> float:
        return math.sqrt(self.low * self.high) if self.is_log else (self.low + self.high) / 2


class Chart:
    """The kind of drawing that suits what was swept, as wide as there is room."""

    def __init__(self, swept: list[str], points: list[Point], metric: str, *, lower_is_better: bool) -> None:
        self._swept = [clean(name) for name in swept]
        self._points = points
        self._metric = clean(metric)
        self._lower = lower_is_better
        values = [point.value for point in points if point.value is not None]
        self._axis = Axis.over(values) if values else Axis(0.0, 0.0, False)
        self._best = self._axis.low if lower_is_better else self._axis.high

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, WIDEST)
        measured = [point for point in self._points if point.value is not None]
        if not measured:
            return
        if len(self._swept) == 1 and all(is_number(point.at[0]) for point in measured) and len(measured) > 1:
            yield from self._scatter(measured, width)
        elif len(self._swept) == 2 and (grid := self._heat(width)) is not None:
            yield from grid
        else:
            yield from self._bars(measured, width)

    # One number: points over it

    def _scatter(self, measured: list[Point], width: int) -> Iterator[Text]:
        across = Axis.over([float(point.at[0]) for point in measured])
        labels = {0: figure(self._axis.high), HEIGHT // 2: figure(self._axis.middle()), HEIGHT: figure(self._axis.low)}
        if self._axis.low == self._axis.high:
            labels = {HEIGHT // 2: figure(self._axis.low)}
        margin = max(len(label) for label in labels.values())
        columns = width - margin - 2
        canvas = self._drawn(measured, across, columns)
        yield quiet(self._metric + (" (log)" if self._axis.is_log else ""))
        for row in range(HEIGHT + 1):
            edge = quiet(f"{labels.get(row, ''):>{margin}}{'┤' if row in labels else '│'}")
            yield edge + Text("").join(Text(*canvas.get((row, column), (" ", ""))) for column in range(columns))
        yield from self._ticks(measured, across, columns, margin)

    def _drawn(self, measured: list[Point], across: Axis, columns: int) -> dict[tuple[int, int], tuple[str, str]]:
        """What stands in each cell: a line through the best of each column, then the points upon it."""
        spots = sorted(
            (round(across.place(float(point.at[0])) * (columns - 1)), self._row(point.value), point.value)
            for point in measured
            if point.value is not None
        )
        found: dict[tuple[int, int], tuple[str, str]] = {}
        line = {column: row for column, row, _ in sorted(spots, key=lambda spot: self._quality(spot[2]))}
        ends = sorted(line.items())
        for (left, start), (right, end) in pairwise(ends):
            for column in range(left + 1, right):
                row = round(start + (end - start) * (column - left) / (right - left))
                found[row, column] = ("·", "bright_black")
        for column, row, value in sorted(spots, key=lambda spot: self._quality(spot[2])):
            found[row, column] = BEST if value == self._best else ("●", "blue")
        return found

    def _row(self, value: float | None) -> int:
        return round((1 - self._axis.place(value or 0.0)) * HEIGHT)

    def _ticks(self, measured: list[Point], across: Axis, columns: int, margin: int) -> Iterator[Text]:
        """The values that were tried, at their places: the outermost first, the others where they fit between."""
        tried = sorted({float(point.at[0]): setting(point.at[0]) for point in measured}.items())
        rule, line = ["─"] * columns, [" "] * columns
        for value, label in [tried[0], tried[-1], *tried[1:-1]]:
            column = round(across.place(value) * (columns - 1))
            start = max(0, min(column - len(label) // 2, columns - len(label)))
            rule[column] = "┬"
            if not "".join(line[max(0, start - 1) : start + len(label) + 1]).strip():
                line[start : start + len(label)] = label
        yield quiet(" " * margin + "└" + "".join(rule))
        yield quiet(" " * (margin + 1) + "".join(line).rstrip())
        name = self._swept[0] + (" (log)" if across.is_log else "")
        yield quiet(" " * (margin + 1) + name.center(columns).rstrip())

    # Two parameters: a table of both

    def _heat(self, width: int) -> list[Text] | None:
        """None where most of the table would be empty, or where it does not fit."""
        rows, columns = (sorted({point.at[side] for point in self._points}, key=_order) for side in (0, 1))
        first, second = self._swept
        cells = {point.at: point for point in sorted(self._points, key=self._rank)}
        if len(columns) > len(rows):
            rows, columns, first, second = columns, rows, second, first
            cells = {(one, other): point for (other, one), point in cells.items()}
        if 2 * len(cells) < len(rows) * len(columns):
            return None
        texts = {place: self._cell(point) for place, point in cells.items()}
        margin = max(cell_len(first), *(cell_len(setting(row)) for row in rows)) + 3
        each = max([text.cell_len for text in texts.values()] + [cell_len(setting(column)) for column in columns]) + 2
        if margin + each * len(columns) > width:
            return None
        head = "".join(set_cell_size(setting(column), each) for column in columns)
        lines = [quiet(" " * margin + second), quiet(f"{set_cell_size(first, margin)}{head}".rstrip())]
        for row in rows:
            line = quiet(set_cell_size(setting(row), margin))
            for column in columns:
                text = texts.get((row, column), Text(""))
                line += text + Text(" " * (each - text.cell_len))
            lines.append(line)
        return [*lines, quiet(f"{self._metric}: the fuller the better, ★ the best")]

    def _cell(self, point: Point) -> Text:
        if point.value is None:
            return state_text(point.status)
        if point.value == self._best:
            return Text("██", SHADES[-1][1]) + Text(f" {figure(point.value)} ") + Text(*BEST)
        sign, style = SHADES[min(int(self._quality(point.value) * len(SHADES)), len(SHADES) - 1)]
        return Text(sign * 2, style) + Text(f" {figure(point.value)}")

    # Anything else: one bar each

    def _bars(self, measured: list[Point], width: int) -> Iterator[Text]:
        best_first = sorted(measured, key=self._rank, reverse=True)[:MOST_BARS]
        margin = min(MOST_LABEL, width // 2, max(cell_len(clean(point.name)) for point in best_first))
        values = [figure(point.value or 0.0) for point in best_first]
        longest = max(8, width - margin - max(len(value) for value in values) - 4)
        for point, value in zip(best_first, values, strict=True):
            is_best = point.value == self._best
            length = 1 + round(self._quality(point.value or 0.0) * (longest - 1))
            name = clean(point.name)
            shown = set_cell_size(name if cell_len(name) <= margin else set_cell_size(name, margin - 1) + "…", margin)
            yield Text(f"{shown}  ") + Text("█" * length, BEST[1] if is_best else "blue") + Text(f" {value}")
        left_out = f"; the best {MOST_BARS} of {len(measured)}" if len(measured) > MOST_BARS else ""
        yield quiet(f"{self._metric}: the longer the better, from the worst to the best{left_out}")

    def _rank(self, point: Point) -> tuple[bool, float]:
        """What has no value yet before all that have one, and the best last."""
        return (point.value is not None, 0.0 if point.value is None else self._quality(point.value))

    def _quality(self, value: float) -> float:
        place = self._axis.place(value)
        return 1 - place if self._lower else place


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _order(value: Any) -> tuple[bool, float, str]:
    return (not is_number(value), value if is_number(value) else 0.0, setting(value))
