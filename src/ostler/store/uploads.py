"""Uploads by their sha256 that may break off and go on: a part is a file that nobody else sees until it is whole.

.arriving/<sha256>      as much of it as has come

One at a time has the pen. Its connection may be dead without anybody having noticed, so a newer upload takes over from
one that has been quiet for a moment, and the older one finds out at its next write. From one that is at work nobody
takes over: two that bring the same bytes would only keep each other from it.
"""

import asyncio
import contextlib
import enum
import errno
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from ostler.domain.errors import BadInput, Conflict, NoSpace, NotRunning
from ostler.store.base import Shelf, differs
from ostler.store.streaming import drained, in_thread, keep_free, pump

THREADS = 8
HASHED_AT_ONCE = 2
"""That takes long; the other threads are for what somebody waits for, piece by piece."""
READ_BYTES = 1024 * 1024
SYNC_BYTES = 64 * 1024 * 1024
"""Forced to the disk every so often, so that the end of a large upload does not have to wait for all of it."""
KEEP_PARTS_S = 7 * 86400.0
QUIET_S = 1.0
T = TypeVar("T")


class WrongUploadOffset(Conflict):
    """The part does not end where the request begins, or somebody else goes on with it: ask for the offset again."""

    def __init__(self, sha256: str, offset: int) -> None:
        super().__init__(f"the hub has {offset} bytes of {sha256} by now; go on from there")
        self.offset = offset


class Span(msgspec.Struct, frozen=True):
    """Which bytes a request brings, first ≤ byte < end, and how many there are in all."""

    first: int
    end: int
    total: int


class Taken(enum.Enum):
    NEW = "it is whole now"
    THERE = "it was there already"
    PART = "more has to come"


@dataclass(eq=False)
class Part:
    """The methods block, and are called by whoever has the lock."""

    sha256: str
    path: Path
    size: int
    digest: "hashlib._Hash | None" = None
    """Of all that is there; None: that was written by an earlier process, or badly, and has to be read again."""
    holder: object | None = None
    """Whoever may write."""
    awaited: int = 0
    """Bytes that its holder has announced and not brought."""
    unsynced: int = 0
    heard_at: float = 0.0
    """When its holder last brought something."""
    uploads: int = 0
    """Those that have it or want it."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    free: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self) -> None:
        self.path.write_bytes(b"")
        self.size, self.digest, self.unsynced = 0, hashlib.sha256(), 0

    def read_again(self) -> None:
        self.digest, self.size = hash_file(self.path)

    def append(self, piece: list[bytes]) -> None:
        assert self.digest is not None
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            for chunk in piece:
                _write_all(descriptor, chunk)
                self.digest.update(chunk)
            written = sum(map(len, piece))
            self.size += written
            self.awaited = max(0, self.awaited - written)
            self.unsynced += written
            if self.unsynced >= SYNC_BYTES:
                os.fsync(descriptor)
                self.unsynced = 0
            keep_free(self.path.parent, 0)
        except OSError:
            self.digest, self.size = None, os.fstat(descriptor).st_size
            raise
        finally:
            os.close(descriptor)

    def verify(self) -> None:
        """Whole, and safe on the disk. Not what its name says: gone."""
        assert self.digest is not None
        found = self.digest.hexdigest()
        if found != self.sha256:
            self.path.unlink(missing_ok=True)
            self.size, self.digest = 0, None
            raise differs(found, self.sha256)
        sync(self.path)


class Uploads:
    """A whole one goes to the shelf, and only then it is seen under its name."""

    def __init__(self, folder: Path, shelf: Shelf) -> None:
        self._folder = folder
        self._shelf = shelf
        self._parts: dict[str, Part] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="uploads")
        self._hashing = asyncio.Semaphore(HASHED_AT_ONCE)
        self._running: set[asyncio.Task[object] | None] = set()
        self._closing = False
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.forget_old()

    def forget_old(self) -> None:
        """Parts that nobody has gone on with for long."""
        for path in self._folder.iterdir():
            part = self._parts.get(path.name)
            if (part is None or part.holder is None) and age_s(path) > KEEP_PARTS_S:
                path.unlink(missing_ok=True)
                self._parts.pop(path.name, None)

    def offset(self, sha256: str) -> int:
        """How much of it has come."""
        part = self._parts.get(sha256)
        return part.size if part is not None else _size(self._folder / sha256)

    async def put(
        self, sha256: str, chunks: AsyncIterator[bytes], span: Span | None = None, size: int | None = None
    ) -> Taken:
        """Without a span, from the beginning, and `size` bytes where that is known."""
        task = asyncio.current_task()
        self._running.add(task)
        try:
            return await self._put(sha256, chunks, span, size)
        except asyncio.CancelledError:
            if self._closing:
                raise NotRunning("the hub is stopping; what came is kept, and the upload may go on later") from None
            raise
        finally:
            self._running.discard(task)

    def close(self) -> None:
        """End what is under way: a hub that stops does not wait for the end of a large upload."""
        self._closing = True
        for task in self._running:
            if task is not None:
                task.cancel()

    async def _put(self, sha256: str, chunks: AsyncIterator[bytes], span: Span | None, size: int | None) -> Taken:
        if self._shelf.place(sha256).exists():
            await drained(chunks)
            return Taken.THERE
        path = self._folder / sha256
        part = self._parts.setdefault(sha256, Part(sha256, path, _size(path)))
        holder = object()
        part.uploads += 1
        try:
            await self._take_over(part, holder, span)
            await self._begin(part, holder, span, size)
            await self._receive(part, holder, chunks, span)
            return await self._end(part, holder, span)
        except WrongUploadOffset:
            if not self._shelf.has(sha256):
                raise
            await drained(chunks)
            return Taken.THERE
        finally:
            self._release(part, holder)

    async def sha256_of(self, sha256: str) -> str:
        """What the bytes hash to that stand under this name."""
        async with self._hashing:
            return await self._in_thread(_read_again, self._shelf, sha256)

    async def _take_over(self, part: Part, holder: object, span: Span | None) -> None:
        """As soon as nobody is at work. Whoever could not go on from there anyway does not wait for that."""
        while True:
            async with part.lock:
                if part.holder is None and part.size != _size(part.path):
                    part.size, part.digest = _size(part.path), None
                if self._shelf.has(part.sha256) or (span is not None and span.first != part.size):
                    raise WrongUploadOffset(part.sha256, part.size)
                quiet_s = time.monotonic() - part.heard_at
                if part.holder is None or quiet_s >= QUIET_S:
                    part.holder, part.awaited, part.heard_at = holder, 0, time.monotonic()
                    return
                part.free.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(part.free.wait(), QUIET_S - quiet_s)

    async def _begin(self, part: Part, holder: object, span: Span | None, size: int | None) -> None:
        async with part.lock:
            self._must_hold(part, holder)
            if span is None or not part.size:
                await self._in_thread(part.begin)
            elif part.digest is None:
                async with self._hashing:
                    await self._in_thread(part.read_again)
            announced = size or 0 if span is None else span.total - span.first
            others = sum(other.awaited for other in self._parts.values() if other is not part)
            await self._in_thread(keep_free, self._folder, announced + others)
            part.awaited = announced

    async def _receive(self, part: Part, holder: object, chunks: AsyncIterator[bytes], span: Span | None) -> None:
        came = 0

        async def heard() -> AsyncIterator[bytes]:
            async for chunk in chunks:
                if part.holder is holder:
                    part.heard_at = time.monotonic()
                yield chunk

        async def write(piece: list[bytes]) -> None:
            nonlocal came
            came += sum(map(len, piece))
            if span is not None and came > span.end - span.first:
                raise BadInput("the body has more bytes than its Content-Range says", [("Content-Range", "too short")])
            async with part.lock:
                self._must_hold(part, holder)
                await self._in_thread(part.append, piece)
                part.heard_at = time.monotonic()

        await pump(heard(), write)

    async def _end(self, part: Part, holder: object, span: Span | None) -> Taken:
        async with part.lock:
            self._must_hold(part, holder)
            if span is not None and part.size < span.total:
                return Taken.PART
            await self._in_thread(part.verify)
            await self._in_thread(self._shelf.shelve, part.sha256, part.path)
            return Taken.NEW

    def _must_hold(self, part: Part, holder: object) -> None:
        if part.holder is not holder or self._shelf.has(part.sha256):
            raise WrongUploadOffset(part.sha256, part.size)

    def _release(self, part: Part, holder: object) -> None:
        part.uploads -= 1
        if part.holder is holder:
            part.holder, part.awaited = None, 0
            part.free.set()
        if not part.uploads and (not part.size or self._shelf.has(part.sha256)):
            part.path.unlink(missing_ok=True)
            self._parts.pop(part.sha256, None)

    async def _in_thread(self, call: Callable[..., T], *args: object) -> T:
        try:
            return await in_thread(self._threads, call, *args)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoSpace("the hub's disk is full; what came is kept, and the upload may go on later") from None
            raise


def hash_file(path: Path) -> tuple["hashlib._Hash", int]:
    with path.open("rb") as file:
        return hash_of(file)


def hash_of(file: IO[bytes]) -> tuple["hashlib._Hash", int]:
    digest, size = hashlib.sha256(), 0
    while piece := file.read(READ_BYTES):
        digest.update(piece)
        size += len(piece)
    return digest, size


def _read_again(shelf: Shelf, sha256: str) -> str:
    with shelf.open(sha256) as file:
        return hash_of(file)[0].hexdigest()


def sync(path: Path) -> None:
    """What is in this file, or which names are in this folder, survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def age_s(path: Path) -> float:
    """Since it was last written to or asked for; 0 of what is not there."""
    with contextlib.suppress(FileNotFoundError):
        return time.time() - path.stat().st_mtime
    return 0.0


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
