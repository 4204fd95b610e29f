"""Tasks that a test holds while it kills or replaces programs, and the check that each of them ran once."""

import os
import time
from collections.abc import Sequence
from typing import Any

import psutil
from tests.diary import Diary
from tests.process_fleet import ProcessFleet

from ostler.client import Job

EARLY, LATE = "early", "late"


def keep_diary(folder: str, gate: str) -> str:
    """Does as a function what the diary's program does."""
    task = f"{os.environ['OSTLER_TASK_ID']} {os.environ['OSTLER_ATTEMPT']}"
    with open(f"{folder}/pids", "a") as pids:
        print(task, os.getpid(), file=pids)
    with open(f"{folder}/lines", "a") as diary:
        print("begin", task, file=diary)
    while not os.path.exists(f"{folder}/gate.{gate}"):
        time.sleep(0.05)
    with open(f"{folder}/lines", "a") as diary:
        print("end", task, file=diary)
    return f"the value of {task}"


class Work:
    """Programs, functions and an array, all of which run. Some end early and some late: of the array, those with even
    and with odd indices."""

    def __init__(
        self,
        fleet: ProcessFleet,
        diary: Diary,
        programs: Sequence[str] = (EARLY, LATE),
        functions: Sequence[str] = (EARLY, LATE),
        array: int = 4,
    ) -> None:
        """`programs` and `functions`: the gates that they wait at."""
        self.fleet = fleet
        self.diary = diary
        gates = {self._submit(diary.spec(gate)): gate for gate in programs}
        self.functions: list[Job] = []
        for gate in functions:
            job = fleet.client.submit(keep_diary, str(diary.folder), gate, resources={"cpu": 1})
            self.functions.append(job)
            gates[job.id] = gate
        # All of these may run under a worker's first supervisor. The array then goes to the second, which has nothing.
        diary.await_begun(*gates)
        array_id = self._submit(diary.spec(array=array))
        self.jobs = [*gates, array_id]
        gates |= {f"{array_id}.{index}": (EARLY, LATE)[index % 2] for index in range(array)}
        self.early = [task for task, gate in gates.items() if gate == EARLY]
        self.late = [task for task, gate in gates.items() if gate == LATE]
        self.tasks = [*self.early, *self.late]
        self._even, self._odd = range(0, array, 2), range(1, array, 2)
        diary.await_begun(*self.tasks)

    def _submit(self, spec: dict[str, Any]) -> str:
        job_id: str = self.fleet.hub.submit(spec)["id"]
        return job_id

    def processes(self) -> dict[str, psutil.Process]:
        """The process of each task that has not ended. One that was started later is unequal, whatever its pid."""
        ended = self.diary.seen("end")
        return {task: psutil.Process(pid) for task, pid in self.diary.pids().items() if task not in ended}

    def end_early(self) -> None:
        """The early tasks end now; the test may have stopped whatever would learn of it."""
        self.diary.open(EARLY, *self._even)
        self.diary.await_ended(*self.early)

    def end_all(self) -> None:
        """The late tasks end as well, and the hub knows all ends."""
        self.diary.open(EARLY, *self._even, LATE, *self._odd)
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
