"""The table of routes and what every one of them shares: the token first, then the role, then the handler; errors in
one shape."""

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketState

from ostler.domain.errors import BadInput, NotAllowed, NotAuthenticated, NotLeading, OstlerError, TooLarge, Unreadable
from ostler.domain.hubs import LEADER_HEADER
from ostler.hub.access import Access, Caller
from ostler.store.logs import WrongOffset

_log = logging.getLogger("ostler.hub")
_encode = msgspec.json.Encoder().encode

ANYONE = ("anyone",)
READERS = ("viewer", "user", "operator")
USERS = ("user", "operator")
OPERATORS = ("operator",)
WORKERS = ("worker", "join")
NEWCOMERS = ("join-once", "join")
CLAIMERS = ("worker", "join", "operator")
BLOBS = ("user", "operator", "worker", "join")

ANY_METHOD = "*"
T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]


class Route(msgspec.Struct, kw_only=True):
    method: str
    path: str
    handler: Handler
    roles: tuple[str, ...]
    summary: str
    body: Any = None
    """The type of the request's body, for the description."""
    answer: Any = None
    query: tuple[str, ...] = ()
    status: int = 200


class SocketRoute(msgspec.Struct, kw_only=True):
    path: str
    endpoint: Callable[[WebSocket], Awaitable[None]]
    roles: tuple[str, ...]


def json_response(document: Any, status: int = 200) -> Response:
    return Response(_encode(document), status, media_type="application/json")


def problem(error: OstlerError) -> Response:
    document: dict[str, Any] = {
        "type": f"urn:ostler:{error.title.replace(' ', '-')}",
        "title": error.title,
        "status": error.status,
        "detail": str(error),
    }
    if isinstance(error, BadInput) and error.errors:
        document["errors"] = [{"where": where, "what": what} for where, what in error.errors]
    if isinstance(error, WrongOffset):
        document |= {"size": error.size} | ({"reached": error.reached} if error.reached != error.size else {})
    headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "5"}}.get(error.status)
    if isinstance(error, NotLeading):
        document["leader"] = error.leader or None
        headers = {"Retry-After": "1", LEADER_HEADER: error.leader}
    return Response(_encode(document), error.status, headers, "application/problem+json")


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
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise TooLarge(f"the body has over {limit} bytes, more than is taken here")
        parts.append(chunk)
    return b"".join(parts)


def decode_body(body: bytes, kind: type[T], where: str = "body") -> T:
    """The body, or a part of it, as this type: 400 if it is no JSON, 422 if it is another JSON."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise BadInput(f"{where}: {error}", [(where, str(error))]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"the body is not JSON: {error}") from None


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


def application(routes: list[Route], sockets: list[SocketRoute], access: Access) -> ASGIApp:
    """Everything the hub answers. Nothing is looked at before the token, except on the routes for anyone."""
    table: list[StarletteRoute | WebSocketRoute] = [
        StarletteRoute(route.path, _AnyMethod(_guarded(route)))
        if route.method == ANY_METHOD
        else StarletteRoute(route.path, _guarded(route), methods=[route.method])
        for route in routes
    ]
    table += [WebSocketRoute(socket.path, _guarded_socket(socket)) for socket in sockets]
    app = Starlette(routes=table, exception_handlers={HTTPException: _http_error, Exception: _unexpected})
    open_paths = {route.path for route in routes if route.roles == ANYONE}
    return Gate(app, access, open_paths)


def _guarded(route: Route) -> Handler:
    async def endpoint(request: Request) -> Response:
        try:
            if route.roles != ANYONE and caller_of(request).role not in route.roles:
                raise NotAllowed(f"a token of role {caller_of(request).role} may not {route.summary.lower()}")
            return await route.handler(request)
        except OstlerError as error:
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


def _guarded_socket(route: SocketRoute) -> Callable[[WebSocket], Awaitable[None]]:
    """Whoever may not connect, and whatever is wrong before the socket is open, is answered as over HTTP."""

    async def endpoint(socket: WebSocket) -> None:
        caller: Caller = socket.scope["ostler.caller"]
        try:
            if caller.role not in route.roles:
                raise NotAllowed(f"a token of role {caller.role} may not connect here")
            await route.endpoint(socket)
        except OstlerError as error:
            if socket.application_state is not WebSocketState.CONNECTING:
                raise
            await socket.send_denial_response(problem(error))

    return endpoint


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    failure = OstlerError(f"{request.method} {request.url.path}: {error.detail}")
    failure.status = error.status_code
    failure.title = HTTPStatus(error.status_code).phrase.lower()
    return problem(failure)


async def _unexpected(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem(OstlerError("the hub failed to answer this; its log says why"))


class Gate:
    """Pure ASGI, in front of everything: whoever brings no valid token learns nothing else."""

    def __init__(self, app: ASGIApp, access: Access, open_paths: set[str]) -> None:
        self._app = app
        self._access = access
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] in self._open_paths):
            await self._app(scope, receive, send)
            return
        brought = brought_by(scope)
        caller = next((found for one in brought if (found := self._access.caller(one)) is not None), None)
        if caller is not None:
            scope["ostler.caller"] = caller
            await self._app(scope, receive, send)
            return
        await denied(scope, receive, send, NotAuthenticated(self._access.refusal(brought[0])))


async def denied(scope: Scope, receive: Receive, send: Send, error: OstlerError) -> None:
    """The same answer to a request and to a socket that would be opened."""
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(problem(error))
    else:
        await problem(error)(scope, receive, send)


def brought_by(scope: Scope) -> list[str]:
    """An operator's token first, whatever came with it: an Authorization may be a proxy's."""
    headers = dict(reversed(list(scope["headers"])))
    operator = headers.get(b"x-operator-token", b"").decode("latin-1")
    return [*([f"Bearer {operator}"] if operator else []), headers.get(b"authorization", b"").decode("latin-1")]
