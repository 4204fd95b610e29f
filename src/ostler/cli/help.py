"""Help as plain text in sections: quick to print, easy to search, and short enough to read."""

import re
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ostler.cli.options import HUB_PANEL

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
RANGE = re.compile(r"(; )?(\b[0-9]+<=)?x[<>]=[0-9]+")
"""The bounds of a number as typer writes them; whoever exceeds one is told."""
WHOLE_SENTENCE = 400
"""A list of commands is for choosing: a sentence that is cut in its midst says less than one of two lines."""


class Command(TyperCommand):
    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        _write_parameters(self, ctx, formatter)


class Group(TyperGroup):
    """A command with commands; both its options and those are listed by the panel they name."""

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        self.format_commands(ctx, formatter)
        _write_parameters(self, ctx, formatter)

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        panels: dict[str, list[tuple[str, str]]] = {}
        width = max((len(name) for name in self.commands), default=0)
        for name, command in self.commands.items():
            if not command.hidden:
                panel = getattr(command, "rich_help_panel", None) or "Commands"
                told = command.get_short_help_str(WHOLE_SENTENCE)
                panels.setdefault(panel, []).append((name.ljust(width), told))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


def _write_parameters(command: Any, ctx: typer.Context, formatter: Any) -> None:
    panels: dict[str, list[tuple[str, str]]] = {"Arguments": []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
            told = RANGE.sub("", record[1]).replace("  []", "")
            panels.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append((record[0], told))
    width = min(28, max((len(first) for rows in panels.values() for first, _ in rows), default=0))
    # What the command is about first; what all commands share last.
    for panel in sorted(panels, key=lambda panel: (panel in ("Options", HUB_PANEL), panel == HUB_PANEL)):
        if panels[panel]:
            with formatter.section(panel):
                formatter.write_dl([(first.ljust(width), told) for first, told in panels[panel]])
