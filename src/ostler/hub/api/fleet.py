"""Workers, the feed, health and metrics over HTTP."""

from collections.abc import AsyncIterator, Callable
from heapq import nsmallest

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ostler import __version__
from ostler.core.events import DrainRequested
from ostler.core.fleet import Fleet
from ostler.domain.errors import BadInput, NotFound
from ostler.domain.finite import encode as _encode
from ostler.domain.records import FeedRecord
from ostler.domain.states import LIVE
from ostler.hub.access import Caller
from ostler.hub.api.routes import caller_of, json_response, number_in_query
from ostler.hub.documents import (
    Document,
    Sight,
    everything,
    feed_document,
    fleet_totals,
    job_summaries,
    timestamp,
    worker_document,
)
from ostler.hub.feed import Feed
from ostler.hub.leading import LEADER, HubSeen, Seat
from ostler.hub.loop import Loop
from ostler.hub.metrics import Metrics
from ostler.hub.overview import Overview

WORKERS_OF_A_PAGE = 500


class FleetApi:
    def __init__(
        self, loop: Loop, feed: Feed, metrics: Metrics, overview: Overview, started_at: float, seat: Seat
    ) -> None:
        self._loop = loop
        self._overview = overview
        self._feed = feed
        self._metrics = metrics
        self._started_at = started_at
        self._seat = seat
        self.retention: Callable[[], Document] = dict
        """What was removed because it was old."""
        self.disk: Callable[[], list[Document]] = list
        """What is free on the hub's disks."""

    async def workers(self, request: Request) -> Response:
        backend, after = request.query_params.get("backend", ""), request.query_params.get("cursor", "")
        limit = number_in_query(request, "limit", WORKERS_OF_A_PAGE, 1, WORKERS_OF_A_PAGE)
        sight = _sight(caller_of(request))
        if named := request.query_params.getlist("id"):
            return json_response({"workers": await self._named(named[:WORKERS_OF_A_PAGE], sight), "next": None})
        found = await self._worker_page(backend, after, limit + 1, sight)
        following = found[limit - 1]["id"] if len(found) > limit else None
        return json_response({"workers": found[:limit], "next": following})

    async def worker_documents(self, caller: Caller, backend: str = "") -> list[Document]:
        """All of them, a page at a time: whoever beats meanwhile is heard in between."""
        found: list[Document] = []
        sight = _sight(caller)
        while page := await self._worker_page(backend, found[-1]["id"] if found else "", WORKERS_OF_A_PAGE, sight):
            found += page
        return found

    async def _worker_page(self, backend: str, after: str, limit: int, may_see: Sight) -> list[Document]:
        """In order of their ids, from behind this one on."""

        def listing(fleet: Fleet, now: float) -> list[Document]:
            chosen = (
                worker.id
                for worker in fleet.workers.values()
                if worker.id > after and backend in ("", worker.offer.backend)
            )
            return [worker_document(fleet.workers[name], now, may_see) for name in nsmallest(limit, chosen)]

        return await self._loop.look(listing)

    async def _named(self, names: list[str], may_see: Sight) -> list[Document]:
        """Those of them that are there: for who knows which have changed, and has seen the others."""

        def listing(fleet: Fleet, now: float) -> list[Document]:
            found = (fleet.workers.get(name) for name in names)
            return [worker_document(worker, now, may_see) for worker in found if worker is not None]

        return await self._loop.look(listing)

    async def worker(self, request: Request) -> Response:
        return json_response(await self.worker_document(request.path_params["id"], caller_of(request)))

    async def worker_document(self, worker_id: str, caller: Caller) -> Document:
        """A worker, and under `jobs` what it holds; names only of jobs that the caller may see."""
        may_see = _sight(caller)

        def look(fleet: Fleet, now: float) -> Document:
            worker = fleet.workers.get(worker_id)
            if worker is None:
                raise NotFound(f"there is no worker {worker_id!r}")
            return {**worker_document(worker, now, may_see), "jobs": job_summaries(worker, may_see)}

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
        caller = caller_of(request)

        def count(fleet: Fleet, now: float) -> Document:
            counts = {state: fleet.job_counts[state] for state in LIVE}
            oldest = fleet.queue.oldest()
            oldest = oldest if oldest is not None and caller.may_see(oldest.user) else None
            told = {"jobs": counts, "ended": dict(fleet.tally), "oldest_pending": oldest.id if oldest else None}
            return {**told, **fleet_totals(fleet, now)}

        hub = {"version": __version__, "started_at": timestamp(self._started_at), **self._standing()}
        training = {"manifest": await self._overview.manifest(), "sweeps": await self._overview.sweeps()}
        hubs = hub_documents(self._seat.hubs())
        parts = {"hub": hub, "hubs": hubs, "retention": self.retention(), "disk": self.disk(), **training}
        return json_response({**await self._loop.look(count), **parts})

    async def hubs(self, request: Request) -> Response:
        return json_response({"hubs": hub_documents(self._seat.hubs())})

    def _standing(self) -> Document:
        return {"role": LEADER, **({"term": self._seat.term} if self._seat.term else {})}

    async def events(self, request: Request) -> Response:
        text = request.headers.get("last-event-id") or request.query_params.get("after") or ""
        if text and not (text.isdecimal() and len(text) < 19):
            raise BadInput("Last-Event-ID: not the id of an event", [("Last-Event-ID", "not a number")])
        # Of a ledger that was restored the feed goes on from before what a reader has seen.
        after = min(int(text), self._feed.last_seq) if text else self._feed.last_seq
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
        """Not without knowing that it leads: a hub that was paused would say so of itself for ever."""
        await self._seat.confirm()
        return json_response({"status": "ok", "version": __version__, **self._standing()})

    async def metrics(self, request: Request) -> Response:
        text = await self._loop.look(lambda *_: self._metrics.text())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def hub_documents(hubs: list[HubSeen]) -> list[Document]:
    return [{"url": hub.url, "role": hub.role, "connected": hub.connected, "version": hub.version} for hub in hubs]


def _sight(caller: Caller) -> Sight:
    return everything if caller.sees_all else caller.may_see


def _may_see(caller: Caller, record: FeedRecord) -> bool:
    return record.kind == "worker" or caller.may_see(str(record.body.get("user", "")))
