"""The hub's copies of task logs: one file per attempt, written by offset, read by range, bounded in size.

A copy may lack parts of what the task printed. Each such gap is told in the copy itself, and beside it is kept how far
into the task's output the copy reaches, so that whoever brings the next part knows where that begins.
"""

import os
import re
from pathlib import Path
from typing import BinaryIO

from ostler.domain.errors import BadInput, Conflict, TooLarge

MAX_LOG_BYTES = 256 * 1024 * 1024
ENDING_BYTES = 16 * 1024 * 1024
"""Of these, what only the end of a log may take: however much was printed before, that is the part one looks for."""
GAPS = ".gaps"
_ATTEMPT = re.compile(r"[A-Za-z0-9_-]{1,64}")


class WrongOffset(Conflict):
    """The writer and the hub disagree on how much is there: the writer goes on from `size`."""

    def __init__(self, size: int, reached: int) -> None:
        super().__init__(f"the hub has {size} bytes of this log; go on from there")
        self.size = size
        self.reached = reached


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
        with _opened(path) as file:
            file.write(line)
        _set_missing(path, _missing(path) - len(line))

    def read(self, attempt: str, offset: int, limit: int = 64 * 1024) -> bytes:
        try:
            with open(self._path(attempt), "rb") as file:
                return os.pread(file.fileno(), limit, offset)
        except FileNotFoundError:
            return b""


def _opened(path: Path) -> BinaryIO:
    try:
        return open(path, "ab")
    except FileNotFoundError:
        path.parent.mkdir(exist_ok=True, mode=0o700)
        return open(path, "ab")


def _missing(path: Path) -> int:
    """What the task printed more than the copy has; below 0 where only lines of the hub's own were added."""
    try:
        return int(path.with_suffix(GAPS).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def _set_missing(path: Path, count: int) -> None:
    path.with_suffix(GAPS).write_text(str(count))
