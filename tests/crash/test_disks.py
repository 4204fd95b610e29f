"""A hub on a disk that fails, stands still or is full: it stops with a clear word or waits, and nothing is lost."""

import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.process_fleet import ProcessFleet, until

from ostler.client import Patience
from ostler.client.errors import HubFailed, HubUnreachable
from ostler.client.http import Hub
from ostler.domain.errors import NoSpace

PROGRAM = (sys.executable, str(Path(__file__).with_name("faulty_hub.py")))
IDLE = {"command": ["true"]}


class FaultyDiskFleet(ProcessFleet):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, PROGRAM)
        self.broken, self.stuck = folder / "broken", folder / "stuck"
        self.environment |= {"BROKEN": str(self.broken), "STUCK": str(self.stuck)}

    def ends(self) -> int:
        """The exit code of a hub that stops by itself."""
        return self.processes.pop("hub").wait(60)

    def health(self) -> bytes:
        with urllib.request.urlopen(f"{self.url}/v1/health", timeout=60) as answer:
            found: bytes = answer.read()
            return found

    def was_handed_back(self, job_id: str) -> bool:
        return any(one["state"] == "returned" for one in self.hub.job(job_id)["attempts"])

    def told_low(self) -> bool:
        return any(disk["low"] for disk in self.hub.status()["disk"])

    def job_ids(self) -> set[str]:
        return {job["id"] for job in self.hub.jobs(limit=100)["jobs"]}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FaultyDiskFleet]:
    made = FaultyDiskFleet(tmp_path)
    made.start_hub()
    yield made
    made.stuck.unlink(missing_ok=True)
    made.close()


def test_a_commit_that_fails_stops_the_hub_which_says_why_and_starts_again(fleet: FaultyDiskFleet) -> None:
    acknowledged = {fleet.hub.submit(IDLE)["id"] for _ in range(3)}
    fleet.broken.touch()
    with pytest.raises((HubFailed, HubUnreachable)):
        Hub(fleet.url, fleet.token, patience=Patience(tries=1)).submit(IDLE)
    assert fleet.ends() == 1
    assert "CRITICAL the hub stops: the ledger" in fleet.log_of("hub")
    assert "the disk failed to read or write. Look at the system's log and at the disk" in fleet.log_of("hub")
    assert "Traceback" not in fleet.log_of("hub")
    fleet.broken.unlink()
    fleet.start_hub()
    assert acknowledged <= fleet.job_ids()
    assert fleet.hub.submit(IDLE)["id"] in fleet.job_ids()


def test_while_the_disk_stands_still_the_hub_is_there_and_acknowledges_nothing(fleet: FaultyDiskFleet) -> None:
    answers: list[str] = [fleet.hub.submit(IDLE)["id"]]
    fleet.stuck.touch()
    submitting = [threading.Thread(target=lambda: answers.append(fleet.hub.submit(IDLE)["id"])) for _ in range(4)]
    for thread in submitting:
        thread.start()
    assert b"ok" in fleet.health()
    assert len(answers) == 1
    fleet.stuck.unlink()
    for thread in submitting:
        thread.join(60)
    fleet.kill("hub")
    fleet.start_hub()
    assert set(answers) == fleet.job_ids()
    assert len(answers) == 5


def test_on_a_full_disk_submits_are_refused_and_what_was_acknowledged_is_there_when_there_is_room(
    tmp_path: Path,
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("only root mounts disks: run the tests as root")
    fleet = FaultyDiskFleet(disk)
    try:
        fleet.start_hub()
        acknowledged = {fleet.hub.submit(IDLE)["id"] for _ in range(3)}
        filler = disk / "filler"
        with filler.open("wb") as file:
            file.write(bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize - 256 * 1024))
        until(fleet.told_low, "the hub has seen that its disk is nearly full")
        with pytest.raises(NoSpace, match="are kept for what runs already"):
            fleet.hub.submit(IDLE)
        assert fleet.hub.cancel(min(acknowledged))["state"] == "cancelled"
        filler.unlink()
        until(lambda: not fleet.told_low(), "the hub has seen that there is room")
        acknowledged.add(fleet.hub.submit(IDLE)["id"])
        fleet.kill("hub")
        fleet.start_hub()
        assert acknowledged == fleet.job_ids()
    finally:
        fleet.close()
        subprocess.run(["umount", "-l", disk], check=True)


def test_what_a_worker_with_a_full_disk_is_given_is_run_elsewhere(tmp_path: Path) -> None:
    disk = tmp_path / "state" / "workers" / "a"
    disk.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("only root mounts disks: run the tests as root")
    fleet = FaultyDiskFleet(tmp_path)
    try:
        fleet.start_hub()
        fleet.start_worker("a")
        fleet.await_workers("a")
        with (disk / "filler").open("wb") as file:
            file.write(bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize))
        job_id = fleet.hub.submit({"command": ["sh", "-c", "echo written"]})["id"]
        until(lambda: fleet.was_handed_back(job_id) or "the disk of" in fleet.log_of("a"), "a has no room for it", 60)
        fleet.start_worker("b")
        ended = fleet.client.wait(job_id, timeout=60)
        assert (ended["state"], ended["worker"]) == ("succeeded", "b"), ended
        reasons = [one["reason"] for one in ended["attempts"] if one["worker"] == "a"]
        assert all(one.startswith("the worker's disk is full; it ended with exit code") for one in reasons), reasons
    finally:
        fleet.close()
        subprocess.run(["umount", "-l", disk], check=True)
