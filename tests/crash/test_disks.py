"""A hub on a disk that fails, stands still or is full: it stops with a clear word or waits, and nothing is lost."""

import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.paddock import Paddock, until

from ostler.client import Patience
from ostler.client.errors import HubFailed, HubUnreachable
from ostler.client.http import Hub
from ostler.domain.errors import NoSpace

PROGRAM = (sys.executable, str(Path(__file__).with_name("faulty_hub.py")))
IDLE = {"command": ["true"]}


class Yard(Paddock):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, PROGRAM)
        self.broken, self.stuck = folder / "broken", folder / "stuck"
        self.environment |= {"BROKEN": str(self.broken), "STUCK": str(self.stuck)}

    def ends(self) -> int:
        """The exit code of a hub that stops by itself."""
        return self.processes.pop("hub").wait(30)

    def health(self) -> bytes:
        with urllib.request.urlopen(f"{self.url}/v1/health", timeout=10) as answer:
            found: bytes = answer.read()
            return found

    def was_handed_back(self, job_id: str) -> bool:
        return any(one["state"] == "returned" for one in self.hub.job(job_id)["attempts"])

    def told_low(self) -> bool:
        return any(disk["low"] for disk in self.hub.status()["disk"])

    def job_ids(self) -> set[str]:
        return {job["id"] for job in self.hub.jobs(limit=100)["jobs"]}


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(tmp_path)
    made.start_hub()
    yield made
    made.stuck.unlink(missing_ok=True)
    made.close()


def test_a_commit_that_fails_stops_the_hub_which_says_why_and_starts_again(yard: Yard) -> None:
    acknowledged = {yard.hub.submit(IDLE)["id"] for _ in range(3)}
    yard.broken.touch()
    with pytest.raises((HubFailed, HubUnreachable)):
        Hub(yard.url, yard.token, patience=Patience(tries=1)).submit(IDLE)
    assert yard.ends() == 1
    assert "CRITICAL the hub stops: the ledger" in yard.log_of("hub")
    assert "the disk failed to read or write. Look at the system's log and at the disk" in yard.log_of("hub")
    assert "Traceback" not in yard.log_of("hub")
    yard.broken.unlink()
    yard.start_hub()
    assert acknowledged <= yard.job_ids()
    assert yard.hub.submit(IDLE)["id"] in yard.job_ids()


def test_while_the_disk_stands_still_the_hub_is_there_and_acknowledges_nothing(yard: Yard) -> None:
    answers: list[str] = [yard.hub.submit(IDLE)["id"]]
    yard.stuck.touch()
    submitting = [threading.Thread(target=lambda: answers.append(yard.hub.submit(IDLE)["id"])) for _ in range(4)]
    for thread in submitting:
        thread.start()
    assert b"ok" in yard.health()
    assert len(answers) == 1
    yard.stuck.unlink()
    for thread in submitting:
        thread.join(30)
    yard.kill("hub")
    yard.start_hub()
    assert set(answers) == yard.job_ids()
    assert len(answers) == 5


def test_on_a_full_disk_submits_are_refused_and_what_was_acknowledged_is_there_when_there_is_room(
    tmp_path: Path,
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting needs root")
    yard = Yard(disk)
    try:
        yard.start_hub()
        acknowledged = {yard.hub.submit(IDLE)["id"] for _ in range(3)}
        filler = disk / "filler"
        with filler.open("wb") as file:
            file.write(bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize - 256 * 1024))
        until(yard.told_low, "the hub has seen that its disk is nearly full")
        with pytest.raises(NoSpace, match="are kept for what runs already"):
            yard.hub.submit(IDLE)
        assert yard.hub.cancel(min(acknowledged))["state"] == "cancelled"
        filler.unlink()
        until(lambda: not yard.told_low(), "the hub has seen that there is room")
        acknowledged.add(yard.hub.submit(IDLE)["id"])
        yard.kill("hub")
        yard.start_hub()
        assert acknowledged == yard.job_ids()
    finally:
        yard.close()
        subprocess.run(["umount", "-l", disk], check=True)


def test_what_a_worker_with_a_full_disk_is_given_is_run_elsewhere(tmp_path: Path) -> None:
    disk = tmp_path / "state" / "workers" / "a"
    disk.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting needs root")
    yard = Yard(tmp_path)
    try:
        yard.start_hub()
        yard.start_worker("a")
        yard.await_workers("a")
        with (disk / "filler").open("wb") as file:
            file.write(bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize))
        job_id = yard.hub.submit({"command": ["sh", "-c", "echo written"]})["id"]
        until(lambda: yard.was_handed_back(job_id) or "the disk of" in yard.log_of("a"), "a has no room for it", 60)
        yard.start_worker("b")
        ended = yard.fleet.wait(job_id, timeout=60)
        assert (ended["state"], ended["worker"]) == ("succeeded", "b"), ended
        reasons = [one["reason"] for one in ended["attempts"] if one["worker"] == "a"]
        assert all(one.startswith("the worker's disk is full; it ended with exit code") for one in reasons), reasons
    finally:
        yard.close()
        subprocess.run(["umount", "-l", disk], check=True)
