"""Bytes from the network on their way to the disk: in pieces, in threads, and one piece ahead.

The event loop never waits for the disk: while one piece is written, the next one arrives. No more than two pieces of a
stream are in memory, because whoever sends is held back meanwhile.
"""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ostler.domain.errors import NoSpace

PIECE = 1024 * 1024
KEEP_FREE_BYTES = 512 * 1024 * 1024
KEEP_FREE_PART = 0.025
"""Of a small disk. Less than the hub's reserve: what runs already may bring its outputs when no more jobs are taken."""
STORE = ThreadPoolExecutor(16, thread_name_prefix="store")
"""For what waits for a store: one that does not answer holds up nobody who waits for a disk."""
T = TypeVar("T")
Write = Callable[[list[bytes]], Awaitable[None]]


def keep_free(where: Path | int, size: int) -> None:
    """However much comes, the ledger has room on the same disk: that of a folder or an open file."""
    disk = shutil.disk_usage(where)
    kept = min(KEEP_FREE_BYTES, int(disk.total * KEEP_FREE_PART))
    if disk.free - size < kept:
        raise NoSpace(
            f"the hub's disk has {disk.free // 2**20} MiB free and keeps {kept // 2**20} of them; "
            f"{size // 2**20} MiB more do not fit"
        )


async def drained(chunks: AsyncIterator[bytes]) -> None:
    """Read to the end and keep nothing: whoever sends gets its answer when it has sent all."""
    async for _ in chunks:
        pass


async def pump(chunks: AsyncIterator[bytes], write: Write) -> None:
    """Hand over all that comes. What has come before a stream breaks off is handed over too."""
    writing: asyncio.Future[None] | None = None
    piece: list[bytes] = []
    size = 0
    try:
        async for chunk in chunks:
            piece.append(chunk)
            size += len(chunk)
            if size >= PIECE:
                if writing is not None:
                    await finished(writing)
                writing = asyncio.ensure_future(write(piece))
                piece, size = [], 0
    finally:
        if writing is not None:
            await finished(writing)
        if size:
            await write(piece)


async def in_thread(threads: Executor | None, call: Callable[..., T], *args: object) -> T:
    """When this ends, for whatever reason, the thread has ended it too."""
    return await finished(asyncio.get_running_loop().run_in_executor(threads, call, *args))


async def finished(work: "asyncio.Future[T]") -> T:
    """Its outcome. Whoever waits may be cancelled; the work is not, and is waited for all the same."""
    cancelled = False
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        with contextlib.suppress(Exception):
            work.result()
        raise asyncio.CancelledError
    return work.result()
