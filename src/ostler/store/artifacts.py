"""Artifacts: what tasks leave behind, by the sha256 of the bytes as they were sent.

objects/<ab>/<sha256>                       the bytes, once
.arriving/<sha256>                          what is on its way
<model>_<mode>/<sha256>/bundle.tar[.zst]    the same file under a name that says whose it is
jobs/<sha256>/bundle.tar[.zst]              that of a job without a model
index.jsonl                                 a line for each task's artifact
"""

import asyncio
import contextlib
import logging
import os
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from ostler.domain.records import ArtifactRecord
from ostler.store.blobs import Objects
from ostler.store.index import Index, line_of
from ostler.store.streaming import in_thread
from ostler.store.uploads import Span, Taken, Uploads, sync

ZSTD = b"\x28\xb5\x2f\xfd"
WITHOUT_MODEL = "jobs"
OBJECTS = "objects"
MOST_OF_A_NAME = 64
YOUNGEST_S = 60
"""What was brought, asked for or named more lately is never removed, whatever anybody says."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")

_log = logging.getLogger("ostler.hub")


class Stored(msgspec.Struct, frozen=True):
    size: int
    compressed: bool
    touched_at: float
    """When it came, or was last brought or asked for by somebody who would have brought it."""


class ArtifactStore(Objects):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder / OBJECTS, "artifact")
        self._root = folder
        self._uploads = Uploads(folder / ".arriving", self.place)
        # One thread for all names and lines: no two of them ever meet.
        self._linking = ThreadPoolExecutor(1, thread_name_prefix="artifacts")
        self._index = Index(folder / "index.jsonl")
        # Whoever is told that one is here, and whoever removes it, never meet.
        self._lock = threading.Lock()
        self._used: Counter[str] = Counter()
        self._going: dict[str, asyncio.Event] = {}
        """Those that are about to be removed, with what is set when they are: nobody may count on them any more."""

    # Bytes

    async def put(
        self, sha256: str, chunks: AsyncIterator[bytes], span: Span | None = None, size: int | None = None
    ) -> Taken:
        """Bytes from `span.first` on, or all of them, `size` many where that is known."""
        async with self.in_use(sha256):
            taken = await self._uploads.put(sha256, chunks, span, size)
            if taken is Taken.NEW:
                await in_thread(self._linking, self._renew_names, sha256)
            self.touch(sha256)
            return taken

    @contextlib.asynccontextmanager
    async def in_use(self, sha256: str) -> AsyncIterator[None]:
        """Meanwhile nobody removes it. Where somebody is about to, that is over first."""
        with self._lock:
            self._used[sha256] += 1
        try:
            if (gone := self._going.get(sha256)) is not None:
                await gone.wait()
            yield
        finally:
            with self._lock:
                self._used[sha256] -= 1
                if not self._used[sha256]:
                    del self._used[sha256]

    def close(self) -> None:
        """End uploads that are under way. They go on at the next start."""
        self._uploads.close()

    def offset(self, sha256: str) -> int:
        """How much of one that is not whole has come."""
        return self._uploads.offset(sha256)

    def touch(self, sha256: str) -> bool:
        """It is here, and because somebody counts on that, it will be for a while."""
        path = self.place(sha256)
        with self._lock, contextlib.suppress(FileNotFoundError):
            if sha256 not in self._going:
                # By the exact clock: the file system's own runs behind it.
                os.utime(path, ns=(time.time_ns(),) * 2)
                return True
        return False

    def look(self, sha256: str) -> Stored | None:
        """None: it is not here."""
        try:
            with self.place(sha256).open("rb") as file:
                status = os.fstat(file.fileno())
                return Stored(status.st_size, file.read(len(ZSTD)) == ZSTD, status.st_mtime)
        except FileNotFoundError:
            return None

    def size(self, sha256: str) -> int:
        """NotFound where it is not."""
        return self.path(sha256).stat().st_size

    def matching(self, prefix: str) -> list[str]:
        """Those whose sha256 begins so."""
        found = []
        for folder in self._folder.glob(f"{prefix[:2]}*") if re.fullmatch("[0-9a-f]+", prefix) else ():
            found += [path.name for path in folder.iterdir() if path.name.startswith(prefix)]
        return sorted(found)

    async def verify(self, sha256: str) -> bool:
        """Whether the bytes are here and still what their name says."""
        try:
            return await self._uploads.sha256_of(self.place(sha256)) == sha256
        except OSError:
            return False

    # Names

    def bundle(self, record: ArtifactRecord, compressed: bool) -> str:
        """Where it is found in the folder."""
        return f"{_folder_of(record)}/{record.id}/bundle.tar{'.zst' if compressed else ''}"

    def link(self, record: ArtifactRecord) -> None:
        """Soon, in a thread. What a crash leaves out, `repair` makes up for."""
        self._linking.submit(self._try_to_link, record)

    async def repair(self, records: Iterable[ArtifactRecord]) -> None:
        """Names and lines that are missing."""
        await in_thread(self._linking, self._repair, list(records))

    async def settled(self) -> None:
        """Until all that was asked for has its name and its line."""
        await in_thread(self._linking, lambda: None)

    def _repair(self, records: list[ArtifactRecord]) -> None:
        for record in records:
            self._try_to_link(record)

    def _try_to_link(self, record: ArtifactRecord) -> None:
        try:
            if not self._index.has(record):
                self._link(record)
        except OSError as error:
            _log.error("the artifact %s of %s could not be put under its name: %s", record.id, record.task_id, error)

    def _link(self, record: ArtifactRecord) -> None:
        stored = self.look(record.id) if self.has(record.id) else None
        if stored is None:
            _log.warning("the artifact %s of %s is not here", record.id, record.task_id)
            return
        name = self.bundle(record, stored.compressed)
        target = self._root / name
        if not target.exists():
            _make_folder(target.parent.parent)
            _make_folder(target.parent)
            _link_or_copy(self.place(record.id), target)
            sync(target.parent)
        self._index.add(line_of(msgspec.structs.replace(record, size=stored.size), name))

    def _renew_names(self, sha256: str) -> None:
        """Names that it had before: its bytes were damaged and were removed by hand, and have been brought again."""
        names = [name for folder in self._named_folders() for name in (folder / sha256).glob("bundle.tar*")]
        for name in names:
            try:
                _link_or_copy(self.place(sha256), name)
            except OSError as error:
                _log.error("%s could not be renewed: %s", name, error)

    # What nobody needs

    def orphans(self, wanted: Collection[str], untouched_since: float) -> dict[str, int]:
        """The sizes of those that are not wanted, and that nobody has brought or asked for since. Blocks."""
        found = {}
        for path in self._objects():
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if path.name not in wanted and status.st_mtime < untouched_since:
                    found[path.name] = status.st_size
        return dict(sorted(found.items()))

    @contextlib.asynccontextmanager
    async def removal(self, ids: Collection[str], untouched_since: float) -> AsyncIterator[dict[str, int]]:
        """The sizes of those that go when this ends well: all but those that somebody has come back to. Inside, they
        are as good as gone: whoever asks is told so, and whoever brings one waits until it is over."""
        self._uploads.forget_old()
        gone = asyncio.Event()
        try:
            going = await in_thread(self._linking, self._condemn, ids, untouched_since, gone)
            yield going
            await in_thread(self._linking, self._remove, going.keys())
        finally:
            with self._lock:
                self._going = {sha256: event for sha256, event in self._going.items() if event is not gone}
            gone.set()

    def _condemn(self, ids: Collection[str], untouched_since: float, gone: asyncio.Event) -> dict[str, int]:
        going = {}
        for sha256 in ids:
            with self._lock:
                stored = self.look(sha256)
                free = sha256 not in self._going and not self._used[sha256]
                if free and stored is not None and stored.touched_at < untouched_since:
                    self._going[sha256] = gone
                    going[sha256] = stored.size
        return going

    def _remove(self, ids: Collection[str]) -> None:
        # The bytes last: as long as they are there, another call finds what a crash has left of this one.
        self._index.drop(ids)
        for folder in self._named_folders() if ids else ():
            for sha256 in ids:
                shutil.rmtree(folder / sha256, ignore_errors=True)
            with contextlib.suppress(OSError):
                folder.rmdir()
        for sha256 in ids:
            self.place(sha256).unlink(missing_ok=True)

    def _objects(self) -> Iterator[Path]:
        for folder in self._folder.iterdir():
            yield from folder.iterdir()

    def _named_folders(self) -> list[Path]:
        return [path for path in self._root.iterdir() if path.is_dir() and path.name[0] != "." and path.name != OBJECTS]


def _folder_of(record: ArtifactRecord) -> str:
    return f"{_safe(record.model)}_{_safe(record.mode)}" if record.model else WITHOUT_MODEL


def _safe(name: str) -> str:
    return re.sub(r"^\.", "-", _UNSAFE.sub("-", name[:MOST_OF_A_NAME]))


def _make_folder(folder: Path) -> None:
    folder.mkdir(exist_ok=True, mode=0o700)
    sync(folder.parent)


def _link_or_copy(source: Path, target: Path) -> None:
    """In place of whatever is there, and never half of it."""
    part = target.with_name(f".{target.name}")
    part.unlink(missing_ok=True)
    try:
        os.link(source, part)
    except OSError:  # a file system without hard links has the same bytes twice
        shutil.copyfile(source, part)
        sync(part)
    os.replace(part, target)
