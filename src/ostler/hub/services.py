"""`/services/{name}/…`: calls of services that run somewhere in the fleet, under one address that never changes."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import aiohttp
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketState
from yarl import URL

from ostler.core.fleet import Fleet, Job
from ostler.core.foresight import explain
from ostler.domain import states
from ostler.domain.errors import BrokeOff, NotFound, NotRunning
from ostler.domain.records import JobRecord
from ostler.hub.access import Caller
from ostler.hub.feed import Feed
from ostler.hub.forwarding import to_caller, to_service
from ostler.hub.loop import Loop
from ostler.hub.relays import Line, Lines, Relays, Target
from ostler.hub.sessions import Sessions
from ostler.ledger.base import Ledger

MOVES_S = 30.0
"""How long a call waits for a service that is on its way from one place to another."""
LOOK_S = 1.0
AGAIN_S = 0.2
HEALTHY = ("", "healthy")
HARMLESS = ("GET", "HEAD", "OPTIONS")
"""Asked twice, these do what they do once."""
CLIENT_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""What the client would add by itself."""
T = TypeVar("T")


class Services:
    def __init__(self, loop: Loop, feed: Feed, sessions: Sessions) -> None:
        self._loop = loop
        self._feed = feed
        self.relays = Relays(sessions)
        self._lines = Lines(self.relays)
        self._stopping = False

    def let_go(self) -> None:
        """The hub stops: what would go on for ever ends."""
        self._stopping = True
        self._lines.cut()

    async def close(self) -> None:
        await self._lines.close()

    # Calls

    async def call(self, request: Request) -> Response:
        side = CallersSide(request)
        try:
            repeatable, harmless = not side.sends_a_body, request.method in HARMLESS
            answer = await self._through(request, lambda line: self._ask(line, request, side), repeatable, harmless)
        except _CallerLeft:
            return Response(status_code=499)
        except BaseException:
            side.close()
            raise
        return Answer(answer, side, _prefix(request))

    async def _ask(self, line: Line, request: Request, side: "CallersSide") -> aiohttp.ClientResponse:
        asking = asyncio.ensure_future(
            line.client.request(
                request.method,
                _url(request),
                headers=_headers(request),
                data=side.body() if side.sends_a_body else None,
                allow_redirects=False,
                skip_auto_headers=CLIENT_HEADERS,
            )
        )
        try:
            await asyncio.wait({asking, side.left}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise _CallerLeft
            answer = asking.result()
        except (aiohttp.ClientError, OSError) as error:
            raise _broke_off(error) from None
        finally:
            asking.cancel()
        trouble = line.trouble(answer.headers)
        if trouble is not None:
            answer.close()
            raise trouble
        return answer

    async def call_socket(self, socket: WebSocket) -> None:
        service = await self._through(socket, lambda line: self._connect(line, socket), True)
        try:
            await socket.accept(subprotocol=service.protocol)
            await _converse(socket, service)
        finally:
            await service.close()

    async def _connect(self, line: Line, socket: WebSocket) -> aiohttp.ClientWebSocketResponse:
        try:
            return await line.client.ws_connect(
                _url(socket), headers=_headers(socket), protocols=socket.scope["subprotocols"], max_msg_size=0
            )
        except aiohttp.WSServerHandshakeError as error:
            refused = BrokeOff(f"the service refused the WebSocket with {error.status}")
            refused.status = error.status if error.status >= 400 else refused.status
            raise line.trouble(error.headers) or refused from None
        except (aiohttp.ClientError, OSError) as error:
            raise _broke_off(error) from None

    async def _through(
        self, call: HTTPConnection, act: Callable[[Line], Awaitable[T]], repeatable: bool, harmless: bool = False
    ) -> T:
        """Do it with a line to the service. While the service moves it is waited for; a call that was not begun when
        its place turned out to be empty is made again, and once more one that does no harm and was broken off."""
        deadline = time.monotonic() + MOVES_S
        may_break_off = repeatable and harmless
        while True:
            target, live = await self._target(call.path_params["name"], call.scope["ostler.caller"], deadline)
            try:
                return await act(await self._lines.to(target, live))
            except NotRunning:
                if not repeatable or self._stopping or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(AGAIN_S)
            except BrokeOff:
                if not may_break_off or self._stopping:
                    raise
                may_break_off = False
                await asyncio.sleep(AGAIN_S)

    # Where it runs

    async def _target(self, text: str, caller: Caller, deadline: float) -> tuple[Target, set[str]]:
        user = "" if caller.role == "operator" else caller.user
        while True:
            jobs = await self._loop.read(lambda ledger: services_called(ledger, text, user))
            if not jobs:
                raise NotFound(f"there is no service {text!r}")
            with self._feed.watching(jobs[0].id) as changed:
                found = await self._loop.look(lambda fleet, _: _first_ready(fleet, jobs))  # noqa: B023 (called at once)
                if found is not None:
                    return found, await self._loop.look(lambda fleet, _: set(fleet.held))
                left = 0.0 if self._stopping else deadline - time.monotonic()
                if left <= 0 or jobs[0].state in states.TERMINAL:
                    raise NotRunning(await self._loop.look(lambda fleet, now: _told(fleet, jobs[0], now)))  # noqa: B023
                await changed(min(left, LOOK_S))


def services_called(ledger: Ledger, text: str, user: str) -> list[JobRecord]:
    """By id or by name, the newest first: all that have not ended, or else the newest that has."""
    exact = ledger.jobs([text]).get(text)
    if exact is not None and exact.terms.service and user in ("", exact.user):
        return [exact]
    live = ledger.list_jobs(states=states.LIVE, user=user, name=text)
    found = [view.job for view in live if view.job.terms.service]
    if not found:
        ended = ledger.list_jobs(user=user, name=text, limit=1)
        found = [view.job for view in ended if view.job.terms.service]
    return found


def _first_ready(fleet: Fleet, jobs: list[JobRecord]) -> Target | None:
    return next((target for job in jobs if (target := _ready(fleet, fleet.jobs.get(job.id))) is not None), None)


def _ready(fleet: Fleet, job: Job | None) -> Target | None:
    task = (job.tasks or {}).get(0) if job is not None else None
    if task is None or task.holder is None or task.state != states.RUNNING or task.health not in HEALTHY:
        return None
    worker = fleet.workers[task.holder.worker_id]
    if not worker.connected or worker.leaving:
        return None  # one that leaves stops its services at once: they are on their way elsewhere
    return Target(task_id=task.id, attempt=task.attempt, worker_id=worker.id, session=worker.session)


def _told(fleet: Fleet, record: JobRecord, now: float) -> str:
    """Why it takes no calls."""
    called = f"service {record.name or record.id}"
    job = fleet.jobs.get(record.id)
    if job is None or record.state in states.TERMINAL:
        return f"{called} has ended: {record.state}" + (f": {record.reason}" if record.reason else "")
    task = (job.tasks or {}).get(0)
    if task is not None and task.state == states.RUNNING and task.health not in HEALTHY:
        return f"{called} is not healthy: {task.health}"
    why = explain.why(fleet, job, task, now)
    return f"{called} is {why.state}: {why.summary}"


# One call


class _CallerLeft(Exception):
    """Nobody waits for the answer any more."""


class CallersSide:
    """What the caller sends, and whether it is still there: the only reader of its connection."""

    def __init__(self, request: Request) -> None:
        self.sends_a_body = "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"
        self._receive = request.receive
        self._sent = asyncio.Event()
        self._gone = False
        if not self.sends_a_body:
            self._sent.set()
        self.left = asyncio.ensure_future(self._until_gone())
        """Done when the caller has gone."""

    def close(self) -> None:
        self.left.cancel()

    async def body(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            received = await self._receive()
            if received["type"] == "http.disconnect":
                self._gone = True
                self._sent.set()
                raise _CallerLeft
            if received.get("body"):
                yield received["body"]
            more = received.get("more_body", False)
        self._sent.set()

    async def _until_gone(self) -> None:
        await self._sent.wait()
        while not self._gone:
            self._gone = (await self._receive())["type"] == "http.disconnect"


class Answer(Response):
    """The service's answer as it comes, for as long as both sides are there."""

    def __init__(self, answer: aiohttp.ClientResponse, side: CallersSide, prefix: str) -> None:
        self._answer = answer
        self._side = side
        self.status_code = answer.status
        self.raw_headers = to_caller(answer.raw_headers, prefix, answer.status)
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        try:
            await asyncio.wait({sending, self._side.left}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            self._side.close()
            await asyncio.gather(sending, self._side.left, return_exceptions=True)
            self._answer.close()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        # An answer that breaks off is left without its end, so that the caller sees that something is missing.
        with contextlib.suppress(aiohttp.ClientError, OSError):
            async for chunk in self._answer.content.iter_any():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _converse(socket: WebSocket, service: aiohttp.ClientWebSocketResponse) -> None:
    both = {asyncio.create_task(_tell(socket, service)), asyncio.create_task(_hear(socket, service))}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        if socket.client_state is WebSocketState.CONNECTED and socket.application_state is WebSocketState.CONNECTED:
            with contextlib.suppress(RuntimeError):
                await socket.close(_close_code(service.close_code))


async def _tell(socket: WebSocket, service: aiohttp.ClientWebSocketResponse) -> None:
    while (received := await socket.receive())["type"] != "websocket.disconnect":
        if received.get("text") is not None:
            await service.send_str(received["text"])
        else:
            await service.send_bytes(received.get("bytes") or b"")
    await service.close(code=_close_code(received.get("code")))


async def _hear(socket: WebSocket, service: aiohttp.ClientWebSocketResponse) -> None:
    async for said in service:
        if said.type is aiohttp.WSMsgType.TEXT:
            await socket.send_text(said.data)
        elif said.type is aiohttp.WSMsgType.BINARY:
            await socket.send_bytes(said.data)


def _close_code(code: int | None) -> int:
    """As the other side closed, where that may be repeated; a connection that broke is told as such."""
    if code is None or code in (1004, 1005):
        return 1000
    return code if 1000 <= code < 5000 and code not in (1006, 1015) else 1011


def _prefix(call: HTTPConnection) -> str:
    """As it stands in the caller's own address, whatever is escaped there."""
    name = call.scope["raw_path"].split(b"/", 3)[2]
    return f"/services/{name.decode('latin-1')}"


def _url(call: HTTPConnection) -> URL:
    rest = call.scope["raw_path"].split(b"/", 3)[3].decode("latin-1")
    query = call.scope["query_string"].decode("latin-1")
    return URL(f"http://service/{rest}" + (f"?{query}" if query else ""), encoded=True)


def _headers(call: HTTPConnection) -> list[tuple[str, str]]:
    scope = call.scope
    return to_service(scope["headers"], _prefix(call), scope.get("client"), scope["scheme"])


def _broke_off(error: Exception) -> BrokeOff:
    return BrokeOff(f"the service broke off before it answered: {str(error) or type(error).__name__}")
