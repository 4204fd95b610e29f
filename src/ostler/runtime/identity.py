"""Under whose name tasks run, where that is not the worker's own, and what the worker does under that name.

Whatever a worker that is root does with files that a task could have put there, it does with the rights of the task's
user: a link to somebody else's file then leads to nothing, whenever it is made. The kernel keeps this apart for each
thread (setfsuid), so the rest of the process is not touched.

Standard library only: the supervisor imports this.
"""

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

_NO_NEW_PRIVS, _DUMPABLE = 38, 4
_UNCHANGED = 0xFFFFFFFF


class Identity(NamedTuple):
    uid: int
    gid: int


def wanted_by(order: dict[str, Any]) -> Identity | None:
    """As whom an order's process is to run."""
    user = order.get("user")
    return Identity(*user) if user else None


def _library() -> ctypes.CDLL | None:
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@functools.cache
def _calls() -> tuple[Callable[[int], int], Callable[[int], int]] | None:
    library = _library()
    if library is None:
        return None
    for call in (library.setfsuid, library.setfsgid):
        call.argtypes, call.restype = [ctypes.c_uint], ctypes.c_int
    return library.setfsuid, library.setfsgid


def can_change() -> bool:
    """Whether this process may run others as somebody else."""
    return sys.platform == "linux" and os.geteuid() == 0


@contextmanager
def acting_as(user: Identity) -> Iterator[None]:
    """Files are opened, made and looked for with this user's rights: by this thread alone, so nothing is awaited, and
    no thread begun, which would be that user's for good."""
    calls = _calls()
    if calls is None:
        raise OSError("this system has no user for files of its own to a thread")
    set_uid, set_gid = calls
    gid = set_gid(user.gid)
    uid = set_uid(user.uid)
    try:
        # The calls tell nothing of a failure; a second one tells who it is now.
        if (set_gid(_UNCHANGED), set_uid(_UNCHANGED)) != user[::-1]:
            raise PermissionError(f"cannot act as the user {user.uid}:{user.gid}")
        yield
    finally:
        set_uid(uid)
        set_gid(gid)


def as_owner(folder: str | os.PathLike[str]) -> AbstractContextManager[None]:
    """With the rights of whom this folder belongs to. It lies where nobody but us can put another in its place."""
    if not can_change():
        return nullcontext()
    try:
        found = os.lstat(folder)
    except OSError:
        return nullcontext()  # there is nothing to be led astray by
    return nullcontext() if found.st_uid == 0 else acting_as(Identity(found.st_uid, found.st_gid))


def give(path: str, user: Identity) -> None:
    """This, and all below it, to a user who could not reach any of it until now."""
    os.chown(path, *user, follow_symlinks=False)
    if os.path.islink(path) or not os.path.isdir(path):
        return
    for folder, names, files in os.walk(path):
        for name in (*names, *files):
            os.chown(os.path.join(folder, name), *user, follow_symlinks=False)


def keep_to_itself() -> None:
    """What this process has in its memory and its environment is shown to no other one of the same user."""
    if (library := _library()) is not None:
        library.prctl(_DUMPABLE, 0, 0, 0, 0)


def give_up_more() -> None:
    """No program that is started from here on gets more rights than it was started with (setuid, capabilities)."""
    if (library := _library()) is not None and library.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        print("this kernel cannot keep tasks from gaining rights (PR_SET_NO_NEW_PRIVS)", file=sys.stderr, flush=True)
