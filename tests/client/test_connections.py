"""The client's HTTP/1.1 against a real server that says, byte by byte, what it is told to."""

import contextlib
import queue
import select
import socket
import ssl
import struct
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from tests.tls.papers import context_for, identity

from ostler.client.connections import Broken, ConnectTimeout, Insecure, NotConnected, Pool, ReadTimeout, UnknownHost

LONG_S = 60.0
MUCH = bytes(1 << 24)
RESET = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
Papers = tuple[ssl.SSLContext, ssl.SSLContext] | None
Script = Callable[["End"], Any]
Told = queue.SimpleQueue[bytes]


def head(*headers: str, status: str = "HTTP/1.1 200 OK") -> bytes:
    return "\r\n".join([status, *headers, "\r\n"]).encode("latin-1")


LENGTH, CLOSE = "Content-Length: 5", "connection: Close"
WHOLE = head(LENGTH) + b"whole"
HALF = head("Content-Length: 10") + b"half"
CHUNKED = head("Transfer-Encoding: chunked")
HINTS = head("Link: </x>", "Content-Length: 1", status="HTTP/1.1 103 Early Hints")


class End(NamedTuple):
    """The server's end of a connection."""

    connection: socket.socket
    heard: list[bytes]

    def hear(self, until: bytes = b"\r\n\r\n") -> bytes:
        """With what came by the way. EOFError: the client has gone."""
        data = b""
        while until not in data:
            if not (more := self.connection.recv(65536)):
                self.heard.extend([data] if data else [])
                raise EOFError
            data += more
        self.heard.append(data)
        return data

    def say(self, data: bytes, at_once: int = len(MUCH)) -> None:
        for first in range(0, len(data), at_once):
            self.connection.sendall(data[first : first + at_once])


class Server(contextlib.AbstractContextManager[Any]):
    """Each connection follows the next script, further ones the last, and is closed at its end; `over` is released for
    each that has ended, on whichever side. What goes wrong in a script is raised when all are through."""

    def __init__(self, *scripts: Script, papers: Papers = None) -> None:
        self.connections = 0
        self.heard: list[bytes] = []
        self.over = threading.Semaphore(0)
        self._scripts = scripts
        self._context, trusting = papers or (None, None)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.pool = Pool(f"{'https' if papers else 'http'}://{self.address}", trusting)
        self._threads = ThreadPoolExecutor(8)
        self._running = [self._threads.submit(self._accept)]

    def __exit__(self, *_: object) -> None:
        self.pool.close()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads.shutdown(wait=False)
        for running in self._running:
            running.result(2 * LONG_S)

    def ask(self, method: str = "GET", target: str = "/", at: str | None = None, **options: Any) -> Any:
        self.pool = self.pool if at is None else Pool(at)
        return self.pool.request(method, target, **{"headers": {}, "connect_s": LONG_S, "read_s": LONG_S, **options})

    def _accept(self) -> None:
        with self._listener, contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                script = self._scripts[min(self.connections, len(self._scripts) - 1)]
                self.connections += 1
                self._running.append(self._threads.submit(self._follow, connection, script))

    def _follow(self, connection: socket.socket, script: Script) -> None:
        connection.settimeout(LONG_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(EOFError, ConnectionError, ssl.SSLError), contextlib.ExitStack() as stack:
            stack.callback(self.over.release)
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True)
            script(End(stack.enter_context(connection), self.heard))


def always(answer: bytes, at_once: int = len(MUCH)) -> Script:
    def script(end: End) -> None:
        while end.hear():
            end.say(answer, at_once)

    return script


def once(answer: bytes, told: Told | None = None, lingers: bool = False) -> Script:
    """With what is told later, until that is nothing. Who lingers closes only when the client has gone."""

    def script(end: End) -> None:
        end.hear()
        end.say(answer)
        while told and (said := told.get(timeout=LONG_S)):
            end.say(said)
        if lingers:
            end.hear()

    return script


@pytest.fixture(scope="module", params=["plain", "tls"])
def papers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Papers:
    folder = tmp_path_factory.mktemp("papers")
    return (identity(folder).context, context_for(folder)) if request.param == "tls" else None


def test_a_connection_is_used_again_for_the_next_request(papers: Papers) -> None:
    with Server(always(WHOLE), papers=papers) as server:
        assert [server.ask().read() for _ in range(5)] == [b"whole"] * 5
        assert server.connections == 1


def test_requests_at_once_have_a_connection_each_and_those_after_them_use_these() -> None:
    together = threading.Barrier(3, timeout=LONG_S)

    def echo(end: End) -> None:
        together.wait()
        while request := end.hear():
            end.say(head(LENGTH) + request.split()[1])

    targets = [f"/{number:04}" for number in range(60)]
    with Server(echo) as server, ThreadPoolExecutor(3) as threads:
        assert list(threads.map(lambda target: server.ask(target=target).read().decode(), targets)) == targets
        assert server.connections == 3


@pytest.mark.parametrize("last_words", [b"", head(LENGTH, status="HTTP/1.1 408 Request Timeout") + b"bored"])
def test_a_connection_that_the_server_closed_while_nobody_used_it_is_not_used_again(last_words: bytes) -> None:
    told = Told()
    with Server(once(WHOLE, told), always(WHOLE)) as server:
        server.ask().read()
        told.put(last_words)
        told.put(b"")
        assert select.select(server.pool._idle, [], [], LONG_S)[0]
        response = server.ask()
        assert (response.status, response.read(), server.connections) == (200, b"whole", 2)


def test_an_answer_that_was_left_half_way_takes_its_connection_with_it() -> None:
    with Server(once(HALF, lingers=True), always(WHOLE)) as server:
        with server.ask() as response:
            assert next(response.stream()) == b"half"
        assert server.over.acquire(timeout=LONG_S)
        with pytest.raises(Broken, match="was closed"):
            response.read()
        assert (server.ask().read(), server.connections) == (b"whole", 2)


def test_a_closed_pool_closes_its_connections_and_those_that_come_back_to_it() -> None:
    told = Told()
    with Server(once(HALF, told, lingers=True), always(WHOLE)) as server:
        used = server.ask()
        server.ask().read()
        server.pool.close()
        assert server.over.acquire(timeout=LONG_S)
        told.put(b" whole")
        told.put(b"")
        assert used.read() == b"half whole"
        assert server.over.acquire(timeout=LONG_S)


def test_an_answer_that_was_read_is_not_left_to_the_garbage_collector() -> None:
    with Server(always(head(status="HTTP/1.1 204 No Content"))) as server:
        left = weakref.ref(server.ask())
        assert left() is None


ANSWERS: dict[str, tuple[str, bytes, int, bytes, bool]] = {
    "length": ("GET", WHOLE, 200, b"whole", True),
    "no content": ("GET", head(status="HTTP/1.1 204 No Content"), 204, b"", True),
    "not modified": ("GET", head(LENGTH, status="HTTP/1.1 304 Not Modified"), 304, b"", True),
    "chunked": ("GET", CHUNKED + b"3\r\none\r\n3;odd=1\r\ntwo\r\n0\r\nSum: 6\r\n\r\n", 200, b"onetwo", True),
    "head": ("HEAD", head(LENGTH), 200, b"", True),
    "continue": ("GET", head(status="HTTP/1.1 100 Continue") + WHOLE, 200, b"whole", True),
    "hints": ("GET", HINTS + HINTS + WHOLE, 200, b"whole", True),
    "old": ("GET", head(LENGTH, status="HTTP/1.0 200 OK") + b"whole", 200, b"whole", False),
    "kept": ("GET", head(LENGTH, "Connection: keep-alive", status="HTTP/1.0 200 OK") + b"whole", 200, b"whole", True),
    "close": ("GET", head(LENGTH, CLOSE) + b"whole", 200, b"whole", False),
    "close, head": ("HEAD", head(LENGTH, CLOSE), 200, b"", False),
}


@pytest.mark.parametrize("at_once", [1, len(MUCH)], ids=["bytewise", "at once"])
@pytest.mark.parametrize(("method", "answer", "status", "body", "stays"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_is_read_to_its_end_and_its_connection_kept_if_it_may_be(
    method: str, answer: bytes, status: int, body: bytes, stays: bool, at_once: int
) -> None:
    with Server(always(answer, at_once)) as server:
        for _ in range(2):
            response = server.ask(method)
            assert (response.status, response.read(), "Link" in response.headers) == (status, body, False)
        assert server.connections == (1 if stays else 2)


@pytest.mark.parametrize("more", [head(LENGTH, status="HTTP/1.1 500 No") + b"wrong", b"HTTP/1.1 5", b"whatever"])
def test_what_follows_an_answer_unasked_is_no_part_of_it_and_not_left_to_the_next(more: bytes) -> None:
    with Server(always(WHOLE + more)) as server:
        for _ in range(2):
            response = server.ask()
            assert (response.status, response.headers["Content-Length"], response.read()) == (200, "5", b"whole")
        assert server.connections == 2


@pytest.mark.parametrize(("start", "piece", "end"), [(CHUNKED, b"3\r\n%b\r\n", b"0\r\n\r\n"), (head(), b"%b", b"")])
def test_an_answer_is_read_piece_by_piece_as_it_comes(start: bytes, piece: bytes, end: bytes) -> None:
    told = Told()
    with Server(once(start, told)) as server:
        pieces = server.ask().stream()
        for text in (b"one", b"two"):
            told.put(piece % text)
            assert next(pieces) == text
        told.put(end)
        assert list(pieces) == []
        assert len(server.pool._idle) == (1 if end else 0)
        told.put(b"")


def test_headers_are_found_in_any_spelling_and_two_of_one_name_are_both_told() -> None:
    with Server(always(head("X-Some: a", "Empty:", "x-some: é", "Content-Length: 0"))) as server:
        headers = server.ask().headers
    assert [headers["x-SOME"], headers.get("X-SOME"), headers["empty"]] == ["a, é", "a, é", ""]
    assert "X-Some" in headers and "X-Other" not in headers and headers.get("X-Other", "none") == "none"


CUT, NO_HTTP = "before the answer was whole", "does not speak HTTP"
BROKEN: dict[str, tuple[Script, str]] = {
    "nothing": (once(b""), CUT),
    "half a head": (once(WHOLE[:30]), CUT),
    "half a body": (once(HALF), CUT),
    "half a chunk": (once(CHUNKED + b"5\r\nha"), CUT),
    "no last chunk": (once(CHUNKED + b"4\r\nhalf\r\n"), CUT),
    "only hints": (once(HINTS), CUT),
    "reset": (lambda end: (once(HALF)(end), end.connection.setsockopt(*RESET)), "reset"),
    "TLS": (once(b"\x15\x03\x03\x00\x02\x02\x46", lingers=True), NO_HTTP),
    "no chunk": (once(CHUNKED + b"what?\r\n", lingers=True), NO_HTTP),
    "101": (once(head("Connection: upgrade", "Upgrade: x", status="HTTP/1.1 101 Other"), lingers=True), NO_HTTP),
}


@pytest.mark.parametrize(("script", "why"), BROKEN.values(), ids=BROKEN)
def test_what_is_cut_short_or_no_http_is_broken_and_its_connection_not_used_again(script: Script, why: str) -> None:
    with Server(script, always(WHOLE)) as server:
        with pytest.raises(Broken, match=why), server.ask() as response:
            response.read()
        assert server.over.acquire(timeout=LONG_S)
        assert (server.ask().read(), server.connections) == (b"whole", 2)


def test_a_reader_that_waits_is_ended_by_another_thread(papers: Papers) -> None:
    heard = Told()
    with Server(once(HALF, lingers=True), papers=papers) as server, ThreadPoolExecutor(1) as threads:
        with server.ask() as response:
            reading = threads.submit(lambda: [heard.put(piece) for piece in response.stream()])
            assert heard.get(timeout=LONG_S) == b"half"
            response.shutdown()
            with pytest.raises(Broken, match=CUT):
                reading.result(LONG_S)
        response.shutdown()


def test_what_is_still_encrypted_is_no_answer_for_a_reader_that_is_ended(papers: Papers) -> None:
    told = Told()
    begun = once(head("Content-Length: 1000") + b"begun", told)
    with Server(begun, papers=papers) as server, server.ask() as response:
        pieces, heard = response.stream(), [b""]
        assert next(pieces) == b"begun"
        told.put(b"more")
        assert select.select([response._connection], [], [], LONG_S)[0]
        response.shutdown()
        with pytest.raises(Broken, match=CUT):
            heard.extend(pieces)
        assert heard[-1] in (b"", b"more")
        told.put(b"")


def test_a_head_and_a_small_body_leave_in_one_piece(papers: Papers) -> None:
    with Server(always(WHOLE), papers=papers) as server:
        server.ask("POST", body=b"small", headers={"X-Some": "thing"}).read()
    asked = head(f"Host: {server.address}", "X-Some: thing", LENGTH, status="POST / HTTP/1.1")
    assert server.heard == [asked + b"small"], "by TLS one record is received at a time, whatever else has come"


PIECES = [b"one", b"", b"ten or more"]
BODIES: dict[str, tuple[Any, dict[str, str], list[str], bytes]] = {
    "none": (None, {}, [], b""),
    "empty": (b"", {}, ["Content-Length: 0"], b""),
    "large": (MUCH[:600_000], {}, ["Content-Length: 600000"], MUCH[:600_000]),
    "known length": (PIECES, {"content-length": "14"}, ["content-length: 14"], b"".join(PIECES)),
    "unknown length": (PIECES, {}, ["Transfer-Encoding: chunked"], b"3\r\none\r\nb\r\nten or more\r\n0\r\n\r\n"),
    "no pieces": ([], {}, ["Transfer-Encoding: chunked"], b"0\r\n\r\n"),
}


@pytest.mark.parametrize(("body", "headers", "framing", "sent"), BODIES.values(), ids=BODIES)
def test_a_body_is_sent_raw_with_its_length_or_in_chunks(body: Any, headers: Any, framing: Any, sent: Any) -> None:
    with Server(lambda end: (end.hear(until=b"\r\n\r\n" + sent), end.say(WHOLE), end.hear())) as server:
        assert server.ask("PUT", body=body, headers=headers).read() == b"whole"
    asked, _, rest = server.heard[0].partition(b"\r\n\r\n")
    framed = [line for line in asked.decode().split("\r\n") if line.lower().startswith(("content-", "transfer-"))]
    assert (framed, rest, server.heard[1:]) == (framing, sent, [])


@pytest.mark.parametrize("in_pieces", [True, False])
def test_a_server_that_refuses_an_upload_before_it_is_whole_is_heard(in_pieces: bool, papers: Papers) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"x"
        assert server.over.acquire(timeout=LONG_S)
        yield from [MUCH] * 3
        pytest.fail("all of it was sent")

    refusal = once(head(LENGTH, status="HTTP/1.1 413 Content Too Large") + b"never")
    with Server(refusal, always(WHOLE), papers=papers) as server:
        response = server.ask("PUT", body=pieces() if in_pieces else MUCH)
        assert (response.status, response.read()) == (413, b"never")
        assert (server.ask().read(), server.connections) == (b"whole", 2)


TARGETS = {
    "/a b?c= é日": "/a%20b?c=%20%C3%A9%E6%97%A5",
    "/~a-b_c.d/(e)*/%2F?f=[1]&g=h,i;j:@!$'+": "/~a-b_c.d/(e)*/%2F?f=[1]&g=h,i;j:@!$'+",
    '/#"<>\\^`{|}': "/%23%22%3C%3E%5C%5E%60%7B%7C%7D",
    "/a\r\nX-Smuggled: yes": "/a%0D%0AX-Smuggled:%20yes",
}


@pytest.mark.parametrize(("target", "sent"), TARGETS.items())
def test_what_may_not_stand_in_a_target_is_percent_encoded_and_no_password_is_sent(target: str, sent: str) -> None:
    with Server(always(WHOLE)) as server:
        server.ask(target=target, at=f"http://me:secret@{server.address}").read()
        assert server.heard == [head(f"Host: {server.address}", status=f"GET {sent} HTTP/1.1")]


@pytest.mark.parametrize(("method", "name", "value"), [("G\r", "X", ""), ("G", "X\nY", ""), ("G", "X", "a\r\nY: b")])
def test_headers_with_line_breaks_are_refused(method: str, name: str, value: str) -> None:
    with Server(always(WHOLE)) as server:
        with pytest.raises(ValueError, match="several lines"):
            server.ask(method, headers={name: value})
        assert server.connections == 0


@pytest.mark.parametrize(("host", "kind"), [("", NotConnected), ("б.invalid", UnknownHost), ("a" * 64, UnknownHost)])
def test_where_nobody_listens_and_whom_nobody_knows_are_told_apart(host: str, kind: type[NotConnected]) -> None:
    with Server() as server:
        pass
    with pytest.raises(NotConnected, match=r"refused|not known|idna") as caught:
        server.ask(at=f"http://{host or server.address}")
    assert type(caught.value) is kind


SILENT: list[tuple[Script, Any]] = [(once(said, lingers=True), None) for said in (b"", WHOLE[:20], HALF, HINTS)]


@pytest.mark.parametrize(("script", "body"), [*SILENT, (lambda end: end.say(2 * MUCH), 2 * MUCH)])
def test_a_server_that_is_silent_is_not_waited_for_any_longer(script: Script, body: Any, papers: Papers) -> None:
    with Server(script, papers=papers) as server:
        with pytest.raises(ReadTimeout), server.ask(body=body, read_s=0.05) as response:
            response.read()
        assert server.over.acquire(timeout=LONG_S)


@pytest.mark.parametrize(("said", "connect_s", "kind"), [(head(), LONG_S, Insecure), (b"", 0.05, ConnectTimeout)])
def test_a_server_that_speaks_no_tls_is_not_spoken_to(said: bytes, connect_s: float, kind: type[Exception]) -> None:
    with Server(lambda end: (end.connection.recv(1000), end.say(said), end.connection.recv(1000))) as server:
        with pytest.raises(kind, match=r"WRONG_VERSION_NUMBER|timed out"):
            server.ask(at=f"https://{server.address}", connect_s=connect_s)
        assert server.over.acquire(timeout=LONG_S)
