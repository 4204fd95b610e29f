"""Who waits for a handshake of TLS counts as a connection, and has little time for it."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.tls.papers import context_for, identity

from ostler.hub import vestibule
from ostler.hub.door import Line
from ostler.hub.vestibule import Vestibule

WAIT_S = 60.0


class Inside(asyncio.Protocol):
    """Says so, and stays."""

    def __init__(self, everybody: set[object]) -> None:
        self._everybody = everybody

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._everybody.add(self)
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"inside")

    def connection_lost(self, error: Exception | None) -> None:
        self._everybody.discard(self)


@asynccontextmanager
async def open_house(folder: Path, room: int) -> AsyncIterator[int]:
    everybody: set[object] = set()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    before = Vestibule(listener, identity(folder).context, Line(room), everybody, lambda: Inside(everybody))
    try:
        yield listener.getsockname()[1]
    finally:
        before.close()
        await before.wait_closed()
        listener.close()


async def enter(port: int, context: ssl.SSLContext) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    async with asyncio.timeout(WAIT_S):
        assert await reader.readexactly(6) == b"inside"
    return writer


async def is_turned_away(port: int, context: ssl.SSLContext) -> bool:
    try:
        (await enter(port, context)).close()
    except (OSError, asyncio.IncompleteReadError):
        return True
    return False


async def test_who_says_nothing_takes_room_like_others_and_for_a_short_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vestibule, "HEAD_S", 1.0)
    async with open_house(tmp_path, 3) as port:
        context = context_for(tmp_path)
        first = await enter(port, context)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert await is_turned_away(port, context)
        async with asyncio.timeout(WAIT_S):
            for reader, _ in silent:
                assert await reader.read() == b"", "their time is over"
        (await enter(port, context)).close()
        first.close()


async def test_who_speaks_something_else_harms_nobody(tmp_path: Path) -> None:
    async with open_house(tmp_path, 10) as port:
        for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff", b"\0" * 100):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(nonsense)
            writer.write_eof()
            async with asyncio.timeout(WAIT_S):
                assert b"inside" not in await reader.read()
            writer.close()
        distrustful = ssl.create_default_context()
        with pytest.raises(ssl.SSLCertVerificationError):
            await enter(port, distrustful)
        (await enter(port, context_for(tmp_path))).close()


async def test_many_at_once_all_come_in(tmp_path: Path) -> None:
    async with open_house(tmp_path, 1000) as port:
        context = context_for(tmp_path)
        for writer in await asyncio.gather(*(enter(port, context) for _ in range(150))):
            writer.close()
