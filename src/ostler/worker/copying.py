"""A folder's content, once more: by sharing blocks where the file system can, byte by byte where it cannot."""

import contextlib
import errno
import fcntl
import os
import shutil
import sys
import threading

from ostler.archive.unpack import Stopped

_FICLONE = 0x40049409
_CANNOT = {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM}


def copy_tree(source: str, target: str, stop: threading.Event) -> None:
    """Regular files and folders only. `target` is made if it is not there.

    Never by hard links: a task may write to its files, and they would be everybody's.
    """
    clones = sys.platform == "linux"
    with contextlib.suppress(FileExistsError):
        os.mkdir(target, 0o700)
    waiting = [(source, target)]
    while waiting:
        of, to = waiting.pop()
        with os.scandir(of) as found:
            for entry in found:
                if stop.is_set():
                    raise Stopped
                copy = f"{to}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    os.mkdir(copy, 0o755)
                    waiting.append((entry.path, copy))
                elif not (clones := clones and _clone(entry.path, copy)):
                    shutil.copyfile(entry.path, copy)
                    os.chmod(copy, entry.stat(follow_symlinks=False).st_mode & 0o777)


def _clone(source: str, target: str) -> bool:
    """False, and nothing there, if this file system shares no blocks; then it is not asked again."""
    of = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        to = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            fcntl.ioctl(to, _FICLONE, of)
            os.fchmod(to, os.fstat(of).st_mode & 0o777)
        except OSError as error:
            os.unlink(target)
            if error.errno not in _CANNOT:
                raise
            return False
        finally:
            os.close(to)
    finally:
        os.close(of)
    return True
