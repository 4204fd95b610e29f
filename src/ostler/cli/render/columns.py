"""A table that fits: columns that may be cut are, before any other loses a letter; the least needed go altogether."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from ostler.cli.render.words import clean

GAP = 2
LEAST_WRAPPED = 24
"""Narrower than this, what is left of a cell says nothing."""


class Columns:
    """One line to a row, no rules.

    Columns in `cut` give way where the terminal is too narrow, down to the width given there; those in `drop` are left
    out, in that order, where this is not enough. The one called `wrap` takes several lines instead of being cut.
    """

    def __init__(
        self,
        *names: str,
        cut: Mapping[str, int] | None = None,
        drop: Sequence[str] = (),
        wrap: str = "",
        right: Iterable[str] = (),
    ) -> None:
        self._names = list(names)
        self._least = dict(cut or {}) | ({wrap: LEAST_WRAPPED} if wrap else {})
        self._drop, self._wrap, self._right = drop, wrap, set(right)
        self._rows: list[list[Text]] = []

    def add(self, *cells: Text | str) -> None:
        self._rows.append([cell if isinstance(cell, Text) else Text(clean(cell)) for cell in cells])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        natural = {
            name: max([len(name), *(_width(row[position]) for row in self._rows)])
            for position, name in enumerate(self._names)
        }
        widths = fitted(natural, self._least, self._drop, options.max_width)
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bright_black", show_edge=False)
        for name in widths:
            wraps = name == self._wrap
            table.add_column(
                name.upper(),
                width=widths[name],
                no_wrap=not wraps,
                overflow="fold" if wraps else "ellipsis",
                justify="right" if name in self._right else "left",
            )
        for row in self._rows:
            table.add_row(*(cell for name, cell in zip(self._names, row, strict=True) if name in widths))
        yield table


def _width(cell: Text) -> int:
    return max((line.cell_len for line in cell.split("\n")), default=0)


def fitted(natural: dict[str, int], least: dict[str, int], drop: Sequence[str], room: int) -> dict[str, int]:
    """The width of each column that stays. `least` names those that may be cut, and how far."""
    widths = _shrunk(natural, least, room)
    for leaving in drop:
        if _needed(widths) <= room:
            break
        natural = {name: width for name, width in natural.items() if name != leaving}
        widths = _shrunk(natural, least, room)
    return widths


def _shrunk(natural: dict[str, int], least: dict[str, int], room: int) -> dict[str, int]:
    """Who has most to give gives first, letter by letter, until all fit or none can give more."""
    widths = dict(natural)
    while _needed(widths) > room:
        able = [name for name in widths if name in least and widths[name] > least[name]]
        if not able:
            break
        widths[max(able, key=lambda name: widths[name] - least[name])] -= 1
    return widths


def _needed(widths: dict[str, int]) -> int:
    return sum(widths.values()) + GAP * max(0, len(widths) - 1)
