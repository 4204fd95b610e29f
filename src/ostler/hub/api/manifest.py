"""The manifest over HTTP: apply, plan, reload, show."""

import asyncio
import logging
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ostler.core.effects import Followed, ManifestLine
from ostler.core.events import ManifestApplied
from ostler.core.fleet import Worker
from ostler.core.foresight.explain import Standing, who_could
from ostler.core.manifest import CHANGES, ORIGIN
from ostler.domain.errors import BadInput, Conflict, NoSpace, NotFound, QuotaExceeded
from ostler.domain.records import ManifestRecord
from ostler.domain.states import STATUS
from ostler.hub.api.routes import caller_of, json_response, read_body
from ostler.hub.loop import Loop
from ostler.hub.new_job import new_job
from ostler.manifest import Manifest, read
from ostler.manifest.read import MAX_BYTES

DEFAULT_FILE = "manifest.toml"
_log = logging.getLogger("ostler.hub")


class ManifestApi:
    def __init__(self, loop: Loop, file: Path | None) -> None:
        self._loop = loop
        self._file = file
        self.room: Callable[[], None] = lambda: None
        """NoSpace where there is no room for more jobs."""

    async def apply(self, request: Request) -> Response:
        text = await read_body(request, MAX_BYTES)
        query = request.query_params
        name = Path(query.get("file") or DEFAULT_FILE).name
        manifest = await asyncio.to_thread(read, text, name)
        plan, replace = _is_set(request, "plan"), _is_set(request, "replace")
        found = await self.follow(manifest, text, name, caller_of(request).user, plan=plan, replace=replace)
        return json_response(found)

    async def reload(self, request: Request) -> Response:
        if self._file is None:
            raise BadInput(
                "the hub was started without --manifest FILE: there is nothing to read again; use `ostler apply FILE`"
            )
        try:
            text, manifest = await asyncio.to_thread(read_file, self._file)
        except BadInput as error:
            raise BadInput(str(error), error.errors) from None  # 422, also of what is no TOML at all
        user, plan, replace = caller_of(request).user, _is_set(request, "plan"), _is_set(request, "replace")
        found = await self.follow(manifest, text, self._file.name, user, plan=plan, replace=replace)
        return json_response({**found, "file": self._file.name, "text": text.decode()} if plan else found)

    async def follow_file(self) -> None:
        """At the hub's start. A conflict with jobs that are there must not keep a hub from starting: it is logged."""
        if self._file is None:
            return
        text, manifest = await asyncio.to_thread(read_file, self._file)
        try:
            await self.follow(manifest, text, self._file.name, "admin")
        except (Conflict, QuotaExceeded, NoSpace) as error:
            _log.error("the manifest %s was not applied: %s", self._file, error)

    async def show(self, request: Request) -> Response:
        record = await self._loop.read(lambda ledger: ledger.manifest())
        if record is None:
            raise NotFound("no manifest has been applied; use `ostler apply FILE`")
        return Response(record.text, media_type="application/toml")

    async def follow(
        self, manifest: Manifest, text: bytes, file: str, by: str, *, plan: bool = False, replace: bool = False
    ) -> dict[str, Any]:
        """Make the queue follow it, or only tell what would change."""
        if not plan:
            self.room()
        jobs = await asyncio.to_thread(lambda: [new_job(spec, origin=ORIGIN) for spec in manifest.specs])
        record = ManifestRecord(text=text.decode(), file=file, by=by, applied_at=0.0)
        reply = await self._loop.ask_any(
            lambda ref: ManifestApplied(
                ref=ref, jobs=jobs, hosts=manifest.hosts, record=record, plan=plan, replace=replace
            )
        )
        assert isinstance(reply, Followed)
        standings = await self._standings(manifest) if plan else []
        counts: dict[str, Any] = dict.fromkeys(CHANGES, 0)
        for line in reply.lines:
            counts[line.change] += 1
        # The lines of the manifest's jobs come first, in its order; those of absent jobs follow.
        pairs = zip_longest(reply.lines, standings)
        return {**counts, "jobs": [_document(line, plan, standing) for line, standing in pairs]}

    async def _standings(self, manifest: Manifest) -> list[Standing]:
        """Beside the loop: thousands of needs are compared with all workers."""
        workers, now = await self._loop.look(lambda fleet, now: (fleet.under(manifest.hosts), now))
        return await asyncio.to_thread(_standings, workers, manifest, now)


def read_file(path: Path) -> tuple[bytes, Manifest]:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}", [(str(path), "cannot be read")]) from None
    return text, read(text, path.name)


def _standings(workers: list[Worker], manifest: Manifest, now: float) -> list[Standing]:
    """Which workers could run each job now, were the manifest applied. Equal needs are compared once."""
    needs = [spec.request() for spec in manifest.specs]
    found = {need: who_could(need, workers, now) for need in dict.fromkeys(needs)}
    return [found[need] for need in needs]


def _is_set(request: Request, name: str) -> bool:
    return request.query_params.get(name, "") in ("1", "true", "yes")


def _document(line: ManifestLine, plan: bool, standing: Standing | None) -> dict[str, Any]:
    document: dict[str, Any] = {
        "job_id": line.job_id,
        "name": line.name,
        "change": line.change,
        "differs": line.differs,
        "state": line.state,
        "status": STATUS[line.state],
    }
    if plan:
        document["changes"] = msgspec.to_builtins(line.changes)
    if standing is not None:
        document |= {"workers": standing.workers, "why": standing.why}
    return document
