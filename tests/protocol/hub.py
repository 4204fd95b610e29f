"""A real hub for one test: its loop, its uvicorn, its sockets, its SQLite file; only the clock is moved by hand."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp
from tests.protocol.api import Api
from tests.protocol.client import Worker

from ostler.core.events import DrainRequested
from ostler.domain.errors import NotFound
from ostler.hub.foresight import Foresight
from ostler.hub.lag import Lag
from ostler.hub.main import Hub
from ostler.hub.server import Server
from ostler.hub.settings import Settings
from ostler.ledger.sqlite import SqliteLedger
from ostler.store.shelves import Shelves

STEP_S = 10.0
"""Time moves in steps like this, as a hub that runs sees it; a longer step looks like a hub that was away."""


class ManualClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_750_000_000.0 + self.now


class PromptServer(Server):
    """Stops when it is told to, not at the next of uvicorn's ten looks a second: hundreds of tests stop a hub."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self._told = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self._told.wait()

    def stop(self) -> None:
        super().stop()
        self._told.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await asyncio.sleep(0)
        await asyncio.wait_for(self._wait_tasks_to_complete(), self.config.timeout_graceful_shutdown)


class RunningHub:
    def __init__(self, state: Path, manifest: Path | None = None) -> None:
        self.state = state
        self.manifest = manifest
        self.settings = Settings()
        """What a hub that starts from now on reads from its ostler.toml."""
        self.shelves: Shelves | None = None
        """Where it keeps bytes; None: in its state folder."""
        self.clock = ManualClock()
        self.workers: list[Worker] = []
        self._callers: list[Api] = []
        self._port = 0

    async def start(self) -> None:
        # With its protocol named, asyncio sends small answers at once; without it each waits 40 ms for the peer's ACK.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        listener.listen(128)
        listener.setblocking(False)
        self._port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._ledger = SqliteLedger(self.state / "ostler.db")
        self._hub = Hub(self._ledger, self.state, self.clock, self.settings, self.manifest, shelves=self.shelves)
        self._server = PromptServer(self._hub.app)
        self._serving = asyncio.create_task(self._hub.serve(self._server, listener))
        self.admin_token = (self.state / "admin.token").read_text().strip()
        self.join_token = (self.state / "join.token").read_text().strip()
        self.api = self.caller(self.admin_token)

    async def stop(self) -> None:
        for caller in self._callers:
            await caller.close()
        self._callers.clear()
        self._server.stop()
        assert await self._serving == 0
        self._ledger.close()

    async def restart(self, away_s: float = 0.0) -> None:
        """A new hub on the same files, on the same port."""
        await self.stop()
        self.clock.now += away_s
        await self.start()

    # Callers

    def caller(self, token: str) -> Api:
        api = Api(self.url, token)
        self._callers.append(api)
        return api

    async def user(self, name: str, role: str = "user") -> Api:
        """A caller with a new token of this role."""
        created = await self.api.post("/v1/tokens", {"role": role, "user": name}, 201)
        return self.caller(created["token"])

    # Workers

    def stranger(self, name: str = "w", slots: int = 4, *, plain: bool = False, **capabilities: Any) -> Worker:
        """A worker that has not connected yet. A plain one announces no extensions."""
        offer: dict[str, Any] = {"cpu_count": 16, "memory_gb": 64, "hostname": name}
        if capabilities.get("gpu_count") and "gpu_backend" not in capabilities:
            offer |= {"gpu_backend": "nvidia", "gpu_type": "A100"}
        worker = Worker(self.url, self.join_token, name, offer | capabilities, slots)
        worker.protocol = {} if plain else worker.protocol
        self.workers.append(worker)
        return worker

    async def worker(self, name: str = "w", slots: int = 4, *, plain: bool = False, **capabilities: Any) -> Worker:
        """A worker that has registered and announced its slots."""
        worker = self.stranger(name, slots, plain=plain, **capabilities)
        await self.join(worker)
        return worker

    async def join(self, worker: Worker, active: Iterable[Any] = ()) -> None:
        """Connect, register with these tasks and announce the slots."""
        lines = list(active)
        await worker.connect()
        await worker.register(active=lines)
        await worker.beat(active=lines)

    async def lose(self, worker: Worker) -> None:
        """Its socket closes, and the hub has seen that."""
        await worker.drop()
        await self.api.until_status(worker.name, "offline")

    def lag(self) -> Lag:
        return self._hub.metrics.lag

    @property
    def foresight(self) -> Foresight:
        return self._hub.foresight

    def connections(self) -> int:
        """Of workers."""
        return len(self._hub.sessions)

    @contextlib.asynccontextmanager
    async def held_up(self) -> AsyncIterator[None]:
        """The loop waits in the midst of a turn, as for a ledger that is slow to answer."""
        loop = self._hub.loop
        reached, goes_on, confirm = asyncio.Event(), asyncio.Event(), loop.confirm

        async def wait() -> None:
            reached.set()
            await goes_on.wait()
            await confirm()

        loop.confirm = wait
        turn = asyncio.create_task(loop.turn())
        await reached.wait()
        try:
            yield
        finally:
            loop.confirm = confirm
            goes_on.set()
            await turn

    # Time

    async def pass_time(self, seconds: float, beating: Iterable[Worker] = (), **beat: Any) -> None:
        """Let this much time go by, as the hub sees it; these workers send their heartbeats meanwhile."""
        while seconds > 0:
            self.clock.now += min(seconds, STEP_S)
            seconds -= STEP_S
            for worker in beating:
                await worker.beat(**beat)
            await self.turn()

    async def turn(self) -> None:
        """Until the loop has looked at the clock and has told what follows from it."""
        with contextlib.suppress(NotFound):
            await self._hub.loop.ask(lambda ref: DrainRequested(ref=ref, worker_id="nobody", draining=True))
