"""Files out of an archive: tar, plain or in zstd, regular files and folders, and nothing that leads elsewhere.

Our own reader, not the standard library's: an archive is refused whole at the first thing that is not as it should be,
nothing in it can make the reader follow a link, and no header makes it allocate what the header claims.
"""

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol

import msgspec

from ostler.archive.errors import BadArchive, Stopped
from ostler.archive.zstd import MAGIC, ZstdReader

__all__ = ["BadArchive", "Bytes", "Entry", "Limits", "Stopped", "entries", "opened", "unpack"]

BLOCK = 512
PIECE = 1024 * 1024
MAX_EXTENDED_BYTES = 64 * 1024
MAX_IDLE = 32
"""Headers one behind the other of which nothing comes: an archive of these alone would be read for hours."""
AROUND_BYTES = 1024**3
"""Headers and padding, on top of what the files themselves may have."""
REGULAR, FOLDER, PAX, LONG_NAME = b"0", b"5", b"x", b"L"
KINDS = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a FIFO",
    b"7": "a contiguous file",
    b"S": "a sparse file",
    b"K": "a link with a long name",
    b"g": "a header for all that follows",
}


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    entries: int = 100_000
    total_bytes: int = 20 * 1024**3
    depth: int = 64


class Entry(msgspec.Struct, kw_only=True):
    parts: list[str]
    is_folder: bool
    is_executable: bool
    size: int


class Bytes(Protocol):
    def read(self, size: int, /) -> bytes: ...


def unpack(archive: Path, target: Path, limits: Limits, stop: threading.Event) -> int:
    """Into `target`, which is made; or BadArchive, and there is no `target`. How many bytes the files have."""
    try:
        target.mkdir(mode=0o755)
        with archive.open("rb") as file:
            return _unpack(opened(file, limits.total_bytes + AROUND_BYTES), os.fspath(target), limits, stop)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def opened(file: IO[bytes], most: int) -> Bytes:
    """The tar in this file, from its beginning: where it is compressed, at most so many bytes of it."""
    magic = file.read(len(MAGIC))
    file.seek(0)
    return ZstdReader(file, most) if magic == MAGIC else file


def _unpack(file: Bytes, target: str, limits: Limits, stop: threading.Event) -> int:
    total = 0
    folders = {target}
    for count, entry in enumerate(entries(file), 1):
        name = "/".join(entry.parts)
        total += entry.size
        _need(count <= limits.entries, f"it has more than {limits.entries} entries")
        _need(total <= limits.total_bytes, f"its files have more than {limits.total_bytes} bytes")
        _need(len(entry.parts) <= limits.depth, f"{name[:80]!r} is more than {limits.depth} folders deep")
        if stop.is_set():
            raise Stopped
        inner = entry.parts if entry.is_folder else entry.parts[:-1]
        try:
            folder = _make_folders(target, inner, folders)
            _need(len(folders) <= limits.entries, f"it has more than {limits.entries} folders")
            if not entry.is_folder:
                _write(file, f"{folder}/{entry.parts[-1]}", entry)
        except (FileExistsError, NotADirectoryError):
            raise BadArchive(f"{name[:200]!r} is in it twice") from None
        except ValueError as error:
            raise BadArchive(f"{name[:200]!r}: {error}") from None
    return total


def _make_folders(target: str, parts: list[str], made: set[str]) -> str:
    """`made` are those that this archive has made: there is nothing else that could be one."""
    path = target
    for part in parts:
        path = f"{path}/{part}"
        if path not in made:
            os.mkdir(path, 0o755)
            made.add(path)
    return path


def _write(file: Bytes, path: str, entry: Entry) -> None:
    left = entry.size
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "wb") as out:
        while left:
            piece = file.read(min(left, PIECE))
            _need(bool(piece), "it is cut short")
            out.write(piece)
            left -= len(piece)
        os.fchmod(out.fileno(), 0o755 if entry.is_executable else 0o644)
    _skip_padding(file, entry.size)


def entries(file: Bytes) -> Iterator[Entry]:
    """One after the other. Of each, the caller reads exactly the content and its padding before asking for the next."""
    long_name, long_size, idle = "", -1, 0
    while True:
        idle += 1
        _need(idle <= MAX_IDLE, "it has headers and nothing behind them")
        header = file.read(BLOCK)
        _need(len(header) == BLOCK, "it is cut short")
        if not header.strip(b"\0"):
            _need(not long_name and long_size < 0, "it is cut short")
            return
        _need(header[257:262] == b"ustar" and _checksum_is_right(header), "it is not a plain tar archive")
        kind = header[156:157].replace(b"\0", REGULAR)
        size = _number(header[124:136])
        if kind in (PAX, LONG_NAME):
            data = _extended(file, size)
            name, more = (_text(data.rstrip(b"\0")), -1) if kind == LONG_NAME else _pax(data)
            long_name, long_size = name or long_name, more if more >= 0 else long_size
            continue
        name, size = long_name or _short_name(header), long_size if long_size >= 0 else size
        long_name, long_size = "", -1
        what = KINDS.get(kind, f"of a kind {kind!r} that no archive here has")
        _need(kind in (REGULAR, FOLDER), f"{name[:200]!r} is {what}")
        _need(kind == REGULAR or not size, f"{name[:200]!r} is a folder with content")
        parts = _parts(name, is_folder=kind == FOLDER)
        if parts:
            idle = 0
            mode = _number(header[100:108])
            yield Entry(parts=parts, is_folder=kind == FOLDER, is_executable=bool(mode & 0o111), size=size)


def _parts(name: str, *, is_folder: bool) -> list[str]:
    """Of a path below the target; none for the target itself."""
    shown = repr(name[:200])
    _need("\0" not in name, f"{shown} has a NUL character")
    _need(not name.startswith("/"), f"{shown} is an absolute path")
    parts = [part for part in (name[:-1] if is_folder and name.endswith("/") else name).split("/") if part != "."]
    _need(".." not in parts, f"{shown} leads out of the archive")
    _need("" not in parts and (is_folder or bool(parts)), f"{shown} is not a name")
    _need(all(len(part.encode()) <= 255 for part in parts) and len(name.encode()) <= 3000, f"{shown} is too long")
    return parts


def _pax(data: bytes) -> tuple[str, int]:
    """Path and size, where it tells them. Times and owners are of no interest here."""
    name, size = "", -1
    while data:
        length, _, _ = data.partition(b" ")
        _need(length.isdigit() and len(length) < 7 and int(length) <= len(data), "it has a broken header")
        record, data = data[len(length) + 1 : int(length)], data[max(1, int(length)) :]
        key, _, value = record.removesuffix(b"\n").partition(b"=")
        _need(not key.startswith(b"GNU.sparse"), "it has a sparse file")
        if key == b"path":
            name = _text(value)
        elif key == b"size":
            _need(value.isdigit() and len(value) < 20, "it has a broken header")
            size = int(value)
    return name, size


def _extended(file: Bytes, size: int) -> bytes:
    _need(size <= MAX_EXTENDED_BYTES, "it has a header of more than 64 KiB")
    data = file.read(size)
    _need(len(data) == size, "it is cut short")
    _skip_padding(file, size)
    return data


def _skip_padding(file: Bytes, size: int) -> None:
    padding = -size % BLOCK
    _need(len(file.read(padding)) == padding, "it is cut short")


def _short_name(header: bytes) -> str:
    name, prefix = header[:100].partition(b"\0")[0], header[345:500].partition(b"\0")[0]
    # GNU's own variant keeps times where the others keep the beginning of a long name.
    is_posix = header[257:263] == b"ustar\0"
    return _text(prefix + b"/" + name if prefix and is_posix else name)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadArchive(f"{data[:200]!r} is not a name in UTF-8") from None


def _number(field: bytes) -> int:
    """Octal digits, or a marked binary number for what does not fit into them."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    _need(all(digit in b"01234567" for digit in digits), "it has a broken header")
    return int(digits or b"0", 8)


def _checksum_is_right(header: bytes) -> bool:
    return _number(header[148:156]) == sum(header[:148]) + 8 * ord(" ") + sum(header[156:])


def _need(ok: bool, text: str) -> None:
    if not ok:
        raise BadArchive(text)
