"""Function calls as Ray's tasks, as far as that goes without Ray: the folder between bridge and driver, and what a Ray
worker does with a call."""

import ast
import asyncio
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.bridge.shell_batch import ShellBatch
from tests.process_fleet import processes_with, until

from ostler.bridge import ray_calls, ray_driver
from ostler.bridge.base import Ask, Node, Sight, Submission
from ostler.bridge.cluster import Cluster
from ostler.bridge.ray import Ray, give_back
from ostler.bridge.ray_calls import GONE, Call
from ostler.bridge.record import Folder, Record
from ostler.bridge.script import NOT_ITS_TURN
from ostler.runtime.base import Launch

ATTEND = "import sys; from ostler.bridge.ray_driver import attend; print(attend(sys.argv[1]))"
WAITING = Sight(phase="waiting", reason="waiting for resources")
RUNNING = Sight(phase="running")


class Attempts:
    """Scripts of attempts, as the bridge writes them."""

    def __init__(self, folder: Path) -> None:
        self.files = Folder(folder / "attempts")

    def script(self, attempt: str, line: str = "exit 0") -> Path:
        path = {"PATH": os.environ["PATH"]}
        launch = Launch(attempt=attempt, task_id="t", argv=["sh", "-c", line], env=path)
        self.files.write(launch, Record(task_id="t", ask=Ask(node="n")), 0.0)
        return self.files.keep_script(attempt)

    def call(self, attempt: str) -> Submission:
        script = self.script(attempt)
        return Submission(attempt=attempt, task_id="t", script=script, ask=Ask(node="n", cores=2), call=True)

    def begin(self, attempt: str) -> None:
        (self.files.keep_script(attempt).parent / "begun").mkdir()

    def exit(self, attempt: str, code: int) -> None:
        (self.files.keep_script(attempt).parent / "exit").write_text(f"{code} 1 2\n")


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


# What a Ray worker does


@contextlib.contextmanager
def attending(script: Path, deaf: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """A process that attends to it. Deaf: as whoever was started in the background of a shell is to SIGINT."""

    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    command = [sys.executable, "-c", ATTEND, str(script)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=ignore if deaf else None)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def answer(process: subprocess.Popen[bytes]) -> int:
    out, _ = process.communicate(timeout=60)
    return int(out)


def test_a_worker_runs_the_script_once_and_takes_along_what_it_leaves_behind(attempts: Attempts) -> None:
    script = attempts.script("a", "sleep 1000 & echo one >> ../count; exit 7")
    with attending(script) as process:
        assert answer(process) == 7
    until(lambda: not processes_with(str(script.parent)), "what it left is gone")
    with attending(script) as process:
        assert answer(process) == NOT_ITS_TURN
    found = attempts.files.exit("a")
    assert found is not None and found.code == 7
    assert (attempts.files.path("a") / "count").read_text() == "one\n"


def test_what_a_killed_worker_attended_to_ends_with_it_and_says_so_when_it_has(attempts: Attempts) -> None:
    script = attempts.script("a", "trap '' TERM INT; echo > ../on; while :; do sleep 0.05; done")
    with attending(script) as process:
        until((attempts.files.path("a") / "on").exists, "it runs")
        leader = next(one for one in psutil.Process(process.pid).children() if str(script) in one.cmdline())
        mine = [leader, *leader.children(recursive=True)]
        assert len(mine) > 1
        process.kill()
        found = until(lambda: attempts.files.exit("a"), "it has left an exit code")
    assert found.code == 137
    assert not [one for one in mine if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def test_a_script_that_is_killed_takes_its_group_along_and_leaves_an_exit_code_all_the_same(attempts: Attempts) -> None:
    script = attempts.script("a", "trap '' TERM; echo > ../on; while :; do sleep 0.05; done")
    with attending(script) as process:
        until((attempts.files.path("a") / "on").exists, "it runs")
        next(one for one in psutil.Process(process.pid).children() if str(script) in one.cmdline()).kill()
        assert answer(process) == -signal.SIGKILL
    assert until(lambda: attempts.files.exit("a"), "it has left an exit code").code == 137
    until(lambda: not processes_with(str(script.parent)), "its guard has left too")


def test_a_worker_that_is_interrupted_passes_that_on_as_sigterm_even_where_ray_was_made_deaf(
    attempts: Attempts,
) -> None:
    script = attempts.script("a", "trap 'exit 5' TERM; echo > ../on; while :; do sleep 0.05; done")
    with attending(script, deaf=True) as process:
        until((attempts.files.path("a") / "on").exists, "it runs")
        until(lambda: hears_sigterm(process, script), "who keeps it has its trap, which comes after the task's start")
        process.send_signal(signal.SIGINT)
        assert answer(process) == 5


def hears_sigterm(process: subprocess.Popen[bytes], script: Path) -> bool:
    leader = next(one for one in psutil.Process(process.pid).children() if str(script) in one.cmdline())
    status = Path(f"/proc/{leader.pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


# The folder between bridge and driver


class Head:
    """The job API of a Ray that never runs anything: tests say how its jobs are."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}

    def driver(self) -> str:
        """The newest."""
        return [name for name in self.jobs if name.startswith("ostler-calls-b-")][-1]

    @contextlib.asynccontextmanager
    async def ray(self, folder: Path) -> AsyncIterator[Ray]:
        """One process of the bridge."""
        app = web.Application()
        app.router.add_post("/api/jobs/", self._submit)
        app.router.add_get("/api/jobs/", self._list)
        app.router.add_get("/api/jobs/{name}", self._show)
        app.router.add_get("/api/version", self._version)
        async with TestServer(app) as server:
            made = Ray(str(server.make_url("/")), bridge="b", folder=folder)
            await made.open()
            yield made

    async def _submit(self, request: web.Request) -> web.Response:
        job = await request.json()
        self.jobs[job["submission_id"]] = {"status": "RUNNING", **job}
        return web.json_response(job)

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response(list(self.jobs.values()))

    async def _show(self, request: web.Request) -> web.Response:
        job = self.jobs.get(request.match_info["name"])
        return web.json_response(job) if job else web.Response(status=404, text="no such job")

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"ray_version": "2.60.0"})


@pytest.fixture
def head() -> Head:
    return Head()


@pytest.fixture(autouse=True)
def _look_at_the_driver_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_calls, "DRIVER_LOOK_S", 0.0)


class Side:
    """The driver's side of the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "calls"

    def asked(self) -> dict[str, Any]:
        return {path.name: json.loads(path.read_text()) for path in (self._folder / "asked").iterdir()}

    def came_up(self) -> None:
        (self._folder / f"up-{self._name}").touch()

    def tell(self, attempt: str, **told: Any) -> None:
        folder = self._folder / f"over-{self._name}"
        folder.mkdir(exist_ok=True)
        (folder / attempt).write_text(json.dumps(told))

    @property
    def _name(self) -> str:
        return (self._folder / "driver").read_text()


@pytest.fixture
def side(tmp_path: Path) -> Side:
    return Side(tmp_path)


async def test_calls_share_one_driver_and_are_seen_as_they_wait_run_and_end(
    head: Head, side: Side, attempts: Attempts, tmp_path: Path
) -> None:
    async with head.ray(tmp_path) as ray:
        assert ray.hurry_s == math.inf
        answers = await ray.submit([attempts.call("a"), attempts.call("b")])
        assert answers == {"a": "ostler-b-a", "b": "ostler-b-b"}
        assert ray.hurry_s < 1
        assert await ray.look(list(answers.values())) == dict.fromkeys(answers.values(), WAITING)
        assert list(head.jobs) == [head.driver()]
        script = str(attempts.files.keep_script("a"))
        wanted = {"name": "ostler-b-a", "task": "t", "num_cpus": 2, "resources": {"node:n": 0.001}}
        assert side.asked()["a"] == {"script": script, **wanted}
        attempts.begin("a")
        assert (await ray.look(["ostler-b-a"]))["ostler-b-a"] == RUNNING
        attempts.exit("a", 3)
        side.tell("a", code=3)
        assert (await ray.look(["ostler-b-a"]))["ostler-b-a"] == Sight(phase="over", exit_code=3)
        await ray.look(["ostler-b-b"])
        assert list(side.asked()) == ["b"]
        assert len(head.jobs) == 1


async def test_another_process_of_the_bridge_finds_the_calls_and_their_driver(
    head: Head, side: Side, attempts: Attempts, tmp_path: Path
) -> None:
    async with head.ray(tmp_path) as ray:
        await ray.submit([attempts.call("a"), attempts.call("b")])
        await ray.look(["ostler-b-a"])
    attempts.begin("a")
    attempts.exit("a", 0)
    side.tell("a", code=0)
    async with head.ray(tmp_path) as ray:
        found = await ray.adopt()
        assert found == {"a": {"ostler-b-a": Sight(phase="over", exit_code=0)}, "b": {"ostler-b-b": WAITING}}
        await ray.look(["ostler-b-a", "ostler-b-b"])
        assert len(head.jobs) == 1


async def test_of_a_driver_that_is_gone_what_began_is_handed_back_when_it_has_ended_and_the_rest_is_the_next_one_s(
    head: Head, side: Side, attempts: Attempts, tmp_path: Path
) -> None:
    both = ["ostler-b-a", "ostler-b-b"]
    async with head.ray(tmp_path) as ray:
        await ray.submit([attempts.call("a"), attempts.call("b")])
        await ray.look(both)
        side.came_up()
        attempts.begin("a")
        first = head.driver()
        del head.jobs[first]
        found = await ray.look(both)
        assert head.driver() != first
        assert (found["ostler-b-a"].phase, found["ostler-b-b"]) == ("running", WAITING)
        attempts.exit("a", 137)
        found = await ray.look(both)
        assert found["ostler-b-a"] == Sight(phase="over", fate="handed back", reason=GONE)
        assert (found["ostler-b-b"], set(side.asked())) == (WAITING, {"a", "b"})


async def test_one_that_an_earlier_driver_began_after_all_is_not_told_before_its_processes_are_gone(
    head: Head, side: Side, attempts: Attempts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with head.ray(tmp_path) as ray:
        await ray.submit([attempts.call("a"), attempts.call("b")])
        await ray.look(["ostler-b-a"])
        attempts.begin("a")
        side.tell("a", code=NOT_ITS_TURN)
        assert (await ray.look(["ostler-b-a"]))["ostler-b-a"].phase == "running"
        monkeypatch.setattr(ray_calls, "LINGER_S", 0.0)  # its node is gone, and nobody will ever say so
        assert (await ray.look(["ostler-b-a"]))["ostler-b-a"].fate == "handed back"


async def test_where_no_driver_ever_comes_up_calls_are_jobs_and_where_one_does_another_is_tried_first(
    head: Head, side: Side, attempts: Attempts, tmp_path: Path
) -> None:
    async with head.ray(tmp_path) as ray:
        await ray.submit([attempts.call("a")])
        await ray.look(["ostler-b-a"])
        side.came_up()
        head.jobs[head.driver()]["status"] = "FAILED"
        assert await ray.look(["ostler-b-a"]) == {"ostler-b-a": WAITING}
        assert len(head.jobs) == 2
        head.jobs[head.driver()] |= {"status": "FAILED", "message": "exit code 127\nno such file"}
        await ray.look(["ostler-b-a"])
        assert head.jobs["ostler-b-a"]["entrypoint_num_cpus"] == 2
        assert await ray.look(["ostler-b-a"]) == {"ostler-b-a": RUNNING}
        await ray.submit([attempts.call("b")])
        assert head.jobs["ostler-b-b"]["entrypoint"].endswith("keep.sh")
        assert not side.asked()


async def test_a_stop_is_a_word_to_the_driver(head: Head, attempts: Attempts, tmp_path: Path, side: Side) -> None:
    async with head.ray(tmp_path) as ray:
        await ray.submit([attempts.call("a"), attempts.call("b")])
        await ray.stop(["ostler-b-a"], "TERM")
        await ray.stop(["ostler-b-b"], "")
    told = {path.name: path.read_text() for path in (tmp_path / "calls" / "stop").iterdir()}
    assert told == {"a": "TERM", "b": "END"}


async def test_what_ray_may_still_count_of_calls_that_are_over_is_not_taken_for_somebody_else_s() -> None:
    node, other = Node(name="n", cores=4, memory_mib=100, gpus=1), Node(name="o", cores=4)
    calls = [Call(script="", name="", num_cpus=3, memory=1 << 20, resources={"node:n": 0.001}) for _ in range(2)]
    give_back([node, other], calls)
    assert (node.free_cores, node.free_mib, node.free_gpus, other.free_cores) == (4, 2, 0, 0)


async def test_a_batch_system_in_a_hurry_is_looked_at_more_often_than_the_operator_said(tmp_path: Path) -> None:
    system = ShellBatch()
    system.hurry_s = 0.02
    cluster = Cluster(system, tmp_path, look_s=1000.0)
    cluster.take()
    runtime = cluster.runtime("here")
    await runtime.open()
    loop = asyncio.create_task(cluster.run())
    try:
        await runtime.launch(Launch(attempt="a", task_id="t", argv=["true"], env={"PATH": os.defpath}))
        async with asyncio.timeout(60):
            assert (await anext(runtime.ends())).exit_code == 0
    finally:
        loop.cancel()
        system.close()


def test_the_driver_is_a_file_that_an_older_python_can_run_without_any_of_ours() -> None:
    tree = ast.parse(Path(ray_driver.__file__).read_text(), feature_version=(3, 9))
    named = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    named |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in named} <= set(sys.stdlib_module_names)
