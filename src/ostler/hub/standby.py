"""A hub that does not lead: it answers what the ledger alone can answer, says who leads, and waits for its turn.

Nothing is passed on and nothing redirected: on a redirect to another host every HTTP library leaves the token behind.
Whoever asks for more than the ledger knows is told where the hub that leads is reached, and asks there.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from ostler import __version__
from ostler.core.effects import Effect
from ostler.core.fleet import Fleet
from ostler.domain.errors import LedgerError, NotLeading, NotYet
from ostler.domain.origins import Origins
from ostler.domain.records import Changes
from ostler.hub.access import Access
from ostler.hub.api.fleet import hub_documents
from ostler.hub.api.jobs import JobsApi
from ostler.hub.api.routes import Route, SocketRoute, caller_of, denied, json_response
from ostler.hub.api.table import jobs_in_the_ledger
from ostler.hub.api.templates import Templates
from ostler.hub.clock import SystemClock
from ostler.hub.feed import Feed
from ostler.hub.ids import new_attempt_id
from ostler.hub.leading import STANDBY, HubSeen, Shared
from ostler.hub.ledgers import LOOK_S, WAIT_S, waiting
from ostler.hub.loop import Loop
from ostler.hub.permissions import ANY_METHOD
from ostler.hub.web import errors
from ostler.hub.web.cookies import SCOPE as ENDED_SESSIONS
from ostler.hub.web.gate import Web, application, brought_by
from ostler.store.shelves import Shelves

TOKENS_S = 5.0
"""Tokens are read again after so long, because some may have been revoked."""
NEW_TOKENS_S = 0.2
"""And for everybody who brings one that is not known, but no more often than this."""

_log = logging.getLogger("ostler.hub")


class Standby:
    def __init__(self, seat: Shared, store: Path, names: Sequence[str] = (), shelves: Shelves | None = None) -> None:
        self._seat = seat
        self._leader: HubSeen | None = None
        self._said = ""
        # A loop that never runs: there is nothing to decide, and its reads are those of the hub that leads.
        self._loop = Loop(Fleet(new_attempt_id), seat.ledger, _nothing, SystemClock())
        blobs = (shelves or Shelves(store)).blobs()
        self._jobs = JobsApi(self._loop, Feed(self._loop, 0), blobs, Templates({}))
        self._web = Web(Access(store, []), Origins(names))
        self._tokens = Tokens(self._loop, self._web)
        sockets = [SocketRoute(path="/{path:path}", endpoint=self._refuse_socket)]
        self._tokens.app = application(self._routes(), sockets, self._web)
        self.app: ASGIApp = self._tokens

    def follow_files(self, read: Callable[[], None]) -> None:
        """`read` brings the tokens' files in this hub's own folder up to date: another hub may have replaced them."""
        self._tokens.read_files = read

    # Waiting

    async def until_it_leads(self) -> None:
        """A server that is lost is waited for, so long and no longer."""
        while True:
            try:
                if await self._seat.try_to_lead():
                    return
                await self._look()
                await asyncio.sleep(LOOK_S)
            except NotYet as error:
                _log.warning("the ledger was lost: %s", error)
                self._leader = None
                await waiting(self._seat.open_again, WAIT_S)
                self._loop.ledger = self._seat.ledger

    async def _look(self) -> None:
        leader = await self._seat.look()
        hubs = self._seat.hubs()
        leads = leader.holder if leader.left_s > 0 else None
        self._leader = next((hub for hub in hubs if hub.holder == leads), None)
        if leads is not None and leads != self._said:
            _log.info("standing by: the hub %s leads, in term %d", leads, leader.term)
            self._said = leads

    # Answering

    def _routes(self) -> list[Route]:
        def get(path: str, handler, summary) -> Route:  # type: ignore[no-untyped-def]
            return Route(method="GET", path=path, handler=handler, summary=summary)

        return [
            get("/docs/errors/{name}", errors.explain, "Say what an error means, and what to do"),
            get("/v1/health", self._health, "Say that the hub is up"),
            get("/v1/hubs", self._hubs, "List the hubs on this ledger"),
            get("/v1/me", _me, "Say whose token this is"),
            get("/metrics", _metrics, "Prometheus metrics"),
            get("/v1/status", self._status, "Show the fleet in a few numbers"),
            get("/v1/jobs/{id}", self._job, "Show a job or one task of an array"),
            *jobs_in_the_ledger(self._jobs),
            Route(method=ANY_METHOD, path="/{path:path}", handler=self._refuse, summary="Ask"),
        ]

    async def _health(self, request: Request) -> Response:
        return json_response({"status": "ok", "version": __version__, "role": STANDBY})

    async def _hubs(self, request: Request) -> Response:
        return json_response({"hubs": hub_documents(self._seat.hubs())})

    async def _status(self, request: Request) -> Response:
        """What the ledger knows, while nobody leads who knows more."""
        if self._leader is not None:
            raise self._refusal()
        counts = await asyncio.to_thread(self._seat.ledger.live_counts)
        hub = {"version": __version__, "role": STANDBY}
        return json_response({"jobs": counts, "hub": hub, "hubs": hub_documents(self._seat.hubs())})

    async def _job(self, request: Request) -> Response:
        """Whoever waits for its end waits where that is told."""
        if request.query_params.get("wait"):
            raise self._refusal()
        return await self._jobs.show(request)

    async def _refuse(self, request: Request) -> Response:
        raise self._refusal()

    async def _refuse_socket(self, socket: WebSocket) -> None:
        raise self._refusal()

    def _refusal(self) -> NotLeading:
        if self._leader is None or not self._leader.url:
            return NotLeading("this hub stands by, and no other leads right now; one will in a few seconds: ask again")
        return NotLeading(f"this hub stands by; ask the one that leads: {self._leader.url}", self._leader.url)


class Tokens:
    """In front of the application: who may come in is read from the ledger, now and then, because others write it."""

    def __init__(self, loop: Loop, web: Web) -> None:
        self.access = web.access
        self._cookies = web.cookies
        self.app: ASGIApp | None = None
        self._loop = loop
        self._reading = asyncio.Lock()
        self._read_at = float("-inf")
        self.read_files: Callable[[], None] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.app is not None
        try:
            if scope["type"] in ("http", "websocket"):
                await self._read(scope, time.monotonic())
        except LedgerError as error:
            # A hub that cannot tell who comes leads nothing either: whoever it was asks another.
            await denied(scope, receive, send, NotLeading(f"this hub stands by, without its ledger: {error}"))
        else:
            await self.app(scope, receive, send)

    async def _read(self, scope: Scope, came_at: float) -> None:
        async with self._reading:
            if self._read_at < came_at and self._is_to_be_read(scope):
                await asyncio.sleep(self._read_at + NEW_TOKENS_S - time.monotonic())
                tokens, ended = await self._loop.read(lambda ledger: (ledger.token_list(), ledger.kept(ENDED_SESSIONS)))
                self.read_files()
                self.access.read_files()
                self.access.know(tokens)
                self._cookies.follow(ended)
                self._read_at = time.monotonic()

    def _is_to_be_read(self, scope: Scope) -> bool:
        if time.monotonic() - self._read_at > TOKENS_S:
            return True
        brought = [one for one in brought_by(scope) if one]
        return bool(brought) and not any(self.access.caller(one) for one in brought)


async def _me(request: Request) -> Response:
    caller = caller_of(request)
    return json_response({"role": caller.role, "user": caller.user})


async def _metrics(request: Request) -> Response:
    """So much that an alarm for a hub that is down does not ring for one that stands by."""
    text = "# HELP ostler_hub_leads Whether this hub leads\n# TYPE ostler_hub_leads gauge\nostler_hub_leads 0.0\n"
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def _nothing(changes: Changes, effects: list[Effect]) -> None:
    pass
