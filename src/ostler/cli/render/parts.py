"""The pieces that every screen is made of."""

from collections.abc import Iterable
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ostler.cli.render.words import STATE_SIGNS, STATE_STYLES, clean


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
