"""Real processes on a real worker: what shares its room, what passes what, and what survives a kill."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

import ostler


@pytest.fixture(scope="module")
def fleet() -> Iterator[ostler.Fleet]:
    with ostler.local(offer={"cpu_count": 4, "memory_gb": 16}) as made:
        yield made


def most_at_once(documents: list[dict[str, Any]]) -> int:
    """How many ran at the same time at most."""
    begins = [document["started_at"] for document in documents]
    return max(sum(one["started_at"] <= begin < one["finished_at"] for one in documents) for begin in begins)


def test_four_jobs_of_two_cores_run_in_pairs_on_four_cores_and_one_that_fits_nowhere_delays_none(
    fleet: ostler.Fleet,
) -> None:
    nowhere = fleet.submit_command(["true"], resources={"cpu": 100}, scheduling_timeout_seconds=5)
    jobs = [fleet.submit_command(["sleep", "1"], resources={"cpu": 2}) for _ in range(4)]
    ended = [job.wait(timeout=60) for job in jobs]
    assert [document["state"] for document in ended] == ["succeeded"] * 4
    assert most_at_once(ended) == 2, "two cores each: no more than two at a time"
    assert nowhere.status()["state"] == "pending", "the four are done before it gives up"
    given_up = nowhere.wait(timeout=60)
    assert given_up["state"] == "unschedulable"
    assert "needs 100 cores" in given_up["reason"]
    assert "4 free of 4" in given_up["reason"]


def test_a_killed_worker_is_replaced_and_its_task_goes_on_without_a_second_start(fleet: ostler.Fleet) -> None:
    with ostler.local(offer={"cpu_count": 2, "memory_gb": 4}) as own:
        job = own.submit_command(["sh", "-c", "echo began; sleep 6; echo ended"])
        assert next(iter(job.follow_logs())).startswith("began")
        worker = process_of(own, " worker ")
        command, environment = worker.cmdline(), worker.environ()
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait(60)
        again = psutil.Popen(command, env=environment, stdin=-1)
        try:
            ended = job.wait(timeout=60)
            assert (ended["state"], len(ended["attempts"])) == ("succeeded", 1)
            assert job.logs().split() == ["began", "ended"]
        finally:
            again.terminate()
            again.wait(60)


def process_of(fleet: ostler.Fleet, word: str) -> psutil.Process:
    url = fleet.hub.url
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if word in line and url in line and "supervisor" not in line:
            return psutil.Process(process.pid)
    raise AssertionError(f"no process with {word!r} of {url}")
