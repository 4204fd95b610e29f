"""In front of everything: the name by which the hub is called, the page that calls it, who calls, and how often.

Pure ASGI. Whoever is not let in learns nothing else: neither the path nor the method nor the body is looked at.
"""

import hmac
import time
from collections.abc import Callable

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ostler.domain.errors import NotAllowed, NotAuthenticated, OstlerError, TooOften
from ostler.domain.origins import Origins
from ostler.hub.access import Access, Caller
from ostler.hub.api.routes import REFUSALS, Refused, Route, SocketRoute, denied, mounted
from ostler.hub.connections import Connections
from ostler.hub.permissions import ANYONE, JOIN
from ostler.hub.web.cookies import CSRF_HEADER, LASTS_S, Cookies, Session, cookie_in
from ostler.hub.web.limits import Buckets, FailedLogins, Limits

READING = ("GET", "HEAD")
SERVICES = "/services/"
SESSION = "ostler.session"
SANDBOX = "default-src 'none'; frame-ancestors 'none'; sandbox"
SERVICE_SANDBOX = "sandbox allow-downloads allow-forms allow-popups allow-scripts"
"""What a service answers is its owner's, and no page of the hub's: it runs apart, and has no cookie to act with."""
_CSRF = CSRF_HEADER.lower().encode()


class Web:
    """What the gate goes by, and what logs browsers in and out."""

    def __init__(
        self,
        access: Access,
        origins: Origins | None = None,
        limits: Limits | None = None,
        wall: Callable[[], float] = time.time,
        lasts_s: float = LASTS_S,
    ) -> None:
        limits = limits or Limits()
        self.access = access
        self.connections = Connections()
        self.origins = origins or Origins()
        self.cookies = Cookies(access, access.session_key, wall, lasts_s)
        self.buckets = Buckets(limits, time.monotonic)
        self.failed_logins = FailedLogins(limits.failed_logins, time.monotonic)
        self.refused: Refused = lambda scope, error: None


def application(routes: list[Route], sockets: list[SocketRoute], web: Web) -> ASGIApp:
    """Everything the hub answers, behind its gate."""
    return Gate(mounted(routes, sockets, lambda scope, error: web.refused(scope, error)), web, routes, sockets)


class Brought(msgspec.Struct):
    """What the headers of a request say about who makes it."""

    tokens: list[str]
    hosts: list[str]
    origin: str | None
    cookie: str
    csrf: str


class Gate:
    def __init__(self, app: ASGIApp, web: Web, routes: list[Route], sockets: list[SocketRoute]) -> None:
        self._app = app
        self._web = web
        self.routes, self.sockets = routes, sockets
        open_routes = [route for route in routes if route.roles == ANYONE]
        self._open = {(method, route.path) for route in open_routes for method in _answered(route)}
        self._open_folders = tuple(route.path.partition("{")[0] for route in open_routes if "{" in route.path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            self._let_in(scope)
        except OstlerError as error:
            if isinstance(error, REFUSALS):
                self._web.refused(scope, error)
            await denied(scope, receive, send, error)
        else:
            await self._app(scope, receive, _for_a_browser(scope, send) if SESSION in scope else send)

    def _let_in(self, scope: Scope) -> None:
        brought = _read(scope)
        self._must_be_called_rightly(scope, brought)
        if scope["type"] == "http" and self._is_open(scope):
            return
        caller = self._caller(scope, brought)
        scope["ostler.caller"] = caller
        self._web.connections.came(caller.token_id, scope, scope.get(SESSION))
        wait_s = 0.0 if caller.role == JOIN else self._web.buckets.take(caller.token_id)
        if wait_s:
            raise TooOften("this token is used more often than the hub bears with; ask less often", wait_s)

    def _must_be_called_rightly(self, scope: Scope, brought: Brought) -> None:
        """A page of somebody else's, or a name of somebody else's that stands for this hub today, gets nothing."""
        origins, local = self._web.origins, (scope.get("server") or ("", 0))[0]
        if len(brought.hosts) != 1 or not origins.knows_host(brought.hosts[0], local):
            called = repr(brought.hosts[0][:200]) if brought.hosts else "nothing"
            raise NotAllowed(f"this hub is not called {called}; its operator adds names by `hosts` in ostler.toml")
        if brought.origin is not None and not origins.knows_origin(brought.origin, scope["scheme"], brought.hosts[0]):
            raise NotAllowed(f"pages of {brought.origin[:200]!r} may not call this hub")

    def _is_open(self, scope: Scope) -> bool:
        method, path = scope["method"], scope["path"]
        return (method, path) in self._open or (method in READING and path.startswith(self._open_folders))

    def _caller(self, scope: Scope, brought: Brought) -> Caller:
        access = self._web.access
        caller = next((found for one in brought.tokens if (found := access.caller(one)) is not None), None)
        if caller is not None:
            return caller
        shown = [one for one in brought.tokens if one.lower().startswith("bearer")]
        session = None if shown or not brought.cookie else self._web.cookies.session(brought.cookie)
        if session is None:
            raise NotAuthenticated(access.refusal(brought.tokens[0] if brought.tokens else ""))
        _must_be_meant(scope, brought, session)
        scope[SESSION] = session
        return session.caller


def _must_be_meant(scope: Scope, brought: Brought, session: Session) -> None:
    """A browser sends its cookie along whoever's page it is that asks; only ours know what else is to be said."""
    if scope["type"] == "websocket":
        if brought.origin is None:
            raise NotAllowed("a socket that is opened with a session's cookie must say its Origin")
    elif scope["method"] not in READING and not hmac.compare_digest(brought.csrf.encode(), session.csrf.encode()):
        raise NotAllowed(f"say {CSRF_HEADER} with it, as `GET /v1/session` tells: a cookie alone changes nothing")


def _answered(route: Route) -> tuple[str, ...]:
    return READING if route.method == "GET" else (route.method,)


def _read(scope: Scope) -> Brought:
    found = Brought(tokens=[], hosts=[], origin=None, cookie="", csrf="")
    operator = authorization = ""
    for name, value in scope["headers"]:
        if name == b"host":
            found.hosts.append(value.decode("latin-1"))
        elif name == b"authorization":
            authorization = authorization or value.decode("latin-1")
        elif name == b"x-operator-token":
            operator = operator or f"Bearer {value.decode('latin-1')}"
        elif name == b"origin":
            found.origin = value.decode("latin-1")
        elif name == b"cookie":
            found.cookie = found.cookie or cookie_in(value.decode("latin-1"))
        elif name == _CSRF:
            found.csrf = value.decode("latin-1")
    # An operator's token first, whatever came with it: an Authorization may be a proxy's.
    found.tokens = [one for one in (operator, authorization) if one]
    return found


def brought_by(scope: Scope) -> list[str]:
    """The tokens."""
    return _read(scope).tokens


def _for_a_browser(scope: Scope, send: Send) -> Send:
    """Whatever the answer holds, and whoever wrote it: it is data, and runs nothing with the session's rights."""
    of_service = scope["path"].startswith(SERVICES)

    async def careful(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.append("content-security-policy", SERVICE_SANDBOX if of_service else SANDBOX)
            headers.setdefault("cache-control", "no-store")
            headers["x-content-type-options"] = "nosniff"
            headers["referrer-policy"] = "no-referrer"
            for name in ("clear-site-data", "service-worker-allowed"):
                if of_service and name in headers:
                    del headers[name]
        await send(message)

    return careful
