"""joblib and scikit-learn on a real fleet."""

import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Any

import joblib
import pytest
from joblib import Parallel, delayed
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

import ostler.joblib
from ostler.client import BadInput, CannotSend, Fleet, JobFailed
from ostler.client.parallel import FleetBackend
from ostler.domain.states import TERMINAL


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    ostler.joblib.register()


def square(number: int) -> int:
    return number * number


def refuse(number: int) -> None:
    if number == 1:
        raise ValueError(f"not {number}")
    time.sleep(60)


def jobs_of(fleet: Fleet, name: str) -> list[dict[str, Any]]:
    return fleet.jobs(name=name)


def test_calls_run_on_the_fleet_and_come_back_in_order(fleet: Fleet) -> None:
    with joblib.parallel_backend("ostler", fleet=fleet, name="squares"):
        assert Parallel()(delayed(square)(number) for number in range(20)) == [square(number) for number in range(20)]
        pids = set(Parallel(n_jobs=2)(delayed(os.getpid)() for _ in range(4)))
    assert os.getpid() not in pids
    batches = jobs_of(fleet, "squares")
    assert batches and {job["state"] for job in batches} == {"succeeded"}


def test_short_calls_are_sent_many_at_a_time(fleet: Fleet) -> None:
    with joblib.parallel_config("ostler", fleet=fleet, name="batched"):
        Parallel(n_jobs=2)(delayed(square)(number) for number in range(400))
    assert len(jobs_of(fleet, "batched")) < 200


def test_a_generator_gives_values_as_they_are_read(fleet: Fleet) -> None:
    with joblib.parallel_config("ostler", fleet=fleet):
        values = Parallel(n_jobs=2, return_as="generator")(delayed(square)(number) for number in range(5))
        assert list(values) == [0, 1, 4, 9, 16]


def test_an_exception_is_raised_and_what_has_not_run_is_cancelled(fleet: Fleet) -> None:
    with joblib.parallel_config("ostler", fleet=fleet, name="refused"), pytest.raises(ValueError, match="not 1"):
        Parallel(n_jobs=2, batch_size=1)(delayed(refuse)(number) for number in range(40))
    deadline = time.monotonic() + 30
    while any(job["state"] not in TERMINAL for job in jobs_of(fleet, "refused")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert {job["state"] for job in jobs_of(fleet, "refused")} == {"failed", "cancelled"}


def test_a_process_that_dies_is_an_error_and_not_a_hang(fleet: Fleet) -> None:
    with joblib.parallel_config("ostler", fleet=fleet), pytest.raises(JobFailed, match="exit code 7"):
        Parallel(n_jobs=2)(delayed(os._exit)(7) for _ in range(2))


def test_a_timeout_is_kept(fleet: Fleet) -> None:
    with joblib.parallel_config("ostler", fleet=fleet), pytest.raises(multiprocessing.TimeoutError):
        Parallel(n_jobs=2, timeout=1)(delayed(time.sleep)(60) for _ in range(2))


def test_a_parallel_inside_a_call_runs_where_the_call_does(fleet: Fleet) -> None:
    def outer(number: int) -> tuple[int, list[int]]:
        return os.getpid(), Parallel(n_jobs=2)(delayed(os.getpid)() for _ in range(number))

    with joblib.parallel_config("ostler", fleet=fleet):
        (where, inner), *_ = Parallel(n_jobs=2)(delayed(outer)(2) for _ in range(2))
    assert set(inner) == {where}


def test_a_search_of_scikit_learn_finds_the_same_as_without_a_fleet(fleet: Fleet) -> None:
    x, y = make_classification(n_samples=120, n_features=6, random_state=0)
    grid = {"C": [0.01, 100.0]}
    with joblib.parallel_config("ostler", fleet=fleet, resources={"cpu": 1}):
        there = GridSearchCV(LogisticRegression(), grid, cv=2, n_jobs=2).fit(x, y)
    here = GridSearchCV(LogisticRegression(), grid, cv=2).fit(x, y)
    assert there.best_params_ == here.best_params_
    assert there.cv_results_["mean_test_score"] == pytest.approx(here.cv_results_["mean_test_score"])


def test_how_many_run_at_once_follows_from_the_fleet_and_from_what_each_needs(fleet: Fleet) -> None:
    cores = int(fleet.status()["cores"]["total"])
    assert FleetBackend(fleet=fleet).effective_n_jobs(-1) == cores
    assert FleetBackend(fleet=fleet, resources={"cpu": 0.5}).effective_n_jobs(-1) == 2 * cores
    assert FleetBackend(fleet=fleet).effective_n_jobs(7) == 7
    with pytest.raises(ValueError, match="no meaning"):
        FleetBackend(fleet=fleet).effective_n_jobs(0)


def test_calls_leave_this_process_also_where_the_fleet_has_room_for_one(fleet: Fleet) -> None:
    cores = int(fleet.status()["cores"]["total"])
    with joblib.parallel_config("ostler", fleet=fleet, resources={"cpu": cores}):
        assert os.getpid() not in Parallel(n_jobs=-1)(delayed(os.getpid)() for _ in range(2))


def test_a_call_that_cannot_be_sent_is_an_error_and_not_a_hang(fleet: Fleet) -> None:
    arguments = [0] * 8 + [threading.Lock()] + [0] * 8
    with joblib.parallel_config("ostler", fleet=fleet), pytest.raises(CannotSend, match="lock"):
        Parallel(n_jobs=2, batch_size=1, timeout=60)(delayed(type)(one) for one in arguments)


def test_the_end_of_one_generator_is_not_the_end_of_another(fleet: Fleet) -> None:
    with joblib.parallel_config("ostler", fleet=fleet):
        first = Parallel(n_jobs=2, return_as="generator", batch_size=1)(delayed(square)(n) for n in range(3))
        second = Parallel(n_jobs=2, return_as="generator", batch_size=1)(delayed(square)(n) for n in range(12))
        assert (list(first), list(second)) == ([0, 1, 4], [n * n for n in range(12)])


def test_a_wrong_option_is_told_where_it_is_written(fleet: Fleet) -> None:
    with (
        pytest.raises(BadInput, match="did you mean 'cpu'"),
        joblib.parallel_config("ostler", fleet=fleet, resources={"cpus": 1}),
    ):
        pass


def test_without_a_fleet_the_usual_hub_is_connected_to(
    fleet: Fleet, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSTLER_HUB", fleet.url)
    monkeypatch.setenv("OSTLER_STATE_DIR", str(state))
    with joblib.parallel_config("ostler"):
        assert Parallel(n_jobs=2)(delayed(square)(number) for number in range(3)) == [0, 1, 4]
