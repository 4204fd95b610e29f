"""Archives that come from the network: unpacked as they are meant, or refused whole with nothing left behind."""

import gzip
import random
import sys
import tarfile
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.worker.archives import archive, entry, folder

from ostler.archive.unpack import BadArchive, Limits, Stopped, unpack

zstd = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
LIMITS = Limits(entries=50, total_bytes=100_000, depth=8)
FORMS = [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT]


def announced(data: bytes) -> bytes:
    """As `zstd FILE` writes it: the frame says how much is in it."""
    packed: bytes = zstd.compress(data)
    return packed


def streamed(data: bytes) -> bytes:
    """As `tar | zstd` writes it: the frame says nothing."""
    packing = zstd.ZstdCompressor()
    packed: bytes = packing.compress(data) + packing.flush()
    return packed


def in_frames(data: bytes) -> bytes:
    """As parallel packers write it: one frame after the other, and one that is to be skipped."""
    skipped = (0x184D2A50).to_bytes(4, "little") + (3).to_bytes(4, "little") + b"abc"
    third = len(data) // 3
    return announced(data[:third]) + skipped + streamed(data[third : 2 * third]) + announced(data[2 * third :])


FORMS_OF_PACKING: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "zstd": announced,
    "zstd, streamed": streamed,
    "zstd, in frames": in_frames,
}


@pytest.fixture(params=FORMS_OF_PACKING)
def packed(request: pytest.FixtureRequest) -> Callable[[bytes], bytes]:
    return FORMS_OF_PACKING[request.param]


def opened(data: bytes, place: Path, limits: Limits = LIMITS) -> Path:
    (place / "a.tar").write_bytes(data)
    target = place / "target"
    unpack(place / "a.tar", target, limits, threading.Event())
    return target


def found(target: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(target)): (path.stat().st_mode & 0o7777, path.read_bytes() if path.is_file() else b"/")
        for path in target.rglob("*")
    }


@pytest.mark.parametrize("form", FORMS)
def test_files_and_folders_come_out_as_they_went_in(
    tmp_path: Path, form: int, packed: Callable[[bytes], bytes]
) -> None:
    data = archive(
        folder("pkg"),
        entry("pkg/a.py", b"print(1)\n" * 200, mode=0o644),
        entry("pkg/run.sh", b"#!/bin/sh\n", mode=0o755),
        entry("empty", b""),
        entry("no/folder/of/its/own", b"x", mode=0o600),
        folder("no/folder"),
        entry("blocks", b"z" * 512),
        form=form,
    )
    target = opened(packed(data), tmp_path)
    assert found(target) == {
        "pkg": (0o755, b"/"),
        "pkg/a.py": (0o644, b"print(1)\n" * 200),
        "pkg/run.sh": (0o755, b"#!/bin/sh\n"),
        "empty": (0o644, b""),
        "no": (0o755, b"/"),
        "no/folder": (0o755, b"/"),
        "no/folder/of": (0o755, b"/"),
        "no/folder/of/its": (0o755, b"/"),
        "no/folder/of/its/own": (0o644, b"x"),
        "blocks": (0o644, b"z" * 512),
    }


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names_and_names_in_any_language_are_kept(tmp_path: Path, form: int) -> None:
    names = ["d/" + "n" * 200, "größe/データ.txt", "x" * 101]
    target = opened(archive(*(entry(name, b"1") for name in names), form=form), tmp_path)
    assert all((target / name).read_bytes() == b"1" for name in names)


def test_a_long_path_in_the_older_form_is_kept_too(tmp_path: Path) -> None:
    name = "a" * 90 + "/" + "b" * 90
    assert (opened(archive(entry(name, b"1"), form=tarfile.USTAR_FORMAT), tmp_path) / name).read_bytes() == b"1"


def test_special_bits_are_dropped(tmp_path: Path) -> None:
    target = opened(archive(entry("x", b"1", mode=0o6777), entry("y", b"1", mode=0o1666)), tmp_path)
    assert found(target) == {"x": (0o755, b"1"), "y": (0o644, b"1")}


def linked(kind: bytes, to: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry("ln", type=kind, linkname=to)


def sparse() -> bytes:
    info = tarfile.TarInfo("big")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "1000000000000"}
    return archive((info, b""))


def with_size(size: int) -> bytes:
    data = bytearray(archive(entry("a", b"1"), form=tarfile.USTAR_FORMAT))
    data[124:136] = b"%011o\0" % size if size < 2**33 else b"\x80" + size.to_bytes(11, "big")
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    return bytes(data)


def huge_extended_header() -> bytes:
    info = tarfile.TarInfo("a")
    info.pax_headers = {"comment": "x" * 70_000}
    return archive((info, b""))


WHOLE = archive(entry("a", b"1" * 2000))
REFUSED: dict[str, tuple[bytes, str]] = {
    "up": (archive(entry("../x", b"1")), "leads out"),
    "up in the middle": (archive(entry("a/../../x", b"1")), "leads out"),
    "up at the end": (archive(folder("a/..")), "leads out"),
    "absolute": (archive(entry("/etc/x", b"1")), "absolute"),
    "empty part": (archive(entry("a//b", b"1")), "not a name"),
    "no name": (archive(entry("", b"1")), "not a name"),
    "only a dot": (archive(entry(".", b"1")), "not a name"),
    "a file that ends like a folder": (archive(entry("a/", b"1")), "not a name"),
    "symbolic link": (archive(linked(tarfile.SYMTYPE, "a")), "a symbolic link"),
    "symbolic link out": (archive(linked(tarfile.SYMTYPE, "/etc"), entry("ln/x", b"1")), "a symbolic link"),
    "long symbolic link": (archive(linked(tarfile.SYMTYPE, "d/" * 900), form=tarfile.GNU_FORMAT), "link"),
    "hard link": (archive(entry("a", b"1"), linked(tarfile.LNKTYPE, "a")), "a hard link"),
    "device": (archive(entry("d", type=tarfile.CHRTYPE)), "a device"),
    "block device": (archive(entry("d", type=tarfile.BLKTYPE)), "a device"),
    "fifo": (archive(entry("d", type=tarfile.FIFOTYPE)), "a FIFO"),
    "unknown kind": (archive(entry("d", type=b"Z")), "of a kind b'Z'"),
    "sparse": (sparse(), "sparse"),
    "twice": (archive(entry("a", b"1"), entry("a", b"2")), "twice"),
    "folder over file": (archive(entry("a", b"1"), folder("a")), "twice"),
    "file over folder": (archive(folder("a"), entry("a", b"1")), "twice"),
    "below a file": (archive(entry("a", b"1"), entry("a/b", b"1")), "twice"),
    "too many": (archive(*(entry(f"f{n}") for n in range(51))), "more than 50 entries"),
    "too large": (archive(entry("a", b"1" * 60_000), entry("b", b"1" * 60_000)), "more than 100000 bytes"),
    "too deep": (archive(entry("a/" * 9 + "b", b"1")), "folders deep"),
    "name too long": (archive(entry("n" * 300, b"1")), "too long"),
    "says more than it has": (with_size(50_000), "cut short"),
    "says a terabyte": (with_size(2**32), "more than 100000 bytes"),
    "large header": (huge_extended_header(), "more than 64 KiB"),
    "cut in the content": (WHOLE[:1500], "cut short"),
    "cut in a header": (WHOLE[:100], "cut short"),
    "without an end": (WHOLE[: 512 + 2048], "cut short"),
    "nothing": (b"", "cut short"),
    "compressed": (gzip.compress(WHOLE) + b"\0" * 1024, "not a plain tar"),
    "not utf-8": (archive(entry("caf\udce9", b"1"), form=tarfile.GNU_FORMAT), "UTF-8"),
    "broken sum": (WHOLE.replace(b"ustar", b"ustaz"), "not a plain tar"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_archive_should_have_is_refused_whole(
    tmp_path: Path, name: str, packed: Callable[[bytes], bytes]
) -> None:
    data, why = REFUSED[name]
    with pytest.raises(BadArchive, match=why):
        opened(packed(archive(entry("first", b"1"))[:1024] + data), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def noise(size: int) -> bytes:
    return random.Random(7).randbytes(size)


ZEROS = archive(entry("a", b"\0" * (100 * 1024 * 1024)))
LARGE = Limits(total_bytes=1024**3)


def announcing(size: int, frame: bytes) -> bytes:
    """The same frame with another size in its header."""
    descriptor = frame[4]
    assert descriptor >> 6 == 2, "its size has four bytes"
    at = 5 if descriptor & 0x20 else 6
    return frame[:at] + size.to_bytes(4, "little") + frame[at + 4 :]


BOMBS: dict[str, tuple[bytes, Limits, str]] = {
    "more than a small file may unpack to": (streamed(ZEROS), LARGE, "unpacks to more than"),
    "announces more than is taken": (announcing(4_000_000_000, announced(ZEROS)), LARGE, "announces 4000000000"),
    "holds more than it announces": (announcing(50_000_000, announced(ZEROS)), LARGE, "unpacks to more than 50000000"),
    "cut in a frame": (announced(archive(entry("a", noise(5000))))[:-40], LARGE, "cut short"),
    "cut in a frame's header": (announced(archive(entry("a", noise(5000))))[:5], LARGE, "compression is broken"),
    "broken": (announced(archive(entry("a", noise(5000))))[:3000] + b"\0" * 4000, LARGE, "broken"),
    "wants a window of two gigabytes": (b"\x28\xb5\x2f\xfd\x00\xa8" + b"\0" * 100, LARGE, "compression is broken"),
    "goes on with something else": (announced(WHOLE[:1024]) + b"else" * 10, LARGE, "compression is broken"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_compressed_archive_that_is_not_what_it_says_is_refused_whole(tmp_path: Path, name: str) -> None:
    data, limits, why = BOMBS[name]
    with pytest.raises(BadArchive, match=why):
        opened(data, tmp_path, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def test_what_a_frame_announces_may_be_much(tmp_path: Path) -> None:
    assert (opened(announced(ZEROS), tmp_path, LARGE) / "a").stat().st_size == 100 * 1024 * 1024


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=600), st.integers(0, 2000), st.integers(0, 2), st.sampled_from(sorted(FORMS_OF_PACKING)))
def test_whatever_the_bytes_nothing_else_happens(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int, form: int, packing: str
) -> None:
    whole = archive(entry("a/b", b"1" * 700), entry("y" * 60 + "/" + "z" * 60, b"2"), form=FORMS[form])
    whole = FORMS_OF_PACKING[packing](whole)
    place = tmp_path_factory.mktemp("noise")
    try:
        opened(whole[:at] + noise + whole[at + len(noise) :], place)
    except BadArchive:
        assert not (place / "target").exists()
    assert {path.name for path in place.iterdir()} <= {"a.tar", "target"}


def test_an_unpacking_that_nobody_wants_any_more_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(WHOLE)
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        unpack(tmp_path / "a.tar", tmp_path / "target", LIMITS, stop)
    assert not (tmp_path / "target").exists()
