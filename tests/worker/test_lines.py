"""Tasks that were sent ahead, of which the first still needs something: those behind it are launched with it."""

import hashlib
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from tests.worker.conftest import RunningWorker, eventually, running_worker
from tests.worker.scripted_hub import ScriptedHub, assignment

COMMAND = ("{python}", "-m", "ostler.task.call")


class Line:
    """`a1` waits for its payload; each of the others notes itself in a file, and comes after the one before it."""

    def __init__(self, hub: ScriptedHub, folder: Path) -> None:
        self.hub = hub
        self.notes = folder / "notes"
        self.payload = _noting(self.notes, "a1")
        self.sha = hashlib.sha256(self.payload).hexdigest()

    async def assign(self, *others: str) -> None:
        """In one frame, as they come. `a1` asks for its payload, which is not to be had yet."""
        self.hub.broken_blobs.add(self.sha)
        first = assignment("a1", *COMMAND, metadata={"ostler.call": {"blob": self.sha}})
        before = ["a1", *others]
        await self.hub.send_batch(
            ("job_assign", first), *(("job_assign", self.one(name, before[at])) for at, name in enumerate(others))
        )
        await self.hub.until(lambda: self.hub.requests)

    def one(self, name: str, after: str, **more: Any) -> dict[str, Any]:
        return assignment(name, "sh", "-c", f"echo {name} >>{self.notes}", after=[after], **more)

    def let_have(self) -> None:
        self.hub.blobs[self.sha] = self.payload
        self.hub.broken_blobs.clear()

    async def ends(self, count: int) -> dict[str, str]:
        found = [await self.hub.next("job_result") for _ in range(count)]
        return {end["attempt"]: end["state"] for end in found}

    def noted(self) -> list[str]:
        return self.notes.read_text().split() if self.notes.exists() else []


def _noting(path: Path, name: str) -> bytes:
    """A call that travels by value: a worker has none of this module."""
    return cloudpickle.dumps(("call", lambda path, name: open(path, "a").write(f"{name}\n"), (str(path), name), {}))


@pytest.fixture
async def line(hub: ScriptedHub, worker: RunningWorker, tmp_path: Path) -> Line:
    return Line(hub, tmp_path)


async def test_those_behind_one_that_waits_for_its_payload_run_after_it_one_by_one(line: Line) -> None:
    await line.assign("a2", "a3", "a4")
    assert line.noted() == []
    line.let_have()
    assert await line.ends(4) == dict.fromkeys(("a1", "a2", "a3", "a4"), "succeeded")
    assert line.noted() == ["a1", "a2", "a3", "a4"]


async def test_one_that_is_cancelled_in_its_line_does_not_run_and_those_behind_it_do(line: Line) -> None:
    await line.assign("a2", "a3")
    await line.hub.send("job_cancel", task_id="job-a2", attempt="a2", reason="by ann", grace_seconds=1)
    assert await line.ends(1) == {"a2": "cancelled"}
    line.let_have()
    assert await line.ends(2) == {"a1": "succeeded", "a3": "succeeded"}
    assert line.noted() == ["a1", "a3"]


async def test_those_behind_one_that_is_cancelled_while_it_waits_for_its_payload_run(line: Line) -> None:
    await line.assign("a2", "a3")
    await line.hub.send("job_cancel", task_id="job-a1", attempt="a1", reason="by ann", grace_seconds=1)
    assert await line.ends(3) == {"a1": "cancelled", "a2": "succeeded", "a3": "succeeded"}
    assert line.noted() == ["a2", "a3"]


async def test_who_stands_behind_one_that_is_cancelled_waits_for_the_one_before_that(
    line: Line, tmp_path: Path
) -> None:
    over = tmp_path / "over"
    await line.hub.assign("a0", "sh", "-c", f"until [ -e {over} ]; do sleep 0.02; done; echo a0 >>{line.notes}")
    line.hub.broken_blobs.add(line.sha)
    first = assignment("a1", *COMMAND, after=["a0"], metadata={"ostler.call": {"blob": line.sha}})
    await line.hub.send_batch(("job_assign", first), ("job_assign", line.one("a2", "a1")))
    await line.hub.until(lambda: line.hub.requests)
    await line.hub.send("job_cancel", task_id="job-a1", attempt="a1", reason="by ann", grace_seconds=1)
    assert await line.ends(1) == {"a1": "cancelled"}
    await line.hub.assign("b", "sleep", "0.1")  # as long as one that did not wait would have needed
    assert await line.ends(1) == {"b": "succeeded"}
    over.touch()
    assert await line.ends(2) == {"a0": "succeeded", "a2": "succeeded"}
    assert line.noted() == ["a0", "a2"]


async def test_those_behind_one_whose_payload_the_hub_does_not_have_run(line: Line) -> None:
    await line.assign("a2", "a3")
    line.hub.broken_blobs.clear()
    assert await line.ends(3) == {"a1": "failed", "a2": "succeeded", "a3": "succeeded"}
    assert line.noted() == ["a2", "a3"]


async def test_one_that_needs_something_too_comes_after_the_one_that_it_stands_behind(line: Line) -> None:
    other = _noting(line.notes, "a3")
    sha = hashlib.sha256(other).hexdigest()
    line.hub.blobs[sha] = other
    await line.assign("a2")
    third = assignment("a3", *COMMAND, after=["a2"], metadata={"ostler.call": {"blob": sha}})
    await line.hub.send_batch(("job_assign", third), ("job_assign", line.one("a4", "a3")))
    await line.hub.until(lambda: f"/v1/snapshots/{sha}" in line.hub.requests)
    line.let_have()
    assert await line.ends(4) == dict.fromkeys(("a1", "a2", "a3", "a4"), "succeeded")
    assert line.noted() == ["a1", "a2", "a3", "a4"]


async def test_a_worker_that_is_stopped_launches_none_of_a_line(hub: ScriptedHub, tmp_path: Path) -> None:
    async with running_worker(hub.url, tmp_path / "w1") as worker:
        await hub.next("register")
        line = Line(hub, tmp_path)
        await line.assign("a2", "a3")
        await worker.agent._starts.close()
        assert not (tmp_path / "w1/attempts/a2").exists()
    assert line.noted() == []


def in_one_message(first: str, *others: str, script: str, **more: Any) -> dict[str, Any]:
    """A line, as a hub tells it to a worker that takes it so."""
    line = [[f"job-{name}", name, at] for at, name in enumerate(others, 1)]
    return assignment(first, "sh", "-c", script, index=0, line=line, **more)


async def test_a_line_in_one_message_runs_one_after_the_other_each_with_its_own_names(
    hub: ScriptedHub, worker: RunningWorker, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    script = (
        f"echo $OSTLER_JOB_ID $OSTLER_TASK_ID $OSTLER_ATTEMPT $OSTLER_INDEX $A >>{said}; test -d $OSTLER_CHECKPOINT"
    )
    await hub.send("job_assign", **in_one_message("a1", "a2", "a3", "a4", script=script, env={"A": "b"}))
    ends = [await hub.next("job_result") for _ in range(4)]
    assert {end["attempt"]: end["state"] for end in ends} == dict.fromkeys(("a1", "a2", "a3", "a4"), "succeeded")
    assert said.read_text().splitlines() == [f"job-a{n} job-a{n} a{n} {n - 1} b" for n in range(1, 5)]


async def test_each_of_a_line_leaves_its_outputs_under_its_own_name(hub: ScriptedHub, worker: RunningWorker) -> None:
    script = "echo $OSTLER_ATTEMPT >$OSTLER_OUT/it; echo $OSTLER_ATTEMPT was here"
    await hub.send("job_assign", **in_one_message("a1", "a2", "a3", script=script))
    ends = [await hub.next("job_result") for _ in range(3)]
    assert len({end["artifact_id"] for end in ends}) == 3
    assert {name: log.decode() for (_, name), log in hub.logs.items()} == {
        f"a{n}": f"a{n} was here\n" for n in (1, 2, 3)
    }


async def test_one_of_a_line_that_cannot_be_understood_fails_and_the_others_run(
    hub: ScriptedHub, worker: RunningWorker, tmp_path: Path
) -> None:
    message = in_one_message("a1", "a2", "a3", script=f"echo $OSTLER_ATTEMPT >>{tmp_path}/ran")
    message["line"][0][0] = "../job"
    await hub.send("job_assign", **message)
    ends = {end["attempt"]: end for end in [await hub.next("job_result") for _ in range(3)]}
    assert [ends[name]["state"] for name in ("a1", "a2", "a3")] == ["succeeded", "failed", "succeeded"]
    assert "cannot be the id of a task" in ends["a2"]["error"]
    assert (tmp_path / "ran").read_text().split() == ["a1", "a3"]


async def test_a_spec_that_cannot_be_understood_fails_all_of_its_line(hub: ScriptedHub, worker: RunningWorker) -> None:
    message = in_one_message("a1", "a2", script="true")
    message["spec"]["command"] = []
    await hub.send("job_assign", **message)
    ends = [await hub.next("job_result") for _ in range(2)]
    assert [(end["attempt"], end["state"]) for end in ends] == [("a1", "failed"), ("a2", "failed")]
    assert {end["error"] for end in ends} == {"the spec has no command"}


async def test_results_that_are_acknowledged_together_are_told_no_more(hub: ScriptedHub, worker: RunningWorker) -> None:
    hub.acknowledges.discard("job_result")
    await hub.send("job_assign", **in_one_message("a1", "a2", script="true"))
    for _ in range(2):
        await hub.next("job_result")
    assert not worker.agent._state.is_quiet
    await hub.send("ack", of="job_result", attempts=["a1", "a2"])
    await eventually(lambda: worker.agent._state.is_quiet)
