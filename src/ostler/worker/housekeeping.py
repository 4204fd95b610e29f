"""Bounded disk: what tasks leave behind is removed after a while."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from ostler.runtime.prune import remove
from ostler.worker.agent import BLOBS, CHECKPOINTS

EVERY_S = 300.0
KEEP_LOGS_BYTES = 1024**3
KEEP_LOGS_S = 7 * 24 * 3600.0
KEEP_S = {BLOBS: 24 * 3600.0, CHECKPOINTS: 7 * 24 * 3600.0}
"""How long after their last use."""

_log = logging.getLogger("ostler.worker")


class Leftovers(Protocol):
    """A runtime whose ended tasks leave files behind."""

    async def prune(self, *, keep_bytes: int, keep_age_s: float) -> int: ...


async def keep_house(runtime: Leftovers, place: Callable[[str], Path], in_use: Callable[[], Collection[str]]) -> None:
    """`place` says where things are; `in_use` are names that stay, however old."""
    while True:
        await asyncio.sleep(EVERY_S)
        try:
            await runtime.prune(keep_bytes=KEEP_LOGS_BYTES, keep_age_s=KEEP_LOGS_S)
            for name, keep_s in KEEP_S.items():
                await _remove_older(place(name), time.time() - keep_s, in_use)
        except OSError as error:
            _log.warning("could not clean up: %s", error)


async def _remove_older(folder: Path, than: float, in_use: Callable[[], Collection[str]]) -> None:
    """One at a time: what is used by now is asked before each, and not only before the first."""
    for path in await asyncio.to_thread(older, folder, than):
        if path.name not in in_use():
            await asyncio.to_thread(remove, path)


async def make_room(runtime: Leftovers) -> None:
    """All that ended tasks have left and the hub has."""
    await runtime.prune(keep_bytes=0, keep_age_s=0.0)


def older(folder: Path, than: float) -> list[Path]:
    return [path for path in folder.iterdir() if _newest(path) < than]


def _newest(path: Path) -> float:
    """Writing into a file deep in a folder does not change the folder's own time."""
    try:
        inside = path.rglob("*") if path.is_dir() else ()
        return float(max(one.lstat().st_mtime for one in (path, *inside)))
    except (OSError, RecursionError):
        return path.lstat().st_mtime  # it is too deep to be looked at, or changes meanwhile
