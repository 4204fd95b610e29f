"""A gang of four real processes on four workers computes together, and starts again whole when one of them dies."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import ostler

ALLREDUCE = Path(__file__).parent.parent.parent / "examples" / "gang" / "allreduce.py"


@pytest.fixture(scope="module")
def fleet() -> Iterator[ostler.Fleet]:
    with ostler.local(workers=4, offer={"cpu_count": 2, "memory_gb": 4}) as made:
        yield made


def test_four_members_on_four_workers_compute_an_all_reduce(fleet: ostler.Fleet) -> None:
    job = fleet.submit_command([sys.executable, str(ALLREDUCE)], resources={"nodes": 4, "cpu": 1})
    ended = job.wait(timeout=60)
    assert ended["state"] == "succeeded", ended["reason"]
    members = [fleet.hub.job(f"{job.id}.{rank}") for rank in range(4)]
    assert len({member["worker"] for member in members}) == 4
    for rank, member in enumerate(members):
        log = b"".join(fleet.hub.logs(member["id"])).decode()
        assert f"rank {rank} of 4: {2**rank} went in, 15 came out" in log


def test_a_gang_with_one_member_killed_starts_again_whole(fleet: ostler.Fleet, tmp_path: Path) -> None:
    """The first round waits for a file that never comes; the second finds that it is the second, and ends."""
    script = (
        "import os, sys, time, pathlib\n"
        f"mark = pathlib.Path({str(tmp_path)!r}) / os.environ['RANK']\n"
        "if mark.exists(): sys.exit(0)\n"
        "mark.write_text(str(os.getpid()))\n"
        "time.sleep(120)\n"
    )
    job = fleet.submit_command([sys.executable, "-c", script], resources={"nodes": 4, "cpu": 1}, max_retries=1)
    deadline = time.monotonic() + 60
    while len([path for path in tmp_path.iterdir() if path.read_text()]) < 4:
        assert time.monotonic() < deadline, "the four did not start"
        time.sleep(0.05)
    os.kill(int((tmp_path / "2").read_text()), signal.SIGKILL)
    ended = job.wait(timeout=60)
    assert ended["state"] == "succeeded", ended["reason"]
    assert [len(fleet.hub.job(f"{job.id}.{rank}")["attempts"]) for rank in range(4)] == [2, 2, 2, 2]
    for path in tmp_path.iterdir():
        assert not psutil.pid_exists(int(path.read_text()))
