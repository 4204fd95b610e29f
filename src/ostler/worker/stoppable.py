"""Work on files that takes its time: in a thread, and gone when nobody wants it any more."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from ostler.archive.errors import Stopped

T = TypeVar("T")


async def in_thread(work: Callable[[threading.Event], T]) -> T:
    """When this ends, for whatever reason, nobody works on it any more. `work` raises when the event is set."""
    stop = threading.Event()
    working = asyncio.ensure_future(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        stop.set()
        with contextlib.suppress(Exception):
            await working
        raise


def write_to(target: Path, pack: Callable[[BinaryIO], str], stop: threading.Event) -> str:
    """What `pack` gives for this file; there is no file if it fails, or is stopped."""
    try:
        with target.open("wb") as file:
            return pack(cast(BinaryIO, _Stoppable(file, stop)))
    except BaseException:
        target.unlink(missing_ok=True)
        raise


class _Stoppable:
    def __init__(self, file: BinaryIO, stop: threading.Event) -> None:
        self._file = file
        self._stop = stop

    def write(self, data: bytes) -> int:
        if self._stop.is_set():
            raise Stopped
        return self._file.write(data)
