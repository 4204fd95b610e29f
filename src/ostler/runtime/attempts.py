"""Attempts' folders: their names, what is in them, and how they are made without wearing out the disk.

    attempts/<attempt>/log         what it printed, standard output and error
    attempts/<attempt>/work        where it runs
    attempts/<attempt>/out         what it leaves
    attempts/<attempt>/<file>      given with its launch
    attempts/.room-<mark>-<n>      the same of one that is short, and of which nothing is left

Standard library only: the supervisor imports this.
"""

import contextlib
import errno
import itertools
import os
import stat
import time
import zlib
from collections.abc import Iterable
from io import BufferedReader

from ostler.runtime.identity import Identity

MAX_NAME = 64
MAX_SPARE = 512
LOG, WORK, OUT = "log", "work", "out"
_CLOCK_STEP_S = 0.1  # a file system's clock may be this much late
REMOVED = ".removed-"
"""How the names of folders begin that are nobody's, and are to go."""
_ROOM = ".room-"
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

    Nor does a short one need a name: to rename a folder for each waits for the disk, and whoever commits next waits for
    the renames. It runs in a room, which is a spare folder under a name of its own. When it turns out not to be short,
    its own name leads there, too, and at its end the room becomes its folder if it has left something there. Calls of
    one interpreter, one after the other, have one room for as long as none of them leaves anything there.
    """

    def __init__(self, root: str, owner: str = "") -> None:
        """`owner`: by what its rooms are told from those of another who makes folders in the same place."""
        self._root = root
        self._mark = f"{_ROOM}{zlib.crc32(owner.encode(errors='surrogateescape')):08x}-"
        self._names = (f"{self._mark}{time.time_ns():x}-{number}" for number in itertools.count(1))
        """What a journal says of a room of long ago is not to be taken for one of now."""
        self._rooms: dict[str, str] = {}
        self._tenants: dict[str, set[str]] = {}
        """The same the other way round. Of several, one after the other is in it, and leaves it as it was."""
        self._whose: dict[str, str] = {}
        """Whose turn it is in each."""
        self._made: set[str] = set()
        """Those of them that are there."""
        self._used: set[str] = set()
        """Those of them in which somebody has been of whom it is only said that he left nothing."""
        self._shown: set[str] = set()
        """Those of them to whose rooms their own names lead."""
        self._links: dict[str, str] = {}
        """Rooms that have become the attempts' own: until these are released, the old name leads to the new one."""
        self._free: dict[Identity, list[str]] = {}
        """Rooms that nobody has, by whom they belong to."""
        self._spare: dict[Identity, list[str]] = {}
        """Folders that attempts have left as they were, by whom they belong to."""
        self._prepared = ""
        """Who has a folder that was made beforehand, and may never be made use of."""
        self._own = Identity(os.geteuid(), os.getegid())
        self._owners: dict[str, Identity] = {}
        """Whose the folders are that were made here and are not released yet."""

    def path(self, attempt: str) -> str:
        return f"{self._root}/{self._rooms.get(attempt) or attempt}"

    # Rooms

    def reserve(self, attempt: str, user: Identity | None = None) -> str:
        """The name of the room that `make` makes for it, or completes: it is written down in between."""
        owner = self._owners[attempt] = user or self._own
        free = self._free.get(owner)
        room = free.pop() if free else next(self._names)
        self._move_in(attempt, room)
        self._whose[room] = attempt
        return room

    def share(self, attempt: str, host: str) -> str:
        """The name of the room that it has together with this one, and whoever else is in there before it."""
        room = self._rooms[host]
        self._owners[attempt] = self._owners[host]
        self._move_in(attempt, room)
        return room

    def is_shared(self, attempt: str) -> bool:
        return len(self._tenants.get(self._rooms.get(attempt, ""), ())) > 1

    def enter(self, attempt: str) -> None:
        """Its turn has come, in a room that others had before it."""
        if (room := self._rooms.get(attempt)) is not None:
            self._whose[room] = attempt

    def vacate(self, attempt: str) -> bool:
        """It is over, and is said to have left nothing. Whether it is out: whoever has its room for himself stays until
        somebody has looked."""
        if not self.is_shared(attempt):
            return False
        self._used.add(self._rooms[attempt])
        self._move_out(attempt)
        self._owners.pop(attempt)
        return True

    def has_room(self, attempt: str) -> bool:
        return attempt in self._rooms

    def is_unseen(self, attempt: str) -> bool:
        """In a room to which its name has never led: nobody who looks for it has anything there open."""
        return attempt in self._rooms and attempt not in self._shown

    def whose(self, folder: str) -> str:
        """The attempt that has the folder of this name."""
        return self._whose.get(folder, folder)

    def leave(self, attempt: str) -> None:
        """It has not begun, and its room is as it was."""
        if self.has_room(attempt):
            was_used = self._rooms[attempt] in self._used
            room, owner = self._move_out(attempt), self._owners.pop(attempt)
            if room is None:
                return
            if was_used and not self.is_as_new(room, 0.0):
                self._put_aside([room])
            else:
                self._free.setdefault(owner, []).append(room)

    def show(self, attempt: str) -> None:
        """It is not so short: whoever looks for it by its name finds it."""
        room = self._rooms.get(attempt)
        if room is not None and attempt not in self._shown:
            os.symlink(room, f"{self._root}/{attempt}")
            self._shown.add(attempt)
            if (owner := self._owners[attempt]) != self._own:  # who looks does so with the rights of the name's owner
                os.chown(f"{self._root}/{attempt}", *owner, follow_symlinks=False)

    def name(self, attempt: str) -> None:
        """It is over, and its room is its own folder from now on. What it has left may name the room."""
        room = self._rooms.get(attempt)
        if room is not None:
            self._hide(attempt)
            self._rename(room, attempt)
            for other in list(self._tenants[room]):
                self._move_out(other)  # none of them is in there any more, and there is no more such room
            self._links[attempt] = room
            os.symlink(attempt, f"{self._root}/{room}")

    def recover(self, rooms: dict[str, str]) -> None:
        """What somebody before us has left: these have been in these rooms, and get them. All other rooms go."""
        for entry in list(os.scandir(self._root)):
            with contextlib.suppress(OSError):  # another may be about its own at the same time
                if entry.is_symlink() and (self._is_room(entry.name) or self._is_room(os.readlink(entry.path))):
                    os.unlink(entry.path)
        for attempt, room in rooms.items():
            if os.path.lexists(f"{self._root}/{room}"):
                with contextlib.suppress(OSError):
                    self._rename(room, attempt)
        self._put_aside(filter(self._is_room, os.listdir(self._root)))

    def close(self) -> None:
        """Nobody needs rooms any more."""
        self._put_aside(room for free in self._free.values() for room in free)
        self._free.clear()

    def _is_room(self, name: str) -> bool:
        """One of ours, whether it still is or was long ago."""
        return name.startswith(self._mark)

    def _move_in(self, attempt: str, room: str) -> None:
        self._rooms[attempt] = room
        self._tenants.setdefault(room, set()).add(attempt)

    def _move_out(self, attempt: str) -> str | None:
        """Its room, if that is nobody's now."""
        self._hide(attempt)
        room = self._rooms.pop(attempt, None)
        if room is None:
            return None
        tenants = self._tenants[room]
        tenants.discard(attempt)
        if tenants:
            return None
        del self._tenants[room]
        self._made.discard(room)
        self._used.discard(room)
        self._whose.pop(room, None)
        return room

    def _hide(self, attempt: str) -> None:
        if attempt in self._shown:
            self._shown.discard(attempt)
            with contextlib.suppress(OSError):
                os.unlink(f"{self._root}/{attempt}")

    def _rename(self, room: str, attempt: str) -> None:
        try:
            os.rename(f"{self._root}/{room}", f"{self._root}/{attempt}")
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            self._put_aside([attempt])  # it has run before, which nobody knew any more: what is newer counts
            os.rename(f"{self._root}/{room}", f"{self._root}/{attempt}")

    def _put_aside(self, names: Iterable[str]) -> None:
        """Whoever prunes removes them: that may take long."""
        for name in names:
            with contextlib.suppress(OSError):
                os.rename(f"{self._root}/{name}", f"{self._root}/{REMOVED}{next(self._names)[1:]}")

    # All of them

    def can_prepare(self, attempt: str, user: Identity | None = None) -> bool:
        return bool(self._spare.get(user or self._own)) and not os.path.lexists(self.path(attempt))

    def prepare(self, attempt: str, user: Identity | None = None) -> None:
        """Have its folder there, though it may never be made use of. It is written down before: whoever finds such a
        folder, and nothing said about it, takes it for that of one that has run."""
        owner = user or self._own
        if self._take_spare(self.path(attempt), owner):
            self._prepared, self._owners[attempt] = attempt, owner
            _restore(self.path(attempt), user)

    def give_up(self, prepared: str) -> None:
        self._prepared = ""
        self._owners.pop(prepared, None)
        self._put_aside([prepared])

    def make(self, attempt: str, user: Identity | None = None) -> bool:
        """Make the attempt's folder, or complete the one that the worker prepared. False if it has run before: of one
        in a room only the journal knows."""
        if self._is_prepared(attempt, user):
            self._prepared = ""
            _restore(self.path(attempt), user)
            return True
        if attempt not in self._rooms:
            return self._make(self.path(attempt), attempt, user)
        room = self._rooms[attempt]
        if room not in self._made and not os.access(f"{self._root}/{room}/{WORK}", os.F_OK):
            try:
                self._make(f"{self._root}/{room}", attempt, user)
            except OSError:
                another = next(self._names)  # nobody is to take half a room for a whole one
                for tenant in list(self._tenants[room]):
                    self._move_out(tenant)
                    self._move_in(tenant, another)
                self._whose[another] = attempt
                raise
        self._made.add(room)
        return True

    def _is_prepared(self, attempt: str, user: Identity | None) -> bool:
        is_the_one = attempt == self._prepared and attempt not in self._rooms
        return is_the_one and self._owners.get(attempt) == (user or self._own)

    def _make(self, folder: str, attempt: str, user: Identity | None) -> bool:
        owner = self._owners[attempt] = user or self._own
        if self._take_spare(folder, owner):
            _restore(folder, user)
            return True
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        _complete(folder)
        if attempt not in self._rooms and os.path.lexists(f"{folder}/{LOG}"):
            return False
        if user is not None:
            _give(folder, user)
        return True

    def _take_spare(self, folder: str, owner: Identity) -> bool:
        """Under this name, unless there is none, or a folder is there that is not empty."""
        spares = self._spare.get(owner)
        if not spares:
            return False
        spare = spares.pop()
        try:
            os.rename(f"{self._root}/{spare}", folder)
        except FileNotFoundError:
            return False  # it has been pruned
        except OSError:
            spares.append(spare)
            return False
        return True

    def is_as_new(self, attempt: str, started_at: float) -> bool:
        """Whether one that is over has printed nothing and left nothing."""
        try:
            return _is_as_new(self.path(attempt), started_at)
        except OSError:
            return False

    def release(self, attempt: str, *, as_new: bool) -> None:
        """It has been forgotten, or left nothing in a room where nobody has seen it. Its log stays, unless it printed
        nothing and left nothing."""
        owner, room = self._owners.pop(attempt, None), self._rooms.get(attempt)
        if owner is None and as_new:
            return  # it has been out of its room since it ended
        if self.is_shared(attempt):
            self._move_out(attempt)
            return
        if (link := self._links.pop(attempt, None)) is not None:
            with contextlib.suppress(OSError):
                os.unlink(f"{self._root}/{link}")
        left = self._spare if room is None else self._free
        spares = left.setdefault(owner, []) if owner is not None else []
        if owner is not None and as_new and len(spares) < MAX_SPARE:
            spares.append(room or attempt)
        else:
            with contextlib.suppress(OSError):
                if room is not None:
                    self._hide(attempt)
                    self._rename(room, attempt)
                os.utime(f"{self._root}/{attempt}")  # its age, for whoever prunes, counts from now
        self._move_out(attempt)


def _restore(folder: str, user: Identity | None) -> None:
    """What whoever prunes has taken of a spare folder. That one removes `work` first: if it is there, all is."""
    if not os.path.lexists(f"{folder}/{WORK}"):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        if _complete(folder) and user is not None:
            _give(folder, user)


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
