"""Secrets over HTTP: set, listed by name, deleted; never read."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ostler.domain.errors import BadInput, NotAllowed
from ostler.domain.records import Changes
from ostler.domain.secrets import FLEET, MAX_BYTES
from ostler.hub.access import Caller
from ostler.hub.api.routes import caller_of, json_response, read_body
from ostler.hub.documents import timestamp
from ostler.hub.loop import Loop
from ostler.hub.secrets import Secrets, Shown


class SecretsApi:
    def __init__(self, loop: Loop, secrets: Secrets) -> None:
        self._loop = loop
        self._secrets = secrets

    async def listing(self, request: Request) -> Response:
        caller = caller_of(request)
        users = None if caller.role == "operator" else (caller.user, FLEET)
        return json_response({"secrets": [_document(one) for one in self._secrets.shown(users)]})

    async def put(self, request: Request) -> Response:
        caller, owner, name = caller_of(request), _owner(request), request.path_params["name"]
        value = await read_body(request, MAX_BYTES)
        row, sealed = self._secrets.sealed(owner, name, value, caller.user)
        await self._loop.commit(Changes(kept=[row]))
        self._secrets.know(owner, name, sealed)
        shown = Shown(name=name, user=owner, fleet=owner == FLEET, at=sealed.at, by=sealed.by)
        return json_response(_document(shown))

    async def delete(self, request: Request) -> Response:
        owner, name = _owner(request), request.path_params["name"]
        await self._loop.commit(Changes(kept=[self._secrets.removal(owner, name)]))
        self._secrets.forget(owner, name)
        return json_response({"name": name, "user": owner, "fleet": owner == FLEET})


def _owner(request: Request) -> str:
    """Whose it is to be: the caller's own, unless an operator says otherwise."""
    caller, query = caller_of(request), request.query_params
    user, fleet = query.get("user", ""), query.get("fleet", "") in ("1", "true", "yes")
    if user and fleet:
        raise BadInput("a secret is one user's or everybody's: give user or fleet", [("fleet", "and a user")])
    if (fleet or user not in ("", caller.user)) and not _may_for_others(caller):
        raise NotAllowed("only an operator may change secrets of others, or everybody's")
    return FLEET if fleet else user or caller.user


def _may_for_others(caller: Caller) -> bool:
    return caller.role == "operator"


def _document(one: Shown) -> dict[str, Any]:
    return {**msgspec.to_builtins(one), "at": timestamp(one.at)}
