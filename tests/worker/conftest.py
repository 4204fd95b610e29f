import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.worker.scripted_hub import TOKEN, ScriptedHub

from ostler.domain.hubs import Addresses
from ostler.domain.worker import Capabilities
from ostler.runtime.process import ProcessRuntime
from ostler.worker.agent import Agent
from ostler.worker.api import HubApi
from ostler.worker.connection import Connection
from ostler.worker.credentials import Credentials, remember
from ostler.worker.environment import inherited
from ostler.worker.gpus import Gpus
from ostler.worker.launching import Place
from ostler.worker.state import State


class RunningWorker:
    """A whole worker inside the test's own loop: real sockets, a real supervisor, real processes."""

    def __init__(self, agent: Agent, connection: Connection, runtime: ProcessRuntime, credentials: Credentials) -> None:
        self.agent = agent
        self.connection = connection
        self.runtime = runtime
        self.credentials = credentials
        self.work: asyncio.Task[None] | None = None
        self.connecting: asyncio.Task[None] | None = None


@asynccontextmanager
async def running_worker(
    hub: str,
    folder: Path,
    *,
    heartbeat_s: float = 10.0,
    silence_s: float = 30.0,
    drain_s: float = 600.0,
    snapshot_bytes: int = 1024**3,
    gpus: Gpus | None = None,
    **state: Any,
) -> AsyncIterator[RunningWorker]:
    os.makedirs(folder, exist_ok=True)
    credentials, hubs = Credentials(folder, hub, TOKEN), Addresses(hub)
    runtime = ProcessRuntime(folder)
    facts = {"capabilities": Capabilities(cpu_count=4, memory_gb=8), "batch_slots": 4, "service_slots": 1, **state}
    async with aiohttp.ClientSession() as session:
        agent = Agent(
            State(worker_id="w1", boot_id="boot", **facts),
            runtime,
            HubApi(session, hubs, credentials),
            credentials,
            Place(
                hub=hub,
                folder=folder,
                environment=inherited(os.environ, TOKEN),
                drain_s=drain_s,
                heartbeat_s=heartbeat_s,
                snapshot_bytes=snapshot_bytes,
            ),
            gpus,
        )
        connection = Connection(
            session,
            hubs,
            credentials,
            on_open=agent.connected,
            on_message=agent.heard,
            on_lost=agent.disconnected,
            on_told=lambda: remember(folder, hub, hubs.known),
            silence_s=silence_s,
        )
        agent.speak_through(connection.send)
        worker = RunningWorker(agent, connection, runtime, credentials)
        await agent.open()
        tasks = [asyncio.create_task(part) for part in (agent.run(), connection.run(), agent.watch_ends())]
        worker.work, worker.connecting = tasks[0], tasks[1]
        try:
            yield worker
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await agent.close()
            await runtime.close(stop_tasks=True)


async def eventually(happened: Callable[[], object]) -> None:
    """For what no event tells: files that a task writes, the worker's own state."""
    async with asyncio.timeout(60):
        done = happened()
        while not done:
            await asyncio.sleep(0.01)
            done = happened()


@pytest.fixture
async def hub() -> AsyncIterator[ScriptedHub]:
    scripted = ScriptedHub()
    await scripted.start()
    yield scripted
    await scripted.stop()


@pytest.fixture
async def worker(hub: ScriptedHub, tmp_path: Path) -> AsyncIterator[RunningWorker]:
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(running_worker(hub.url, tmp_path / "w1"))
        await hub.next("register")
        await hub.next("ready_for_work")
        yield found
