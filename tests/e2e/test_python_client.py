"""The Python client over a real hub and a real worker."""

import asyncio
import concurrent.futures
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import ostler
from ostler.client import (
    AsyncFleet,
    BadInput,
    CannotSend,
    Fleet,
    HubUnreachable,
    JobCancelled,
    JobFailed,
    JobUnschedulable,
    NotAuthenticated,
    NotFound,
    Patience,
    RemoteError,
    WaitTimeout,
)

LONG_S = 60.0


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with ostler.local(slots=4) as fleet:
        yield fleet


class OwnError(Exception):
    """Known to this module only."""


class OddError(Exception):
    """Cannot be made again from its pickle."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def add(x: int, y: int = 1) -> int:
    print(f"adding {x} and {y}")
    return x + y


def fail(kind: type[Exception], *args: Any) -> None:
    raise kind(*args)


def die(code: int) -> None:
    print("about to die", flush=True)
    os._exit(code)


def wait_for(path: str) -> str:
    while not os.path.exists(path):
        time.sleep(0.02)
    return path


# One function


def test_a_functions_value_comes_back(fleet: Fleet) -> None:
    job = fleet.submit(add, 2, y=3, name="sum", resources={"cpu": 0.1, "memory": "64m"})
    assert job.result(timeout=LONG_S) == 5
    assert (job.done(), job.name) == (True, "sum")
    status = fleet.wait(job.id)
    assert (status["id"], status["state"], status["status"]) == (job.id, "succeeded", "completed")
    assert job.logs() == "adding 2 and 3\n"
    assert "".join(job.follow_logs()) == "adding 2 and 3\n"
    assert job.why()["state"] == "succeeded"
    assert fleet.job("sum").id == job.id
    assert any(listed["id"] == job.id for listed in fleet.jobs(name="sum"))


def test_a_functions_exception_is_raised_with_its_remote_traceback(fleet: Fleet) -> None:
    with pytest.raises(OwnError, match="three") as caught:
        fleet.submit(fail, OwnError, "three").result(timeout=LONG_S)
    assert "in fail" in str(caught.value.__cause__)
    assert "raise kind(*args)" in str(caught.value.__cause__)


def test_an_exception_that_cannot_travel_comes_as_text(fleet: Fleet) -> None:
    with pytest.raises(RemoteError, match=r"OddError: 1 and 2 \(in job") as caught:
        fleet.submit(fail, OddError, 1, 2).result(timeout=LONG_S)
    assert "in fail" in caught.value.traceback


def test_a_process_that_dies_is_a_failed_job_with_the_end_of_its_log(fleet: Fleet) -> None:
    job = fleet.submit(die, 9)
    with pytest.raises(JobFailed, match=r"(?s)exit code 9.*about to die") as caught:
        job.result(timeout=LONG_S)
    assert caught.value.job_id == job.id
    assert caught.value.exit_code == 9
    assert isinstance(job.exception(), JobFailed)


def test_values_of_a_megabyte_travel_both_ways(fleet: Fleet) -> None:
    data = os.urandom(1 << 20)
    assert fleet.submit(lambda data: data[::-1], data).result(timeout=LONG_S) == data[::-1]


def test_a_parameter_that_is_called_like_an_option_is_given_by_partial(fleet: Fleet) -> None:
    def greet(name: str) -> str:
        return f"hello {name}"

    with pytest.raises(TypeError, match="is an option of submit and also a parameter of greet"):
        fleet.submit(greet, name="Ada")
    job = fleet.submit(functools.partial(greet, name="Ada"), name="greeting")
    assert (job.result(timeout=LONG_S), job.name) == ("hello Ada", "greeting")


def test_a_wait_that_is_over_leaves_the_job_and_cancelling_ends_it(fleet: Fleet, tmp_path: Path) -> None:
    job = fleet.submit(wait_for, str(tmp_path / "never"))
    with pytest.raises(WaitTimeout, match=f"job {job.id} is still"):
        job.result(timeout=0.05)
    with pytest.raises(TimeoutError):
        fleet.wait(job.id, timeout=0)
    job.cancel()
    with pytest.raises(JobCancelled, match="was cancelled"):
        job.result(timeout=LONG_S)


def test_what_fits_nowhere_is_unschedulable_when_its_time_is_over(fleet: Fleet) -> None:
    job = fleet.submit(add, 1, resources={"gpu": 64}, scheduling_timeout_seconds=0.1)
    with pytest.raises(JobUnschedulable):
        job.result(timeout=LONG_S)


# Commands


def test_a_command_runs_with_its_environment(fleet: Fleet) -> None:
    job = fleet.submit_command(["sh", "-c", "echo $WHO; exit 3"], env={"WHO": "me"}, name="cmd")
    assert job.wait(LONG_S)["exit_code"] == 3
    with pytest.raises(JobFailed, match=r"(?s)job \S+ \(cmd\) failed.*3.*me"):
        job.result()
    assert fleet.submit_command(["true"]).result(timeout=LONG_S) == 0


def test_an_array_of_commands_tells_how_many_failed(fleet: Fleet) -> None:
    job = fleet.submit_command(["sh", "-c", "test $OSTLER_INDEX -lt 2"], array=3)
    with pytest.raises(JobFailed, match=r"1 of 3 tasks did not succeed; the first one: job \S+\.2"):
        job.result(timeout=LONG_S)


def test_a_log_is_followed_while_it_grows(fleet: Fleet, tmp_path: Path) -> None:
    go = tmp_path / "go"
    job = fleet.submit_command(["sh", "-c", f"echo first; while ! test -e {go}; do sleep 0.02; done; echo last"])
    pieces = job.follow_logs()
    assert next(pieces) == "first\n"
    go.touch()
    assert "".join(pieces) == "last\n"


# Maps


def test_a_map_gives_its_values_in_order_and_is_one_job(fleet: Fleet) -> None:
    results = fleet.map(add, range(40), range(100, 140), resources={"cpu": 0.1})
    assert list(results) == [x + 100 + x for x in range(40)]
    assert results.job is not None
    assert results.job.status()["counts"]["succeeded"] == 40
    assert results.job.result()[:2] == [100, 102]


def test_a_map_without_order_gives_what_ends_first(fleet: Fleet, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    second.touch()
    results = fleet.map(wait_for, [str(first), str(second)], ordered=False)
    assert next(results) == str(second)
    first.touch()
    assert next(results) == str(first)
    assert list(results) == []


def test_a_maps_exception_comes_in_its_place(fleet: Fleet) -> None:
    def odd_only(x: int) -> int:
        if x == 2:
            raise OwnError(f"no {x}")
        return x

    results = fleet.map(odd_only, range(4))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(OwnError, match="no 2"):
        next(results)
    kept = list(fleet.map(odd_only, range(4), return_exceptions=True))
    assert [str(one) for one in kept] == ["0", "1", "no 2", "3"]


def test_leaving_a_map_early_cancels_the_rest(fleet: Fleet, tmp_path: Path) -> None:
    def slow(x: int) -> int:
        if x:
            wait_for(str(tmp_path / "never"))
        return x

    results = fleet.map(slow, range(50))
    assert next(results) == 0
    results.close()
    assert results.job is not None
    assert results.job.wait(LONG_S)["state"] == "cancelled"


def test_a_map_that_takes_too_long_and_an_empty_one(fleet: Fleet, tmp_path: Path) -> None:
    with pytest.raises(WaitTimeout):
        next(fleet.map(wait_for, [str(tmp_path / "never")], timeout=0.1))
    assert list(fleet.map(add, [])) == []


def test_large_values_of_a_map_come_in_several_batches(fleet: Fleet) -> None:
    sizes = [*(200_000 + step for step in range(6)), *(3_000_000 + step for step in range(3)), 5_000_000, 10, 6_000_000]
    assert [len(value) for value in fleet.map(lambda size: b"x" * size, sizes)] == sizes
    assert sorted(len(value) for value in fleet.map(lambda size: b"x" * size, sizes, ordered=False)) == sorted(sizes)


# The executor, and threads


def test_the_executor_is_a_real_one(fleet: Fleet) -> None:
    with fleet.executor(resources={"cpu": 0.1}, name="many") as executor:
        assert isinstance(executor, concurrent.futures.Executor)
        futures = [executor.submit(add, number) for number in range(6)]
        done = {future.result(LONG_S) for future in concurrent.futures.as_completed(futures, timeout=LONG_S)}
        assert done == {1, 2, 3, 4, 5, 6}
        with pytest.raises(OwnError):
            executor.submit(fail, OwnError).result(LONG_S)
        assert list(executor.map(add, [1, 2])) == [2, 3]
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(add, 1)


def test_a_future_can_be_cancelled(fleet: Fleet, tmp_path: Path) -> None:
    executor = fleet.executor()
    future = executor.submit(wait_for, str(tmp_path / "never"))
    assert future.cancel()
    assert future.cancelled()
    assert concurrent.futures.wait([future], timeout=LONG_S).not_done == set()
    assert fleet.wait(future.job.id, timeout=LONG_S)["state"] == "cancelled"
    executor.shutdown()


def test_several_threads_use_one_fleet(fleet: Fleet) -> None:
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(fleet.submit(add, n, 0).result(LONG_S))) for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(6))


# asyncio


async def test_the_same_for_asyncio(fleet: Fleet) -> None:
    ours = AsyncFleet(fleet)
    jobs = [await ours.submit(add, number, resources={"cpu": 0.1}) for number in range(4)]
    assert await asyncio.gather(*(job.result(timeout=LONG_S) for job in jobs)) == [1, 2, 3, 4]
    assert [value async for value in ours.map(add, range(5))] == [1, 2, 3, 4, 5]
    with pytest.raises(OwnError):
        await (await ours.submit(fail, OwnError)).result(timeout=LONG_S)
    command = await ours.submit_command(["sh", "-c", "echo one; echo two"])
    assert "".join([piece async for piece in command.follow_logs()]) == "one\ntwo\n"
    assert await command.logs() == "one\ntwo\n"
    assert (await ours.status())["workers"]["offline"] == 0


async def test_connect_async_can_be_awaited_or_entered(fleet: Fleet) -> None:
    token = fleet.hub.create_token("user", "ada")["token"]
    async with ostler.connect_async(hub=fleet.url, token=token) as ours:
        assert await (await ours.submit(add, 1)).result(timeout=LONG_S) == 2
    again = await ostler.connect_async(hub=fleet.url, token=token)
    assert [job["user_id"] for job in await again.jobs()] == ["ada"]
    with pytest.raises(NotFound):
        await again.wait("nobody-knows")
    await again.close()


async def test_many_waits_at_once_do_not_keep_others_from_working(fleet: Fleet, tmp_path: Path) -> None:
    ours = AsyncFleet(fleet)
    go = tmp_path / "go"
    job = await ours.submit(wait_for, str(go))
    waits = [asyncio.create_task(job.wait(LONG_S)) for _ in range(100)]
    with pytest.raises(WaitTimeout):
        await job.wait(timeout=0.05)
    go.touch()
    assert {document["state"] for document in await asyncio.gather(*waits)} == {"succeeded"}


# What is wrong


@pytest.mark.parametrize(
    "resources", [{"gpus": 1}, {"gpu": -1}, {"memory": ""}, {"gpu_type": ""}, {"cpu": "two"}, {"backend": "cuda"}]
)
def test_wrong_resources_are_value_errors_that_name_the_key(fleet: Fleet, resources: dict[str, Any]) -> None:
    key = next(iter(resources))
    calls: list[Callable[[], Any]] = [
        lambda: fleet.submit(add, 1, resources=resources),
        lambda: fleet.submit_command(["true"], resources=resources),
        lambda: fleet.map(add, [1], resources=resources),
        lambda: fleet.executor(resources=resources),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"'{key}'"):
            call()


def test_a_bad_value_of_an_option_is_named_by_the_hub(fleet: Fleet) -> None:
    with pytest.raises(BadInput, match="job_tier"):
        fleet.submit(add, 1, tier="express")


def test_a_function_that_cannot_be_sent_is_refused_here(fleet: Fleet) -> None:
    lock = threading.Lock()
    with pytest.raises(CannotSend):
        fleet.submit(lambda: lock.locked())


def test_an_unknown_id_is_not_found(fleet: Fleet) -> None:
    for call in (fleet.job, fleet.wait, fleet.cancel, fleet.hub.why):
        with pytest.raises(NotFound, match="nobody-knows"):
            call("nobody-knows")


def test_a_wrong_token_is_not_authenticated(fleet: Fleet) -> None:
    with ostler.connect(hub=fleet.url, token="wrong") as stranger, pytest.raises(NotAuthenticated):
        stranger.submit(add, 1)


def test_connect_finds_the_hub_by_the_environment(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    token = fleet.hub.create_token("user", "ada")
    monkeypatch.setenv("OSTLER_HUB", fleet.url)
    monkeypatch.setenv("OSTLER_TOKEN", token["token"])
    with ostler.connect(state_dir=str(tmp_path)) as ours:
        assert ours.hub.me() == {"role": "user", "user": "ada"}
    fleet.hub.revoke_token(token["id"])
    with ostler.connect(state_dir=str(tmp_path)) as ours, pytest.raises(NotAuthenticated):
        ours.jobs()


def test_no_hub_is_told_with_its_address() -> None:
    fleet = ostler.connect(hub="http://127.0.0.1:9", token="t", patience=Patience(tries=1))
    with fleet, pytest.raises(HubUnreachable, match=r"no hub answers at http://127\.0\.0\.1:9 \(refused\)"):
        fleet.status()


# Hubs that go away, and fleets that end


class RestartableHub:
    """A hub of its own that can be killed and started again at the same address, and one worker."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self._worker: subprocess.Popen[bytes] | None = None
        self._hub = self._start("hub", "--port", "0")
        while not (state / "hub.url").exists():
            assert self._hub.poll() is None
            time.sleep(0.02)
        self.url = (state / "hub.url").read_text().strip()
        self._worker = self._start(
            "worker", "--hub", self.url, "--token", f"@{state / 'join.token'}", "--drain-seconds", "0"
        )

    def _start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "ostler", *arguments, "--state-dir", str(self.state)]
        with open(self.state / f"{arguments[0]}.log", "ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        self._hub.send_signal(signal.SIGKILL)
        self._hub.wait()

    def restart(self) -> None:
        self._hub = self._start("hub", "--port", self.url.rpartition(":")[2])

    def stop(self) -> None:
        for process in (self._worker, self._hub):
            if process is not None:
                process.terminate()
                process.wait(60)


@pytest.fixture
def restartable(tmp_path: Path) -> Iterator[RestartableHub]:
    state = tmp_path / "state"
    state.mkdir()
    hub = RestartableHub(state)
    yield hub
    hub.stop()


def test_waits_and_followed_logs_and_submits_survive_a_hub_that_is_killed(
    restartable: RestartableHub, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    script = f"echo first; while ! test -e {go}; do sleep 0.02; done; echo last"
    with ostler.connect(hub=restartable.url, state_dir=str(restartable.state)) as fleet:
        job = fleet.submit_command(["sh", "-c", script])
        pieces = job.follow_logs()
        told = next(pieces)
        with concurrent.futures.ThreadPoolExecutor() as threads:
            waiting = threads.submit(fleet.wait, job.id, LONG_S)
            restartable.kill()
            submitted = threads.submit(fleet.submit, add, 1)
            restartable.restart()
            value = submitted.result(LONG_S).result(LONG_S)
            go.touch()
            told += "".join(pieces)
            assert (told, value, waiting.result(LONG_S)["state"]) == ("first\nlast\n", 2, "succeeded")


def everything_of(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(folder) in part for part in [process.cwd(), *process.cmdline()]):
                found.append(process)
        except psutil.Error:
            continue
    return [process for process in found if process.pid != os.getpid()]


def test_closing_a_local_fleet_leaves_no_process(tmp_path: Path) -> None:
    fleet = ostler.local(
        workers=2, offer={"cpu_count": 2, "memory_gb": 1.5, "labels": {"zone": "eu"}}, state_dir=tmp_path / "s"
    )
    with fleet:
        assert [worker["cpu_count"] for worker in fleet.workers()] == [2, 2]
        job = fleet.submit(wait_for, str(tmp_path / "never"), labels={"zone": "eu"})
        while job.status()["state"] != "running":
            time.sleep(0.02)
        assert len(everything_of(tmp_path / "s")) >= 3
    assert everything_of(tmp_path / "s") == []


ABANDONED = """
import ostler, os, signal, sys, time
fleet = ostler.local(state_dir=sys.argv[1])
job = fleet.submit_command(["sleep", "1000"])
while job.status()["state"] != "running":
    time.sleep(0.02)
print("running", flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["forgotten", "killed"])
def test_a_local_fleet_ends_with_its_program_however_that_ends(tmp_path: Path, end: str) -> None:
    state = tmp_path / "s"
    done = subprocess.run(
        [sys.executable, "-c", ABANDONED, str(state), end], capture_output=True, check=False, timeout=60
    )
    assert done.stdout == b"running\n", done.stderr.decode()
    deadline = time.monotonic() + (20 if end == "killed" else 0)
    while (left := everything_of(state)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def test_why_estimate_and_whatif_speak_of_a_job_that_waits(fleet: Fleet) -> None:
    job = fleet.submit_command(["true"], resources={"gpu": 1}, name="needs-a-gpu")
    why = fleet.why(job)
    assert why["state"] == "pending" and why == {**job.why(), "expected": why["expected"], "estimate": why["estimate"]}
    assert why["changes"][-1]["kind"] == "machine"
    assert fleet.estimate(job)["never"]
    machine = {"capabilities": {"gpu_backend": "nvidia", "gpu_count": 1, "cpu_count": 1, "memory_gb": 1}}
    found = fleet.whatif(job=job, add_workers=[machine])
    assert found["now"]["never"] and found["then"]["start"]["likely"]
    assert fleet.whatif(spec={"command": ["true"]})["then"]["start"]["likely"]
    with pytest.raises(BadInput, match="nothing would be different"):
        fleet.whatif(job=job)
    job.cancel()
