"""Tokens: who may talk to the hub, and how far that reaches."""

from typing import Annotated

import typer

from ostler.cli import exits
from ostler.cli.options import Access, Json
from ostler.cli.render.terminal import note, show, show_json
from ostler.cli.session import connect


def create(
    access: Access,
    role: Annotated[
        str, typer.Option("--role", metavar="ROLE", help="viewer, user, operator, or worker.", show_default=False)
    ],
    user: Annotated[
        str, typer.Option("--user", metavar="USER", help="Whose it is; the role's name if not given.")
    ] = "",
    json: Json = False,
) -> int:
    """Make a token and print it. It is shown once and kept nowhere."""
    with connect(access) as hub:
        made = hub.create_token(role, user)
    if json:
        show_json(made)
    else:
        print(made["token"])
        note(f"token {made['id']} of {made['user']}, role {made['role']}; it is not shown again")
    return exits.DONE


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
