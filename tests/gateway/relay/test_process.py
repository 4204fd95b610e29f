"""The relay as a process of its own, and its end."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.gateway.relay.running_relay import (
    PLAIN,
    WAIT_S,
    Client,
    Heard,
    Line,
    ModelServer,
    RunningRelay,
    ScriptedHub,
    chat,
    echo,
    until,
)

import ostler
from ostler.gateway.control import Arrived, Asked, Cancelled, Close, Done, Drained, Hello, Open, Stop, ToRelay, frame


class Process:
    def __init__(self, child: asyncio.subprocess.Process, hub: ScriptedHub, port: int) -> None:
        self.child = child
        self.hub = hub
        self.port = port

    async def client(self) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", self.port))

    async def ended(self) -> int:
        async with asyncio.timeout(WAIT_S):
            return await self.child.wait()


@asynccontextmanager
async def running(*said: ToRelay) -> AsyncIterator[Process]:
    """With this said to it beforehand."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.sendall(frame(said))
    command = [
        sys.executable,
        "-m",
        "ostler.gateway.relay",
        "--listen",
        "127.0.0.1:0",
        "--control",
        str(theirs.fileno()),
    ]
    child = await asyncio.create_subprocess_exec(*command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE)
    theirs.close()
    hub = ScriptedHub(ours)
    await hub.start()
    hello = await hub.hears(Hello)
    assert hello.version == ostler.__version__
    process = Process(child, hub, hello.port)
    try:
        yield process
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
        await hub.close()


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    server = ModelServer(echo)
    await server.start()
    yield server
    await server.close()


async def test_what_was_said_while_it_started_is_answered() -> None:
    async with running(Close("one"), Close("two")) as process:
        assert await process.hub.hears(Drained, instance="one")
        assert await process.hub.hears(Drained, instance="two")


async def test_a_process_serves_and_stops_when_it_is_told(model: ModelServer) -> None:
    async with running() as relay:
        with pytest.raises(ConnectionRefusedError):
            await relay.client()
        relay.hub.say(PLAIN, Open("i1", "small", "127.0.0.1", model.port))
        client = await connected(relay)
        assert (await client.call(chat())).status == 200
        relay.hub.say(Stop(0.0))
        assert await relay.ended() == 0
        assert await client.rest() == b""
        assert (await relay.hub.hears(Done)).status == 200


async def connected(relay: Process) -> Client:
    """Once it has its configuration."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await relay.client()
            except ConnectionRefusedError:
                await asyncio.sleep(0.005)


@pytest.mark.parametrize("end", ["SIGTERM", "hub"])
async def test_a_process_ends_with_a_signal_or_with_its_hub(end: str) -> None:
    async with running() as relay:
        relay.hub.say(PLAIN)
        client = await connected(relay)
        client.ask(chat())
        await relay.hub.hears(Arrived)
        if end == "hub":
            await relay.hub.close()
        else:
            os.kill(relay.child.pid, signal.SIGINT)
            os.kill(relay.child.pid, signal.SIGTERM)
        assert (await client.reply()).code == "shutting_down"
        assert await relay.ended() == 0


async def test_a_port_that_is_taken_is_told_in_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "ostler.gateway.relay", "--listen", address, "--control", str(theirs.fileno())]
        child = await asyncio.create_subprocess_exec(*command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE)
        _, said = await child.communicate()
    assert child.returncode == 1
    assert said.decode().startswith(f"relay: {address} cannot be listened on") and said.count(b"\n") == 1
    assert b"--gateway-port N" in said
    ours.close()
    theirs.close()


# The end, in the test's own loop


@pytest.mark.parametrize("ahead", [True, False])
async def test_what_is_under_way_may_end_and_nobody_else_is_let_in(relay: RunningRelay, ahead: bool) -> None:
    release = asyncio.Event()

    async def script(line: Line, heard: Heard) -> None:
        line.begin_stream()
        line.event("one")
        await release.wait()
        line.end_stream()

    await relay.serving(script)
    streams, idle, half = [await relay.client() for _ in range(3)]
    streams.ask(chat(stream=True))
    await streams.head()
    half.ask(method="POST", more="Content-Length: 10\r\n")
    await until(lambda: len(relay.core.callers) == 3)
    await (await relay.client()).call(path="/health")
    relay.hub.say(Stop(WAIT_S))
    assert await idle.rest() == b""
    assert (await half.reply()).code == "shutting_down"
    with pytest.raises(ConnectionRefusedError):
        await relay.client()
    if ahead:
        streams.ask(chat())
    assert await streams.chunk() == b"data: one\n\n"
    release.set()
    assert await streams.chunk() == b""
    if ahead:
        assert (await streams.reply()).code == "shutting_down"
    assert await streams.rest() == b""
    assert relay.running is not None
    await relay.running


async def test_after_the_time_to_end_everything_is_ended(relay: RunningRelay) -> None:
    async def script(line: Line, heard: Heard) -> None:
        if heard.json["stream"]:
            line.begin_stream()
            line.event("one")
        await line.closed()
        raise ConnectionError

    server = await relay.serving(script)
    streams, waits, asks, page = [await relay.client() for _ in range(4)]
    streams.ask(chat(stream=True))
    waits.ask(chat())
    await until(lambda: len(server.heard) == 2)
    asks.ask(chat("large"))
    arrived = await relay.hub.hears(Arrived)
    page.ask(path="/running")
    asked = await relay.hub.hears(Asked)
    relay.hub.say(Stop(0.05))
    await streams.head()
    assert [await streams.chunk() for _ in range(3)][0::2] == [b"data: one\n\n", b""]
    for client in (waits, asks, page):
        reply = await client.reply()
        assert (reply.status, reply.code, reply.headers["connection"]) == (503, "shutting_down", "close")
    assert {(await relay.hub.hears(Cancelled)).request for _ in range(2)} == {arrived.request, asked.request}
    assert {(await relay.hub.hears(Done)).status for _ in range(2)} == {200, 503}
    assert relay.running is not None
    await relay.running


async def test_without_its_hub_who_waits_is_told_and_who_is_served_may_end(relay: RunningRelay) -> None:
    release = asyncio.Event()

    async def script(line: Line, heard: Heard) -> None:
        await release.wait()
        line.answer(b"fine")

    server = await relay.serving(script)
    served, waits = await relay.client(), await relay.client()
    served.ask(chat())
    await until(lambda: server.heard)
    waits.ask(chat("large"))
    await relay.hub.hears(Arrived)
    await relay.hub.close()
    assert (await waits.reply()).code == "shutting_down"
    with pytest.raises(ConnectionRefusedError):
        await relay.client()
    release.set()
    assert (await served.reply()).body == b"fine"
    assert relay.running is not None
    await relay.running


async def test_without_its_hub_a_request_cannot_be_given_back(relay: RunningRelay) -> None:
    die = asyncio.Event()

    async def script(line: Line, heard: Heard) -> None:
        await die.wait()
        line.cut()
        raise ConnectionError

    server = await relay.serving(script)
    client = await relay.client()
    client.ask(chat())
    await until(lambda: server.heard)
    await relay.hub.close()
    await until(lambda: not relay.core.linked)
    die.set()
    assert (await client.reply()).code == "upstream_error"


async def test_bodies_are_kept_where_the_process_is_told_to(tmp_path: Path, relay: RunningRelay) -> None:
    client = await relay.client()
    client.ask(chat("large", padding="x" * 2_000_000))
    await relay.hub.hears(Arrived)
    (exchange,) = relay.core.requests.values()
    folder = os.readlink(f"/proc/self/fd/{exchange.request.body._file.fileno()}")  # type: ignore[union-attr]
    assert folder.startswith(str(tmp_path))
