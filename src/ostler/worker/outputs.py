"""What a task leaves, as one archive: all of its $OSTLER_OUT, and the paths that its spec names as outputs."""

import os
import posixpath
import stat
import threading
from collections.abc import Sequence
from pathlib import Path

from ostler.pull import Unpackable, look, pack_entries
from ostler.runtime.attempts import OUT, WORK
from ostler.runtime.identity import as_owner
from ostler.worker.stoppable import write_to

Entries = dict[str, Path | None]
"""Files by their names in the archive; None is a folder."""


def is_empty(folder: str) -> bool:
    """Also if it is not there at all. One that cannot be read has something to complain about."""
    try:
        return not os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def pack_outputs(attempt: Path, outputs: Sequence[str], target: Path, stop: threading.Event) -> str:
    """The sha256 of the archive; "" and no archive if there is nothing. Unpackable says what cannot be packed."""
    with as_owner(attempt):
        return _pack(attempt, outputs, target, stop)


def _pack(attempt: Path, outputs: Sequence[str], target: Path, stop: threading.Event) -> str:
    entries: Entries = {}
    for output in outputs:
        entries |= _named(attempt / WORK, output)
    written = _inside(attempt / OUT, attempt / OUT)
    for name, path in written.items():
        if _clash(entries, name, path):
            raise Unpackable(f"{name!r} is both in $OSTLER_OUT and among the spec's outputs; leave out one of them")
    entries |= written
    return write_to(target, lambda file: pack_entries(entries, file), stop) if entries else ""


def _named(work: Path, path: str) -> Entries:
    """An output of the spec, with the folders on the way to it."""
    name = posixpath.normpath(path)
    place = work / name
    if not place.exists():
        raise Unpackable(f"the output {path!r} is missing: the task has not written it in its working directory")
    if not place.resolve().is_relative_to(work.resolve()):
        raise Unpackable(f"the output {path!r} leads out of the task's working directory")
    if not stat.S_ISDIR(look(place, work).st_mode):
        return {**_way_to(name), name: place}
    below = {posixpath.normpath(f"{name}/{inner}"): one for inner, one in _inside(place, work).items()}
    return {**_way_to(name), **({} if name == "." else {name: None}), **below}


def _way_to(name: str) -> Entries:
    parts = name.split("/")[:-1]
    return {"/".join(parts[:count]): None for count in range(1, len(parts) + 1)}


def _inside(folder: Path, root: Path) -> Entries:
    """All that is in a folder; links may lead to files of the root."""
    found: Entries = {}
    waiting = [folder] if folder.is_dir() else []
    while waiting:
        for path in waiting.pop().iterdir():
            is_folder = stat.S_ISDIR(look(path, root).st_mode)
            found[path.relative_to(folder).as_posix()] = None if is_folder else path
            waiting += [path] if is_folder else []
    return found


def _clash(entries: Entries, name: str, path: Path | None) -> bool:
    """Folders may be on both sides; a file stands alone."""
    if name in entries:
        return path is not None or entries[name] is not None
    return any(entries.get(above) is not None for above in _way_to(name))
