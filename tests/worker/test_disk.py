"""A worker whose disk is full takes nothing, and what fails there is not held against its job."""

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from tests.worker.test_core import do, ended, order, sent, worker

from ostler.worker import disk
from ostler.worker.api import HubApi
from ostler.worker.events import Assigned, DiskChanged, OutcomeCollected
from ostler.worker.snapshots import Snapshots

FULL = OutcomeCollected(attempt="a1", disk_full=True, last_line="write error: No space left on device")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("only root mounts disks: run the tests as root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_on_a_full_disk_no_slot_is_free_and_all_are_there_again_when_there_is_room() -> None:
    state = worker()
    do(state, Assigned(order("a1")))
    [beat] = sent(do(state, DiskChanged(full=True)))
    assert (beat.slots.batch_total, beat.slots.batch_in_use) == (4, 4)
    assert (beat.slots.service_total, beat.slots.service_in_use) == (2, 2)
    [beat] = sent(do(state, DiskChanged(full=False)))
    assert (beat.slots.batch_in_use, beat.slots.service_in_use) == (1, 0)


def test_a_task_that_fails_on_a_full_disk_is_handed_back_by_the_machine_s_fault() -> None:
    [result] = sent(do(worker(), Assigned(order("a1")), ended("a1", 1), FULL))
    assert (result.state, result.fault) == ("returned", "worker")
    assert result.error == (
        "the worker's disk is full; it ended with exit code 1: write error: No space left on device"
    )


def test_what_was_stopped_or_has_succeeded_ends_as_it_did_however_full_the_disk_is() -> None:
    [result] = sent(do(worker(), Assigned(order("a1")), ended("a1", 143, stopped="max_runtime"), FULL))
    assert (result.state, result.error) == ("failed", "max_runtime")
    [result] = sent(do(worker(), Assigned(order("a1")), ended("a1"), FULL))
    assert (result.state, result.fault) == ("succeeded", "")


def test_a_disk_is_full_when_nearly_nothing_is_free(small: Path) -> None:
    assert not disk.is_full(small)
    (small / "filler").write_bytes(bytes(1024 * 1024 - 8192))
    assert disk.is_full(small)
    assert not disk.is_full(small / "nowhere")


def test_a_full_disk_keeps_no_worker_from_starting_and_making_room(small: Path) -> None:
    def opened() -> Snapshots:
        return Snapshots(cast(HubApi, None), small / "snapshots", 0, lambda ids: None)

    opened()
    with contextlib.suppress(OSError), (small / "filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass
    assert opened().ids() == []


async def test_room_is_made_before_a_disk_is_called_full_and_every_change_is_told_once(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "LOOK_S", 0.01)
    left, filler = small / "left", small / "filler"
    told: asyncio.Queue[bool] = asyncio.Queue()
    asked = asyncio.Event()

    async def make_room() -> None:
        left.unlink(missing_ok=True)
        asked.set()

    left.write_bytes(bytes(1024 * 1024 - 8192))
    watching = asyncio.create_task(disk.watch([small, small], make_room, told.put_nowait))
    await asyncio.wait_for(asked.wait(), 60)
    assert told.empty(), "there was room after what nobody needs was removed"
    filler.write_bytes(bytes(1024 * 1024 - 8192))
    assert await asyncio.wait_for(told.get(), 60) is True
    filler.unlink()
    assert await asyncio.wait_for(told.get(), 60) is False
    watching.cancel()
