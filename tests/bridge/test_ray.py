"""A Ray cluster by its job API. With OSTLER_TEST_RAY, an interpreter that has `ray[default]`, against a real one."""

import fcntl
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.bridge.ray_cluster import CORES, NODES, WAIT_S, ray_cluster
from tests.diary import Diary
from tests.process_fleet import ProcessFleet, is_free, processes_with, until

from ostler.bridge import ray
from ostler.bridge.base import Ask, Refusal, Submission, Unanswered
from ostler.bridge.ray import Ray
from ostler.domain.errors import NotAllowed, NotFound

WORKERS = tuple(f"lab-{node}" for node in NODES)
LONG_S = 400.0
Document = dict[str, Any]
PYTHON = os.environ.get("OSTLER_TEST_RAY", "")


def needs_ray(test: Callable[..., None]) -> Callable[..., None]:
    """A Ray job takes seconds of processor time to begin, and there are many of them."""
    skipped = pytest.mark.skipif(not PYTHON, reason="`make ray` runs these")
    decorated: Callable[..., None] = pytest.mark.timeout(2 * LONG_S)(skipped(test))
    return decorated


SUMMARY = {
    "summary": [
        {
            "raylet": {
                "nodeId": "02e9",
                "nodeManagerAddress": "10.0.0.2",
                "resourcesTotal": {"CPU": 8.0, "GPU": 2.0, "memory": 4 * 1024.0**3, "accelerator_type:A100": 1.0},
                "isHeadNode": True,
                "state": "ALIVE",
            }
        },
        {"raylet": {"nodeId": "0000", "nodeManagerAddress": "10.0.0.3", "resourcesTotal": {}, "state": "DEAD"}},
    ],
    "nodeLogicalResources": {
        "02e9": "2.5/8.0 CPU\n1.0/2.0 GPU\n1.00GiB/4.00GiB memory\n0B/95.37MiB object_store_memory"
    },
}


def test_nodes_are_those_that_are_alive_with_what_is_free_of_them() -> None:
    (node,) = ray.nodes(SUMMARY)
    assert (node.name, node.cores, node.free_cores) == ("10.0.0.2", 8, 5)
    assert (node.memory_mib, node.free_mib, node.gpu_type, node.gpus, node.free_gpus) == (4096, 3072, "A100", 2, 1)


@pytest.mark.parametrize(
    ("job", "phase", "fate", "code"),
    [
        ({"status": "PENDING", "message": "Job has not started yet."}, "waiting", "exited", None),
        ({"status": "RUNNING"}, "running", "exited", None),
        ({"status": "SUCCEEDED", "driver_exit_code": 0}, "over", "exited", 0),
        ({"status": "FAILED", "driver_exit_code": 7}, "over", "exited", 7),
        ({"status": "FAILED", "driver_exit_code": -9}, "over", "exited", 137),
        (
            {"status": "FAILED", "message": "Job supervisor actor failed to start within 900 seconds."},
            "over",
            "handed back",
            None,
        ),
        ({"status": "STOPPED", "message": "Job was intentionally stopped."}, "over", "cancelled", None),
    ],
)
def test_each_status_of_a_job_is_understood(job: dict[str, Any], phase: str, fate: str, code: int | None) -> None:
    found = ray.sight(job)
    assert (found.phase, found.fate, found.exit_code) == (phase, fate, code)


async def test_a_head_that_is_away_is_no_answer(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        away = Ray(f"http://127.0.0.1:{taken.getsockname()[1]}", bridge="b", folder=tmp_path)
        with pytest.raises(Unanswered):
            await away.look(["x"])
        submission = Submission(attempt="a", task_id="t", script=tmp_path, ask=Ask(node="n"))
        assert await away.submit([submission]) == {}


@asynccontextmanager
async def answering(status: int, text: str) -> AsyncIterator[str]:
    """Something that answers whatever it is asked with this."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("/"))


@pytest.mark.parametrize(
    ("status", "text", "answer"),
    [
        (200, '{"submission_id": "ostler-b-a"}', "ostler-b-a"),
        (400, "Traceback:\nValueError: memory must be positive", Refusal("ValueError: memory must be positive", True)),
        (429, "too many", Refusal("too many", False)),
        (500, "ValueError: Job with submission_id ostler-b-a already exists.", "ostler-b-a"),
        (500, "the agent died", None),
    ],
)
async def test_a_submission_is_taken_refused_or_not_answered(
    status: int, text: str, answer: str | Refusal | None, tmp_path: Path
) -> None:
    async with answering(status, text) as address:
        submission = Submission(attempt="a", task_id="t", script=tmp_path, ask=Ask(node="n"))
        assert (await Ray(address, bridge="b", folder=tmp_path).submit([submission])).get("a") == answer


async def test_a_head_that_wants_a_token_and_a_server_that_is_none_are_told_apart(tmp_path: Path) -> None:
    async with answering(401, "Unauthorized: Missing authentication token") as address:
        with pytest.raises(NotAllowed, match="--ray-token"):
            await Ray(address, bridge="b", folder=tmp_path).open()
    async with answering(200, "<html>hello</html>") as address:
        with pytest.raises(NotFound, match="is no Ray head"):
            await Ray(address, bridge="b", folder=tmp_path).open()
    async with answering(200, '{"ray_version": "2.60.0"}') as address:
        await Ray(address, bridge="b", folder=tmp_path).open()


def shell(line: str, **more: Any) -> Document:
    return {"command": ["sh", "-c", line], "min_cpu_cores": 1, **more}


class RayFleet(ProcessFleet):
    """Its only workers are the nodes of a Ray."""

    patience_s = WAIT_S

    def start_bridge(self, head: str, name: str = "lab", *more: str) -> None:
        options = ("--name", name, "--drain-seconds", "0", "--hub", self.url, *more)
        self._start(name, ("bridge", "ray", "--address", head, *options))

    def placed(self, *specs: Document) -> list[str]:
        found: list[str] = self.hub.submit(list(specs))["ids"]
        return found

    def finished(self, *jobs: str) -> list[Document]:
        return [self.client.wait(job, timeout=LONG_S) for job in jobs]

    def said(self, job: str) -> str:
        return b"".join(self.hub.logs(job)).decode()

    def await_begun(self, diary: Diary, *tasks: str) -> None:
        until(lambda: set(tasks) <= diary.seen("begin").keys(), f"{tasks} have begun: {self.log_of('lab')}", WAIT_S)

    def await_quiet(self) -> None:
        """What does not obey has ten seconds, and what Ray says of its nodes is some seconds old."""
        until(lambda: all(is_free(self.worker(name)) for name in WORKERS), "nothing is held there", WAIT_S)

    def drivers(self) -> list[psutil.Process]:
        """The processes that start the calls, and not the shell before them."""
        found = [one for one in psutil.process_iter(["cmdline"]) if str(self.state) in str(one.info["cmdline"])]
        return [one for one in found if any(word.endswith("/driver.py") for word in one.info["cmdline"][1:2])]


def at_gate(folder: str, index: int) -> int:
    """A call that tells when it begins and when it ends, and whether another of its index runs."""
    task, attempt = os.environ["OSTLER_TASK_ID"], os.environ["OSTLER_ATTEMPT"]

    def say(word: str) -> None:
        with open(f"{folder}/lines", "a") as lines:
            lines.write(f"{word} {task} {attempt}\n")

    with open(f"{folder}/held.{index}", "w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("twice")
        say("begin")
        while not os.path.exists(f"{folder}/gate.all"):
            time.sleep(0.05)
        say("end")
    return index * index


def deaf(folder: str, index: int) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return at_gate(folder, index)


def attempts_of(diary: Diary) -> set[str]:
    return {attempt for word, _, attempt in diary.lines() if word == "begin"}


def divided(number: int) -> float:
    return 12 / number


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ray_cluster(Path(PYTHON), tmp_path_factory.mktemp("ray")) as address:
        yield address


@pytest.fixture(scope="module")
def fleet(head: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayFleet]:
    fleet = RayFleet(tmp_path_factory.mktemp("fleet"))
    try:
        fleet.start_hub()
        fleet.start_bridge(head)
        fleet.await_workers(*WORKERS)
        yield fleet
    finally:
        fleet.close()


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    return Diary(tmp_path / "diary")


@needs_ray
def test_the_workers_are_the_nodes_and_offer_what_those_have(fleet: RayFleet) -> None:
    found = [fleet.worker(name) for name in WORKERS]
    assert [(one["cpu_count"], one["gpu_count"], one["total_slots"]) for one in found] == [
        (CORES, 2, CORES),
        (CORES, 0, CORES),
    ]
    assert [one["labels"].get("ray.head") for one in found] == ["yes", None]


@needs_ray
def test_fifty_jobs_run_once_each_while_their_bridge_is_killed_and_started_again(fleet: RayFleet, diary: Diary) -> None:
    jobs = fleet.placed(*(diary.spec("all", name=f"fifty-{index}") for index in range(50)))
    until(lambda: diary.seen("begin"), "the first has begun", WAIT_S)
    fleet.kill("lab")
    diary.open("all")
    fleet.start_again("lab")
    assert {job["state"] for job in fleet.finished(*jobs)} == {"succeeded"}
    assert set(diary.seen("begin").values()) == {1}
    assert set(diary.seen("end")) == set(jobs)
    assert all(fleet.ends_told(job) == {job: ["succeeded"]} for job in jobs)


@needs_ray
def test_each_task_of_an_array_knows_its_index_and_a_gang_gets_a_node_for_each_member(fleet: RayFleet) -> None:
    (array,) = fleet.placed(shell("echo $OSTLER_INDEX; exit $((OSTLER_INDEX == 3))", array=6))
    (gang,) = fleet.placed(shell('echo "$RANK of $WORLD_SIZE at $MASTER_ADDR"; sleep 0.5', node_count=2))
    told, together = fleet.finished(array, gang)
    assert told["counts"] | {"succeeded": 5, "failed": 1} == told["counts"]
    assert (fleet.hub.job(f"{array}.3")["exit_code"], fleet.said(f"{array}.4")) == (1, "4\n")
    members = [f"{gang}.{rank}" for rank in (0, 1)]
    assert together["state"] == "succeeded"
    assert {fleet.hub.job(member)["worker"] for member in members} == set(WORKERS)
    assert {fleet.said(member).partition(" at ")[0] for member in members} == {"0 of 2", "1 of 2"}
    assert {fleet.said(member).partition(" at ")[2].strip() for member in members} <= set(NODES)


@needs_ray
def test_failures_gpus_cancels_and_what_a_stranger_ends(fleet: RayFleet, head: str, diary: Diary) -> None:
    stubborn = "trap : TERM; echo begin $OSTLER_TASK_ID x >> $DIARY/lines; while :; do sleep 0.1; done"
    failed, *ended, stranger = fleet.placed(
        shell("echo gpu $CUDA_VISIBLE_DEVICES; exit 3", gpu_count=1),
        diary.spec("never"),
        diary.spec("never", command=["sh", "-c", stubborn]),
        diary.spec("never"),
    )
    (one,) = fleet.finished(failed)
    assert (one["state"], one["exit_code"]) == ("failed", 3)
    assert fleet.said(failed) in ("gpu 0\n", "gpu 1\n")
    fleet.await_begun(diary, *ended, stranger)
    attempts = {job: fleet.hub.job(job)["attempts"][-1]["attempt"] for job in (*ended, stranger)}
    for job in ended:
        fleet.hub.cancel(job)
    bridge = (fleet.state / "bridges" / "lab" / "id").read_text()
    subprocess.run(["curl", "-s", "-X", "POST", f"{head}/api/jobs/ostler-{bridge}-{attempts[stranger]}/stop"])
    (other,) = fleet.finished(stranger)
    assert other["state"] == "failed"
    assert {fleet.hub.job(job)["state"] for job in ended} == {"cancelled"}
    fleet.await_quiet()
    assert not [one for attempt in attempts.values() for one in processes_with(attempt)]


@needs_ray
def test_calls_are_tasks_of_one_ray_job_and_their_values_and_exceptions_come_back(fleet: RayFleet) -> None:
    assert list(fleet.client.map(divided, range(1, 13), timeout=LONG_S)) == [12 / number for number in range(1, 13)]
    found = list(fleet.client.map(divided, [3, 0, 4], timeout=LONG_S, return_exceptions=True))
    assert (found[0], type(found[1]), found[2]) == (4.0, ZeroDivisionError, 3.0)
    assert len(fleet.drivers()) == 1


@needs_ray
def test_a_map_goes_on_while_its_bridge_is_away_and_no_call_begins_twice(fleet: RayFleet, diary: Diary) -> None:
    calls = fleet.client.map(at_gate, [str(diary.folder)] * 20, range(20), timeout=LONG_S)
    until(lambda: len(diary.seen("begin")) == 2 * CORES, "all that fit have begun", WAIT_S)
    fleet.kill("lab")
    diary.open("all")
    until(lambda: len(diary.seen("end")) >= 2 * CORES, "they end without their bridge", WAIT_S)
    fleet.start_again("lab")
    assert list(calls) == [index * index for index in range(20)]
    assert (set(diary.seen("begin").values()), set(diary.seen("end").values())) == ({1}, {1})


@needs_ray
def test_what_a_killed_driver_takes_along_runs_again_under_the_next_one_and_never_two_at_once(
    fleet: RayFleet, diary: Diary
) -> None:
    calls = fleet.client.map(at_gate, [str(diary.folder)] * 12, range(12), timeout=LONG_S)
    until(lambda: len(diary.seen("begin")) == 2 * CORES, "all that fit have begun", WAIT_S)
    first = attempts_of(diary)
    (driver,) = fleet.drivers()
    driver.kill()
    until(lambda: len(attempts_of(diary) - first) == 2 * CORES, f"others begin: {fleet.log_of('lab')}", LONG_S)
    assert not [one for attempt in first for one in processes_with(attempt)]
    diary.open("all")
    assert list(calls) == [index * index for index in range(12)]
    assert not diary.seen("twice")
    assert set(diary.seen("end").values()) == {1}


@needs_ray
def test_a_map_that_is_cancelled_ends_and_leaves_no_process_and_no_request(fleet: RayFleet, diary: Diary) -> None:
    calls = fleet.client.map(deaf, [str(diary.folder)] * 20, range(20), timeout=LONG_S)
    until(lambda: len(diary.seen("begin")) == 2 * CORES, "all that fit have begun", WAIT_S)
    assert calls.job is not None
    calls.job.cancel()
    fleet.await_quiet()
    assert not [one for attempt in attempts_of(diary) for one in processes_with(attempt)]
    assert not diary.seen("end")
    assert list(fleet.client.map(divided, [1, 2], timeout=LONG_S)) == [12.0, 6.0]
    asked = fleet.state / "bridges" / "lab" / "calls" / "asked"
    assert len(list(asked.iterdir())) <= 2


@needs_ray
def test_where_no_driver_starts_calls_are_jobs(fleet: RayFleet, head: str) -> None:
    fleet.start_bridge(head, "poor", "--ray-python", "/no/such/python", "--label", "poor=yes")
    fleet.await_workers(*(f"poor-{node}" for node in NODES))
    call = fleet.client.submit(divided, 4, resources={"cpu": 1}, labels="poor = yes")
    assert call.result(timeout=LONG_S) == 3.0
    assert "no driver for them runs" in fleet.log_of("poor")
    assert fleet.terminate("poor") == 0


@needs_ray
def test_a_bridge_that_leaves_for_good_ends_its_calls_and_hands_them_back(fleet: RayFleet, diary: Diary) -> None:
    calls = fleet.client.map(at_gate, [str(diary.folder)] * 2, range(2), timeout=LONG_S)
    until(lambda: len(diary.seen("begin")) == 2, "both have begun", WAIT_S)
    assert fleet.terminate("lab") == 0
    assert calls.job is not None
    assert fleet.hub.job(calls.job.id)["counts"]["pending"] == 2
    assert not [one for attempt in attempts_of(diary) for one in processes_with(attempt)]
    diary.open("all")
    fleet.start_again("lab")
    assert list(calls) == [0, 1]
    assert not diary.seen("twice")
