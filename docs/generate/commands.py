"""The commands, from the tree that parses them."""

import re
from collections.abc import Iterator
from typing import Any

import typer
from docs.generate.markdown import code, page, table

from ostler.cli import exits
from ostler.cli.help import RANGE
from ostler.cli.main import app
from ostler.cli.options import HUB_PANEL
from ostler.domain import advice

PER_USER = re.compile(r"/(home|root|Users)/[^ \]]+")


def commands() -> str:
    root: Any = typer.main.get_command(app)
    context = typer.Context(root, info_name="ostler")
    parts = [_shared(root, context), _codes()]
    for panel, named in _by_panel(root).items():
        parts.append(f"## {panel}\n")
        for name, command in named:
            parts += _told(f"ostler {name}", command, typer.Context(command, info_name=name, parent=context))
    return page("Commands", *parts)


def _by_panel(root: Any) -> dict[str, list[tuple[str, Any]]]:
    panels: dict[str, list[tuple[str, Any]]] = {}
    for name, command in root.commands.items():
        if not command.hidden:
            panels.setdefault(getattr(command, "rich_help_panel", None) or "Others", []).append((name, command))
    return panels


def _shared(root: Any, context: typer.Context) -> str:
    rows = _rows(root, context, shared=True)
    return (
        "`ostler COMMAND --help` says the same in a terminal. Every command that talks to a hub takes these, before or after "
        "its name:\n\n" + table(("option", "meaning"), rows)
    )


def _codes() -> str:
    numbers = sorted(value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int))
    rows = [(code(number), advice.ALL[f"exit-{number}"].happened) for number in numbers]
    return "## Exit codes\n\n" + table(("code", "meaning"), rows)


def _told(path: str, command: Any, context: typer.Context) -> Iterator[str]:
    usage = context.get_usage().removeprefix("Usage: ").strip()
    about, _, example = (command.help or "").strip().partition("\n\n")
    yield f"### {path}\n\n{' '.join(about.split())}\n\n    {' '.join(usage.split())}\n"
    if example:
        yield (
            "For example:\n\n"
            + "\n".join(f"    {line.strip()}" for line in example.splitlines() if line.strip())
            + "\n"
        )
    rows = list(_rows(command, context))
    if rows:
        yield table(("argument or option", "meaning"), rows)
    for name, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from _told(f"{path} {name}", below, typer.Context(below, info_name=name, parent=context))


def _rows(command: Any, context: typer.Context, shared: bool = False) -> Iterator[tuple[str, str]]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        is_shared = getattr(parameter, "rich_help_panel", None) == HUB_PANEL or parameter.name == "help"
        if record is not None and is_shared is shared:
            told = RANGE.sub("", PER_USER.sub("…", record[1]))
            yield code(record[0]), " ".join(told.replace("[]", "").split())
