"""The hub's copies of task logs: one file per attempt, written by offset, read by range, bounded in size."""

import os
import re
from pathlib import Path

from ostler.domain.errors import BadInput, Conflict, TooLarge

MAX_LOG_BYTES = 256 * 1024 * 1024
_ATTEMPT = re.compile(r"[A-Za-z0-9_-]{1,64}")


class WrongOffset(Conflict):
    """The writer and the hub disagree on how much is there: the writer goes on from `size`."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the hub has {size} bytes of this log; go on from there")
        self.size = size


class LogStore:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _path(self, attempt: str) -> Path:
        if _ATTEMPT.fullmatch(attempt) is None:
            raise BadInput(f"{attempt!r} is not an attempt")
        return self._folder / attempt[:2] / f"{attempt}.log"

    def size(self, attempt: str) -> int:
        try:
            return self._path(attempt).stat().st_size
        except FileNotFoundError:
            return 0

    def append(self, attempt: str, offset: int, data: bytes) -> int:
        """The new size. The offset must be where the copy ends, or WrongOffset says where it does."""
        path = self._path(attempt)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        with open(path, "ab") as file:
            size = file.tell()
            if offset != size:
                raise WrongOffset(size)
            if size + len(data) > MAX_LOG_BYTES:
                raise TooLarge(f"a log may have {MAX_LOG_BYTES} bytes here; the rest stays on the worker")
            file.write(data)
            return size + len(data)

    def read(self, attempt: str, offset: int, limit: int = 64 * 1024) -> bytes:
        try:
            with open(self._path(attempt), "rb") as file:
                return os.pread(file.fileno(), limit, offset)
        except FileNotFoundError:
            return b""
