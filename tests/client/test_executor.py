"""Futures and what becomes of them when the hub, or what a job has left, is not as it should be."""

import pickle
from concurrent.futures import Future
from typing import Any

import pytest
from tests.client.scripted_hub import ScriptedHub, drop, problem, reply

from ostler.client import functions
from ostler.client.errors import HubUnreachable
from ostler.client.executor import FleetExecutor, JobFuture
from ostler.client.fleet import Fleet
from ostler.client.http import Document, Hub
from ostler.client.job import Job
from ostler.client.transport import Patience

QUICK = Patience(tries=2, first_pause_s=0.01, growth=1.0, total_s=5.0, outage_s=30.0)
SUCCEEDED = {
    "id": "j1",
    "state": "succeeded",
    "spec": {"metadata": {functions.CALL: {}}, "labels": [functions.PYTHON_LABEL]},
}


class Watched(Fleet):
    """Submits nothing, and leaves it to the test when a job has ended."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self.ends: list[Future[Document]] = []

    def submit_watched(self, *_: Any) -> tuple[Job, "Future[Document]"]:
        self.ends.append(Future())
        return Job(self.hub, f"j{len(self.ends)}"), self.ends[-1]


def submit(scripted: ScriptedHub, calls: int = 1) -> tuple[FleetExecutor, list[JobFuture], "list[Future[Document]]"]:
    fleet = Watched(Hub(scripted.url, patience=QUICK))
    executor = fleet.executor()
    return executor, [executor.submit(pow, 2, 2) for _ in range(calls)], fleet.ends


def test_a_value_is_fetched_though_the_hub_goes_away_before_it() -> None:
    with ScriptedHub(*[drop] * (QUICK.tries + 3), reply(pickle.dumps(("value", 4)))) as scripted:
        _, [future], [end] = submit(scripted)
        end.set_result(SUCCEEDED)
        assert future.result(0) == 4


def test_a_value_is_not_waited_for_once_the_fleet_is_closed() -> None:
    def closing(handler: Any) -> None:
        fleet.close()
        drop(handler)

    with ScriptedHub(closing) as scripted:
        fleet = Watched(Hub(scripted.url, patience=QUICK))
        future = fleet.executor().submit(pow, 2, 2)
        fleet.ends[0].set_result(SUCCEEDED)
        assert isinstance(future.exception(0), HubUnreachable)
        assert len(scripted.requests) <= QUICK.tries


def test_whatever_goes_wrong_with_an_outcome_ends_its_future(monkeypatch: pytest.MonkeyPatch) -> None:
    def exits(*_: Any) -> None:
        raise SystemExit(3)

    with ScriptedHub(drop) as scripted:
        _, [future, another], [end, its] = submit(scripted, 2)
        end.set_result({"id": "j1"})
        assert isinstance(future.exception(0), KeyError)
        monkeypatch.setattr("ostler.client.executor.outcome_of", exits)
        its.set_result({"id": "j2"})
        assert isinstance(another.exception(0), SystemExit)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warnings of the client."""
    found: list[str] = []
    monkeypatch.setattr("ostler.client.executor._log.warning", lambda text, *values: found.append(text % values))
    return found


def test_a_shutdown_without_a_hub_cancels_all_futures_at_once_and_names_the_jobs_that_go_on(told: list[str]) -> None:
    cancelled: list[bool] = []

    def away(handler: Any) -> None:
        cancelled.extend(future.cancelled() for future in futures)
        drop(handler)

    with ScriptedHub(problem(409, "it has ended"), away) as scripted:
        executor, futures, _ = submit(scripted, 4)
        executor.shutdown(cancel_futures=True)
        assert len(set(scripted.paths)) == 2, "the hub is not waited for again for each of the others"
    assert cancelled
    assert all(cancelled)
    [warning] = [text for text in told if "could not be cancelled" in text]
    ended = scripted.paths[0].split("/")[3]
    assert all(future.job.id in warning for future in futures if future.job.id != ended)
    assert ended not in warning


def test_a_cancel_that_reached_no_hub_is_told(told: list[str]) -> None:
    with ScriptedHub(drop) as scripted:
        _, [future], _ = submit(scripted)
        assert (future.cancel(), future.cancel()) == (True, True)
    assert told[-1].endswith("could not be cancelled and go on: j1")
