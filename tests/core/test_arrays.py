"""Arrays: many tasks of one job, one row while they wait, each to be looked at by itself."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.core_fleet import CoreFleet

from ostler.core.ranges import Ranges, RangeSet, merge, split_ranges, with_index, without_index
from ostler.domain.records import Changes, Dropped, JobProgress

MILLION = 1_000_000


def indices(ranges: Ranges) -> set[int]:
    return {index for low, high in ranges for index in range(low, high)}


some = st.sets(st.integers(0, 40))


def ranges_of(chosen: set[int]) -> Ranges:
    ranges: Ranges = ()
    for index in chosen:
        ranges = with_index(ranges, index)
    return ranges


@given(some, some)
def test_ranges_behave_as_the_sets_they_stand_for(one: set[int], other: set[int]) -> None:
    first, second = ranges_of(one), ranges_of(other)
    assert indices(first) == one
    assert indices(merge(first, second)) == one | other
    rest, taken = split_ranges(first, other)
    assert (indices(rest), indices(taken)) == (one - other, one & other)
    assert {index for index in range(42) if index in RangeSet(first)} == one
    for index in one | other:
        assert indices(without_index(first, index)) == one - {index}


@given(some, some)
def test_ranges_are_sorted_apart_and_never_empty(one: set[int], other: set[int]) -> None:
    for ranges in (ranges_of(one), merge(ranges_of(one), ranges_of(other)), split_ranges(ranges_of(one), other)[0]):
        assert all(low < high for low, high in ranges)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))


def array(core: CoreFleet, size: int = 4, **spec: object) -> list[str]:
    core.submit("a", array=size, **spec)
    return [f"a.{index}" for index in range(size)]


def test_an_array_that_waits_is_one_row_however_long_it_is() -> None:
    core = CoreFleet()
    core.submit("a", array=MILLION)
    assert core.job("a").waiting == [(0, MILLION)]
    assert core.job("a").state == "pending"
    assert core.ledger.tasks_of("a") == []


def test_tasks_start_in_order_of_index_and_have_ids_of_their_own() -> None:
    core = CoreFleet()
    tasks = array(core)
    core.worker("box", slots=2)
    assert [core.where(task) for task in tasks[:2]] == ["box", "box"]
    assert [row.id for row in core.ledger.tasks_of("a")] == ["a.0", "a.1"]
    assert core.job("a").waiting == [(2, 4)]


def test_each_assignment_carries_its_index_and_a_single_job_none() -> None:
    from ostler.core.effects import AssignTask

    core = CoreFleet()
    core.worker("box")
    array(core, 2)
    assert [effect.index for effect in core.of(AssignTask)] == [0, 1]
    core.submit("single")
    assert [effect.index for effect in core.of(AssignTask)] == [None]


def test_an_array_of_one_is_still_an_array() -> None:
    core = CoreFleet()
    core.worker("box")
    array(core, 1)
    core.start("a.0")
    core.end("a.0")
    assert core.job("a").state == "succeeded"


def test_an_array_is_running_while_a_task_is_placed_and_pending_while_tasks_only_wait() -> None:
    core = CoreFleet()
    tasks = array(core, 2)
    assert core.job("a").state == "pending"
    core.worker("box", slots=1)
    assert core.job("a").state == "running"
    core.start("a.0")
    assert core.job("a").state == "running"
    core.drain("box")
    core.end("a.0")
    assert (core.job("a").state, core.job("a").counts) == ("pending", {"succeeded": 1, "pending": 1})
    core.drain("box", False)
    assert core.job("a").state == "running"
    core.start(tasks[1])
    core.end(tasks[1])
    assert core.job("a").state == "succeeded"
    assert core.job("a").finished_at is not None
    assert core.job("a").counts == {"succeeded": 2}
    assert "a" not in core.fleet.jobs


def test_an_array_whose_next_task_starts_where_the_last_one_ended_stays_running() -> None:
    core = CoreFleet()
    array(core, 2)
    core.worker("box", slots=1)
    core.start("a.0")
    core.end("a.0")
    seen = [line.body["state"] for line in core.ledger.feed(after=0, limit=100) if line.kind == "job"]
    assert seen == ["pending", "running"]


def test_an_array_whose_only_running_task_was_lost_is_pending_again() -> None:
    core = CoreFleet()
    core.worker("box", slots=1)
    array(core, 3)
    core.start("a.0")
    core.end("a.0")
    core.start("a.1")
    core.leave("box")
    assert core.job("a").state == "running"
    core.wait(31)
    assert (core.job("a").state, core.job("a").counts) == ("pending", {"succeeded": 1, "pending": 2})
    assert [view.job.id for view in core.ledger.list_jobs(states=["pending"])] == ["a"]
    assert core.fleet.job_counts["pending"] == 1


def test_an_array_whose_only_running_task_was_preempted_is_pending_again() -> None:
    core = CoreFleet()
    core.worker("box", cores=4)
    array(core, 2, min_cpu_cores=4, preemptible=True)
    core.start("a.0")
    core.submit("urgent", priority=9, min_cpu_cores=4)
    assert core.job("a").state == "pending"
    core.end("a.0", "cancelled")
    core.start("urgent")
    core.end("urgent")
    assert core.job("a").state == "running"


def test_an_array_of_which_nothing_was_placed_is_pending_after_a_restart() -> None:
    core = CoreFleet()
    core.worker("box", slots=1)
    array(core, 2)
    core.start("a.0")
    core.drain("box")
    core.end("a.0")
    counts = {"succeeded": 1, "pending": 1}
    old = JobProgress(id="a", state="running", waiting=[(1, 2)], counts=counts)  # of a hub without this rule
    core.ledger.commit(Changes(progress=[old]))
    core.restart()
    assert core.job("a").state == "pending"


def test_an_array_with_a_failed_task_fails_when_all_have_ended_and_says_how_many() -> None:
    core = CoreFleet()
    core.worker("box")
    tasks = array(core, 3)
    core.start(*tasks)
    core.end("a.1", "failed")
    assert core.job("a").state == "running"
    core.end("a.0")
    core.end("a.2")
    assert core.job("a").state == "failed"
    assert core.job("a").reason == "of 3 tasks: 1 failed, 2 succeeded"
    assert core.states(*tasks) == ["succeeded", "failed", "succeeded"]


def test_states_are_counted() -> None:
    core = CoreFleet()
    core.worker("box", slots=3)
    array(core, 6)
    core.start("a.0", "a.1")
    core.end("a.0", "failed")
    counts = core.job("a").counts
    assert counts == {"failed": 1, "running": 1, "assigned": 2, "pending": 2}
    core.leave("box")
    assert core.job("a").counts == {"failed": 1, "orphaned": 3, "pending": 2}


def test_cancelling_a_million_waiting_tasks_makes_no_rows() -> None:
    core = CoreFleet()
    core.worker("box", slots=2)
    core.submit("a", array=MILLION)
    core.start("a.0")
    core.cancel("a")
    row = core.job("a")
    assert row.state == "cancelled"
    assert row.counts == {"cancelled": MILLION}
    assert (row.waiting, row.dropped) == ([], [Dropped(2, MILLION, "cancelled", "cancelled")])
    assert [task.id for task in core.ledger.tasks_of("a")] == ["a.0", "a.1"]
    assert len(core.cancelled()) == 2


def test_an_array_whose_processes_are_gone_leaves_memory() -> None:
    core = CoreFleet()
    core.worker("box", slots=1)
    array(core, 1000)
    core.start("a.0")
    core.cancel("a")
    assert "a" in core.fleet.jobs
    core.end("a.0", "cancelled")
    assert "a" not in core.fleet.jobs
    assert core.fleet.held == {}


def test_a_cancelled_array_that_is_requeued_runs_whole_again() -> None:
    core = CoreFleet()
    core.worker("box", slots=2)
    tasks = array(core, 6)
    core.start("a.0", "a.1")
    core.end("a.0")
    core.cancel("a")
    core.end("a.1", "cancelled")
    core.end("a.2", "cancelled")
    assert core.job("a").counts == {"succeeded": 1, "cancelled": 5}
    core.requeue("a")
    assert core.job("a").counts == {"succeeded": 1, "assigned": 2, "pending": 3}
    for task in tasks[1:]:
        core.start(task)
        core.end(task)
    assert core.job("a").state == "succeeded"


def test_a_requeued_array_is_pending_until_a_task_starts() -> None:
    core = CoreFleet()
    core.worker("box")
    tasks = array(core, 3)
    for task in tasks:
        core.start(task)
        core.end(task, "failed")
    core.drain("box")
    core.requeue("a")
    assert core.states(*tasks) == ["pending"] * 3
    assert core.job("a").counts == {"pending": 3}
    assert core.job("a").state == "pending"


def test_one_waiting_index_is_cancelled_alone() -> None:
    core = CoreFleet()
    array(core, 4)
    core.cancel("a", 2)
    assert core.state("a.2") == "cancelled"
    assert core.job("a").waiting == [(0, 2), (3, 4)]
    assert core.job("a").counts == {"cancelled": 1, "pending": 3}
    core.worker("box")
    assert [core.where(f"a.{index}") for index in range(4)] == ["box", "box", "", "box"]


def test_an_array_of_which_one_waiting_index_was_cancelled_has_not_started() -> None:
    core = CoreFleet()
    array(core, 4)
    core.cancel("a", 2)
    assert core.job("a").state == "pending"


def test_one_running_index_is_cancelled_alone() -> None:
    core = CoreFleet()
    core.worker("box")
    tasks = array(core, 3)
    core.start(*tasks)
    core.cancel("a", 1)
    assert len(core.cancelled()) == 1
    assert core.states(*tasks) == ["running", "cancelled", "running"]
    core.end("a.1", "cancelled")
    core.end("a.0")
    core.end("a.2")
    assert core.job("a").state == "failed"
    assert core.job("a").reason == "of 3 tasks: 1 cancelled, 2 succeeded"


@pytest.mark.parametrize("index", [-1, 4, 99])
def test_an_index_that_is_not_there_is_cancelled_without_effect(index: int) -> None:
    core = CoreFleet()
    array(core, 4)
    core.cancel("a", index)
    assert core.job("a").counts in ({}, {"pending": 4})
    assert core.ledger.tasks_of("a") == []


def test_one_index_that_ended_is_requeued_alone() -> None:
    core = CoreFleet()
    core.worker("box")
    tasks = array(core, 3)
    core.start(*tasks)
    for task in tasks:
        core.end(task, "failed")
    core.requeue("a", 1)
    assert core.states(*tasks) == ["failed", "assigned", "failed"]
    assert core.job("a").counts == {"failed": 2, "assigned": 1}


def test_one_index_that_was_dropped_is_requeued_alone() -> None:
    core = CoreFleet()
    array(core, 1000)
    core.cancel("a")
    core.worker("box")
    core.requeue("a", 5)
    assert core.job("a").counts == {"assigned": 1, "cancelled": 999}
    assert core.where("a.5") == "box"


def test_an_index_dropped_for_one_reason_and_others_for_another_are_each_counted_right() -> None:
    core = CoreFleet()
    array(core, 6, scheduling_timeout_seconds=30)
    core.wait(31)
    assert core.job("a").counts == {"unschedulable": 6}
    core.requeue("a", 2)
    core.cancel("a")
    assert core.job("a").counts == {"cancelled": 1, "unschedulable": 5}
    core.requeue("a")
    assert core.job("a").counts == {"pending": 6}


def test_an_array_that_was_not_placed_in_time_is_unschedulable_without_rows() -> None:
    core = CoreFleet()
    core.submit("a", array=MILLION, scheduling_timeout_seconds=30)
    core.wait(31)
    row = core.job("a")
    assert row.state == "unschedulable"
    assert row.counts == {"unschedulable": MILLION}
    assert "no worker has registered yet" in row.dropped[0].reason
    assert row.reason == row.dropped[0].reason
    assert core.ledger.tasks_of("a") == []


def test_an_unschedulable_array_keeps_its_cause_when_a_task_that_is_not_there_is_requeued() -> None:
    core = CoreFleet()
    array(core, 2, scheduling_timeout_seconds=30)
    core.wait(31)
    cause = core.job("a").reason
    core.requeue("a", 7)
    assert (core.job("a").state, core.job("a").reason) == ("unschedulable", cause)
    assert cause.startswith("not placed within 30 s: ")


def test_of_an_array_that_was_partly_placed_in_time_only_the_rest_is_unschedulable() -> None:
    core = CoreFleet()
    core.worker("box", slots=1)
    array(core, 3, scheduling_timeout_seconds=30)
    core.start("a.0")
    core.wait(31)
    assert core.job("a").counts == {"running": 1, "unschedulable": 2}
    core.end("a.0")
    cause = core.job("a").dropped[0].reason
    assert cause.startswith("not placed within 30 s: ")
    assert core.job("a").state == "failed"
    assert core.job("a").reason == f"of 3 tasks: 1 succeeded, 2 unschedulable; {cause}"


def test_an_array_whose_last_tasks_were_not_placed_in_time_gives_the_cause() -> None:
    core = CoreFleet()
    core.worker("box", slots=1)
    array(core, 2, scheduling_timeout_seconds=30)
    core.start("a.0")
    core.drain("box")
    core.end("a.0")
    core.wait(31)
    assert core.job("a").reason.startswith("of 2 tasks: 1 succeeded, 1 unschedulable; not placed within 30 s: ")


def test_a_task_retried_by_itself_leaves_the_others_alone() -> None:
    core = CoreFleet()
    core.worker("box")
    tasks = array(core, 2, max_retries=1)
    core.start(*tasks)
    core.end("a.0", "failed")
    assert core.states(*tasks) == ["assigned", "running"]
    assert core.task("a.0").failures == 1
    assert core.task("a.1").failures == 0


def test_a_requeue_of_a_succeeded_array_runs_all_of_it_again() -> None:
    core = CoreFleet()
    core.worker("box")
    tasks = array(core, 2)
    core.start(*tasks)
    for task in tasks:
        core.end(task)
    core.requeue("a")
    assert core.states(*tasks) == ["assigned", "assigned"]
