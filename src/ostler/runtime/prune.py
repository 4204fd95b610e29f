"""Bounded disk: what is left of attempts that have been forgotten goes, the oldest first."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from ostler.runtime.attempts import LOG, REMOVED, WORK, is_attempt_name

_PREPARED_S = 24 * 3600.0


def prune(folder: Path, is_held: Callable[[str], bool], keep_bytes: int, keep_age_s: float, now: float) -> int:
    """Of attempts that are not held only the log stays, for `keep_age_s`, and all together within `keep_bytes`.

    How many bytes were freed. Whether one is held is asked in the moment in which it is looked at: others are started
    meanwhile, and each is held before it has a log.
    """
    freed = 0
    kept: list[tuple[float, int, Path]] = []
    for attempt in folder.iterdir() if folder.is_dir() else ():
        if attempt.name.startswith(REMOVED):
            freed += remove(attempt)
        elif (age_s := _age_s(attempt, now)) is None or is_held(attempt.name):
            continue
        elif age_s > keep_age_s:
            freed += _remove_attempt(attempt)
        else:
            # What shows first that something is missing goes first: meanwhile it may be given to another attempt.
            for entry in sorted(attempt.iterdir(), key=lambda entry: entry.name != WORK):
                freed += remove(entry) if entry.name != LOG else 0
            kept.append((age_s, _size(attempt), attempt))
    excess = sum(size for _, size, _ in kept) - keep_bytes
    for _, size, attempt in sorted(kept, reverse=True):
        if excess > 0:
            excess -= size
            freed += _remove_attempt(attempt)
    return freed


def _age_s(attempt: Path, now: float) -> float | None:
    """How long ago it was forgotten; None while it may still be started."""
    if not is_attempt_name(attempt.name):
        return None
    try:
        age_s = now - attempt.stat().st_mtime
    except FileNotFoundError:
        return None  # the supervisor gave it to another attempt
    # Without a log it was prepared and never started, and still may be, unless that was long ago.
    return age_s if age_s > _PREPARED_S or (attempt / LOG).exists() else None


def _remove_attempt(attempt: Path) -> int:
    # Out of the way in one step: half a folder is never taken for a whole one.
    aside = attempt.with_name(REMOVED + attempt.name)
    try:
        attempt.rename(aside)
    except FileNotFoundError:
        return 0
    return remove(aside)


def remove(path: Path) -> int:
    """Whatever a task has made of it; how many bytes were freed."""
    try:
        size = _size(path)
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return size
        shutil.rmtree(path, ignore_errors=True)
        if path.exists() and os.geteuid() != 0:  # nothing is closed to root, and a link could lead it elsewhere
            _open_up(path)
            shutil.rmtree(path, ignore_errors=True)
    except RecursionError:
        size = 0
    if os.path.lexists(path):
        # Folders within folders, thousands deep: too much for Python's own functions, or for one's open files.
        subprocess.run(["rm", "-rf", "--", path], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    # What still resists (another user's files) is left for the next time.
    return size if not path.exists() else 0


def _open_up(folder: Path) -> None:
    """A task may leave folders that even their owner cannot enter."""
    try:
        folder.chmod(0o700)
        inside = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for entry in inside:
        _open_up(Path(entry.path))


def _size(path: Path) -> int:
    """Bytes on the disk, links not followed."""
    total = _blocks(os.fspath(path))
    if path.is_dir() and not path.is_symlink():
        for folder, names, files in os.walk(path):
            total += sum(_blocks(os.path.join(folder, name)) for name in (*names, *files))
    return total


def _blocks(path: str) -> int:
    try:
        return os.lstat(path).st_blocks * 512
    except OSError:
        return 0
