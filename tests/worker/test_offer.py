import asyncio
import os
import time
from pathlib import Path

import pytest

from ostler.domain.worker import Capabilities, DeviceInfo
from ostler.runtime.probe import Detection
from ostler.runtime.supervisors import Supervisors
from ostler.worker import housekeeping
from ostler.worker.agent import BLOBS, CHECKPOINTS
from ostler.worker.housekeeping import _remove_older
from ostler.worker.launching import Place
from ostler.worker.offer import Source, Steadied, default_slots, watch


def gpus(*free_gb: float) -> Capabilities:
    devices = [DeviceInfo(index=n, uuid=f"GPU-{n}", vram_gb=8, vram_free_gb=free) for n, free in enumerate(free_gb)]
    return Capabilities(gpu_backend="nvidia" if devices else "cpu", gpu_count=len(devices), devices=devices)


def test_free_memory_is_told_at_once() -> None:
    steadied = Steadied(gpus(8, 8))
    assert steadied.update(gpus(8, 2)) == gpus(8, 2)


def test_a_driver_that_fails_to_answer_once_does_not_lose_its_gpus() -> None:
    steadied = Steadied(gpus(8, 8))
    assert steadied.update(gpus()) == gpus(8, 8)
    assert steadied.update(gpus(7, 7)) == gpus(7, 7)
    assert steadied.update(gpus()) == gpus(7, 7)


def test_a_gpu_that_stays_away_is_given_up_at_the_second_look() -> None:
    steadied = Steadied(gpus(8, 8))
    steadied.update(gpus(8))
    assert steadied.update(gpus(8)) == gpus(8)


def test_labels_of_the_command_line_go_over_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "offer.toml").write_text('cpu_count = 2\n[labels]\na = "file"\nb = "file"\n')
    source = Source(folder=tmp_path, file=tmp_path / "offer.toml", labels={"b": "flag"})
    assert source.look().capabilities.labels == {"a": "file", "b": "flag"}


def test_free_vram_is_said_by_a_file_and_not_by_a_driver_that_counts_our_own_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostler.worker.offer.detect", lambda folder: Detection(capabilities=gpus(1)))
    assert Source(folder=tmp_path).look().capabilities.devices[0].vram_free_gb is None
    file = tmp_path / "offer.toml"
    file.write_text("gpu_count = 1\n[[devices]]\nindex = 0\nvram_gb = 8\nvram_free_gb = 1\n")
    assert Source(folder=tmp_path, file=file).look().capabilities.devices[0].vram_free_gb == 1


async def test_an_offer_from_a_file_is_constant(tmp_path: Path) -> None:
    told: list[Capabilities] = []
    source = Source(folder=tmp_path, file=tmp_path / "offer.toml")
    watching = asyncio.create_task(watch(source, gpus(), told.append, every_s=0))
    done, _ = await asyncio.wait({watching}, timeout=0.05)
    watching.cancel()
    assert (done, told) == (set(), [])


async def test_a_changed_machine_is_told(tmp_path: Path) -> None:
    told: asyncio.Queue[Capabilities] = asyncio.Queue()
    watching = asyncio.create_task(
        watch(Source(folder=tmp_path, labels={"a": "b"}), Capabilities(), told.put_nowait, every_s=0)
    )
    assert (await asyncio.wait_for(told.get(), 60)).labels["a"] == "b"
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


def test_there_is_a_slot_per_core_and_at_least_one() -> None:
    assert [default_slots(Capabilities(cpu_count=cores)) for cores in (0, 0.5, 1, 3.9, 64)] == [1, 1, 1, 3, 64]


async def test_what_has_not_been_used_for_long_is_removed_unless_a_task_may_still_want_it(tmp_path: Path) -> None:
    for name in ("old", "deep", "new", "held"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    (tmp_path / "blob").touch()
    long_ago = time.time() - 1000
    for path in ("old/file", "old", "held/file", "held", "deep", "blob"):
        os.utime(tmp_path / path, (long_ago, long_ago))
    await _remove_older(tmp_path, time.time() - 500, lambda: {"held"})
    assert sorted(os.listdir(tmp_path)) == ["deep", "held", "new"]


async def test_a_house_is_kept_where_tasks_find_their_things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "EVERY_S", 0.0)
    place = Place(hub="http://hub", folder=tmp_path / "own", environment={}, tasks=tmp_path / "tasks")
    old = place.reached(CHECKPOINTS) / "old"
    for folder in (place.reached(BLOBS), old):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    runtime = Supervisors(place.folder)
    asked = asyncio.Event()

    def in_use() -> tuple[str, ...]:
        """Before each that goes: the second is looked for when the first is gone."""
        if not old.exists():
            asked.set()
        elif not newer.exists():
            newer.mkdir()
            os.utime(newer, (0, 0))
        return ()

    newer = old.with_name("newer")
    keeping = asyncio.get_running_loop().create_task(housekeeping.keep_house(runtime, place.reached, in_use))
    await asyncio.wait_for(asked.wait(), 60)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert not await asyncio.to_thread(old.exists)
