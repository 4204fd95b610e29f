"""Folders on their way to the workers: what goes along, that the same files are the same snapshot, what is refused."""

import hashlib
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from tests.client.scripted_hub import ScriptedHub, drop, problem, reply

from ostler.client import snapshots
from ostler.client.errors import BadInput
from ostler.client.fleet import Fleet
from ostler.client.http import Hub


def packed(folder: Path, **limits: int) -> tuple[snapshots.Snapshot, bytes]:
    archive = io.BytesIO()
    return snapshots.pack(folder, archive, **limits), archive.getvalue()


def names(folder: Path) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(packed(folder)[1])) as archive:
        return archive.getnames()


def write(folder: Path, *files: str) -> None:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"this is {name}\n")


def git(folder: Path, *arguments: str) -> None:
    identity = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, env=os.environ | identity)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    write(made, "train.py", "lib/model.py", "data/empty.txt")
    (made / "run.sh").write_text("#!/bin/sh\n")
    (made / "run.sh").chmod(0o755)
    return made


def test_the_same_files_are_the_same_snapshot_wherever_whenever_and_by_whomever(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    for name in ("lib/model.py", "data/empty.txt", "train.py"):  # made in another order
        write(other, name)
    (other / "run.sh").write_text("#!/bin/sh\n")
    (other / "run.sh").chmod(0o700)
    (other / "train.py").chmod(0o600)
    os.utime(other / "train.py", (1, 1))
    first, archive = packed(folder)
    assert first.id == packed(other)[0].id
    assert first.id == hashlib.sha256(archive).hexdigest()
    assert (first.archive_bytes, first.files, first.notes) == (len(archive), 4, [])
    (other / "train.py").write_text("this is something else\n")
    assert first.id != packed(other)[0].id
    (folder / "run.sh").chmod(0o644)
    assert first.id != packed(folder)[0].id, "whether it may be executed is part of a file"


def test_the_archive_is_plain_and_tells_nothing_of_its_maker(folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(packed(folder)[1])) as archive:
        entries = archive.getmembers()
    assert [entry.name for entry in entries] == ["data", "data/empty.txt", "lib", "lib/model.py", "run.sh", "train.py"]
    assert {(entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname) for entry in entries} == {(0, 0, 0, "", "")}
    modes = {entry.name: entry.mode for entry in entries}
    assert (modes["lib"], modes["run.sh"], modes["train.py"]) == (0o755, 0o755, 0o644)
    assert all(entry.isreg() or entry.isdir() for entry in entries)


def test_names_that_are_long_or_not_ascii_travel(folder: Path) -> None:
    long = "/".join(["a-rather-long-name-of-a-folder"] * 12) + "/größe.txt"
    write(folder, long)
    assert long in names(folder)
    assert packed(folder)[0].id == packed(folder)[0].id


def test_in_a_git_tree_what_git_would_take_goes_along(folder: Path) -> None:
    git(folder, "init", "-q")
    write(folder, "build/out.bin", "notes.log", "new.py", "gone.py", "lib/.gitignore")
    (folder / ".gitignore").write_text("build/\n*.log\n")
    git(folder, "add", "train.py", "gone.py")
    (folder / "gone.py").unlink()
    files = [".gitignore", "data/empty.txt", "lib/.gitignore", "lib/model.py", "new.py", "run.sh", "train.py"]
    assert names(folder) == sorted([*files, "data", "lib"])
    assert names(folder / "lib") == [".gitignore", "model.py"]


def test_a_repository_inside_another_goes_along_without_what_it_ignores(folder: Path) -> None:
    git(folder, "init", "-q")
    write(folder, "inner/code.py", "inner/junk.log")
    git(folder / "inner", "init", "-q")
    (folder / "inner" / ".gitignore").write_text("*.log\n")
    git(folder / "inner", "add", ".")
    assert [name for name in names(folder) if name.startswith("inner")] == [
        "inner",
        "inner/.gitignore",
        "inner/code.py",
    ]


def test_a_folder_that_git_ignores_as_a_whole_is_taken_as_it_was_named(folder: Path) -> None:
    git(folder, "init", "-q")
    (folder / ".gitignore").write_text("data/\n")
    assert names(folder / "data") == ["empty.txt"]


def test_without_git_everything_goes_along_but_what_nobody_means(folder: Path) -> None:
    write(folder, "__pycache__/x.pyc", ".venv/bin/python", "web/node_modules/a.js", ".env", "lib/__pycache__/y.pyc")
    (folder / "hollow").mkdir()
    found = ["data", "data/empty.txt", "hollow", "lib", "lib/model.py", "run.sh", "train.py", "web"]
    assert names(folder) == [".env", *found]


def test_a_link_to_a_file_of_the_folder_travels_as_that_file(folder: Path) -> None:
    (folder / "again.py").symlink_to("train.py")
    with tarfile.open(fileobj=io.BytesIO(packed(folder)[1])) as archive:
        content = archive.extractfile("again.py")
        assert content is not None
        assert content.read() == b"this is train.py\n"


@pytest.mark.parametrize("target", ["/etc/hostname", "../secret", "lib", "nowhere"])
def test_a_link_that_leads_elsewhere_is_refused_by_name(folder: Path, target: str) -> None:
    write(folder.parent, "secret")
    (folder / "link").symlink_to(target)
    with pytest.raises(BadInput, match=f"link is a link to {target}"):
        packed(folder)


def test_what_is_neither_file_nor_folder_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(BadInput, match="pipe is neither a file nor a folder"):
        packed(folder)
    with pytest.raises(BadInput, match=r"train\.py is not a folder"):
        packed(folder / "train.py")


def test_a_folder_that_is_too_large_is_refused_with_its_largest_files(folder: Path) -> None:
    for number in range(12):
        (folder / f"weights-{number:02}.bin").write_bytes(b"x" * (1000 + number))
    with pytest.raises(BadInput) as caught:
        packed(folder, limit_bytes=5000)
    listed = str(caught.value).partition("The largest: ")[2].split(", ")
    assert [name.partition(" ")[0] for name in listed] == [f"weights-{number:02}.bin" for number in range(11, 1, -1)]


def test_a_large_folder_is_remarked_upon(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(b"x" * 2_000_000)
    (remark,) = packed(folder, warn_bytes=1_000_000)[0].notes
    assert "1.9 MiB" in remark
    assert "weights.bin (1.9 MiB)" in remark


# To the hub


def test_what_the_hub_has_is_not_sent_again(folder: Path) -> None:
    with ScriptedHub(reply()) as scripted, Hub(scripted.url, "t") as hub:
        sent = snapshots.send(hub, folder)
    assert [(request.method, request.path) for request in scripted.requests] == [("HEAD", f"/v1/snapshots/{sent.id}")]


def test_what_the_hub_lacks_is_sent_with_its_length_and_its_progress_is_told(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(os.urandom(1_000_000))
    told: list[tuple[int, int]] = []
    with ScriptedHub(problem(404, "no"), reply(status=201)) as scripted, Hub(scripted.url, "t") as hub:
        sent = snapshots.send(hub, folder, progress=lambda done, total: told.append((done, total)))
    upload = scripted.requests[1]
    assert (upload.method, upload.path) == ("PUT", f"/v1/snapshots/{sent.id}")
    assert hashlib.sha256(upload.body).hexdigest() == sent.id
    assert upload.headers["Content-Length"] == str(sent.archive_bytes)
    assert told[-1] == (sent.archive_bytes, sent.archive_bytes)
    assert len(told) > 2


def test_an_upload_that_is_cut_off_is_sent_again_from_its_beginning(folder: Path) -> None:
    with ScriptedHub(problem(404, "no"), drop, reply(status=201)) as scripted, Hub(scripted.url, "t") as hub:
        sent = snapshots.send(hub, folder)
    assert [hashlib.sha256(request.body).hexdigest() for request in scripted.requests[1:]] == [sent.id, sent.id]


def test_a_command_is_submitted_with_its_folder(folder: Path) -> None:
    with (
        ScriptedHub(reply(), reply({"id": "j", "state": "pending"}, 201)) as scripted,
        Fleet(Hub(scripted.url, "t")) as fleet,
    ):
        fleet.submit_command(["python", "train.py"], snapshot=folder)
    assert packed(folder)[0].id.encode() in scripted.requests[1].body


def test_a_remark_about_a_command_s_folder_is_a_warning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(snapshots.pack.__kwdefaults__, "warn_bytes", 10)
    monkeypatch.setitem(snapshots.send.__kwdefaults__, "warn_bytes", 10)
    with (
        ScriptedHub(reply(), reply({"id": "j", "state": "pending"}, 201)) as scripted,
        Fleet(Hub(scripted.url, "t")) as fleet,
        pytest.warns(UserWarning, match="the largest"),
    ):
        fleet.submit_command(["true"], snapshot=folder)
