"""A hub restart loses nothing: a fleet made from the ledger is the one that was in memory."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.portrait import portrait
from tests.core.stable import ACTS, NO_EXPLAIN, Stable
from tests.core.yard import Yard, holding

from ostler.core import index

act = st.tuples(st.integers(0, len(ACTS) - 1), st.integers(0, 11), st.integers(0, 11))


@settings(max_examples=40, deadline=None, phases=NO_EXPLAIN)
@given(st.lists(act, min_size=40, max_size=150))
def test_whatever_happened_a_restart_gives_the_same_fleet(acts: list[tuple[int, int, int]]) -> None:
    """check(), holdings, states and the order of the queue, after every act."""
    stable = Stable()
    stable.register(0)
    stable.register(1)
    for number, first, second in acts:
        ACTS[number](stable, first, second)
        stable.compare_with_ledger()
    stable.restart_hub(0)


@settings(max_examples=30, deadline=None, phases=NO_EXPLAIN)
@given(st.lists(act, min_size=40, max_size=150))
def test_shapes_come_and_go_without_a_trace(acts: list[tuple[int, int, int]]) -> None:
    """Numbers of shapes are given back and used again; in a real fleet only after two thousand of them."""
    kept, index.MAX_IDLE_SHAPES = index.MAX_IDLE_SHAPES, 0
    try:
        stable = Stable()
        stable.register(0)
        stable.register(1)
        for number, first, second in acts:
            ACTS[number](stable, first, second)
    finally:
        index.MAX_IDLE_SHAPES = kept


def test_what_waited_still_waits_in_the_same_order() -> None:
    yard = Yard()
    yard.submit("data")
    yard.submit("train", job_tier="training")
    yard.submit("high", priority=3)
    yard.submit("array", array=1000)
    before = yard.queue()
    yard.restart()
    assert yard.queue() == before == ["high", "train", "data", "array"]
    yard.worker("box", slots=5)
    assert yard.where("array.1") == "box"


def test_what_ran_is_an_orphan_whose_grace_starts_at_the_restart() -> None:
    yard = Yard()
    yard.worker("box")
    yard.submit("job", job_tier="evaluation")
    yard.start("job")
    yard.restart(away=3600)
    assert yard.state("job") == "orphaned"
    assert yard.job("job").state == "orphaned"
    yard.wait(119)
    assert yard.state("job") == "orphaned"
    yard.wait(2)
    assert (yard.state("job"), yard.task("job").losses) == ("pending", 1)


def test_a_worker_that_kept_its_task_over_the_restart_goes_on_with_it() -> None:
    yard = Yard()
    yard.worker("box")
    yard.submit("job")
    yard.start("job")
    attempt = yard.attempt("job")
    yard.restart(away=20)
    yard.register("box", holds=holding(("job", attempt)), slots=1)
    row = yard.task("job")
    assert (row.state, row.attempt, row.losses) == ("running", attempt, 0)


def test_the_run_time_budget_counts_over_a_restart() -> None:
    yard = Yard()
    yard.worker("box")
    yard.submit("job", max_runtime_hours=0.1)
    yard.start("job")
    attempt = yard.attempt("job")
    yard.wait(300)
    yard.restart(away=30)
    yard.register("box", holds=holding(("job", attempt)), slots=1)
    yard.wait(29)
    assert yard.cancelled() == []
    yard.wait(2)
    assert yard.cancelled() == [("box", attempt)]


def test_a_clock_that_was_set_back_takes_nothing_from_a_wait() -> None:
    yard = Yard()
    yard.submit("job", scheduling_timeout_seconds=30)
    yard.wait(10)
    yard.restart(away=-3600)
    assert yard.state("job") == "pending"
    yard.wait(31)
    assert yard.state("job") == "unschedulable"


def test_a_requeued_job_that_found_no_place_is_there_after_a_restart() -> None:
    yard = Yard()
    yard.worker("box", slots=1)
    yard.submit("job")
    yard.start("job")
    yard.requeue("job")
    yard.drain("box")
    yard.end("job", "cancelled")
    assert yard.queue() == ["job"]
    yard.restart()
    assert yard.queue() == ["job"]


def test_a_requeued_orphan_whose_grace_ran_out_is_there_after_a_restart() -> None:
    yard = Yard()
    yard.worker("box")
    yard.submit("job")
    yard.start("job")
    yard.requeue("job")
    yard.leave("box")
    yard.wait(31)
    assert yard.queue() == ["job"]
    yard.restart()
    assert yard.queue() == ["job"]


def zombie_beside_a_waiting_task() -> tuple[Yard, str]:
    """`old` came back with an attempt that had been given up; its task ran elsewhere since and waits again."""
    yard = Yard()
    yard.worker("old")
    yard.submit("job")
    yard.start("job")
    zombie = yard.attempt("job")
    yard.leave("old")
    yard.wait(31)
    yard.worker("new")
    yard.start("job")
    yard.register("old", holds=holding(("job", zombie)))
    yard.drain("new")
    yard.beat("new", [])
    assert (yard.state("job"), yard.where("job"), yard.queue()) == ("pending", "", ["job"])
    return yard, zombie


def test_a_zombie_that_is_being_stopped_does_not_hold_its_task_after_a_restart() -> None:
    yard, _ = zombie_beside_a_waiting_task()
    before = portrait(yard.fleet, yard.now)
    yard.restart()
    assert portrait(yard.fleet, yard.now)["tasks"] == before["tasks"]
    assert yard.queue() == ["job"]


def test_a_task_cancelled_beside_its_zombie_after_a_restart_is_cancelled() -> None:
    yard, zombie = zombie_beside_a_waiting_task()
    yard.restart()
    yard.cancel("job")
    yard.worker("third")
    assert yard.state("job") == "cancelled"
    yard.register("old", holds=holding(("job", zombie)), slots=1)
    assert yard.cancelled() == [("old", zombie)]
    yard.end("job", "cancelled", worker="old", attempt=zombie)
    assert (yard.state("job"), yard.fleet.held) == ("cancelled", {})


def test_a_requeue_of_a_running_job_begins_its_run_time_budget_anew() -> None:
    yard = Yard()
    yard.worker("box")
    yard.submit("job", max_runtime_hours=0.1)
    yard.start("job")
    yard.wait(350)
    yard.requeue("job")
    yard.end("job", "cancelled")
    assert yard.task("job").used_s == 0
    yard.start("job")
    yard.wait(300)
    assert yard.state("job") == "running"
    assert yard.cancelled() == []


def test_a_drain_is_remembered() -> None:
    yard = Yard()
    yard.worker("box")
    yard.drain("box")
    yard.restart()
    yard.register("box", slots=4)
    assert yard.where(yard.submit("job")) == ""


def test_who_has_used_least_is_remembered() -> None:
    yard = Yard()
    yard.worker("box", gpus=4, vram=96, slots=4)
    yard.submit("hog", user_id="ann", gpu_count=4)
    yard.start("hog")
    yard.wait(3600)
    yard.end("hog")
    yard.drain("box")
    yard.submit("anns", user_id="ann")
    yard.submit("bobs", user_id="bob")
    assert yard.queue() == ["bobs", "anns"]
    yard.restart()
    assert yard.queue() == ["bobs", "anns"]


@pytest.mark.parametrize("ended", ["succeeded", "failed", "cancelled"])
def test_what_had_ended_stays_as_it_was_and_takes_no_memory(ended: str) -> None:
    yard = Yard()
    yard.worker("box")
    yard.submit("job")
    yard.start("job")
    yard.end("job", ended)
    yard.restart()
    assert yard.state("job") == ended
    assert yard.fleet.jobs == {}
    yard.requeue("job")
    assert yard.state("job") == "pending"


def test_a_job_given_up_on_a_worker_that_is_away_leaves_memory_when_the_worker_has_told_of_it() -> None:
    """Held by nothing but a lapsed attempt, after a restart as before."""
    yard = Yard()
    yard.worker("box")
    yard.submit("job")
    yard.start("job")
    attempt = yard.attempt("job")
    yard.leave("box")
    yard.wait(31)
    yard.cancel("job")
    yard.restart()
    yard.register("box", holds=holding(("job", attempt)), slots=1)
    yard.end("job", "cancelled", worker="box", attempt=attempt)
    assert yard.fleet.held == {}
    assert yard.fleet.jobs == {}


def test_what_a_preempted_task_had_run_is_remembered() -> None:
    yard = Yard()
    yard.worker("box", devices=[24])
    yard.submit("low", gpu_count=1, preemptible=True, max_runtime_hours=0.1)
    yard.start("low")
    yard.wait(300)
    yard.submit("high", gpu_count=1, priority=5)
    yard.end("low", "cancelled")
    assert yard.where("high") == "box"
    before = portrait(yard.fleet, yard.now)["tasks"]["low"]
    yard.restart()
    assert portrait(yard.fleet, yard.now)["tasks"]["low"] == before
    assert yard.task("low").used_s == pytest.approx(300)


def test_a_job_that_was_let_go_does_not_wait_again_for_another_after_a_restart() -> None:
    """Requeued by hand after what it depended on had failed; that one is requeued as well, later."""
    yard = Yard()
    yard.submit("first", scheduling_timeout_seconds=20)
    yard.submit("second", depends_on=["first"])
    yard.wait(21)
    assert yard.states("first", "second") == ["unschedulable", "cancelled"]
    yard.requeue("second")
    yard.requeue("first")
    before = yard.queue()
    yard.restart()
    assert yard.queue() == before


def test_an_old_attempt_that_ends_after_a_restart_does_not_overwrite_its_requeued_task() -> None:
    yard = Yard()
    yard.worker("box")
    yard.submit("job", max_attempts=0)
    yard.start("job")
    zombie = yard.attempt("job")
    yard.leave("box")
    yard.wait(31)
    yard.register("box", holds=holding(("job", zombie)), slots=0)
    assert (yard.state("job"), yard.cancelled()) == ("failed", [("box", zombie)])
    yard.restart()
    yard.requeue("job")
    yard.worker("other")
    yard.start("job")
    before = yard.task("job")
    assert (before.state, before.worker) == ("running", "other")
    yard.register("box", holds=holding(("job", zombie)), slots=0)
    yard.end("job", "cancelled", worker="box", attempt=zombie)
    assert yard.task("job") == before
    yard.restart()
    assert yard.state("job") == "orphaned"
