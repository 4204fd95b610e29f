"""kill -9 of the worker, of the hub, and of both, in the midst of work: nothing is lost, nothing runs twice."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.diary import Diary
from tests.e2e.work import Work
from tests.process_fleet import ProcessFleet, process_fleet, until


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
    fleet.await_state("succeeded", *work.early)
    assert {fleet.hub.job(task)["state"] for task in work.late} == {"running"}
    work.end_all()
    work.check()


def test_what_ended_while_the_hub_was_killed_is_recorded_once_when_it_is_back(fleet: ProcessFleet, work: Work) -> None:
    fleet.kill("hub")
    work.end_early()
    fleet.start_again("hub")
    fleet.await_state("succeeded", *work.early)
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
