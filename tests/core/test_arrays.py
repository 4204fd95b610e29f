"""Arrays: many tasks of one job, one row while they wait, each to be looked at by itself."""

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.yard import Yard

from ostler.core.ranges import Ranges, RangeSet, merge, split_ranges, with_index, without_index
from ostler.domain.records import Dropped

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


def array(yard: Yard, size: int = 4, **spec: object) -> list[str]:
    yard.submit("a", array=size, **spec)
    return [f"a.{index}" for index in range(size)]


def test_an_array_that_waits_is_one_row_however_long_it_is() -> None:
    yard = Yard()
    yard.submit("a", array=MILLION)
    assert yard.job("a").waiting == [(0, MILLION)]
    assert yard.job("a").state == "pending"
    assert yard.ledger.tasks_of("a") == []


def test_tasks_start_in_order_of_index_and_have_ids_of_their_own() -> None:
    yard = Yard()
    tasks = array(yard)
    yard.worker("box", slots=2)
    assert [yard.where(task) for task in tasks[:2]] == ["box", "box"]
    assert [row.id for row in yard.ledger.tasks_of("a")] == ["a.0", "a.1"]
    assert yard.job("a").waiting == [(2, 4)]


def test_each_assignment_carries_its_index_and_a_single_job_none() -> None:
    from ostler.core.effects import AssignTask

    yard = Yard()
    yard.worker("box")
    array(yard, 2)
    assert [effect.index for effect in yard.of(AssignTask)] == [0, 1]
    yard.submit("single")
    assert [effect.index for effect in yard.of(AssignTask)] == [None]


def test_an_array_of_one_is_still_an_array() -> None:
    yard = Yard()
    yard.worker("box")
    array(yard, 1)
    yard.start("a.0")
    yard.end("a.0")
    assert yard.job("a").state == "succeeded"


def test_an_array_is_pending_until_one_starts_running_until_all_have_ended_then_succeeded() -> None:
    yard = Yard()
    tasks = array(yard, 2)
    assert yard.job("a").state == "pending"
    yard.worker("box", slots=1)
    yard.start("a.0")
    assert yard.job("a").state == "running"
    yard.end("a.0")
    yard.drain("box")
    assert yard.job("a").state == "running"
    yard.drain("box", False)
    yard.start(tasks[1])
    yard.end(tasks[1])
    assert yard.job("a").state == "succeeded"
    assert yard.job("a").finished_at is not None
    assert yard.job("a").counts == {"succeeded": 2}
    assert "a" not in yard.fleet.jobs


def test_an_array_with_a_failed_task_fails_when_all_have_ended_and_says_how_many() -> None:
    yard = Yard()
    yard.worker("box")
    tasks = array(yard, 3)
    yard.start(*tasks)
    yard.end("a.1", "failed")
    assert yard.job("a").state == "running"
    yard.end("a.0")
    yard.end("a.2")
    assert yard.job("a").state == "failed"
    assert yard.job("a").reason == "of 3 tasks: 1 failed, 2 succeeded"
    assert yard.states(*tasks) == ["succeeded", "failed", "succeeded"]


def test_states_are_counted() -> None:
    yard = Yard()
    yard.worker("box", slots=3)
    array(yard, 6)
    yard.start("a.0", "a.1")
    yard.end("a.0", "failed")
    counts = yard.job("a").counts
    assert counts == {"failed": 1, "running": 1, "assigned": 2, "pending": 2}
    yard.leave("box")
    assert yard.job("a").counts == {"failed": 1, "orphaned": 3, "pending": 2}


def test_cancelling_a_million_waiting_tasks_is_quick_and_makes_no_rows() -> None:
    yard = Yard()
    yard.worker("box", slots=2)
    yard.submit("a", array=MILLION)
    yard.start("a.0")
    begun = time.process_time()
    yard.cancel("a")
    assert time.process_time() - begun < 0.5, "a walk over a million tasks"
    row = yard.job("a")
    assert row.state == "cancelled"
    assert row.counts == {"cancelled": MILLION}
    assert (row.waiting, row.dropped) == ([], [Dropped(2, MILLION, "cancelled", "cancelled")])
    assert [task.id for task in yard.ledger.tasks_of("a")] == ["a.0", "a.1"]
    assert len(yard.cancelled()) == 2


def test_an_array_whose_processes_are_gone_leaves_memory() -> None:
    yard = Yard()
    yard.worker("box", slots=1)
    array(yard, 1000)
    yard.start("a.0")
    yard.cancel("a")
    assert "a" in yard.fleet.jobs
    yard.end("a.0", "cancelled")
    assert "a" not in yard.fleet.jobs
    assert yard.fleet.held == {}


def test_a_cancelled_array_that_is_requeued_runs_whole_again() -> None:
    yard = Yard()
    yard.worker("box", slots=2)
    tasks = array(yard, 6)
    yard.start("a.0", "a.1")
    yard.end("a.0")
    yard.cancel("a")
    yard.end("a.1", "cancelled")
    yard.end("a.2", "cancelled")
    assert yard.job("a").counts == {"succeeded": 1, "cancelled": 5}
    yard.requeue("a")
    assert yard.job("a").counts == {"succeeded": 1, "assigned": 2, "pending": 3}
    for task in tasks[1:]:
        yard.start(task)
        yard.end(task)
    assert yard.job("a").state == "succeeded"


def test_a_requeued_array_is_pending_until_a_task_starts() -> None:
    yard = Yard()
    yard.worker("box")
    tasks = array(yard, 3)
    for task in tasks:
        yard.start(task)
        yard.end(task, "failed")
    yard.drain("box")
    yard.requeue("a")
    assert yard.states(*tasks) == ["pending"] * 3
    assert yard.job("a").counts == {"pending": 3}
    assert yard.job("a").state == "pending"


def test_one_waiting_index_is_cancelled_alone() -> None:
    yard = Yard()
    array(yard, 4)
    yard.cancel("a", 2)
    assert yard.state("a.2") == "cancelled"
    assert yard.job("a").waiting == [(0, 2), (3, 4)]
    assert yard.job("a").counts == {"cancelled": 1, "pending": 3}
    yard.worker("box")
    assert [yard.where(f"a.{index}") for index in range(4)] == ["box", "box", "", "box"]


def test_an_array_of_which_one_waiting_index_was_cancelled_has_not_started() -> None:
    yard = Yard()
    array(yard, 4)
    yard.cancel("a", 2)
    assert yard.job("a").state == "pending"


def test_one_running_index_is_cancelled_alone() -> None:
    yard = Yard()
    yard.worker("box")
    tasks = array(yard, 3)
    yard.start(*tasks)
    yard.cancel("a", 1)
    assert len(yard.cancelled()) == 1
    assert yard.states(*tasks) == ["running", "cancelled", "running"]
    yard.end("a.1", "cancelled")
    yard.end("a.0")
    yard.end("a.2")
    assert yard.job("a").state == "failed"
    assert yard.job("a").reason == "of 3 tasks: 1 cancelled, 2 succeeded"


@pytest.mark.parametrize("index", [-1, 4, 99])
def test_an_index_that_is_not_there_is_cancelled_without_effect(index: int) -> None:
    yard = Yard()
    array(yard, 4)
    yard.cancel("a", index)
    assert yard.job("a").counts in ({}, {"pending": 4})
    assert yard.ledger.tasks_of("a") == []


def test_one_index_that_ended_is_requeued_alone() -> None:
    yard = Yard()
    yard.worker("box")
    tasks = array(yard, 3)
    yard.start(*tasks)
    for task in tasks:
        yard.end(task, "failed")
    yard.requeue("a", 1)
    assert yard.states(*tasks) == ["failed", "assigned", "failed"]
    assert yard.job("a").counts == {"failed": 2, "assigned": 1}


def test_one_index_that_was_dropped_is_requeued_alone() -> None:
    yard = Yard()
    array(yard, 1000)
    yard.cancel("a")
    yard.worker("box")
    yard.requeue("a", 5)
    assert yard.job("a").counts == {"assigned": 1, "cancelled": 999}
    assert yard.where("a.5") == "box"


def test_an_index_dropped_for_one_reason_and_others_for_another_are_each_counted_right() -> None:
    yard = Yard()
    array(yard, 6, scheduling_timeout_seconds=30)
    yard.wait(31)
    assert yard.job("a").counts == {"unschedulable": 6}
    yard.requeue("a", 2)
    yard.cancel("a")
    assert yard.job("a").counts == {"cancelled": 1, "unschedulable": 5}
    yard.requeue("a")
    assert yard.job("a").counts == {"pending": 6}


def test_an_array_that_was_not_placed_in_time_is_unschedulable_without_rows() -> None:
    yard = Yard()
    yard.submit("a", array=MILLION, scheduling_timeout_seconds=30)
    yard.wait(31)
    row = yard.job("a")
    assert row.state == "unschedulable"
    assert row.counts == {"unschedulable": MILLION}
    assert "no worker has registered yet" in row.dropped[0].reason
    assert yard.ledger.tasks_of("a") == []


def test_of_an_array_that_was_partly_placed_in_time_only_the_rest_is_unschedulable() -> None:
    yard = Yard()
    yard.worker("box", slots=1)
    array(yard, 3, scheduling_timeout_seconds=30)
    yard.start("a.0")
    yard.wait(31)
    assert yard.job("a").counts == {"running": 1, "unschedulable": 2}
    yard.end("a.0")
    assert yard.job("a").state == "failed"


def test_a_task_retried_by_itself_leaves_the_others_alone() -> None:
    yard = Yard()
    yard.worker("box")
    tasks = array(yard, 2, max_retries=1)
    yard.start(*tasks)
    yard.end("a.0", "failed")
    assert yard.states(*tasks) == ["assigned", "running"]
    assert yard.task("a.0").failures == 1
    assert yard.task("a.1").failures == 0


def test_a_requeue_of_a_succeeded_array_runs_all_of_it_again() -> None:
    yard = Yard()
    yard.worker("box")
    tasks = array(yard, 2)
    yard.start(*tasks)
    for task in tasks:
        yard.end(task)
    yard.requeue("a")
    assert yard.states(*tasks) == ["assigned", "assigned"]
