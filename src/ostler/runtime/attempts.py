"""Attempts' folders: their names, what is in them, and how they are made without wearing out the disk.

    attempts/<attempt>/log         what it printed, standard output and error
    attempts/<attempt>/work        where it runs
    attempts/<attempt>/out         what it leaves
    attempts/<attempt>/<file>      given with its launch

Standard library only: the supervisor imports this.
"""

import contextlib
import os
import stat

MAX_NAME = 64
MAX_SPARE = 64
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


class Folders:
    """Makes attempts' folders, and gives those that were left empty to the next attempt.

    Making and removing four files for each of thousands of short tasks costs more than running them: some file
    systems search for a free one past all that were removed lately. A task that printed and wrote nothing needs none.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._spare: list[str] = []

    def path(self, attempt: str) -> str:
        return f"{self._root}/{attempt}"

    def make(self, attempt: str) -> bool:
        """Make the attempt's folder, or complete the one that the worker prepared. False if it has run before."""
        folder = self.path(attempt)
        if self._spare:
            spare = self._spare.pop()
            try:
                os.rename(self.path(spare), folder)
                return True
            except FileNotFoundError:
                pass  # it has been pruned
            except OSError:
                self._spare.append(spare)  # a folder is there, and not empty
        for path in (folder, f"{folder}/{WORK}", f"{folder}/{OUT}"):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
        return not os.path.exists(f"{folder}/{LOG}")

    def release(self, attempt: str, started_at: float) -> None:
        """The attempt has been forgotten. Its log stays, unless it printed nothing and left nothing."""
        folder = self.path(attempt)
        try:
            if len(self._spare) < MAX_SPARE and _is_as_new(folder, started_at):
                self._spare.append(attempt)
            else:
                os.utime(folder)  # its age, for whoever prunes, counts from now
        except OSError:
            return


def _is_as_new(folder: str, started_at: float) -> bool:
    """As if it had just been made. The task may have changed anything in it, so nothing is taken for granted."""
    whole, log, work, out = (
        os.lstat(path) for path in (folder, f"{folder}/{LOG}", f"{folder}/{WORK}", f"{folder}/{OUT}")
    )
    if max(whole.st_mtime, log.st_ctime, work.st_ctime, out.st_ctime) < started_at - _CLOCK_STEP_S:
        return True  # nothing was written, added or changed since before the start
    return (
        (log.st_mode, log.st_size, log.st_nlink) == (_PRIVATE_FILE, 0, 1)
        and (whole.st_mode, work.st_mode, out.st_mode) == (_PRIVATE_FOLDER,) * 3
        and set(os.listdir(folder)) == _USUAL
        and not os.listdir(f"{folder}/{WORK}")
        and not os.listdir(f"{folder}/{OUT}")
    )
