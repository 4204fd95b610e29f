"""What every route shares: the role first, then the handler; errors in one shape."""

import logging
import math
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, WebSocketRoute
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketState

from ostler.domain import advice
from ostler.domain.errors import (
    BadInput,
    Hidden,
    NotAllowed,
    NotAuthenticated,
    NotLeading,
    OstlerError,
    TooLarge,
    TooOften,
    Unreadable,
)
from ostler.domain.finite import encode as _encode
from ostler.domain.hubs import LEADER_HEADER
from ostler.hub.access import Caller
from ostler.hub.api.depth import must_be_shallow
from ostler.hub.api.dispatch import Dispatch
from ostler.hub.permissions import ANY_METHOD, ANYONE, SOCKET, Roles, roles_of
from ostler.store.logs import WrongOffset

_log = logging.getLogger("ostler.hub")

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]
Refused = Callable[[Scope, OstlerError], None]
"""Hears of everybody who was not allowed to do something."""
REFUSALS = (NotAuthenticated, NotAllowed, Hidden)


class Route(msgspec.Struct, kw_only=True):
    method: str
    path: str
    handler: Handler
    summary: str
    body: Any = None
    """The type of the request's body, for the description."""
    answer: Any = None
    query: tuple[str, ...] = ()
    takes: str = ""
    """The media type of a body that is no JSON."""
    status: int = 200
    also: tuple[int, ...] = ()
    """Other statuses of a call that did what it was asked for."""

    @property
    def roles(self) -> Roles:
        return roles_of(self.method, self.path)


class SocketRoute(msgspec.Struct, kw_only=True):
    path: str
    endpoint: Callable[[WebSocket], Awaitable[None]]

    @property
    def roles(self) -> Roles:
        return roles_of(SOCKET, self.path)


def json_response(document: Any, status: int = 200) -> Response:
    return Response(_encode(document), status, media_type="application/json")


def problem(error: OstlerError) -> Response:
    document: dict[str, Any] = {
        "type": _type_of(error.title),
        "title": error.title,
        "status": error.status,
        "detail": str(error),
    }
    if isinstance(error, BadInput) and error.errors:
        document["errors"] = [{"where": where, "what": what} for where, what in error.errors]
    if isinstance(error, WrongOffset):
        document |= {"size": error.size} | ({"reached": error.reached} if error.reached != error.size else {})
    headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "5"}}.get(error.status)
    if isinstance(error, TooOften):
        headers = {"Retry-After": str(max(1, math.ceil(error.wait_s)))}
    if isinstance(error, NotLeading):
        document["leader"] = error.leader or None
        headers = {"Retry-After": "1", LEADER_HEADER: error.leader}
    return Response(_encode(document), error.status, headers, "application/problem+json")


def _type_of(title: str) -> str:
    """Where the error is explained, on this very hub; what HTTP itself explains has no address of ours."""
    name = advice.name_of(title)
    return f"{advice.PATH}{name}" if name in advice.ALL else "about:blank"


def caller_of(request: Request) -> Caller:
    caller: Caller = request.scope["ostler.caller"]
    return caller


async def read_body(request: Request, limit: int) -> bytes:
    """The body, given up as soon as it is too long."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise TooLarge(f"the body has {announced} bytes; at most {limit} are taken here")
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise TooLarge(f"the body has over {limit} bytes, more than is taken here")
        more = message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def decode_body(body: bytes, kind: type[T], where: str = "body", *, deep: bool = False) -> T:
    """The body, or a part of it, as this type: 400 if it is no JSON, 422 if it is another JSON, or nested too deep."""
    try:
        found = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise BadInput(f"{where}: {error}", [(where, str(error))]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"the body is not JSON: {error}") from None
    if not deep:
        must_be_shallow(body, where)
    return found


def number_in_query(request: Request, name: str, default: int, low: int, high: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        raise BadInput(f"{name}: {text!r} is not a whole number", [(name, "not a whole number")]) from None
    if not low <= value <= high:
        raise BadInput(f"{name}: {value} is not between {low} and {high}", [(name, "out of range")])
    return value


def mounted(routes: list[Route], sockets: list[SocketRoute], refused: Refused) -> ASGIApp:
    """Everything that is answered to whoever was let in; each role to what the table of permissions says."""
    guarded = [(route, _guarded(route, refused)) for route in routes]
    table: list[StarletteRoute | WebSocketRoute] = [
        StarletteRoute(route.path, _AnyMethod(endpoint))
        if route.method == ANY_METHOD
        else StarletteRoute(route.path, endpoint, methods=[route.method])
        for route, endpoint in guarded
    ]
    table += [WebSocketRoute(socket.path, _guarded_socket(socket, refused)) for socket in sockets]
    app = Starlette(routes=table, exception_handlers={HTTPException: _http_error, Exception: _unexpected})
    return Dispatch(((route.method, route.path, endpoint) for route, endpoint in guarded), app, _failed)


def _guarded(route: Route, refused: Refused) -> Handler:
    roles, does = route.roles, route.summary[:1].lower() + route.summary[1:]

    async def endpoint(request: Request) -> Response:
        try:
            if roles != ANYONE and caller_of(request).role not in roles:
                raise NotAllowed(f"a token of role {caller_of(request).role} may not {does}")
            return await route.handler(request)
        except OstlerError as error:
            if isinstance(error, REFUSALS):
                refused(request.scope, error)
            return problem(error)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody is left to read it

    return endpoint


class _AnyMethod:
    """An endpoint that is no function is asked whatever the method is."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._handler(Request(scope, receive, send))
        await response(scope, receive, send)


def _guarded_socket(route: SocketRoute, refused: Refused) -> Callable[[WebSocket], Awaitable[None]]:
    """Whoever may not connect, and whatever is wrong before the socket is open, is answered as over HTTP."""
    roles = route.roles

    async def endpoint(socket: WebSocket) -> None:
        caller: Caller = socket.scope["ostler.caller"]
        try:
            if caller.role not in roles:
                raise NotAllowed(f"a token of role {caller.role} may not connect here")
            await route.endpoint(socket)
        except OstlerError as error:
            if isinstance(error, REFUSALS):
                refused(socket.scope, error)
            if socket.application_state is not WebSocketState.CONNECTING:
                raise
            await socket.send_denial_response(problem(error))

    return endpoint


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    failure = OstlerError(f"{request.method} {request.url.path}: {error.detail}")
    failure.status = error.status_code
    failure.title = HTTPStatus(error.status_code).phrase.lower()
    answer = problem(failure)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        answer.headers["Allow"] = ", ".join(_allowed(request))
    return answer


def _allowed(request: Request) -> list[str]:
    """The methods of all routes that have this path: each has a route of its own."""
    routes = [route for route in request.app.routes if isinstance(route, StarletteRoute)]
    of_path = [route.methods or () for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for methods in of_path for method in methods})


async def _failed(request: Request, error: Exception) -> Response:
    return await (_http_error if isinstance(error, HTTPException) else _unexpected)(request, error)


async def _unexpected(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem(OstlerError("the hub failed to answer this; its log says why"))


async def denied(scope: Scope, receive: Receive, send: Send, error: OstlerError) -> None:
    """The same answer to a request and to a socket that would be opened."""
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(problem(error))
    else:
        await problem(error)(scope, receive, send)
