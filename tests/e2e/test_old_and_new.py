"""Hub, worker and supervisors of an older commit and of this tree work together, as in a fleet that is upgraded part by
part: nothing is lost, nothing runs twice, and new jobs run."""

import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.diary import Diary
from tests.e2e.old_source import LOCATED, NEW_SOURCE, sources_run, unpack_old_source
from tests.e2e.work import EARLY, LATE, Work
from tests.process_fleet import TWO_A100, Document, ProcessFleet, is_dead, process_fleet, until

SERVER = """
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"served")

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def old_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_old_source(tmp_path_factory.mktemp("old"))


@contextmanager
def mixed_fleet(folder: Path, hub: Path, box: Path) -> Iterator[ProcessFleet]:
    """A hub and a worker `box` with four slots, whose code is in these folders."""
    with process_fleet(folder, "box", program=LOCATED, sources={"hub": hub, "box": box}, offer=TWO_A100) as fleet:
        yield fleet


def hold_four_tasks(fleet: ProcessFleet) -> Work:
    """Two under each supervisor, if the worker has two of them: one that ends early and one that ends late."""
    return Work(fleet, Diary(fleet.folder / "diary"), programs=[EARLY], functions=[LATE], array=2)


def parents_of(processes: dict[str, psutil.Process]) -> set[psutil.Process]:
    found = {process.parent() for process in processes.values()}
    assert None not in found, processes
    return found


@pytest.mark.parametrize(
    ("first_hub", "worker", "second_hub"),
    [("new", "old", "new"), ("old", "new", "old"), ("old", "old", "new")],
    ids=["an old worker at the new hub", "the new worker at an old hub", "an old worker whose hub is upgraded"],
)
def test_a_worker_keeps_its_tasks_over_the_restart_of_a_hub_of_another_version(
    tmp_path: Path, old_source: Path, first_hub: str, worker: str, second_hub: str
) -> None:
    source = {"old": old_source, "new": NEW_SOURCE}
    with mixed_fleet(tmp_path, source[first_hub], source[worker]) as fleet:
        work = hold_four_tasks(fleet)
        before = work.processes()
        if worker == "old":
            assert len(parents_of(before)) == 2, "both supervisors hold tasks"
        fleet.kill("hub")
        work.end_early()
        fleet.sources["hub"] = source[second_hub]
        fleet.start_again("hub")
        fleet.await_state("succeeded", *work.early)
        fleet.await_state("running", *work.late)
        assert work.processes() == {task: before[task] for task in work.late}
        work.end_all()
        work.check()

        run_every_kind(fleet)
        hand_back_a_task(fleet)
        assert sources_run(fleet, "hub") == [source[first_hub], source[second_hub]]
        assert sources_run(fleet, "box") == [source[worker]]


@pytest.mark.parametrize("in_place", [False, True], ids=["in another folder", "in place of the old one"])
def test_the_new_worker_takes_over_what_runs_under_both_supervisors_of_an_old_one(
    tmp_path: Path, old_source: Path, in_place: bool
) -> None:
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "ostler").symlink_to(old_source / "ostler")
    with mixed_fleet(tmp_path, NEW_SOURCE, installed) as fleet:
        work = hold_four_tasks(fleet)
        before = work.processes()
        supervisors = parents_of(before)
        # No new worker was there when these started: they run the old code.
        assert len(supervisors) == 2, "both hold tasks"
        fleet.kill("box")
        until(lambda: fleet.worker("box")["status"] == "offline", "the hub sees the worker's connection closed")
        work.end_early()
        if in_place:
            # What the old supervisors start from now on, they start from the new code.
            (installed / "ostler").unlink()
            (installed / "ostler").symlink_to(NEW_SOURCE / "ostler")
        else:
            fleet.sources["box"] = NEW_SOURCE
        fleet.start_again("box")
        fleet.await_state("succeeded", *work.early)
        fleet.await_state("running", *work.late)
        assert work.processes() == {task: before[task] for task in work.late}
        assert parents_of(work.processes()) == supervisors
        work.end_all()
        work.check()

        run_every_kind(fleet)
        hand_back_a_task(fleet)
        assert sources_run(fleet, "box") == [old_source, NEW_SOURCE]
        until(lambda: all(map(is_dead, supervisors)), "the old supervisors have left with their worker")


def run_every_kind(fleet: ProcessFleet) -> None:
    """Jobs for which hub, worker and supervisor exchange messages of most types."""
    run_programs(fleet)
    run_functions(fleet)
    run_service(fleet)
    cancel_a_job(fleet)
    fleet.await_free("box")


def run_programs(fleet: ProcessFleet) -> None:
    """A job with a GPU leaves an artifact, another fails and is retried, and short tasks are prefetched."""
    program = 'echo "on $CUDA_VISIBLE_DEVICES"; echo weights > "$OSTLER_OUT/weights"'
    good = fleet.client.submit_command(["sh", "-c", program], resources={"gpu": 1})
    bad = fleet.client.submit_command(["sh", "-c", "echo before the failure; exit 3"], max_retries=1)
    short = fleet.client.submit_command(["true"], array=40)

    ended = good.wait(timeout=60)
    assert (ended["state"], good.logs()) in [("succeeded", f"on {index}\n") for index in range(2)], ended
    assert ended["artifact_id"] is not None
    ended = bad.wait(timeout=60)
    assert (ended["state"], ended["exit_code"], bad.logs()) == ("failed", 3, "before the failure\n"), ended
    assert [one["state"] for one in ended["attempts"]] == ["failed", "failed"]
    ended = short.wait(timeout=60)
    assert (ended["state"], ended["counts"]) == ("succeeded", {"succeeded": 40}), ended


def run_functions(fleet: ProcessFleet) -> None:
    """A map returns its values, and a call that fails raises its error."""
    values = fleet.client.map(divmod, range(40), [7] * 40, timeout=60, resources={"cpu": 1})
    assert list(values) == [divmod(number, 7) for number in range(40)]
    with pytest.raises(ZeroDivisionError):
        fleet.client.submit(divmod, 1, 0).result(timeout=60)


def run_service(fleet: ProcessFleet) -> None:
    """A service answers a call through the hub, `ostler exec` runs a command in its environment, and a cancel ends it."""
    service = fleet.hub.submit(
        {
            "name": "served",
            "type": "service",
            "command": [sys.executable, "-c", SERVER, "{port}"],
            "health_check": {"readiness": "/", "interval_secs": 0.1},
        }
    )
    until(lambda: fleet.hub.job(service["id"])["health"] == "healthy", "the service is healthy")
    request = urllib.request.Request(
        f"{fleet.url}/services/served/", headers={"Authorization": f"Bearer {fleet.token}"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.read() == b"served"
    done = fleet.check_run("exec", "served", "--", "sh", "-c", "echo $OSTLER_JOB_ID", timeout=60)
    assert done.stdout.strip() == service["id"]
    assert end_of_cancelled(fleet, service["id"])["state"] == "cancelled"


def cancel_a_job(fleet: ProcessFleet) -> None:
    """The process of a cancelled job gets SIGTERM."""
    began, stopped = (fleet.folder / name for name in ("began", "stopped"))
    program = f"trap 'touch {stopped}; exit' TERM; touch {began}; while :; do sleep 0.05; done"
    job_id = fleet.hub.submit({"command": ["sh", "-c", program]})["id"]
    until(began.exists, "the job runs")
    assert end_of_cancelled(fleet, job_id)["state"] == "cancelled"
    until(stopped.exists, "the process has got SIGTERM")


def end_of_cancelled(fleet: ProcessFleet, job_id: str) -> Document:
    fleet.hub.cancel(job_id)
    ended: Document = fleet.client.wait(job_id, timeout=60)
    return ended


def hand_back_a_task(fleet: ProcessFleet) -> None:
    """The worker leaves, and the task that it stops waits for another one."""
    job_id = fleet.hub.submit({"command": ["sleep", "600"]})["id"]
    fleet.await_state("running", job_id)
    assert fleet.terminate("box") == 0
    fleet.await_state("pending", job_id)
    assert [one["state"] for one in fleet.hub.job(job_id)["attempts"]] == ["returned"]
