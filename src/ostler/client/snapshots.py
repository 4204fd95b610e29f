"""A folder on its way to the workers: one archive, named by its content, sent only if the hub does not have it.

The archive is the same for the same files, whoever packs them and when: sorted, without times and owners, and of the
modes only whether a file may be executed.
"""

import hashlib
import os
import stat
import subprocess
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

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
    executable: bool


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
    out = _Hashing(archive)
    with tarfile.open(fileobj=cast(BinaryIO, out), mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(found):
            _add(tar, name, found[name])
    return Snapshot(id=out.digest.hexdigest(), archive_bytes=out.written, files=len(files), notes=notes)


class _Hashing:
    """A file that is hashed while it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self.digest = hashlib.sha256()
        self.written = 0
        self._file = file

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.written += len(data)
        return self._file.write(data)


def _add(tar: tarfile.TarFile, name: str, file: _File | None) -> None:
    entry = tarfile.TarInfo(name)
    entry.mode = 0o755 if file is None or file.executable else 0o644
    if file is None:
        entry.type = tarfile.DIRTYPE
        tar.addfile(entry)
        return
    entry.size = file.size
    try:
        with file.path.open("rb") as content:
            tar.addfile(entry, content)
            if content.read(1):
                raise OSError("it has grown")
    except OSError as error:
        what = f"cannot be read: {error.strerror}" if error.strerror else "changed while it was being packed"
        raise _wrong(f"{file.path} {what}") from None


def _entries(root: Path) -> dict[str, _File | None]:
    """Files by their name in the archive, and folders as None."""
    found: dict[str, _File | None] = {}
    for path in _listed(root):
        name = path.relative_to(root).as_posix()
        try:
            name.encode()
        except UnicodeEncodeError:
            raise _wrong(f"{os.fsencode(path)!r}: its name is not UTF-8") from None
        file = _look(path, root)
        if file is not None or path.is_dir():
            found[name] = file
            found.update((parent.as_posix(), None) for parent in Path(name).parents if parent.name)
    return found


def _look(path: Path, root: Path) -> _File | None:
    """None of a folder, and of what is in git's list only. A link counts as the file of this folder that it names."""
    try:
        if path.is_symlink():
            _must_stay_inside(path, root)
        status = path.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        return None
    if not stat.S_ISREG(status.st_mode):
        raise _wrong(f"{path} is neither a file nor a folder")
    return _File(path=path, size=status.st_size, executable=bool(status.st_mode & stat.S_IXUSR))


def _must_stay_inside(link: Path, root: Path) -> None:
    target = link.resolve()
    if not target.is_file() or not target.is_relative_to(root.resolve()):
        raise _wrong(
            f"{link} is a link to {os.readlink(link)}, which is no file of this folder; leave it out, or copy it"
        )


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
