"""A shelf in a bucket. Of every object that was verified there is a small file on the hub's own disk, so that what is
asked all the time is answered without the store; and nothing is counted on that has no such file.

PREFIX/<kind>/objects/<ab>/<sha256>         the bytes
PREFIX/<kind>/arriving/<whose>/<sha256>     what is on its way past the hub, until it is whole and verified
<folder>/<ab>/<sha256>                      here: what is known of it; touched when somebody counts on it
<folder>/<ab>/<sha256>.gone                 here: nobody counts on it any more, and its bytes are to be removed
"""

import contextlib
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_hex
from typing import IO

import msgspec

from ostler.domain.errors import NotFound, StoreAway
from ostler.store.base import ZSTD, Asked, Piece, Stored, differs, is_sha256, missing
from ostler.store.bucket import MOST_COPIED, PART_BYTES, Client, Head, Refused, spans
from ostler.store.files import Files
from ostler.store.folder import Folder
from ostler.store.uploads import KEEP_PARTS_S, hash_file, hash_of, sync

GONE = ".gone"
PIECES_AT_ONCE = 32
"""Addresses that are handed out at a time: each is good for an hour only."""
TURN_S = 120.0
"""For so long a thread waits for another that has to do with the same bytes: there are few of them for all."""
HUB, WORKERS = "hub", "workers"

_log = logging.getLogger("ostler.hub")


class Known(msgspec.Struct, frozen=True):
    size: int
    compressed: bool


class Abilities(msgspec.Struct, frozen=True):
    """What a store does with hashes. Asked once, because one that only repeats what it was told proves nothing."""

    compares: bool
    """It refuses what is not what the sender says."""
    computes: bool
    """It says what something hashes to that is copied."""


class S3Shelf(Files):
    def __init__(
        self, folder: Path, called: str, client: Client, kind: str, abilities: Callable[[], Abilities], old: Folder
    ) -> None:
        """`old`: where earlier hubs have kept the bytes; from there they are handed out until they are moved."""
        super().__init__(folder, called)
        self.old = old
        self._client = client
        self._kind = kind
        self._abilities = abilities
        self._turns = Turns()

    def has(self, sha256: str) -> bool:
        """A note that a power cut has emptied says nothing: it is asked for in the bucket."""
        return is_sha256(sha256) and self.look(sha256) is not None

    def look(self, sha256: str) -> Stored | None:
        path = self.place(sha256)
        try:
            known = msgspec.json.decode(path.read_bytes(), type=Known)
            return Stored(known.size, known.compressed, path.stat().st_mtime)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def open(self, sha256: str) -> IO[bytes]:
        if not self.find(sha256):
            raise missing(self.called, sha256)
        with contextlib.suppress(NotFound):
            return self.old.open(sha256)
        file = self._client.open(self._key(sha256))
        if file is None:
            _log.error("%s is not in the store %s any more: somebody has removed it", sha256, self._client.bucket)
            self.place(sha256).unlink(missing_ok=True)  # so that it may be brought again
            raise missing(self.called, sha256)
        return file

    def find(self, sha256: str) -> bool:
        with self._turns.of(sha256):
            if self.has(sha256) or self._gone(sha256).exists():
                return self.has(sha256)
            key = self._key(sha256)
            if self._client.head(key) is None:
                return False
            head = self._verified(key, sha256)
            if head.sha256 == sha256:
                self._note(sha256, Known(head.size, self._is_compressed(key, head.size)))
            return head.sha256 == sha256

    def recall(self, sha256: str) -> None:
        self.find(sha256)

    def link(self, sha256: str) -> str:
        if self.old.has(sha256):
            return ""
        stored = self.look(sha256)
        called = f"{sha256[:16]}.tar{'.zst' if stored is not None and stored.compressed else ''}"
        return self._client.link(self._key(sha256), called)

    # In

    def shelve(self, sha256: str, file: Path) -> None:
        with self._turns.of(sha256):
            known = self._known(file)
            left = self._send(sha256, file, known.size)
            self._note(sha256, known)
            self._client.delete(left)
        file.unlink()

    def adopt(self) -> None:
        """Know at once what the old folder has; its bytes are moved later."""
        for path in self.old.places():
            with contextlib.suppress(FileNotFoundError):
                if self.look(path.name) is None:
                    touched_at = path.stat().st_mtime
                    self._write(path.name, self._known(path), lambda _: None)  # the file is there to tell it again
                    os.utime(self.place(path.name), (touched_at, touched_at))

    def move(self, file: Path) -> bool:
        """From the old folder to the bucket. False: it is not what its name says, and stays where it is."""
        sha256 = file.name
        with self._turns.of(sha256), contextlib.suppress(FileNotFoundError):
            if hash_file(file)[0].hexdigest() != sha256:
                return False
            if self.has(sha256):  # if not, somebody has removed it meanwhile
                self._client.delete(self._send(sha256, file, file.stat().st_size))
                self._settle(sha256)
                file.unlink()
                self.unname([sha256])
        return True

    def _send(self, sha256: str, file: Path, size: int) -> list[str]:
        """To where it stands. What is left over on the way there."""
        with file.open("rb") as opened:
            if size <= PART_BYTES and self._abilities().compares:
                self._client.put(self._key(sha256), opened, sha256)
                return []
            arriving = self._on_its_way(HUB, sha256)
            if size <= PART_BYTES:
                self._client.put(arriving, opened, sha256)
            else:
                self._client.upload(arriving, file)
        self._client.copy(self._proven(arriving, sha256), arriving, self._key(sha256))
        return [arriving]

    def ask(self, sha256: str, size: int, whose: str = "") -> Asked | None:
        key = self._arriving(sha256, whose)
        with self._turns.of(sha256):
            if self.has(sha256) and not whose:  # somebody else has brought it meanwhile
                return Asked(size, whole=True)
            found = self._client.head(key)
            if found is None or found.size != size:
                if size <= PART_BYTES:
                    url, headers = self._client.link_to_put(key, sha256, size)
                    return Asked(0, pieces=[Piece(url, 0, size, headers)])
                asked = self._parts(key, size)
                if asked is not None:
                    return asked
            self._take_in(sha256, key, size)
            return Asked(size, whole=True)

    def _parts(self, key: str, size: int) -> Asked | None:
        """What is missing of an upload in parts; None: nothing, and now it is one object."""
        begun = [one for one in self._client.begun(key) if one[0] == key]
        upload = begun[0][1] if begun else self._client.begin(key)
        wanted = dict(enumerate(spans(size), 1))
        come = {
            number: part
            for number, part in (self._client.parts(key, upload) if begun else {}).items()
            if number in wanted and part[0] == wanted[number][1] - wanted[number][0]
        }
        left = [number for number in wanted if number not in come]
        if not left:
            self._client.complete(key, upload, come)
            return None
        pieces = []
        for number in left[:PIECES_AT_ONCE]:
            first, end = wanted[number]
            url, headers = self._client.link_to_part(key, upload, number, end - first)
            pieces.append(Piece(url, first, end, headers))
        return Asked(sum(come_size for come_size, _ in come.values()), pieces=pieces)

    def _take_in(self, sha256: str, arriving: str, size: int) -> None:
        """Whole: seen by all under its name. Not what its name says: gone."""
        head = self._proven(arriving, sha256)
        if not self.has(sha256):
            self._client.copy(head, arriving, self._key(sha256))
            self._note(sha256, Known(size, self._is_compressed(arriving, size)))
        self._client.delete([arriving])

    def _proven(self, arriving: str, sha256: str) -> Head:
        head = self._verified(arriving, sha256)
        if head.sha256 != sha256:
            self._client.delete([arriving])
            raise differs(head.sha256, sha256)
        return head

    def _verified(self, key: str, wanted: str) -> Head:
        """What it hashes to: by what the store says, where that is worth something; else it is read."""
        head = self._client.head(key)
        if head is None:
            raise StoreAway(f"the store {self._client.bucket} has lost {key}; it is to be brought again")
        if head.sha256 == wanted and self._abilities().compares:
            return head
        if head.size <= MOST_COPIED and self._abilities().computes:
            return self._client.copy(head, key, key)
        with self._client.opened(key, head) as file:
            return msgspec.structs.replace(head, sha256=hash_of(file)[0].hexdigest())

    def _is_compressed(self, key: str, size: int) -> bool:
        return size >= len(ZSTD) and bool(self._client.get(key, 0, len(ZSTD)).read() == ZSTD)

    def _known(self, file: Path) -> Known:
        with file.open("rb") as opened:
            return Known(file.stat().st_size, opened.read(len(ZSTD)) == ZSTD)

    def _note(self, sha256: str, known: Known) -> None:
        self._write(sha256, known, sync)
        sync(self.place(sha256).parent)
        self._gone(sha256).unlink(missing_ok=True)

    def _settle(self, sha256: str) -> None:
        """Of a note that was written while the file was there to tell it again."""
        sync(self.place(sha256))
        sync(self.place(sha256).parent)

    def _write(self, sha256: str, known: Known, settle: Callable[[Path], None]) -> None:
        place = self.place(sha256)
        part = place.with_name(f".{sha256}")
        place.parent.mkdir(exist_ok=True, mode=0o700)
        part.write_bytes(msgspec.json.encode(known))
        settle(part)
        part.replace(place)

    # Out

    def bury(self, sha256: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.place(sha256).replace(self._gone(sha256))
        self.old.bury(sha256)

    def clear(self) -> None:
        for gone in self._folder.glob(f"[0-9a-f][0-9a-f]/*{GONE}"):
            sha256 = gone.name.removesuffix(GONE)
            with self._turns.of(sha256):
                if gone.exists() and not self.has(sha256):  # nobody has brought it again meanwhile
                    self._client.delete([self._key(sha256)])
                gone.unlink(missing_ok=True)

    def tidy(self) -> None:
        self.clear()
        before = datetime.now(UTC) - timedelta(seconds=KEEP_PARTS_S)
        arriving, probes = self._client.key(self._kind, "arriving/"), self._client.key("probe/")
        for prefix in (arriving, self._client.key(self._kind, "objects/")):
            for key, upload, begun_at in self._client.begun(prefix):
                if begun_at < before:
                    self._client.abort(key, upload)
        found = [*self._client.keys(arriving), *self._client.keys(probes)]
        self._client.delete([key for key, came_at in found if came_at < before])

    # Names: a bucket has no second one for the same bytes

    def name(self, sha256: str, name: str) -> None:
        """It has none."""

    def found_at(self, sha256: str, name: str) -> str:
        return f"s3://{self._client.bucket.name}/{self._key(sha256)}"

    def renew(self, sha256: str) -> None:
        """There are none."""

    def unname(self, ids: Collection[str]) -> None:
        """There are none, but for those that the old folder has yet."""
        with contextlib.suppress(OSError):
            self.old.unname(ids)

    def _key(self, sha256: str) -> str:
        return self._client.key(self._kind, "objects", sha256[:2], sha256)

    def _arriving(self, sha256: str, whose: str) -> str:
        """Of its own for whoever has to prove to have the bytes: nobody proves anything by what another brings."""
        return self._on_its_way(hashlib.sha256(whose.encode()).hexdigest()[:32] if whose else WORKERS, sha256)

    def _on_its_way(self, owner: str, sha256: str) -> str:
        return self._client.key(self._kind, "arriving", owner, sha256)

    def _gone(self, sha256: str) -> Path:
        return self.place(sha256).with_suffix(GONE)


class Turns:
    """One at a time has the bytes of one name: whoever brings them and whoever removes them never meet."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def of(self, sha256: str) -> Iterator[None]:
        with self._changed:
            if not self._changed.wait_for(lambda: sha256 not in self._taken, TURN_S):
                raise StoreAway(f"{sha256} is just being brought to the store, or read there; ask again later")
            self._taken.add(sha256)
        try:
            yield
        finally:
            with self._changed:
                self._taken.discard(sha256)
                self._changed.notify_all()


def probe(client: Client) -> Abilities:
    """Written, read and removed; and what the store does with hashes. StoreAway if that cannot be had."""
    key, data = client.key("probe", token_hex(8)), b"ostler"
    good, bad = hashlib.sha256(data).hexdigest(), hashlib.sha256(b"another").hexdigest()
    client.put(key, data, good)
    try:
        head = client.head(key)
        file = client.open(key)
        if file is None or file.read() != data:
            raise StoreAway(f"the store {client.bucket} does not give back what was written to it")
        try:
            computes = head is not None and client.copy(head, key, key).sha256 == good
        except Refused:
            computes = False
        try:
            client.put(key, data, bad)
            compares = False
        except Refused:
            compares = head is not None and head.sha256 == good
    finally:
        client.delete([key])
    return Abilities(compares, computes)
