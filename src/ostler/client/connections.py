"""HTTP/1.1 over sockets that are kept for the next request. A request leaves in one piece, so that it wakes its reader
once, and an answer is read as it comes.

Whoever asks a hub for one thing spends more in its HTTP library than the hub spends on the answer; docs/decisions.md
says how much, and what of such a library is not needed here.
"""

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import httptools

RECEIVE_BYTES = 64 * 1024
SEND_BYTES = 256 * 1024
KEPT = 256
"""Of one address; never more than were in use at once, so a high number costs nothing."""
PORTS = {"http": 80, "https": 443}
_PLAIN = "%/?:@!$&'()*+,;=-._~[]"


class WireError(Exception):
    """No answer came, for a reason on the way."""


class NotConnected(WireError):
    """Nothing of the request has left."""


class UnknownHost(NotConnected):
    pass


class ConnectTimeout(NotConnected):
    pass


class Insecure(WireError):
    """The two sides did not agree on TLS, or the other one could not show who it is."""


class ReadTimeout(WireError):
    pass


class Broken(WireError):
    """The connection ended in the midst of something, or what came is no HTTP."""


class Headers(dict[str, str]):
    """By names in any spelling; of several with one name, all of them."""

    def add(self, name: str, value: str) -> None:
        known = super().get(name.lower())
        self[name.lower()] = value if known is None else f"{known}, {value}"

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(name.lower())

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())


class Response:
    """An answer, of which the head has come. `shutdown` may be called by another thread, and ends the reading."""

    def __init__(self, connection: socket.socket, is_head: bool, keep: Callable[[socket.socket], None]) -> None:
        self._connection: socket.socket | None = connection
        self._keep = keep
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._has_head = self._done = self._stays = False
        self.status = 0
        self.headers = Headers()
        while not self._has_head:
            self._receive()
        if is_head:
            self._end()

    def __enter__(self) -> "Response":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self) -> bytes:
        return b"".join(self.stream())

    def stream(self) -> Iterator[bytes]:
        """As it comes. A connection whose answer was read to its end is kept for the next request."""
        while self._parts or not self._done:
            if not self._parts:
                self._receive()
            parts, self._parts = self._parts, []
            if parts:
                yield parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """An answer that was left half-way is still on its connection, which is of no use any more."""
        if (connection := self._leave()) is not None:
            connection.close()

    def shutdown(self) -> None:
        if (connection := self._connection) is not None:
            # Of the socket: that of TLS would have a reader take what is still to come for plain text.
            socket.socket.shutdown(connection, socket.SHUT_RD)

    # What the parser finds

    def on_message_begin(self) -> None:
        if self._done:
            raise ValueError("nobody asked for a second answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.add(name.decode("latin-1"), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._stays = self._parser.should_keep_alive()
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if self.status < 200:  # on the way to the answer
            self._has_head = False
            self.headers.clear()
        else:
            self._done = True

    def _receive(self) -> None:
        if self._connection is None:
            raise Broken("the answer was closed")
        try:
            data = self._connection.recv(RECEIVE_BYTES)
        except TimeoutError as error:
            raise ReadTimeout(str(error)) from error
        except OSError as error:
            raise Broken(str(error)) from error
        if data:
            self._feed(data)
        elif self._has_head and not ("content-length" in self.headers or "transfer-encoding" in self.headers):
            self._done = True  # it ends with its connection
            self.close()
        else:
            raise Broken("the connection was closed before the answer was whole")

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._done:
                raise Broken(f"what answers does not speak HTTP: {error}") from error
            self._stays = False  # whatever follows an answer is no part of it
        if self._done:
            self._end()

    def _end(self) -> None:
        self._done = True
        connection = self._leave()
        if connection is not None and self._stays:
            self._keep(connection)
        elif connection is not None:
            connection.close()

    def _leave(self) -> socket.socket | None:
        """The parser knows this object: without it nothing waits for the garbage collector, not even a socket."""
        connection, self._connection = self._connection, None
        vars(self).pop("_parser", None)
        return connection


class Pool:
    """The connections to one address. ValueError where it is none."""

    def __init__(self, address: str, context: ssl.SSLContext | None = None, *, kept: int = KEPT) -> None:
        parts = urlsplit(address)
        if parts.scheme not in PORTS or not parts.hostname:
            raise ValueError("not an http(s) URL")
        self._host, self._port = parts.hostname, parts.port or PORTS[parts.scheme]
        called = parts.netloc.rpartition("@")[2]
        self._called = called if called.isascii() else called.encode("idna").decode()
        self._context = (context or ssl.create_default_context()) if parts.scheme == "https" else None
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._kept = kept
        self._closed = False
        self.path = parts.path.rstrip("/")
        """Before all paths."""

    def request(
        self,
        method: str,
        target: str,
        *,
        body: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str],
        connect_s: float,
        read_s: float,
    ) -> Response:
        head = self._head(method, target, body, headers)
        connection = self._take() or self._connect(connect_s)
        try:
            connection.settimeout(read_s)
            chunked = "content-length" not in map(str.lower, headers)
            _send(connection, _pieces(head, body, chunked=chunked))
            return Response(connection, method == "HEAD", self._keep)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _head(
        self, method: str, target: str, body: bytes | Iterable[bytes] | None, headers: Mapping[str, str]
    ) -> bytes:
        lines = [f"{method} {quote(target, safe=_PLAIN)} HTTP/1.1", f"Host: {self._called}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if isinstance(body, bytes):
            lines.append(f"Content-Length: {len(body)}")
        elif body is not None and "content-length" not in map(str.lower, headers):
            lines.append("Transfer-Encoding: chunked")
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a header of several lines")
        return "\r\n".join([*lines, "\r\n"]).encode("latin-1")

    def _connect(self, connect_s: float) -> socket.socket:
        try:
            connection = socket.create_connection((self._host, self._port), connect_s)
        except TimeoutError as error:
            raise ConnectTimeout(str(error)) from error
        except (socket.gaierror, UnicodeError) as error:
            raise UnknownHost(str(error)) from error
        except OSError as error:
            raise NotConnected(error.strerror or str(error)) from error
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is None:
            return connection
        try:
            return self._context.wrap_socket(connection, server_hostname=self._host)
        except TimeoutError as error:
            connection.close()
            raise ConnectTimeout(str(error)) from error
        except OSError as error:
            connection.close()
            raise Insecure(error) from error

    def _take(self) -> socket.socket | None:
        """One that nobody uses, and that the other side has not closed meanwhile."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if not _has_news(connection):
                return connection
            connection.close()

    def _keep(self, connection: socket.socket) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < self._kept:
                self._idle.append(connection)
                return
        connection.close()


def _pieces(head: bytes, body: bytes | Iterable[bytes] | None, *, chunked: bool) -> Iterator[bytes | memoryview]:
    """Of a request, as they are sent. What cannot be read of a body is no fault of a connection's."""
    if body is None or isinstance(body, bytes):
        whole = memoryview(head + (body or b""))
        for first in range(0, len(whole), SEND_BYTES):
            yield whole[first : first + SEND_BYTES]
        return
    yield head
    for piece in body:
        yield b"%x\r\n%b\r\n" % (len(piece), piece) if chunked and piece else piece
    if chunked:
        yield b"0\r\n\r\n"


def _send(connection: socket.socket, pieces: Iterable[bytes | memoryview]) -> None:
    for piece in pieces:
        try:
            connection.sendall(piece)
        except TimeoutError as error:
            raise ReadTimeout("it did not take the request in time") from error
        except (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
            return  # who refuses a request before it is whole has said why
        except OSError as error:
            raise Broken(str(error)) from error


def _has_news(connection: socket.socket) -> bool:
    """Nobody was asked anything: whatever there is to read is its end."""
    with contextlib.suppress(OSError, ValueError):
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        return bool(poll.poll(0))
    return True
