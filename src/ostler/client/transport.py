"""Requests to a hub: pooled connections, problem documents as exceptions, and patience while a hub restarts."""

import copy
import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO
from urllib.parse import urlencode

import msgspec

from ostler import __version__
from ostler.client.connections import (
    SEND_BYTES,
    Broken,
    ConnectTimeout,
    Insecure,
    NotConnected,
    Pool,
    ReadTimeout,
    Response,
    UnknownHost,
    WireError,
)
from ostler.client.errors import BadInput, HubUnreachable, from_problem
from ostler.domain.errors import NotAuthenticated
from ostler.domain.hubs import LEADER_HEADER, Addresses
from ostler.tls import Trust, is_untrusted

CONNECT_S = 5.0
READ_S = 60.0
HASTY_S = 5.0
"""For the first answer, where there are other hubs to ask: of those, one may lead by now."""
LATE_S = 3.0
"""For an answer, after the moment until which it is waited for: whoever waits for no time at all is answered, too."""
BUSY = (502, 503, 504)
"""Answers of a hub that stops or starts, or of a proxy before one that is away."""

Query = Mapping[str, str | int | float | bool | None]
_log = logging.getLogger("ostler.client")


class Patience(msgspec.Struct, frozen=True):
    """How long a hub may be away before a call gives up. A restart takes a moment; a wrong address is for ever."""

    tries: int = 5
    first_pause_s: float = 0.25
    growth: float = 3.0
    total_s: float = 30.0
    outage_s: float = 120.0
    """For whoever waits anyway (`wait`, followed logs): the longest time without an answer."""

    def pause_s(self, tried: int) -> float:
        # Not all clients of a restarted hub at the same instant.
        return self.first_pause_s * self.growth ** (tried - 1) * random.uniform(0.8, 1.2)


class Answer(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    headers: Mapping[str, str]


class Upload:
    """A file that is sent piece by piece, from its beginning whenever it has to be sent again."""

    def __init__(self, file: BinaryIO, size: int, progress: Callable[[int, int], None] | None) -> None:
        self._file = file
        self._size = size
        self._progress = progress

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        sent = 0
        while piece := self._file.read(SEND_BYTES):
            yield piece
            sent += len(piece)
            if self._progress is not None:
                self._progress(sent, self._size)


Body = bytes | Upload


class Transport:
    """The connections to one hub. Safe to use from several threads."""

    def __init__(self, url: str, token: str, patience: Patience, trust: Trust | None = None) -> None:
        if not all(" " < char < "\x7f" for char in token):
            raise NotAuthenticated("the token holds characters that no token has; was it cut or wrapped?")
        self.addresses = Addresses(url)
        self.patience = patience
        self._met = threading.Event()
        self.closed = threading.Event()
        self._deadline = float("inf")
        headers = {"User-Agent": f"ostler/{__version__}", "Accept-Encoding": "identity"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._trust = trust or Trust()
        secured = any(address.startswith("https:") for address in self.addresses.known)
        self._context = self._trust.context if secured else None  # to make one takes as long as a command's start
        self._headers = headers
        self._pools: dict[str, Pool] = {}

    def close(self) -> None:
        self.closed.set()
        for pool in list(self._pools.values()):
            pool.close()

    def until(self, deadline: float) -> "Transport":
        """The same connections, for whoever waits no longer than until then."""
        other = copy.copy(self)
        other._deadline = deadline
        return other

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = True,
        insist: bool = False,
        read_s: float = READ_S,
    ) -> Answer:
        """One answer, or the exception that it stands for.

        A request that is not `repeatable` is sent again only if it cannot have arrived. `insist` is for what nobody
        wants to type again: it waits for a hub that this object has never met, too.
        """
        give_up_at = min(time.monotonic() + self.patience.total_s, self._deadline)
        hasty = repeatable and len(self.addresses.known) > 1 and not isinstance(body, Upload)
        tried = 0
        while True:
            address = self.addresses.current
            try:
                wait_s = read_s - READ_S + HASTY_S if hasty else read_s
                return self._once(address, method, path, query, body, headers, wait_s)
            except HubUnreachable as error:
                hasty = hasty and not isinstance(error.__cause__, ReadTimeout)
                if not (repeatable or _never_taken(error)):
                    raise
                if self.addresses.failed(address, error.leader or ""):
                    continue
                tried += 1
                pause_s = self.patience.pause_s(tried)
                if tried >= self._tries(insist) or time.monotonic() + pause_s > give_up_at:
                    raise
                _log.warning("%s; trying again in %.1f s", error, pause_s)
                time.sleep(pause_s)

    def stream(
        self, path: str, *, query: Query | None = None, headers: Mapping[str, str] | None = None, read_s: float = READ_S
    ) -> Response:
        """An answer that is read as it comes: each hub is tried once, because only the reader knows where to go on."""
        while True:
            address = self.addresses.current
            try:
                response = self._open(address, "GET", path, query, None, headers, read_s)
                if response.status >= 400:
                    with response:
                        self._refuse(response, self._rest(response), f"GET {address}{path}")
                return response
            except HubUnreachable as error:
                if not self.addresses.failed(address, error.leader or ""):
                    raise

    def credentials(self) -> tuple[dict[str, str], Trust]:
        """For a connection that is no request: who asks, and by what the hub is known."""
        return dict(self._headers), self._trust

    def unreachable(self, error: Exception) -> HubUnreachable:
        if is_untrusted(error):
            found = HubUnreachable(f"what answers at {self.addresses.current} is not trusted: {_doubt(error)}")
        else:
            may_speak_tls = not self._met.is_set() and self.addresses.current.startswith("http://")
            found = HubUnreachable(
                f"no hub answers at {self.addresses} ({_reason(error, may_speak_tls)}); start one with 'ostler up', "
                "or name the right one (--hub, OSTLER_HUB)"
            )
        found.__cause__ = error
        return found

    def _tries(self, insist: bool) -> int:
        # A hub that never answered is most likely not there: whoever only asks should hear that at once.
        return self.patience.tries if self._met.is_set() or insist else min(self.patience.tries, 2)

    def _once(
        self,
        address: str,
        method: str,
        path: str,
        query: Query | None,
        body: Body | None,
        headers: Mapping[str, str] | None,
        read_s: float,
    ) -> Answer:
        response = self._open(address, method, path, query, body, headers, read_s)
        with response:
            data = self._rest(response)
        if response.status >= 400:
            self._refuse(response, data, f"{method} {address}{path}")
        self.addresses.answered()
        return Answer(response.status, data, response.headers)

    def _open(
        self,
        address: str,
        method: str,
        path: str,
        query: Query | None,
        body: Body | None,
        headers: Mapping[str, str] | None,
        read_s: float,
    ) -> Response:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        asked = path + ("?" + urlencode(given) if given else "")
        read_s = min(read_s, max(0.0, self._deadline - time.monotonic()) + LATE_S)
        self._meet(address)
        pool = self._pools.get(address) or self._find(address)
        try:
            return pool.request(
                method,
                pool.path + asked,
                body=body,
                headers={**self._headers, **(headers or {})},
                connect_s=min(CONNECT_S, read_s),
                read_s=read_s,
            )
        except WireError as error:
            raise self.unreachable(error) from error

    def _find(self, address: str) -> Pool:
        try:
            found = Pool(address, self._context)
        except ValueError:
            raise BadInput(f"hub: {address!r} is not an address", [("hub", "not an http(s) URL")]) from None
        return self._pools.setdefault(address, found)

    def _meet(self, address: str) -> None:
        """Nothing is sent to somebody else. Whether anybody is there the request itself will show."""
        try:
            self._trust.meet(address)
        except ssl.SSLCertVerificationError as error:
            raise self.unreachable(error) from error
        except OSError:
            pass

    def _rest(self, response: Response) -> bytes:
        try:
            data = response.read()
        except WireError as error:
            raise self.unreachable(error) from error
        self._met.set()
        return data

    def _refuse(self, response: Response, body: bytes, where: str) -> None:
        error = from_problem(response.status, body, where)
        if response.status not in BUSY:
            raise error
        busy = self.unreachable(error)
        busy.leader = response.headers.get(LEADER_HEADER)
        raise busy


def _never_taken(error: HubUnreachable) -> bool:
    """It did not arrive, or at a hub that stands by."""
    return error.leader is not None or isinstance(error.__cause__, NotConnected)


def _doubt(error: Exception) -> str:
    """Why it is not taken for the hub, and what to do."""
    told = str(error)
    if "fingerprint" in told:
        return told
    if "doesn't match" in told or "not valid for" in told or "Hostname mismatch" in told:
        return (
            "its certificate is for other names than this one; use one of those, or have the hub started with "
            "--url and this address"
        )
    if "expired" in told or "not yet valid" in told:
        return "its certificate is not valid now; compare the clocks of both machines, or have it renewed"
    return (
        "its certificate is signed by nobody known here; give its authority's by --ca FILE or --ca sha256:FINGERPRINT "
        "(OSTLER_CA), as the hub prints it when it starts"
    )


def _reason(error: Exception, may_speak_tls: bool) -> str:
    match error:
        case UnknownHost():
            return "the host name is not known"
        case ConnectTimeout():
            return "no connection in time"
        case NotConnected():
            return "refused" if "refused" in str(error).lower() else str(error)
        case ReadTimeout():
            return "it took the request and did not answer in time"
        case Insecure() if "WRONG_VERSION_NUMBER" in str(error):
            return "it speaks no TLS; is it http://?"
        case Insecure():
            return f"TLS: {error}"
        case Broken():
            return "the connection broke" + ("; is it https://?" if may_speak_tls else "")
        case _:
            return str(error)
