"""A checkpoint goes where its task goes: a worker is killed or drained, and another one carries on from there."""

import contextlib
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.process_fleet import ProcessFleet, process_fleet, processes_with, until

HURRIED = (sys.executable, str(Path(__file__).with_name("hurried_checkpoints.py")))
STEPS = """
cd "$OSTLER_CHECKPOINT"
echo "$OSTLER_ATTEMPT begins after $(cat deep/step 2>/dev/null || echo nothing)"
test -e deep/step && exit 0
mkdir deep && echo "step 7" > deep/step
exec sleep 600
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[ProcessFleet]:
    with process_fleet(tmp_path, "a", program=HURRIED) as made:
        yield made


def begin_on_a(fleet: ProcessFleet, **more: Any) -> str:
    """A job that has written its checkpoint on the only worker; a second worker is ready to go on with it."""
    job_id: str = fleet.hub.submit({"command": ["sh", "-c", STEPS], **more})["id"]
    until(lambda: list(fleet.state.glob("workers/a/checkpoints/*/deep/step")), "the checkpoint is written")
    fleet.start_worker("b")
    fleet.await_workers("b")
    return job_id


def recorded_checkpoint(fleet: ProcessFleet, job_id: str) -> str:
    with contextlib.closing(sqlite3.connect(f"file:{fleet.state / 'ostler.db'}?mode=ro", uri=True)) as ledger:
        row = ledger.execute("SELECT checkpoint FROM tasks WHERE id = ?", (job_id,)).fetchone()
    return row[0] if row else ""


def check_it_went_on_at_b(fleet: ProcessFleet, job_id: str) -> None:
    ended = fleet.client.wait(job_id, timeout=60)
    assert (ended["state"], ended["worker"]) == ("succeeded", "b"), ended
    assert len(ended["attempts"]) == 2
    assert fleet.check_run("logs", job_id).stdout.endswith("begins after step 7\n")
    until(lambda: not list(fleet.state.glob("workers/b/checkpoints/*/deep")), "the checkpoint is removed")


def test_a_killed_machine_loses_no_step_that_it_had_written(fleet: ProcessFleet) -> None:
    job_id = begin_on_a(fleet)
    until(lambda: recorded_checkpoint(fleet, job_id), "the hub has the checkpoint")
    fleet.kill("a")
    for process in processes_with(str(fleet.state / "workers" / "a")):
        process.kill()
    check_it_went_on_at_b(fleet, job_id)


def test_a_drained_worker_hands_its_tasks_over_with_their_last_step(fleet: ProcessFleet) -> None:
    job_id = begin_on_a(fleet)
    assert fleet.terminate("a") == 0
    check_it_went_on_at_b(fleet, job_id)


def test_a_failed_task_goes_on_where_it_was_if_it_is_tried_again(fleet: ProcessFleet) -> None:
    script = STEPS.replace("exec sleep 600", "exit 3")
    job_id = fleet.hub.submit({"command": ["sh", "-c", script], "max_retries": 1})["id"]
    ended = fleet.client.wait(job_id, timeout=60)
    assert (ended["state"], len(ended["attempts"])) == ("succeeded", 2), ended
    assert fleet.check_run("logs", job_id).stdout.endswith("begins after step 7\n")
