"""A disk that fails, that is slow, or that loses its power: a file system, in SQLite's sense, over the real one."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import apsw

from ostler.ledger import sqlite_sound

SECTOR = 512
NAME = "faulty"


class Fault:
    """What becomes of each write and each sync, by its number from 1 on."""

    def __init__(self) -> None:
        self.operations = 0
        self.meets: Callable[[int], None] = lambda number: None
        """May raise what SQLite would be told, wait, or look at the disk."""

    def next(self) -> None:
        self.operations += 1
        self.meets(self.operations)


class Disk(apsw.VFS):
    """`base` is the file system below, which keeps the checksums of pages."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.files: dict[str, Durable] = {}
        self.deleted: dict[str, Durable] = {}
        """What was removed, and would be there again if the power went now."""
        self._base = sqlite_sound.verifying()
        super().__init__(NAME, self._base)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        opened = File(self, self._base, name, flags, path)
        if path is not None and not path.endswith("-shm"):
            opened.durable = self.files.setdefault(path, Durable(path))
        return opened

    def xDelete(self, name: str, sync: bool) -> None:  # noqa: N802
        self.fault.next()
        super().xDelete(name, sync)
        if (gone := self.files.pop(name, None)) is not None:
            self.deleted[name] = gone

    def synced(self) -> None:
        """A journaling file system has written its names as well by then."""
        self.deleted.clear()

    def cut(self, folder: Path, draw: random.Random) -> None:
        """What is left if the power goes now: what was synced, and of the rest any sector or none."""
        folder.mkdir()
        for one in [*self.files.values(), *(gone for gone in self.deleted.values() if draw.random() < 0.5)]:
            one.leave(folder / os.path.basename(one.path), draw)


class Durable:
    """What of a file is on the disk for good, and where it was written since."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.image = b""
        self.exists = os.path.exists(path)
        self.written: list[tuple[int, int]] = []
        self._fd = os.open(path, os.O_RDONLY) if self.exists else -1
        """Kept open: to close a file here would take SQLite's locks on it away."""
        if self.exists:
            self.image = self._content()

    def _content(self) -> bytes:
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDONLY)
        return os.pread(self._fd, os.fstat(self._fd).st_size, 0)

    def sync(self) -> None:
        self.image, self.exists = self._content(), True
        self.written.clear()

    def leave(self, target: Path, draw: random.Random) -> None:
        left, now = bytearray(self.image), self._content()
        for start, end in self.written:
            for sector in range(start // SECTOR * SECTOR, end, SECTOR):
                if draw.random() < 0.5:
                    piece = now[sector : sector + SECTOR]
                    left.extend(bytes(max(0, sector + len(piece) - len(left))))
                    left[sector : sector + len(piece)] = piece
        if left or self.exists:
            target.write_bytes(left)


class File(apsw.VFSFile):
    durable: Durable | None = None

    def __init__(
        self, disk: Disk, base: str, name: str | apsw.URIFilename | None, flags: list[int], path: str | None
    ) -> None:
        self._disk = disk
        super().__init__(base, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._disk.fault.next()
        super().xWrite(data, offset)
        if self.durable is not None:
            self.durable.written.append((offset, offset + len(data)))

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self._disk.fault.next()
        super().xTruncate(size)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.fault.next()
        super().xSync(flags)
        if self.durable is not None:
            self.durable.sync()
            self._disk.synced()


def fails_at(number: int, error: type[Exception], *, from_then_on: bool = False) -> Callable[[int], None]:
    def meets(now: int) -> None:
        if now == number or (from_then_on and now > number):
            raise error("planted")

    return meets


def slow(seconds: float) -> Callable[[int], None]:
    return lambda number: time.sleep(seconds)
