"""The relay as a process: its listening socket, its link to the hub, its end."""

import asyncio
import contextlib
import gc
import signal
import socket
from pathlib import Path

import ostler
from ostler.gateway.control import Hello, ToHub
from ostler.gateway.relay.caller import Caller
from ostler.gateway.relay.limits import Limits
from ostler.gateway.relay.link import Link
from ostler.gateway.relay.relay import Relay
from ostler.tls import Identity

BACKLOG = 2048
WITHOUT_HUB_S = 30.0
"""How long a relay whose hub is gone lets answers go on that have begun."""


class RelayProcess:
    """Has its port from the start, so that a taken one is known at once; lets callers in from the first `Setup` on."""

    def __init__(self, control: socket.socket, limits: Limits | None = None, folder: Path | None = None) -> None:
        self._control = control
        self._limits = limits or Limits()
        self._loop = asyncio.get_running_loop()
        self.relay = Relay(self._loop, self._send, self._limits, folder)
        self._link: Link | None = None
        self._server: asyncio.Server | None = None
        self._beginning: asyncio.Task[None] | None = None
        self._stop_at: float | None = None
        self._news = asyncio.Event()

    def _send(self, *messages: ToHub) -> None:
        if self._link is not None:
            self._link.send(*messages)

    async def run(self, host: str, port: int, identity: Identity | None = None) -> None:
        self._server = await self._loop.create_server(
            lambda: Caller(self.relay),
            host or None,
            port,
            backlog=BACKLOG,
            start_serving=False,
            ssl=identity.context if identity else None,
            ssl_handshake_timeout=self._limits.handshake_s if identity else None,
        )
        self.relay.on_setup = self._begin
        self.relay.on_stop = self.stop
        self.relay.on_empty = self._news.set
        # Before it is connected: what the hub has said already is answered at once.
        link = self._link = Link(self.relay.told, self._hub_is_lost, self._limits.hub_unread_bytes)
        await self._loop.create_unix_connection(lambda: link, sock=self._control)
        for listening in self._server.sockets:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        name = self._server.sockets[0].getsockname()
        link.send(Hello(ostler.__version__, name[0], name[1]))
        looking = asyncio.create_task(self._look(identity))
        try:
            await self._until_stopped()
        finally:
            looking.cancel()
            self._server.close()
            self.relay.tell_use()
            self.relay.tell_work()
            self._link.flush()
            self._link.transport.close()

    def _begin(self) -> None:
        if self._beginning is None and self._server is not None:
            self._beginning = asyncio.create_task(self._server.start_serving())

    async def _look(self, identity: Identity | None) -> None:
        while True:
            await asyncio.sleep(self._limits.look_every_s)
            self.relay.look()
            if identity is not None:
                identity.look()

    # The end

    def _hub_is_lost(self) -> None:
        self.relay.hub_is_lost()
        self.stop(WITHOUT_HUB_S)

    def stop(self, drain_s: float) -> None:
        """Let nobody in, and go when the last has got its answer, or after so many seconds. The earliest end counts."""
        at = self._loop.time() + drain_s
        self._stop_at = at if self._stop_at is None else min(self._stop_at, at)
        if self._server is not None:
            self._server.close()
        self.relay.let_nobody_in()
        self._news.set()

    async def _until_stopped(self) -> None:
        await self._news.wait()
        await self._until_empty()
        if self.relay.callers:
            self.relay.cut_everything()
            self._stop_at = self._loop.time() + self._limits.linger_s
            await self._until_empty()
        for caller in list(self.relay.callers):
            caller.transport.abort()
        self._stop_at = self._loop.time() + self._limits.linger_s
        await self._until_empty()

    async def _until_empty(self) -> None:
        while self.relay.callers and self._stop_at is not None and self._loop.time() < self._stop_at:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._stop_at):
                    await self._news.wait()


async def run(
    host: str, port: int, control: socket.socket, folder: Path | None, identity: Identity | None = None
) -> None:
    process = RelayProcess(control, folder=folder)
    loop = asyncio.get_running_loop()
    # A Ctrl-C at a terminal reaches everybody; the hub says in what order things end.
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    loop.add_signal_handler(signal.SIGTERM, process.stop, 0.0)
    gc.freeze()
    await process.run(host, port, identity)
