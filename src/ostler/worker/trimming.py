"""Bounded disk: the logs of running tasks are kept short by giving back their middle.

A task writes to its log itself, so that it needs nobody for that. What lies between the head and the tail of a long log
is freed behind its back: the file keeps its length and every offset in it, and the blocks go back to the disk.
"""

import asyncio
import ctypes
import fcntl
import functools
import logging
import os
import struct
import sys
from collections.abc import Callable, Iterable

from ostler.runtime.attempts import LOG
from ostler.runtime.identity import as_owner

MIB = 1024 * 1024
KEEP_HEAD = 8 * MIB
KEEP_TAIL = 128 * MIB
SLACK = 128 * MIB
"""A log is cut when it has this much more than is kept: not again and again for every line."""
EVERY_S = 1.0
_BLOCK = 64 * 1024
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
_DARWIN_PUNCH_HOLE = 99

_log = logging.getLogger("ostler.worker")


async def keep_short(path: Callable[[str], str], running: Callable[[], Iterable[str]]) -> None:
    """For as long as the worker runs. Of the short ones, which come by the thousand, none is there twice."""
    hopeless: set[str] = set()
    before: set[str] = set()
    while True:
        await asyncio.sleep(EVERY_S)
        now = set(running())
        there_still, before = now & before, now
        hopeless &= now
        for attempt in there_still - hopeless:
            try:
                trim(f"{path(attempt)}/{LOG}")
            except OSError as error:
                hopeless.add(attempt)
                about = {"attempt": attempt}
                _log.warning("the log of attempt %s grows without bounds: %s", attempt, error, extra=about)


def trim(path: str) -> int:
    """Give back the middle of this log, if it takes too much of the disk; how many bytes were given back."""
    try:
        before = os.stat(path)
    except (FileNotFoundError, ValueError):
        return 0
    if before.st_blocks * 512 <= KEEP_HEAD + KEEP_TAIL + SLACK:
        return 0
    end = (before.st_size - KEEP_TAIL) // _BLOCK * _BLOCK
    with as_owner(os.path.dirname(path)):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        _punch(descriptor, KEEP_HEAD, end - KEEP_HEAD)
        return (before.st_blocks - os.fstat(descriptor).st_blocks) * 512
    finally:
        os.close(descriptor)


def _punch(descriptor: int, start: int, length: int) -> None:
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, _DARWIN_PUNCH_HOLE, struct.pack("=IIqq", 0, 0, start, length))
        return
    if _fallocate()(descriptor, _KEEP_SIZE | _PUNCH_HOLE, start, length):
        number = ctypes.get_errno()
        raise OSError(number, f"its file system cannot free a part of a file ({os.strerror(number)})")


@functools.cache
def _fallocate() -> Callable[[int, int, int, int], int]:
    function = ctypes.CDLL(None, use_errno=True).fallocate
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    function.restype = ctypes.c_int
    return function
