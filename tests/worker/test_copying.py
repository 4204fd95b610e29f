"""Copies of unpacked snapshots: each attempt has its own."""

import threading
from pathlib import Path

from ostler.worker.copying import copy_tree


def test_a_copy_is_the_same_and_its_own(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "d/x").write_bytes(b"1")
    (source / "d/x").chmod(0o755)
    (source / "y").write_bytes(b"2")
    copy = tmp_path / "copy"
    copy_tree(str(source), str(copy), threading.Event())
    assert sorted(str(path.relative_to(copy)) for path in copy.rglob("*")) == ["d", "d/x", "y"]
    assert ((copy / "d/x").read_bytes(), (copy / "d/x").stat().st_mode & 0o777) == (b"1", 0o755)
    (copy / "y").write_bytes(b"mine")
    assert (source / "y").read_bytes() == b"2"
