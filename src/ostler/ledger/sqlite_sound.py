"""Whether the bytes of a ledger are those that were written.

Every page carries a checksum, which SQLite's own shim (cksumvfs, a part of apsw) writes, and verifies whenever the page
is read. The log has checksums anyway, but SQLite takes a damaged log for one that ends before the damage, and what was
committed behind it is gone without a word: so a mark beside the file says how far the log must reach. It is written
after each commit and never synced: after a power cut it is an older one, which is true as well.
"""

import os
import struct
import zlib
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import NamedTuple

import apsw
from apsw import sqlite_extra

from ostler.domain.errors import LedgerError

CHECKSUM_BYTES = 8
HEAD_BYTES = 32
CHECKED = 1
"""The user_version of a ledger whose pages carry checksums."""
_MARK = struct.Struct(">8sQQ")
_CRC = struct.Struct(">I")
_MAGIC = {0x377F0682: "<", 0x377F0683: ">"}
"""Of a log, with the order of the bytes in its checksums."""


class Reached(NamedTuple):
    """How far the ledger had come after a commit."""

    log: bytes
    """Which log it was: its salts."""
    frames: int
    feed: int
    """The newest line of the feed."""


@cache
def verifying() -> str:
    """The file system, in SQLite's sense, that verifies pages; empty where this apsw was built without it."""
    if sqlite_extra.has("cksumvfs") is None:
        return ""
    usual = apsw.vfs_names()[0]
    with closing(apsw.Connection(":memory:")) as db:
        sqlite_extra.load(db, "cksumvfs")
    apsw.set_default_vfs(usual)  # the shim has put itself in its place
    return "cksmvfs"


def connect(path: Path, flags: int) -> apsw.Connection:
    return apsw.Connection(str(path), flags=flags, vfs=verifying() or None)


def has_checksums(db: apsw.Connection, path: Path) -> bool:
    checked = bool(db.pragma("user_version") == CHECKED)
    if checked and not verifying():
        raise LedgerError(
            f"the ledger {path} has checksums, which this installation cannot verify: install apsw from a wheel, which "
            "brings SQLite's cksumvfs"
        )
    if checked and db.reserve_bytes() != CHECKSUM_BYTES:
        raise LedgerError(
            f"the ledger {path} is damaged: its head is not its own. Keep it aside and restore the newest backup"
        )
    return checked


def begin(db: apsw.Connection) -> None:
    """An empty file becomes one whose pages carry checksums. The shim computes them once it has seen the first page, so
    that is written before any other."""
    if verifying():
        db.reserve_bytes(None, CHECKSUM_BYTES)
        db.pragma("user_version", CHECKED)


def write_anew(path: Path) -> None:
    """The same rows in a file with checksums, in the place of one without. (VACUUM writes pages before the first one,
    without checksums, as soon as there are more than it may keep in memory.)"""
    fresh = path.with_name(f".{path.name}.anew")
    fresh.unlink(missing_ok=True)
    os.close(os.open(fresh, os.O_CREAT | os.O_EXCL, 0o600))
    with closing(connect(fresh, apsw.SQLITE_OPEN_READWRITE)) as db:
        begin(db)
        db.execute("ATTACH ? AS old", (str(path),))
        db.execute("PRAGMA old.journal_mode = delete")
        db.execute("BEGIN IMMEDIATE")
        # SQLite's own tables (what ANALYZE in a shell has left) may not be made by name, and nobody needs them.
        of_the_ledger = "sql IS NOT NULL AND substr(name, 1, 7) <> 'sqlite_'"
        parts = list(db.execute(f"SELECT type, name, sql FROM old.sqlite_schema WHERE {of_the_ledger} ORDER BY rowid"))
        for kind, name, sql in sorted(parts, key=lambda part: part[0] != "table"):
            db.execute(sql)
            if kind == "table":
                db.execute(f"INSERT INTO main.{name} SELECT * FROM old.{name}")
        db.execute(f"PRAGMA main.application_id = {db.execute('PRAGMA old.application_id').get}")
        db.execute("COMMIT")
    os.replace(fresh, path)
    sync_folder(path.parent)


def copy_pages(db: apsw.Connection, target: Path) -> None:
    """The whole ledger of this moment, into an empty file that stands alone: a log beside it would be left behind when
    it is moved."""
    with closing(connect(target, apsw.SQLITE_OPEN_READWRITE)) as new:
        if has_checksums(db, target):
            begin(new)
        with new.backup("main", db, "main") as copying:
            copying.step(-1)
        new.pragma("journal_mode", "delete")
    with target.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make new names in a folder durable: syncing a file alone does not."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Mark:
    """How far a ledger has come, in a file beside it."""

    def __init__(self, path: Path) -> None:
        self._log = path.with_name(f"{path.name}-wal")
        self._fd = os.open(path.with_name(f"{path.name}-mark"), os.O_CREAT | os.O_RDWR, 0o600)
        self._log_fd = -1
        self._last = read_mark(path) or Reached(b"", 0, 0)

    def set(self, frames: int, feed: int) -> None:
        """After a commit. Which log that is, is read each time: one that was begun anew may be as long at once."""
        self._last = Reached(self._salts(), frames, max(feed, self._last.feed))
        told = _MARK.pack(*self._last)
        os.pwrite(self._fd, told + _CRC.pack(zlib.crc32(told)), 0)

    def _salts(self) -> bytes:
        if self._log_fd < 0:
            self._log_fd = os.open(self._log, os.O_RDONLY)
        return os.pread(self._log_fd, 8, 16)

    def close(self) -> None:
        os.close(self._fd)
        if self._log_fd >= 0:
            os.close(self._log_fd)


def read_mark(path: Path) -> Reached | None:
    """None as well where it was never written, or not whole."""
    file = path.with_name(f"{path.name}-mark")
    told = file.read_bytes() if file.exists() else b""
    if len(told) != _MARK.size + _CRC.size or _CRC.unpack(told[_MARK.size :])[0] != zlib.crc32(told[: _MARK.size]):
        return None
    return Reached(*_MARK.unpack(told[: _MARK.size]))


def forget_mark(path: Path) -> None:
    """Before the ledger is closed, when its log is folded into it; and where a ledger begins: it was of another."""
    path.with_name(f"{path.name}-mark").unlink(missing_ok=True)


def refuse_lost(db: apsw.Connection, path: Path) -> None:
    """What was committed is there. A mark is written after a commit alone: where there is one, there are tables."""
    newest = _newest(db) if db.table_exists(None, "feed") else -1  # SQLite takes of the log what it can, with this
    log = path.with_name(f"{path.name}-wal")
    head = b""
    if log.exists():
        with log.open("rb") as file:
            head = file.read(HEAD_BYTES)
    if any(head) and not _is_sound(head):
        raise _lost(path, f"the head of its log {log.name} is damaged")
    reached = read_mark(path)
    if reached is None:
        return
    frames, _ = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    if head[16:24] == reached.log and frames < reached.frames:
        raise _lost(path, f"of {reached.frames} pages in its log {log.name} only {max(frames, 0)} are sound")
    if newest < reached.feed:
        raise _lost(path, f"it ends at event {max(newest, 0)}, but had come to {reached.feed}")


def _newest(db: apsw.Connection) -> int:
    found: int = db.execute("SELECT coalesce(max(seq), 0) FROM feed").get
    return found


def _lost(path: Path, what: str) -> LedgerError:
    return LedgerError(
        f"the ledger {path} has lost commits: {what}. Keep it and its log aside and restore the newest backup; to go "
        f"on with what is left instead, remove {path.name}-mark and the log"
    )


def _is_sound(head: bytes) -> bool:
    if len(head) < HEAD_BYTES or (order := _MAGIC.get(int.from_bytes(head[:4], "big"))) is None:
        return False
    first = second = 0
    words = struct.unpack(f"{order}6I", head[:24])
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return struct.unpack(">2I", head[24:32]) == (first, second)
