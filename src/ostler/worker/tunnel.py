"""A connection to the gateway's own port, joined to one of this machine's: bytes both ways, as they come."""

import asyncio
import socket
from typing import cast
from urllib.parse import urlsplit

from ostler.tls import Trust

PROTOCOL = "ostler-tunnel"
OPENS_S = 8.0
"""Less than anybody waits for it at the other end, who is then told why there is none."""
FLUSH_S = 10.0
EOL = "\r\n"
MAX_HEAD_BYTES = 64 * 1024


class NotOpened(Exception):
    """The gateway cannot be reached, or will not have this tunnel."""


class Side(asyncio.Protocol):
    """What one of two joined connections gets, the other one sends, no faster than it can."""

    transport: asyncio.Transport | None = None
    other: asyncio.Transport | None = None

    def __init__(self) -> None:
        self.early = b""
        """What came before there was another."""
        self.came = asyncio.Event()
        self.lost = asyncio.Event()

    def end(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.write(data)
            return
        self.early += data
        self.came.set()
        if len(self.early) > MAX_HEAD_BYTES and self.transport is not None:
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        if self.other is not None and not self.other.is_closing():
            self.other.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.is_closing():
            self.other.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()
        self.came.set()
        if self.other is not None:
            self._no_more_comes(self.other)

    def pass_on(self) -> None:
        """What came before. The other may be full at once, so it must know by then whom to slow down."""
        assert self.other is not None and self.transport is not None
        if not self.transport.is_closing() and not self.transport.is_reading():
            self.transport.resume_reading()
        if self.early:
            self.other.write(self.early)
            self.early = b""
        if self.lost.is_set():
            self._no_more_comes(self.other)

    def _no_more_comes(self, other: asyncio.Transport) -> None:
        """Once the other one has sent all, it ends too; one that does not take it within this time is cut off."""
        other.close()
        asyncio.get_running_loop().call_later(FLUSH_S, other.abort)


def beside(hub: str, port: int) -> str:
    """Another port of the hub's machine. A hub that is spoken to with TLS is not told a token without it there."""
    url = urlsplit(hub)
    host = url.hostname or ""
    return f"{url.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


async def open_tunnel(gateway: str, key: str, headers: dict[str, str], trust: Trust) -> Side:
    url = urlsplit(gateway)
    tls = trust.context if url.scheme == "https" else None
    port = url.port or (443 if tls else 80)
    where = f"the gateway at {url.netloc}"
    side = Side()
    try:
        async with asyncio.timeout(OPENS_S):
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_connection(lambda: side, url.hostname or "", port, ssl=tls)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            transport.write(_asking(url.netloc, f"{url.path.rstrip('/')}/tunnel/{key}", headers))
            await _switched(side, where)
            return side
    except TimeoutError:
        side.end()
        raise NotOpened(f"{where} does not answer from here within {OPENS_S:g} s") from None
    except OSError as error:
        side.end()
        raise NotOpened(f"{where} cannot be reached from here: {error.strerror or error}") from None


def _asking(host: str, path: str, headers: dict[str, str]) -> bytes:
    lines = {"Host": host, "Connection": "Upgrade", "Upgrade": PROTOCOL, **headers}
    return f"GET {path} HTTP/1.1\r\n{''.join(f'{name}: {value}{EOL}' for name, value in lines.items())}{EOL}".encode()


async def _switched(side: Side, where: str) -> None:
    """Until the gateway speaks the tunnel's protocol. What it has said in it already is kept."""
    while (end := side.early.find(b"\r\n\r\n") + 4) < 4:
        if side.lost.is_set():
            raise NotOpened(f"{where} closed the connection without an answer")
        if len(side.early) > MAX_HEAD_BYTES:
            side.end()
            raise NotOpened(f"{where} answered with a head that has no end")
        side.came.clear()
        await side.came.wait()
    head, side.early = side.early[:end], side.early[end:]
    if not head.startswith(b"HTTP/1.1 101 "):
        side.end()
        status, _, _ = head.decode("latin-1").partition("\r\n")
        raise NotOpened(f"{where} answered {status[:60]!r}")


async def join(one: Side, two: Side) -> None:
    """Until both have ended, which the end of either brings about."""
    try:
        one.other, two.other = two.transport, one.transport
        one.pass_on()
        two.pass_on()
        await one.lost.wait()
        await two.lost.wait()
    finally:
        one.end()
        two.end()
