"""Archives that somebody took pains with: whatever is in them, nothing comes out but files and folders, inside."""

import io
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ostler.archive import zstd as reading
from ostler.archive.unpack import BadArchive, Limits, unpack
from ostler.archive.zstd import ANNOUNCED_BYTES, ZstdReader

zstd = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
LIMITS = Limits(entries=40, total_bytes=50_000, depth=6)
END = b"\0" * 1024
Member = tuple[bytes, str, bytes, bytes, int | None]
"""Kind, name, where a link leads, content, and the size that the header claims where that is another."""


def header(kind: bytes, name: bytes, size: int, link: bytes = b"", mode: int = 0o644) -> bytes:
    digits = b"\x80" + size.to_bytes(11, "big") if size >= 8**11 else b"%011o\0" % size
    text = name[:100].ljust(100, b"\0") + b"%07o\0" % mode + b"0000000\0" * 2 + digits + b"00000000000\0"
    text += b" " * 8 + kind + link[:100].ljust(100, b"\0") + b"ustar\x0000" + b"\0" * 64
    text = text.ljust(512, b"\0")
    return text[:148] + b"%06o\0 " % sum(text) + text[156:]


def padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 512)


def pax(**records: str) -> bytes:
    data = b""
    for key, value in records.items():
        body = f" {key.replace('__', '.')}={value}\n".encode(errors="surrogateescape")
        size = len(body) + 1
        while len(str(size)) + len(body) != size:
            size = len(str(size)) + len(body)
        data += str(size).encode() + body
    return header(b"x", b"pax", len(data)) + padded(data)


def tar(*members: Member) -> bytes:
    found = b""
    for kind, name, link, content, claimed in members:
        raw = name.encode(errors="surrogateescape")
        if len(raw) > 100:
            found += pax(path=name)
        size = len(content) if claimed is None else claimed
        found += header(kind, raw, size, link) + padded(content)
    return found + END


def file(name: str, content: bytes = b"x") -> Member:
    return (b"0", name, b"", content, None)


def link(name: str, to: str, kind: bytes = b"2") -> Member:
    return (kind, name, to.encode(), b"", None)


def attempted(data: bytes, place: Path, limits: Limits = LIMITS) -> bool:
    """Whether it was unpacked; and what must hold in either case."""
    outside = place / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "file").write_text("mine")
    (place / "a.tar").write_bytes(data)
    target = place / "target"
    try:
        total = unpack(place / "a.tar", target, limits, threading.Event())
    except BadArchive:
        assert not target.exists(), "refused whole"
        unpacked = False
    else:
        found = list(_all_below(target))
        assert all(stat.S_ISREG(one.st_mode) or stat.S_ISDIR(one.st_mode) for one in found)
        assert all(one.st_nlink == 1 for one in found if stat.S_ISREG(one.st_mode))
        assert {stat.S_IMODE(one.st_mode) for one in found} <= {0o644, 0o755}
        assert len(found) <= 2 * limits.entries
        assert sum(one.st_size for one in found if stat.S_ISREG(one.st_mode)) == total <= limits.total_bytes
        unpacked = True
    assert {path.name for path in place.iterdir()} <= {"a.tar", "outside", "target"}
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("file", "mine")]
    return unpacked


def _all_below(target: Path) -> Iterator[os.stat_result]:
    for folder, names, files in os.walk(target):
        for name in (*names, *files):
            yield os.lstat(os.path.join(folder, name))


HOSTILE: dict[str, bytes] = {
    "up and out": tar(file("../outside/file")),
    "up and out, from below": tar(file("a/b"), file("a/../../outside/file")),
    "absolute": tar(file("/tmp/ostler-absolute")),
    "absolute by a pax header": pax(path="/tmp/ostler-absolute") + tar(file("harmless")),
    "out by a pax header": pax(path="../outside/file") + tar(file("harmless")),
    "out by a GNU long name": header(b"L", b"././@LongLink", 16) + padded(b"../outside/file\0") + tar(file("harmless")),
    "a link, then through it": tar(link("a", "../outside"), file("a/file")),
    "a link to a folder that comes later": tar(link("a", "b/../../outside"), (b"5", "b", b"", b"", None), file("a/x")),
    "a chain of links longer than a path": tar(*(link(f"{'d' * 200}{n}", "../" * 15) for n in range(16)), file("x")),
    "a hard link out": tar(link("a", "../outside/file", b"1")),
    "a hard link to a link": tar(link("s", "../outside/file"), link("h", "s", b"1")),
    "a device": tar((b"3", "null", b"", b"", None)),
    "a block device": tar((b"4", "disk", b"", b"", None)),
    "a pipe": tar((b"6", "pipe", b"", b"", None)),
    "a sparse file of a terabyte": tar((b"S", "sparse", b"", b"", 2**40)),
    "a sparse file by a pax header": pax(GNU__sparse__major="1", GNU__sparse__realsize=str(2**40)) + tar(file("a")),
    "a file that claims a terabyte": tar((b"0", "large", b"", b"x", 2**40)),
    "a size in a pax header that is none": pax(size="-1") + tar(file("a")),
    "a size in a pax header beyond the content": pax(size="99999") + tar(file("a")),
    "one name twice": tar(file("a"), file("a")),
    "a file, then a folder of its name": tar(file("a"), file("a/b")),
    "a folder, then a file of its name": tar((b"5", "a", b"", b"", None), file("a")),
    "a name of NULs": pax(path="a\0b") + tar(file("harmless")),
    "an empty name": tar(file("")),
    "dots alone": tar(file("./.")),
    "too deep": tar(file("/".join("abcdefgh"))),
    "a name that is too long": tar(file("n" * 300)),
    "no UTF-8": tar(file("\udcff\udcfe")),
    "too many": tar(*(file(str(number)) for number in range(41))),
    "folders without end": tar(*(file(f"{n}a/{n}b/{n}c/{n}d/x") for n in range(20))),
    "headers without end": pax(mtime="1") * 10_000 + tar(file("a")),
    "nothing again and again": header(b"5", b"./", 0) * 10_000 + tar(file("a")),
    "a header for all that follows": header(b"g", b"g", 0) + tar(file("a")),
    "a header as large as it likes": header(b"x", b"x", 2**33) + tar(file("a")),
    "a kind that is none": tar((b"Z", "a", b"", b"", None)),
    "no end": tar(file("a"))[:-1024],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_whole(tmp_path: Path, name: str) -> None:
    assert not attempted(HOSTILE[name], tmp_path)


def test_special_bits_and_owners_are_not_taken_over(tmp_path: Path) -> None:
    member = header(b"0", b"run", 1, mode=0o6777) + padded(b"x")
    assert attempted(member + END, tmp_path)
    assert stat.S_IMODE((tmp_path / "target" / "run").stat().st_mode) == 0o755


PARTS = st.sampled_from(["a", "b", "A", "..", ".", "", "outside", "\0", "é", "x" * 120, "\udcff", "target"])
NAMES = st.builds("/".join, st.lists(PARTS, min_size=1, max_size=8))
KINDS = st.sampled_from(
    [b"0", b"0", b"0", b"5", b"5", b"\0", b"1", b"2", b"3", b"6", b"7", b"S", b"L", b"K", b"x", b"g"]
)
SIZES = st.none() | st.integers(0, 2000) | st.sampled_from([2**33, 2**40, 2**62])
MEMBERS = st.tuples(KINDS, NAMES, st.binary(max_size=20), st.binary(max_size=1500), SIZES)
PACKINGS: list[Callable[[bytes], bytes]] = [bytes, zstd.compress]


@settings(max_examples=300, deadline=None)
@given(st.lists(MEMBERS, max_size=12), st.sampled_from(PACKINGS))
@example([file("a/b"), link("a/c", "../../outside"), file("a/c/file")], bytes)
def test_whatever_its_members_are(
    tmp_path_factory: pytest.TempPathFactory, members: list[Member], packing: Callable[[bytes], bytes]
) -> None:
    attempted(packing(tar(*members)), tmp_path_factory.mktemp("members"))


RECORDS = st.dictionaries(
    st.sampled_from(["path", "size", "linkpath", "mode", "uid", "GNU__sparse__name", "SCHILY__xattr", "x"]),
    NAMES | st.integers(-5, 2**70).map(str),
    max_size=4,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(RECORDS, MEMBERS), max_size=6), st.integers(0, 4000), st.binary(max_size=8))
def test_whatever_its_headers_say_and_wherever_a_few_bytes_of_it_are_others(
    tmp_path_factory: pytest.TempPathFactory, told: list[tuple[dict[str, str], Member]], at: int, other: bytes
) -> None:
    data = b"".join(pax(**records) + tar(member)[:-1024] for records, member in told) + END
    attempted(data[:at] + other + data[at + len(other) :], tmp_path_factory.mktemp("headers"))


class _Zeros:
    """A frame that truly announces and holds so many zeros, made as it is read."""

    def __init__(self, size: int) -> None:
        packing = zstd.ZstdCompressor()
        packing.set_pledged_input_size(size)
        piece = b"\0" * (1 << 20)
        self._data = b"".join(packing.compress(piece) for _ in range(size >> 20)) + packing.flush()

    def read(self, size: int = -1, /) -> bytes:
        found, self._data = self._data[:size], self._data[size:]
        return found


def test_a_small_file_that_says_honestly_that_it_fills_a_disk_is_no_archive(tmp_path: Path) -> None:
    size = 2 * ANNOUNCED_BYTES
    reader = ZstdReader(_Zeros(size), most=20 * 1024**3)  # type: ignore[arg-type]
    pieces = iter(lambda: len(reader.read(1 << 22)), 0)
    with pytest.raises(BadArchive, match="unpacks to more than"):
        sum(pieces)


def test_frames_without_end_and_with_nothing_in_them_are_not_read_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_FRAMES", 1000)
    few, many = (ZstdReader(io.BytesIO(zstd.compress(b"") * count), 1 << 30) for count in (1000, 1001))
    assert few.read(1) == b""
    with pytest.raises(BadArchive, match="more than 1000 frames"):
        many.read(1)
