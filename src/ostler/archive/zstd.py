"""Compressed bytes as they were before, piece by piece, and never more of them than was announced.

A frame that says how much is in it may hold just that. Whatever it says, all of them hold no more than so many times
what they take themselves: a small file that unpacks to a full disk is no archive.
"""

import sys
from typing import IO

from ostler.archive.errors import BadArchive

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdDecompressor, ZstdError, get_frame_info
else:
    from backports.zstd import ZstdDecompressor, ZstdError, get_frame_info

MAGIC = b"\x28\xb5\x2f\xfd"
HEADER_BYTES = 18
"""The longest that a frame's header can be."""
PIECE = 128 * 1024
MOST_FRAMES = 100_000
"""Each takes its time, however little is in it."""
RATIO = 200
FREE_BYTES = 64 * 1024 * 1024
"""Of frames that announce nothing: what even the smallest may unpack to."""
ANNOUNCED_BYTES = 1024**3
"""The same of those that do."""


class ZstdReader:
    """`read` gives as many bytes as it is asked for, fewer only at the end."""

    def __init__(self, file: IO[bytes], most: int) -> None:
        self._file = file
        self._most = most
        self._frame: ZstdDecompressor | None = None
        self._compressed = b""
        self._ready = bytearray()
        self._given = 0
        self._announced = 0
        self._unannounced = False
        self._taken = self._frames = 0

    def read(self, size: int) -> bytes:
        while len(self._ready) < size and self._next(size - len(self._ready)):
            pass
        piece = bytes(self._ready[:size])
        del self._ready[:size]
        return piece

    def _next(self, most: int) -> bool:
        """A little more is ready; False: there is no more."""
        try:
            if self._frame is None and not self._begin():
                return False
            assert self._frame is not None
            if self._frame.needs_input and not self._compressed:
                self._fill(1)
            found = self._frame.decompress(self._compressed, most)
        except ZstdError as error:
            raise BadArchive(f"its compression is broken: {error}") from None
        self._compressed = self._frame.unused_data if self._frame.eof else b""
        if self._frame.eof:
            self._frame = None
        self._ready += found
        self._given += len(found)
        self._check()
        return True

    def _begin(self) -> bool:
        """The next frame; False: the last one has ended, and so has the file."""
        self._fill(HEADER_BYTES, may_end=True)
        if not self._compressed:
            return False
        self._frames += 1
        if self._frames > MOST_FRAMES:
            raise BadArchive(f"it has more than {MOST_FRAMES} frames")
        size = _announced(self._compressed)
        if size is None:
            self._unannounced = True
        else:
            self._announced += size
        if self._announced > self._most:
            raise BadArchive(f"it announces {self._announced} bytes, more than the {self._most} that are taken")
        self._frame = ZstdDecompressor()
        return True

    def _fill(self, least: int, may_end: bool = False) -> None:
        while len(self._compressed) < least:
            piece = self._file.read(PIECE)
            self._taken += len(piece)
            self._compressed += piece
            if not piece:
                if may_end:
                    return
                raise BadArchive("it is cut short")

    def _check(self) -> None:
        grown = RATIO * self._taken
        bound = min(self._announced, ANNOUNCED_BYTES + grown) + (FREE_BYTES + grown if self._unannounced else 0)
        if self._given > min(bound, self._most):
            raise BadArchive(f"it unpacks to more than {min(bound, self._most)} bytes")


def _announced(header: bytes) -> int | None:
    return get_frame_info(header).decompressed_size
