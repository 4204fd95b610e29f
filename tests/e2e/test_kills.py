"""kill -9 of the worker, of the hub, and of both, in the midst of work: nothing is lost, nothing runs twice."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.diary import Diary
from tests.process_fleet import ProcessFleet, process_fleet, until

from ostler.client import Job


def keep_diary(folder: str, gate: str) -> str:
    """What the other tasks are as a program, as a function."""
    task = f"{os.environ['OSTLER_TASK_ID']} {os.environ['OSTLER_ATTEMPT']}"
    with open(f"{folder}/lines", "a") as diary:
        print("begin", task, file=diary)
    while not os.path.exists(f"{folder}/gate.{gate}"):
        time.sleep(0.05)
    with open(f"{folder}/lines", "a") as diary:
        print("end", task, file=diary)
    return f"the value of {task}"


class Work:
    """A program, a function and an array: of each kind, some end early and some late."""

    def __init__(self, fleet: ProcessFleet, diary: Diary) -> None:
        self.fleet = fleet
        self.diary = diary
        one, other = (self._submit(diary.spec(gate)) for gate in ("early", "late"))
        array = self._submit(diary.spec(array=4))
        functions = [
            fleet.client.submit(keep_diary, str(diary.folder), gate, resources={"cpu": 1}) for gate in ("early", "late")
        ]
        self.functions: list[Job] = functions
        self.jobs = [one, other, array, *(job.id for job in functions)]
        self.early = [one, f"{array}.0", f"{array}.2", functions[0].id]
        self.late = [other, f"{array}.1", f"{array}.3", functions[1].id]
        self.tasks = [*self.early, *self.late]
        diary.await_begun(*self.tasks)

    def _submit(self, spec: dict[str, Any]) -> str:
        job_id: str = self.fleet.hub.submit(spec)["id"]
        return job_id

    def end_early(self) -> None:
        """Half of the tasks end now, without anybody having to be there to see it."""
        self.diary.open("early", 0, 2)
        self.diary.await_ended(*self.early)

    def end_all(self) -> None:
        """The other half, too; and the hub knows."""
        self.diary.open("early", 0, 2, "late", 1, 3)
        ended = [self.fleet.client.wait(job_id, timeout=60) for job_id in self.jobs]
        assert [job["state"] for job in ended] == ["succeeded"] * len(ended), ended

    def check(self) -> None:
        """Each ran once, from its begin to its end, in one attempt, with one recorded end."""
        once = dict.fromkeys(self.tasks, 1)
        assert (self.diary.seen("begin"), self.diary.seen("end")) == (once, once)
        found = [self.fleet.hub.job(task) for task in self.tasks]
        assert {task["id"]: [one["state"] for one in task["attempts"]] for task in found} == {
            task: ["succeeded"] for task in self.tasks
        }
        written = {(task, attempt) for _, task, attempt in self.diary.lines()}
        assert written == {(task["id"], task["attempt"]) for task in found}
        told = {name: ends for job_id in self.jobs for name, ends in self.fleet.ends_told(job_id).items()}
        assert told == dict.fromkeys([*self.jobs, *self.tasks], ["succeeded"])
        for job in self.functions:
            attempt = self.fleet.hub.job(job.id)["attempt"]
            assert job.result(timeout=60) == f"the value of {job.id} {attempt}"
        self.fleet.await_free("box")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[ProcessFleet]:
    with process_fleet(tmp_path, "box") as made:
        yield made


@pytest.fixture
def work(fleet: ProcessFleet, tmp_path: Path) -> Work:
    return Work(fleet, Diary(tmp_path / "diary"))


def test_a_killed_workers_tasks_go_on_and_its_successor_takes_them_back(fleet: ProcessFleet, work: Work) -> None:
    fleet.kill("box")
    until(lambda: fleet.worker("box")["status"] == "offline", "the hub has noticed")
    work.end_early()
    assert fleet.hub.job(work.early[0])["state"] == "orphaned", "nobody has told the hub of the end"
    fleet.start_again("box")
    for task in work.early:
        until(lambda task=task: fleet.hub.job(task)["state"] == "succeeded", f"the end of {task} is known")
    assert {fleet.hub.job(task)["state"] for task in work.late} == {"running"}
    work.end_all()
    work.check()


def test_what_ended_while_the_hub_was_killed_is_recorded_once_when_it_is_back(fleet: ProcessFleet, work: Work) -> None:
    fleet.kill("hub")
    work.end_early()
    fleet.start_again("hub")
    for task in work.early:
        until(lambda task=task: fleet.hub.job(task)["state"] == "succeeded", f"the end of {task} is known")
    work.end_all()
    work.check()


@pytest.mark.parametrize("first_back", ["hub", "box"])
def test_hub_and_worker_killed_at_once_come_back_to_the_same_tasks(
    fleet: ProcessFleet, work: Work, first_back: str
) -> None:
    fleet.kill("hub")
    fleet.kill("box")
    work.end_early()
    for name in (first_back, "box" if first_back == "hub" else "hub"):
        fleet.start_again(name)
    work.end_all()
    work.check()


def test_a_hub_killed_again_and_again_records_each_of_many_ends_once(fleet: ProcessFleet, tmp_path: Path) -> None:
    """Ends and kills fall together: some are committed but not acknowledged, some are not even told."""
    program = 'echo "$OSTLER_INDEX" >> "$DIARY"; sleep 0.$((OSTLER_INDEX % 10))'
    diary = tmp_path / "begun"
    job_id = fleet.hub.submit({"command": ["sh", "-c", program], "array": 32, "env": {"DIARY": str(diary)}})["id"]
    for count in (6, 18):
        until(lambda count=count: diary.exists() and len(diary.read_text().split()) >= count, f"{count} have begun")
        fleet.kill("hub")
        fleet.start_again("hub")
    ended = fleet.client.wait(job_id, timeout=60)
    assert (ended["state"], ended["counts"]) == ("succeeded", {"succeeded": 32})
    assert sorted(map(int, diary.read_text().split())) == list(range(32)), "each began once"
    names = [f"{job_id}.{index}" for index in range(32)]
    assert fleet.ends_told(job_id) == dict.fromkeys([job_id, *names], ["succeeded"])
    for name in names:
        *unused, last = fleet.hub.job(name)["attempts"]
        assert last["state"] == "succeeded"
        # An assignment that the kill kept from being sent is no attempt that was spent.
        assert all(one["state"] == "returned" and "not been accepted" in one["reason"] for one in unused), unused
