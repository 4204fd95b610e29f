"""Whatever a job has started is gone when it is over, and only then is its room free."""

import contextlib
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.process_fleet import HURRIED, Document, ProcessFleet, is_free, process_fleet, processes_with, until

FAMILY = """
import os, signal, subprocess, sys, time

signal.signal(signal.SIGTERM, signal.SIG_IGN)

def tell(who):
    with open(os.environ["PIDS"], "a") as file:
        print(who, os.getpid(), file=file)

def live(who):
    tell(who)
    while True:
        time.sleep(60)

if os.fork() == 0:
    live("child")
if os.fork() == 0:  # a daemon as in the books: a session of its own, its parent gone, nothing of the terminal's kept
    os.setsid()
    if os.fork() == 0:
        os.chdir("/")
        if os.fork() == 0:
            live("grandchild of the daemon")
        live("daemon")
    os._exit(0)
subprocess.Popen([sys.executable, "-c", 'import os, time; os.setsid(); open(os.environ["PIDS"], "a").write(f"program {os.getpid()}\\\\n"); time.sleep(600)'])
tell("job")
while len(open(os.environ["PIDS"]).readlines()) < 5:
    time.sleep(0.02)
print("all there", flush=True)
if sys.argv[1] == "leave":
    os._exit(0)
while True:
    time.sleep(60)
"""
MEMBERS = {"job", "child", "daemon", "grandchild of the daemon", "program"}


class Family:
    """A job of five processes, in three sessions, of which four hear no SIGTERM."""

    def __init__(self, fleet: ProcessFleet, folder: Path, ending: str) -> None:
        self.fleet = fleet
        self.mark = uuid.uuid4().hex
        self.file = folder / "pids"
        env = {"MARK": self.mark, "PIDS": str(self.file)}
        command = [sys.executable, "-c", FAMILY, ending]
        self.id: str = fleet.hub.submit({"command": command, "env": env, "min_cpu_cores": 2})["id"]

    def until_there(self) -> None:
        until(lambda: self.file.exists() and self.members().keys() == MEMBERS, "all five are there")

    def members(self) -> dict[str, int]:
        return {who: int(pid) for who, _, pid in (line.rpartition(" ") for line in self.file.read_text().splitlines())}

    def alive(self) -> list[psutil.Process]:
        return processes_with(self.mark)

    def until_room_is_free(self) -> Document:
        """What is true at the very moment: nobody is left when the hub says that the room is free."""
        found: Document = until(lambda: is_free(box := self.fleet.worker("box")) and box, "the room is free")
        assert self.alive() == [], self.members()
        assert [who for who, pid in self.members().items() if is_there(pid)] == []
        return found


def is_there(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessFleet]:
    with process_fleet(tmp_path_factory.mktemp("fleet"), "box", program=HURRIED) as made:
        yield made


def test_after_a_cancel_no_process_is_left_of_a_job_that_hides_and_hears_no_signal(
    fleet: ProcessFleet, tmp_path: Path
) -> None:
    family = Family(fleet, tmp_path, "stay")
    family.until_there()
    assert len(family.alive()) == 5
    assert fleet.worker("box")["free"]["cores"] == 6
    assert fleet.hub.cancel(family.id)["state"] == "cancelled", "that shows at once"
    assert fleet.worker("box")["free"]["cores"] == 6 or not family.alive(), "its room is not free before they are gone"
    box = family.until_room_is_free()
    assert (box["free"]["cores"], box["jobs"], box["status"]) == (8, [], "ready")
    assert fleet.ends_told(family.id) == {family.id: ["cancelled"]}


def test_what_a_job_leaves_behind_when_it_ends_is_gone_before_its_room_is_free(
    fleet: ProcessFleet, tmp_path: Path
) -> None:
    family = Family(fleet, tmp_path, "leave")
    ended = fleet.client.wait(family.id, timeout=60)
    assert (ended["state"], ended["exit_code"]) == ("succeeded", 0)
    family.until_room_is_free()


def test_a_worker_in_a_hurry_to_leave_takes_everything_along_and_hands_the_job_back(tmp_path: Path) -> None:
    with process_fleet(tmp_path, "box", program=HURRIED) as own:
        family = Family(own, tmp_path, "stay")
        family.until_there()
        process = own.processes.pop("box")

        for _ in range(3):  # the third signal waits for nobody; signals that come too close together are one
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
        assert process.wait(60) == 0
        assert family.alive() == []
        assert own.hub.job(family.id)["state"] == "pending"
        assert processes_with(str(own.state / "workers" / "box")) == [], "no supervisor either"
