"""Content-addressed bytes: the name is the sha256. Verified while they arrive, visible only when whole, stored once."""

import contextlib
import errno
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import AsyncIterator, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from ostler.domain.errors import NoSpace, StoreAway, TooLarge
from ostler.store.base import Asked, Shelf, differs, must_be_sha256
from ostler.store.folder import Folder
from ostler.store.streaming import STORE, drained, in_thread, keep_free, pump

MAX_BLOB_BYTES = 4 * 1024**3

_log = logging.getLogger("ostler.hub")


class BlobStore:
    def __init__(self, folder: Path, max_bytes: int = MAX_BLOB_BYTES, shelf: Shelf | None = None) -> None:
        """In this folder, or on this shelf; then the folder is for what is on its way there."""
        self.shelf = shelf or Folder(folder, "blob")
        self._max_bytes = max_bytes
        self._clearing = ThreadPoolExecutor(1, thread_name_prefix="blobs")
        self._to_clear = False
        self._arriving = folder / ".arriving"
        self._arriving.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left_over in self._arriving.iterdir():
            left_over.unlink(missing_ok=True)

    def has(self, sha256: str) -> bool:
        """Also of what is no name of one at all."""
        return self.shelf.has(sha256)

    def remove(self, sha256: str) -> None:
        """Whether it is there or not."""
        if self.has(sha256):
            self.shelf.bury(sha256)
            self._clear_soon()

    def prune(self, keep: Collection[str], older_than_s: float) -> None:
        """Remove what nobody named, a while after it was brought."""
        limit = time.time() - older_than_s
        for path in self.shelf.places():
            if path.name not in keep and path.stat().st_mtime < limit:
                self.shelf.bury(path.name)
        self._clear_soon()

    def _clear_soon(self) -> None:
        """Once for all that are buried until then: a store that is away is not waited for again for each of them."""
        if not self._to_clear:
            self._to_clear = True
            self._clearing.submit(self._clear)

    def _clear(self) -> None:
        self._to_clear = False
        try:
            self.shelf.clear()
        except (StoreAway, OSError) as error:
            _log.warning("what nobody needs was not removed: %s", error)

    async def put(self, sha256: str, chunks: AsyncIterator[bytes], *, to_the_last: bool = False) -> bool:
        """True: new; False: it was there already. Nothing is kept of bytes that are not what their name says.

        `to_the_last`: for as long as there is any room on the disk.
        """
        must_be_sha256(sha256, self.shelf.called)
        if self.has(sha256):
            await drained(chunks)
            return False
        descriptor, temporary = tempfile.mkstemp(dir=self._arriving)
        try:
            with os.fdopen(descriptor, "wb") as file:
                found = await _receive(chunks, file, self._max_bytes, to_the_last)
                await in_thread(None, _settle, file)
            if found != sha256:
                raise differs(found, sha256)
            await in_thread(STORE, self.shelf.shelve, sha256, Path(temporary))
        except BaseException as error:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoSpace("the hub's disk is full; nothing was kept") from None
            raise
        return True

    async def proven(self, sha256: str, chunks: AsyncIterator[bytes]) -> None:
        """These bytes are what the name says: whoever sends them has them, and did not only hear of it."""
        found = await _receive(chunks, None, self._max_bytes)
        if found != sha256:
            raise differs(found, sha256)

    async def ask(self, sha256: str, size: int, whose: str = "") -> Asked | None:
        """For whoever would bring it past the hub: what is missing yet. `whose`: one who has to prove to have it."""
        must_be_sha256(sha256, self.shelf.called)
        if size > self._max_bytes:
            raise _too_large(self._max_bytes)
        if self.has(sha256) and not whose:
            return Asked(size, whole=True)
        return await in_thread(STORE, self.shelf.ask, sha256, size, whose)


def _too_large(max_bytes: int) -> TooLarge:
    return TooLarge(f"a blob may have {max_bytes} bytes")


async def _receive(
    chunks: AsyncIterator[bytes], file: BinaryIO | None, max_bytes: int, to_the_last: bool = True
) -> str:
    digest, size = hashlib.sha256(), 0

    def keep(piece: list[bytes]) -> None:
        if file is not None and not to_the_last:
            keep_free(file.fileno(), sum(map(len, piece)))
        for chunk in piece:
            digest.update(chunk)
            if file is not None:
                file.write(chunk)

    async def write(piece: list[bytes]) -> None:
        nonlocal size
        size += sum(map(len, piece))
        if size > max_bytes:
            raise _too_large(max_bytes)
        await in_thread(None, keep, piece)

    await pump(chunks, write)
    return digest.hexdigest()


def _settle(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
