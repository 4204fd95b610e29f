"""A worker whose disk is full would fail whatever it is given: it takes nothing more until there is room, and what
fails meanwhile is not held against its job."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

LOOK_S = 5.0
MIB = 1024 * 1024
LEAST_FREE_BYTES = 256 * MIB
PART_FREE = 0.02
"""Of a small disk."""

_log = logging.getLogger("ostler.worker")


def is_full(folder: Path) -> bool:
    """Nobody can tell: then it is not."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    total = found.f_blocks * found.f_frsize
    return found.f_bavail * found.f_frsize < min(LEAST_FREE_BYTES, int(total * PART_FREE))


async def watch(
    folders: Iterable[Path], make_room: Callable[[], Awaitable[object]], tell: Callable[[bool], None]
) -> None:
    """Told whenever it changes. Before that, what nobody needs is removed."""
    looked_at, full = list(dict.fromkeys(folders)), False
    while True:
        now = await _full_ones(looked_at)
        if now:
            try:
                await make_room()
            except OSError as error:
                _log.warning("could not make room on the disk: %s", error)
            now = await _full_ones(looked_at)
        if bool(now) != full:
            full = bool(now)
            if full:
                _log.error("the disk of %s is full: nothing is taken until there is room on it", now[0])
            else:
                _log.info("there is room on the disk again")
            tell(full)
        await asyncio.sleep(LOOK_S)


async def _full_ones(folders: list[Path]) -> list[Path]:
    return await asyncio.to_thread(lambda: [folder for folder in folders if is_full(folder)])
