"""Workers, the feed, health and metrics over HTTP."""

from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ostler import __version__
from ostler.core.events import DrainRequested
from ostler.core.fleet import Fleet
from ostler.domain.errors import BadInput, NotFound
from ostler.domain.records import FeedRecord
from ostler.domain.states import LIVE
from ostler.hub.access import Caller
from ostler.hub.api.routes import caller_of, json_response
from ostler.hub.documents import Document, feed_document, fleet_totals, job_summaries, timestamp, worker_document
from ostler.hub.feed import Feed
from ostler.hub.loop import Loop
from ostler.hub.metrics import Metrics
from ostler.hub.overview import Overview

_encode = msgspec.json.Encoder().encode


class FleetApi:
    def __init__(self, loop: Loop, feed: Feed, metrics: Metrics, overview: Overview, started_at: float) -> None:
        self._loop = loop
        self._overview = overview
        self._feed = feed
        self._metrics = metrics
        self._started_at = started_at

    async def workers(self, request: Request) -> Response:
        backend = request.query_params.get("backend", "")
        return json_response({"workers": await self.worker_documents(backend), "next": None})

    async def worker_documents(self, backend: str = "") -> list[Document]:
        def listing(fleet: Fleet, now: float) -> list[Document]:
            chosen = [worker for worker in fleet.workers.values() if backend in ("", worker.offer.backend)]
            return [worker_document(worker, now) for worker in sorted(chosen, key=lambda worker: worker.id)]

        return await self._loop.look(listing)

    async def worker(self, request: Request) -> Response:
        return json_response(await self.worker_document(request.path_params["id"], caller_of(request)))

    async def worker_document(self, worker_id: str, caller: Caller) -> Document:
        """A worker, and under `jobs` what it holds; names only of jobs that the caller may see."""

        def look(fleet: Fleet, now: float) -> Document:
            worker = fleet.workers.get(worker_id)
            if worker is None:
                raise NotFound(f"there is no worker {worker_id!r}")
            return {**worker_document(worker, now), "jobs": job_summaries(worker)}

        document = await self._loop.look(look)
        jobs = {held["job_id"] for held in document["jobs"]}
        known = await self._loop.read(lambda ledger: ledger.jobs(sorted(jobs)))
        for held in document["jobs"]:
            job = known.get(held.pop("job_id"))
            if job is not None and caller.may_see(job.user):
                held["job_name"] = job.name
        return document

    async def drain(self, request: Request) -> Response:
        return await self._set_draining(request, True)

    async def resume(self, request: Request) -> Response:
        return await self._set_draining(request, False)

    async def _set_draining(self, request: Request, draining: bool) -> Response:
        worker_id = request.path_params["id"]
        await self._loop.ask(lambda ref: DrainRequested(ref=ref, worker_id=worker_id, draining=draining))
        return json_response(await self.worker_document(worker_id, caller_of(request)))

    async def status(self, request: Request) -> Response:
        def count(fleet: Fleet, now: float) -> Document:
            counts = {state: fleet.job_counts[state] for state in LIVE}
            oldest = fleet.queue.oldest()
            return {"jobs": counts, "oldest_pending": oldest.id if oldest else None, **fleet_totals(fleet, now)}

        hub = {"version": __version__, "started_at": timestamp(self._started_at)}
        training = {"manifest": await self._overview.manifest(), "sweeps": await self._overview.sweeps()}
        return json_response({**await self._loop.look(count), "hub": hub, **training})

    async def events(self, request: Request) -> Response:
        text = request.headers.get("last-event-id") or request.query_params.get("after") or ""
        if text and not (text.isdecimal() and len(text) < 19):
            raise BadInput("Last-Event-ID: not the id of an event", [("Last-Event-ID", "not a number")])
        after = int(text) if text else self._feed.last_seq
        stream = self._stream(caller_of(request), after)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def _stream(self, caller: Caller, after: int) -> AsyncIterator[bytes]:
        yield b": connected\n\n"
        async for record in self._feed.after(after):
            if record is None:
                yield b": still here\n\n"
            elif _may_see(caller, record):
                data = _encode(feed_document(record)).decode()
                yield f"id: {record.seq}\nevent: {record.kind}\ndata: {data}\n\n".encode()

    async def me(self, request: Request) -> Response:
        caller = caller_of(request)
        return json_response({"role": caller.role, "user": caller.user})

    async def health(self, request: Request) -> Response:
        return json_response({"status": "ok", "version": __version__})

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _may_see(caller: Caller, record: FeedRecord) -> bool:
    return record.kind == "worker" or caller.may_see(str(record.body.get("user", "")))
