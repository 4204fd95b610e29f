"""Snapshots that were unpacked here, by their hash, and a copy of one for each attempt that asks for it.

snapshots/<sha256>/     one, unpacked
snapshots/index.json    their sizes, and the boot of the machine in which they were written
snapshots/.…            on the way in or out; of no use to a next start
"""

import asyncio
import contextlib
import logging
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from ostler.archive.unpack import BadArchive, Limits, unpack
from ostler.worker.api import Declined, HubApi, Missing, Unreachable
from ostler.worker.copying import copy_tree
from ostler.worker.orders import is_sha256
from ostler.worker.stoppable import in_thread

TRIES = 3
FIRST_PAUSE_S = 0.5
TOLD = 200
PREWARMS_AT_ONCE, PREWARMS_WAITING = 2, 16
DEFAULT_BYTES = 20 * 1024**3
INDEX = "index.json"

_log = logging.getLogger("ostler.worker")


class NotFetched(OSError):
    """The hub could not be asked for it, several times: another worker may have more luck."""


class Index(msgspec.Struct, kw_only=True):
    boot: str = ""
    sizes: dict[str, int] = {}
    """Least recently used first."""


class Snapshots:
    """`changed` is told whenever other snapshots are here than before."""

    def __init__(self, api: HubApi, folder: Path, keep_bytes: int, changed: Callable[[list[str]], None]) -> None:
        self._api = api
        self._folder = folder
        self._keep_bytes = keep_bytes
        self._limits = Limits()
        self._changed = changed
        self._busy: Counter[str] = Counter()
        """Needed right now, by so many: not to be removed."""
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._prewarming: set[asyncio.Task[None]] = set()
        self._prewarm_room = asyncio.Semaphore(PREWARMS_AT_ONCE)
        self._closing = threading.Event()
        self._index = _open(folder)

    def ids(self) -> list[str]:
        """What is here, the latest used first."""
        return list(reversed(self._index.sizes))[:TOLD]

    async def copy(self, sha256: str, target: Path) -> None:
        """The snapshot's content as this new folder. BadArchive or Missing if no worker could, NotFetched or OSError
        if this one cannot."""
        self._busy[sha256] += 1
        try:
            await self._have(sha256)
            source = self._folder / sha256
            await in_thread(lambda stop: copy_tree(os.fspath(source), os.fspath(target), stop))
        finally:
            self._busy[sha256] -= 1
            if not self._busy[sha256]:
                del self._busy[sha256]

    def prewarm(self, sha256: str) -> None:
        """Somebody is likely to need it. If it does not work out, that shows when somebody does."""
        here = sha256 in self._index.sizes or sha256 in self._fetching
        if here or not is_sha256(sha256) or len(self._prewarming) >= PREWARMS_WAITING:
            return
        task = asyncio.get_running_loop().create_task(self._prewarm(sha256))
        self._prewarming.add(task)
        task.add_done_callback(self._prewarming.discard)

    async def close(self) -> None:
        self._closing.set()
        tasks = [*self._fetching.values(), *self._prewarming]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _prewarm(self, sha256: str) -> None:
        async with self._prewarm_room:
            try:
                await self._have(sha256)
            except (BadArchive, Declined, OSError) as error:
                _log.info("snapshot %s was not fetched ahead: %s", sha256, error)

    async def _have(self, sha256: str) -> None:
        while sha256 not in self._index.sizes:
            task = self._fetching.get(sha256)
            if task is None:
                task = self._fetching[sha256] = asyncio.get_running_loop().create_task(self._fetch(sha256))
                task.add_done_callback(lambda done: self._fetched(sha256, done))
            # Shared by all who wait for it: one of them being cancelled must not take it from the others.
            await asyncio.shield(task)
        self._index.sizes[sha256] = self._index.sizes.pop(sha256)

    def _fetched(self, sha256: str, task: asyncio.Task[None]) -> None:
        self._fetching.pop(sha256, None)
        if not task.cancelled():
            task.exception()  # told to whoever waits, and that may be nobody any more

    async def _fetch(self, sha256: str) -> None:
        archive, part = self._folder / f".{sha256}.tar", self._folder / f".{sha256}"
        try:
            await self._download(sha256, archive)
            size = await asyncio.to_thread(unpack, archive, part, self._limits, self._closing)
        finally:
            archive.unlink(missing_ok=True)
        part.rename(self._folder / sha256)
        self._index.sizes[sha256] = size
        await self._make_room(sha256)

    async def _download(self, sha256: str, archive: Path) -> None:
        for n in range(TRIES):
            if n:
                await asyncio.sleep(FIRST_PAUSE_S * n)
            try:
                # Headers and padding come on top of what the files themselves may have.
                await self._api.get_blob(sha256, archive, self._limits.total_bytes + 1024**3)
                return
            except Missing:
                raise
            except (Unreachable, Declined) as error:
                why = error
        raise NotFetched(f"snapshot {sha256} could not be fetched, {TRIES} times: {why}")

    async def _make_room(self, newest: str) -> None:
        """Within the bound, as far as nobody needs what is here."""
        sizes = self._index.sizes
        removed = []
        for sha256 in list(sizes):
            if sum(sizes.values()) <= self._keep_bytes:
                break
            if sha256 != newest and not self._busy[sha256]:
                del sizes[sha256]
                aside = self._folder / f".{sha256}.old"
                (self._folder / sha256).rename(aside)
                removed.append(aside)
        _write(self._folder, self._index)
        self._changed(self.ids())
        for aside in removed:
            await asyncio.to_thread(shutil.rmtree, aside, ignore_errors=True)


def _open(folder: Path) -> Index:
    """What an earlier start left: only what it had finished, and only if the machine has run ever since.

    Files are not forced to the disk when they are unpacked, so after a power cut some of them may be empty.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    index = Index()
    with contextlib.suppress(OSError, msgspec.DecodeError):
        index = msgspec.json.decode((folder / INDEX).read_bytes(), type=Index)
    boot = _boot()
    known = index.sizes if index.boot == boot else {}
    found = {path.name: path for path in folder.iterdir() if path.name != INDEX}
    sizes = {name: size for name, size in known.items() if name in found}
    for name, path in found.items():
        if name in sizes:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    index = Index(boot=boot, sizes=sizes)
    with contextlib.suppress(OSError):  # a full disk must not keep the worker from making room on it
        _write(folder, index)
    return index


def _write(folder: Path, index: Index) -> None:
    part = folder / f".{INDEX}"
    part.write_bytes(msgspec.json.encode(index))
    part.replace(folder / INDEX)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
