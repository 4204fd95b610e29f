"""Scripts in the manner of submitit, on a real fleet."""

import os
import time
from pathlib import Path

import pytest

from ostler.client import BadInput, Fleet, JobFailed
from ostler.submitit import AutoExecutor, Job


@pytest.fixture
def executor(fleet: Fleet, tmp_path: Path) -> AutoExecutor:
    return AutoExecutor(tmp_path / "logs", fleet=fleet)


def add(x: int, y: int) -> int:
    print(f"adding {x} and {y}")
    return x + y


def until_told(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.02)


def test_a_call_is_a_job_with_a_result_a_state_and_a_log(executor: AutoExecutor) -> None:
    job = executor.submit(add, 5, y=7)
    assert job.result() == 12
    assert (job.done(force_check=True), job.state, job.exception(), job.results()) == (True, "COMPLETED", None, [12])
    assert job.stdout() == job.stderr() == "adding 5 and 7\n"
    assert [file.read_text() for file in executor.folder.iterdir()] == ["adding 5 and 7\n"]
    assert repr(job) == f"<Job {job.job_id}>"


def test_parameters_become_what_the_fleet_is_asked_for(executor: AutoExecutor) -> None:
    executor.update_parameters(timeout_min=30, mem_gb=0.25, cpus_per_task=1, slurm_partition="gpu", name="tuned")
    executor.update_parameters(ostler_priority=3, ostler_resources={"labels": ["os = linux"]})
    job = executor.submit(add, 1, 1)
    assert job.result() == 2
    spec = job.get_info()["spec"]
    assert (spec["max_runtime_hours"], spec["min_memory_gb"], spec["min_cpu_cores"]) == (0.5, 0.25, 1.0)
    assert (spec["name"], spec["priority"], "os = linux" in spec["labels"]) == ("tuned", 3, True)


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"timeout_minutes": 3}, "unknown parameter 'timeout_minutes'; did you mean 'timeout_min'"),
        ({"nodes": 2}, "one process"),
        ({"ostler_id": "x"}, "unknown parameter 'ostler_id'"),
        ({"gpus_per_node": 0.5}, "whole number"),
        ({"timeout_min": "30"}, "number of minutes"),
    ],
)
def test_a_parameter_that_cannot_be_meant_is_refused(
    executor: AutoExecutor, parameters: dict[str, object], told: str
) -> None:
    with pytest.raises(BadInput, match=told):
        executor.update_parameters(**parameters)


def test_an_array_is_one_job_whose_tasks_are_asked_one_by_one(executor: AutoExecutor, fleet: Fleet) -> None:
    jobs = executor.map_array(add, range(5), range(10, 15))
    assert [job.result() for job in jobs] == [10, 12, 14, 16, 18]
    arrays = {job.job_id.rpartition(".")[0] for job in jobs}
    assert len(arrays) == 1
    assert fleet.job(arrays.pop()).status()["counts"] == {"succeeded": 5}
    assert executor.map_array(add, [], []) == []


def test_a_batch_is_sent_when_its_block_is_left(executor: AutoExecutor) -> None:
    jobs: list[Job] = []
    with executor.batch():
        jobs.append(executor.submit(add, 1, 2))
        jobs.append(executor.submit(max, 3, 9))
        with pytest.raises(RuntimeError, match="not submitted yet"):
            _ = jobs[0].job_id
        with pytest.raises(RuntimeError, match="open already"), executor.batch():
            pass
    assert [job.result() for job in jobs] == [3, 9]


def test_a_batch_whose_block_raises_is_not_sent(executor: AutoExecutor) -> None:
    jobs: list[Job] = []

    def interrupted() -> None:
        with executor.batch():
            jobs.append(executor.submit(add, 1, 2))
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    with pytest.raises(RuntimeError, match="not submitted yet"):
        jobs[0].result()
    assert executor.submit(add, 1, 2).result() == 3


def test_functions_without_arguments_are_an_array_too(executor: AutoExecutor) -> None:
    assert [job.result() for job in executor.submit_array([lambda: 1, lambda: 2])] == [1, 2]


def test_what_a_call_raises_is_raised_again(executor: AutoExecutor) -> None:
    job = executor.submit(add, 1, "two")
    with pytest.raises(TypeError, match="unsupported operand"):
        job.result()
    assert (job.state, isinstance(job.exception(), TypeError)) == ("FAILED", True)
    died = executor.submit(os._exit, 9)
    assert isinstance(died.exception(), JobFailed)


def test_a_job_can_be_cancelled(executor: AutoExecutor, tmp_path: Path) -> None:
    job = executor.submit(until_told, str(tmp_path / "never"))
    job.cancel()
    job.wait()
    assert job.state == "CANCELLED"


def test_each_job_may_have_a_folder_of_its_own(fleet: Fleet, tmp_path: Path) -> None:
    job = AutoExecutor(f"{tmp_path}/%j", fleet=fleet).submit(add, 1, 1)
    job.wait()
    assert (tmp_path / job.job_id / f"{job.job_id}_0_log.out").exists()


def test_the_tasks_of_an_array_share_a_folder(fleet: Fleet, tmp_path: Path) -> None:
    jobs = AutoExecutor(f"{tmp_path}/of-%j", fleet=fleet).map_array(add, [1, 2], [3, 4])
    assert [job.result() for job in jobs] == [4, 6]
    (folder,) = tmp_path.iterdir()
    assert {file.name for file in folder.iterdir()} == {f"{job.job_id}_0_log.out" for job in jobs}


def test_a_folder_is_found_at_home_and_one_that_cannot_be_is_told_before_a_job_runs(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert AutoExecutor("~/logs", fleet=fleet).folder == tmp_path / "logs"
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        AutoExecutor(tmp_path / "file" / "%j", fleet=fleet)


def test_another_cluster_is_not_ours(tmp_path: Path, fleet: Fleet) -> None:
    with pytest.raises(BadInput, match="'ostler'"):
        AutoExecutor(tmp_path, cluster="slurm", fleet=fleet)
