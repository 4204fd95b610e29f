"""Options that several commands share, each declared once."""

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

HUB_PANEL = "Which hub"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
Timeout = Annotated[
    str | None, typer.Option("--timeout", metavar="TIME", help="Give up (exit code 6) after: 90s, 5m, 2h.")
]
JobId = Annotated[
    str, typer.Argument(metavar="ID", help="A job's id, the beginning of one, or a name (its newest job).")
]
JobIds = Annotated[
    list[str], typer.Argument(metavar="ID...", help="Jobs: ids, the beginnings of ids, or names (the newest job each).")
]
Ca = Annotated[
    str | None,
    typer.Option(
        "--ca",
        metavar="FILE|sha256:…",
        help="By what a hub with TLS is known: a certificate, or its fingerprint; else $OSTLER_CA, else what the "
        "system trusts.",
        rich_help_panel=HUB_PANEL,
    ),
]
WorkerId = Annotated[str, typer.Argument(metavar="ID", help="A worker's id, as `ostler workers` shows it.")]


@dataclasses.dataclass(frozen=True)
class Access:
    """Which hub to talk to, and with which token. What is left out comes from the environment or the state folder."""

    hub: Annotated[
        str | None,
        typer.Option(
            "--hub",
            metavar="URL",
            help="The hub; else $OSTLER_HUB, else that of the state folder, else http://127.0.0.1:7600.",
            rich_help_panel=HUB_PANEL,
        ),
    ] = None
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="T|@FILE",
            help="Your token, or @ and a file that holds it; else $OSTLER_TOKEN, else the state folder's.",
            rich_help_panel=HUB_PANEL,
        ),
    ] = None
    ca: Ca = None
    state_dir: Annotated[
        Path | None,
        typer.Option(
            "--state-dir",
            metavar="DIR",
            help="The hub's state folder, on its own machine; else $OSTLER_STATE_DIR.",
            rich_help_panel=HUB_PANEL,
        ),
    ] = None

    def over(self, other: "Access") -> "Access":
        """These, and where one is not given, the other's."""
        return Access(
            self.hub or other.hub, self.token or other.token, self.ca or other.ca, self.state_dir or other.state_dir
        )


def spread(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command take dataclasses: each of their fields becomes an option of that command."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}

    def command(**values: Any) -> Any:
        context: typer.Context = values.pop("ctx")
        for name, kind in groups.items():
            group = kind(**{field.name: values.pop(field.name) for field in dataclasses.fields(kind)})
            # `ostler --hub URL jobs` means what `ostler jobs --hub URL` means.
            values[name] = group.over(context.obj) if isinstance(context.obj, Access) and kind is Access else group
        if "ctx" in hints:
            values["ctx"] = context
        return function(**values)

    parameters = {"ctx": _parameter("ctx", typer.Context)}

    def add(name: str, annotation: Any, default: Any) -> None:
        if name in parameters:
            raise TypeError(f"{function.__name__} has two parameters called {name}")
        parameters[name] = _parameter(name, annotation, default)

    for name, given in inspect.signature(function).parameters.items():
        if name in groups:
            kind = groups[name]
            types = get_type_hints(kind, include_extras=True)
            for field in dataclasses.fields(kind):
                add(field.name, types[field.name], field.default)
        elif name != "ctx":
            add(name, hints[name], given.default)
    command.__name__, command.__doc__, command.__module__ = function.__name__, function.__doc__, function.__module__
    command.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    command.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return command


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    if default is dataclasses.MISSING:
        default = inspect.Parameter.empty
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
