"""The client's HTTP/1.1 against a real server that says, byte by byte, what it is told to."""

import contextlib
import queue
import re
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.tls.papers import context_for, identity

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
from ostler.tls import is_untrusted

LONG_S = 20.0
OK = b"HTTP/1.1 200 OK\r\n"
WHOLE = OK + b"Content-Length: 5\r\n\r\nwhole"
HALF = OK + b"Content-Length: 10\r\n\r\nhalf"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


class End:
    """The server's end of a connection."""

    def __init__(self, connection: socket.socket, heard: list[bytes]) -> None:
        self.connection = connection
        self._heard = heard

    def hear(self, until: bytes = b"") -> bytes:
        """A request to its end, or as far as this. EOFError: the client has gone."""
        data = b""
        while not (data.endswith(until) if until else _is_whole(data)):
            more = self.connection.recv(65536)
            if not more:
                raise EOFError
            data += more
        self._heard.append(data)
        return data

    def say(self, data: bytes, at_once: int = 1 << 20) -> None:
        for first in range(0, len(data), at_once):
            self.connection.sendall(data[first : first + at_once])


def _is_whole(data: bytes) -> bool:
    head, ended, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    return bool(ended) and len(body) == (int(length[1]) if length else 0)


Script = Callable[[End], Any]


class Server:
    """`with Server(script, …) as server`: each connection follows the next script, and is closed at its end; the last
    one is for all further connections. `pool` asks there. What went wrong in a script is raised at the end."""

    def __init__(self, *scripts: Script, papers: "Papers | None" = None) -> None:
        self.connections = 0
        self.heard: list[bytes] = []
        self.over = threading.Semaphore(0)
        """For each connection that is closed, by whichever side."""
        self._scripts = scripts
        self._context = papers and papers.server
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._failures: list[BaseException] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.pool = Pool(
            f"{'https' if papers else 'http'}://127.0.0.1:{self.port}", papers.client if papers else None
        )

    def __enter__(self) -> "Server":
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for connection in self._open:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join(LONG_S)
        self._listener.close()
        for failure in self._failures:
            raise failure

    def ask(self, method: str = "GET", target: str = "/", **options: Any) -> Response:
        return ask(self.pool, method, target, **options)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.settimeout(LONG_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                script = self._scripts[min(self.connections, len(self._scripts) - 1)]
                self.connections += 1
                self._open.append(connection)
                self._threads.append(threading.Thread(target=self._follow, args=(connection, script)))
                self._threads[-1].start()

    def _follow(self, connection: socket.socket, script: Script) -> None:
        try:
            if self._context:
                connection = self._context.wrap_socket(connection, server_side=True)
                self._open.append(connection)
            script(End(connection, self.heard))
        except (EOFError, ConnectionError, ssl.SSLError):
            pass
        except BaseException as error:
            self._failures.append(error)
        finally:
            connection.close()
            self.over.release()


def ask(pool: Pool, method: str = "GET", target: str = "/", **options: Any) -> Response:
    return pool.request(method, target, **{"headers": {}, "connect_s": LONG_S, "read_s": LONG_S, **options})


def always(answer: bytes, at_once: int = 1 << 20) -> Script:
    def script(end: End) -> None:
        while end.hear():
            end.say(answer, at_once)

    return script


def once(answer: bytes) -> Script:
    """And then the connection is closed."""

    def script(end: End) -> None:
        end.hear()
        end.say(answer)

    return script


def lingering(answer: bytes) -> Script:
    """And then nothing more is said, until the client goes."""

    def script(end: End) -> None:
        end.hear()
        end.say(answer)
        end.hear()

    return script


class Papers(NamedTuple):
    server: ssl.SSLContext
    client: ssl.SSLContext


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    folder: Path = tmp_path_factory.mktemp("papers")
    return Papers(identity(folder).context, context_for(folder))


@pytest.fixture(params=["plain", "tls"])
def either(request: pytest.FixtureRequest, papers: Papers) -> Papers | None:
    """Without TLS, and with it."""
    return papers if request.param == "tls" else None


# EXPLORE

def test_x_empty_header() -> None:
    with Server(always(OK + b"X-Empty:\r\nX-Two: 1\r\nContent-Length: 0\r\n\r\n", 1)) as server:
        r = server.ask()
        print(r.status, r.headers)
        assert 0

@pytest.mark.parametrize("extra", [b"HTTP/1.1 500 Bad\r\nContent-Length: 1\r\n\r\nx", b"\r\n", b"junk", b"HTTP/1.1 5"])
@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
def test_x_more(extra, close) -> None:
    with Server(always(OK + close + b"Content-Length: 5\r\n\r\nwhole" + extra)) as server:
        r = server.ask()
        print(r.status, r.headers, r.read(), server.pool._idle)
        assert 0

def test_x_cycle() -> None:
    import gc, weakref
    gc.disable()
    with Server(always(WHOLE)) as server:
        r = server.ask()
        r.read()
        w = weakref.ref(r)
        del r
        print(w())
        gc.enable()
        assert 0

def test_x_cipher(papers) -> None:
    more = threading.Event()
    def script(end):
        end.hear(); end.say(HALF); more.wait(20); end.say(b"more"); end.hear()
    with Server(script, papers=papers) as server:
        r = server.ask()
        s = r.stream()
        print(next(s))
        more.set()
        select.select([r._connection], [], [], 30)
        r.shutdown()
        try:
            for p in s: print(p)
        except Exception as e:
            print(repr(e))
        assert 0

@pytest.mark.parametrize("host", ["nowhere.invalid", "a"*64+".org", "a..b", "хаб", "bücher"])
def test_x_host(host) -> None:
    import time
    t=time.time()
    try: ask(Pool("http://"+host))
    except Exception as e: print(repr(e), time.time()-t)
    assert 0
