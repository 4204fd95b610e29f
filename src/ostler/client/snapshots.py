"""A folder on its way to the workers: one archive, named by its content, sent only if the hub does not have it."""

import os
import stat
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from ostler import pull
from ostler.client.errors import BadInput
from ostler.client.http import Hub

MIB = 1024 * 1024
WARN_BYTES = 50 * MIB
LIMIT_BYTES = 500 * MIB
LEFT_OUT = (".git", "__pycache__", ".venv", "node_modules")
"""Of a folder that git knows nothing of."""
MOST_NAMED = 10

Progress = Callable[[int, int], None]
"""Called with the bytes that are done, and those that there are."""


class Snapshot(msgspec.Struct):
    """What was packed. `id` is the sha256 of the archive."""

    id: str
    archive_bytes: int
    files: int
    notes: list[str]


class _File(msgspec.Struct):
    path: Path
    size: int


def send(
    hub: Hub,
    folder: str | Path,
    *,
    warn_bytes: int = WARN_BYTES,
    limit_bytes: int = LIMIT_BYTES,
    progress: Progress | None = None,
) -> Snapshot:
    """Pack the folder, and upload it unless the hub has these very files already."""
    with tempfile.TemporaryFile() as archive:
        packed = pack(folder, archive, warn_bytes=warn_bytes, limit_bytes=limit_bytes)
        if not hub.has_blob(packed.id):
            hub.put_file(archive, packed.id, packed.archive_bytes, progress)
    return packed


def send_telling(hub: Hub, folder: str | Path) -> str:
    """The same for a program: the snapshot's id; what there is to remark is a warning."""
    packed = send(hub, folder)
    for remark in packed.notes:
        warnings.warn(remark, stacklevel=3)
    return packed.id


def pack(
    folder: str | Path, archive: BinaryIO, *, warn_bytes: int = WARN_BYTES, limit_bytes: int = LIMIT_BYTES
) -> Snapshot:
    """Write the folder's archive."""
    root = Path(folder)
    if not root.is_dir():
        raise _wrong(f"{folder} is not a folder")
    found = _entries(root)
    files = {name: file for name, file in found.items() if file is not None}
    total = sum(file.size for file in files.values())
    if total > limit_bytes:
        raise _wrong(
            f"{folder} has {_mib(total)}, more than the {_mib(limit_bytes)} of a snapshot; keep data elsewhere, or "
            f"have git ignore it. The largest: {_largest(files)}"
        )
    notes = [f"{folder} has {_mib(total)}; the largest: {_largest(files, 3)}"] if total > warn_bytes else []
    try:
        sha256 = pull.pack_entries({name: file.path if file else None for name, file in found.items()}, archive)
    except pull.Unpackable as error:
        raise _wrong(str(error)) from None
    except OSError as error:
        raise _wrong(f"{error.filename or folder} cannot be read: {error.strerror}") from None
    return Snapshot(id=sha256, archive_bytes=archive.tell(), files=len(files), notes=notes)


def _entries(root: Path) -> dict[str, _File | None]:
    """Files by their name in the archive, and folders as None."""
    found: dict[str, _File | None] = {}
    for path in _listed(root):
        name = path.relative_to(root).as_posix()
        file = _look(path, root)
        if file is not None or path.is_dir():
            found[name] = file
            found.update((parent.as_posix(), None) for parent in Path(name).parents if parent.name)
    return found


def _look(path: Path, root: Path) -> _File | None:
    """None of a folder, and of what is in git's list only."""
    try:
        status = pull.look(path, root)
    except FileNotFoundError:
        return None
    except pull.Unpackable as error:
        raise _wrong(str(error)) from None
    return None if stat.S_ISDIR(status.st_mode) else _File(path=path, size=status.st_size)


def _listed(root: Path) -> Iterator[Path]:
    """What git would take, or where git knows nothing of it, everything but what nobody means."""
    known = _git_files(root)
    if not known:
        yield from _walked(root)
        return
    for name in known:
        path = root / os.fsdecode(name)
        if path.is_dir() and not path.is_symlink():
            yield from _listed(path)  # a repository inside this one
        else:
            yield path


def _git_files(root: Path) -> list[bytes]:
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    try:
        answer = subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []  # no git, or not in a git tree
    return [name for name in answer.stdout.split(b"\0") if name]


def _walked(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        yield from (Path(folder, name) for name in (*folders, *files) if name not in LEFT_OUT)


def _largest(files: dict[str, _File], most: int = MOST_NAMED) -> str:
    named = sorted(files.items(), key=lambda item: -item[1].size)[:most]
    return ", ".join(f"{name} ({_mib(file.size)})" for name, file in named)


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"


def _wrong(what: str) -> BadInput:
    return BadInput(f"snapshot: {what}", [("snapshot", what)])
