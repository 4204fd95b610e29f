"""The relay with TLS: what it does differently from one without. `OSTLER_TEST_TLS=1` runs all the other tests so."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tests.gateway.relay.running_relay import PLAIN, Client, Heard, Line, RunningRelay, chat, until
from tests.gateway.relay.test_elsewhere import KEYS, WORKER
from tests.gateway.relay.test_leaving import endless
from tests.tls.papers import issued

from ostler.gateway.control import Done, NeedTunnel, Open, Way
from ostler.gateway.relay.limits import Limits
from ostler.tls import Trust
from ostler.worker.tunnel import NotOpened, Side, open_tunnel


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[RunningRelay]:
    limits = Limits(linger_s=0.1, look_every_s=0.05, stall_s=0.5, connect_s=5.0)
    async with RunningRelay.open(tmp_path, limits, msgspec.structs.replace(PLAIN, keys=KEYS), tls=True) as relay:
        yield relay


async def deaf_client(relay: RunningRelay) -> Client:
    """It asks, and then reads nothing."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", relay.port))
    reader, writer = await asyncio.open_connection(
        sock=sock, ssl=relay.context, server_hostname="127.0.0.1", limit=1024
    )
    client = Client(reader, writer)
    client.ask(chat(stream=True))
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return client


async def test_without_tls_nobody_is_heard(secured: RunningRelay) -> None:
    await secured.serving()
    reader, writer = await asyncio.open_connection("127.0.0.1", secured.port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: gateway\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        assert b"HTTP" not in await reader.read()
    writer.close()
    assert (await secured.call(chat())).status == 200


async def test_a_caller_who_reads_nothing_slows_its_server_down_and_is_given_up(secured: RunningRelay) -> None:
    server = await secured.serving(endless)
    client = await deaf_client(secured)
    await until(lambda: any(caller.full for caller in secured.core.callers))
    (caller,) = secured.core.callers
    assert caller.transport.get_write_buffer_size() < 4 * 1024 * 1024
    await server.ended.wait()
    assert (await secured.hub.hears(Done)).status == 499
    client.hang_up()


async def test_a_refusal_is_read_while_the_caller_still_sends(secured: RunningRelay) -> None:
    client = await secured.client()
    client.send(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Length: 90000000\r\n\r\n" + b"x" * 500_000
    )
    assert (await client.reply()).status == 401
    assert await client.rest() == b""


async def test_an_answer_that_breaks_off_is_seen_to_break_off(secured: RunningRelay) -> None:
    async def breaks(line: Line, heard: Heard) -> None:
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")
        await asyncio.sleep(0.05)
        line.cut()

    await secured.serving(breaks)
    client = await secured.client()
    client.ask(chat())
    assert (await client.head()).status == 200
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError, ssl.SSLError)):
        await client.reader.readexactly(100)


async def test_a_worker_opens_tunnels_to_a_relay_that_it_knows_and_to_no_other(
    secured: RunningRelay, tmp_path: Path
) -> None:
    gateway, headers = f"https://127.0.0.1:{secured.port}", {"Authorization": f"Bearer {WORKER}"}
    secured.hub.say(Open("i1", "small", "127.0.0.1", 5001, None, Way(tunnel=True)))
    client = await secured.client()
    client.ask(chat())
    needed = await secured.hub.hears(NeedTunnel, instance="i1")
    issued(tmp_path / "others")
    with pytest.raises(NotOpened, match="certificate"):
        await open_tunnel(gateway, needed.key, headers, Trust(str(tmp_path / "others" / "ca.pem")))
    known = Trust(str(tmp_path / "papers" / "ca.pem"))
    side: Side = await open_tunnel(gateway, needed.key, headers, known)
    await until(lambda: b"hello" in side.early)
    assert side.transport is not None
    side.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    assert (await client.reply()).json == {}
    side.end()


async def test_a_new_certificate_is_shown_to_who_comes_next(secured: RunningRelay, tmp_path: Path) -> None:
    first = await secured.client()
    shown = first.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    issued(tmp_path / "papers")

    async def next_one() -> bytes:
        client = await secured.client()
        found: bytes = client.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        client.hang_up()
        return found

    async with asyncio.timeout(60):
        while await next_one() == shown:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert (await first.call(path="/health")).status == 200
