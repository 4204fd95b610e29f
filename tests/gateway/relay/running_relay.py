"""A whole relay in the test's own loop, with real sockets around it: a hub that says what the test tells it to, model
servers that do what the test has written, and callers that see every byte."""

import asyncio
import contextlib
import hashlib
import json
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from tests.tls.papers import context_for, identity

from ostler.gateway.control import (
    Close,
    Drained,
    Filters,
    Hello,
    KeyLimits,
    KeySetup,
    ModelSetup,
    Open,
    Setup,
    ToHub,
    ToRelay,
    frame,
    frames_to_hub,
)
from ostler.gateway.relay.limits import Limits
from ostler.gateway.relay.process import RelayProcess

SECRET = "s3cret-of-the-test"
WAIT_S = 60.0
WITH_TLS = bool(os.environ.get("OSTLER_TEST_TLS"))
"""`OSTLER_TEST_TLS=1 pytest tests/gateway/relay`: the whole of it over TLS."""
CHAT = "/v1/chat/completions"
M = TypeVar("M", bound=ToHub)


def key(secret: str = SECRET, user: str = "ann", role: str = "user", in_flight: int | None = None) -> KeySetup:
    return KeySetup(hashlib.sha256(secret.encode()).hexdigest(), user, role, KeyLimits(in_flight))


def setup(**models: ModelSetup) -> Setup:
    return Setup({name.replace("_", "-"): of for name, of in models.items()}, [key()], 4 * 1024 * 1024, "1")


PLAIN = setup(
    small=ModelSetup(aliases=["gpt-4", "org/small"], document={"description": "a small one"}),
    large=ModelSetup(loading_updates=True),
    shown=ModelSetup(loading_updates="text", unlisted=True),
    renamed=ModelSetup(
        upstream_name="real-name", filters=Filters(strip=["temperature"], set={"top_k": 3, "model": "no"})
    ),
    draining=ModelSetup(on_client_abort="drain"),
    hidden=ModelSetup(unlisted=True),
)


class ScriptedHub:
    """The other end of the control link."""

    def __init__(self, sock: socket.socket) -> None:
        self.messages: list[ToHub] = []
        self._sock = sock
        self._came = asyncio.Condition()
        self._frames = frames_to_hub()

    async def start(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=self._sock)
        self._reading = asyncio.create_task(self._listen(reader))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(65536):
            async with self._came:
                self.messages += self._frames.feed(data)
                self._came.notify_all()

    def say(self, *messages: ToRelay) -> None:
        self._writer.write(frame(messages))

    async def hears(self, kind: type[M], **fields: Any) -> M:
        """The next message of this kind, and with these fields, among those that nobody has asked for yet."""

        def wanted() -> list[M]:
            return [
                one for one in self.heard(kind) if all(getattr(one, name) == value for name, value in fields.items())
            ]

        async with asyncio.timeout(WAIT_S), self._came:
            await self._came.wait_for(wanted)
        message = wanted()[0]
        self.messages.remove(message)
        return message

    def heard(self, kind: type[M]) -> list[M]:
        return [message for message in self.messages if isinstance(message, kind)]

    async def close(self) -> None:
        self._reading.cancel()
        self._writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self._writer.wait_closed()


class Heard(msgspec.Struct):
    """A request as a model server got it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Line:
    """One connection of a model server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> Heard:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Heard(method, target, headers, body)

    def send(self, data: bytes) -> None:
        if not self.writer.is_closing():
            self.writer.write(data)

    def answer(
        self, body: bytes = b"{}", status: int = 200, content_type: str = "application/json", more: str = ""
    ) -> None:
        head = f"HTTP/1.1 {status} Fine\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
        self.send(head.encode() + body)

    def begin_stream(self) -> None:
        self.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")

    def event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        self.send(b"0\r\n\r\n")

    async def closed(self) -> None:
        """The relay has closed its end."""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(WAIT_S):
                while await self.reader.read(65536):
                    pass

    def cut(self) -> None:
        self.writer.transport.abort()

    def reset(self) -> None:
        """As a kernel does for a process that died with the connection open and bytes unread."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Line, Heard], Awaitable[None]]


async def echo(line: Line, heard: Heard) -> None:
    line.answer(json.dumps({"target": heard.target, "size": len(heard.body)}).encode())


class ModelServer:
    """Plays one script for every request; a script that is not told to goes on to the next on the same connection."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.heard: list[Heard] = []
        self.connections = 0
        self.ended = asyncio.Event()
        """A connection was ended by the relay."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**22)
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        line = Line(reader, writer)
        try:
            while True:
                heard = await line.request()
                self.heard.append(heard)
                await self.script(line, heard)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.ended.set()
        finally:
            self._tasks.discard(task)
            writer.close()

    async def close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Reply(msgspec.Struct):
    status: int
    headers: dict[str, str]
    body: bytes
    head: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return str(error["code"])


class Client:
    """A caller who writes bytes and reads bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        if not self.writer.is_closing():
            self.writer.write(data)

    def ask(
        self, body: Any = None, path: str = CHAT, *, method: str = "", more: str = "", secret: str = SECRET
    ) -> None:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        method = method or ("POST" if data else "GET")
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n{more}"
        length = f"Content-Length: {len(data)}\r\n" if data else ""
        self.send(f"{head}{length}\r\n".encode() + data)

    async def head(self) -> Reply:
        async with asyncio.timeout(WAIT_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return Reply(int(first.split(" ")[1]), headers, b"", head)

    async def reply(self, *, bodiless: bool = False) -> Reply:
        reply = await self.head()
        async with asyncio.timeout(WAIT_S):
            if bodiless or reply.status in (204, 304):
                return reply
            if reply.headers.get("transfer-encoding") == "chunked":
                while chunk := await self.chunk():
                    reply.body += chunk
            elif "content-length" in reply.headers:
                reply.body = await self.reader.readexactly(int(reply.headers["content-length"]))
            else:
                reply.body = await self.reader.read()
        return reply

    async def chunk(self) -> bytes:
        """The next chunk of the answer; empty at its end."""
        async with asyncio.timeout(WAIT_S):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
        return data

    async def call(self, body: Any = None, path: str = CHAT, **more: Any) -> Reply:
        self.ask(body, path, **more)
        return await self.reply(bodiless=more.get("method") == "HEAD")

    async def rest(self) -> bytes:
        """Everything until the relay closes the connection, however it does that."""
        pieces = []
        async with asyncio.timeout(WAIT_S):
            with contextlib.suppress(ConnectionError):
                while piece := await self.reader.read(65536):
                    pieces.append(piece)
        return b"".join(pieces)

    def hang_up(self) -> None:
        self.writer.close()


class RunningRelay:
    def __init__(self, process: RelayProcess, hub: ScriptedHub, folder: Path) -> None:
        self.process = process
        self.core = process.relay
        self.hub = hub
        self.folder = folder
        self.running: asyncio.Task[None] | None = None
        self._servers: list[ModelServer] = []
        self._clients: list[Client] = []

    @classmethod
    @asynccontextmanager
    async def open(
        cls, folder: Path, limits: Limits | None = None, configuration: Setup = PLAIN, tls: bool = WITH_TLS
    ) -> AsyncIterator["RunningRelay"]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        hub = ScriptedHub(ours)
        await hub.start()
        relay = cls(RelayProcess(theirs, limits or Limits(), folder), hub, folder)
        shown = identity(folder / "papers") if tls else None
        relay.context = context_for(folder / "papers") if tls else None
        relay.running = asyncio.create_task(relay.process.run("127.0.0.1", 0, shown))
        hello = await hub.hears(Hello)
        relay.port = hello.port
        hub.say(configuration)
        await relay.settled()
        try:
            yield relay
        finally:
            await relay._close()

    port: int
    context: ssl.SSLContext | None
    """By which callers know the relay, where it speaks TLS."""

    async def _close(self) -> None:
        assert self.running is not None
        for client in self._clients:
            client.hang_up()
        if not self.running.done():
            self.process.stop(0.0)
        async with asyncio.timeout(WAIT_S):
            await self.running
        for server in self._servers:
            await server.close()
        await self.hub.close()
        assert not list(self.folder.glob("ostler-body-*"))

    async def server(self, script: Script = echo) -> ModelServer:
        server = ModelServer(script)
        await server.start()
        self._servers.append(server)
        return server

    async def serving(
        self, script: Script = echo, model: str = "small", *, instance: str = "i1", concurrency: int | None = None
    ) -> ModelServer:
        """A model server behind an open gate."""
        server = await self.server(script)
        await self.open_gate(server, model, instance=instance, concurrency=concurrency)
        return server

    async def open_gate(
        self, server: ModelServer, model: str = "small", *, instance: str = "i1", concurrency: int | None = None
    ) -> None:
        self.hub.say(Open(instance, model, "127.0.0.1", server.port, concurrency))
        await self.settled()

    async def settled(self) -> None:
        """All that the hub has said has been heard: the relay answers in order."""
        self.hub.say(Close("nobody"))
        await self.hub.hears(Drained, instance="nobody")

    async def client(self, **more: Any) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**22, ssl=self.context, **more)
        client = Client(reader, writer)
        self._clients.append(client)
        return client

    async def call(self, body: Any = None, path: str = CHAT, **more: Any) -> Reply:
        return await (await self.client()).call(body, path, **more)


def chat(model: str = "small", *, stream: bool = False, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], "stream": stream, **more}


async def until(true: Callable[[], object]) -> None:
    """Let the loop run until this holds."""
    async with asyncio.timeout(WAIT_S):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
