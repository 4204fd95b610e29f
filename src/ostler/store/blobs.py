"""Content-addressed bytes: the name is the sha256. Verified while they arrive, visible only when whole, stored once."""

import hashlib
import os
import re
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

from ostler.domain.errors import BadInput, NotFound, TooLarge

_SHA256 = re.compile(r"[0-9a-f]{64}")
MAX_BLOB_BYTES = 4 * 1024**3


class BlobStore:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._arriving = folder / ".arriving"
        self._arriving.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left_over in self._arriving.iterdir():
            left_over.unlink(missing_ok=True)

    def path(self, sha256: str) -> Path:
        """Where the blob is; NotFound where it is not."""
        path = self._place(sha256)
        if not path.exists():
            raise NotFound(f"there is no blob {sha256}")
        return path

    def has(self, sha256: str) -> bool:
        """Also of what is no name of a blob at all."""
        return _SHA256.fullmatch(sha256) is not None and self._place(sha256).exists()

    def _place(self, sha256: str) -> Path:
        if _SHA256.fullmatch(sha256) is None:
            raise BadInput("a blob is named by its sha256: 64 lower-case hexadecimal digits")
        return self._folder / sha256[:2] / sha256

    async def put(self, sha256: str, chunks: AsyncIterator[bytes]) -> bool:
        """True: new; False: it was there already. Nothing is kept of bytes that are not what their name says."""
        place = self._place(sha256)
        if place.exists():
            async for _ in chunks:
                pass
            return False
        descriptor, temporary = tempfile.mkstemp(dir=self._arriving)
        try:
            with os.fdopen(descriptor, "wb") as file:
                found = await _receive(chunks, file)
                file.flush()
                os.fsync(file.fileno())
            if found != sha256:
                raise BadInput(
                    f"the bytes hash to {found}, not to {sha256}; nothing was kept", [("body", "hash differs")]
                )
            place.parent.mkdir(exist_ok=True, mode=0o700)
            os.replace(temporary, place)
        except BaseException:
            os.unlink(temporary)
            raise
        return True


async def _receive(chunks: AsyncIterator[bytes], file: BinaryIO) -> str:
    digest, size = hashlib.sha256(), 0
    async for chunk in chunks:
        size += len(chunk)
        if size > MAX_BLOB_BYTES:
            raise TooLarge(f"a blob may have {MAX_BLOB_BYTES} bytes")
        digest.update(chunk)
        file.write(chunk)
    return digest.hexdigest()
