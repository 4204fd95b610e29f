"""A folder per task that is kept across its attempts, for as long as there is something in it and the task not done."""

import contextlib
import hashlib
import os
import stat
import time
from pathlib import Path

import msgspec

from ostler.runtime import prune
from ostler.runtime.identity import Identity, as_owner
from ostler.worker.outputs import is_empty
from ostler.worker.state import AHEAD

SPARE, DRAFTS = ".spare-", "-drafts"
MAX_SPARE = 2 * AHEAD
"""Each task that is sent ahead has one: with fewer, the rest would be made and removed again and again."""
CLOCK_STEP_NS = 100_000_000
"""A file system's clock may be this much late: of two changes within it, the second may not show."""


class Look(msgspec.Struct, frozen=True):
    """What is in a folder: two looks with the same mark have seen the same files."""

    mark: str
    size: int
    entries: int
    depth: int


def look_at(folder: str) -> Look:
    """By names, sizes and times: what is written between two looks shows, unless somebody takes pains to hide it."""
    with as_owner(folder):
        return _look_at(folder)


def _look_at(folder: str) -> Look:
    found: list[str] = []
    size = depth = 0
    waiting = [(folder, 1)]
    while waiting:
        inner, level = waiting.pop()
        with os.scandir(inner) as entries:
            for entry in entries:
                depth = max(depth, level)
                if entry.is_dir(follow_symlinks=False):
                    found.append(f"{entry.path}/")
                    waiting.append((entry.path, level + 1))
                    continue
                status = entry.stat(follow_symlinks=False)
                size += status.st_size
                found.append(f"{entry.path} {status.st_size} {status.st_mtime_ns} {status.st_mode}")
    digest = hashlib.blake2b(digest_size=16)
    for line in sorted(found):
        digest.update(os.fsencode(line) + b"\0")
    return Look(digest.hexdigest(), size, len(found), depth)


class Checkpoints:
    """
    Most tasks leave theirs empty. Making and removing a folder costs a third of what a short task costs in all, so an
    empty one is not removed but renamed, for the next task. One that is known to be short gets it under the name that
    it has, and it is renamed only if something is left in it.
    """

    def __init__(self, folder: Path, *, shared: bool = False) -> None:
        """`shared`: whose tasks are somebody else's can pass through it to their own."""
        self._folder = os.fspath(folder)
        os.makedirs(self._folder, 0o700, exist_ok=True)
        if shared:
            os.chmod(self._folder, 0o711)
        self._spare: list[str] = []
        self._lent: dict[str, str] = {}
        """Those that tasks have under the names of spare ones."""
        self._untouched: dict[str, int] = {}
        """Empty spare folders, with when each was last changed: what has not been changed since is empty still."""
        self._own: set[str] = set()
        """Tasks that may have a folder of their own name here. No other has one: nobody need look."""
        self._made = 0
        self._drafts = f"{self._folder}{DRAFTS}"
        remove(self._drafts)
        for entry in os.scandir(self._folder):
            if entry.name.startswith(SPARE):
                number = entry.name.removeprefix(SPARE)
                self._made = max(self._made, 1 + int(number) if number.isdecimal() else 0)
                if is_empty(entry.path) and _is_ours(entry.path):
                    self._spare.append(entry.path)
            else:
                self._own.add(entry.name)

    def took_back(self, task_id: str, path: str) -> None:
        """An earlier process of this worker has given it this folder."""
        if path.startswith(f"{self._folder}/{SPARE}"):
            self._lent[task_id] = path
            if path in self._spare:
                self._spare.remove(path)

    def path(self, task_id: str) -> str:
        return self._lent.get(task_id) or f"{self._folder}/{task_id}"

    def spares(self) -> set[str]:
        """The names of spare folders, whether somebody has them or not: they are few, and counted on."""
        return {os.path.basename(path) for path in (*self._spare, *self._lent.values())}

    def is_empty(self, task_id: str) -> bool:
        return is_empty(self.path(task_id))

    def open(self, task_id: str, user: Identity | None = None, *, is_short: bool = False) -> str:
        """The task's folder, with what its earlier attempts have left there."""
        path = self._lend(task_id) if is_short or task_id in self._lent else self._place(task_id)
        if user is not None:
            os.chown(path, *user, follow_symlinks=False)
        return path

    def _lend(self, task_id: str) -> str:
        path = self.path(task_id)
        if (task_id in self._lent or task_id in self._own) and os.path.lexists(path):
            return path
        path = self._lent[task_id] = self._spare.pop() if self._spare else self._new_spare()
        if path not in self._untouched:  # that one was seen when it was given back
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
        return path

    def _new_spare(self) -> str:
        self._made += 1
        return f"{self._folder}/{SPARE}{self._made - 1}"

    def _place(self, task_id: str) -> str:
        path = self.path(task_id)
        self._own.add(task_id)
        spare = self._spare.pop() if self._spare else ""
        self._untouched.pop(spare, None)
        try:
            # Takes the place of an empty folder; one with something in it stays as it is.
            os.rename(spare, path)
            return path
        except FileNotFoundError:
            pass
        except OSError:
            self._spare.append(spare)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        return path

    def close(self, task_id: str, *, done: bool = False) -> str:
        """The attempt is over. An empty folder is of no use to the next one, and none is to one that is done.

        What is to be removed now, if anything: it may be large.
        """
        path = self.path(task_id)
        is_lent = self._lent.pop(task_id, None) is not None
        try:
            return self._close(task_id, path, is_lent, done)
        except FileNotFoundError:  # its task has removed it
            self._own.discard(task_id)
            self._untouched.pop(path, None)
        except OSError:
            pass
        return ""

    def _close(self, task_id: str, path: str, is_lent: bool, done: bool) -> str:
        if is_lent and len(self._spare) < MAX_SPARE and os.lstat(path).st_ctime_ns == self._untouched.get(path):
            self._spare.append(path)
            return ""
        self._untouched.pop(path, None)
        if os.listdir(path):
            if is_lent:
                self._own.add(task_id)
                os.rename(path, self.path(task_id))
            return self._put_aside(task_id) if done else ""
        if len(self._spare) >= MAX_SPARE or not _is_ours(path):
            os.rmdir(path)
            self._own.discard(task_id)
            return ""
        if not is_lent:
            spare = self._new_spare()
            os.rename(path, spare)
            self._own.discard(task_id)
            path = spare
        self._spare.append(path)
        changed_ns = os.lstat(path).st_ctime_ns
        if time.time_ns() - changed_ns > CLOCK_STEP_NS:
            self._untouched[path] = changed_ns
        return ""

    def draft(self, name: str) -> Path:
        """A name for what is no task's checkpoint yet, or any more; of no use to a next start, and closed to tasks."""
        self._made += 1
        os.makedirs(self._drafts, 0o700, exist_ok=True)
        return Path(f"{self._drafts}/{name}.{self._made}")

    def replace(self, task_id: str, folder: Path) -> str:
        """This is the task's folder from now on. What is to be removed, if anything."""
        before = self._put_aside(task_id)
        os.chmod(folder, 0o700)  # as if it had been made here
        self._own.add(task_id)
        os.rename(folder, self.path(task_id))
        return before

    def _put_aside(self, task_id: str) -> str:
        aside = os.fspath(self.draft(task_id))
        try:
            os.rename(self.path(task_id), aside)
        except FileNotFoundError:
            aside = ""
        self._own.discard(task_id)
        return aside


def _is_ours(folder: str) -> bool:
    """One that was given to a user is given to no other: who had it may get there still, and put something in. Nor is
    one that its task has closed, or opened to others."""
    found = os.lstat(folder)
    return (found.st_uid, found.st_mode) == (os.geteuid(), stat.S_IFDIR | 0o700)


def remove(path: str) -> None:
    with contextlib.suppress(OSError):
        prune.remove(Path(path))
