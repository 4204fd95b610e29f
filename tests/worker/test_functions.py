"""Functions as tasks: their payload on the way in, their value on the way out."""

import base64
import hashlib
import pickle
import sys
from pathlib import Path
from typing import Any

import cloudpickle
from tests.worker.conftest import RunningWorker, running_worker
from tests.worker.scripted_hub import ScriptedHub, assignment

COMMAND = ("{python}", "-m", "ostler.task.call")


def inline(payload: Any) -> dict[str, Any]:
    return {"ostler.call": {"inline": base64.b64encode(cloudpickle.dumps(payload)).decode()}}


def value(result: dict[str, Any]) -> Any:
    return pickle.loads(base64.b64decode(result["result"]))


async def test_a_functions_value_comes_with_its_result(hub: ScriptedHub, worker: RunningWorker) -> None:
    await hub.assign("a1", *COMMAND, metadata=inline(("call", lambda a: a + 1, (41,), {})))
    result = await hub.next("job_result")
    assert result["state"] == "succeeded"
    assert value(result) == ("value", 42)
    assert hub.requests == []


async def test_a_functions_exception_comes_with_its_result_and_in_the_log(
    hub: ScriptedHub, worker: RunningWorker
) -> None:
    await hub.assign("a1", *COMMAND, metadata=inline(("call", lambda: 1 / 0, (), {})))
    result = await hub.next("job_result")
    assert (result["state"], result["exit_code"]) == ("failed", 1)
    kind, error, text, name = value(result)
    assert (kind, type(error), name) == ("error", ZeroDivisionError, "ZeroDivisionError")
    assert hub.logs["job-a1", "a1"].decode() == text


async def test_a_map_takes_its_payload_from_the_hub_once_for_all_its_tasks(
    hub: ScriptedHub, worker: RunningWorker
) -> None:
    data = cloudpickle.dumps(("map", lambda n: n * n, [(n,) for n in range(4)]))
    sha = hashlib.sha256(data).hexdigest()
    hub.blobs[sha] = data
    for n in range(4):
        call = {"ostler.call": {"blob": sha}}
        await hub.assign(f"a{n}", *COMMAND, id=f"job.{n}", index=n, metadata=call)
    results = [await hub.next("job_result") for _ in range(4)]
    assert {result["task_id"]: value(result)[1] for result in results} == {
        "job.0": 0,
        "job.1": 1,
        "job.2": 4,
        "job.3": 9,
    }
    assert hub.requests == [f"/v1/snapshots/{sha}"]


async def test_a_payload_that_the_hub_does_not_have_fails_the_task(hub: ScriptedHub, worker: RunningWorker) -> None:
    await hub.assign("a1", *COMMAND, metadata={"ostler.call": {"blob": "0" * 64}})
    result = await hub.next("job_result")
    assert result["state"] == "failed"
    assert "404" in result["error"]


async def test_one_behind_another_whose_payload_is_not_there_waits_for_the_one_that_runs(
    hub: ScriptedHub, worker: RunningWorker, tmp_path: Path
) -> None:
    over = tmp_path / "over"
    await hub.assign("a1", "sh", "-c", f"until [ -e {over} ]; do sleep 0.02; done")
    missing = {"ostler.call": {"blob": "0" * 64}}
    await hub.send_batch(
        ("job_assign", assignment("a2", *COMMAND, after=["a1"], metadata=missing)),
        ("job_assign", assignment("a3", "test", "-e", str(over), after=["a2"])),
    )
    assert (await hub.next("job_result"))["attempt"] == "a2"
    over.touch()
    ends = [await hub.next("job_result") for _ in range(2)]
    assert {end["attempt"]: end["state"] for end in ends} == {"a1": "succeeded", "a3": "succeeded"}


async def test_a_task_can_be_cancelled_while_its_payload_is_fetched(hub: ScriptedHub, tmp_path: Path) -> None:
    async with running_worker(hub.url, tmp_path / "w1") as worker:
        await hub.next("register")
        sha = "0" * 64
        hub.broken_blobs.add(sha)  # the worker keeps asking: a hub may be broken for a while
        await hub.assign("a1", *COMMAND, metadata={"ostler.call": {"blob": sha}})
        await hub.until(lambda: hub.requests)
        await hub.send("job_cancel", task_id="job-a1", attempt="a1", reason="by ann", grace_seconds=1)
        result = await hub.next("job_result")
        assert (result["state"], result["error"]) == ("cancelled", "by ann")
        assert not worker.agent._starts._preparing


async def test_a_large_value_goes_to_the_hub_as_a_blob(hub: ScriptedHub, worker: RunningWorker) -> None:
    await hub.assign("a1", *COMMAND, metadata=inline(("call", lambda: b"x" * 300_000, (), {})))
    result = await hub.next("job_result")
    assert "result" not in result
    assert pickle.loads(hub.blobs[result["result_id"]]) == ("value", b"x" * 300_000)


async def test_the_largest_value_that_travels_with_the_result_fits_the_protocol(
    hub: ScriptedHub, worker: RunningWorker
) -> None:
    spare = len(cloudpickle.dumps(("value", b"x" * 40_000))) - 40_000
    await hub.assign("a1", *COMMAND, metadata=inline(("call", lambda n: b"x" * n, (48 * 1024 - spare,), {})))
    result = await hub.next("job_result")
    assert len(result["result"]) == 64 * 1024


async def test_a_function_runs_in_the_workers_own_interpreter(hub: ScriptedHub, worker: RunningWorker) -> None:
    def executable() -> str:
        import sys

        return sys.executable

    await hub.assign("a1", *COMMAND, metadata=inline(("call", executable, (), {})))
    assert value(await hub.next("job_result")) == ("value", sys.executable)


async def test_a_payload_that_cannot_be_read_fails_the_task(hub: ScriptedHub, worker: RunningWorker) -> None:
    await hub.assign("a1", *COMMAND, metadata={"ostler.call": {"inline": "!!"}})
    result = await hub.next("job_result")
    assert result["state"] == "failed"
    assert "base64" in result["error"]
