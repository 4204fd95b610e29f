"""By which names the hub may be called, and whose pages may call it.

A browser sends whatever it has for a name to whatever machine the name stands for today: a page of somebody else's may
have its own name stand for this hub. A name that is not the hub's own is therefore answered nothing.
"""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

PORTS = {"http": 80, "https": 443}
OVER_HTTP = {"ws": "http", "wss": "https"}
EVERY_ADDRESS = ("0.0.0.0", "::")
KNOWN = 1024


class Origins:
    def __init__(self, names: Iterable[str] = ()) -> None:
        """Names, addresses or URLs of the hub; the machine's own names for itself are always among them."""
        self._hosts = {"localhost"}
        self._origins: set[str] = set()
        for name in names:
            self.add(name)
        # Nearly all callers use one of a few names, and send it with every request.
        self.knows_host = lru_cache(KNOWN)(self._knows_host)

    def add(self, name: str) -> None:
        host = host_of(name)
        if host and host not in EVERY_ADDRESS:
            self._hosts.add(host)
            if "://" in name:
                self._origins.add(normalize(name))

    def _knows_host(self, host: str, local: str) -> bool:
        """What a caller calls the hub, and the address at which the call arrived."""
        name = host_in(host)
        return name is not None and (name in self._hosts or _is_loopback(name) or name == plain(local))

    def knows_origin(self, origin: str, scheme: str, host: str) -> bool:
        """Is this the origin of the hub's own pages, as this caller calls it?"""
        given = normalize(origin)
        return bool(given) and (
            given == normalize(f"{OVER_HTTP.get(scheme, scheme)}://{host}") or given in self._origins
        )


def host_of(name: str) -> str:
    """The host of a name, an address or a URL; "": it has none."""
    if "://" in name:
        return normalize(name).partition("://")[2].rpartition(":")[0]
    bare = f"[{name}]" if name.count(":") > 1 and "[" not in name else name
    return host_in(bare) or ""


def host_in(header: str) -> str | None:
    """The name in a Host header; None: it is none."""
    try:
        parts = urlsplit(f"//{header}")
        port_is_one = parts.port is None or parts.port > 0
    except ValueError:
        return None
    odd = parts.username is not None or parts.path or parts.query or parts.fragment or not header.isprintable()
    return plain(parts.hostname) if parts.hostname and port_is_one and not odd and " " not in header else None


def plain(name: str) -> str:
    return name.lower().rstrip(".")


def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def normalize(origin: str) -> str:
    """The origin with its port, or "" for text that is no origin."""
    try:
        parts = urlsplit(origin)
        port = parts.port or PORTS.get(parts.scheme)
    except ValueError:
        return ""
    if parts.scheme not in PORTS or not parts.hostname or parts.username is not None:
        return ""
    return f"{parts.scheme}://{plain(parts.hostname)}:{port}"  # an IPv6 address without its brackets, as elsewhere
