"""What an attempt takes, and what it tells of itself, over time."""

import asyncio
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from ostler.archive.curves import Curves, curves_in, curves_of
from ostler.domain.errors import BadInput, NotFound, StoreAway
from ostler.hub.api.jobs import JobsApi
from ostler.hub.api.routes import json_response
from ostler.hub.documents import Document, timestamp
from ostler.hub.logs import Logs
from ostler.hub.samples import Samples
from ostler.store.artifacts import ArtifactStore

LOG_BYTES = 1024 * 1024
"""Of a log, its end: what a task prints beside its numbers may be anything."""


class CurvesApi:
    def __init__(self, jobs: JobsApi, samples: Samples, logs: Logs, artifacts: ArtifactStore) -> None:
        self._jobs = jobs
        self._samples = samples
        self._logs = logs
        self._artifacts = artifacts

    async def show(self, request: Request) -> Response:
        target = await self._jobs.target(request)
        if target.job.size and target.index is None:
            raise BadInput(f"an array has no curves of its own: ask for those of a task, such as {target.job.id}.0")
        document = await self._jobs.document(target)
        known = [one["attempt"] for one in document["attempts"]]
        chosen = request.query_params.get("attempt", "") or (known[-1] if known else "")
        if chosen and chosen not in known:
            raise NotFound(f"{document['id']} has no attempt {chosen!r}")
        newest = bool(known) and chosen == known[-1]
        told = await asyncio.to_thread(self._told, chosen, document["artifact_id"] if newest else None)
        metrics = {"along": told.along or "line", "series": told.points}
        return json_response({"attempt": chosen or None, "taken": self._taken(chosen), "metrics": metrics})

    def _taken(self, attempt: str) -> Document | None:
        series = self._samples.of(attempt)
        if series is None:
            return None
        return {
            "at": [timestamp(at) for at in series.at],
            "cores": series.cores(),
            "memory_mib": list(series.memory_mib),
            "vram_mib": list(series.vram_mib),
        }

    def _told(self, attempt: str, artifact_id: str | None) -> Curves:
        """In its file of metrics; where there is none yet, in what it prints."""
        found = Curves("", {})
        if artifact_id:
            with suppress(NotFound, BadInput, StoreAway), self._artifacts.shelf.open(artifact_id) as bundle:
                found = curves_of(bundle)
        if found.points or not attempt:
            return found
        size = self._logs.store.size(attempt)
        log = self._logs.store.read(attempt, max(0, size - LOG_BYTES), LOG_BYTES)
        return curves_in(line for line in log.split(b"\n") if line.startswith(b"{"))
