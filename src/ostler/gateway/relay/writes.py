"""What is to be written, together for all connections where there are many.

A write wakes whoever waits at the other end, which costs as much as the rest of it. A model's server and a proxy
before us have many of our connections each: written one right after the other, at the end of a turn of the loop, they
wake it once. With few requests under way there is nothing to put together, and each write is made at once.
"""

import asyncio

MOST = 32
"""Writes that wait."""
SMALL_BYTES = 16 * 1024
"""What is larger is written at once: only then a connection can say that it takes no more before more is read."""


class Writes:
    def __init__(self, loop: asyncio.AbstractEventLoop, few: int) -> None:
        self.under_way = 0
        """Requests that instances have."""
        self.few = few
        self._loop = loop
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []

    def add(self, transport: asyncio.Transport, data: bytes) -> None:
        waiting = self._waiting
        if len(data) > SMALL_BYTES:
            self.flush()
            transport.write(data)
        elif not waiting and self.under_way <= self.few:
            transport.write(data)
        else:
            if not waiting:
                self._loop.call_soon(self.flush)
            waiting.append((transport, data))
            if len(waiting) >= MOST:
                self.flush()

    def flush(self) -> None:
        """At the end of a turn; and before a connection is closed or another's, whose bytes may be among these."""
        waiting, self._waiting = self._waiting, []
        for transport, data in waiting:
            if not transport.is_closing():
                transport.write(data)
