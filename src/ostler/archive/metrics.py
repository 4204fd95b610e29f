"""What a bundle tells about itself: the numbers in its metrics.jsonl, read where they are."""

import io
import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import IO

from ostler.archive.errors import BadArchive
from ostler.archive.unpack import BLOCK, PIECE, Bytes, entries, opened

FILE = ["metrics.jsonl"]
MOST_BYTES = 16 * 1024 * 1024
MOST_LINE_BYTES = 64 * 1024
MOST_ENTRIES = 100_000
LARGEST = sys.float_info.max
MOST_NAMES = 64
MOST_NAME_CHARACTERS = 128
PASSED_BYTES = 256 * 1024 * 1024
"""Of a compressed bundle, before the file is found: it cannot be passed over without being unpacked."""


def metrics_of(bundle: IO[bytes]) -> dict[str, float]:
    """The last value of each number; none of a bundle that cannot be read, or has no such file."""
    try:
        return _last_values(content_of(bundle))
    except (OSError, ValueError, OverflowError, BadArchive):
        return {}


def content_of(file: IO[bytes]) -> bytes:
    """Of a long file the end, where the last values are."""
    tar, passed = opened(file, sys.maxsize), 0
    for entry in islice(entries(tar), MOST_ENTRIES):
        wanted = entry.parts == FILE and not entry.is_folder
        before = max(0, entry.size - MOST_BYTES) if wanted else entry.size + -entry.size % BLOCK
        passed += before
        _pass(tar, file, before, passed)
        if wanted:
            return tar.read(min(entry.size, MOST_BYTES))
    return b""


def _pass(tar: Bytes, file: IO[bytes], size: int, passed: int) -> None:
    if tar is file:
        file.seek(size, 1)
        return
    if passed > PASSED_BYTES:
        raise BadArchive(f"its first {PASSED_BYTES} bytes have no such file")
    while size > 0:
        piece = tar.read(min(size, PIECE))
        if not piece:
            raise BadArchive("it is cut short")
        size -= len(piece)


def _last_values(content: bytes) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in io.BytesIO(content):  # not split at once: millions of empty lines would be millions of objects
        for name, value in numbers_in(line) if len(line) <= MOST_LINE_BYTES else ():
            if name in found or (len(found) < MOST_NAMES and is_name(name)):
                found[name] = value
    return found


def is_name(text: str) -> bool:
    """Also not half of a surrogate pair, which JSON can spell and no file and no database takes."""
    return len(text) <= MOST_NAME_CHARACTERS and text.isprintable()


def numbers_in(line: bytes) -> Iterator[tuple[str, float]]:
    try:
        document = json.loads(line) if line.lstrip().startswith(b"{") else {}
    except (ValueError, RecursionError):
        return
    for name, value in document.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST:
            yield name, float(value)
