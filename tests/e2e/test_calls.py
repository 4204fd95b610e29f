"""Many small calls through the whole fleet: few interpreters, every value, and nothing lost to a crash."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import ostler


@pytest.fixture(scope="module")
def fleet() -> Iterator[ostler.Fleet]:
    with ostler.local(slots=2, offer={"cpu_count": 4, "memory_gb": 8}) as made:
        yield made


def test_many_calls_share_few_interpreters(fleet: ostler.Fleet) -> None:
    found = list(fleet.map(lambda n: (n, os.getpid()), range(300)))
    assert [n for n, _ in found] == list(range(300))
    assert len({pid for _, pid in found}) <= 4


def test_single_calls_share_them_too(fleet: ostler.Fleet) -> None:
    pids = {fleet.submit(os.getpid).result(timeout=60) for _ in range(5)}
    assert len(pids) <= 2


def test_a_call_that_crashes_costs_itself_only(fleet: ostler.Fleet) -> None:
    def sometimes(n: int) -> int:
        if n == 7:
            os._exit(3)
        if n == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        if n == 17:
            sys.exit("enough")
        if n == 23:
            raise ValueError(n)
        return n

    found = list(fleet.map(sometimes, range(40), return_exceptions=True, max_attempts=1))
    wrong = {n for n, value in enumerate(found) if isinstance(value, Exception)}
    assert wrong == {7, 13, 17, 23}
    assert isinstance(found[23], ValueError)
    assert [value for value in found if not isinstance(value, Exception)] == [n for n in range(40) if n not in wrong]


def test_each_calls_output_is_in_its_own_log(fleet: ostler.Fleet) -> None:
    results = fleet.map(lambda n: print("this is", n), range(12))
    assert list(results) == [None] * 12
    assert results.job is not None
    for n in range(12):
        assert fleet.job(f"{results.job.id}.{n}").logs() == f"this is {n}\n"


def test_one_users_environment_is_not_seen_by_anothers_call(fleet: ostler.Fleet) -> None:
    seen = lambda _: (os.getpid(), os.environ.get("KEY"))  # noqa: E731
    first = set(fleet.map(seen, range(10), env={"KEY": "ann's"}))
    second = set(fleet.map(seen, range(10), user_id="bob"))
    third = set(fleet.map(seen, range(10), user_id="carol"))
    assert {key for _, key in first} == {"ann's"}
    assert {key for _, key in second | third} == {None}
    pids = [{pid for pid, _ in one} for one in (first, second, third)]
    assert not pids[0] & pids[1] and not pids[1] & pids[2] and not pids[0] & pids[2]


def test_a_fresh_interpreter_can_be_asked_for(fleet: ostler.Fleet) -> None:
    pids = list(fleet.map(lambda _: os.getpid(), range(4), metadata={"ostler.fresh": True}))
    assert len(set(pids)) == 4


def test_a_cancelled_call_is_gone(fleet: ostler.Fleet, tmp_path: Path) -> None:
    def stay(path: str) -> None:
        with open(path, "w") as file:
            file.write(str(os.getpid()))
        time.sleep(60)

    post = tmp_path / "post"
    os.mkfifo(post)
    job = fleet.submit(stay, str(post))
    process = psutil.Process(int(post.read_text()))
    job.cancel()
    assert job.wait(timeout=60)["state"] == "cancelled"
    process.wait(60)  # the hub says so at once, the worker a moment later


def test_a_worker_that_is_killed_during_a_map_loses_no_call_and_runs_none_twice(tmp_path: Path) -> None:
    def count(n: int, folder: str) -> int:
        with open(f"{folder}/{n}", "a") as file:
            file.write("x")
        time.sleep(0.01)
        return n

    with ostler.local(slots=2, offer={"cpu_count": 2, "memory_gb": 4}) as own:
        results = own.map(count, range(150), [str(tmp_path)] * 150, timeout=90)
        assert next(results) == 0
        worker = _worker_of(own)
        command, environment = worker.cmdline(), worker.environ()
        worker.kill()
        worker.wait(60)
        again: Any = psutil.Popen(command, env=environment, stdin=-1)
        try:
            assert list(results) == list(range(1, 150))
            assert [(tmp_path / str(n)).read_text() for n in range(150)] == ["x"] * 150
        finally:
            again.terminate()
            again.wait(60)


def _worker_of(fleet: ostler.Fleet) -> psutil.Process:
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if " worker " in line and fleet.hub.url in line:
            return process
    raise AssertionError("no worker of this fleet")
