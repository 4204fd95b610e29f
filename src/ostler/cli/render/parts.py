"""The pieces that every screen is made of."""

from collections.abc import Iterable
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ostler.cli.render.words import STATE_SIGNS, STATE_STYLES, clean
from ostler.domain import states


def state_text(state: str, extra: str = "") -> Text:
    """The state's sign and word, and what belongs to it."""
    text = Text(f"{STATE_SIGNS.get(state, '?')} {clean(state)}", STATE_STYLES.get(state, ""), no_wrap=True)
    return text.append(f" {extra}", "default") if extra else text


def facts(rows: Iterable[tuple[str, Any]]) -> Table:
    """Names and values, those without a value left out."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bright_black", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        if value not in (None, ""):
            grid.add_row(name, value if isinstance(value, Text) else Text(clean(value)))
    return grid


def indented(part: Any) -> Padding:
    return Padding(part, (0, 0, 0, 2), expand=False)


def heading(text: str) -> Text:
    return Text(clean(text), "bold")


def quiet(text: str) -> Text:
    return Text(clean(text), "bright_black")


def plain(value: Any) -> Text:
    return Text(clean(value))


def bar(used: int, total: int, most: int = 16) -> Text:
    """Small squares, the used ones filled: ▪▪▫▫. Left out where they would be too many to count."""
    if not 0 < total <= most:
        return Text("")
    return Text("▪" * used, "bold cyan") + Text("▫" * (total - used), "bright_black")


SEGMENTS = (
    ("█", "blue", ("completed", states.SUCCEEDED)),
    ("✗", "bold red", (states.FAILED, states.UNSCHEDULABLE)),
    ("–", "bright_black", (states.CANCELLED,)),
    ("▓", "bold cyan", (states.RUNNING, "claimed", states.ASSIGNED, states.ORPHANED)),
    ("░", "bright_black", (states.PENDING,)),
)


def progress_bar(counts: dict[str, int], width: int) -> Text:
    """██████✗▓▓░░░: each kind of state by its share, and none so small that it is not seen."""
    amounts = [sum(counts.get(state, 0) for state in kinds) for _, _, kinds in SEGMENTS]
    cells = _shares(amounts, width)
    parts = [Text(sign * number, style) for (sign, style, _), number in zip(SEGMENTS, cells, strict=True)]
    return Text("").join(parts)


def _shares(amounts: list[int], width: int) -> list[int]:
    total = sum(amounts)
    if not total:
        return [0 for _ in amounts]
    cells = [max(1, round(width * amount / total)) if amount else 0 for amount in amounts]
    while sum(cells) != width and max(cells) > 1:
        cells[cells.index(max(cells))] += 1 if sum(cells) < width else -1
    return cells
