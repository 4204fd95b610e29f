"""`/v1/session`: a token becomes a cookie, and a cookie ends."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ostler.domain.errors import BadInput, NotAllowed, NotAuthenticated, TooOften
from ostler.hub.api.routes import caller_of, decode_body, json_response, read_body
from ostler.hub.documents import timestamp
from ostler.hub.loop import Loop
from ostler.hub.permissions import READERS
from ostler.hub.web.cookies import Session, set_cookie
from ostler.hub.web.gate import SESSION, Web

MAX_BYTES = 4096
WRONG = "this token opens nothing; `ostler token create` on the hub makes one"


class Login(msgspec.Struct, forbid_unknown_fields=True):
    token: str


class Shown(msgspec.Struct):
    """Whose session it is."""

    role: str
    user: str
    csrf: str | None
    """What is to be said as X-Ostler-CSRF with everything that is not GET; None: a token needs none."""
    expires_at: str | None


class SessionApi:
    def __init__(self, web: Web, loop: Loop) -> None:
        self._web = web
        self._loop = loop

    async def begin(self, request: Request) -> Response:
        address = request.client.host if request.client else ""
        self._must_not_have_failed(address)
        try:
            body = await read_body(request, MAX_BYTES)
            self._must_not_have_failed(address)  # others from there may have, while this one was on its way
            caller = self._web.access.caller(f"Bearer {decode_body(body, Login).token}")
        except BadInput:
            caller = None
        if caller is None:
            self._web.failed_logins.failed(address)
            raise NotAuthenticated(WRONG)
        if caller.role not in READERS:
            raise NotAllowed(
                f"a token of role {caller.role} is for programs; log in with a viewer's, user's or operator's"
            )
        request.scope["ostler.caller"] = caller  # who it turned out to be: the audit tells
        value, session = self._web.cookies.issue(caller)
        answer = json_response(_document(session))
        lasts_s = session.expires_at - self._web.cookies.wall()
        answer.headers["set-cookie"] = set_cookie(value, lasts_s, _is_secure(request))
        return answer

    def _must_not_have_failed(self, address: str) -> None:
        wait_s = self._web.failed_logins.must_wait(address)
        if wait_s:
            raise TooOften("too many logins have failed from this address; try again in a minute", wait_s)

    async def show(self, request: Request) -> Response:
        session: Session | None = request.scope.get(SESSION)
        if session is not None:
            return json_response(_document(session))
        caller = caller_of(request)
        return json_response(Shown(caller.role, caller.user, None, timestamp(caller.expires_at)))

    async def end(self, request: Request) -> Response:
        session: Session | None = request.scope.get(SESSION)
        if session is not None:
            await self._loop.commit(self._web.cookies.end(session))
        return Response(status_code=204, headers={"set-cookie": set_cookie("", 0, _is_secure(request))})


def _document(session: Session) -> Any:
    caller = session.caller
    return Shown(caller.role, caller.user, session.csrf, timestamp(session.expires_at))


def _is_secure(request: Request) -> bool:
    """Over TLS, be it only as far as something that stands before the hub."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")
