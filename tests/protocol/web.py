"""A service behind a foreign worker: a real HTTP and WebSocket server on a loopback port, and the relays that join it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from tests.protocol.client import Assignment, Closed, Worker
from tests.protocol.hub import RunningHub


async def echo(request: web.Request) -> web.Response:
    """What was asked, as it arrived."""
    body = await request.read()
    told = {
        "method": request.method,
        "path": request.raw_path,
        "headers": [[name, value] for name, value in request.headers.items()],
        "body": body.decode("latin-1"),
    }
    return web.Response(text=json.dumps(told), content_type="application/json", headers={"X-Of-Service": "yes"})


async def chat(request: web.Request) -> web.WebSocketResponse:
    """Says everything back in upper case; closes with 4321 when told `leave`."""
    socket = web.WebSocketResponse(protocols=("chat.v2",))
    await socket.prepare(request)
    async for said in socket:
        if said.data == "leave":
            await socket.close(code=4321)
        elif said.type is aiohttp.WSMsgType.BINARY:
            await socket.send_bytes(said.data)
        else:
            await socket.send_str(said.data.upper())
    return socket


class Service:
    """Handlers may wait for `gate`, and say what they met in `met`."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.met: asyncio.Queue[Any] = asyncio.Queue()
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_get("/chat", chat)
        app.router.add_get("/slowly", self._slowly)
        app.router.add_post("/both", self._both)
        app.router.add_get("/cut", self._cut)
        app.router.add_get("/never", self._never)
        app.router.add_get("/cookies", self._cookies)
        app.router.add_get("/unchanged", self._unchanged)
        app.router.add_get("/big", self._big)
        app.router.add_route("*", "/{rest:.*}", echo)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)

    async def start(self) -> int:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port: int = self._runner.addresses[0][1]
        return port

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _slowly(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(b"data: 1\n\n")
        await self._wait("slowly")
        await answer.write(b"data: 2\n\n")
        return answer

    async def _both(self, request: web.Request) -> web.StreamResponse:
        """Answers each piece as it comes."""
        answer = web.StreamResponse()
        await answer.prepare(request)
        async for piece in request.content.iter_any():
            await answer.write(piece.upper())
        return answer

    async def _cut(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": "100"})
        await answer.prepare(request)
        await answer.write(b"only this")
        assert request.transport is not None
        request.transport.abort()
        return answer

    async def _never(self, request: web.Request) -> web.Response:
        await self._wait("never")
        return web.Response()

    async def _wait(self, called: str) -> None:
        self.met.put_nowait(f"{called} begins")
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.met.put_nowait(f"{called} is cancelled")
            raise

    async def _cookies(self, request: web.Request) -> web.Response:
        answer = web.Response(status=302, headers={"Location": "/login"})
        for cookie in ("a=1; Path=/; HttpOnly", "b=2; Domain=elsewhere", "ostler_session=x", "= ostler_session=x"):
            answer.headers.add("Set-Cookie", cookie)
        return answer

    async def _unchanged(self, request: web.Request) -> web.Response:
        return web.Response(status=304, headers={"ETag": '"x"'})

    async def _big(self, request: web.Request) -> web.Response:
        return web.Response(body=b"x" * 8_000_000)


class Relaying:
    """The part of a worker that opens relays to one port; 0: where nothing listens."""

    def __init__(self, worker: Worker, port: int) -> None:
        self.port = port
        self.asked: list[dict[str, Any]] = []
        self.was_asked = asyncio.Event()
        self._worker = worker
        self._tasks: set[asyncio.Task[None]] = set()
        self._session = aiohttp.ClientSession(headers={"Authorization": f"Bearer {worker.token}"})

    async def listen(self) -> None:
        """Until the hub closes the worker's socket."""
        with contextlib.suppress(Closed):
            while True:
                payload = await self._worker.expect("relay_request")
                self.asked.append(payload)
                self.was_asked.set()
                self._tasks.add(asyncio.create_task(self._join(payload["relay_id"])))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()

    async def _join(self, relay_id: str) -> None:
        url = self._worker.url.replace("/v1/ws/worker", f"/v1/ws/relay/{relay_id}")
        async with self._session.ws_connect(url) as socket:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                await socket.close(code=4404, message=b"the service does not listen on its port")
                return
            outward = asyncio.create_task(self._outward(reader, socket))
            with contextlib.suppress(ConnectionError):
                async for frame in socket:
                    writer.write(frame.data)
                    await writer.drain()
            outward.cancel()
            writer.close()

    async def _outward(self, reader: asyncio.StreamReader, socket: aiohttp.ClientWebSocketResponse) -> None:
        while data := await reader.read(65536):
            await socket.send_bytes(data)
        await socket.close()


@asynccontextmanager
async def relaying(worker: Worker, port: int) -> AsyncIterator[Relaying]:
    relays = Relaying(worker, port)
    listening = asyncio.create_task(relays.listen())
    try:
        yield relays
    finally:
        listening.cancel()
        with contextlib.suppress(asyncio.CancelledError, AssertionError):
            await listening
        await relays.stop()


async def service_worker(hub: RunningHub, name: str = "w") -> Worker:
    """A worker with room for services."""
    worker = hub.stranger(name)
    worker.slots |= {"service_total": 4}
    await hub.join(worker)
    return worker


async def run_service(hub: RunningHub, worker: Worker, name: str = "web") -> Assignment:
    return await worker.take(await hub.api.submit(name=name, type="service"))
