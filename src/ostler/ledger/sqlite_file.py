"""The file under the SQLite ledger: whose it is, whether it is sound, and what its errors mean to an operator."""

import errno
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import msgspec

from ostler.domain.errors import LedgerError
from ostler.ledger.migrate import bundled, migrate
from ostler.ledger.sqlite_sound import (
    begin,
    connect,
    forget_mark,
    has_checksums,
    refuse_lost,
    sync_folder,
    verifying,
    write_anew,
)

APPLICATION_ID = int.from_bytes(b"OSTL", "big")
BUSY_S = 20.0
"""For as long another program may hold the ledger. No longer: workers that hear nothing for 30 s connect again."""
SAID_AFTER_S = 1.0
QUICK_CHECK_BELOW = 64 * 1024 * 1024
"""A larger file takes seconds to check; there each page is verified when it is first read."""
CHECKPOINT_PAGES = 4000
"""16 MiB of log: hot pages are written to the file once for many commits."""

_log = logging.getLogger("ostler.ledger")
_SETTINGS = """
    PRAGMA synchronous = FULL;
    PRAGMA fullfsync = ON;            -- macOS: an ordinary fsync leaves the data in the drive's cache
    PRAGMA checkpoint_fullfsync = ON;
    PRAGMA foreign_keys = OFF;
    PRAGMA cache_size = -65536;
    PRAGMA temp_store = MEMORY;
    PRAGMA journal_size_limit = 67108864;
"""

_FULL = "the disk is full. Free some space on it, then start the hub again"
_ADVICE: tuple[tuple[tuple[type[Exception], ...], str], ...] = (
    ((apsw.FullError,), _FULL),
    (
        (apsw.BusyError, apsw.LockedError),
        "another program holds it locked. Close that program (a database shell, a backup), then start the hub again",
    ),
    (
        (apsw.CorruptError, apsw.NotADBError, apsw.FormatError, msgspec.MsgspecError),
        "the file is damaged or is no ledger. Keep it aside and restore the newest backup",
    ),
    ((apsw.IOError,), "the disk failed to read or write. Look at the system's log and at the disk before going on"),
    (
        (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError, apsw.AuthError, OSError),
        "the file cannot be opened for writing. Check that its folder exists and that the hub's user may write there",
    ),
    ((apsw.NoMemError, MemoryError), "the machine is out of memory. Free some, then start the hub again"),
    ((apsw.ConnectionClosedError,), "the ledger is closed already. This is a fault of the hub: report it"),
    (
        (apsw.ConstraintError, apsw.TooBigError, apsw.MismatchError, TypeError, ValueError, OverflowError),
        "a row does not fit what is there. This is a fault of the hub: report it",
    ),
)
_OTHER_THAN_WRITTEN = (
    "a page's checksum is wrong: the file is damaged, or another program has written to it. Keep it aside and restore "
    "the newest backup"
)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Whatever goes wrong with the file inside becomes a LedgerError that says what to do."""
    try:
        yield
    except (apsw.Error, msgspec.MsgspecError, OSError, MemoryError, TypeError, ValueError, OverflowError) as error:
        advice = next((text for kinds, text in _ADVICE if isinstance(error, kinds)), "report this error")
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            advice = _FULL
        elif _is_other_than_written(error):
            advice = _OTHER_THAN_WRITTEN
        raise LedgerError(f"the ledger {path}: {advice} ({error})") from error


def _is_other_than_written(error: Exception) -> bool:
    """A page's checksum is wrong."""
    return isinstance(error, apsw.IOError) and getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA


def refuse_faulty_library(version: str) -> None:
    """SQLite up to 3.51.2 can lose commits when a write meets a checkpoint; two older lines got the repair too."""
    number = tuple(int(part) for part in version.split(".")[:3])
    if not ((3, 44, 6) <= number < (3, 45) or (3, 50, 7) <= number < (3, 51) or number >= (3, 51, 3)):
        raise LedgerError(
            f"SQLite {version} can lose committed rows: install an apsw that carries SQLite 3.51.3 or later"
        )


def take_lock(path: Path) -> int:
    """A file descriptor that keeps other hubs away from this ledger for as long as it is open."""
    fd = os.open(path.with_name(f"{path.name}.lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(fd, 32).decode("ascii", "replace").strip()
        os.close(fd)
        raise LedgerError(
            f"another hub uses this ledger: process {holder or 'unknown'} holds {path}. Stop it first, or give this "
            "hub another file"
        ) from None
    except BaseException:
        os.close(fd)
        raise
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def open_writer(path: Path) -> apsw.Connection:
    """The one connection that writes, on a sound ledger with the schema of this code."""
    _create(path)
    db = _opened(path)
    if not has_checksums(db, path) and _tables(db) and verifying():
        db.close()
        write_anew(path)
        db = _opened(path)
    try:
        if not _tables(db):
            begin(db)
        if (mode := db.pragma("journal_mode", "wal")) != "wal":
            raise LedgerError(
                f"the ledger {path}: no write-ahead log on this filesystem (journal mode {mode}). Use a local disk"
            )
        for _ in db.execute(_SETTINGS):
            pass
        migrate(db, path, bundled())
    except BaseException:
        db.close()
        raise
    return db


def _opened(path: Path) -> apsw.Connection:
    """Nothing is changed in the file: it may belong to something else."""
    db = connect(path, apsw.SQLITE_OPEN_READWRITE)
    try:
        # Whoever refuses a ledger leaves its log as it is: closing would fold what can be read of it into the file.
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.set_busy_handler(_patience(path))
        _refuse_foreign(db, path)
        refuse_lost(db, path)
        _refuse_damaged(db, path)
        has_checksums(db, path)
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    except BaseException:
        db.close()
        raise
    return db


def open_reader(path: Path) -> apsw.Connection:
    db = connect(path, apsw.SQLITE_OPEN_READONLY)
    db.set_busy_handler(_patience(path))
    return db


def _patience(path: Path) -> Callable[[int], bool]:
    """Whether to try once more to get at a ledger that somebody else has locked."""
    begun, said = 0.0, False

    def waits(tries: int) -> bool:
        nonlocal begun, said
        if not tries:
            begun, said = time.monotonic(), False
        waited = time.monotonic() - begun
        if waited > SAID_AFTER_S and not said:
            said = True
            _log.warning(
                "another program holds the ledger %s locked; it is waited for, %.0f s in all: close it", path, BUSY_S
            )
        time.sleep(min(0.05, 0.001 * (tries + 1)))
        return waited < BUSY_S

    return waits


def _create(path: Path) -> None:
    """Readable by the hub's user alone, because specs hold what users put into environments."""
    if not path.exists() or path.stat().st_size == 0:
        wal = path.with_name(f"{path.name}-wal")
        if wal.exists() and wal.stat().st_size > 0:
            # SQLite would delete this log, and with it the commits that it holds.
            raise LedgerError(
                f"the ledger {path} is gone, but its log {wal.name} is there. Bring the file back, or move the "
                "log away to begin an empty ledger"
            )
        forget_mark(path)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    sync_folder(path.parent)


def _refuse_foreign(db: apsw.Connection, path: Path) -> None:
    mark = db.pragma("application_id")
    if mark != APPLICATION_ID and (mark or _tables(db)):
        raise LedgerError(f"{path} is a database of another program, not an Ostler ledger. Give the hub another file")


def _tables(db: apsw.Connection) -> int:
    count: int = db.execute("SELECT count(*) FROM sqlite_schema").get
    return count


def _refuse_damaged(db: apsw.Connection, path: Path) -> None:
    if path.stat().st_size >= QUICK_CHECK_BELOW:
        return
    finding = db.execute("PRAGMA quick_check(1)").get
    if finding != "ok":
        raise LedgerError(f"the ledger {path} is damaged: {finding}. Keep the file aside and restore the newest backup")
