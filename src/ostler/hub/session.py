"""One worker's socket after its handshake: frames straight from and to the transport, without a task of its own.

Ten thousand of these wait for the next heartbeat most of the time, so what each costs while it waits is what counts.
"""

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Protocol, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from ostler.hub.access import Caller
from ostler.hub.connections import CONNECTION
from ostler.wire import messages, version_1, websocket
from ostler.wire.websocket import BINARY, CLOSE, PING, PONG, TEXT, Violation

_log = logging.getLogger("ostler.hub")

MAX_WAITING = 8 * 1024 * 1024
"""What may wait for a peer that has not read what it was sent before."""
STALLED_S = 15.0
"""Whoever reads nothing for this long although something is there for it is cut off."""
REGISTER_WITHIN_S = 30.0
"""Whoever says for this long not who it is may be gone: nobody else looks after a connection without a worker."""
CLOSE_WITHIN_S = 5.0
"""How long a peer has to answer a close; then the connection is cut."""
UNHURRIED_S = 0.003
"""What a peer does not wait for leaves this much later, or with the next frame that it does wait for: the peer would
begin to work on it while others, for whom the same news is what they wait for, are still being told."""
HANDED_OVER = "ostler.hand_over"


class Listener(Protocol):
    """Who hears what comes in."""

    def heard(self, session: "Session", data: str | bytes) -> None: ...
    def lost(self, session: "Session") -> None: ...


class Session(asyncio.Protocol):
    """Frames wait here and leave together; a peer that does not read is cut off."""

    __slots__ = (
        "_closed",
        "_connections",
        "_flushing",
        "_frames",
        "_listener",
        "_paused_at",
        "_reader",
        "_timer",
        "_transport",
        "_waiting",
        "address",
        "batches",
        "beside",
        "caller",
        "hints",
        "lines",
        "number",
        "plain",
        "why_left",
        "worker_id",
    )

    def __init__(self, listener: Listener, number: int, caller: Caller, address: str) -> None:
        self._connections: set[Any] = set()
        """The server's, of which it closes all that are left when it stops."""
        self.number = number
        self.caller = caller
        self.address = address
        self.worker_id = ""
        self.batches = False
        self.beside = False
        """Whether this worker runs commands beside its tasks."""
        self.hints = False
        """Whether it makes use of hints."""
        self.plain = False
        """Whether it speaks version 1 of the protocol, without extensions."""
        self.lines = False
        """Whether it takes several in one assignment, and in one acknowledgement."""
        self.why_left = ""
        """Why the hub ended it, where it did."""
        self._listener = listener
        self._reader = websocket.Reader(messages.MAX_FRAME_BYTES)
        self._transport: asyncio.Transport | None = None
        self._frames: list[bytes] = []
        self._waiting = 0
        self._flushing = self._closed = False
        self._paused_at: int | None = None
        """What had not left when the peer was last looked at; None: it reads."""
        self._timer: asyncio.TimerHandle | None = None

    # What the transport tells

    def take_over(self, transport: asyncio.Transport, connections: set[Any]) -> None:
        self._transport = transport
        self._connections = connections
        connections.add(self)
        transport.set_protocol(self)
        self._after(REGISTER_WITHIN_S, self._is_it_registered)

    def data_received(self, data: bytes) -> None:
        try:
            for opcode, payload in self._reader.feed(data):
                self._take(opcode, payload)
        except Violation as violation:
            self.hold(True)  # nothing that follows can be understood
            self.close(violation.code, violation.reason)

    def pause_writing(self) -> None:
        if self._transport is not None and self._paused_at is None and not self._closed:
            self._paused_at = self._transport.get_write_buffer_size()
            self._after(STALLED_S, self._look)

    def resume_writing(self) -> None:
        self._paused_at = None
        if not self._closed:
            self._after(0, None)
            self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._after(0, None)
        self._transport = None
        self._connections.discard(self)
        self._end()

    # What the hub says

    def send_message(self, message: messages.Message, error: str = "", *, unhurried: bool = False) -> None:
        frame = version_1.encode(message, error) if self.plain else messages.encode(message, error)
        self.send(frame, unhurried=unhurried)

    def send(self, frame: bytes, *, unhurried: bool = False) -> None:
        if self._closed:
            return
        self._frames.append(frame)
        self._waiting += len(frame)
        if self._waiting > MAX_WAITING:
            if self._paused_at is None:
                self._flush()
            else:
                self._cut(f"{self._waiting} bytes wait for it, and it does not read")
        elif unhurried:
            if len(self._frames) == 1:
                asyncio.get_running_loop().call_later(UNHURRIED_S, self._flush)
        elif not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def flush(self) -> None:
        """What was said by now leaves before this turn of the loop is over."""
        if self._frames:
            self._flush()

    def close(self, code: int, reason: str, within_s: float | None = None) -> None:
        """What was said before still leaves; what the peer says from now on is not heard."""
        if self._closed or self._transport is None:
            return
        if self._paused_at is None:
            self._flush()
        self.why_left = reason
        self._end()
        self._transport.write(websocket.close_frame(code, reason))
        self._after(CLOSE_WITHIN_S if within_s is None else within_s, self._transport.abort)

    def hold(self, held: bool) -> None:
        """Read no more of what the peer says for now; or read on."""
        if self._transport is not None and held:
            self._transport.pause_reading()
        elif self._transport is not None and not self._closed:
            self._transport.resume_reading()

    def shutdown(self) -> None:
        """The server stops."""
        self.close(1012, "the hub is restarting")
        if self._transport is not None:
            self._transport.close()

    # How

    def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == CLOSE:
            self._answer_close(payload)
        elif self._closed or opcode == PONG:
            return
        elif opcode == PING:
            if self._transport is not None and self._paused_at is None:
                self._transport.write(websocket.frame(PONG, payload))
        elif opcode == BINARY:
            self._listener.heard(self, payload)
        else:
            try:
                text = str(payload, "utf-8")
            except UnicodeDecodeError:
                raise Violation(websocket.CLOSE_NOT_UTF8, "text that is not UTF-8") from None
            self._listener.heard(self, text)

    def _answer_close(self, payload: bytes) -> None:
        if self._transport is None:
            return
        if not self._closed:
            self._transport.write(websocket.close_frame(websocket.close_code(payload)))
        self._end()
        self._transport.close()
        self._after(CLOSE_WITHIN_S, self._transport.abort)

    def _flush(self) -> None:
        """Whatever has gathered goes out at once, in as few frames as the peer allows."""
        self._flushing = False
        if self._transport is None or self._closed or self._paused_at is not None or not self._frames:
            return
        frames, self._frames, self._waiting = self._frames, [], 0
        packed = messages.packed(frames) if self.batches else frames
        self._transport.write(b"".join([websocket.frame(TEXT, one) for one in packed]))

    def _is_it_registered(self) -> None:
        if not self.worker_id:
            self.close(messages.CLOSE_REGISTER_AGAIN, f"not registered within {REGISTER_WITHIN_S:.0f} s")

    def _look(self) -> None:
        """Has a peer that did not read begun to?"""
        if self._transport is None or self._paused_at is None:
            return
        left = self._transport.get_write_buffer_size()
        if left >= self._paused_at:
            self._cut(f"it has read nothing for {STALLED_S:.0f} s")
        else:
            self._paused_at = left
            self._after(STALLED_S, self._look)

    def _cut(self, why: str) -> None:
        """Not a word more: it would not be read."""
        about = {"worker": self.worker_id}
        _log.warning("the connection of %s is cut: %s", self.worker_id or self.address, why, extra=about)
        self.why_left = why
        self._end()
        if self._transport is not None:
            self._transport.abort()

    def _end(self) -> None:
        if not self._closed:
            self._closed = True
            self._frames = []
            self._listener.lost(self)

    def _after(self, seconds: float, then: Callable[[], None] | None) -> None:
        """One timer at most: the newest."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, then) if then is not None else None


def _nothing() -> None:
    return


class HandingOver(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, of which an endpoint may take the connection for itself once it has accepted it."""

    came_with = ""
    leaves: Callable[[Any], None] | None = None

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            cast(dict[str, object], self.scope).update({HANDED_OVER: self._hand_over, CONNECTION: self})

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def _leave(self) -> None:
        if self.leaves is not None:
            self.leaves(self)

    def _hand_over(self, session: Session) -> None:
        self._leave()
        self.connections.discard(self)
        session.take_over(self.transport, self.connections)
        # Its task ends now; where a timer is set it leaves the connection open, and this one never rings.
        self.close_timer = self.loop.call_later(0, _nothing)
        # Nothing of the handshake is left to the search for garbage: ten thousand come at once.
        cast(dict[str, object], self.scope).clear()
        self.conn.parser.close()
