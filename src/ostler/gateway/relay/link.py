"""The relay's end of the control link: one frame for all that was said in one turn of the loop."""

import asyncio
from collections.abc import Callable
from typing import cast

from ostler.gateway.control import ToHub, ToRelay, frame, frames_to_relay


class Link(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, told: Callable[[ToRelay], None], lost: Callable[[], None], max_unread_bytes: int) -> None:
        self._told = told
        self._lost = lost
        self._max_unread_bytes = max_unread_bytes
        self._frames = frames_to_relay()
        self._said: list[ToHub] = []
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for message in self._frames.feed(data):
            self._told(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._said.clear()
        self._lost()

    def send(self, *messages: ToHub) -> None:
        if not self._said:
            self._loop.call_soon(self.flush)
        self._said += messages

    def flush(self) -> None:
        said, self._said = self._said, []
        if not said or self.transport.is_closing():
            return
        self.transport.write(frame(said))
        if self.transport.get_write_buffer_size() > self._max_unread_bytes:
            self.transport.abort()
