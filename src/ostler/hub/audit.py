"""Who did what to which object, and who was refused: rows that become durable with what they tell of.

A request to a route of ACTIONS carries a note. The first event or commit that it leads to takes the note along, so that
the row is in the same commit as what was done, or says why it was refused. The rows are numbered and bound to each
other by the ledger's one writer, in the order of the commits.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from itertools import takewhile
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from ostler.core.effects import Answer, Effect, Refuse, Reply
from ostler.core.events import (
    CancelRequested,
    DrainRequested,
    Event,
    JobsSubmitted,
    ManifestApplied,
    PriorityRequested,
    RequeueRequested,
)
from ostler.domain.audit import ANCHOR, HEAD, PRUNED, SCOPE, START, AuditRecord, Link, kept_link, seal
from ostler.domain.errors import OstlerError
from ostler.domain.records import Changes, KeptRecord, digest_of
from ostler.domain.retention import DAY_S
from ostler.hub.access import Caller
from ostler.hub.api.routes import Handler, Route
from ostler.ledger.base import Ledger

ACTIONS: dict[tuple[str, str], str] = {
    ("POST", "/v1/jobs"): "job.submit",
    ("POST", "/v1/jobs/{id}/cancel"): "job.cancel",
    ("POST", "/v1/jobs/{id}/requeue"): "job.requeue",
    ("POST", "/v1/jobs/{id}/priority"): "job.priority",
    ("POST", "/v1/job/{id}/cancel"): "job.cancel",
    ("POST", "/v1/job/{id}/requeue"): "job.requeue",
    ("POST", "/v1/sweeps/{name:path}/cancel"): "sweep.cancel",
    ("POST", "/v1/sweeps/{name:path}/requeue"): "sweep.requeue",
    ("POST", "/v1/workers/{id}/drain"): "worker.drain",
    ("POST", "/v1/workers/{id}/resume"): "worker.resume",
    ("POST", "/v1/tokens"): "token.create",
    ("DELETE", "/v1/tokens/{id}"): "token.revoke",
    ("POST", "/v1/tokens/{id}/rotate"): "token.rotate",
    ("POST", "/v1/enrol"): "worker.enrol",
    ("POST", "/v1/enrol/renewed"): "worker.renew",
    ("POST", "/v1/leave"): "worker.leave",
    ("PUT", "/v1/manifest"): "manifest.apply",
    ("POST", "/v1/manifest/reload"): "manifest.reload",
    ("POST", "/v1/models/reload"): "settings.reload",
    ("POST", "/v1/models/{name:path}/load"): "model.load",
    ("POST", "/v1/models/{name:path}/unload"): "model.unload",
    ("POST", "/v1/models/{name:path}/pin"): "model.pin",
    ("POST", "/v1/models/{name:path}/unpin"): "model.unpin",
    ("POST", "/v1/artifacts/gc"): "artifact.gc",
    ("PUT", "/v1/secrets/{name}"): "secret.set",
    ("DELETE", "/v1/secrets/{name}"): "secret.delete",
    ("POST", "/v1/session"): "session.open",
    ("DELETE", "/v1/session"): "session.close",
}
UNAUDITED: dict[tuple[str, str], str] = {
    ("POST", "/v1/jobs/{id}/results"): "reads",
    ("POST", "/v1/whatif"): "reads",
    ("POST", "/v1/artifacts/{id}/verify"): "reads",
    ("PUT", "/v1/model/{sha256}"): "bytes; the job that names them is told of",
    ("PUT", "/v1/snapshots/{sha256}"): "bytes; the job that names them is told of",
    ("PUT", "/v1/checkpoints/{sha256}"): "a worker's work on what it holds",
    ("POST", "/v1/model/{sha256}/direct"): "bytes; the job that names them is told of",
    ("POST", "/v1/snapshots/{sha256}/direct"): "bytes; the job that names them is told of",
    ("POST", "/v1/checkpoints/{sha256}/direct"): "a worker's work on what it holds",
    ("POST", "/v1/tasks/{id}/logs"): "a worker's work on what it holds",
    ("POST", "/v1/job/claim"): "a worker's work on what it holds",
    ("POST", "/v1/job/{id}/heartbeat"): "a worker's work on what it holds",
    ("POST", "/v1/job/{id}/complete"): "a worker's work on what it holds",
    ("POST", "/v1/job/{id}/fail"): "a worker's work on what it holds",
    ("POST", "/v1/models/chat"): "what a model is asked is between it and its user; the last requests are listed",
    ("*", "/services/{name}/{path:path}"): "what a service is asked is between it and its user",
}
"""Routes that may change something, or look as if they did, and write no row: why."""

WINDOW_S = 60.0
MOST_REFUSALS = 100
"""Different callers that are refused within a minute and get a row each; the others share one."""
MOST_OF_A_TOKEN = 10
"""Different things that one token is refused within a minute and that get a row each."""
HEAD_EVERY_S = 3600.0
MAX_OBJECT, MAX_DETAIL = 200, 300
RESOLVED = ("job.", "worker.", "token.", "secret.")
"""Actions whose path may name their object by a part of its id, or by another name: what is done says which it was."""
PRUNED_AT_ONCE = 10_000

SECRETS = "secret"
"""The scope under which the ledger keeps what is sealed: hub/secrets.py says the same word."""

_log = logging.getLogger("ostler.hub")


class Note:
    """What a request is about to do. Whatever it leads to first takes it along."""

    __slots__ = ("row", "taken")

    def __init__(self, row: AuditRecord) -> None:
        self.row = row
        self.taken = False


class Pruning(msgspec.Struct):
    rows: int
    changes: Changes


class Refusal(msgspec.Struct):
    row: AuditRecord
    again: int = 0


_asked: ContextVar[Note | None] = ContextVar("ostler_asked", default=None)


class Audit:
    def __init__(self, kept: dict[str, bytes], wall: Callable[[], float] = time.time) -> None:
        self.head = kept_link(kept, HEAD) or START
        self.wall = wall
        self.wake: Callable[[], None] = lambda: None
        """Told when there are rows that no event brings along."""
        self._by_ref: dict[int, AuditRecord] = {}
        self._loose: list[AuditRecord] = []
        self._refusals: dict[tuple[str, str, str], Refusal] = {}
        self._window_began = 0.0

    # What is done

    def note(self, caller: Caller | None, action: str, about: str = "", source: str = "", **more: str) -> None:
        """With the next commit."""
        self._loose.append(_row(self.wall(), caller, action, about, source, **more))
        self.wake()

    def bind(self, ref: int, event: Event) -> None:
        """The note of the request that asks, if there is one, goes with the answer to this event."""
        note = _asked.get()
        if note is None or note.taken:
            return
        if isinstance(event, ManifestApplied) and event.plan:
            note.taken = True  # it only tells what would change
            return
        self._by_ref[ref] = _taken(note, *_about(event))

    def accompany(self, changes: Changes) -> None:
        """The same for rows that no decision depends on."""
        note = _asked.get()
        if note is not None and not note.taken:
            changes.audit = [*changes.audit, _taken(note, *_about_rows(changes))]

    def answered(self, effects: Sequence[Effect]) -> list[AuditRecord]:
        """The rows of a batch: how each that was asked for ended, and what was noted besides."""
        found, self._loose = self._loose, []
        if self._by_ref:
            replies = [effect for effect in effects if isinstance(effect, Reply)]
            for reply in replies:
                row = self._by_ref.pop(reply.ref, None)
                if row is None:
                    continue
                if isinstance(reply, Refuse):
                    row.outcome, row.detail = "refused", _cut(str(reply.error), MAX_DETAIL)
                elif isinstance(reply, Answer) and not reply.created and reply.ids:
                    row.object, row.detail = f"job/{reply.ids[0]}", "again: it was there already"
                found.append(row)
        return found

    def write(self, ledger: Ledger, changes: Changes) -> None:
        """The commit itself, on the writer's thread: a row has its number only once it is durable."""
        if not changes.audit:
            ledger.commit(changes)
            return
        head = seal(changes.audit, self.head)
        changes.kept = [*changes.kept, KeptRecord(scope=SCOPE, key=HEAD, value=str(head).encode())]
        ledger.commit(changes)
        self.head = head

    # Who is refused

    def refused(self, caller: Caller | None, what: str, why: str, source: str = "") -> None:
        """A row for the first time within a minute, and one for how often it happened again: a flood fills no disk.
        Who brings no token is counted by the address, whatever it asks for."""
        if self.wall() - self._window_began >= WINDOW_S:
            self.settle()
        key = (source, "", "") if caller is None else (source, caller.token_id, what)
        if caller is not None and sum(one[1] == key[1] for one in self._refusals) >= MOST_OF_A_TOKEN:
            key = (source, caller.token_id, "")  # nobody takes up the room of the others
        known = self._refusals.get(key)
        if known is None and len(self._refusals) >= MOST_REFUSALS:
            key, what, why, caller, source = ("", "", ""), "", "many others", None, ""
            known = self._refusals.get(key)
        if known is not None:
            known.again += 1
            return
        row = _row(self.wall(), caller, "refused", what, source, outcome="refused", detail=why)
        self._refusals[key] = Refusal(row)
        self._loose.append(row)
        self.wake()

    def turned_away(self, scope: Scope, error: OstlerError) -> None:
        """The same of a request, or of a socket that would be opened."""
        self.refused(scope.get("ostler.caller"), asked_for(scope), str(error), source_of(scope))

    def settle(self) -> None:
        """What has been counted until now is told, and the minute begins anew."""
        counted, self._refusals, self._window_began = self._refusals, {}, self.wall()
        for refusal in counted.values():
            if refusal.again:
                told = f"and {refusal.again} times more within a minute"
                self._loose.append(msgspec.structs.replace(refusal.row, seq=0, hash="", at=self.wall(), detail=told))
        if self._loose:
            self.wake()

    async def run(self) -> None:
        """For as long as the hub runs. The head is said in the log: a ledger that was cut short does not have it."""
        said, at = START, -HEAD_EVERY_S
        while True:
            if self.head != said and time.monotonic() - at >= HEAD_EVERY_S:
                said, at = self.head, time.monotonic()
                _log.info("audit: the last row is %s", said)
            await asyncio.sleep(WINDOW_S)
            self.settle()

    # What is old

    def pruning(self, ledger: Ledger, before: float) -> "Pruning | None":
        """The rows older than this go, up to so many at once; a new row is the anchor that those left begin behind."""
        old = list(takewhile(lambda row: row.at < before, ledger.oldest_audit(PRUNED_AT_ONCE)))
        if not old or old[0].at >= before - DAY_S:
            return None  # a day's at least: each removal is told of by a row, too
        anchor = Link(old[-1].seq, old[-1].hash)
        told = AuditRecord(at=self.wall(), user="hub", action=PRUNED, object="audit", detail=str(anchor))
        kept = KeptRecord(scope=SCOPE, key=ANCHOR, value=str(anchor).encode())
        return Pruning(len(old), Changes(audit=[told], kept=[kept], gone_audit=anchor.seq))

    # Routes

    def watch(self, routes: Iterable[Route]) -> None:
        """From here on what they do is noted."""
        for route in routes:
            if (action := ACTIONS.get((route.method, route.path))) is not None:
                route.handler = self._watched(route.handler, action)

    def _watched(self, handler: Handler, action: str) -> Handler:
        async def watched(request: Request) -> Response:
            caller: Caller | None = request.scope.get("ostler.caller")
            note = Note(_row(self.wall(), caller, action, _named(request), source_of(request.scope)))
            outer = _asked.set(note)
            try:
                response = await handler(request)
            except OstlerError:
                note.taken = True
                raise
            finally:
                _asked.reset(outer)
            if not note.taken and response.status_code < 400:
                _sign(note.row, request.scope.get("ostler.caller"))
                self._loose.append(_taken(note))
                self.wake()
            return response

        return watched


def source_of(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def asked_for(scope: Scope) -> str:
    """The method and the path: what is behind a `?` is left out."""
    return f"{scope.get('method', 'WS')} {scope.get('path', '')}"[:MAX_OBJECT]


def _row(at: float, caller: Caller | None, action: str, about: str, source: str, **more: str) -> AuditRecord:
    fields: dict[str, Any] = {key: _cut(value, MAX_DETAIL) for key, value in more.items()}
    row = AuditRecord(at=at, action=action, object=_cut(about, MAX_OBJECT), source=source, **fields)
    _sign(row, caller)
    return row


def _sign(row: AuditRecord, caller: Caller | None) -> None:
    if caller is not None:
        row.actor, row.user, row.role = caller.token_id, caller.user, caller.role


def _taken(note: Note, about: str = "", detail: str = "") -> AuditRecord:
    note.taken = True
    if not note.row.object or note.row.action.startswith(RESOLVED):
        note.row.object = _cut(about or note.row.object, MAX_OBJECT)
    note.row.detail = _cut(detail, MAX_DETAIL)
    return note.row


def _cut(text: str, most: int) -> str:
    """What comes from others may be long, and may be no text that can be written."""
    return text[:most].encode(errors="replace").decode()


def _named(request: Request) -> str:
    """`workers/gpu-1`: what the path names, as far as it names something."""
    named = next(iter(request.path_params.values()), "")
    parts = request.scope["path"].split("/")[2:] if named else []
    return f"{parts[0].rstrip('s')}/{named}" if parts else ""


def _about(event: Event) -> tuple[str, str]:
    match event:
        case JobsSubmitted(jobs=jobs) if jobs:
            others = f"and {len(jobs) - 1} others" if len(jobs) > 1 else ""
            return f"job/{jobs[0].id}", others or (jobs[0].name and f"name {jobs[0].name}")
        case PriorityRequested():
            return f"job/{event.job_id}", f"priority {event.priority}"
        case CancelRequested() | RequeueRequested():
            part = "" if event.index is None else f".{event.index}"
            return f"job/{event.job_id}{part}", ""
        case DrainRequested():
            return f"worker/{event.worker_id}", ""
        case ManifestApplied():
            return f"manifest/{event.record.file}", f"sha256 {digest_of(event.record.text.encode())}"
        case _:
            return "", ""


def _about_rows(changes: Changes) -> tuple[str, str]:
    if not changes.tokens:
        names = [kept.key.partition("@") for kept in changes.kept if kept.scope == SECRETS]
        return next(((f"secret/{name}", f"of {owner or 'everybody'}") for name, _, owner in names), ("", ""))
    token = changes.tokens[-1]
    return f"token/{token.id}", f"role {token.role}, user {token.user}"
