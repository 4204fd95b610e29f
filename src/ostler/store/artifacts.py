"""Artifacts: what tasks leave behind, by the sha256 of the bytes as they were sent.

objects/<ab>/<sha256>                       the bytes, once; or, where those are in a bucket, what is known of them
.arriving/<sha256>                          what is on its way
<model>_<mode>/<sha256>/bundle.tar[.zst]    the same file under a name that says whose it is; a bucket has none of these
jobs/<sha256>/bundle.tar[.zst]              that of a job without a model
index.jsonl                                 a line for each task's artifact
"""

import asyncio
import contextlib
import logging
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from ostler.domain.errors import NotFound, StoreAway
from ostler.domain.records import ArtifactRecord
from ostler.store.base import Asked, Shelf, Stored, is_sha256, missing, must_be_sha256
from ostler.store.files import touch
from ostler.store.folder import Folder
from ostler.store.index import Index, line_of
from ostler.store.streaming import STORE, in_thread
from ostler.store.uploads import Span, Taken, Uploads

WITHOUT_MODEL = "jobs"
OBJECTS = "objects"
MOST_OF_A_NAME = 64
YOUNGEST_S = 60
"""What was brought, asked for or named more lately is never removed, whatever anybody says."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")

_log = logging.getLogger("ostler.hub")


class ArtifactStore:
    def __init__(self, folder: Path, shelf: Shelf | None = None) -> None:
        """In this folder, or on this shelf; then the folder has what is on its way there, and the index."""
        self.shelf = shelf or Folder(folder / OBJECTS, "artifact", names=folder)
        self._uploads = Uploads(folder / ".arriving", self.shelf)
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

    async def ask(self, sha256: str, size: int) -> Asked | None:
        """For whoever would bring it past the hub: what is missing yet. None: that cannot be had."""
        must_be_sha256(sha256, self.shelf.called)
        async with self.in_use(sha256):
            if self.touch(sha256):
                return Asked(self.size(sha256), whole=True)
            asked = await in_thread(STORE, self.shelf.ask, sha256, size)
            if asked is not None and asked.whole:
                self.touch(sha256)
            return asked

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
        path = self.shelf.place(sha256)
        with self._lock, contextlib.suppress(FileNotFoundError):
            if sha256 not in self._going:
                touch(path)
                return True
        return False

    def has(self, sha256: str) -> bool:
        """Also of what is no name of one at all."""
        return self.shelf.has(sha256)

    def look(self, sha256: str) -> Stored | None:
        """None: it is not here."""
        return self.shelf.look(sha256)

    def size(self, sha256: str) -> int:
        """NotFound where it is not."""
        stored = self.look(sha256)
        if stored is None:
            raise missing(self.shelf.called, sha256)
        return stored.size

    def matching(self, prefix: str) -> list[str]:
        """Those whose sha256 begins so."""
        return sorted(path.name for path in self.shelf.places(prefix)) if prefix else []

    async def verify(self, sha256: str) -> bool:
        """Whether the bytes are here and still what their name says."""
        try:
            return await self._uploads.sha256_of(sha256) == sha256
        except (NotFound, OSError):
            return False

    # Names

    def bundle(self, record: ArtifactRecord, compressed: bool) -> str:
        """Under which name it is found, where it can have one."""
        return f"{_folder_of(record)}/{record.id}/bundle.tar{'.zst' if compressed else ''}"

    def found_at(self, record: ArtifactRecord, stored: Stored | None) -> str | None:
        """None: it is not here."""
        return self.shelf.found_at(record.id, self.bundle(record, stored.compressed)) if stored is not None else None

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
            if not self._try_to_link(record):
                return  # nobody waits again for each of the others: they are looked for when somebody asks for them

    def _try_to_link(self, record: ArtifactRecord) -> bool:
        """False: the store is away."""
        try:
            if self._index.has(record):
                self.shelf.recall(record.id)
            else:
                self._link(record)
        except (OSError, StoreAway) as error:
            _log.error("the artifact %s of %s could not be put under its name: %s", record.id, record.task_id, error)
            return not isinstance(error, StoreAway)
        return True

    def _link(self, record: ArtifactRecord) -> None:
        stored = self.look(record.id) if is_sha256(record.id) and self.shelf.find(record.id) else None
        if stored is None:
            _log.warning("the artifact %s of %s is not here", record.id, record.task_id)
            return
        name = self.bundle(record, stored.compressed)
        self.shelf.name(record.id, name)
        name = self.shelf.found_at(record.id, name)
        self._index.add(line_of(msgspec.structs.replace(record, size=stored.size), name))

    def _renew_names(self, sha256: str) -> None:
        try:
            self.shelf.renew(sha256)
        except OSError as error:
            _log.error("the names of %s could not be renewed: %s", sha256, error)

    # What nobody needs

    def orphans(self, wanted: Collection[str], untouched_since: float) -> dict[str, int]:
        """The sizes of those that are not wanted, and that nobody has brought or asked for since. Blocks."""
        found = {}
        for path in self.shelf.places():
            with contextlib.suppress(FileNotFoundError, NotFound):
                if path.name not in wanted and path.stat().st_mtime < untouched_since:
                    found[path.name] = self.size(path.name)
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
        self.shelf.unname(ids)
        for sha256 in ids:
            self.shelf.bury(sha256)
        try:
            self.shelf.clear()
        except StoreAway as error:
            _log.warning("the bytes of what was removed are still in the store, until it can be reached: %s", error)


def _folder_of(record: ArtifactRecord) -> str:
    return f"{_safe(record.model)}_{_safe(record.mode)}" if record.model else WITHOUT_MODEL


def _safe(name: str) -> str:
    return re.sub(r"^\.", "-", _UNSAFE.sub("-", name[:MOST_OF_A_NAME]))
