"""One request as its head says it is, and what of the head goes on to a model's server."""

import hashlib
import re
import secrets
from itertools import count
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlencode

from ostler.domain.finite import encode
from ostler.gateway.relay.answers import CLOSE, PREFLIGHT, Refusal, error_events, page, refusal_lines
from ostler.gateway.relay.body import Body, Spool
from ostler.gateway.relay.form import BadForm, ModelField, boundary_of

if TYPE_CHECKING:
    from ostler.gateway.relay.catalog import Key
    from ostler.gateway.relay.instances import Instance

OURS = frozenset(
    (
        *(b"host", b"content-length", b"transfer-encoding", b"connection", b"keep-alive", b"expect", b"upgrade"),
        *(b"authorization", b"x-api-key", b"proxy-authorization", b"proxy-connection", b"te", b"trailer"),
        *(b"http2-settings", b"content-type", b"cookie", b"origin"),
        *(b"x-operator-token", b"x-ostler-csrf", b"x-request-id"),
    )
)
"""Headers that concern this connection, or this relay, and not the model's server; and those that both must see."""
PLAIN_TOKENS = frozenset((b"close", b"keep-alive", b"upgrade", b"te", b"http2-settings", b"trailer", b""))
ACCEPTED_ENCODINGS = re.compile(rb"\r\naccept-encoding:[^\r\n]*\r\n", re.IGNORECASE)
SENSIBLE_ID = re.compile(rb"[\w.:/+=@-]{1,128}")
"""A caller's own id of a request. Another one is replaced: it may be meant to confuse the readers of logs."""
HEADER_NAMES = re.compile(rb"[\w!#$%&'*+.^`|~, -]{1,4096}")
USUAL_HEADERS = b"Authorization, Content-Type, X-Api-Key, X-Request-Id"
"""What a page may send that does not ask for more."""
TUNNELS = b"/tunnel/"
TUNNEL = b"ostler-tunnel"
UPGRADED = {b"websocket": b"/upstream/", TUNNEL: TUNNELS}
"""Where other protocols are spoken."""
NOWHERE = b"*"
IDEMPOTENT = frozenset((b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS"))
WITH_BODY = frozenset((b"POST", b"PUT", b"PATCH"))
HUB_COOKIES = b"ostler"
"""A cookie whose name begins like this is the hub's, which a browser sends to every port: it goes no further."""
MESSAGES = b"/v1/messages"
"""Anthropic's own path: its clients read errors in a shape of their own."""
HEALTH = b"/health"
MODELS = b"/v1/models"
HUB_PAGES = (b"/running", b"/unload", b"/metrics", b"/")
HUB_FOLDERS = (b"/api/", b"/logs")
OWN_PAGES = frozenset((HEALTH, MODELS, *HUB_PAGES))
OWN_FOLDERS = (MODELS + b"/", TUNNELS, *HUB_FOLDERS)
"""What is answered here or by the hub; all else is for models."""


_OF_THIS_RELAY = secrets.token_hex(8).encode()
_numbers = count(1)


def _next_id() -> bytes:
    """An id that no other request of this or any other relay has."""
    return b"%b-%x" % (_OF_THIS_RELAY, next(_numbers))


class Head:
    """What the head of a request says. The same for every request that has the same head but for its length."""

    method = b""
    target = b""
    path = b""
    query = b""
    tokens: tuple[bytes, ...] = ()
    hosts = 0
    host = ""
    origin: str | None = None
    chunked = False
    content_type = b""
    expects = b""
    bearer = b""
    api_key = b""
    """The digests of what the caller shows."""
    id = b""
    """The caller's own id of the request, if it sent a sensible one."""
    upgrade = b""
    upgrades = False
    """It asks for another protocol in a way that is honoured: everything after its head is that protocol's."""
    old = False
    """HTTP/1.0."""
    persistent = True
    approved_in = -1
    """The version of the catalog by which a request with this head was let in, by the key and the headers below."""
    approved_at = ""
    key: "Key | None" = None
    cors = b""
    for_model = False
    """It is for a model's server, and for nobody here or in the hub."""
    fault: Refusal | None = None
    _start = b""
    _start_of: "tuple[Instance, bytes] | None" = None

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        """The headers that go on, as they are written."""

    # While it comes in

    def own_header(self, name: bytes, value: bytes) -> None:
        """One of `OURS`."""
        if name == b"content-type":
            self.content_type = value
            self.lines.append(b"Content-Type: %b\r\n" % value)
        elif name == b"host":
            self.hosts += 1
            self.host = value.decode("latin-1")
        elif name == b"x-request-id":
            if SENSIBLE_ID.fullmatch(given := value.strip()):
                self.id = given
        elif name == b"origin":
            self.origin = value.decode("latin-1")
            self.lines.append(b"Origin: %b\r\n" % value)
        elif name == b"cookie":
            kept = b"; ".join(one for one in map(bytes.strip, value.split(b";")) if not one.startswith(HUB_COOKIES))
            if kept:
                self.lines.append(b"Cookie: %b\r\n" % kept)
        elif name == b"transfer-encoding":
            self.chunked = True
            if value.strip().lower() != b"chunked":
                self.fault = Refusal(501, "unsupported_encoding", "send the body plain or chunked, and not encoded")
        elif name == b"authorization":
            scheme, _, secret = value.partition(b" ")
            self.bearer = _digest(secret) if scheme.lower() == b"bearer" else self.bearer
        elif name == b"x-api-key":
            self.api_key = _digest(value)
        elif name == b"connection":
            self.tokens += tuple(token.strip().lower() for token in value.split(b","))
        elif name == b"expect":
            self.expects = value.strip().lower()
        elif name == b"upgrade":
            self.upgrade = value.strip()

    def is_complete(self, method: bytes, version: str, *, persistent: bool, upgrades: bool) -> None:
        self.method = method
        self.old = version == "1.0"
        self.persistent = persistent
        target = self.target
        if not target.startswith(b"/") and b"://" in target:
            target = b"/" + target.partition(b"://")[2].partition(b"/")[2]
        self.target = target = target.partition(b"#")[0] if b"#" in target else target
        self.path, _, self.query = target.partition(b"?")
        self.for_model = not (self.path in OWN_PAGES or self.path.startswith(OWN_FOLDERS))
        self.upgrades = upgrades and self.path.startswith(UPGRADED.get(self.upgrade.lower(), NOWHERE))
        self.fault = self._fault(version)

    def _fault(self, version: str) -> Refusal | None:
        """What is wrong with it, if anything."""
        if version not in ("1.1", "1.0"):
            return Refusal(505, "unsupported_version", "speak HTTP/1.1")
        if self.hosts != 1 and not (self.old and self.hosts == 0):
            return Refusal(400, "bad_request", "the request must have one Host header")
        if self.old and self.chunked:
            return Refusal(400, "bad_request", "HTTP/1.0 knows no chunks; send Content-Length")
        if self.method == b"CONNECT" or not self.target.startswith(b"/"):
            return Refusal(400, "bad_request", "the request must name a path that begins with a slash")
        if self.fault is None and self.expects not in (b"", b"100-continue"):
            return Refusal(417, "expectation_failed", "the only expectation that is met is 100-continue")
        return self.fault

    def header(self, name: bytes) -> bytes:
        """The value of a header that goes on, by its name in lower case; nothing if it is missing."""
        found = (line for line in self.lines if line.lower().startswith(name + b":"))
        return next(found, b":").partition(b":")[2].strip()

    # When it is complete

    def start_for(self, instance: "Instance", target: bytes) -> bytes:
        """As the model's server gets it, but for what ends it."""
        if self._start_of != (instance, target):
            self._start = self._written_for(instance, target)
            self._start_of = (instance, target)
        return self._start

    def _written_for(self, instance: "Instance", target: bytes) -> bytes:
        lines = self.lines
        if not PLAIN_TOKENS.issuperset(self.tokens):
            named = tuple(token + b":" for token in self.tokens if token not in PLAIN_TOKENS)
            lines = [line for line in lines if not line.lower().startswith(named)]
        first = b"%b %b%b HTTP/1.1\r\n" % (self.method, instance.prefix, target)
        return b"".join([first, instance.lines, *lines])


class Request:
    headed = False
    complete = False
    length = 0
    """Of its body, as the head says."""
    refusal: Refusal | None = None
    key: "Key | None" = None
    key_version = 0
    """Of the catalog in which the key was found."""
    form: ModelField | None = None
    id = b""
    """By which the caller, the model's server and the hub's list of requests name it."""
    cors = b""
    """The headers by which a browser lets a page of another origin read the answer, if the origin is configured."""
    rest = b""
    """What came after the head of a request that upgrades."""

    def __init__(self, spool: Spool, head: Head) -> None:
        self.head = head
        if head.method:  # it came before with another request
            self.id = head.id or _next_id()
        self.target = head.target
        self.persistent = head.persistent
        self.body = Body(spool)

    def head_is_complete(self, method: bytes, version: str, *, persistent: bool, upgrades: bool) -> None:
        head = self.head
        self.headed = True
        head.is_complete(
            method, version, persistent=persistent, upgrades=upgrades and not (self.length or head.chunked)
        )
        self.id = head.id or _next_id()
        self.target = head.target
        self.persistent = persistent and not head.upgrades

    def expect_form(self) -> None:
        """Look for the model in the body while it comes in, if that is a form."""
        if self.head.content_type[:19].lower() == b"multipart/form-data":
            try:
                self.form = ModelField(boundary_of(self.head.content_type))
            except BadForm as error:
                self.refusal = bad_request(str(error))

    # When it is complete

    @property
    def has_body(self) -> bool:
        return self.head.chunked or self.length > 0

    @property
    def replayable(self) -> bool:
        """May it be sent again when nobody knows what became of it? Asking a model twice harms nobody."""
        return self.head.method in IDEMPOTENT or not self.head.path.startswith(b"/upstream/")

    def model_in_query(self) -> str:
        return dict(parse_qsl(self.head.query.decode("latin-1"))).get("model", "")

    def model_in_query_becomes(self, name: str) -> None:
        pairs = parse_qsl(self.head.query.decode("latin-1"), keep_blank_values=True)
        query = urlencode([(key, name if key == "model" else value) for key, value in pairs])
        self.target = self.head.path + b"?" + query.encode()

    def written_for(self, instance: "Instance", *, plain: bool = False) -> bytes:
        """All of it as the model's server gets it; of one whose body is in a file, the head. `plain`: the answer must
        not be compressed."""
        head, body = self.head, self.body
        start = head.start_for(instance, self.target)
        if plain:
            start = ACCEPTED_ENCODINGS.sub(b"\r\n", start)
        if head.upgrades:
            return b"%bX-Request-Id: %b\r\nConnection: Upgrade\r\nUpgrade: %b\r\n\r\n" % (start, self.id, head.upgrade)
        if body.size or head.method in WITH_BODY:
            # Each write is a call of the kernel, which costs more than to copy what is small.
            rest = b"X-Request-Id: %b\r\nContent-Length: %d\r\n\r\n" % (self.id, body.size)
            return b"".join((start, rest, body.data))
        return b"%bX-Request-Id: %b\r\n\r\n" % (start, self.id)

    # Answers of the gateway itself

    @property
    def answer_lines(self) -> bytes:
        """The headers that every answer to it has."""
        self.id = self.id or _next_id()
        return b"X-Request-Id: %b\r\n%b" % (self.id, self.cors)

    @property
    def is_anthropic(self) -> bool:
        path = self.head.path
        at_upstream = path.startswith(b"/upstream/") and path.endswith(MESSAGES)
        return path == MESSAGES or path.startswith(MESSAGES + b"/") or at_upstream

    @property
    def is_preflight(self) -> bool:
        """A browser asks, without a key, whether a page of a configured origin may send a request."""
        is_asked = self.cors and self.head.method == b"OPTIONS"
        return bool(is_asked and self.head.header(b"access-control-request-method"))

    def preflight_page(self) -> bytes:
        wanted = self.head.header(b"access-control-request-headers")
        allowed = wanted if HEADER_NAMES.fullmatch(wanted) else USUAL_HEADERS
        return PREFLIGHT % (allowed, self.answer_lines, b"" if self.persistent else CLOSE)

    def page(self, status: int, body: bytes, more_lines: bytes = b"") -> bytes:
        """A whole answer to it, in JSON."""
        bodiless = self.head.method == b"HEAD"
        lines = self.answer_lines + more_lines
        return page(status, body, more_lines=lines, close=not self.persistent, bodiless=bodiless)

    def refusal_page(self, refusal: Refusal) -> bytes:
        """The whole answer that refuses it."""
        document = refusal.anthropic_document() if self.is_anthropic else refusal.document()
        return self.page(refusal.status, encode(document), refusal_lines(refusal))

    def error_events(self, refusal: Refusal) -> bytes:
        """The end of its stream, where that has begun."""
        return error_events(refusal, anthropic=self.is_anthropic)


def _digest(secret: bytes) -> bytes:
    secret = secret.strip()
    return hashlib.sha256(secret).digest() if secret else b""


def bad_request(message: str, param: str | None = None) -> Refusal:
    return Refusal(400, "bad_request", message, param)


def too_large(max_body_bytes: int) -> Refusal:
    return Refusal(413, "request_too_large", f"the body is larger than the {max_body_bytes} bytes that are taken")


def upstream_candidates(path: bytes) -> list[tuple[str, bytes]]:
    """What `/upstream/{model}/{path}` may mean, the longest name of a model first: names may have slashes in them."""
    parts = path[len(b"/upstream/") :].split(b"/")
    return [
        (unquote(b"/".join(parts[:count]).decode("latin-1")), b"".join(b"/" + part for part in parts[count:]))
        for count in range(min(len(parts), 8), 0, -1)
    ]
