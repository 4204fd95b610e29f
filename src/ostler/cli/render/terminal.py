"""Where output goes: tables and JSON to standard output, notes and progress to standard error."""

import codecs
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

UNLIMITED = 10_000
"""Columns, where nobody looks: a pipe gets every word, nothing is cut to fit."""

_PLAIN = {
    "×": "x",
    "·": "-",
    "…": "~",
    "–": "-",
    "≥": ">",
    "○": "o",
    "◐": "o",
    "●": "*",
    "◌": "?",
    "✓": "+",
    "✗": "x",
    "▪": "#",
    "▫": ".",
    "░": ".",
    "▒": ":",
    "▓": "+",
    "█": "#",
    "★": "@",
    "│": "|",
    "┤": "+",
    "└": "+",
    "─": "-",
    "┬": "+",
    "→": ">",
}


def prepare_streams() -> None:
    """A terminal that cannot show a sign gets the nearest plain one, never a UnicodeEncodeError."""
    codecs.register_error("ostler.plain", _nearest_sign)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="ostler.plain")


def _nearest_sign(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


def console(stream: TextIO | None = None) -> "Console":
    """For a terminal as wide as it is; colours only there, and not where NO_COLOR is set."""
    from rich.console import Console

    out = stream or sys.stdout
    width = None if out.isatty() or "COLUMNS" in os.environ else UNLIMITED
    return Console(file=out, width=width, highlight=False, markup=False, emoji=False)


def show(*parts: Any) -> None:
    """Print these, one below the other. Tables are filled up with blanks; a pipe gets them without."""
    out = console()
    with out.capture() as captured:
        for part in parts:
            out.print(part)
    text = captured.get()
    if not sys.stdout.isatty():
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    sys.stdout.write(text)


def show_json(document: Any) -> None:
    import json

    plain = "utf" not in (sys.stdout.encoding or "").lower()
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=plain) + "\n")


def note(text: str) -> None:
    """A remark for a person; standard output stays what a program may read."""
    print(text, file=sys.stderr, flush=True)


def is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False
