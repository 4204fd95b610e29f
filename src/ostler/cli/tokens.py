"""Tokens: who may talk to the hub, and how far that reaches."""

from typing import Annotated

import typer

from ostler.cli import exits
from ostler.cli.options import Access, Json
from ostler.cli.render.terminal import note, show, show_json
from ostler.cli.session import connect
from ostler.domain.errors import BadInput
from ostler.domain.quantities import parse_duration

JOIN_ONCE = "join-once"


def create(
    access: Access,
    role: Annotated[
        str | None, typer.Option("--role", metavar="ROLE", help="viewer, user, operator, or worker.")
    ] = None,
    user: Annotated[
        str, typer.Option("--user", metavar="USER", help="Whose it is; the role's name if not given.")
    ] = "",
    join: Annotated[
        bool, typer.Option("--join", help="One that lets one machine in, once: for `ostler join` there.")
    ] = False,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="TIME", help="Good for this long, like 8h or 30d; with --join 24h."),
    ] = None,
    json: Json = False,
) -> int:
    """Make a token and print it. It is shown once and kept nowhere."""
    if join == (role is not None):
        raise BadInput("say what the token is for: --role viewer, user, operator or worker, or --join")
    expires_s = None if expires is None else _seconds(expires)
    with connect(access) as hub:
        made = hub.create_token(role or JOIN_ONCE, user, expires_s)
        url = hub.url
    if json:
        show_json(made)
        return exits.DONE
    print(made["token"])
    until = f", good until {made['expires_at']}" if made.get("expires_at") else ""
    whose = "for one machine" if join else f"of {made['user']}, role {made['role']}"
    note(f"token {made['id']} {whose}{until}; it is not shown again")
    if join:
        note(f"on that machine: ostler join {_from_elsewhere(url)} TOKEN")
    return exits.DONE


def _from_elsewhere(url: str) -> str:
    """This machine by its name, where the address leads back to whoever uses it."""
    import socket

    for here in ("//127.0.0.1", "//localhost", "//[::1]"):
        url = url.replace(here, f"//{socket.gethostname()}")
    return url


def _seconds(text: str) -> float:
    seconds = parse_duration(text, "--expires")
    if seconds <= 0:
        raise BadInput("--expires: a token that is good for no time opens nothing", [("--expires", "not over 0")])
    return seconds


def list_tokens(
    access: Access,
    every: Annotated[bool, typer.Option("--all", help="The revoked ones too.")] = False,
    json: Json = False,
) -> int:
    """List the tokens, without their secrets."""
    with connect(access) as hub:
        found = [token for token in hub.tokens() if every or not token.get("revoked_at")]
    if json:
        show_json({"tokens": found})
        return exits.DONE
    from ostler.cli.render.machines import token_table

    show(token_table(found))
    return exits.DONE


def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as `ostler token list` shows it.")],
    access: Access,
) -> int:
    """Make a token useless, at once."""
    with connect(access) as hub:
        hub.revoke_token(token_id)
    print(f"revoked {token_id}")
    return exits.DONE
