"""The body of a request, kept whole until an answer has begun: in memory while it is small, in a file beyond that."""

import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ostler.gateway.relay.limits import Limits

PIECE_BYTES = 256 * 1024
Contents = bytes | bytearray | mmap.mmap


class Spool:
    """Where bodies are kept, and what they take of the memory together."""

    def __init__(self, limits: Limits, folder: Path | None = None) -> None:
        self.each = limits.memory_bytes
        self.all = limits.all_memory_bytes
        self.folder = folder
        self.held = 0


def _write_all(file: IO[bytes], data: bytes | bytearray) -> None:
    """A file without a buffer may take less than it is given, and says why only the next time."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


class Body:
    size = 0
    data: bytes | bytearray = b""
    """All of it, unless there is a file."""
    in_file = False
    _file: IO[bytes] | None = None
    _patch: tuple[int, int, bytes] | None = None

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        if self._file is not None:
            _write_all(self._file, piece)
            return
        if not self.data:
            self.data = piece
        elif isinstance(self.data, bytes):
            self.data = bytearray(self.data + piece)
        else:
            self.data += piece
        spool = self._spool
        spool.held += len(piece)
        if self.size > spool.each or spool.held > spool.all:
            self._to_file()

    def _to_file(self) -> None:
        # Unbuffered: a buffer's rest would be written late, by whoever reads next.
        self._file = tempfile.TemporaryFile(dir=self._spool.folder, prefix="ostler-body-", buffering=0)
        self.in_file = True
        _write_all(self._file, self.data)
        self._let_go_of_memory()

    def _let_go_of_memory(self) -> None:
        self._spool.held -= len(self.data)
        self.data = b""

    def contents(self) -> Contents:
        """All of it at once; of a file, the pages that are looked at."""
        return mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) if self._file is not None else self.data

    def replace(self, contents: bytes) -> None:
        self.close()
        self.size = 0
        self.add(contents)

    def splice(self, start: int, end: int, data: bytes) -> None:
        """Put these bytes in the place of those between two offsets."""
        if self._file is None:
            self.replace(bytes(self.data[:start] + data + self.data[end:]))
        else:
            self._patch = (start, end, data)
            self.size += len(data) - (end - start)

    def stream(self) -> Iterator[bytes]:
        """What is in the file, piece by piece."""
        assert self._file is not None
        size = os.fstat(self._file.fileno()).st_size
        if self._patch is None:
            yield from self._read(0, size)
        else:
            start, end, data = self._patch
            yield from self._read(0, start)
            yield data
            yield from self._read(end, size)

    def _read(self, start: int, end: int) -> Iterator[bytes]:
        assert self._file is not None
        while start < end and (piece := os.pread(self._file.fileno(), min(PIECE_BYTES, end - start), start)):
            yield piece
            start += len(piece)

    def close(self) -> None:
        if self.data:
            self._let_go_of_memory()
        if self._file is not None:
            self._file.close()
            self._file = self._patch = None
            self.in_file = False
