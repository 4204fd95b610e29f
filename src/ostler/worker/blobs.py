"""Blobs that tasks of this worker need, fetched once and kept for the next task that names them."""

import asyncio
import os
import time
from pathlib import Path

from ostler.worker.api import HubApi, Unreachable

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
TOUCH_S = 1.0
"""Whoever asks again within this time is told what was seen."""


class Blobs:
    def __init__(self, api: HubApi, folder: Path, *, shared: bool = False) -> None:
        """`shared`: tasks are somebody else's and read them by their names, which nobody can list."""
        self._api = api
        self._shared = shared
        self._folder = folder
        self._last = ("", folder)
        """The one asked for last: the calls of a map all name the same."""
        self._seen = ("", 0.0)
        """The one that was found last, and when."""
        self._fetching: dict[str, asyncio.Task[None]] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if shared:
            folder.chmod(0o711)

    def path(self, sha256: str) -> Path:
        if sha256 != self._last[0]:
            if len(sha256) != 64 or not sha256.isalnum():
                raise ValueError(f"not a sha256: {sha256[:80]!r}")
            self._last = (sha256, self._folder / sha256)
        return self._last[1]

    def has(self, sha256: str) -> bool:
        """Here already; and, being asked for, not to be removed for a while."""
        now = time.monotonic()
        if self._seen[0] == sha256 and now - self._seen[1] < TOUCH_S:
            return True
        try:
            os.utime(self.path(sha256))
        except FileNotFoundError:
            return False
        self._seen = (sha256, now)
        return True

    async def fetch(self, sha256: str) -> None:
        """Until it is here: a hub that is away may come back. Declined if the hub does not have it."""
        task = self._fetching.get(sha256)
        if task is None:
            task = self._fetching[sha256] = asyncio.get_running_loop().create_task(self._fetch(sha256))
            task.add_done_callback(lambda _: self._fetching.pop(sha256, None))
        # Shared by all tasks that wait for it: one of them being cancelled must not take it from the others.
        await asyncio.shield(task)

    async def _fetch(self, sha256: str) -> None:
        pause_s = FIRST_PAUSE_S
        while not self.has(sha256):
            try:
                await self._api.get_blob(sha256, self.path(sha256))
                if self._shared:
                    self.path(sha256).chmod(0o644)
            except Unreachable:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def close(self) -> None:
        fetching = list(self._fetching.values())
        for task in fetching:
            task.cancel()
        await asyncio.gather(*fetching, return_exceptions=True)
