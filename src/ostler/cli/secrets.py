"""Secrets that jobs are given: set from a file or standard input, listed by name, deleted. Nobody reads them back."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ostler.cli import exits
from ostler.cli.options import Access, Json
from ostler.cli.render.terminal import show, show_json
from ostler.cli.session import connect
from ostler.domain.errors import BadInput

Name = Annotated[str, typer.Argument(metavar="NAME", help="The secret's name: letters, digits, '_', '.' and '-'.")]
Owner = Annotated[str | None, typer.Option("--user", metavar="USER", help="Whose it is (operators only).")]
Fleet = Annotated[bool, typer.Option("--fleet", help="Everybody's jobs may have it (operators only).")]


def set_secret(
    name: Name,
    access: Access,
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE", help="Take it from this file.")] = None,
    user: Owner = None,
    fleet: Fleet = False,
    json: Json = False,
) -> int:
    """Set a secret to what comes on standard input, or is in a file. It is never on a command line."""
    value = _typed(name) if file is None else file.read_bytes()
    if not value:
        raise BadInput("there is nothing to keep: give it on standard input, or by --file", [("--file", "is empty")])
    with connect(access) as hub:
        found = hub.set_secret(name, value, user=user, fleet=fleet)
    if json:
        show_json(found)
    else:
        print(f"{name} is set for {'everybody' if fleet else found['user']}")
    return exits.DONE


def _typed(name: str) -> bytes:
    if not sys.stdin.isatty():
        return sys.stdin.buffer.read().removesuffix(b"\n")
    import getpass

    return getpass.getpass(f"{name}: ").encode()


def list_secrets(access: Access, json: Json = False) -> int:
    """List your secrets and everybody's, without what is in them."""
    with connect(access) as hub:
        found = hub.secrets()
    if json:
        show_json({"secrets": found})
        return exits.DONE
    from ostler.cli.render.audit import secret_table

    show(secret_table(found))
    return exits.DONE


def delete(name: Name, access: Access, user: Owner = None, fleet: Fleet = False) -> int:
    """Delete a secret. Tasks that run keep what they were given; those that start without it fail."""
    with connect(access) as hub:
        hub.delete_secret(name, user=user, fleet=fleet)
    print(f"deleted {name}")
    return exits.DONE
