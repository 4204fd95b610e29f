"""What may still begin somewhere is waited for; a job with on_lost_contact = "stop" for as long as it takes, since it must
never run twice at once."""

from typing import Any

import pytest
from tests.core.core_fleet import CoreFleet, capabilities, holding

from ostler.core.attempts import ACCEPT_WITHIN_S
from ostler.core.effects import AssignTask, CloseSession
from ostler.core.events import WorkerRegistered
from ostler.domain import states
from ostler.domain.worker import Slots


def two_workers(**spec: Any) -> CoreFleet:
    """The job was given to the first of them."""
    core = CoreFleet()
    core.worker("first")
    core.submit("a", job_tier="training", on_lost_contact="stop", **spec)
    core.worker("second")
    assert core.where("a") == "first"
    return core


def unanswered(**spec: Any) -> tuple[CoreFleet, str]:
    """It did not accept the job in time."""
    core = two_workers(**spec)
    attempt = core.attempt("a")
    core.wait(ACCEPT_WITHIN_S)
    return core, attempt


def test_what_was_not_accepted_is_pending_at_no_cost_and_its_worker_has_to_register_again() -> None:
    core, attempt = unanswered()
    assert [one.worker_id for one in core.of(CloseSession)] == ["first"]
    assert core.cancelled() == [("first", attempt)]
    assert (core.state("a"), core.task("a").losses, core.where("a")) == (states.PENDING, 0, "first")


def test_it_goes_to_another_when_its_worker_comes_back_without_it() -> None:
    core, _ = unanswered()
    core.wait(30)
    assert core.assigned() == []
    core.register("first")
    assert (core.where("a"), core.task("a").losses) == ("second", 0)


def test_it_goes_to_another_only_when_its_process_is_gone_where_its_worker_comes_back_with_it() -> None:
    core, attempt = unanswered()
    core.register("first", holds=holding(("a", attempt)))
    assert (core.cancelled(), core.where("a")) == ([("first", attempt)], "first")
    core.beat("first", holding(("a", attempt)))
    assert core.where("a") == "first"
    core.end("a", "cancelled", worker="first", attempt=attempt)
    assert core.where("a") == "second"


def test_it_goes_to_another_after_its_grace_where_its_worker_never_comes_back() -> None:
    core, _ = unanswered()
    core.wait(569)
    assert core.where("a") == "first"
    core.wait(32)
    assert core.where("a") == "second"


def test_it_is_looked_at_anew_after_a_restart() -> None:
    core, _ = unanswered()
    core.restart()
    core.register("second", slots=1)
    assert core.where("a") == "first"
    core.register("first")
    core.beat("second", slots=Slots(batch_total=1))
    assert core.where("a") == "second"


@pytest.mark.parametrize("on_lost_contact", ["continue", "stop"])
def test_an_account_without_a_requeued_assignment_may_be_older_than_that(on_lost_contact: str) -> None:
    """The assignment may still be on its way, and the cancellation behind it."""
    core = CoreFleet()
    core.worker("first")
    core.submit("a", on_lost_contact=on_lost_contact)
    attempt = core.attempt("a")
    core.requeue("a")
    core.worker("second")
    core.beat("first", [])
    assert (core.attempt("a"), core.cancelled()) == (attempt, [("first", attempt)])
    core.end("a", "cancelled", worker="first", attempt=attempt, error="not on this worker")
    assert core.attempt("a") != attempt


def test_a_worker_that_never_says_what_became_of_a_cancelled_assignment_has_to_register_again() -> None:
    core = two_workers()
    core.cancel("a")
    core.wait(ACCEPT_WITHIN_S - 1)
    core.beat("first", [])
    assert core.where("a") == "first"
    core.wait(1)
    assert [one.worker_id for one in core.of(CloseSession)] == ["first"]
    core.register("first")
    assert (core.fleet.held, core.state("a")) == ({}, states.CANCELLED)


def test_a_worker_is_not_closed_for_a_cancelled_assignment_of_which_it_never_speaks_if_that_may_run_twice() -> None:
    core = CoreFleet()
    core.worker("box", cores=1, slots=1)
    core.submit("a", min_cpu_cores=1)
    attempt = core.attempt("a")
    core.cancel("a")
    waits = core.submit("waits", min_cpu_cores=1)
    core.beat("box", [])
    assert core.where(waits) == "", "the assignment may arrive yet"
    core.wait(ACCEPT_WITHIN_S)
    assert (core.of(CloseSession), core.where(waits)) == ([], "box")
    core.beat("box", holding(("a", attempt), (waits, core.attempt(waits))))
    assert core.cancelled() == [("box", attempt)]
    assert core.free("box")[0] < 0, "it has turned up all the same, and its core is taken twice until it is gone"


def test_a_cancelled_assignment_keeps_its_room_from_others_until_its_worker_has_answered() -> None:
    """An account that was on its way before the assignment came says nothing about it."""
    core = CoreFleet()
    core.worker("box", gpus=1, vram=24)
    core.submit("a", gpu_count=1)
    attempt = core.attempt("a")
    core.cancel("a")
    core.submit("next", gpu_count=1)
    core.beat("box", [])
    assert (core.cancelled(), core.where("next")) == ([("box", attempt)], "")
    core.end("a", "cancelled", worker="box", attempt=attempt, error="not on this worker")
    assert core.where("next") == "box"


def test_a_late_acceptance_of_a_requeued_assignment_shows_that_it_is_there_until_it_is_gone() -> None:
    core = two_workers()
    attempt = core.attempt("a")
    core.requeue("a")
    core.accept("a", worker="first", attempt=attempt)
    assert core.cancelled() == [("first", attempt)]
    core.wait(2 * ACCEPT_WITHIN_S)
    assert (core.of(CloseSession), core.where("a")) == ([], "first")
    core.beat("first", [])
    assert core.attempt("a") != attempt


def test_a_registration_that_was_held_up_on_its_way_says_nothing_any_more() -> None:
    """The worker has connected anew since, and was given work: an old account must not take that for lost."""
    core = CoreFleet()
    old = WorkerRegistered(worker_id="box", session=1, capabilities=capabilities())
    core.turn(WorkerRegistered(worker_id="box", session=2, capabilities=capabilities()))
    core.beat("box", slots=Slots(batch_total=1))
    core.submit("a")
    core.start("a")
    assert core.turn(old) == [CloseSession(worker_id="box", session=1, taken_over=False)]
    assert (core.state("a"), core.task("a").losses, core.session("box")) == (states.RUNNING, 0, 2)
    core.leave("box")
    core.turn(old)
    assert (core.state("a"), core.of(AssignTask)) == (states.ORPHANED, [])
