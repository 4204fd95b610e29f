"""Which of the hub's copies of logs are old, and how much there is of them. Everything here blocks."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ostler.store.logs import MOVED

MINUTE_S = 60.0
"""Of the logs that are too many, more go than have to by as much as was written in so long a time."""


class LogFile(msgspec.Struct, frozen=True):
    attempt: str
    path: Path
    size: int
    changed_at: float
    moved: bool = False


def folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir())


def files(folder: Path) -> list[LogFile]:
    found = []
    for path in folder.iterdir():
        if path.suffix not in (".log", MOVED):
            continue
        moved = path.suffix == MOVED
        try:
            status = path.stat()
            size = int(path.read_text() or 0) if moved else status.st_size
        except FileNotFoundError:
            continue
        found.append(LogFile(path.stem, path, size, status.st_mtime, moved))
    return found


class Amounts:
    """Bytes by the minute of their last change: of a million files, no more than that is remembered."""

    def __init__(self) -> None:
        self._by_minute: Counter[int] = Counter()
        self.total = 0

    def add(self, found: Iterable[LogFile]) -> None:
        for file in found:
            self._by_minute[int(file.changed_at // MINUTE_S)] += file.size
            self.total += file.size

    def too_old(self, most: float) -> float:
        """What changed before this time goes, so that no more than `most` is left."""
        excess, end = self.total - most, 0.0
        for minute, size in sorted(self._by_minute.items()):
            if excess <= 0:
                break
            excess -= size
            end = (minute + 1) * MINUTE_S
        return end
