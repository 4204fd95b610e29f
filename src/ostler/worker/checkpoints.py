"""A folder per task that is kept across its attempts, for as long as there is something in it and the task not done."""

import contextlib
import hashlib
import os
import shutil
from pathlib import Path

import msgspec

from ostler.worker.outputs import is_empty

SPARE, DRAFT = ".spare-", ".draft-"
MAX_SPARE = 64


class Look(msgspec.Struct, frozen=True):
    """What is in a folder: two looks with the same mark have seen the same files."""

    mark: str
    size: int
    entries: int
    depth: int


def look_at(folder: str) -> Look:
    """By names, sizes and times: what is written between two looks shows, unless somebody takes pains to hide it."""
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
    empty one is not removed but renamed, for the next task.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = os.fspath(folder)
        os.makedirs(self._folder, 0o700, exist_ok=True)
        self._spare: list[str] = []
        self._made = 0
        for entry in os.scandir(self._folder):
            if entry.name.startswith(SPARE):
                self._spare.append(entry.path)
            elif entry.name.startswith(DRAFT):
                remove(entry.path)

    def path(self, task_id: str) -> str:
        return f"{self._folder}/{task_id}"

    def is_empty(self, task_id: str) -> bool:
        return is_empty(self.path(task_id))

    def open(self, task_id: str) -> str:
        """The task's folder, with what its earlier attempts have left there."""
        path = self.path(task_id)
        spare = self._spare.pop() if self._spare else ""
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
        with contextlib.suppress(OSError):
            if os.listdir(path):
                return self._put_aside(task_id) if done else ""
            if len(self._spare) == MAX_SPARE:
                os.rmdir(path)
                return ""
            spare = f"{self._folder}/{SPARE}{self._made}"
            self._made += 1
            # Of an earlier start there may be one of this name: this one takes its place.
            os.rename(path, spare)
            if spare not in self._spare:
                self._spare.append(spare)
        return ""

    def draft(self, name: str) -> Path:
        """A name for what is not a task's checkpoint yet, or any more; of no use to a next start."""
        self._made += 1
        return Path(f"{self._folder}/{DRAFT}{name}.{self._made}")

    def replace(self, task_id: str, folder: Path) -> str:
        """This is the task's folder from now on. What is to be removed, if anything."""
        before = self._put_aside(task_id)
        os.rename(folder, self.path(task_id))
        return before

    def _put_aside(self, task_id: str) -> str:
        aside = os.fspath(self.draft(task_id))
        try:
            os.rename(self.path(task_id), aside)
        except FileNotFoundError:
            return ""
        return aside


def remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)
