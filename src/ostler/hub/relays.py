"""The way from the hub to a service's port on a worker. The worker opens every connection; none of its ports is open.

For each attempt of a service there is a line: a private server on a Unix socket, each of whose connections is joined
to a WebSocket that the worker opens when asked. An ordinary HTTP client speaks over it and knows nothing of that.
"""

import asyncio
import contextlib
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import aiohttp
import msgspec
from starlette.websockets import WebSocket, WebSocketState

from ostler import config
from ostler.domain.errors import NoAnswer, NotFound, NotRunning, OstlerError
from ostler.hub.sessions import Sessions
from ostler.wire.messages import RelayRequest

OPENS_S = 10.0
TELLS_S = 2.0
"""For a worker that came to say why it opens no tunnel. An older one, which knows of none, says nothing."""
PIECE = 64 * 1024
TROUBLE = "X-Ostler-Trouble"
REFUSED = 4000
"""From this close code on a worker says that it could not reach the service, and why."""


class Reads(Protocol):
    """Of a stream, or of whatever else is joined to a worker."""

    async def read(self, size: int, /) -> bytes: ...


class Writes(Protocol):
    def write(self, data: bytes, /) -> None: ...

    async def drain(self) -> None: ...


class Target(msgspec.Struct, frozen=True):
    """One attempt of a service, and the socket of the worker that runs it."""

    task_id: str
    attempt: str
    worker_id: str
    session: int


class Relay:
    """One connection of a line, and its end: None, or why the service was never reached."""

    def __init__(self, worker_id: str, reader: Reads, writer: Writes) -> None:
        self.worker_id = worker_id
        self.reader = reader
        self.writer = writer
        self.opened = asyncio.Event()
        self.ended: asyncio.Future[OstlerError | None] = asyncio.get_running_loop().create_future()


class Relays:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._awaited: dict[str, Relay] = {}
        self._tunnels: dict[str, tuple[str, Callable[[str], None]]] = {}
        """Whose it would be, and who is to hear why it was not opened."""

    def ask_for_tunnel(self, target: Target, request: RelayRequest, failed: Callable[[str], None]) -> None:
        """Past the hub; `failed` hears of why there will be none."""
        if why_not := self._sessions.ask_for_relay(target.session, request):
            failed(f"{target.worker_id}, where it runs, {why_not}")
            return
        self._tunnels[request.relay_id] = (target.worker_id, failed)
        asyncio.get_running_loop().call_later(OPENS_S, self._tunnels.pop, request.relay_id, None)

    async def join(self, target: Target, reader: Reads, writer: Writes, *, beside: bool = False) -> OstlerError | None:
        """Until either side ends; what kept it from reaching the service, or from running a command `beside` the task,
        where something did."""
        relay_id = secrets.token_urlsafe(24)
        relay = self._awaited[relay_id] = Relay(target.worker_id, reader, writer)
        try:
            request = RelayRequest(relay_id=relay_id, task_id=target.task_id, attempt=target.attempt, beside=beside)
            if why_not := self._sessions.ask_for_relay(target.session, request):
                return NotRunning(f"{target.worker_id}, where it runs, {why_not}")
            async with asyncio.timeout(OPENS_S):
                await relay.opened.wait()
        except TimeoutError:
            return NoAnswer(f"{target.worker_id} did not open a connection to the task within {OPENS_S:g} s")
        finally:
            self._awaited.pop(relay_id, None)
        return await relay.ended

    async def serve(self, socket: WebSocket) -> None:
        """The worker's end of a relay that was asked for."""
        relay_id, caller = socket.path_params["relay_id"], socket.scope["ostler.caller"]
        awaited = self._awaited.get(relay_id)
        worker_id, failed = self._tunnels.get(relay_id, (awaited.worker_id if awaited is not None else "", None))
        if not caller.may_speak_for(worker_id):
            raise NotFound("nobody waits for this relay")
        self._tunnels.pop(relay_id, None)
        if failed is not None:
            await socket.accept()
            failed(await _why_no_tunnel(socket))
            return
        relay = self._awaited.pop(relay_id, None)
        if relay is None:
            raise NotFound("nobody waits for this relay")
        relay.opened.set()
        trouble: OstlerError | None = None
        try:
            await socket.accept()
            trouble = await _pump(socket, relay)
        finally:
            relay.ended.set_result(trouble)


async def _why_no_tunnel(socket: WebSocket) -> str:
    try:
        async with asyncio.timeout(TELLS_S):
            received = await socket.receive()
    except TimeoutError:
        await socket.close()
        return "its worker is older than the hub and opens no tunnels; update Ostler there"
    return received.get("reason") or "its worker could not open a connection to it"


async def _pump(socket: WebSocket, relay: Relay) -> OstlerError | None:
    outward = asyncio.create_task(_to_worker(socket, relay.reader))
    inward = asyncio.create_task(_from_worker(socket, relay.writer))
    try:
        await asyncio.wait({outward, inward}, return_when=asyncio.FIRST_COMPLETED)
        return inward.result() if inward.done() else None
    except (OSError, RuntimeError):
        return None
    finally:
        for task in (outward, inward):
            task.cancel()
        await asyncio.gather(outward, inward, return_exceptions=True)
        if socket.client_state is WebSocketState.CONNECTED:
            with contextlib.suppress(RuntimeError):
                await socket.close()


async def _to_worker(socket: WebSocket, reader: Reads) -> None:
    while data := await reader.read(PIECE):
        await socket.send_bytes(data)


async def _from_worker(socket: WebSocket, writer: Writes) -> OstlerError | None:
    reached = False
    while True:
        received = await socket.receive()
        if received["type"] == "websocket.disconnect":
            refused = not reached and received.get("code", 0) >= REFUSED
            return NotRunning(received.get("reason") or "the service was not reached") if refused else None
        data = received.get("bytes")
        if data:
            reached = True
            writer.write(data)
            await writer.drain()


class Line:
    """The HTTP client of one attempt."""

    def __init__(self, target: Target, relays: Relays, path: Path) -> None:
        self.target = target
        self._relays = relays
        self._path = path
        self._troubles: dict[str, OstlerError] = {}
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._joined, self._path, limit=PIECE)
        self.client = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(self._path), limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            max_line_size=PIECE,
            max_field_size=PIECE,
        )

    def trouble(self, headers: Mapping[str, str] | None) -> OstlerError | None:
        """Why the service was not reached, where it is not the service that answered."""
        return self._troubles.pop((headers or {}).get(TROUBLE, ""), None)

    def cut(self) -> None:
        for writer in self._writers:
            writer.close()

    async def close(self) -> None:
        self.cut()
        await self.client.close()
        self._server.close()
        self._path.unlink(missing_ok=True)

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            trouble = await self._relays.join(self.target, reader, writer)
            if trouble is not None:
                # As an answer: a connection that merely ends makes the client try once more. No service knows the key.
                key = secrets.token_hex(16)
                self._troubles[key] = trouble
                writer.write(f"HTTP/1.1 503 -\r\n{TROUBLE}: {key}\r\nContent-Length: 0\r\n\r\n".encode())
        finally:
            self._writers.discard(writer)
            writer.close()


class Lines:
    """One for each attempt that was called."""

    def __init__(self, relays: Relays) -> None:
        self._relays = relays
        self._lines: dict[str, Line] = {}
        self._folder: Path | None = None
        self._opening = asyncio.Lock()

    async def to(self, target: Target, live: set[str]) -> Line:
        """The line to this attempt; those to attempts that are over are closed meanwhile."""
        async with self._opening:
            if target.attempt not in self._lines:
                for attempt in self._lines.keys() - live:
                    await self._lines.pop(attempt).close()
                line = Line(target, self._relays, self._somewhere() / f"{secrets.token_hex(8)}.sock")
                await line.open()
                self._lines[target.attempt] = line
            line = self._lines[target.attempt]
            line.target = target  # the worker may have come back with another socket
            return line

    def _somewhere(self) -> Path:
        if self._folder is None:
            self._folder = config.make_socket_folder()
        return self._folder

    def cut(self) -> None:
        for line in self._lines.values():
            line.cut()

    async def close(self) -> None:
        for line in self._lines.values():
            await line.close()
        self._lines.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
