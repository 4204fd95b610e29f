"""Sessions of browsers: a cookie that stands for a token, for a while, and ends with it.

Nothing is kept of a session but its end: the cookie says whose it is and until when, signed with a key that lies beside
the hub's token files, so that every hub on one ledger takes it. The signature covers the token's digest too.
"""

import hmac
import math
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping

import msgspec

from ostler.domain.errors import NotAuthenticated
from ostler.domain.records import Changes, KeptRecord
from ostler.hub.access import Access, Caller

COOKIE = "ostler_session"
CSRF_HEADER = "X-Ostler-CSRF"
LASTS_S = 12 * 3600.0
SCOPE = "web.ended"
"""Sessions that somebody ended before their time, in the ledger's kept values."""


class Session(msgspec.Struct, frozen=True):
    caller: Caller
    number: str
    expires_at: float
    csrf: str
    """What a page of ours must say with everything that changes something: others' pages cannot read it."""


class Cookies:
    def __init__(self, access: Access, key: bytes, wall: Callable[[], float], lasts_s: float = LASTS_S) -> None:
        self._access = access
        self._key = key
        self.wall = wall
        self._lasts_s = lasts_s
        self._ended: dict[str, float] = {}

    def follow(self, kept: Mapping[str, bytes]) -> None:
        """Which sessions were ended before now."""
        self._ended = {number: float(expires_at) for number, expires_at in kept.items()}

    def issue(self, caller: Caller) -> tuple[str, Session]:
        """The cookie of a new session of whoever has shown this token."""
        expires_at = self.wall() + self._lasts_s
        if caller.expires_at is not None:
            expires_at = min(expires_at, caller.expires_at)
        said = f"{caller.token_id}.{math.ceil(expires_at)}.{secrets.token_urlsafe(18)}"
        value = f"{said}.{self._signature('session', said, caller.token_id)}"
        session = self.session(value)
        if session is None:
            raise NotAuthenticated("this token has just expired")
        return value, session

    def session(self, value: str) -> Session | None:
        """None: it is none of ours, is over, or its token is."""
        said, _, signature = value.rpartition(".")
        token_id, _, rest = said.partition(".")
        expires, _, number = rest.partition(".")
        caller = self._access.of_id(token_id)
        # The signature first: nothing is made of words that are not our own.
        if caller is None or not hmac.compare_digest(
            signature.encode(), self._signature("session", said, token_id).encode()
        ):
            return None
        if int(expires) < self.wall() or number in self._ended:
            return None
        until = min(float(expires), caller.expires_at or float(expires))
        csrf = self._signature("csrf", said, token_id)
        return Session(msgspec.structs.replace(caller, expires_at=until), number, until, csrf)

    def is_over(self, session: Session) -> bool:
        """Of one that was good; what became of its token is not asked."""
        return session.number in self._ended or session.expires_at <= self.wall()

    def end(self, session: Session) -> Changes:
        """At once; the rows with which it stays so. Of sessions that are over by now nothing need be known."""
        now = self.wall()
        over = [number for number, expires_at in self._ended.items() if expires_at < now]
        for number in over:
            del self._ended[number]
        self._ended[session.number] = session.expires_at
        ended = KeptRecord(scope=SCOPE, key=session.number, value=str(session.expires_at).encode())
        return Changes(kept=[*(KeptRecord(scope=SCOPE, key=number, value=None) for number in over), ended])

    def _signature(self, purpose: str, said: str, token_id: str) -> str:
        message = "\0".join((purpose, said, self._access.digest_of(token_id)))
        return urlsafe_b64encode(hmac.digest(self._key, message.encode(), "sha256")).decode().rstrip("=")


def cookie_in(header: str) -> str:
    """The session's cookie in a Cookie header; "": there is none."""
    for part in header.split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return value
    return ""


def set_cookie(value: str, lasts_s: float, secure: bool) -> str:
    parts = [f"{COOKIE}={value}", "Path=/", f"Max-Age={int(lasts_s)}", "HttpOnly", "SameSite=Strict"]
    return "; ".join([*parts, "Secure"] if secure else parts)
