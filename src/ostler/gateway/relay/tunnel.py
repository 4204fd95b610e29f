"""Two connections joined end to end, for whatever protocol both sides have agreed on."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostler.gateway.relay.caller import Caller
    from ostler.gateway.relay.upstream import Upstream


class _Side(asyncio.Protocol):
    def __init__(self, tunnel: "Tunnel", other: asyncio.Transport) -> None:
        self._tunnel = tunnel
        self._other = other
        self.passed = 0

    def data_received(self, data: bytes) -> None:
        self.passed += len(data)
        self._other.write(data)

    def pause_writing(self) -> None:
        if not self._other.is_closing():
            self._other.pause_reading()

    def resume_writing(self) -> None:
        if not self._other.is_closing():
            self._other.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._other.close()
        self._tunnel.side_lost()


class Tunnel:
    def __init__(self, caller: "Caller", upstream: "Upstream", ended: Callable[[int], None]) -> None:
        self._ended = ended
        self._caller = caller
        self._upstream = upstream
        self._open = 2
        self._down = _Side(self, caller.transport)
        up = _Side(self, upstream.transport)
        caller.transport.set_protocol(up)
        upstream.transport.set_protocol(self._down)

    def side_lost(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._ended(self._down.passed)
            self._caller.connection_lost(None)

    def cut(self) -> None:
        self._caller.transport.abort()
        self._upstream.transport.abort()
