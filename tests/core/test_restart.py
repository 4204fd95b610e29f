"""A hub restart loses nothing: a fleet made from the ledger is the one that was in memory."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.core_fleet import CoreFleet, holding
from tests.core.portrait import portrait
from tests.core.random_fleet import ACTS, NO_EXPLAIN, RandomFleet

from ostler.core import index

act = st.tuples(st.integers(0, len(ACTS) - 1), st.integers(0, 11), st.integers(0, 11))


@settings(max_examples=40, deadline=None, phases=NO_EXPLAIN)
@given(st.lists(act, min_size=40, max_size=150))
def test_whatever_happened_a_restart_gives_the_same_fleet(acts: list[tuple[int, int, int]]) -> None:
    """check(), holdings, states and the order of the queue, after every act."""
    random_fleet = RandomFleet()
    random_fleet.register(0)
    random_fleet.register(1)
    for number, first, second in acts:
        ACTS[number](random_fleet, first, second)
        random_fleet.compare_with_ledger()
    random_fleet.restart_hub(0)


@settings(max_examples=30, deadline=None, phases=NO_EXPLAIN)
@given(st.lists(act, min_size=40, max_size=150))
def test_shapes_come_and_go_without_a_trace(acts: list[tuple[int, int, int]]) -> None:
    """Numbers of shapes are given back and used again; in a real fleet only after two thousand of them."""
    kept, index.MAX_IDLE_SHAPES = index.MAX_IDLE_SHAPES, 0
    try:
        random_fleet = RandomFleet()
        random_fleet.register(0)
        random_fleet.register(1)
        for number, first, second in acts:
            ACTS[number](random_fleet, first, second)
    finally:
        index.MAX_IDLE_SHAPES = kept


def test_what_waited_still_waits_in_the_same_order() -> None:
    core = CoreFleet()
    core.submit("data")
    core.submit("train", job_tier="training")
    core.submit("high", priority=3)
    core.submit("array", array=1000)
    before = core.queue()
    core.restart()
    assert core.queue() == before == ["high", "train", "data", "array"]
    core.worker("box", slots=5)
    assert core.where("array.1") == "box"


def test_what_ran_is_an_orphan_whose_grace_starts_at_the_restart() -> None:
    core = CoreFleet()
    core.worker("box")
    core.submit("job", job_tier="evaluation")
    core.start("job")
    core.restart(away=3600)
    assert core.state("job") == "orphaned"
    assert core.job("job").state == "orphaned"
    core.wait(119)
    assert core.state("job") == "orphaned"
    core.wait(2)
    assert (core.state("job"), core.task("job").losses) == ("pending", 1)


def test_a_worker_that_kept_its_task_over_the_restart_goes_on_with_it() -> None:
    core = CoreFleet()
    core.worker("box")
    core.submit("job")
    core.start("job")
    attempt = core.attempt("job")
    core.restart(away=20)
    core.register("box", holds=holding(("job", attempt)), slots=1)
    row = core.task("job")
    assert (row.state, row.attempt, row.losses) == ("running", attempt, 0)


def test_the_run_time_budget_counts_over_a_restart() -> None:
    core = CoreFleet()
    core.worker("box")
    core.submit("job", max_runtime_hours=0.1)
    core.start("job")
    attempt = core.attempt("job")
    core.wait(300)
    core.restart(away=30)
    core.register("box", holds=holding(("job", attempt)), slots=1)
    core.wait(29)
    assert core.cancelled() == []
    core.wait(2)
    assert core.cancelled() == [("box", attempt)]


def test_a_clock_that_was_set_back_takes_nothing_from_a_wait() -> None:
    core = CoreFleet()
    core.submit("job", scheduling_timeout_seconds=30)
    core.wait(10)
    core.restart(away=-3600)
    assert core.state("job") == "pending"
    core.wait(31)
    assert core.state("job") == "unschedulable"


def test_a_requeued_job_that_found_no_place_is_there_after_a_restart() -> None:
    core = CoreFleet()
    core.worker("box", slots=1)
    core.submit("job")
    core.start("job")
    core.requeue("job")
    core.drain("box")
    core.end("job", "cancelled")
    assert core.queue() == ["job"]
    core.restart()
    assert core.queue() == ["job"]


def test_a_requeued_orphan_whose_grace_ran_out_is_there_after_a_restart() -> None:
    core = CoreFleet()
    core.worker("box")
    core.submit("job")
    core.start("job")
    core.requeue("job")
    core.leave("box")
    core.wait(31)
    assert core.queue() == ["job"]
    core.restart()
    assert core.queue() == ["job"]


def zombie_beside_a_waiting_task() -> tuple[CoreFleet, str]:
    """`old` came back with an attempt that had been given up; its task ran elsewhere since and waits again."""
    core = CoreFleet()
    core.worker("old")
    core.submit("job")
    core.start("job")
    zombie = core.attempt("job")
    core.leave("old")
    core.wait(31)
    core.worker("new")
    core.start("job")
    core.register("old", holds=holding(("job", zombie)))
    core.drain("new")
    core.beat("new", [])
    assert (core.state("job"), core.where("job"), core.queue()) == ("pending", "", ["job"])
    return core, zombie


def test_a_zombie_that_is_being_stopped_does_not_hold_its_task_after_a_restart() -> None:
    core, _ = zombie_beside_a_waiting_task()
    before = portrait(core.fleet, core.now)
    core.restart()
    assert portrait(core.fleet, core.now)["tasks"] == before["tasks"]
    assert core.queue() == ["job"]


def test_a_task_cancelled_beside_its_zombie_after_a_restart_is_cancelled() -> None:
    core, zombie = zombie_beside_a_waiting_task()
    core.restart()
    core.cancel("job")
    core.worker("third")
    assert core.state("job") == "cancelled"
    core.register("old", holds=holding(("job", zombie)), slots=1)
    assert core.cancelled() == [("old", zombie)]
    core.end("job", "cancelled", worker="old", attempt=zombie)
    assert (core.state("job"), core.fleet.held) == ("cancelled", {})


def test_a_requeue_of_a_running_job_begins_its_run_time_budget_anew() -> None:
    core = CoreFleet()
    core.worker("box")
    core.submit("job", max_runtime_hours=0.1)
    core.start("job")
    core.wait(350)
    core.requeue("job")
    core.end("job", "cancelled")
    assert core.task("job").used_s == 0
    core.start("job")
    core.wait(300)
    assert core.state("job") == "running"
    assert core.cancelled() == []


def test_a_drain_is_remembered() -> None:
    core = CoreFleet()
    core.worker("box")
    core.drain("box")
    core.restart()
    core.register("box", slots=4)
    assert core.where(core.submit("job")) == ""


def test_who_has_used_least_is_remembered() -> None:
    core = CoreFleet()
    core.worker("box", gpus=4, vram=96, slots=4)
    core.submit("hog", user_id="ann", gpu_count=4)
    core.start("hog")
    core.wait(3600)
    core.end("hog")
    core.drain("box")
    core.submit("anns", user_id="ann")
    core.submit("bobs", user_id="bob")
    assert core.queue() == ["bobs", "anns"]
    core.restart()
    assert core.queue() == ["bobs", "anns"]


@pytest.mark.parametrize("ended", ["succeeded", "failed", "cancelled"])
def test_what_had_ended_stays_as_it_was_and_takes_no_memory(ended: str) -> None:
    core = CoreFleet()
    core.worker("box")
    core.submit("job")
    core.start("job")
    core.end("job", ended)
    core.restart()
    assert core.state("job") == ended
    assert core.fleet.jobs == {}
    core.requeue("job")
    assert core.state("job") == "pending"


def test_a_job_given_up_on_a_worker_that_is_away_leaves_memory_when_the_worker_has_told_of_it() -> None:
    """Held by nothing but a lapsed attempt, after a restart as before."""
    core = CoreFleet()
    core.worker("box")
    core.submit("job")
    core.start("job")
    attempt = core.attempt("job")
    core.leave("box")
    core.wait(31)
    core.cancel("job")
    core.restart()
    core.register("box", holds=holding(("job", attempt)), slots=1)
    core.end("job", "cancelled", worker="box", attempt=attempt)
    assert core.fleet.held == {}
    assert core.fleet.jobs == {}


def test_what_a_preempted_task_had_run_is_remembered() -> None:
    core = CoreFleet()
    core.worker("box", devices=[24])
    core.submit("low", gpu_count=1, preemptible=True, max_runtime_hours=0.1)
    core.start("low")
    core.wait(300)
    core.submit("high", gpu_count=1, priority=5)
    core.end("low", "cancelled")
    assert core.where("high") == "box"
    before = portrait(core.fleet, core.now)["tasks"]["low"]
    core.restart()
    assert portrait(core.fleet, core.now)["tasks"]["low"] == before
    assert core.task("low").used_s == pytest.approx(300)


def test_a_job_that_was_let_go_does_not_wait_again_for_another_after_a_restart() -> None:
    """Requeued by hand after what it depended on had failed; that one is requeued as well, later."""
    core = CoreFleet()
    core.submit("first", scheduling_timeout_seconds=20)
    core.submit("second", depends_on=["first"])
    core.wait(21)
    assert core.states("first", "second") == ["unschedulable", "cancelled"]
    core.requeue("second")
    core.requeue("first")
    before = core.queue()
    core.restart()
    assert core.queue() == before


def test_an_old_attempt_that_ends_after_a_restart_does_not_overwrite_its_requeued_task() -> None:
    core = CoreFleet()
    core.worker("box")
    core.submit("job", max_attempts=0)
    core.start("job")
    zombie = core.attempt("job")
    core.leave("box")
    core.wait(31)
    core.register("box", holds=holding(("job", zombie)), slots=0)
    assert (core.state("job"), core.cancelled()) == ("failed", [("box", zombie)])
    core.restart()
    core.requeue("job")
    core.worker("other")
    core.start("job")
    before = core.task("job")
    assert (before.state, before.worker) == ("running", "other")
    core.register("box", holds=holding(("job", zombie)), slots=0)
    core.end("job", "cancelled", worker="box", attempt=zombie)
    assert core.task("job") == before
    core.restart()
    assert core.state("job") == "orphaned"
