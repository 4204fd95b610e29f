"""Outputs: packed when a task has succeeded, and with the hub before its result is."""

import asyncio
import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.worker.conftest import RunningWorker, eventually, running_worker
from tests.worker.scripted_hub import ScriptedHub
from tests.worker.test_functions import COMMAND, inline

WRITES = 'echo weights > "$OSTLER_OUT/model.bin"'
LARGE = "head -c 3000000 /dev/urandom > $OSTLER_OUT/model.bin"


def files(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        found = {}
        for entry in tar:
            content = tar.extractfile(entry)
            found[entry.name] = content.read() if content is not None else b"/"
        return found


async def run(hub: ScriptedHub, script: str, attempt: str = "a1", **more: Any) -> dict[str, Any]:
    await hub.assign(attempt, "sh", "-c", script, **more)
    return await hub.next("job_result")


async def test_what_a_task_leaves_is_an_artifact_named_by_its_hash(
    hub: ScriptedHub, worker: RunningWorker, tmp_path: Path
) -> None:
    result = await run(hub, f"{WRITES}; mkdir $OSTLER_OUT/sub; echo 1 > $OSTLER_OUT/sub/x; chmod 700 $OSTLER_OUT/sub/x")
    assert result["state"] == "succeeded"
    data = hub.models[result["artifact_id"]]
    assert hashlib.sha256(data).hexdigest() == result["artifact_id"]
    assert files(data) == {"model.bin": b"weights\n", "sub": b"/", "sub/x": b"1\n"}
    await eventually(lambda: not (tmp_path / "w1/attempts/a1/outputs.tar").exists())


async def test_the_same_files_are_the_same_artifact(hub: ScriptedHub, worker: RunningWorker) -> None:
    ids = {(await run(hub, WRITES, attempt))["artifact_id"] for attempt in ("a1", "a2")}
    assert len(ids) == 1


async def test_a_task_that_leaves_nothing_has_no_artifact_and_costs_no_request(
    hub: ScriptedHub, worker: RunningWorker
) -> None:
    result = await run(hub, "true")
    assert "artifact_id" not in result
    assert (hub.transfers, hub.requests) == ([], [])


async def test_a_task_that_failed_leaves_no_artifact(hub: ScriptedHub, worker: RunningWorker) -> None:
    result = await run(hub, f"{WRITES}; exit 3")
    assert "artifact_id" not in result
    assert hub.transfers == []


async def test_outputs_of_the_spec_are_packed_beside(hub: ScriptedHub, worker: RunningWorker) -> None:
    script = f"{WRITES}; mkdir -p runs/best; echo b > runs/best/w; echo other > runs/other; echo r > report.txt"
    result = await run(hub, script, outputs=["./report.txt", "runs/best/"])
    assert files(hub.models[result["artifact_id"]]) == {
        "model.bin": b"weights\n",
        "report.txt": b"r\n",
        "runs": b"/",
        "runs/best": b"/",
        "runs/best/w": b"b\n",
    }


async def test_the_whole_working_directory_may_be_the_output(hub: ScriptedHub, worker: RunningWorker) -> None:
    result = await run(hub, "echo a > a; mkdir b; ln -s ../a b/link", outputs=["."])
    assert files(hub.models[result["artifact_id"]]) == {"a": b"a\n", "b": b"/", "b/link": b"a\n"}


@pytest.mark.parametrize(
    ("script", "outputs", "error"),
    [
        ("true", ["model.bin"], "the output 'model.bin' is missing"),
        ("ln -s nowhere model.bin", ["model.bin"], "the output 'model.bin' is missing"),
        ("ln -s /etc out", ["out/hostname"], "'out/hostname' leads out of the task's working directory"),
        ("ln -s /etc/hostname x", ["x"], "'x' leads out of the task's working directory"),
        ("mkdir d; ln -s /etc/hostname d/x", ["d"], "is a link to /etc/hostname"),
        ("mkfifo x", ["x"], "is neither a file nor a folder"),
        ("ln -s /etc/hostname $OSTLER_OUT/x", [], "is a link to /etc/hostname"),
        (f"{WRITES}; echo other > model.bin", ["model.bin"], "'model.bin' is both in $OSTLER_OUT and among"),
        (f"{WRITES}; mkdir model.bin", ["model.bin"], "'model.bin' is both in $OSTLER_OUT and among"),
        ("mkdir $OSTLER_OUT/a; echo > $OSTLER_OUT/a/b; echo > a", ["a"], "is both in $OSTLER_OUT and among"),
    ],
)
async def test_an_output_that_cannot_be_packed_fails_the_task_by_its_name(
    hub: ScriptedHub, worker: RunningWorker, script: str, outputs: list[str], error: str
) -> None:
    result = await run(hub, script, outputs=outputs)
    assert result["state"] == "failed"
    assert error in result["error"]
    assert hub.transfers == []


async def test_a_cut_upload_goes_on_where_it_was_cut(hub: ScriptedHub, worker: RunningWorker) -> None:
    hub.model_cuts = [1_000_000, 1_500_000]
    result = await run(hub, LARGE)
    data = hub.models[result["artifact_id"]]
    end = f"{len(data) - 1}/{len(data)}"
    assert [one for one in hub.transfers if one.startswith("PUT")] == [
        "PUT model",
        f"PUT model bytes 1000000-{end}",
        f"PUT model bytes 2500000-{end}",
    ]


async def test_what_the_hub_has_already_is_not_sent(hub: ScriptedHub, worker: RunningWorker) -> None:
    script = "yes | head -c 3000000 > $OSTLER_OUT/model.bin"
    first, second = [await run(hub, script, attempt) for attempt in ("a1", "a2")]
    assert first["artifact_id"] == second["artifact_id"]
    assert hub.transfers == ["HEAD model", "PUT model", "HEAD model"]


async def test_a_damaged_beginning_is_sent_again(hub: ScriptedHub, worker: RunningWorker) -> None:
    hub.model_cuts = [0]
    await hub.assign("a1", "sh", "-c", LARGE)
    await hub.until(lambda: hub.model_parts)
    [sha] = hub.model_parts
    hub.model_parts[sha] = b"nothing of the kind"
    assert (await hub.next("job_result"))["artifact_id"] == sha
    assert len(hub.models[sha]) > 3_000_000


async def test_a_hub_that_refuses_the_outputs_fails_the_task(hub: ScriptedHub, worker: RunningWorker) -> None:
    hub.model_status = 413
    result = await run(hub, WRITES)
    assert (result["state"], result["exit_code"]) == ("failed", 0)
    assert "were not taken: the hub answered 413: not this one" in result["error"]


async def test_a_result_waits_for_its_outputs_while_the_hub_is_broken(hub: ScriptedHub, worker: RunningWorker) -> None:
    hub.model_status = 503
    await hub.assign("a1", "sh", "-c", WRITES)
    await hub.until(lambda: hub.transfers.count("PUT model") >= 2)
    assert hub.count("job_result") == 0
    hub.model_status = 0
    result = await hub.next("job_result")
    assert (result["state"], result["artifact_id"] in hub.models) == ("succeeded", True)


async def test_outputs_of_a_task_that_ended_while_the_hub_was_away_are_brought_when_it_is_back(
    hub: ScriptedHub, worker: RunningWorker, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    await hub.assign("a1", "sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.02; done; {WRITES}")
    await hub.next("job_accepted")
    await hub.stop()
    gate.touch()
    await eventually(lambda: not worker.agent._state.held)
    await hub.start()
    result = await hub.next("job_result")
    assert files(hub.models[result["artifact_id"]]) == {"model.bin": b"weights\n"}


async def test_outputs_of_the_spec_are_known_to_a_worker_that_starts_again(hub: ScriptedHub, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_worker(hub.url, tmp_path / "w1") as first:
        script = f"while [ ! -e {gate} ]; do sleep 0.02; done; echo r > report"
        await hub.next("ready_for_work")
        await hub.assign("a1", "sh", "-c", script, outputs=["report"])
        await hub.next("job_accepted")
        await first.runtime.close(stop_tasks=False)
    gate.touch()
    async with running_worker(hub.url, tmp_path / "w1"):
        result = await hub.next("job_result")
    assert files(hub.models[result["artifact_id"]]) == {"report": b"r\n"}


async def test_a_worker_that_leaves_first_brings_what_still_moves(
    hub: ScriptedHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostler.worker.agent.LAST_WORDS_S", 0.05)
    async with running_worker(hub.url, tmp_path / "w1") as worker:
        await hub.next("ready_for_work")
        hub.model_status = 503
        await hub.assign("a1", "sh", "-c", WRITES)
        await hub.until(lambda: "PUT model" in hub.transfers)
        asked: list[bool] = []
        has_moved = worker.agent._traffic.has_moved
        monkeypatch.setattr(worker.agent._traffic, "has_moved", lambda: asked.append(moved := has_moved()) or moved)
        with worker.agent._traffic.packing():  # something takes longer than last words do
            worker.agent.told_to_leave()
            await eventually(lambda: len(asked) > 3)
            hub.model_status = 0
            assert (await hub.next("job_result"))["state"] == "succeeded"
        assert worker.work is not None
        await asyncio.wait_for(worker.work, 60)


async def test_a_large_value_and_outputs_are_two_things(hub: ScriptedHub, worker: RunningWorker) -> None:
    def both() -> bytes:
        import os

        with open(os.environ["OSTLER_OUT"] + "/x", "w") as file:
            file.write("out")
        return b"x" * 300_000

    await hub.assign("a1", *COMMAND, metadata=inline(("call", both, (), {})))
    result = await hub.next("job_result")
    assert files(hub.models[result["artifact_id"]]) == {"x": b"out"}
    assert len(hub.blobs[result["result_id"]]) > 300_000


async def test_metrics_come_with_the_result(hub: ScriptedHub, worker: RunningWorker) -> None:
    told = 'echo {\\"loss\\": 0.5}; echo {\\"acc\\": 1} > "$OSTLER_OUT/metrics.jsonl"'
    assert (await run(hub, told))["metrics"] == {"acc": 1.0, "loss": 0.5}
    failed = await run(hub, f"{told}; exit 1", "a2")
    assert (failed["state"], failed["metrics"]) == ("failed", {"acc": 1.0, "loss": 0.5})


async def test_a_failure_says_what_the_task_said_last(hub: ScriptedHub, worker: RunningWorker) -> None:
    result = await run(hub, "echo fine; echo ValueError: loss is not finite >&2; exit 3")
    assert result["error"] == "exit code 3: ValueError: loss is not finite"
    killed = await run(hub, "echo half way; kill -KILL $$", "a2")
    assert killed["error"] == "exit code 137 (SIGKILL)"


async def test_folders_are_put_into_arguments(hub: ScriptedHub, worker: RunningWorker) -> None:
    script = 'test "$1" = "--out=$OSTLER_OUT/m" && test "$2" = "$OSTLER_CHECKPOINT" && test "$3" = \'$OSTLER_\'OUTPUT'
    more = {"prolog": ["mkdir", "$OSTLER_OUT/m"], "epilog": ["touch", "$OSTLER_OUT/m/end"]}
    words = ("--out=$OSTLER_OUT/m", "$OSTLER_CHECKPOINT", "$OSTLER_OUTPUT")
    await hub.assign("a1", "sh", "-c", script, "sh", *words, **more)
    result = await hub.next("job_result")
    assert result["state"] == "succeeded", hub.logs
    assert files(hub.models[result["artifact_id"]]) == {"m": b"/", "m/end": b""}
