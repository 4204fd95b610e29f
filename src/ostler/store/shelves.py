"""What a hub keeps of bytes, by where it was told to keep them: in folders, or in a bucket."""

import asyncio
import hashlib
import logging
from functools import cache
from pathlib import Path

from ostler.domain.errors import StoreAway
from ostler.store.artifacts import OBJECTS, ArtifactStore
from ostler.store.base import Shelf
from ostler.store.blobs import BlobStore
from ostler.store.bucket import Bucket, Client
from ostler.store.folder import Folder
from ostler.store.logs import LogStore
from ostler.store.s3 import Abilities, S3Shelf, probe
from ostler.store.streaming import STORE, in_thread

MOVE_AGAIN_S = 60.0
MAX_CHECKPOINT_BYTES = 10 * 1024**3
KNOWN = "known"
"""What is known of the objects in a bucket; each bucket has a folder of its own there."""

_log = logging.getLogger("ostler.hub")


class Shelves:
    def __init__(self, folder: Path, bucket: Bucket | None = None) -> None:
        """`folder`: for all that is no object, and without a bucket for those as well."""
        self.folder = folder
        self.client = Client(bucket) if bucket is not None else None
        self._abilities = cache(self._probe)
        self._shelves: dict[str, Shelf] = {}
        self._closing = False

    def artifacts(self) -> ArtifactStore:
        folder = self.folder / "artifacts"
        return ArtifactStore(folder, self._shelf("artifacts", folder / OBJECTS, "artifact", names=folder))

    def snapshots(self) -> BlobStore:
        return BlobStore(self.folder / "snapshots", shelf=self.blobs())

    def checkpoints(self) -> BlobStore:
        folder = self.folder / "checkpoints"
        return BlobStore(folder, MAX_CHECKPOINT_BYTES, self._shelf("checkpoints", folder, "blob"))

    def logs(self) -> LogStore:
        return LogStore(self.folder / "logs", self.client)

    def blobs(self) -> Shelf:
        return self._shelf("snapshots", self.folder / "snapshots", "blob")

    def adopt(self) -> None:
        """What earlier hubs have kept in the folder is here, though it is not in the bucket yet. Blocks, for as long as
        it takes to look at the files."""
        for shelf in self._in_bucket():
            shelf.adopt()

    async def move_in(self) -> None:
        """It goes to the bucket. While that is away, nothing is lost: the hub hands it out from the folder."""
        self._closing = False
        while True:
            if not self._in_bucket() or await in_thread(STORE, self._move):
                return
            await asyncio.sleep(MOVE_AGAIN_S)

    def close(self) -> None:
        """Begin no more moves."""
        self._closing = True

    def tidy(self) -> None:
        """Remove what was begun and not gone on with for long, and what could not be removed before. Blocks."""
        for shelf in self._in_bucket():
            shelf.tidy()

    def _move(self) -> bool:
        """False: not all of it yet."""
        try:
            for shelf in self._in_bucket():
                for path in shelf.old.places():
                    if self._closing:
                        return True
                    if shelf.move(path):
                        _log.info("%s is in the bucket now", path)
                    else:
                        _log.error("%s is damaged: it is not what its name says, and stays where it is", path)
        except (StoreAway, OSError) as error:
            _log.error("what is in the hub's folder is not in the bucket yet; it goes there later: %s", error)
            return False
        return True

    def _in_bucket(self) -> list[S3Shelf]:
        return [shelf for shelf in self._shelves.values() if isinstance(shelf, S3Shelf)]

    def _shelf(self, kind: str, folder: Path, called: str, names: Path | None = None) -> Shelf:
        """One for each kind: whoever brings bytes and whoever removes them wait for each other there."""
        if kind not in self._shelves:
            old = Folder(folder, called, names)
            self._shelves[kind] = old if self.client is None else self._s3(self.client, kind, old)
        return self._shelves[kind]

    def _s3(self, client: Client, kind: str, old: Folder) -> S3Shelf:
        which = hashlib.sha256(str(client.bucket).encode()).hexdigest()[:16]
        return S3Shelf(self.folder / KNOWN / which / kind, old.called, client, kind, self._abilities, old)

    def _probe(self) -> Abilities:
        assert self.client is not None
        return probe(self.client)
