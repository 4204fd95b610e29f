"""Content-addressed bytes: the name is the sha256. Verified while they arrive, visible only when whole, stored once."""

import errno
import hashlib
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import BinaryIO

from ostler.domain.errors import BadInput, NoSpace, NotFound, TooLarge
from ostler.store.streaming import drained, in_thread, keep_free, pump

_SHA256 = re.compile(r"[0-9a-f]{64}")
MAX_BLOB_BYTES = 4 * 1024**3


class Objects:
    """Files by their sha256, spread over folders."""

    def __init__(self, folder: Path, called: str) -> None:
        self._folder = folder
        self._called = called
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, sha256: str) -> Path:
        """Where it is; NotFound where it is not."""
        path = self.place(sha256)
        if not path.exists():
            raise NotFound(f"there is no {self._called} {sha256}")
        return path

    def has(self, sha256: str) -> bool:
        """Also of what is no name of one at all."""
        return _SHA256.fullmatch(sha256) is not None and self.place(sha256).exists()

    def place(self, sha256: str) -> Path:
        """Where it belongs."""
        if _SHA256.fullmatch(sha256) is None:
            raise BadInput(f"a {self._called} is named by its sha256: 64 lower-case hexadecimal digits")
        return self._folder / sha256[:2] / sha256


class BlobStore(Objects):
    def __init__(self, folder: Path, max_bytes: int = MAX_BLOB_BYTES) -> None:
        super().__init__(folder, "blob")
        self._max_bytes = max_bytes
        self._arriving = folder / ".arriving"
        self._arriving.mkdir(exist_ok=True, mode=0o700)
        for left_over in self._arriving.iterdir():
            left_over.unlink(missing_ok=True)

    def remove(self, sha256: str) -> None:
        """Whether it is there or not."""
        if self.has(sha256):
            self.place(sha256).unlink(missing_ok=True)

    def prune(self, keep: Collection[str], older_than_s: float) -> None:
        """Remove what nobody named, a while after it was brought."""
        limit = time.time() - older_than_s
        for path in self._folder.glob("[0-9a-f][0-9a-f]/*"):
            if path.name not in keep and path.stat().st_mtime < limit:
                path.unlink(missing_ok=True)

    async def put(self, sha256: str, chunks: AsyncIterator[bytes], *, to_the_last: bool = False) -> bool:
        """True: new; False: it was there already. Nothing is kept of bytes that are not what their name says.

        `to_the_last`: for as long as there is any room on the disk.
        """
        place = self.place(sha256)
        if place.exists():
            await drained(chunks)
            return False
        descriptor, temporary = tempfile.mkstemp(dir=self._arriving)
        try:
            with os.fdopen(descriptor, "wb") as file:
                found = await _receive(chunks, file, self._max_bytes, to_the_last)
                await in_thread(None, _settle, file)
            if found != sha256:
                raise _differs(found, sha256)
            place.parent.mkdir(exist_ok=True, mode=0o700)
            os.replace(temporary, place)
        except BaseException as error:
            os.unlink(temporary)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoSpace("the hub's disk is full; nothing was kept") from None
            raise
        return True

    async def proven(self, sha256: str, chunks: AsyncIterator[bytes]) -> None:
        """These bytes are what the name says: whoever sends them has them, and did not only hear of it."""
        found = await _receive(chunks, None, self._max_bytes)
        if found != sha256:
            raise _differs(found, sha256)


def _differs(found: str, sha256: str) -> BadInput:
    return BadInput(f"the bytes hash to {found}, not to {sha256}; nothing was kept", [("body", "hash differs")])


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
            raise TooLarge(f"a blob may have {max_bytes} bytes")
        await in_thread(None, keep, piece)

    await pump(chunks, write)
    return digest.hexdigest()


def _settle(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
