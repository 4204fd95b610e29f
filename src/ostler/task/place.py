"""The folder that a call runs in, entered and left by an interpreter that runs one after the other.

    FOLDER/log      what it prints, standard output and error
    FOLDER/work     where it runs
    FOLDER/out      what it leaves

Where several calls share one, each begins only when the one before it has left the folder as if it had never been
there. To see that takes about as long as to enter one; whoever gave the order is spared all that a folder costs.

Standard library only.
"""

import contextlib
import os
import stat
import time
from typing import Any

CLOCK_STEP_NS = 100_000_000
"""A file system's clock may be this much late: what changed after that, and again, may show the same time."""
_LOG_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_USUAL = {"log", "work", "out"}
_PRIVATE_FOLDER = stat.S_IFDIR | 0o700
_PRIVATE_FILE = stat.S_IFREG | 0o600


class Place:
    def __init__(self) -> None:
        self._null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        self._here = b""
        """Where we are, if the next call may have it as it is."""
        self._outer = self._out = -1
        """The folder and what is left in it, held open: to look at them is cheaper so."""
        self._marks: tuple[Any, ...] = ()
        self._would_show = False
        """Whether anything that has happened since would show in the marks."""

    def enter(self, folder: bytes, *, is_shared: bool) -> bool:
        """Whether it is another one than the last."""
        if folder == self._here:
            return False
        log = os.open(folder + b"/log", _LOG_FLAGS, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.chdir(folder + b"/work")
        self._let_go()
        if is_shared:
            self._here = folder
            self._outer, self._out = os.open(folder, _FOLDER_FLAGS), os.open(folder + b"/out", _FOLDER_FLAGS)
            self._remember()
        return True

    def leave(self) -> None:
        """Nobody is in it, and it may become somebody else's."""
        os.chdir("/")
        os.dup2(self._null, 1)
        os.dup2(self._null, 2)
        self._let_go()

    def is_as_it_was(self) -> bool:
        """Whether nothing was printed, left or changed. If so it can be entered again; else it is no place any more."""
        try:
            if self._here and self._is_untouched():
                return True
        except OSError:
            pass  # something of it has been closed or removed
        self._let_go()
        return False

    def _is_untouched(self) -> bool:
        seen = self._look()
        if seen == self._marks and self._would_show:
            return True
        is_whole = seen[:4] == self._marks[:4] and self._is_as_new()
        if is_whole:
            self._remember()
        return is_whole

    def _look(self) -> tuple[Any, ...]:
        """Which files these are and how long the log is, which must never differ; and when they last changed."""
        printed, errors, work = os.fstat(1), os.fstat(2), os.stat(".")
        return (
            (printed.st_dev, printed.st_ino, printed.st_size),
            (errors.st_dev, errors.st_ino),
            (work.st_dev, work.st_ino),
            (printed.st_mode, work.st_mode),
            printed.st_ctime_ns,
            work.st_ctime_ns,
            os.fstat(self._out).st_ctime_ns,
            os.fstat(self._outer).st_ctime_ns,
        )

    def _is_as_new(self) -> bool:
        printed, out, outer = os.fstat(1), os.fstat(self._out), os.fstat(self._outer)
        return (
            os.path.samestat(out, os.lstat(self._here + b"/out"))
            and os.path.samestat(outer, os.lstat(self._here))
            and os.path.samestat(os.stat("."), os.lstat(self._here + b"/work"))
            and os.path.samestat(printed, os.lstat(self._here + b"/log"))
            and (printed.st_mode, printed.st_nlink, printed.st_size) == (_PRIVATE_FILE, 1, 0)
            and (out.st_mode, outer.st_mode, os.stat(".").st_mode) == (_PRIVATE_FOLDER,) * 3
            and set(os.listdir(self._outer)) == _USUAL
            and not os.listdir(".")
            and not os.listdir(self._out)
        )

    def _remember(self) -> None:
        """What an interpreter has printed when it was started, into the log of its first call, is that call's."""
        self._marks = self._look()
        is_silent = self._marks[0][2] == 0
        self._would_show = is_silent and max(self._marks[4:]) < time.time_ns() - CLOCK_STEP_NS

    def _let_go(self) -> None:
        self._here = b""
        for descriptor in (self._outer, self._out):
            if descriptor >= 0:
                with contextlib.suppress(OSError):  # the call has closed it
                    os.close(descriptor)
        self._outer = self._out = -1
