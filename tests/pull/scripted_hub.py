"""The hub's side of the pull API, small and obedient: jobs are put in, what comes back is looked at."""

import hashlib
import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

PATIENCE_S = 60.0
Document = dict[str, Any]


class Said(NamedTuple):
    """One call of a worker about a job."""

    word: str
    job_id: str
    body: Document


class Upload(NamedTuple):
    """What one PUT brought, and from where."""

    content_range: str
    size: int


class ScriptedPullHub:
    """`with ScriptedPullHub() as hub`. Every attribute may be changed while it runs; `wait` says when something has come."""

    def __init__(self, base: str = "") -> None:
        self.base = base
        self.queue: list[Document] = []
        self.reason = "nothing waits"
        self.token = "a-token"
        self.cancel = False
        self.taken = False
        self.is_away = False
        """It takes connections and breaks them."""
        self.failing: dict[str, int] = {}
        """How often a word is still answered by 503."""
        self.cut_after: list[int] = []
        """Of the next uploads: how many bytes are read before the connection breaks."""
        self.damages_parts = False
        self.said: list[Said] = []
        self.uploads: list[Upload] = []
        self.artifacts: dict[str, bytes] = {}
        self.parts: dict[str, bytearray] = {}
        self.logs: dict[str, bytes] = {}
        self._changed = threading.Condition()
        outer = self

        class Handler(_Handler):
            hub = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}{base}"

    def __enter__(self) -> "ScriptedPullHub":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    # What a test does

    def add(self, *command: str, job_id: str = "j", **more: Any) -> None:
        attempt = hashlib.sha256(f"{job_id}/{len(self.queue)}/{id(self)}".encode()).hexdigest()[:24]
        job = {"job_id": job_id, "task_id": job_id, "name": f"{job_id}'s name", "attempt": attempt, "lease_s": 600}
        self.queue.append({**job, "command": list(command), "env": {}, **more})

    def wait(self, holds: Callable[[], Any], what: str) -> Any:
        """What `holds` gives as soon as it is true; asked again after every call of a worker."""
        with self._changed:
            assert self._changed.wait_for(holds, PATIENCE_S), f"it never happened that {what}: {self.said}"
            return holds()

    def wait_for(self, word: str, job_id: str = "j", **body: Any) -> Document:
        """The body of the first such call that has this in it."""

        def found() -> list[Said]:
            return [one for one in self.of(word, job_id) if body.items() <= one.body.items()]

        return self.wait(found, f"{word} of {job_id} with {body}")[0].body  # type: ignore[no-any-return]

    def of(self, word: str, job_id: str = "j") -> list[Said]:
        return [one for one in self.said if (one.word, one.job_id) == (word, job_id)]

    # What a worker does

    def hear(self, word: str, job_id: str, body: Document) -> tuple[int, Document | None]:
        with self._changed:
            self._changed.notify_all()
            if self.failing.get(word, 0) > 0:
                self.failing[word] -= 1
                return 503, {"detail": "not now"}
            self.said.append(Said(word, job_id, body))
            if word == "claim":
                return (200, self.queue.pop(0)) if self.queue else (204, None)
            if self.taken:
                return 409, {"detail": f"{job_id} is not {body['hostname']}'s"}
            if word == "complete" and body.get("artifact_id", "") not in ("", *self.artifacts):
                return 422, {"detail": "unknown artifact"}
            return 200, {"cancel": self.cancel}

    def append(self, attempt: str, offset: int, data: bytes) -> tuple[int, Document]:
        with self._changed:
            self._changed.notify_all()
            have = self.logs.setdefault(attempt, b"")
            if offset != len(have):
                return 409, {"detail": "go on from there", "size": len(have)}
            self.logs[attempt] = have + data
            return 200, {"size": len(self.logs[attempt])}

    def store(self, sha256: str, whole: bytes) -> tuple[int, Document]:
        with self._changed:
            self._changed.notify_all()
            self.parts.pop(sha256, None)
            if hashlib.sha256(whole).hexdigest() != sha256:
                return 422, {"detail": "the hash differs"}
            self.artifacts[sha256] = whole
            return 201, {}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: ScriptedPullHub

    def handle_one_request(self) -> None:
        if self.hub.is_away:
            self.close_connection = True
            return
        super().handle_one_request()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        url = urlsplit(self.path)
        path = url.path.removeprefix(self.hub.base)
        if self.headers["Authorization"] != f"Bearer {self.hub.token}":
            self.reply(401, {"title": "not authenticated", "status": 401, "detail": "bring a valid token"})
        elif log := re.fullmatch("/v1/tasks/([^/]+)/logs", path):
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            assert log[1]
            self.reply(*self.hub.append(query["attempt"], int(query["offset"]), body))
        elif path == "/v1/job/claim":
            self.reply(*self.hub.hear("claim", "", json.loads(body)))
        elif call := re.fullmatch("/v1/job/([^/]+)/(heartbeat|complete|fail)", path):
            self.reply(*self.hub.hear(call[2], call[1], json.loads(body)))
        else:
            self.reply(404, {"detail": f"there is no {self.path}"})

    def do_HEAD(self) -> None:
        sha256 = self.path.rpartition("/")[2]
        if sha256 in self.hub.artifacts:
            self.reply(200, None, {"Upload-Offset": str(len(self.hub.artifacts[sha256])), "Ostler-Complete": "1"})
        else:
            have = len(self.hub.parts.get(sha256, b""))
            self.reply(200 if have else 404, None, {"Upload-Offset": str(have)})

    def do_PUT(self) -> None:
        sha256, length = self.path.rpartition("/")[2], int(self.headers["Content-Length"])
        cut = self.hub.cut_after.pop(0) if self.hub.cut_after else length
        span = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", self.headers["Content-Range"] or "")
        part = self.hub.parts.setdefault(sha256, bytearray())
        if span is None:
            part.clear()
        elif int(span[1]) != len(part):
            self.close_connection = True
            self.reply(409, {"detail": "it begins elsewhere"}, {"Upload-Offset": str(len(part))})
            return
        data = self.rfile.read(min(cut, length))
        part += bytes(len(data)) if self.hub.damages_parts and len(data) < length else data
        self.hub.uploads.append(Upload(span[0] if span else "", len(data)))
        if len(data) < length:
            self.close_connection = True
            self.connection.shutdown(2)
        else:
            self.reply(*self.hub.store(sha256, bytes(part)))

    def reply(self, status: int, document: Document | None, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(document).encode() if document is not None else b""
        self.send_response(status)
        if status == 204:
            self.send_header("Ostler-Reason", self.hub.reason)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/problem+json" if status >= 400 else "application/json")
        if self.command != "HEAD" and status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass
