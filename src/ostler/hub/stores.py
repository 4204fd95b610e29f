"""Where a hub's files are. Hubs that share a ledger share the folder of logs, artifacts, snapshots and checkpoints too:
the ledger names what is in there, and a hub that took over without it would promise what it cannot give."""

import os
from itertools import repeat
from pathlib import Path
from secrets import token_hex

from ostler import config
from ostler.config import TOKEN_FILES
from ostler.domain.errors import LedgerError
from ostler.domain.records import Changes, KeptRecord
from ostler.hub.ids import new_token_secret
from ostler.hub.settings import Settings
from ostler.ledger.base import Ledger
from ostler.store.bucket import Bucket, read_bucket

SCOPE, KEY = "store", "id"
ID_FILE = "store.id"


def chosen(flag: str, settings: Settings, state: Path) -> tuple[Path, Bucket | None]:
    """The folder and the bucket, where there is one."""
    folder, bucket = config.store_places(flag, settings.store, state)
    return folder, read_bucket(bucket, settings.s3) if bucket else None


def prepare(store: Path, state: Path) -> None:
    """The folder is there, and the tokens that are kept in it open this hub as they open the others."""
    store.mkdir(parents=True, exist_ok=True, mode=0o700)
    if store == state:
        return
    for name in TOKEN_FILES.values():
        own = state / name
        secret = _once(store / name, _read(own) or new_token_secret())
        if _read(own) != secret:
            _write(own, secret)


def renew_token(store: Path, state: Path, kind: str) -> None:
    """Another secret in the file of this token, and in the copy of it that this hub has in its state folder."""
    for folder, secret in zip(dict.fromkeys((store, state)), repeat(new_token_secret()), strict=False):
        _write(folder / TOKEN_FILES[kind], secret)


def refuse_another(ledger: Ledger, store: Path, shown: str) -> None:
    """A ledger goes with one store, whichever of the hubs leads."""
    refuse_unless_one_of({known.decode() for known in ledger.kept(SCOPE).values()}, store, shown)


def refuse_unless_one_of(known: set[str], store: Path, shown: str) -> None:
    if known and _read(store / ID_FILE) not in known:
        raise LedgerError(
            f"the ledger {shown} goes with another folder of logs and artifacts than {store}. Give this hub the one "
            f"that the other hubs have (--store DIR, on a file system that all of them see); if that is lost, go on "
            f"without what was in it: echo {min(known)} > {store / ID_FILE}"
        )


def claim(ledger: Ledger, store: Path, shown: str) -> None:
    """By the hub that leads, before anything is kept in the store."""
    refuse_another(ledger, store, shown)
    if KEY not in ledger.kept(SCOPE):
        ledger.commit(Changes(kept=[KeptRecord(scope=SCOPE, key=KEY, value=_own_id(store).encode())]))


def _read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _own_id(store: Path) -> str:
    return _once(store / ID_FILE, token_hex(8))


def _once(path: Path, text: str) -> str:
    """What is in this file: this text, unless another hub was first to write it."""
    if not path.exists():
        part = path.with_name(f".{path.name}.{token_hex(4)}")
        _write(part, text)
        try:
            os.link(part, path)
        except FileExistsError:
            pass
        finally:
            part.unlink()
    return path.read_text().strip()


def _write(path: Path, text: str) -> None:
    """Whole or not at all, and from its first moment for its owner alone."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
