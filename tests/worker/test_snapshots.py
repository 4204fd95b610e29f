"""Snapshots: fetched once, unpacked, and a copy of its own for each attempt."""

import asyncio
from pathlib import Path

import pytest
from tests.worker.archives import archive, entry, folder, sha256
from tests.worker.conftest import RunningWorker, eventually, running_worker
from tests.worker.scripted_hub import ScriptedHub

PROGRAM = archive(folder("src"), entry("src/say.sh", b"#!/bin/sh\necho said; echo more >> src/say.sh\n", mode=0o755))
ID = sha256(PROGRAM)


def put(hub: ScriptedHub, data: bytes) -> str:
    hub.blobs[sha256(data)] = data
    return sha256(data)


async def test_a_task_runs_in_its_own_copy_of_its_snapshot(
    hub: ScriptedHub, worker: RunningWorker, tmp_path: Path
) -> None:
    put(hub, PROGRAM)
    for attempt in ("a1", "a2"):
        await hub.assign(attempt, "./src/say.sh", snapshot_id=ID)
        result = await hub.next("job_result")
        assert (result["state"], hub.logs[f"job-{attempt}", attempt]) == ("succeeded", b"said\n")
        work = tmp_path / "w1/attempts" / attempt / "work"
        await eventually(lambda work=work: not work.exists())
    assert hub.requests.count(f"/v1/snapshots/{ID}") == 1
    assert (tmp_path / "w1/snapshots" / ID / "src/say.sh").read_bytes().endswith(b"src/say.sh\n")


async def test_many_tasks_at_once_fetch_it_once(hub: ScriptedHub, worker: RunningWorker) -> None:
    put(hub, PROGRAM)
    for n in range(6):
        await hub.assign(f"a{n}", "./src/say.sh", snapshot_id=ID)
    assert [(await hub.next("job_result"))["state"] for _ in range(6)] == ["succeeded"] * 6
    assert hub.requests.count(f"/v1/snapshots/{ID}") == 1


async def test_what_is_here_is_told_and_a_next_start_still_has_it(hub: ScriptedHub, tmp_path: Path) -> None:
    put(hub, PROGRAM)
    async with running_worker(hub.url, tmp_path / "w1", heartbeat_s=0.1):
        assert "snapshots" not in (await hub.next("register"))["capabilities"]
        await hub.send("prewarm_hint", task_id="t", snapshot_id=ID)
        await hub.until(lambda: any(one.get("capability", {}).get("snapshots") for _, one in hub.messages))
    (tmp_path / "w1/snapshots/.half").mkdir()
    (tmp_path / "w1/snapshots" / ("0" * 64)).mkdir()
    async with running_worker(hub.url, tmp_path / "w1"):
        assert (await hub.next("register"))["capabilities"]["snapshots"] == [ID]
        await hub.assign("a1", "./src/say.sh", snapshot_id=ID)
        assert (await hub.next("job_result"))["state"] == "succeeded"
    assert hub.requests.count(f"/v1/snapshots/{ID}") == 1
    assert {path.name for path in (tmp_path / "w1/snapshots").iterdir()} == {ID, "index.json"}


async def test_the_hub_learns_of_a_new_snapshot_before_the_next_heartbeat_is_due(
    hub: ScriptedHub, tmp_path: Path
) -> None:
    put(hub, PROGRAM)
    async with running_worker(hub.url, tmp_path / "w1", heartbeat_s=3600.0):
        await hub.next("register")
        await hub.send("prewarm_hint", task_id="t", snapshot_id=ID)
        await hub.until(lambda: any(one.get("capability", {}).get("snapshots") == [ID] for _, one in hub.messages))


async def test_after_a_restart_of_the_machine_everything_is_fetched_anew(hub: ScriptedHub, tmp_path: Path) -> None:
    put(hub, PROGRAM)
    async with running_worker(hub.url, tmp_path / "w1"):
        await hub.next("register")
        await hub.assign("a1", "./src/say.sh", snapshot_id=ID)
        await hub.next("job_result")
    index = tmp_path / "w1/snapshots/index.json"
    index.write_text(index.read_text().replace('"boot":"', '"boot":"another-'))
    async with running_worker(hub.url, tmp_path / "w1"):
        assert "snapshots" not in (await hub.next("register"))["capabilities"]
    assert not (tmp_path / "w1/snapshots" / ID).exists()


async def test_the_least_recently_used_goes_when_there_is_no_room(hub: ScriptedHub, tmp_path: Path) -> None:
    ids = [put(hub, archive(entry("data", bytes([n]) * 1000))) for n in range(4)]
    async with running_worker(hub.url, tmp_path / "w1", snapshot_bytes=2500) as worker:
        await hub.next("register")
        for n, use in enumerate([0, 1, 0, 2, 3]):
            await hub.assign(f"a{n}", "true", snapshot_id=ids[use])
            assert (await hub.next("job_result"))["state"] == "succeeded"
        assert worker.agent._snapshots.ids() == [ids[3], ids[2]]
        await eventually(lambda: len(list((tmp_path / "w1/snapshots").iterdir())) == 3)


async def test_a_snapshot_that_the_hub_does_not_have_fails_its_task(hub: ScriptedHub, worker: RunningWorker) -> None:
    await hub.assign("a1", "true", snapshot_id=ID)
    result = await hub.next("job_result")
    assert (result["state"], result["error"]) == ("failed", f"the hub has no snapshot {ID}")


async def test_an_archive_that_is_not_one_fails_its_task_and_leaves_nothing(
    hub: ScriptedHub, worker: RunningWorker, tmp_path: Path
) -> None:
    bad = put(hub, archive(entry("fine", b"1"), entry("../outside", b"1")))
    await hub.assign("a1", "true", snapshot_id=bad)
    result = await hub.next("job_result")
    assert result["state"] == "failed"
    assert result["error"] == f"snapshot {bad} cannot be used: '../outside' leads out of the archive"
    assert {path.name for path in (tmp_path / "w1/snapshots").iterdir()} == {"index.json"}
    assert not (tmp_path / "w1/attempts/a1").exists()


@pytest.mark.parametrize("how", ["broken", "something else"])
async def test_a_fetch_that_fails_three_times_hands_the_task_back(
    hub: ScriptedHub, worker: RunningWorker, how: str
) -> None:
    if how == "broken":
        hub.broken_blobs.add(ID)
    hub.blobs[ID] = b"something else"
    await hub.assign("a1", "true", snapshot_id=ID)
    result = await hub.next("job_result")
    assert (result["state"], result["fault"]) == ("returned", "worker")
    assert "could not be fetched, 3 times" in result["error"]
    assert hub.requests.count(f"/v1/snapshots/{ID}") == 3


async def test_a_hub_that_is_broken_once_costs_nothing(hub: ScriptedHub, worker: RunningWorker) -> None:
    put(hub, PROGRAM)
    hub.broken_blobs.add(ID)
    await hub.assign("a1", "./src/say.sh", snapshot_id=ID)
    await hub.until(lambda: hub.requests)
    hub.broken_blobs.clear()
    assert (await hub.next("job_result"))["state"] == "succeeded"


async def test_a_task_can_be_cancelled_while_its_snapshot_is_fetched(
    hub: ScriptedHub, worker: RunningWorker, tmp_path: Path
) -> None:
    hub.broken_blobs.add(ID)
    await hub.assign("a1", "true", snapshot_id=ID)
    await hub.until(lambda: hub.requests)
    await hub.send("job_cancel", task_id="job-a1", attempt="a1", reason="by ann", grace_seconds=1)
    result = await hub.next("job_result")
    assert (result["state"], result["error"]) == ("cancelled", "by ann")
    await eventually(lambda: not (tmp_path / "w1/attempts/a1").exists())


@pytest.mark.parametrize("name", ["../../x", "A" * 64, "0" * 63])
async def test_an_id_that_is_no_hash_is_refused(hub: ScriptedHub, worker: RunningWorker, name: str) -> None:
    await hub.send("prewarm_hint", task_id="t", snapshot_id=name)
    await hub.assign("a1", "true", snapshot_id=name)
    result = await hub.next("job_result")
    assert result["state"] == "failed"
    assert "cannot be the id of a snapshot" in result["error"]
    assert not hub.requests


async def test_a_large_snapshot_does_not_hold_up_the_worker(hub: ScriptedHub, worker: RunningWorker) -> None:
    large = put(hub, archive(*(entry(f"d{n % 50}/f{n}", b"x" * 4000) for n in range(5000))))
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        clock = asyncio.get_running_loop().time
        while True:
            before = clock()
            await asyncio.sleep(0.01)
            longest = max(longest, clock() - before)

    watching = asyncio.create_task(watch())
    await hub.assign("a1", "sh", "-c", "test $(ls d7 | wc -l) = 100", snapshot_id=large)
    assert (await hub.next("job_result"))["state"] == "succeeded"
    watching.cancel()
    assert longest < 1.0
