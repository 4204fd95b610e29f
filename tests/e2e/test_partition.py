"""A worker that the network keeps from its hub: in one direction, in both, or by a cut. Each task has one outcome.

Hub and workers are real processes whose long times are made short (hurried.py): 2.5 s of silence, 2.5 s of grace.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.diary import Diary
from tests.e2e.wire import Wire
from tests.process_fleet import HURRIED, Document, ProcessFleet, process_fleet, processes_with, until

BREAKS = {
    "nothing reaches the hub": lambda wire: wire.silence("up"),
    "nothing reaches the worker": lambda wire: wire.silence("down"),
    "nothing passes": lambda wire: wire.silence("up", "down"),
    "the wire is cut": lambda wire: wire.cut(),
}
each_break = pytest.mark.parametrize("break_wire", BREAKS.values(), ids=BREAKS.keys())


class Ground:
    """A worker `far` behind the wire, a worker `near` without one, which takes nothing until it is opened."""

    def __init__(self, fleet: ProcessFleet, wire: Wire) -> None:
        self.fleet = fleet
        self.hub = fleet.hub
        self.wire = wire

    def submit(self, spec: Document) -> str:
        job_id: str = self.hub.submit(spec)["id"]
        return job_id

    def submit_to_far(self, spec: Document) -> tuple[str, str]:
        """A job that runs there, and its attempt."""
        job_id = self.submit(spec)
        self.until_state(job_id, "running")
        job = self.hub.job(job_id)
        assert job["worker"] == "far"
        return job_id, job["attempt"]

    def open_near(self) -> None:
        self.hub.resume("near")

    def close_near(self) -> None:
        self.hub.drain("near")

    def until_state(self, job_id: str, state: str) -> Document:
        def found() -> Document | None:
            job = self.hub.job(job_id)
            return job if job["state"] == state else None

        return until(found, f"{job_id} is {state}: {self.hub.job(job_id)}")

    def until_given_up(self) -> None:
        """Until the hub has let the grace of everything on `far` run out that has a short one."""

        def given_up() -> bool:
            far = self.fleet.worker("far")
            if far["status"] != "offline":
                return False
            held = [one["task_id"] for one in far["tasks"] if one["state"] != "lapsed"]
            return all(self.hub.job(task)["spec"].get("job_tier") == "evaluation" for task in held)

        until(given_up, f"far's tasks are given up: {self.fleet.worker('far')}")

    def until_elsewhere(self, job_id: str) -> str:
        """Until it runs on `near`; its attempt there."""

        def moved() -> str | None:
            job = self.hub.job(job_id)
            return job["attempt"] if (job["state"], job["worker"]) == ("running", "near") else None

        found: str = until(moved, f"{job_id} runs elsewhere: {self.hub.job(job_id)}")
        return found

    def heal(self) -> None:
        self.wire.heal()
        self.fleet.await_workers("far")

    def check(self, diary: Diary, *jobs: str) -> None:
        """One recorded outcome each, that of the attempt that has the fence; nobody is left, and all room is free."""
        self.fleet.await_free("far", "near")
        for job_id in jobs:
            assert self.fleet.ends_told(job_id) == {job_id: ["succeeded"]}
            job = self.hub.job(job_id)
            assert diary.lines()["end", job_id, job["attempt"]] == 1, job
            assert [one["state"] for one in job["attempts"]].count("succeeded") >= 1
        assert set(diary.lines().values()) == {1}, "no attempt began or ended twice"
        assert processes_with(str(diary.folder)) == []


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with process_fleet(tmp_path_factory.mktemp("ground"), "near", program=HURRIED) as fleet:
        wire = Wire(fleet.url)
        try:
            fleet.start_worker("far", through=wire.url)
            fleet.await_workers("far")
            yield Ground(fleet, wire)
            wire.heal()
            fleet.terminate("far")
        finally:
            wire.close()


@pytest.fixture
def field(ground: Ground) -> Iterator[Ground]:
    """As a test may expect it: the wire is whole, `far` takes work, `near` does not."""
    ground.close_near()
    yield ground
    ground.heal()


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    return Diary(tmp_path / "diary")


@each_break
def test_work_that_goes_on_during_a_break_has_one_outcome_for_each_task(
    field: Ground, diary: Diary, break_wire: Any
) -> None:
    """Some end before it, some behind it while the grace lasts and after, some are run again elsewhere meanwhile; what
    has a longer grace than the break is neither lost nor run again."""
    patient = [field.submit(diary.spec(gate, job_tier="evaluation")) for gate in ("c", "d")]
    jobs = {gate: field.submit(diary.spec(gate)) for gate in ("a", "b", "c", "d")}
    diary.await_begun(*patient, *jobs.values())
    field.open_near()
    more = [field.submit(diary.spec("e")) for _ in range(6)]
    diary.await_begun(*more)
    diary.open("a")
    field.until_state(jobs["a"], "succeeded")
    break_wire(field.wire)
    diary.open("b")
    diary.await_ended(jobs["b"])
    field.until_given_up()
    diary.open("c", "e")
    diary.await_ended(jobs["c"], *more)
    field.heal()
    diary.open("d")
    everything = [*patient, *jobs.values(), *more]
    ended = [field.fleet.client.wait(job_id, timeout=60) for job_id in everything]
    assert {job["state"] for job in ended} == {"succeeded"}, ended
    assert [len(field.hub.job(job_id)["attempts"]) for job_id in patient] == [1, 1]
    field.check(diary, *everything)


def test_a_late_result_of_a_fenced_attempt_changes_nothing(field: Ground, diary: Diary) -> None:
    """One job whose successor has ended, and one whose successor still runs."""
    (done, first), (open_, second) = field.submit_to_far(diary.spec("never")), field.submit_to_far(diary.spec("never"))
    diary.await_begun(done, open_)
    field.wire.silence("up", "down")
    field.until_given_up()
    field.open_near()
    again, again_open = field.until_elsewhere(done), field.until_elsewhere(open_)
    diary.end(again, 0)
    before = field.until_state(done, "succeeded")
    diary.end(first, 9)
    diary.end(second, 9)
    until(lambda: diary.lines()["end", open_, second] and diary.lines()["end", done, first], "both ended behind it")
    field.heal()
    field.fleet.await_free("far")
    after = field.hub.job(done)
    told = ("state", "exit_code", "reason", "attempt", "worker", "finished_at")
    assert {name: after[name] for name in told} == {name: before[name] for name in told}
    assert (after["state"], after["exit_code"], after["attempt"]) == ("succeeded", 0, again)
    assert [field.hub.job(open_)[name] for name in ("state", "attempt")] == ["running", again_open]
    diary.end(again_open, 0)
    field.until_state(open_, "succeeded")
    field.check(diary, done, open_)


def test_a_fenced_attempt_that_still_runs_is_stopped_when_its_worker_is_back(field: Ground, diary: Diary) -> None:
    job_id, first = field.submit_to_far(diary.spec("never"))
    diary.await_begun(job_id)
    field.wire.cut()
    field.until_given_up()
    field.open_near()
    second = field.until_elsewhere(job_id)
    assert len(processes_with(first)) > 0, "it runs on, behind the cut"
    field.heal()
    field.fleet.await_free("far")
    assert processes_with(first) == []
    assert field.hub.job(job_id)["state"] == "running"
    diary.end(second, 0)
    field.until_state(job_id, "succeeded")
    field.check(diary, job_id)
    assert field.hub.job(job_id)["attempt"] == second


def test_a_task_that_nobody_else_could_take_is_taken_back_after_its_grace_and_costs_nothing(
    field: Ground, diary: Diary
) -> None:
    """It may be lost once. It is given up twice, and comes back first running and then ended."""
    job_id, attempt = field.submit_to_far(diary.spec("gate", max_attempts=1))
    diary.await_begun(job_id)
    field.wire.silence("up", "down")
    field.until_given_up()
    field.heal()
    field.until_state(job_id, "running")
    field.wire.cut()
    diary.open("gate")
    diary.await_ended(job_id)
    field.until_given_up()
    field.heal()
    job = field.until_state(job_id, "succeeded")
    assert [one["attempt"] for one in job["attempts"]] == [attempt]
    field.check(diary, job_id)
