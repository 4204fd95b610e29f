"""The order in which workers come in: so many handshakes per tick of the loop; others wait in line, or come back later.

A fleet that returns all at once would otherwise be served all at once, and nobody else meanwhile. A tick that comes
late lets in no more than one on time, so a hub that is slow takes in fewer.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ostler.hub.connections import CONNECTION
from ostler.hub.head import HeadWithBody

PATH = b"/v1/ws/worker"
TICK_S = 0.02
PER_TICK = 25
PER_S = PER_TICK / TICK_S
IN_LINE = int(4 * PER_S)
"""Whoever would wait for longer than a few seconds is sent away: a worker gives a handshake ten."""
LATEST_S = 15
"""No longer than a worker would wait by itself."""
HEAD_S = 20.0
"""From the first byte of a request, or from none, to the end of its head."""
WITHOUT_TOKEN_S = 60.0
"""For the rest of a request, and for its answer to be taken, where no token came with it."""
MAX_HEAD_BYTES = 64 * 1024
"""Of a request: its line and its headers. Who sends more has shown no token yet."""
LINGER_S = 2.0
"""For who is refused while it still sends, to read why."""
COMPLAIN_S = 60.0

_log = logging.getLogger("ostler.hub")


class Line:
    """Those who wait for their handshake, and how many connections there is room for."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._complained_at = float("-inf")
        self._waiting: deque[Door] = deque()
        self._left = PER_TICK
        self._promised = 0.0
        """How many have been told when to come back, and are not due yet."""
        self._ticking: asyncio.TimerHandle | None = None

    def enter(self, door: "Door") -> None:
        if self._left and not self._waiting:
            self._left -= 1
            door.let_in()
        elif len(self._waiting) < IN_LINE:
            self._waiting.append(door)
        else:
            self._promised += 1
            door.send_away(min(LATEST_S, 1 + int((len(self._waiting) + self._promised) / PER_S)))
        if self._ticking is None:
            self._ticking = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def has_room(self, connections: int) -> bool:
        """Said once a minute where there is none: whoever is turned away tries again and again."""
        now = asyncio.get_running_loop().time()
        if connections >= self._room and now - self._complained_at >= COMPLAIN_S:
            self._complained_at = now
            _log.error(
                "%d connections are all that the limit on open files leaves room for, and more are turned away: raise "
                "it (LimitNOFILE= of the hub's systemd unit, or `ulimit -Hn`)",
                connections,
            )
        return connections < self._room

    def _tick(self) -> None:
        self._left = PER_TICK
        if not self._waiting:
            self._promised = max(0.0, self._promised - PER_TICK)
        while self._left and self._waiting:
            self._left -= 1
            self._waiting.popleft().let_in()
        busy = self._waiting or self._promised
        self._ticking = asyncio.get_running_loop().call_later(TICK_S, self._tick) if busy else None


class _HeadTooLarge(Exception):
    """It is not looked at any further."""


class Door(HttpToolsProtocol):
    """uvicorn's HTTP, in which a worker's handshake waits for its turn."""

    came_with = ""
    leaves: Callable[[Any], None] | None = None

    def __init__(self, line: Line, **options: Any) -> None:
        super().__init__(**options)
        self._line = line
        self._in_line = False
        self._patience: asyncio.Handle | None = None
        """Rings when patience ends, or before: then it is set anew. To set one for every request costs as much as to
        read its head. Of who was refused: when it is cut off."""
        self._rings_at = self._patient_until = 0.0
        self.url, self.headers = b"", []
        self._head_bytes = 0
        """That have come of a head which is not complete, without those that came together with its first."""
        self._in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._line.has_room(len(self.connections)):
            self._expect_head()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self._leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_line:
            return  # it speaks out of turn: nothing was agreed on yet, or it was refused
        self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(dict[str, object], self.scope)[CONNECTION] = self
        self._in_head, self._head_bytes = True, 0
        self._expect_head()

    def _leave(self) -> None:
        if self.leaves is not None:
            self.leaves(self)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._head_is_too_large():
            self._expect_nothing()
            raise _HeadTooLarge  # the parser ends with it
        self._be_patient(WITHOUT_TOKEN_S)
        super().on_headers_complete()
        if self.cycle is not None:  # none for a WebSocket
            self.cycle.transport = cast(asyncio.Transport, HeadWithBody(self.transport))

    def send_400_response(self, msg: str) -> None:
        if self._head_is_too_large():
            self._refuse_head()
        else:
            super().send_400_response(msg)

    def _head_is_too_large(self) -> bool:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES

    def _refuse_head(self) -> None:
        if self._in_line or self.transport.is_closing():
            return
        self.transport.write(
            b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        # Closed with bytes unread, the other side would get a reset, and might never see the answer.
        self._in_line = True
        self._expect_nothing()
        self._patience = self.loop.call_later(LINGER_S, self.transport.abort)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _expect_head(self) -> None:
        """Not for ever: there is room for so many connections, and whoever says nothing has shown no token."""
        self._be_patient(HEAD_S)

    def _be_patient(self, seconds: float) -> None:
        self._patient_until = self.loop.time() + seconds
        if self._patience is None or self._rings_at > self._patient_until:
            self._set_timer()

    def _set_timer(self) -> None:
        self._expect_nothing()
        self._rings_at = self._patient_until
        self._patience = self.loop.call_at(self._rings_at, self._lose_patience)

    def _lose_patience(self) -> None:
        """At once: what it was answered it may never read. Who has shown a token may take as long as it likes."""
        self._patience = None
        if self._patient_until > self._rings_at:
            self._set_timer()
        elif self._in_head or not self.came_with:
            self.transport.abort()

    def _expect_nothing(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def handle_websocket_upgrade(self) -> None:
        self._expect_nothing()
        self._leave()
        if self.url.partition(b"?")[0] != PATH:
            super().handle_websocket_upgrade()
            return
        self._in_line = True
        self._line.enter(self)

    def let_in(self) -> None:
        self._in_line = False
        if not self.transport.is_closing():
            super().handle_websocket_upgrade()

    def send_away(self, seconds: int) -> None:
        """As short as it can be: thousands are told so at once."""
        self.transport.write(
            b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: %d\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            % seconds
        )
        self.transport.close()


def door_of(line: Line) -> type[asyncio.Protocol]:
    """What uvicorn makes for every connection."""

    def make(**options: Any) -> Door:
        return Door(line, **options)

    return cast(type[asyncio.Protocol], make)
