"""Calls of services from afar: each is a WebSocket to the hub, joined to the service's own port on this machine. To a
model it is a tunnel to the gateway. And commands beside tasks, which are joined to a process instead."""

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import aiohttp
from aiohttp import WSMsgType

from ostler.wire.messages import RelayRequest
from ostler.worker.api import Declined, HubApi, Unreachable
from ostler.worker.beside import NotStarted, Start, begin
from ostler.worker.services import HOST
from ostler.worker.tunnel import NotOpened, Side
from ostler.worker.tunnel import join as join_sides

AT_ONCE = 256
CLOSE_NOT_THERE = 4404
CLOSE_NO_TUNNEL = 4502
CLOSE_TOO_MANY = 4429
CONNECT_S = 5.0
FLUSH_S = 10.0
PIECE = 64 * 1024
MAX_REASON_BYTES = 120
_RELAY_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")

T = TypeVar("T")

_log = logging.getLogger("ostler.worker")


class Refused(Exception):
    """There is nothing to join: the hub is told the code and the reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Relays:
    """`port_of` a task's attempt is where its service listens; 0 where there is none. `start` starts processes beside
    attempts, where the runtime can."""

    def __init__(
        self, api: HubApi, port_of: Callable[[str, str], int], at_once: int = AT_ONCE, start: Start | None = None
    ) -> None:
        self._api = api
        self._port_of = port_of
        self._start = start
        self._at_once = at_once
        self._open: set[asyncio.Task[None]] = set()

    def request(self, wanted: RelayRequest) -> None:
        if _RELAY_ID.fullmatch(wanted.relay_id) is None:
            _log.warning("the hub asked for a relay with an id that cannot be one: %.80r", wanted.relay_id)
            return
        is_one_too_many = len(self._open) >= self._at_once
        serve = self._serve_beside if wanted.beside else self._serve_tunnel if wanted.port else self._serve
        task = asyncio.get_running_loop().create_task(serve(wanted, is_one_too_many))
        self._open.add(task)
        task.add_done_callback(self._done)

    async def close(self) -> None:
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a bug: a relay failed", exc_info=error)

    async def _serve(self, wanted: RelayRequest, is_one_too_many: bool) -> None:
        hub = await self._open_relay(wanted)
        if hub is None:
            return
        try:
            self._check(is_one_too_many)
            connect = lambda port: asyncio.open_connection(HOST, port, limit=PIECE)  # noqa: E731
            reader, writer = await self._connect(wanted, connect)
            await join(hub, reader, writer)
        except Refused as refusal:
            await _say(hub, refusal)
        finally:
            await hub.close()

    async def _serve_beside(self, wanted: RelayRequest, is_one_too_many: bool) -> None:
        hub = await self._open_relay(wanted)
        if hub is None:
            return
        try:
            self._check(is_one_too_many)
            if self._start is None:
                raise Refused(CLOSE_NOT_THERE, "this worker does not run its tasks as processes of its own machine")
            reader, writer = await begin(wanted.attempt, self._start)
            await join(hub, reader, writer)
        except NotStarted as reason:
            await _say(hub, Refused(CLOSE_NOT_THERE, str(reason)))
        except Refused as refusal:
            await _say(hub, refusal)
        finally:
            await hub.close()

    async def _open_relay(self, wanted: RelayRequest) -> aiohttp.ClientWebSocketResponse | None:
        try:
            return await self._api.open_relay(wanted.relay_id)
        except (Unreachable, Declined) as error:
            # The caller has gone, or the hub has; either way nobody is left to be told.
            _log.info("relay %s was not opened: %s", wanted.relay_id, error)
            return None

    async def _serve_tunnel(self, wanted: RelayRequest, is_one_too_many: bool) -> None:
        """No byte of it passes the hub, which only hears why there is none."""
        service = Side()
        try:
            self._check(is_one_too_many)
            loop = asyncio.get_running_loop()
            await self._connect(wanted, lambda port: loop.create_connection(lambda: service, HOST, port))
            await join_sides(service, await self._open_tunnel(wanted))
        except Refused as refusal:
            about = {"task": wanted.task_id, "attempt": wanted.attempt}
            _log.warning("a tunnel to %s was not opened: %s", wanted.task_id, refusal, extra=about)
            hub = await self._open_relay(wanted)
            if hub is not None:
                await _say(hub, refusal)
        finally:
            service.end()

    async def _open_tunnel(self, wanted: RelayRequest) -> Side:
        try:
            return await self._api.open_tunnel(wanted.port, wanted.url, wanted.relay_id)
        except NotOpened as error:
            raise Refused(CLOSE_NO_TUNNEL, str(error)) from None

    def _check(self, is_one_too_many: bool) -> None:
        if is_one_too_many:
            raise Refused(CLOSE_TOO_MANY, f"this worker relays {self._at_once} connections already")

    async def _connect(self, wanted: RelayRequest, connect: Callable[[int], Coroutine[Any, Any, T]]) -> T:
        port = self._port_of(wanted.task_id, wanted.attempt)
        if not port:
            raise Refused(CLOSE_NOT_THERE, "this service does not run here")
        try:
            return await asyncio.wait_for(connect(port), CONNECT_S)
        except TimeoutError:
            raise Refused(CLOSE_NOT_THERE, f"the service did not accept a connection within {CONNECT_S:g} s") from None
        except ConnectionRefusedError:
            raise Refused(CLOSE_NOT_THERE, f"the service does not listen on its port {port}") from None
        except OSError as error:
            raise Refused(CLOSE_NOT_THERE, f"the service cannot be reached: {error}") from None


async def _say(hub: aiohttp.ClientWebSocketResponse, refusal: Refused) -> None:
    await hub.close(code=refusal.code, message=str(refusal).encode()[:MAX_REASON_BYTES])


async def join(
    hub: aiohttp.ClientWebSocketResponse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Bytes both ways, no faster than the slower side takes them, until either side ends."""
    both = [asyncio.create_task(_to_service(hub, writer)), asyncio.create_task(_to_hub(reader, hub))]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        writer.close()
        try:
            async with asyncio.timeout(FLUSH_S):
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        except TimeoutError:
            writer.transport.abort()


async def _to_service(hub: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        async for frame in hub:
            if frame.type is WSMsgType.BINARY:
                writer.write(frame.data)
                await writer.drain()


async def _to_hub(reader: asyncio.StreamReader, hub: aiohttp.ClientWebSocketResponse) -> None:
    with contextlib.suppress(OSError, aiohttp.ClientError):
        while data := await reader.read(PIECE):
            await hub.send_bytes(data)
