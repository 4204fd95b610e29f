"""Checkpoints follow their tasks: to the hub while they run, and from there to the next attempt."""

import hashlib
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from tests.worker.archives import archive, entry, folder
from tests.worker.conftest import RunningWorker, eventually, running_worker
from tests.worker.scripted_hub import ScriptedHub
from tests.worker.test_outputs import files

WAITS = "while [ ! -e {gate} ]; do sleep 0.02; done"


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that wants the worker to look while the task runs shortens this, too: `looks_often`."""
    monkeypatch.setattr("ostler.worker.carrying.STILL_S", 0.05)


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostler.worker.carrying.LOOK_S", 0.05)


def store(hub: ScriptedHub, data: bytes) -> str:
    sha = hashlib.sha256(data).hexdigest()
    hub.checkpoints[sha] = data
    return sha


async def told_checkpoint(hub: ScriptedHub, but: str = "") -> str:
    """The next one that a heartbeat tells of."""
    while True:
        for task in (await hub.next("heartbeat")).get("active_tasks", []):
            if task.get("checkpoint", but) != but:
                found: str = task["checkpoint"]
                return found


async def run(hub: ScriptedHub, script: str, attempt: str = "a1", **more: Any) -> dict[str, Any]:
    await hub.assign(attempt, "sh", "-c", script, **{"id": "job", **more})
    return await hub.next("job_result")


@pytest.mark.usefixtures("looks_often")
async def test_a_checkpoint_is_brought_while_the_task_runs_and_again_when_it_changes(
    hub: ScriptedHub, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    async with running_worker(hub.url, tmp_path / "w1", heartbeat_s=0.1):
        await hub.next("ready_for_work")
        script = f"cd $OSTLER_CHECKPOINT; echo 1 > step; {WAITS.format(gate=gate)}; echo 2 > step; sleep 600"
        await hub.assign("a1", "sh", "-c", script)
        first = await told_checkpoint(hub)
        assert files(hub.checkpoints[first]) == {"step": b"1\n"}
        for _ in range(3):
            await hub.next("heartbeat")
        assert hub.transfers == ["PUT checkpoints"]
        gate.touch()
        second = await told_checkpoint(hub, but=first)
        assert files(hub.checkpoints[second]) == {"step": b"2\n"}


@pytest.mark.usefixtures("looks_often")
async def test_a_checkpoint_that_is_being_written_is_left_alone(
    hub: ScriptedHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostler.worker.carrying.STILL_S", 0.3)
    gate, steps = tmp_path / "gate", tmp_path / "w1/checkpoints/job-a1/steps"
    script = f"""
        n=0
        while [ ! -e {gate} ]; do n=$((n + 1)); echo $n >> $OSTLER_CHECKPOINT/steps; sleep 0.01; done
        echo end >> $OSTLER_CHECKPOINT/steps
        sleep 600
    """
    async with running_worker(hub.url, tmp_path / "w1", heartbeat_s=0.1):
        await hub.next("ready_for_work")
        await hub.assign("a1", "sh", "-c", script)
        await eventually(lambda: steps.exists() and steps.read_text().count("\n") > 60)
        gate.touch()
        sha = await told_checkpoint(hub)
        while not files(hub.checkpoints[sha])["steps"].endswith(b"\nend\n"):
            sha = await told_checkpoint(hub, but=sha)
        # One look in twenty finds it still on a machine that is busy with other things.
        assert len(hub.transfers) <= 3


@pytest.mark.parametrize(
    ("end", "state"), [("exit 3", "failed"), ("kill -KILL $$", "failed")], ids=["by its exit code", "by a signal"]
)
async def test_what_a_failed_task_left_is_with_the_hub_before_its_result(
    hub: ScriptedHub, worker: RunningWorker, end: str, state: str
) -> None:
    result = await run(hub, f"echo 7 > $OSTLER_CHECKPOINT/step; {end}")
    assert result["state"] == state
    assert files(hub.checkpoints[result["checkpoint_id"]]) == {"step": b"7\n"}


async def test_what_a_drained_task_left_is_with_the_hub_before_its_result(hub: ScriptedHub, tmp_path: Path) -> None:
    async with running_worker(hub.url, tmp_path / "w1", drain_s=0.01) as worker:
        await hub.next("ready_for_work")
        written = tmp_path / "w1/checkpoints/job/step"
        await hub.assign("a1", "sh", "-c", "echo 7 > $OSTLER_CHECKPOINT/step; sleep 600", id="job")
        await eventually(written.exists)
        worker.agent.told_to_leave()
        result = await hub.next("job_result")
        assert (result["state"], result["fault"]) == ("returned", "drain")
        assert files(hub.checkpoints[result["checkpoint_id"]]) == {"step": b"7\n"}


async def test_after_a_success_the_folder_goes(hub: ScriptedHub, worker: RunningWorker, tmp_path: Path) -> None:
    result = await run(hub, "echo 7 > $OSTLER_CHECKPOINT/step")
    assert "checkpoint_id" not in result
    assert hub.transfers == []
    await eventually(lambda: [path.name for path in (tmp_path / "w1/checkpoints").iterdir()] == [])


async def test_a_checkpoint_of_another_worker_takes_the_place_of_what_was_here(
    hub: ScriptedHub, worker: RunningWorker, tmp_path: Path
) -> None:
    await run(hub, "echo old > $OSTLER_CHECKPOINT/mine; exit 1", "a1")
    sha = store(hub, archive(folder("deep"), entry("deep/step", b"8")))
    script = "cd $OSTLER_CHECKPOINT && cat deep/step && ls; exit 1"
    result = await run(hub, script, "a2", checkpoint=sha, checkpoint_by="another")
    assert hub.logs["job", "a2"] == b"8deep\n"
    assert "checkpoint_id" not in result  # the hub has it
    assert hub.transfers == ["PUT checkpoints", "GET checkpoints"]
    assert [path.name for path in (tmp_path / "w1/checkpoints").iterdir()] == ["job"]


async def test_a_checkpoint_that_this_worker_brought_is_not_fetched(hub: ScriptedHub, worker: RunningWorker) -> None:
    first = await run(hub, "echo 1 > $OSTLER_CHECKPOINT/step; exit 1", "a1")
    known = {"checkpoint": first["checkpoint_id"], "checkpoint_by": "w1"}
    second = await run(hub, "cat $OSTLER_CHECKPOINT/step; exit 1", "a2", **known)
    assert hub.logs["job", "a2"] == b"1\n"
    assert hub.transfers == ["PUT checkpoints"]
    assert "checkpoint_id" not in second


async def test_a_checkpoint_that_this_worker_has_lost_is_fetched(hub: ScriptedHub, worker: RunningWorker) -> None:
    sha = store(hub, archive(entry("step", b"8")))
    await run(hub, "cat $OSTLER_CHECKPOINT/step", checkpoint=sha, checkpoint_by="w1")
    assert hub.logs["job", "a1"] == b"8"


HOSTILE = archive(entry("../../outside", b"1"))


@pytest.mark.parametrize(
    ("data", "why"), [(None, "the hub does not have it any more"), (HOSTILE, "leads out of the archive")]
)
async def test_a_task_starts_without_a_checkpoint_that_cannot_be_had(
    hub: ScriptedHub,
    worker: RunningWorker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    data: bytes | None,
    why: str,
) -> None:
    caplog.set_level(logging.WARNING, "ostler.worker")
    sha = store(hub, data) if data else "0" * 64
    result = await run(hub, "ls -A $OSTLER_CHECKPOINT", checkpoint=sha, checkpoint_by="another")
    assert (result["state"], hub.logs["job", "a1"]) == ("succeeded", b"")
    assert f"job starts without its checkpoint {sha}" in caplog.text
    assert why in caplog.text
    assert "outside" not in {name for _, _, names in os.walk(tmp_path) for name in names}


async def test_a_checkpoint_with_an_impossible_name_is_refused(hub: ScriptedHub, worker: RunningWorker) -> None:
    result = await run(hub, "true", checkpoint="../../etc/passwd")
    assert (result["state"], "cannot be the id of a checkpoint" in result["error"]) == ("failed", True)


async def test_a_result_does_not_wait_for_ever_for_its_checkpoint(
    hub: ScriptedHub, worker: RunningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostler.worker.endings.COLLECT_TRIES", 2)
    hub.checkpoint_status = 503
    result = await run(hub, "echo 1 > $OSTLER_CHECKPOINT/step; exit 3")
    assert (result["state"], result["exit_code"]) == ("failed", 3)
    assert "checkpoint_id" not in result
    assert hub.transfers == ["PUT checkpoints"] * 2


@pytest.mark.usefixtures("looks_often")
async def test_a_checkpoint_that_the_hub_refuses_is_not_brought_again(hub: ScriptedHub, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_worker(hub.url, tmp_path / "w1", heartbeat_s=0.1):
        await hub.next("ready_for_work")
        hub.checkpoint_status = 413
        script = f"echo 1 > $OSTLER_CHECKPOINT/step; {WAITS.format(gate=gate)}; exit 3"
        await hub.assign("a1", "sh", "-c", script)
        await hub.until(lambda: hub.transfers)
        for _ in range(5):
            await hub.next("heartbeat")
        gate.touch()
        assert (await hub.next("job_result"))["exit_code"] == 3
    assert hub.transfers == ["PUT checkpoints"]


@pytest.mark.parametrize("script", ["head -c 5000 /dev/zero > big", "ln -s /etc etc; echo 1 > step"])
async def test_a_checkpoint_that_cannot_travel_stays_and_says_so(
    hub: ScriptedHub,
    worker: RunningWorker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    script: str,
) -> None:
    monkeypatch.setattr("ostler.worker.carrying.MAX_BYTES", 4096)
    result = await run(hub, f"cd $OSTLER_CHECKPOINT; {script}; exit 3")
    assert "checkpoint_id" not in result
    assert hub.transfers == []
    assert "the checkpoint of job stays on this machine" in caplog.text
    assert (await run(hub, "ls $OSTLER_CHECKPOINT/*", "a2"))["state"] == "succeeded"


async def test_an_attempt_that_was_called_off_before_its_start_brings_nothing(
    hub: ScriptedHub, worker: RunningWorker
) -> None:
    await run(hub, "echo old > $OSTLER_CHECKPOINT/step; exit 1", "a1")
    hub.broken_blobs.add("0" * 64)
    await hub.assign("a2", "true", id="job", checkpoint="f" * 64, snapshot_id="0" * 64)
    await hub.until(lambda: hub.requests[-1].startswith("/v1/snapshots"))
    await hub.send("job_cancel", task_id="job", attempt="a2", reason="by ann", grace_seconds=1)
    result = await hub.next("job_result")
    assert (result["state"], "checkpoint_id" in result) == ("cancelled", False)
    assert hub.transfers == ["PUT checkpoints"]


async def test_a_worker_that_starts_again_brings_what_its_tasks_have_left(hub: ScriptedHub, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_worker(hub.url, tmp_path / "w1") as first:
        await hub.next("ready_for_work")
        script = f"echo 1 > $OSTLER_CHECKPOINT/step; {WAITS.format(gate=gate)}; exit 3"
        await hub.assign("a1", "sh", "-c", script, id="job")
        await hub.next("job_accepted")
        await first.runtime.close(stop_tasks=False)
    gate.touch()
    async with running_worker(hub.url, tmp_path / "w1"):
        result = await hub.next("job_result")
    assert files(hub.checkpoints[result["checkpoint_id"]]) == {"step": b"1\n"}
