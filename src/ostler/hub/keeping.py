"""A ledger's backup and its return, and a look at a hub's files from outside: what an operator does beside the hub."""

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from secrets import token_hex

import apsw
import msgspec

from ostler import config
from ostler.domain.errors import BadInput, Conflict, LedgerError, NotFound, OstlerError
from ostler.hub import ledgers, stores
from ostler.hub.disk import DiskSettings, room_at
from ostler.hub.settings import load
from ostler.ledger.sqlite_file import APPLICATION_ID, explained, open_reader, open_writer, take_lock
from ostler.ledger.sqlite_sound import copy_pages, refuse_lost, sync_folder
from ostler.store.bucket import Bucket, Client
from ostler.store.s3 import probe

FOLDERS = "logs, artifacts, snapshots and checkpoints"


class Place(msgspec.Struct, frozen=True):
    """Where a hub's things are."""

    state: Path
    store: Path
    ledger_url: str
    disk: DiskSettings = DiskSettings()
    bucket: Bucket | None = None

    @property
    def file(self) -> Path:
        return self.state / ledgers.FILE


class Finding(msgspec.Struct, frozen=True):
    what: str
    ok: bool
    told: str


def place(state: Path, config_file: Path | None, ledger: str = "", store: str = "") -> Place:
    config.refuse_password(ledger, "--ledger")
    chosen = load(config.config_file(config_file, state))
    ledger_url = config.ledger_url(ledger, chosen.ledger)
    folder, bucket = stores.chosen(store, chosen, state)
    return Place(state, folder, ledger_url, chosen.disk, bucket)


def _refuse_beside_a_database(where: Place) -> None:
    """A file that lies in the folder of a hub on a database is the ledger of some time before."""
    if (where.state / "hub.lock").exists():
        try:
            os.close(take_lock(where.state / "hub"))
        except LedgerError:
            raise Conflict(
                f"the hub that runs with {where.state} keeps its ledger in a database; say which (--ledger URL, "
                "OSTLER_LEDGER)"
            ) from None


# Backups


def backup(where: Place, target: Path) -> int:
    """One consistent moment of the ledger, while the hub runs; how many bytes it has."""
    if where.ledger_url:
        raise BadInput(
            f"the ledger is {ledgers.shown(where.ledger_url, where.state)}, and its server's own tools back it up: "
            f"umask 077; pg_dump --format=custom --file={target} ADDRESS; after it, copy {FOLDERS} in {where.store}"
        )
    _refuse_beside_a_database(where)
    if not where.file.exists():
        raise NotFound(
            f"there is no ledger {where.file}; name the hub's folder (--state-dir), or its database (--ledger)"
        )
    if target.exists():
        raise Conflict(f"{target} is there already; give another name, or remove it first")
    # A name of its own: of two backups at once neither may take what the other has half written for its own.
    part = target.with_name(f".{target.name}.{token_hex(4)}.part")
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        _copy(where.file, part)
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    sync_folder(target.absolute().parent)
    return target.stat().st_size


def _copy(source: Path, target: Path) -> None:
    with explained(source), ExitStack() as opened:
        old = open_reader(source)
        opened.callback(old.close)
        _refuse_cut_short(old, source)
        copy_pages(old, target)
        new = open_reader(target)
        opened.callback(new.close)
        _refuse_unsound(new, target)


def restore(where: Place, source: Path) -> Path | None:
    """The ledger as it was then. What there was until now is kept aside: where."""
    if where.ledger_url:
        raise BadInput(
            f"the ledger is {ledgers.shown(where.ledger_url, where.state)}: stop every hub, then, into an empty "
            f"database, pg_restore --no-owner --dbname=ADDRESS {source}; and bring {FOLDERS} back to {where.store}"
        )
    if not source.is_file():
        raise NotFound(f"there is no backup {source}")
    _refuse_beside_a_database(where)
    where.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    with ExitStack() as held:
        with explained(where.file):
            held.callback(os.close, take_lock(where.file))
        fresh = where.state / ".restored.db"
        held.callback(_remove, fresh)
        held.callback(_remove_copies, fresh)
        _remove(fresh)
        _bring(source, fresh)
        with explained(source):
            _refuse_no_ledger(fresh, source)
            try:
                open_writer(fresh).close()  # which finds out whether it is sound, and of this version
            except LedgerError as error:
                told = str(error).replace(str(fresh), str(source)).replace(fresh.name, source.name)
                raise LedgerError(told) from None
        aside = _put_aside(where.file)
        os.replace(fresh, where.file)
        sync_folder(where.state)
        return aside


def _remove_copies(fresh: Path) -> None:
    """Those made before a migration: the backup itself is that."""
    for copy in fresh.parent.glob(f"{fresh.name}.before-*"):
        copy.unlink()


def _bring(source: Path, target: Path) -> None:
    """With its log: that of a ledger which was put aside holds the newest commits. For its owner alone, from the
    first moment."""
    for suffix in ("", "-wal", "-mark"):
        part = source.with_name(source.name + suffix)
        if part.exists():
            fresh = target.with_name(target.name + suffix)
            with part.open("rb") as old, open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as new:
                shutil.copyfileobj(old, new)
                new.flush()
                os.fsync(new.fileno())


def _refuse_no_ledger(file: Path, source: Path) -> None:
    """An empty file is as good as a new ledger, to whoever opens it for writing."""
    with ExitStack() as opened:
        db = open_reader(file)
        opened.callback(db.close)
        if db.pragma("application_id") != APPLICATION_ID:
            raise LedgerError(f"{source} is no backup of a ledger; name the file that `ostler backup` has written")


def _put_aside(file: Path) -> Path | None:
    """A log or a mark without its ledger as well: whatever comes into its place would be taken for theirs."""
    if not _there(file):
        return None
    number = 1
    while _there(aside := file.with_name(f"{file.name}.replaced-{number}")):
        number += 1
    # The file before its log: whoever starts a hub after a crash in between is told of a log without its ledger.
    for part in _there(file):
        part.rename(aside.with_name(part.name.replace(file.name, aside.name, 1)))
    return aside


def _there(file: Path) -> list[Path]:
    parts = [file.with_name(file.name + suffix) for suffix in ("", "-wal", "-shm", "-mark")]
    return [part for part in parts if part.exists()]


def _remove(file: Path) -> None:
    for part in _there(file):
        part.unlink()


def _refuse_cut_short(db: apsw.Connection, path: Path) -> None:
    """A log that a running hub begins anew is short for a moment; that hub knows what it has written."""
    try:
        refuse_lost(db, path)
    except LedgerError:
        try:
            os.close(take_lock(path))
        except LedgerError:
            return
        raise


def _refuse_unsound(db: apsw.Connection, path: Path) -> None:
    finding = db.execute("PRAGMA quick_check(1)").get
    if finding != "ok":
        raise LedgerError(f"the ledger {path} is damaged: {finding}. Keep it, and restore the newest backup")


# A look from outside


def examine(where: Place) -> Iterator[Finding]:
    """What is well and what is not, of what is on this machine."""
    yield _found("state", lambda: _folder(where.state, where.disk))
    if where.store != where.state:
        yield _found("store", lambda: _folder(where.store, where.disk))
    if (bucket := where.bucket) is not None:
        yield _found("bucket", lambda: _bucket(bucket))
    yield _found("token", lambda: _token(where.state / config.TOKEN_FILES["admin"]))
    yield _found("ledger", lambda: _server(where) if where.ledger_url else _file(where))


def _found(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, look())
    except (OstlerError, OSError) as error:
        return Finding(what, False, str(error))


def _folder(folder: Path, disk: DiskSettings) -> str:
    if not folder.is_dir():
        raise NotFound(f"{folder} is no folder; a hub makes it when it starts, or name another (--state-dir, --store)")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise OstlerError(f"{folder} may not be read and written by this user; give it to the hub's user")
    room = room_at(folder, disk)
    if room.is_low:
        raise OstlerError(f"{room.told()}: the hub takes no new jobs; make room")
    return f"{folder}, {room.free / 1024**3:.0f} GiB free"


def _bucket(bucket: Bucket) -> str:
    able = probe(Client(bucket))
    how = "compares hashes" if able.compares else "computes hashes" if able.computes else "has the hub verify them"
    return f"{bucket}, written, read and removed from; {how}"


def _token(file: Path) -> str:
    if not file.exists():
        raise NotFound(f"there is no token {file}; a hub makes it when it starts")
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o077:
        raise OstlerError(f"{file} may be read by others (mode {mode:o}): chmod 600 {file}")
    return f"{file}, for its owner alone"


def _file(where: Place) -> str:
    _refuse_beside_a_database(where)
    file = where.file
    if not file.exists():
        raise NotFound(f"there is no ledger {file}; a hub makes it when it starts")
    with explained(file), ExitStack() as opened:
        db = open_reader(file)
        opened.callback(db.close)
        _refuse_cut_short(db, file)
        _refuse_unsound(db, file)
    return f"{file}, {file.stat().st_size / 1024**2:.1f} MiB, sound"


def _server(where: Place) -> str:
    """Nothing is changed there, the tables of an older version neither."""
    shown = ledgers.shown(where.ledger_url, where.state)
    from ostler.ledger import postgres_leading as leading
    from ostler.ledger import postgres_server as server

    with ExitStack() as opened, server.explained(shown):
        db = server.Address(where.ledger_url).connect()
        opened.callback(db.close)
        if not db.execute(b"SELECT to_regclass('leadership') IS NOT NULL").fetchall()[0][0]:
            raise NotFound(f"there is no ledger in {shown}; a hub makes it when it starts")
        kept = {bytes(value).decode() for (value,) in db.execute(b"SELECT value FROM kept WHERE scope = 'store'")}
        stores.refuse_unless_one_of(kept, where.store, shown)
        [leader] = [leading.Leader(*row) for row in db.execute(leading.LEADER.encode())]
        hubs = sum(bool(there) for _, there in db.execute(leading.THERE.encode()))
    leads = f"{leader.holder} leads" if leader.left_s > 0 else "nobody leads"
    return f"{shown}: {leads}, term {leader.term}, hubs connected: {hubs}"
