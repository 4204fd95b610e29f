"""A real HTTP server that answers each request with the next step of a script."""

import threading
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import msgspec

Step = Callable[[BaseHTTPRequestHandler], None]


class Request(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class ScriptedHub:
    """`with ScriptedHub(step, …) as hub`: the last step answers every further request too."""

    def __init__(self, *steps: Step, port: int = 0) -> None:
        self.requests: list[Request] = []
        self._steps = list(steps)
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with outer._lock:
                    outer.requests.append(Request(self.command, self.path, dict(self.headers), body))
                    step = outer._steps.pop(0) if len(outer._steps) > 1 else outer._steps[0]
                step(self)

            do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = _answer  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "ScriptedHub":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.requests]


def reply(document: Any = None, status: int = 200, content_type: str = "application/json") -> Step:
    body = document if isinstance(document, bytes) else msgspec.json.encode(document if document is not None else {})

    def step(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", content_type)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)

    return step


def problem(status: int, detail: str, errors: Iterable[tuple[str, str]] = ()) -> Step:
    document = {"type": "urn:ostler:test", "title": "test", "status": status, "detail": detail}
    listed = [{"where": where, "what": what} for where, what in errors]
    return reply({**document, **({"errors": listed} if listed else {})}, status, "application/problem+json")


def drop(handler: BaseHTTPRequestHandler) -> None:
    """The request was read, and the connection breaks before an answer."""
    handler.close_connection = True
    handler.connection.shutdown(2)


def stall(over: threading.Event) -> Step:
    """The request was read, and nothing is said before this is set; then the connection ends."""

    def step(handler: BaseHTTPRequestHandler) -> None:
        over.wait(60)
        handler.close_connection = True

    return step


def stream(*chunks: bytes, cut: bool = False, content_type: str = "text/plain") -> Step:
    """A chunked answer; with `cut` its connection breaks before its end."""

    def step(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", content_type)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for chunk in chunks:
            handler.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        if cut:
            drop(handler)
        else:
            handler.wfile.write(b"0\r\n\r\n")

    return step
