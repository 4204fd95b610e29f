"""What the standard library's own tests ask of an executor, asked of a fleet's."""

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    CancelledError,
    Future,
    as_completed,
    wait,
)
from pathlib import Path
from typing import Any

import pytest

from ostler.client import Fleet, JobFailed


def capture(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def until_told(path: str) -> str:
    while not os.path.exists(path):
        time.sleep(0.01)
    return path


def until_told_then_raise(path: str) -> None:
    until_told(path)
    raise ValueError(path)


@pytest.fixture
def gate(tmp_path: Path) -> Callable[[], str]:
    """A file that calls wait for; made when this is called a second time."""
    file = tmp_path / "gate"
    return lambda: str(file)


def test_any_arguments_are_passed_on(fleet: Fleet) -> None:
    with fleet.executor() as executor:
        assert executor.submit(capture, 1, self=2, fn=3).result(60) == ((1,), {"self": 2, "fn": 3})
        assert executor.submit(pow, 2, 8).result(60) == 256


def test_a_map_is_in_order_lazy_and_raises_in_its_place(fleet: Fleet) -> None:
    with fleet.executor() as executor:
        assert list(executor.map(pow, range(10), range(10))) == [n**n for n in range(10)]
        assert list(executor.map(pow, range(40), range(40), chunksize=6)) == [n**n for n in range(40)]
        values = executor.map(divmod, [1, 1, 1, 1], [2, 3, 0, 5])
        assert [next(values), next(values)] == [(0, 1), (0, 1)]
        with pytest.raises(ZeroDivisionError):
            next(values)


def test_a_map_keeps_its_time_limit(fleet: Fleet, gate: Callable[[], str]) -> None:
    with fleet.executor() as executor:
        values = executor.map(until_told, [gate()], timeout=0.5)
        with pytest.raises(TimeoutError):
            next(values)
        Path(gate()).touch()


def test_the_first_that_ends_is_told_first(fleet: Fleet, gate: Callable[[], str]) -> None:
    with fleet.executor() as executor:
        slow, fast = executor.submit(until_told, gate()), executor.submit(pow, 2, 2)
        done, pending = wait([slow, fast], timeout=60, return_when=FIRST_COMPLETED)
        assert (done, pending) == ({fast}, {slow})
        found = as_completed([slow, fast], timeout=60)
        assert next(found) is fast
        Path(gate()).touch()
        assert next(found) is slow


def test_waiting_ends_with_an_exception_where_that_is_asked_for(fleet: Fleet, gate: Callable[[], str]) -> None:
    with fleet.executor() as executor:
        slow, bad = executor.submit(until_told, gate()), executor.submit(divmod, 1, 0)
        done, pending = wait([slow, bad], timeout=60, return_when=FIRST_EXCEPTION)
        assert (done, pending) == ({bad}, {slow})
        assert isinstance(bad.exception(), ZeroDivisionError)
        Path(gate()).touch()
        assert wait([slow, bad], timeout=60, return_when=ALL_COMPLETED).not_done == set()


def test_waiting_has_an_end(fleet: Fleet, gate: Callable[[], str]) -> None:
    with fleet.executor() as executor:
        future = executor.submit(until_told, gate())
        assert wait([future], timeout=0.1).not_done == {future}
        with pytest.raises(TimeoutError):
            list(as_completed([future], timeout=0))
        Path(gate()).touch()


def test_a_cancelled_future_is_done_and_its_job_is_cancelled(fleet: Fleet, gate: Callable[[], str]) -> None:
    with fleet.executor() as executor:
        future = executor.submit(until_told, gate())
        again: list[bool] = []
        future.add_done_callback(lambda told: again.append(told.cancel()))
        assert future.cancel() and future.cancelled() and future.done()
        assert (again, future.cancel()) == ([True], True)
        with pytest.raises(CancelledError):
            future.result()
        assert next(as_completed([future], timeout=60)) is future
        assert fleet.wait(future.job, timeout=60)["state"] == "cancelled"
        ended = executor.submit(pow, 2, 2)
        assert (ended.result(60), ended.cancel()) == (4, False)


class Exits:
    def __reduce__(self) -> tuple[Any, ...]:
        return sys.exit, (3,)


def test_a_value_that_would_end_this_process_ends_one_future(fleet: Fleet) -> None:
    with fleet.executor() as executor:
        with pytest.raises(JobFailed, match="cannot be opened here: SystemExit"):
            executor.submit(Exits).result(60)
        assert executor.submit(pow, 2, 2).result(60) == 4


class Refused(Exception):
    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} cannot be set")


def refuse(code: int) -> None:
    raise Refused(code)


def test_an_exception_that_takes_no_attributes_is_raised_as_any_other(fleet: Fleet) -> None:
    with fleet.executor() as executor:
        with pytest.raises(Refused):
            executor.submit(refuse, 7).result(60)
        with pytest.raises(Refused):
            next(executor.map(refuse, [7]))
    [kept] = fleet.map(refuse, [7], return_exceptions=True)
    assert (type(kept), kept.args) == (Refused, (7,))


def test_callbacks_are_called_once_with_the_future(fleet: Fleet) -> None:
    told: list[Future[Any]] = []
    heard = threading.Event()

    def hear(future: Future[Any]) -> None:
        told.append(future)
        heard.set()

    with fleet.executor() as executor:
        future = executor.submit(pow, 2, 2)
        future.add_done_callback(hear)
        assert heard.wait(60)
        assert future.result() == 4
        future.add_done_callback(hear)
    assert told == [future, future]


def test_shutdown_waits_for_what_runs_and_takes_nothing_more(fleet: Fleet, gate: Callable[[], str]) -> None:
    executor = fleet.executor()
    future = executor.submit(until_told, gate())
    executor.shutdown(wait=False)
    assert not future.done()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(pow, 2, 2)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.map(pow, [1], [2])
    threading.Timer(0.2, Path(gate()).touch).start()
    executor.shutdown(wait=True)
    assert future.done()
    assert future.result() == gate()


def test_shutdown_cancels_what_it_is_told_to(fleet: Fleet, gate: Callable[[], str]) -> None:
    executor = fleet.executor()
    futures = [executor.submit(until_told, gate()) for _ in range(3)]
    executor.shutdown(cancel_futures=True)
    assert all(future.cancelled() for future in futures)


def test_a_future_can_be_awaited_by_asyncio(fleet: Fleet) -> None:
    import asyncio

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        with fleet.executor() as executor:
            return await asyncio.gather(*(loop.run_in_executor(executor, pow, 2, n) for n in range(4)))

    assert asyncio.run(main()) == [1, 2, 4, 8]
