"""Headers on their way through the hub: what belongs to one connection, or to the hub itself, stays behind."""

from collections.abc import Iterable, Iterator

Headers = Iterable[tuple[bytes, bytes]]
Address = tuple[str, int] | None

OF_ONE_CONNECTION = {
    *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "expect"),
    *("proxy-authenticate", "proxy-authorization"),
}
OF_THE_HUB = {
    *("authorization", "x-operator-token", "x-ostler-csrf"),
    *("x-forwarded-prefix", "x-forwarded-for", "x-forwarded-proto"),
}
OF_THE_ANSWERER = {"date", "server"}
"""Added by the hub's own server to every answer."""
HUB_COOKIES = "ostler"
"""A cookie whose name begins like this is the hub's: no service ever sees or sets one."""


def to_service(headers: Headers, prefix: str, client: Address, scheme: str) -> list[tuple[str, str]]:
    """What a service is told of the caller's request."""
    given = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    dropped = OF_ONE_CONNECTION | OF_THE_HUB | _named_in_connection(given)
    told = []
    for name, value in given:
        if name.lower() in dropped or name.lower().startswith("sec-websocket-"):
            continue
        kept = _without_hub_cookies(value) if name.lower() == "cookie" else value
        if kept:
            told.append((name, kept))
    told.append(("X-Forwarded-Prefix", prefix))
    told.append(("X-Forwarded-Proto", {"ws": "http", "wss": "https"}.get(scheme, scheme)))
    if client is not None:
        told.append(("X-Forwarded-For", client[0]))
    return told


def to_caller(headers: Headers, prefix: str, status: int) -> list[tuple[bytes, bytes]]:
    """What a caller is told of the service's answer: links and cookies stay within its own part of the hub."""
    given = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    dropped = OF_ONE_CONNECTION | OF_THE_ANSWERER | _named_in_connection(given)
    if status in (204, 304) or status < 200:
        dropped.add("content-length")  # there is no body that it could be the length of
    told = []
    for name, value in given:
        lower = name.lower()
        if lower in dropped or (lower == "set-cookie" and _sets_hub_cookie(value)):
            continue
        if lower == "location":
            value = _within(value, prefix)
        elif lower == "set-cookie":
            value = _confined(value, prefix)
        told.append((lower.encode("latin-1"), value.encode("latin-1")))
    return told


def _named_in_connection(headers: list[tuple[str, str]]) -> set[str]:
    named = [value for name, value in headers if name.lower() == "connection"]
    return {word.strip().lower() for value in named for word in value.split(",")}


def _without_hub_cookies(value: str) -> str:
    return "; ".join(part for part in map(str.strip, value.split(";")) if not part.startswith(HUB_COOKIES))


def _sets_hub_cookie(value: str) -> bool:
    """A cookie without a name is sent back as its value alone: `=a=b` as `a=b`."""
    return value.lstrip(" \t=").startswith(HUB_COOKIES)


def _within(path: str, prefix: str) -> str:
    """A path of the service as one of the hub; what leads elsewhere, or is one already, as it is."""
    if not path.startswith("/") or path.startswith("//") or path == prefix or path.startswith(prefix + "/"):
        return path
    return prefix + path


def _confined(cookie: str, prefix: str) -> str:
    return "; ".join(_attributes(cookie, prefix))


def _attributes(cookie: str, prefix: str) -> Iterator[str]:
    parts = [part.strip() for part in cookie.split(";")]
    path = "/"
    yield parts[0]
    for part in parts[1:]:
        name, _, value = part.partition("=")
        if name.lower() == "path":
            path = value if value.startswith("/") else "/"
        elif name.lower() != "domain":
            yield part
    yield f"Path={_within(path, prefix)}"
