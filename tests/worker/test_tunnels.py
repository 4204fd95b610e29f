"""Tunnels to models: the worker opens them to the gateway's port, and joins them to the model's."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.worker.conftest import RunningWorker, eventually
from tests.worker.scripted_hub import ScriptedHub
from tests.worker.test_services import serve, until_healthy

from ostler.worker import tunnel
from ostler.worker.tunnel import Side, beside

WAIT_S = 60.0
GOOD = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: ostler-tunnel\r\n\r\n"
ASKING = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Gateway:
    """Its port: what comes is kept, and answered by the test."""

    def __init__(self) -> None:
        self.came: asyncio.Queue[tuple[str, asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.came.put_nowait((head.decode(), reader, writer))

    async def tunnel(self, answer: bytes = GOOD) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(WAIT_S):
            head, reader, writer = await self.came.get()
        writer.write(answer)
        return head, reader, writer

    def close(self) -> None:
        self._server.close()


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    found = Gateway()
    await found.open()
    yield found
    found.close()


@pytest.fixture
async def service(hub: ScriptedHub, worker: RunningWorker, tmp_path: Path) -> RunningWorker:
    folder = tmp_path / "service"
    folder.mkdir()
    await serve(hub, folder)
    await until_healthy(hub)
    return worker


async def ask(hub: ScriptedHub, port: int, key: str = "k1", task: str = "job-s1", **more: Any) -> None:
    await hub.send("relay_request", relay_id=key, task_id=task, attempt="s1", port=port, **more)


async def told(hub: ScriptedHub, key: str = "k1") -> tuple[int, str]:
    """What the worker says to the hub instead of opening the tunnel."""
    await hub.until(lambda: key in hub.relays)
    frame = await hub.relays[key].receive()
    return frame.data, frame.extra or ""


async def test_a_tunnel_is_asked_for_with_the_workers_token_and_leads_to_the_service(
    hub: ScriptedHub, service: RunningWorker, gateway: Gateway
) -> None:
    await ask(hub, gateway.port)
    head, reader, writer = await gateway.tunnel(GOOD + ASKING)
    first, *lines = head.strip().split("\r\n")
    assert first == "GET /tunnel/k1 HTTP/1.1"
    assert f"Host: 127.0.0.1:{gateway.port}" in lines and "Upgrade: ostler-tunnel" in lines
    assert hub.authorizations[-1] in [line.partition(": ")[2] for line in lines]
    for _ in range(2):
        assert b" 200 " in await reader.readuntil(b"\r\n")
        assert b"hello" in await reader.readuntil(b"hello")
        writer.write(ASKING)
    assert not hub.relays
    writer.close()
    await eventually(lambda: not service.agent._relays._open)


async def test_a_large_request_may_come_at_once_behind_the_switch(
    hub: ScriptedHub, service: RunningWorker, gateway: Gateway
) -> None:
    body = b"y" * 3_000_000
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
    await ask(hub, gateway.port)
    _, reader, _ = await gateway.tunnel(GOOD + head + body)
    async with asyncio.timeout(WAIT_S):
        assert (await reader.read(-1)).endswith(body)


async def test_a_gateway_may_have_a_name_of_its_own(hub: ScriptedHub, service: RunningWorker, gateway: Gateway) -> None:
    await ask(hub, 1, url=f"http://localhost:{gateway.port}/models")
    head, _, writer = await gateway.tunnel()
    assert head.startswith("GET /models/tunnel/k1 HTTP/1.1\r\n") and f"Host: localhost:{gateway.port}" in head
    writer.close()


@pytest.mark.parametrize(
    ("hub", "port", "url"),
    [
        ("http://hub:7600", 7601, "http://hub:7601"),
        ("https://hub.example/sub", 7601, "https://hub.example:7601"),
        ("http://[fd00::1]:7600", 7602, "http://[fd00::1]:7602"),
    ],
)
def test_a_gateway_without_one_is_on_the_machine_that_is_known_as_the_hubs(hub: str, port: int, url: str) -> None:
    assert beside(hub, port) == url


@pytest.mark.parametrize("ends", ["gateway", "service"])
async def test_the_end_of_either_side_is_the_end_of_both(
    hub: ScriptedHub, service: RunningWorker, gateway: Gateway, ends: str
) -> None:
    await ask(hub, gateway.port)
    _, reader, writer = await gateway.tunnel()
    if ends == "gateway":
        writer.transport.abort()
    else:
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(WAIT_S):
            assert (await reader.read()).endswith(b"hello")
    await eventually(lambda: not service.agent._relays._open)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "answered 'HTTP/1.1 404 Not Found'"),
        (b"HTTP/1.1 401 Unauthorized\r\n\r\n", "answered 'HTTP/1.1 401 Unauthorized'"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "answered 'SSH-2.0-OpenSSH_9.2'"),
        (b"x" * 70_000, "answered with a head that has no end"),
    ],
)
async def test_a_gateway_that_does_not_switch_is_told_of_to_the_hub(
    hub: ScriptedHub, service: RunningWorker, gateway: Gateway, answer: bytes, why: str
) -> None:
    await ask(hub, gateway.port)
    await gateway.tunnel(answer)
    assert await told(hub) == (4502, f"the gateway at 127.0.0.1:{gateway.port} {why}")
    await eventually(lambda: not service.agent._relays._open)


async def test_a_gateway_that_cannot_be_reached_or_is_silent_is_told_of_too(
    hub: ScriptedHub, service: RunningWorker, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask(hub, 1)
    code, why = await told(hub)
    assert code == 4502 and why.startswith("the gateway at 127.0.0.1:1 cannot be reached from here: ")
    monkeypatch.setattr(tunnel, "OPENS_S", 0.05)
    await ask(hub, gateway.port, "k2")
    assert await told(hub, "k2") == (
        4502,
        f"the gateway at 127.0.0.1:{gateway.port} does not answer from here within 0.05 s",
    )


async def test_where_there_is_no_service_no_tunnel_is_opened(
    hub: ScriptedHub, service: RunningWorker, gateway: Gateway
) -> None:
    await ask(hub, gateway.port, task="nothing")
    assert await told(hub) == (4404, "this service does not run here")
    assert gateway.came.empty()


async def test_tunnels_count_among_the_calls_that_are_relayed_at_once(
    hub: ScriptedHub, service: RunningWorker, gateway: Gateway
) -> None:
    service.agent._relays._at_once = 1
    await ask(hub, gateway.port)
    _, _, writer = await gateway.tunnel()
    await ask(hub, gateway.port, "k2")
    assert await told(hub, "k2") == (4429, "this worker relays 1 connections already")
    writer.close()


async def test_what_the_gateway_does_not_take_stays_with_the_service(
    hub: ScriptedHub, service: RunningWorker, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    full: list[Side] = []
    paused = Side.pause_writing
    monkeypatch.setattr(Side, "pause_writing", lambda side: (full.append(side), paused(side)))
    await ask(hub, gateway.port)
    _, reader, writer = await gateway.tunnel()
    writer.write(b"GET /big/100000000 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    await eventually(lambda: full)
    (side,) = full
    assert side.other is not None and side.transport is not None
    assert not side.other.is_reading() and side.transport.get_write_buffer_size() < 2_000_000
    async with asyncio.timeout(WAIT_S):
        await reader.readuntil(b"\r\n\r\n")
        size = 0
        while piece := await reader.read(2**20):
            size += len(piece)
    assert size == 100_000_000
