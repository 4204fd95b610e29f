"""Control groups, by the files of a folder that looks like the kernel's: no kernel takes part in this.

What the kernel does with these files is in its own documentation; here is what we write, and when we leave it alone.
"""

import errno
import os
from pathlib import Path

import pytest

from ostler.runtime import groups as module
from ostler.runtime.groups import Groups, open_groups


class Kernel:
    def __init__(self, folder: Path, path: str, *, handed: bool, controllers: str = "cpu memory pids") -> None:
        self.root = folder / "cgroup"
        self.own = folder / "own"
        self.own.write_text(f"12:cpu:/elsewhere\n0::{path}\n")
        self.base = self.root / path.strip("/")
        self.base.mkdir(parents=True)
        (self.root / "cgroup.controllers").write_text(controllers)
        (self.base / "cgroup.controllers").write_text(controllers)
        (self.base / "cgroup.procs").write_text("11\n12\n")
        if handed:
            try:
                os.setxattr(self.base, "user.delegate", b"1")
            except OSError:
                pytest.skip("this file system keeps no attributes")

    def open(self) -> Groups:
        return open_groups(str(self.root), str(self.own))


def test_a_group_that_was_handed_to_us_is_divided_into_us_and_our_tasks(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "/system.slice/ostler.service", handed=True)
    assert kernel.open().usable
    assert (kernel.base / "ostler" / "cgroup.procs").read_text() == "12", "all of ours, one after the other"
    assert (kernel.base / "cgroup.subtree_control").read_text() == "+memory +pids"


@pytest.mark.parametrize("path", ["/", "/user.slice/session-3.scope"])
def test_a_group_that_is_not_ours_is_left_as_it_is(tmp_path: Path, path: str) -> None:
    kernel = Kernel(tmp_path, path, handed=False)
    before = sorted(kernel.root.rglob("*"))
    assert not kernel.open().usable
    assert sorted(kernel.root.rglob("*")) == before


def test_in_a_container_the_root_is_ones_own(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "/", handed=False)
    (kernel.root / "cgroup.type").write_text("domain\n")
    assert kernel.open().usable


def test_without_a_controller_for_memory_nothing_is_divided(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "/a", handed=True, controllers="cpu pids")
    assert not kernel.open().usable
    assert not (kernel.base / "ostler").exists()


def test_a_supervisor_that_starts_again_finds_the_same_group(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "/a", handed=True)
    kernel.open()
    kernel.own.write_text("0::/a/ostler\n")
    assert kernel.open().usable
    assert not (kernel.base / "ostler" / "ostler").exists()


def test_a_group_that_another_supervisor_removes_before_anybody_is_in_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(tmp_path, "/a", handed=True)
    groups, group = kernel.open(), kernel.base / "task-one"
    removed = []

    def write(path: str, text: str) -> None:
        if not removed:
            removed.append(path)
            kernel.open().clean()
        real(path, text)

    real = module._write
    monkeypatch.setattr(module, "_write", write)
    with groups.inside("one", 1024):
        assert (group / "cgroup.procs").read_text() == "0"
    assert removed == [str(group / "memory.max")]


def test_somebody_born_in_the_group_while_it_is_divided_is_moved_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel divides no group that has a process in it."""
    kernel = Kernel(tmp_path, "/a", handed=True)
    refused = []

    def write(path: str, text: str) -> None:
        if path.endswith("cgroup.subtree_control") and not refused:
            refused.append(path)
            (kernel.base / "cgroup.procs").write_text("13\n")
            raise OSError(errno.EBUSY, "Device or resource busy")
        real(path, text)

    real = module._write
    monkeypatch.setattr(module, "_write", write)
    assert kernel.open().usable
    assert refused and (kernel.base / "ostler" / "cgroup.procs").read_text() == "13"


def test_a_task_is_born_in_its_group_and_we_come_back_whatever_happens(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "/a", handed=True)
    groups = kernel.open()
    group, ours = kernel.base / "task-one", kernel.base / "ostler" / "cgroup.procs"
    with groups.inside("one", 1024):
        assert (group / "cgroup.procs").read_text() == "0", "whoever writes this goes there"
        assert (group / "memory.max").read_text() == "max", "a limit that is too small for us would be our end"
        assert (group / "memory.oom.group").read_text() == "1"
        assert int((group / "pids.max").read_text()) > 1000
        assert ours.read_text() == "12"
    assert ours.read_text() == "0"
    assert (group / "memory.max").read_text() == str(1024**3)
    ours.write_text("")
    with pytest.raises(ZeroDivisionError), groups.inside("one", 1024):
        raise ZeroDivisionError
    assert ours.read_text() == "0"
    with groups.inside("two", 0):
        assert not (kernel.base / "task-two").exists(), "it asked for nothing, so nothing limits it"


def test_empty_groups_of_a_killed_supervisor_go_and_others_stay(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "/a", handed=True)
    groups = kernel.open()
    for name in ("task-gone", "task-runs", "theirs"):
        (kernel.base / name).mkdir()
    (kernel.base / "task-runs" / "busy").touch()
    groups.clean()
    left = {path.name for path in kernel.base.iterdir() if path.is_dir()}
    assert left == {"ostler", "task-runs", "theirs"}
