"""The canonical archive: the same files are the same bytes, and what cannot be packed is named."""

import ast
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from ostler import pull

LONG = "/".join(["a-rather-long-name-of-a-folder"] * 5) + "/größe.txt"
CANONICAL = "50d8a7fa8b35a8e866cf11e01df6a0622ea9aa8fe9fdc13d0ad324cf08c65ee9"
"""Of the folder below. Artifacts are known by such a hash: it may never change."""


def write(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(f"this is {name}\n".encode() * 100)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = write(tmp_path / "out", "model.bin", "logs/a.txt", "logs/b.txt", LONG, "run.sh")
    (made / "run.sh").chmod(0o755)
    (made / "empty").mkdir()
    (made / "nothing.txt").touch()
    return made


def packed(folder: Path) -> tuple[str, bytes]:
    out = io.BytesIO()
    return pull.pack(folder, out), out.getvalue()


def test_the_hash_of_these_files_is_this_one_on_every_machine_and_for_ever(folder: Path) -> None:
    sha256, archive = packed(folder)
    assert sha256 == hashlib.sha256(archive).hexdigest() == CANONICAL


def test_the_same_files_made_in_another_order_at_another_time_by_another_owner_are_the_same_bytes(
    folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    (other / "empty").mkdir(parents=True)
    (other / "nothing.txt").touch()
    write(other, "run.sh", LONG, "logs/b.txt", "logs/a.txt", "model.bin")
    (other / "run.sh").chmod(0o700)
    (other / "model.bin").chmod(0o600)
    os.utime(other / "model.bin", (1, 1))
    if os.getuid() == 0:
        os.chown(other / "model.bin", 1234, 1234)
    assert packed(other) == packed(folder)


def test_another_content_name_or_right_to_be_executed_is_another_archive(folder: Path) -> None:
    seen = {packed(folder)[0]}
    (folder / "model.bin").write_bytes(b"other")
    seen.add(packed(folder)[0])
    (folder / "model.bin").chmod(0o755)
    seen.add(packed(folder)[0])
    (folder / "model.bin").rename(folder / "model2.bin")
    seen.add(packed(folder)[0])
    assert len(seen) == 4


def test_it_is_a_plain_tar_without_times_and_owners(folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(packed(folder)[1]), mode="r:") as tar:
        entries = tar.getmembers()
        content = tar.extractfile(LONG)
        assert content is not None
        assert content.read() == (folder / LONG).read_bytes()
    assert [entry.name for entry in entries] == sorted(entry.name for entry in entries)
    assert {entry.name for entry in entries} == {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert {(entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname) for entry in entries} == {(0, 0, 0, "", "")}
    assert {entry.mode for entry in entries if entry.isfile()} == {0o644, 0o755}
    assert {entry.mode for entry in entries if entry.isdir()} == {0o755}


def test_a_file_to_write_to_may_be_given_by_its_path(folder: Path, tmp_path: Path) -> None:
    sha256, archive = packed(folder)
    assert pull.pack(folder, tmp_path / "bundle.tar") == sha256
    assert pull.pack(str(folder), str(tmp_path / "again.tar")) == sha256
    assert (tmp_path / "bundle.tar").read_bytes() == (tmp_path / "again.tar").read_bytes() == archive


def test_a_link_to_a_file_inside_is_that_file_and_one_that_leads_out_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / "best.bin").symlink_to("model.bin")
    with tarfile.open(fileobj=io.BytesIO(packed(folder)[1])) as tar:
        assert tar.getmember("best.bin").isreg()
    write(tmp_path, "secret")
    for target in ("../secret", "/etc/hostname", "logs", "nowhere"):
        (folder / "link").unlink(missing_ok=True)
        (folder / "link").symlink_to(target)
        with pytest.raises(pull.Unpackable, match=f"link is a link to {target}"):
            packed(folder)


def test_what_is_neither_file_nor_folder_is_named(folder: Path) -> None:
    os.mkfifo(folder / "logs" / "pipe")
    with pytest.raises(pull.Unpackable, match="logs/pipe is neither a file nor a folder"):
        packed(folder)


def test_a_name_that_is_not_utf_8_is_named(folder: Path) -> None:
    (folder / os.fsdecode(b"caf\xe9")).touch()
    with pytest.raises(pull.Unpackable, match=r"caf\\xe9': its name is not UTF-8"):
        packed(folder)


def test_a_file_that_grows_or_shrinks_meanwhile_is_named(folder: Path) -> None:
    class Meddler(io.BytesIO):
        def __init__(self, size: int) -> None:
            super().__init__()
            self._size = size

        def write(self, data: bytes) -> int:  # type: ignore[override]
            os.truncate(folder / "model.bin", self._size)
            return super().write(data)

    for size in (3, 3_000_000):
        write(folder, "model.bin")
        (folder / "model.bin").write_bytes(bytes(2_000_000))
        with pytest.raises(pull.Unpackable, match=r"model\.bin changed while it was being packed"):
            pull.pack_entries({"model.bin": folder / "model.bin"}, Meddler(size))


def test_python_3_9_can_read_the_file() -> None:
    ast.parse(Path(pull.__file__).read_text(), feature_version=(3, 9))


def test_other_pythons_at_hand_make_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    named = filter(None, (shutil.which(f"python3.{minor}") for minor in (9, 10, 12, 13, 14)))
    others = [python for python in named if subprocess.run([python, "-c", ""], capture_output=True).returncode == 0]
    if not others:
        pytest.skip("no second Python is installed: apt-get install another python3.x")
    program = "import sys; sys.path.insert(0, sys.argv[1]); import pull; print(pull.pack(sys.argv[2], sys.argv[3]))"
    where = (str(Path(pull.__file__).parent), str(folder), str(tmp_path / "bundle.tar"))
    for python in others:
        made = subprocess.run(
            [python, "-I", "-S", "-B", "-c", program, *where], capture_output=True, text=True, check=True
        )
        assert made.stdout.strip() == packed(folder)[0], python
