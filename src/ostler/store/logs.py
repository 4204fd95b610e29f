"""The hub's copies of task logs: one file per attempt, written by offset, read by range, bounded in size.

Those of attempts that have ended may be moved to a bucket; then a file here says how much there is of them.

A copy may lack parts of what the task printed. Each such gap is told in the copy itself, and beside it is kept how far
into the task's output the copy reaches, so that whoever brings the next part knows where that begins.
"""

import os
import re
from pathlib import Path
from typing import BinaryIO

from ostler.domain.errors import BadInput, Conflict, TooLarge
from ostler.store.bucket import Client
from ostler.store.uploads import hash_file, sync

MAX_LOG_BYTES = 256 * 1024 * 1024
ENDING_BYTES = 16 * 1024 * 1024
"""Of these, what only the end of a log may take: however much was printed before, that is the part one looks for."""
GAPS = ".gaps"
MOVED = ".moved"
"""In place of a copy that is in the bucket: a file with its size, as old as the copy was."""
MOVED_CHUNK = 4 * 1024 * 1024
"""What is read of one at a time, at least."""
_ATTEMPT = re.compile(r"[A-Za-z0-9_-]{1,64}")


class WrongOffset(Conflict):
    """The writer and the hub disagree on how much is there: the writer goes on from `size`."""

    def __init__(self, size: int, reached: int) -> None:
        super().__init__(f"the hub has {size} bytes of this log; go on from there")
        self.size = size
        self.reached = reached


class LogStore:
    def __init__(self, folder: Path, client: Client | None = None) -> None:
        self.folder = folder
        self.client = client
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _path(self, attempt: str) -> Path:
        if _ATTEMPT.fullmatch(attempt) is None:
            raise BadInput(f"{attempt!r} is not an attempt")
        return self.folder / attempt[:2] / f"{attempt}.log"

    def size(self, attempt: str) -> int:
        try:
            return self._path(attempt).stat().st_size
        except FileNotFoundError:
            return _moved_size(self._path(attempt))

    def reached(self, attempt: str) -> int:
        """How far into what the task printed the copy goes: more than it has, where it lacks parts."""
        return self.size(attempt) + _missing(self._path(attempt))

    def append(self, attempt: str, offset: int, data: bytes, gap: int = 0, ending: bool = False) -> int:
        """The new size. The offset must be where the copy ends, or WrongOffset says where it does.

        `gap`: so many bytes before these were left out, which is told. `ending`: the task has ended, and this is of
        the last that will come.
        """
        mark = f"\n[ostler: {gap} bytes left out here]\n".encode() if gap else b""
        limit = MAX_LOG_BYTES if ending else MAX_LOG_BYTES - ENDING_BYTES
        path = self._path(attempt)
        self._recall(attempt)
        with _opened(path) as file:
            size = file.tell()
            if offset != size:
                raise WrongOffset(size, size + _missing(path))
            if size + len(mark) + len(data) > limit:
                raise TooLarge(f"a log may have {limit} bytes here; the rest stays on the worker")
            file.write(mark + data)
        if mark:
            _set_missing(path, _missing(path) + gap - len(mark))
        return size + len(mark) + len(data)

    def note(self, attempt: str, text: str) -> None:
        """A line of the hub's own at the end of what is there."""
        path, line = self._path(attempt), f"\n[ostler: {text}]\n".encode()
        self._recall(attempt)
        with _opened(path) as file:
            file.write(line)
        _set_missing(path, _missing(path) - len(line))

    def read(self, attempt: str, offset: int, limit: int = 64 * 1024) -> bytes:
        try:
            with open(self._path(attempt), "rb") as file:
                return os.pread(file.fileno(), limit, offset)
        except FileNotFoundError:
            return self._read_moved(attempt, offset, max(limit, MOVED_CHUNK))

    # In the bucket

    def is_moved(self, attempt: str) -> bool:
        path = self._path(attempt)
        return path.with_suffix(MOVED).exists() and not path.exists()

    def copy_out(self, attempt: str) -> int:
        """Bring a copy to the bucket, as it is now; its size. Nothing is changed here."""
        assert self.client is not None
        path = self._path(attempt)
        digest, size = hash_file(path)
        with path.open("rb") as file:
            self.client.put(self._key(attempt), file, digest.hexdigest())
        return size

    def let_go(self, attempt: str, size: int) -> None:
        """It is in the bucket, unless more has come since."""
        path = self._path(attempt)
        status = path.stat()
        if status.st_size == size:
            part = path.with_suffix(f"{MOVED}.part")
            part.write_text(str(size))
            sync(part)
            os.utime(part, ns=(status.st_atime_ns, status.st_mtime_ns))
            part.replace(path.with_suffix(MOVED))
            sync(path.parent)
            path.unlink()

    def forget(self, attempt: str) -> None:
        """Whether it is here or in the bucket. StoreAway: it is as it was."""
        path = self._path(attempt)
        if path.with_suffix(MOVED).exists() and self.client is not None:
            self.client.delete([self._key(attempt)])
        for suffix in (".log", GAPS, MOVED):
            path.with_suffix(suffix).unlink(missing_ok=True)

    def _read_moved(self, attempt: str, offset: int, limit: int) -> bytes:
        size = _moved_size(self._path(attempt))
        if offset >= size or self.client is None:
            return b""
        file = self.client.open(self._key(attempt))
        if file is None:
            return b""
        with file:
            file.seek(offset)
            return file.read(limit)

    def _recall(self, attempt: str) -> None:
        """A worker that comes back late has more of it: it is a file here again."""
        path, size = self._path(attempt), 0
        if not path.with_suffix(MOVED).exists():
            return
        if not path.exists():
            part = path.with_suffix(".part")
            with part.open("wb") as file:
                while data := self._read_moved(attempt, size, MOVED_CHUNK):
                    size += file.write(data)
            os.replace(part, path)
        path.with_suffix(MOVED).unlink()

    def _key(self, attempt: str) -> str:
        assert self.client is not None
        return self.client.key("logs", attempt[:2], f"{attempt}.log")


def _opened(path: Path) -> BinaryIO:
    try:
        return open(path, "ab")
    except FileNotFoundError:
        path.parent.mkdir(exist_ok=True, mode=0o700)
        return open(path, "ab")


def _moved_size(path: Path) -> int:
    try:
        return int(path.with_suffix(MOVED).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def _missing(path: Path) -> int:
    """What the task printed more than the copy has; below 0 where only lines of the hub's own were added."""
    try:
        return int(path.with_suffix(GAPS).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def _set_missing(path: Path, count: int) -> None:
    path.with_suffix(GAPS).write_text(str(count))
