"""A live hub is backed up, works on, is lost with its disk, and comes back from the backup in a new folder."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.diary import Diary
from tests.process_fleet import ProcessFleet, process_fleet, processes_with, until

ONLY_THERE = ("ostler.db*", "hub.url", "*.lock", "workers")
"""What a copy of a hub's folder leaves out: the ledger is in the backup, the rest belongs to running processes."""
TOLD = ("spec", "name", "state", "exit_code", "reason", "attempt", "attempts", "worker", "submitted_at", "finished_at")


class Stream:
    """Short jobs one after the other, from before the backup until after it; what it has is acknowledged."""

    def __init__(self, fleet: ProcessFleet) -> None:
        self.acknowledged: list[str] = []
        self._fleet = fleet
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._stop.wait(0.01):
            spec = {"command": ["echo", "short"], "name": f"short-{len(self.acknowledged)}"}
            self.acknowledged.append(self._fleet.hub.submit(spec)["id"])

    def grow(self, more: int) -> None:
        count = len(self.acknowledged) + more
        until(lambda: len(self.acknowledged) >= count, f"{count} jobs are acknowledged")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[ProcessFleet]:
    with process_fleet(tmp_path, "box") as made:
        yield made


def move(fleet: ProcessFleet, backup: Path, target: Path) -> None:
    """As the documentation says: the ledger from the backup, the folders beside it from a copy, the same address."""
    shutil.copytree(fleet.state, target, ignore=shutil.ignore_patterns(*ONLY_THERE))
    fleet.check_run("restore", str(backup), "--state-dir", str(target))
    fleet.state = target
    fleet.environment["OSTLER_STATE_DIR"] = str(target)
    fleet.start_hub()


def test_what_was_acknowledged_before_a_backup_is_there_after_its_return_and_nothing_runs_twice(
    fleet: ProcessFleet, tmp_path: Path
) -> None:
    diary = Diary(tmp_path / "diary")

    def submit(**more: Any) -> str:
        return str(fleet.hub.submit({**diary.spec(), **more})["id"])

    across, ends_after = submit(env={"DIARY": str(diary.folder), "GATE": "late"}), submit(**diary.spec("early"))
    leaves = submit(command=["sh", "-c", 'echo printed; echo kept > "$1/kept"', "sh", "$OSTLER_OUT"])
    waits = submit(labels=["planet == mars"])
    diary.await_begun(across, ends_after)
    fleet.client.wait(leaves, timeout=60)
    stream = Stream(fleet)
    stream.grow(20)
    before = [*stream.acknowledged, leaves, waits]
    ended = {job["id"]: fleet.hub.job(job["id"]) for job in fleet.hub.all_jobs(state="succeeded")}
    assert leaves in ended and len(ended) > 1

    fleet.check_run("backup", str(tmp_path / "backup.db"))
    stream.grow(20)
    stream.stop()
    diary.open("early")
    fleet.client.wait(ends_after, timeout=60)
    unknown = submit(**diary.spec("never"))
    diary.await_begun(unknown)
    fleet.kill("hub")
    move(fleet, tmp_path / "backup.db", tmp_path / "another")

    fleet.await_workers("box")
    found = {job["id"] for job in fleet.hub.all_jobs()}
    assert set(before) | {across, ends_after} <= found, "all that was acknowledged before it"
    assert unknown not in found
    for job_id, then in ended.items():
        now = fleet.hub.job(job_id)
        assert {key: now[key] for key in TOLD} == {key: then[key] for key in TOLD}
    assert b"".join(fleet.hub.logs(leaves)) == b"printed\n"
    assert fleet.hub.artifact(ended[leaves]["artifact_id"])["id"] == ended[leaves]["artifact_id"]
    assert fleet.hub.job(waits)["state"] == "pending"

    until(lambda: not processes_with(unknown), "what the backup does not know is stopped")
    assert fleet.hub.job(across)["state"] == "running"
    diary.open("late")
    for job_id in (*found - {waits, *ended},):
        assert fleet.client.wait(job_id, timeout=60)["state"] == "succeeded"
    assert diary.seen("begin")[across] == diary.seen("end")[across] == 1, "it was taken back, not run again"
    lines = diary.lines()
    assert set(lines.values()) == {1}, "no attempt began or ended twice"
    assert lines["end", ends_after, fleet.hub.job(ends_after)["attempt"]] == 1
    fleet.await_free("box")
