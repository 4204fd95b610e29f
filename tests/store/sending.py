"""Whoever brings bytes to a store, piece by piece, and may be cut off."""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator


class CutOff(Exception):
    """The connection broke."""


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def chunks(data: bytes, size: int = 64 * 1024) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def cut(data: bytes) -> AsyncIterator[bytes]:
    """All of this, and then the connection breaks."""
    async for chunk in chunks(data):
        yield chunk
    raise CutOff


class Line:
    """A connection that brings what it is told to, when it is told to."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.taken = asyncio.Event()
        """All that was said has been taken."""

    def say(self, data: bytes) -> None:
        self.taken.clear()
        self._queue.put_nowait(data)

    def end(self) -> None:
        self._queue.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            if self._queue.empty():
                self.taken.set()
            data = await self._queue.get()
            if data is None:
                return
            yield data
