"""Secrets of the tasks that run here: as files that live in memory, for as long as their attempt does.

/dev/shm/ostler-<worker>/<attempt>/NAME where there is a file system in memory, else in a folder of their own beside
the worker's. They are never written anywhere else; a worker that starts again finds those of what still runs.
"""

import asyncio
import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import msgspec

from ostler.domain import secrets
from ostler.runtime.attempts import is_attempt_name, open_plain
from ostler.runtime.identity import Identity
from ostler.runtime.prune import remove
from ostler.worker.orders import Order
from ostler.worker.redaction import Redactor

MEMORY = Path("/dev/shm")
PREFIX = "ostler-"
VARIABLE = "OSTLER_SECRETS"
MOST_LOOKED_AT = 256


class Given(msgspec.Struct, frozen=True):
    """What one attempt has been given."""

    folder: Path
    variables: dict[str, str]

    def environment(self) -> dict[str, str]:
        return {VARIABLE: str(self.folder), **self.variables}


class Secrets:
    def __init__(self, worker: Path, fallback: Path, memory: Path = MEMORY) -> None:
        """`worker` is the worker's own folder: there may be others of its name on this machine."""
        name = hashlib.sha256(os.fsencode(worker.absolute())).hexdigest()[:16]
        in_memory = memory / f"{PREFIX}{name}"
        usable = os.path.ismount(memory) and (_is_ours(in_memory) or not os.path.lexists(in_memory))
        self._root = in_memory if usable else fallback
        self._fallback = fallback
        self._redactors: dict[str, Redactor] = {}
        self._held: set[str] = set()

    def give(self, order: Order, user: Identity | None) -> Given | None:
        """Write them down for this attempt. LookupError if the hub has not sent one that the spec names."""
        if not order.spec.secrets:
            return None
        wanted = [found for text in order.spec.secrets if (found := secrets.parse(text)) is not None]
        absent = [one.name for one in wanted if one.name not in order.secrets]
        if absent:
            raise LookupError(f"the secret {absent[0]!r} is not there any more")
        folder = self._path(order.attempt)
        self._make_root()
        remove(folder)  # of an earlier start that did not come to its end
        folder.mkdir(mode=0o700)
        for one in wanted:
            path = folder / one.name
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(order.secrets[one.name])
            if user is not None:
                os.chown(path, *user)
        if user is not None:
            os.chown(folder, *user)
        self._watch(order.attempt, order.secrets.values())
        return Given(folder, {one.variable: _text(order.secrets[one.name], one) for one in wanted if one.variable})

    def took_back(self, attempt: str) -> None:
        """An earlier process of this worker has started it."""
        folder = self._path(attempt)
        try:
            names = list(islice(folder.iterdir(), MOST_LOOKED_AT))
        except OSError:
            return
        self._watch(attempt, filter(None, map(_read, names)))

    def clean(self, attempts: Callable[[str], bool]) -> None:
        """Remove those of attempts that are not held any more: a worker that was killed could not."""
        for folder in self._root.iterdir() if self._root.is_dir() else ():
            if is_attempt_name(folder.name) and not attempts(folder.name):
                remove(folder)

    def ended(self, attempt: str) -> None:
        """All its processes are gone, and nobody else gets there. A worker that is started again before the log is
        with the hub must still know what to cover in it."""
        if attempt in self._held:
            with contextlib.suppress(OSError):
                os.chown(self._path(attempt), os.geteuid(), os.getegid(), follow_symlinks=False)

    def holds(self, attempt: str) -> bool:
        return attempt in self._held

    async def forget(self, attempt: str) -> None:
        """Its log is with the hub."""
        self._redactors.pop(attempt, None)
        self._held.discard(attempt)
        await asyncio.to_thread(remove, self._path(attempt))
        with contextlib.suppress(OSError):
            self._root.rmdir()  # of the last one

    def redactor(self, attempt: str) -> Redactor | None:
        return self._redactors.get(attempt)

    def _watch(self, attempt: str, values: Iterable[bytes]) -> None:
        self._held.add(attempt)
        self._redactors[attempt] = Redactor(values)

    def _make_root(self) -> None:
        """A folder that others pass through and cannot list. What somebody else has put there before us is not used."""
        with contextlib.suppress(FileExistsError):
            self._root.mkdir(mode=0o711, parents=True)
            self._root.chmod(0o711)
        if not _is_ours(self._root):
            self._root = self._fallback
            self._root.mkdir(mode=0o711, parents=True, exist_ok=True)

    def _path(self, attempt: str) -> Path:
        if not is_attempt_name(attempt):
            raise ValueError(f"not an attempt id: {attempt!r}")
        return self._root / attempt


def _is_ours(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _read(path: Path) -> bytes:
    """What a task may have put in the place of a secret is not followed, not waited for, and not read for long."""
    try:
        with open_plain(path, os.O_NOFOLLOW) as file:
            return file.read(secrets.MAX_BYTES)
    except OSError:
        return b""


def _text(value: bytes, wanted: secrets.Wanted) -> str:
    """As a variable: without the line's end that most editors put behind it."""
    try:
        text = value.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise LookupError(f"the secret {wanted.name!r} is no text, so it cannot be the variable {wanted.variable}")
    return text
