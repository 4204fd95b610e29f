"""The hub's HTTP interface as plain calls: documents in, documents out. The Python client and the commands share it."""

import base64
import copy
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO
from urllib.parse import quote

import msgspec

from ostler.client import direct
from ostler.client.errors import BadInput, HubFailed, HubUnreachable, NotFound
from ostler.client.logs import follow as follow_log
from ostler.client.logs import tail
from ostler.client.streams import QUIET_S, Outage, Stream, is_quiet, server_sent_events
from ostler.client.transport import READ_S, Answer, Patience, Query, Transport, Upload
from ostler.domain.job import JobSpec
from ostler.tls import Trust

Document = dict[str, Any]
Spec = JobSpec | Mapping[str, Any]

PAGE = 500
RESULTS_PER_CALL = 1000
LONGEST_WAIT_S = 25.0
"""Per request: shorter than what proxies take for a dead connection."""
ASK_FIRST_BYTES = 1024 * 1024
VERIFY_S = 3600.0
"""For the hub to read large files again."""


class Hub:
    """One hub, as one user. Safe to use from several threads; `close` when done."""

    def __init__(
        self, url: str, token: str = "", *, patience: Patience | None = None, trust: Trust | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self.patience = patience or Patience()
        self._transport = Transport(self.url, token, self.patience, trust)

    @property
    def address(self) -> str:
        """That of the hub that answers, where `url` names several."""
        return self._transport.addresses.current

    def credentials(self) -> tuple[dict[str, str], Trust]:
        """For a WebSocket to `address`: its headers, and by what the hub is known."""
        return self._transport.credentials()

    def unreachable(self, error: Exception) -> HubUnreachable:
        return self._transport.unreachable(error)

    def until(self, deadline: float | None) -> "Hub":
        """The same hub, for whoever waits no longer than until then: no request outlasts that by more than a moment."""
        if deadline is None:
            return self
        other = copy.copy(self)
        other._transport = self._transport.until(deadline)
        return other

    @property
    def is_closed(self) -> bool:
        return self._transport.closed.is_set()

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> "Hub":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Jobs

    def submit(self, spec: Spec | Sequence[Spec], *, key: str | None = None) -> Document:
        """{"id", "state", "notes"} of one spec, {"ids"} of several: all of them or none.

        Every submit has a key, so one that was cut off may be sent again: the hub makes the job once.
        """
        headers = {"Content-Type": "application/json", "Idempotency-Key": key or os.urandom(16).hex()}
        body = msgspec.json.encode(spec)
        return _document(self._transport.request("POST", "/v1/jobs", body=body, headers=headers, insist=True))

    def job(self, job_id: str, wait: float | None = None) -> Document:
        """The job. With `wait` the answer comes when it has ended, or after so many seconds (25 at most)."""
        if wait is not None:
            wait = max(0.0, min(wait, LONGEST_WAIT_S))
        return self._get(_job(job_id), {"wait": wait}, read_s=READ_S + (wait or 0.0))

    def jobs(
        self,
        *,
        state: str | Iterable[str] | None = None,
        status: str | None = None,
        name: str | None = None,
        user: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Document:
        """One page {"jobs", "next"}, newest first."""
        states = state if state is None or isinstance(state, str) else ",".join(state)
        query = {"state": states, "status": status, "name": name, "user": user, "limit": limit, "cursor": cursor}
        return self._get("/v1/jobs", query)

    def all_jobs(self, *, limit: int | None = None, **filters: Any) -> Iterator[Document]:
        """Jobs, newest first, page after page; `filters` are those of `jobs`."""
        cursor: str | None = None
        while limit is None or limit > 0:
            page = self.jobs(limit=PAGE if limit is None else min(limit, PAGE), cursor=cursor, **filters)
            yield from page["jobs"]
            cursor = page.get("next")
            if cursor is None or not page["jobs"]:
                return
            limit = None if limit is None else limit - len(page["jobs"])

    def tasks(
        self, job_id: str, *, after: int | None = None, limit: int | None = None, ended: bool = False
    ) -> Document:
        """One page {"tasks", "next"} of an array's tasks, those after this index; `ended`: of these only the ones that
        have ended, with their values where they are small."""
        return self._get(_job(job_id) + "/tasks", {"after": after, "limit": limit, "ended": 1 if ended else None})

    def all_tasks(self, job_id: str) -> Iterator[Document]:
        after: int | None = None
        while True:
            page = self.tasks(job_id, after=after, limit=PAGE)
            yield from page["tasks"]
            after = page.get("next")
            if after is None or not page["tasks"]:
                return

    def why(self, job_id: str, *, brief: bool = False) -> Document:
        """`brief`: only what keeps it where it is, without what would change that and when."""
        return self._get(_job(job_id) + "/why", {"brief": 1 if brief else None})

    def queue(self, limit: int = 100) -> Document:
        """Who is next, in order, and who has used how much."""
        return self._get("/v1/queue", {"limit": limit})

    def estimate(self, job_id: str) -> Document:
        """When it begins and ends, as far as can be foreseen."""
        return self._get(_job(job_id) + "/estimate")

    def whatif(self, question: Mapping[str, Any]) -> Document:
        """What would start when, if this were so; nothing is changed."""
        return self._post("/v1/whatif", dict(question))

    def job_events(self, job_id: str) -> list[Document]:
        found: list[Document] = []
        after: int | None = 0
        while after is not None:
            page = self._get(_job(job_id) + "/events", {"after": after})
            found += page["events"]
            after = page.get("next")
        return found

    def cancel(self, job_id: str) -> Document:
        return self._post(_job(job_id) + "/cancel")

    def prioritize(self, job_id: str, priority: int) -> Document:
        """Among which others it waits from now on."""
        return self._post(_job(job_id) + "/priority", {"priority": priority})

    def requeue(self, job_id: str) -> Document:
        # Not sent twice: the second would throw away the run that the first has started.
        return self._post(_job(job_id) + "/requeue", repeatable=False)

    def result(self, job_id: str) -> bytes:
        """What the function's process wrote, unopened; NotFound where there is nothing."""
        return self._transport.request("GET", _job(job_id) + "/result").body

    def results(self, job_id: str, indices: Sequence[int]) -> tuple[dict[int, bytes], list[int]]:
        """The results of those of an array's tasks that have one, and those that were too much for one answer.
        No more than RESULTS_PER_CALL are looked at."""
        page = self._post(_job(job_id) + "/results", {"indices": indices})
        found = {int(index): base64.b64decode(text) for index, text in page["results"].items()}
        return found, page.get("left_out") or []  # an older hub leaves none out

    # Logs

    def logs(self, job_id: str, follow: bool = False, offset: int = 0, attempt: str | None = None) -> Iterator[bytes]:
        """The output from this byte on. Followed, it ends with the job and is not broken by a hub that restarts."""
        if follow:
            return follow_log(self, job_id, offset, attempt)
        return self.open_log(job_id, False, offset, attempt).chunks()

    def log_tail(self, job_id: str) -> str:
        return tail(self, job_id)

    def open_log(self, job_id: str, follow: bool, offset: int, attempt: str | None, tail: int = 0) -> Stream:
        """One connection to a log, for a reader that wants to know when it breaks; `tail`: only of its last bytes."""
        query = {"follow": 1 if follow else None, "offset": offset or None, "attempt": attempt, "tail": tail or None}
        return Stream(self._transport, self._transport.stream(_job(job_id) + "/logs", query=query, read_s=QUIET_S))

    # The feed

    def events(self, after: int | None = None) -> Iterator[Document]:
        """Every change as it is told, for ever; after this number, or from now on."""
        outage = Outage(self.patience)
        while True:
            try:
                for event in server_sent_events(outage.over_with(self.open_events(after).chunks())):
                    after = event.get("seq", after)
                    yield event
            except HubUnreachable as error:
                if not is_quiet(error):
                    outage.endure(error)

    def open_events(self, after: int | None = None) -> Stream:
        """One connection to the feed, for a reader that wants to know when it breaks."""
        headers = {"Accept": "text/event-stream"}
        if after is not None:
            headers["Last-Event-ID"] = str(after)
        return Stream(self._transport, self._transport.stream("/v1/events", headers=headers, read_s=QUIET_S))

    # Workers and the fleet

    def workers(self) -> list[Document]:
        found: list[Document] = []
        cursor: str | None = None
        while True:
            page = self._get("/v1/workers", {"cursor": cursor})
            found += page["workers"]
            cursor = page.get("next")
            if cursor is None:
                return found

    def worker(self, worker_id: str) -> Document:
        return self._get(_worker(worker_id))

    def drain(self, worker_id: str) -> Document:
        return self._post(_worker(worker_id) + "/drain")

    def resume(self, worker_id: str) -> Document:
        return self._post(_worker(worker_id) + "/resume")

    def status(self) -> Document:
        return self._get("/v1/status")

    def health(self) -> Document:
        return self._get("/v1/health")

    def metrics(self) -> str:
        """As Prometheus reads them."""
        return self._transport.request("GET", "/metrics").body.decode()

    def description(self) -> bytes:
        """OpenAPI: what a client in any language can be made from."""
        return self._transport.request("GET", "/openapi.json").body

    def me(self) -> Document:
        return self._get("/v1/me")

    # The manifest and its sweeps

    def apply_manifest(self, text: bytes, *, file: str = "", plan: bool = False, replace: bool = False) -> Document:
        """Makes the queue follow this TOML: {"inserted", "unchanged", "updated", "absent", "jobs"}.

        A `plan` only answers what would change. With `replace`, jobs that exist may get other names.
        """
        query = {"plan": 1 if plan else None, "replace": 1 if replace else None, "file": file or None}
        headers = {"Content-Type": "application/toml"}
        return _document(self._transport.request("PUT", "/v1/manifest", query=query, body=text, headers=headers))

    def manifest(self) -> str:
        """The manifest that was applied last, as it was sent."""
        return self._transport.request("GET", "/v1/manifest").body.decode("utf-8", "replace")

    def reload_manifest(self, *, plan: bool = False, replace: bool = False) -> Document:
        """Has the hub read its own manifest file again and follow it.

        A `plan` only answers what would change, with the file's name and text. See `apply_manifest` for `replace`.
        """
        query = {"plan": 1 if plan else None, "replace": 1 if replace else None}
        return _document(self._transport.request("POST", "/v1/manifest/reload", query=query))

    def sweeps(self) -> list[Document]:
        found: list[Document] = self._get("/v1/sweeps")["sweeps"]
        return found

    def sweep(self, name: str, *, metric: str | None = None) -> Document:
        """The sweep of this name, or beginning of one, and under "jobs" its points; compared by this metric."""
        return self._get(_sweep(name), {"metric": metric})

    def cancel_sweep(self, name: str) -> Document:
        return self._post(_sweep(name) + "/cancel")

    def requeue_sweep(self, name: str) -> Document:
        # Not sent twice: the second would throw away the runs that the first has started.
        return self._post(_sweep(name) + "/requeue", repeatable=False)

    # Artifacts

    def artifacts(
        self, *, job: str | None = None, model: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Document:
        """One page {"artifacts", "next"}, newest first."""
        return self._get("/v1/artifacts", {"job": job, "model": model, "limit": limit, "cursor": cursor})

    def all_artifacts(self, **filters: Any) -> Iterator[Document]:
        """Artifacts, newest first, page after page; `filters` are those of `artifacts`."""
        cursor: str | None = None
        while True:
            page = self.artifacts(limit=PAGE, cursor=cursor, **filters)
            yield from page["artifacts"]
            cursor = page.get("next")
            if cursor is None:
                return

    def artifact(self, artifact_id: str) -> Document:
        """By its id, or an unambiguous beginning of that."""
        return self._get(_artifact(artifact_id))

    def verify_artifact(self, artifact_id: str) -> Document:
        """{"id", "ok", "here"}, when the hub has read all of it again."""
        path = _artifact(artifact_id) + "/verify"
        return _document(self._transport.request("POST", path, body=b"", read_s=VERIFY_S))

    def collect_artifacts(self, *, older_than_s: float | None = None, dry_run: bool = False) -> Document:
        """Remove what no succeeded job points to: {"removed", "bytes", "dry_run", "older_than_s"}; or only tell.
        What is younger than a minute stays in any case."""
        age = None if older_than_s is None else int(older_than_s)
        query = {"older_than_s": age, "dry_run": 1 if dry_run else None}
        return _document(self._transport.request("POST", "/v1/artifacts/gc", query=query, body=b"", read_s=VERIFY_S))

    def open_artifact(self, artifact_id: str, offset: int = 0) -> tuple[Stream, int]:
        """One connection to its bytes, and the first one that comes: not every proxy can begin in the middle."""
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        path = "/v1/model/" + _part(artifact_id, "artifact")
        asked = self._transport.stream(path, query=direct.ASKED, headers=headers, read_s=QUIET_S)
        response = direct.followed(asked, headers) or self._transport.stream(path, headers=headers, read_s=QUIET_S)
        return Stream(self._transport, response), offset if response.status == 206 else 0

    # The gateway's models

    def models(self) -> list[Document]:
        found: list[Document] = self._get("/v1/models")["models"]
        return found

    def models_config(self) -> Document:
        """The file that says what models there are, and what is wrong with it."""
        found: Document = self._get("/v1/models")["config"]
        return found

    def reload_models(self) -> Document:
        return self._post("/v1/models/reload")

    def change_model(self, name: str, action: str) -> Document:
        """`load`, `unload`, `pin` or `unpin` it; how it is then, which for the first two is rarely the end of it."""
        return self._post(f"/v1/models/{_part(name, 'model')}/{action}")

    # Tokens

    def tokens(self) -> list[Document]:
        found: list[Document] = self._get("/v1/tokens")["tokens"]
        return found

    def create_token(self, role: str, user: str = "", expires_s: float | None = None) -> Document:
        # Not sent twice: the first one's secret would be lost, and the token would stay.
        return self._post("/v1/tokens", {"role": role, "user": user, "expires_s": expires_s}, repeatable=False)

    def rotate_token(self, token_id: str) -> Document:
        # Not sent twice: the first one's secret would be lost.
        return self._post("/v1/tokens/" + _part(token_id, "token") + "/rotate", repeatable=False)

    def revoke_token(self, token_id: str) -> None:
        self._transport.request("DELETE", "/v1/tokens/" + _part(token_id, "token"))

    # The audit

    def audit(
        self,
        *,
        since: float | None = None,
        actor: str | None = None,
        object: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Document:
        """One page {"rows", "next"}, newest first, and where the chain of the rows ends and begins."""
        query = {"since": since, "actor": actor, "object": object, "limit": limit, "cursor": cursor}
        return self._get("/v1/audit", query)

    # Secrets

    def secrets(self) -> list[Document]:
        """Whose they are and who set them; never what is in them."""
        found: list[Document] = self._get("/v1/secrets")["secrets"]
        return found

    def set_secret(self, name: str, value: bytes, *, user: str | None = None, fleet: bool = False) -> Document:
        headers = {"Content-Type": "application/octet-stream"}
        query = {"user": user, "fleet": 1 if fleet else None}
        path = "/v1/secrets/" + _part(name, "secret")
        return _document(self._transport.request("PUT", path, query=query, body=value, headers=headers))

    def delete_secret(self, name: str, *, user: str | None = None, fleet: bool = False) -> None:
        query = {"user": user, "fleet": 1 if fleet else None}
        self._transport.request("DELETE", "/v1/secrets/" + _part(name, "secret"), query=query)

    # A machine that joins or leaves, with a token of its own

    def enrol(self, name: str) -> str:
        """A worker's own token for the join token that this object brings. Not sent twice: that one is spent."""
        return str(self._post("/v1/enrol", {"name": name}, repeatable=False)["token"])

    def seen(self) -> Document:
        """How the hub sees the worker whose own token this object brings."""
        return self._get("/v1/enrol")

    def leave(self) -> None:
        self._post("/v1/leave", repeatable=False)

    # Blobs

    def put_blob(self, data: bytes) -> str:
        """Store these bytes under their SHA-256, which is returned. What is there already is not sent again."""
        digest = hashlib.sha256(data).hexdigest()
        if len(data) >= ASK_FIRST_BYTES and self.has_blob(digest):
            return digest
        headers = {"Content-Type": "application/octet-stream"}
        self._transport.request("PUT", f"/v1/snapshots/{digest}", body=data, headers=headers, insist=True)
        return digest

    def put_file(
        self, file: BinaryIO, digest: str, size: int, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Store what is in this file, from its beginning, under its SHA-256. It is never in memory as a whole."""
        if direct.bring(self._transport, f"/v1/snapshots/{digest}", file, size, progress):
            return
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        body = Upload(file, size, progress)
        self._transport.request("PUT", f"/v1/snapshots/{digest}", body=body, headers=headers, insist=True)

    def get_blob(self, digest: str) -> bytes:
        return self._transport.request("GET", f"/v1/snapshots/{digest}").body

    def has_blob(self, digest: str) -> bool:
        try:
            self._transport.request("HEAD", f"/v1/snapshots/{digest}")
        except NotFound:
            return False
        return True

    # The two shapes that nearly every call has

    def _get(self, path: str, query: Query | None = None, read_s: float = READ_S) -> Document:
        return _document(self._transport.request("GET", path, query=query, read_s=read_s))

    def _post(self, path: str, body: Any = None, *, repeatable: bool = True) -> Document:
        data = b"" if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json"}
        return _document(self._transport.request("POST", path, body=data, headers=headers, repeatable=repeatable))


def _document(answer: Answer) -> Document:
    try:
        return msgspec.json.decode(answer.body, type=dict[str, Any]) if answer.body else {}
    except msgspec.DecodeError:
        raise HubFailed("what answers there is not an Ostler hub: its answer is no JSON object") from None


def _job(job_id: str) -> str:
    return "/v1/jobs/" + _part(job_id, "job")


def _worker(worker_id: str) -> str:
    return "/v1/workers/" + _part(worker_id, "worker")


def _artifact(artifact_id: str) -> str:
    return "/v1/artifacts/" + _part(artifact_id, "artifact")


def _sweep(name: str) -> str:
    return "/v1/sweeps/" + _part(name, "sweep")


def _part(text: str, what: str) -> str:
    """An id or a name as one part of a path: no name may lead to another address."""
    if not isinstance(text, str):
        raise BadInput(f"a {what}'s id is a string, not {type(text).__name__}")
    if text.strip(".") == "":
        raise NotFound(f"no {what} is called {text!r}")
    return quote(text, safe="")
