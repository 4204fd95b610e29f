"""Which of the hub's copies of logs are old, and how much there is of them. Everything here blocks."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ostler.store.logs import GAPS

MINUTE_S = 60.0
"""Of the logs that are too many, more go than have to by as much as was written in so long a time."""


class LogFile(msgspec.Struct, frozen=True):
    attempt: str
    path: Path
    size: int
    changed_at: float


def folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir())


def files(folder: Path) -> list[LogFile]:
    found = []
    for path in folder.glob("*.log"):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        found.append(LogFile(path.stem, path, status.st_size, status.st_mtime))
    return found


def remove(old: Iterable[LogFile]) -> int:
    """How many bytes that were."""
    freed = 0
    for file in old:
        file.path.unlink(missing_ok=True)
        file.path.with_suffix(GAPS).unlink(missing_ok=True)
        freed += file.size
    return freed


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
