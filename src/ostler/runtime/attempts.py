"""Attempts' folders: their names, what is in them, and how they are made without wearing out the disk.

    attempts/<attempt>/log         what it printed, standard output and error
    attempts/<attempt>/work        where it runs
    attempts/<attempt>/out         what it leaves
    attempts/<attempt>/<file>      given with its launch

Standard library only: the supervisor imports this.
"""

import contextlib
import errno
import os
import stat
from io import BufferedReader

from ostler.runtime.identity import Identity

MAX_NAME = 64
MAX_SPARE = 512
LOG, WORK, OUT = "log", "work", "out"
_CLOCK_STEP_S = 0.1  # a file system's clock may be this much late
_USUAL = {LOG, WORK, OUT}
_PRIVATE_FOLDER = stat.S_IFDIR | 0o700
_PRIVATE_FILE = stat.S_IFREG | 0o600


def is_attempt_name(name: object) -> bool:
    """Attempt ids come from the network and become folder names: letters, digits, `_` and `-`, at most 64."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isascii():
        return False
    return name.replace("_", "a").replace("-", "a").isalnum()


def is_file_name(name: str) -> bool:
    """A file given with a launch: a plain name, and none that is taken."""
    return name not in _USUAL and name not in ("", ".", "..") and "/" not in name and "\0" not in name


def open_plain(path: str | os.PathLike[str], more: int = 0) -> BufferedReader:
    """For reading, where a task could have put anything: a pipe is not waited for. OSError if it is no plain file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | more)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a plain file", os.fspath(path))
    return open(descriptor, "rb")


class Folders:
    """Makes attempts' folders, and gives those that were left empty to the next attempt.

    Making and removing four files for each of thousands of short tasks costs more than running them: some file
    systems search for a free one past all that were removed lately. A task that printed and wrote nothing needs none.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._spare: dict[Identity, list[str]] = {}
        """By whom they belong to."""
        self._own = Identity(os.geteuid(), os.getegid())
        self._owners: dict[str, Identity] = {}
        """Whose the folders are that were made here and are not released yet."""

    def path(self, attempt: str) -> str:
        return f"{self._root}/{attempt}"

    def make(self, attempt: str, user: Identity | None = None) -> bool:
        """Make the attempt's folder, or complete the one that the worker prepared. False if it has run before."""
        folder = self.path(attempt)
        owner = self._owners[attempt] = user or self._own
        if spares := self._spare.get(owner):
            spare = spares.pop()
            try:
                os.rename(self.path(spare), folder)
            except FileNotFoundError:
                pass  # it has been pruned
            except OSError:
                spares.append(spare)  # a folder is there, and not empty
            else:
                # Whoever prunes removes this one first: if it is there, all is.
                if not os.path.lexists(f"{folder}/{WORK}") and _complete(folder) and user is not None:
                    _give(folder, user)
                return True
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        _complete(folder)
        if os.path.lexists(f"{folder}/{LOG}"):
            return False
        if user is not None:
            _give(folder, user)
        return True

    def is_as_new(self, attempt: str, started_at: float) -> bool:
        """Whether one that is over has printed nothing and left nothing."""
        try:
            return _is_as_new(self.path(attempt), started_at)
        except OSError:
            return False

    def release(self, attempt: str, *, as_new: bool) -> None:
        """The attempt has been forgotten. Its log stays, unless it printed nothing and left nothing."""
        owner = self._owners.pop(attempt, None)
        spares = self._spare.setdefault(owner, []) if owner is not None else []
        if owner is not None and as_new and len(spares) < MAX_SPARE:
            spares.append(attempt)
        else:
            with contextlib.suppress(OSError):
                os.utime(self.path(attempt))  # its age, for whoever prunes, counts from now


def _complete(folder: str) -> bool:
    """Whether anything was lacking: of one that has been used only the log is left by whoever prunes."""
    lacked = False
    for path in (f"{folder}/{WORK}", f"{folder}/{OUT}"):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
            lacked = True
    return lacked


def _give(folder: str, user: Identity) -> None:
    # The folder last: until then nobody else can reach what is in it.
    for path in (*(entry.path for entry in os.scandir(folder)), folder):
        os.chown(path, *user, follow_symlinks=False)


def _is_as_new(folder: str, started_at: float) -> bool:
    """As if it had just been made. The task may have changed anything in it, so nothing is taken for granted."""
    log, work, out = os.lstat(f"{folder}/{LOG}"), os.lstat(f"{folder}/{WORK}"), os.lstat(f"{folder}/{OUT}")
    whole, since = os.lstat(folder), started_at - _CLOCK_STEP_S
    if log.st_ctime < since and work.st_ctime < since and out.st_ctime < since and whole.st_mtime < since:
        return True  # nothing was written, added or changed since before the start
    return (
        (log.st_mode, log.st_size, log.st_nlink) == (_PRIVATE_FILE, 0, 1)
        and (whole.st_mode, work.st_mode, out.st_mode) == (_PRIVATE_FOLDER,) * 3
        and set(os.listdir(folder)) == _USUAL
        and not os.listdir(f"{folder}/{WORK}")
        and not os.listdir(f"{folder}/{OUT}")
    )
