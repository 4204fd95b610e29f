"""Tokens: who may talk to the hub, and how far that reaches."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostler.cli import exits
from ostler.cli.options import Access, Json
from ostler.cli.render.terminal import note, show, show_json
from ostler.cli.session import connect
from ostler.domain.errors import BadInput
from ostler.domain.quantities import parse_duration

if TYPE_CHECKING:
    from ostler.client.http import Hub

JOIN_ONCE = "join-once"
KEPT_WITHIN_S, LOOK_S = 10.0, 0.2


def create(
    access: Access,
    role: Annotated[
        str | None,
        typer.Option("--role", metavar="ROLE", help="viewer, user, operator, worker, or gateway (models only)."),
    ] = None,
    user: Annotated[
        str, typer.Option("--user", metavar="USER", help="Whose it is; the role's name if not given.")
    ] = "",
    join: Annotated[
        bool, typer.Option("--join", help="One that lets one machine in, once: for `ostler join` there.")
    ] = False,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="TIME", help="Good for this long, like 8h or 30d; with --join 15m."),
    ] = None,
    json: Json = False,
) -> int:
    """Make a token and print it. It is shown once and kept nowhere."""
    if join == (role is not None):
        raise BadInput("say what the token is for: --role viewer, user, operator, worker or gateway, or --join")
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
        _tell_how_to_join(url)
    return exits.DONE


def _tell_how_to_join(url: str) -> None:
    if url.startswith("http://"):
        note(f"this hub speaks no TLS, so only its own machine can join: ostler join {url} TOKEN")
        note("for other machines start it with: ostler up --host 0.0.0.0 --tls auto (docs/tls.md)")
    else:
        note(f"on that machine: ostler join {_from_elsewhere(url)} TOKEN")


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


def rotate(
    token_id: Annotated[
        str,
        typer.Argument(metavar="ID", help="As `ostler token list` shows it; or admin, or join: the hub's own files."),
    ],
    access: Access,
    json: Json = False,
) -> int:
    """Replace a token's secret; the old one is good for a minute more."""
    with connect(access) as hub:
        made = hub.rotate_token(token_id)
        if "token" not in made and "file" not in made:
            return _await_worker(hub, made, json)
    if json:
        show_json(made)
    elif "file" in made:
        print(f"replaced {token_id}: it is in {made['file']} of the hub's state folder, and nowhere else")
    else:
        print(made["token"])
        note(
            f"token {made['id']} of {made['user']}, role {made['role']}, in place of {token_id}; it is not shown again"
        )
    return exits.DONE


def _await_worker(hub: "Hub", made: dict[str, Any], json: bool) -> int:
    """It was given to the worker, which keeps it and says so; until then the old one is its token."""
    import time

    deadline = time.monotonic() + KEPT_WITHIN_S
    while not (kept := _is_kept(hub, made)) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    if json:
        show_json({**made, "kept": kept})
    elif kept:
        print(f"replaced: {made['user']} has token {made['id']} now")
    if not kept:
        note(f"{made['user']} has not said that it keeps its new token, so its old one stays good; is it an older one?")
    return exits.DONE if kept else exits.TIMED_OUT


def _is_kept(hub: "Hub", made: dict[str, Any]) -> bool:
    old = made["replaces"]["id"]
    return any(token["id"] == old and token["expires_at"] for token in hub.tokens())


def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as `ostler token list` shows it.")],
    access: Access,
) -> int:
    """Make a token useless, at once."""
    with connect(access) as hub:
        hub.revoke_token(token_id)
    print(f"revoked {token_id}")
    return exits.DONE
