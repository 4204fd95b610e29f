"""Little room on the hub's disk: nothing new is taken in, and what runs comes to its end."""

import hashlib
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub
from tests.protocol.puller import MANIFEST, apply

from ostler.domain.errors import BadInput, NoSpace
from ostler.domain.quantities import MIB
from ostler.hub.disk import MOST_RESERVED, Disk, DiskSettings, read_disk, room_at
from ostler.hub.settings import Settings
from ostler.store.blobs import BlobStore
from ostler.store.folder import Folder
from ostler.store.uploads import Uploads

MORE_THAN_THERE_IS = 2**60


async def fill_up(hub: RunningHub) -> Api:
    """The hub on a disk of which it may use nothing more."""
    hub.settings = Settings(disk=DiskSettings(reserve=MORE_THAN_THERE_IS))
    await hub.restart()
    return hub.api


async def test_a_submit_is_refused_with_507_and_says_what_to_do(hub: RunningHub) -> None:
    api = await fill_up(hub)
    problem = (await api.call("POST", "/v1/jobs", json={"command": ["true"]})).problem(507)
    assert f"the disk of {hub.state} has" in problem["detail"]
    assert "an operator makes room there, or lowers `reserve` under [disk]" in problem["detail"]
    assert (await api.call("POST", "/v1/jobs", json=[{"command": ["true"]}])).status == 507
    assert (await api.get("/v1/jobs"))["jobs"] == []


async def test_a_manifest_is_refused_and_may_be_planned(hub: RunningHub) -> None:
    api = await fill_up(hub)
    (await apply(api)).problem(507)
    assert (await apply(api, MANIFEST, "?plan=1")).status == 200


async def test_what_runs_ends_and_what_waits_can_be_cancelled(hub: RunningHub) -> None:
    worker = await hub.worker(slots=1)
    runs, waits = await hub.api.submit(name="runs"), await hub.api.submit(name="waits")
    task = await worker.take(runs)
    await worker.drop()
    api = await fill_up(hub)
    await hub.join(worker, active=[task])
    (await api.call("POST", "/v1/jobs", json={"command": ["true"]})).problem(507)
    assert (await api.cancel(waits))["state"] == "cancelled"
    await worker.end(task)
    assert await api.state(runs) == "succeeded"


async def test_a_snapshot_is_refused_and_a_result_is_taken(hub: RunningHub) -> None:
    api = await fill_up(hub)
    result = b"what a worker brings"
    path = f"/v1/snapshots/{hashlib.sha256(result).hexdigest()}"
    (await api.call("PUT", path, data=result)).problem(507)
    assert (await hub.caller(hub.join_token).call("PUT", path, data=result)).status == 201


async def test_status_and_metrics_tell_of_it(hub: RunningHub) -> None:
    [there] = (await hub.api.get("/v1/status"))["disk"]
    assert (there["folder"], there["low"]) == (str(hub.state), False)
    assert 0 < there["free_bytes"] <= there["total_bytes"]
    api = await fill_up(hub)
    [low] = (await api.get("/v1/status"))["disk"]
    assert (low["reserve_bytes"], low["low"]) == (MORE_THAN_THERE_IS, True)
    metrics = (await api.call("GET", "/metrics")).body.decode()
    assert f'ostler_disk_low{{folder="{hub.state}"}} 1.0' in metrics
    assert f'ostler_disk_free_bytes{{folder="{hub.state}"}}' in metrics


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("only root mounts disks: run the tests as root")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


async def test_what_is_brought_leaves_room_for_the_ledger_on_a_small_disk_and_has_the_rest_of_it(small: Path) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            least.append(shutil.disk_usage(small).free)
            yield bytes(MIB)

    least: list[int] = []
    blobs = BlobStore(small / "blobs")
    with pytest.raises(NoSpace, match="the hub's disk is full; nothing was kept"):
        await blobs.put("0" * 64, endless(), to_the_last=True)
    for put in (blobs.put, Uploads(small / "parts", Folder(small / "objects", "artifact")).put):
        least.clear()
        with pytest.raises(NoSpace, match="do not fit"):
            await put("0" * 64, endless())
        assert 0 < min(least) < 4 * MIB


def test_there_is_room_again_as_soon_as_it_was_made(tmp_path: Path) -> None:
    filler = tmp_path / "filler"
    filler.write_bytes(bytes(64 * 1024 * 1024))
    disk = Disk([tmp_path], DiskSettings(reserve=shutil.disk_usage(tmp_path).free + 32 * 1024 * 1024))
    with pytest.raises(NoSpace):
        disk.refuse_if_low()
    filler.unlink()
    disk.look()
    disk.refuse_if_low()


def test_folders_on_one_disk_are_looked_at_once(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    disk = Disk([tmp_path, tmp_path / "store"], DiskSettings())
    assert [one["folder"] for one in disk.document()] == [str(tmp_path)]


def test_of_a_small_disk_a_twentieth_is_kept(tmp_path: Path) -> None:
    room = room_at(tmp_path, DiskSettings())
    assert room.reserve == min(MOST_RESERVED, int(room.total * 0.05))
    assert room_at(tmp_path, DiskSettings(reserve=5)).reserve == 5


def test_the_reserve_is_read_as_a_size() -> None:
    assert read_disk({}) == DiskSettings()
    assert read_disk({"reserve": "2g"}) == DiskSettings(2 * 1024**3)
    for wrong in ({"reserve": True}, {"reserve": "much"}, {"reserved": "2g"}, {"reserve": [1]}):
        with pytest.raises(BadInput):
            read_disk(wrong)
