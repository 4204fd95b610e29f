"""A hub that does what a test tells it: real sockets, no decisions of its own beyond acknowledging what it is sent."""

import asyncio
import hashlib
import json
from collections import defaultdict
from typing import Any

from aiohttp import WSMsgType, web

TOKEN = "t0ken-of-the-test"
WAIT_S = 60.0


class ScriptedHub:
    def __init__(self) -> None:
        self.url = ""
        self.acknowledges = {"register", "heartbeat", "job_result"}
        """The types that are answered by an ack, by themselves."""
        self.gives_token = ""
        self.hubs: list[str] = []
        """Where hubs are, as it tells whoever registers."""
        self.role, self.leader = "leader", ""
        """What it says of itself, and, as a standby, of another."""
        self.health_asked = 0
        self.refuses_with = 0
        self.unknown_tokens: set[str] = set()
        self.renewed: list[str] = []
        """What workers have said they keep."""
        self.log_status = 0
        self.log_cut = 0
        """After so many bytes the connection breaks."""
        self.log_gate = asyncio.Event()
        """Cleared: no log is taken until it is set."""
        self.log_gate.set()
        self.frames: list[Any] = []
        """Every frame as it came: one message or a list of them."""
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.sockets: list[web.WebSocketResponse] = []
        self.logs: dict[tuple[str, str], bytes] = defaultdict(bytes)
        self.finals: list[tuple[str, str]] = []
        self.requests: list[str] = []
        self.blobs: dict[str, bytes] = {}
        self.broken_blobs: set[str] = set()
        self.models: dict[str, bytes] = {}
        self.model_parts: dict[str, bytes] = {}
        self.model_status = 0
        self.model_cuts: list[int] = []
        """Of each next upload of outputs, so many bytes are taken; then its connection is cut."""
        self.checkpoints: dict[str, bytes] = {}
        self.checkpoint_status = 0
        self.transfers: list[str] = []
        """Outputs and checkpoints: what was asked for, and the ranges that were sent."""
        self.authorizations: list[str] = []
        self.relays: dict[str, web.WebSocketResponse] = {}
        self._relay_ends: dict[str, asyncio.Event] = {}
        self._read: dict[str, int] = defaultdict(int)
        self._came = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self._port = 0

    async def start(self) -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_get("/v1/ws/worker", self._worker)
        app.router.add_get("/v1/health", self._health)
        app.router.add_get("/v1/ws/relay/{relay}", self._relay)
        app.router.add_post("/v1/enrol/renewed", self._renewed)
        app.router.add_post("/v1/tasks/{task}/logs", self._log)
        app.router.add_put("/v1/snapshots/{sha}", self._put_blob)
        app.router.add_get("/v1/snapshots/{sha}", self._get_blob)
        app.router.add_head("/v1/model/{sha}", self._model_size)
        app.router.add_put("/v1/model/{sha}", self._put_model)
        app.router.add_put("/v1/checkpoints/{sha}", self._put_checkpoint)
        app.router.add_get("/v1/checkpoints/{sha}", self._get_checkpoint)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """Also in the middle of a test: `start` again is a hub that comes back at the same place."""
        await self.drop()
        for over in self._relay_ends.values():
            over.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def next(self, kind: str) -> dict[str, Any]:
        """The next message of this type that no call has returned yet."""

        def unread() -> list[dict[str, Any]]:
            return [payload for name, payload in self.messages if name == kind][self._read[kind] :]

        async with asyncio.timeout(WAIT_S), self._came:
            await self._came.wait_for(unread)
        found = unread()[0]
        self._read[kind] += 1
        return found

    def count(self, kind: str) -> int:
        return sum(name == kind for name, _ in self.messages)

    async def until(self, happened: Any) -> None:
        """Until this is true; asked again whenever anything came."""
        async with asyncio.timeout(WAIT_S), self._came:
            await self._came.wait_for(happened)

    async def send(self, kind: str, **payload: Any) -> None:
        await self.sockets[-1].send_json({"type": kind, "payload": payload})

    async def send_batch(self, *messages: tuple[str, dict[str, Any]]) -> None:
        await self.sockets[-1].send_json([{"type": kind, "payload": payload} for kind, payload in messages])

    async def assign(self, attempt: str, *command: str, **more: Any) -> None:
        await self.send("job_assign", **assignment(attempt, *command, **more))

    async def relay(self, relay_id: str, task_id: str, attempt: str = "") -> web.WebSocketResponse:
        """Call a service: the socket that the worker opens for it."""
        await self.send("relay_request", relay_id=relay_id, task_id=task_id, attempt=attempt)
        await self.until(lambda: relay_id in self.relays)
        return self.relays[relay_id]

    async def drop(self, code: int = 1012) -> None:
        for socket in self.sockets:
            if not socket.closed:
                await socket.close(code=code)

    async def _worker(self, request: web.Request) -> web.StreamResponse:
        self.authorizations.append(request.headers.get("Authorization", ""))
        await self._tell()
        if self.refuses_with or self.authorizations[-1].removeprefix("Bearer ") in self.unknown_tokens:
            return web.Response(status=self.refuses_with or 401, headers={"Ostler-Leader": self.leader})
        socket = web.WebSocketResponse(max_msg_size=1024 * 1024)
        await socket.prepare(request)
        self.sockets.append(socket)
        async for received in socket:
            if received.type != WSMsgType.TEXT:
                continue
            frame = json.loads(received.data)
            self.frames.append(frame)
            for message in frame if isinstance(frame, list) else [frame]:
                await self._take(socket, message["type"], message.get("payload", {}))
        return socket

    async def _renewed(self, request: web.Request) -> web.Response:
        self.renewed.append(request.headers["Authorization"])
        await self._tell()
        return web.json_response({})

    async def _health(self, request: web.Request) -> web.Response:
        self.health_asked += 1
        return web.json_response({"status": "ok", "role": self.role})

    async def _relay(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        relay_id = request.match_info["relay"]
        socket = web.WebSocketResponse(max_msg_size=1024 * 1024)
        await socket.prepare(request)
        self.relays[relay_id] = socket
        over = self._relay_ends[relay_id] = asyncio.Event()
        await self._tell()
        await over.wait()
        return socket

    async def _take(self, socket: web.WebSocketResponse, kind: str, payload: dict[str, Any]) -> None:
        self.messages.append((kind, payload))
        if kind in self.acknowledges:
            echoed = {name: payload[name] for name in ("task_id", "attempt", "sent_at") if name in payload}
            token = {"token": self.gives_token} if self.gives_token and kind == "register" else {}
            hubs = {"hubs": self.hubs} if self.hubs and kind == "register" else {}
            await socket.send_json({"type": "ack", "payload": {"of": kind, **echoed, **token, **hubs}})
        await self._tell()

    async def _log(self, request: web.Request) -> web.Response:
        task, attempt = request.match_info["task"], request.query["attempt"]
        data = await request.read()
        self.requests.append(f"{request.path_qs} {len(data)}")
        await self._tell()
        await self.log_gate.wait()
        if self.log_status:
            return web.Response(status=self.log_status)
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        have = len(self.logs[task, attempt])
        if int(request.query["offset"]) == have and 0 < self.log_cut < len(data):
            self.logs[task, attempt] += data[: self.log_cut]
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if int(request.query["offset"]) != have:
            return web.json_response({"status": 409, "size": have}, status=409)
        if "gap" in request.query:
            self.logs[task, attempt] += f"[{request.query['gap']} bytes left out]".encode()
        self.logs[task, attempt] += data
        if request.query.get("final") == "1":
            self.finals.append((task, attempt))
        await self._tell()
        return web.json_response({"size": len(self.logs[task, attempt])})

    async def _put_blob(self, request: web.Request) -> web.Response:
        data = await request.read()
        sha = request.match_info["sha"]
        if hashlib.sha256(data).hexdigest() != sha:
            return web.Response(status=422)
        self.blobs[sha] = data
        return web.Response(status=201)

    async def _get_blob(self, request: web.Request) -> web.Response:
        self.requests.append(request.path)
        await self._tell()
        if request.match_info["sha"] in self.broken_blobs:
            return web.Response(status=503)
        data = self.blobs.get(request.match_info["sha"])
        return web.Response(status=404) if data is None else web.Response(body=data)

    async def _model_size(self, request: web.Request) -> web.Response:
        await self._transferred(request)
        sha = request.match_info["sha"]
        if sha in self.models:
            return web.Response(headers={"Upload-Offset": str(len(self.models[sha])), "Ostler-Complete": "1"})
        have = len(self.model_parts.get(sha, b""))
        return web.Response(status=200 if have else 404, headers={"Upload-Offset": str(have)})

    async def _put_model(self, request: web.Request) -> web.Response:
        sha, asked = request.match_info["sha"], request.headers.get("Content-Range", "")
        await self._transferred(request)
        if self.model_status:
            return web.json_response({"detail": "not this one"}, status=self.model_status)
        have = self.model_parts.get(sha, b"") if asked else b""
        if asked and not asked.startswith(f"bytes {len(have)}-"):
            return web.Response(status=409, headers={"Upload-Offset": str(len(have))})
        if self.model_cuts:
            self.model_parts[sha] = have + await request.content.readexactly(self.model_cuts.pop(0))
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=503)
        data = have + await request.read()
        if hashlib.sha256(data).hexdigest() != sha:
            self.model_parts.pop(sha, None)
            return web.Response(status=422)
        known = sha in self.models
        self.models[sha] = data
        return web.Response(status=200 if known else 201)

    async def _put_checkpoint(self, request: web.Request) -> web.Response:
        await self._transferred(request)
        data, sha = await request.read(), request.match_info["sha"]
        if self.checkpoint_status or hashlib.sha256(data).hexdigest() != sha:
            return web.Response(status=self.checkpoint_status or 422)
        self.checkpoints[sha] = data
        await self._tell()
        return web.Response(status=201)

    async def _get_checkpoint(self, request: web.Request) -> web.Response:
        await self._transferred(request)
        data = self.checkpoints.get(request.match_info["sha"])
        return web.Response(status=404) if data is None else web.Response(body=data)

    async def _transferred(self, request: web.Request) -> None:
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        kind = request.path.split("/")[2]
        self.transfers.append(" ".join(filter(None, (request.method, kind, request.headers.get("Content-Range")))))
        await self._tell()

    async def _tell(self) -> None:
        async with self._came:
            self._came.notify_all()


def assignment(attempt: str, *command: str, **more: Any) -> dict[str, Any]:
    """A job_assign; what is not part of the message itself goes into the spec."""
    own = {
        name: more.pop(name)
        for name in (
            "devices",
            "index",
            "after",
            "line",
            "remaining_time",
            "rank",
            "peers",
            "master_port",
            "checkpoint",
            "checkpoint_by",
        )
        if name in more
    }
    spec = {"id": more.pop("id", f"job-{attempt}"), "command": list(command), **more}
    return {"spec": spec, "attempt": attempt, "remaining_time": 0, **own}
