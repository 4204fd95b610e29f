"""What may still begin somewhere is waited for; a job with on_lost_contact = "stop" for as long as it takes, since it must
never run twice at once."""

from typing import Any

import pytest
from tests.core.yard import Yard, capabilities, holding

from ostler.core.attempts import ACCEPT_WITHIN_S
from ostler.core.effects import AssignTask, CloseSession
from ostler.core.events import WorkerRegistered
from ostler.domain import states
from ostler.domain.worker import Slots


def two_workers(**spec: Any) -> Yard:
    """The job was given to the first of them."""
    yard = Yard()
    yard.worker("first")
    yard.submit("a", job_tier="training", on_lost_contact="stop", **spec)
    yard.worker("second")
    assert yard.where("a") == "first"
    return yard


def unanswered(**spec: Any) -> tuple[Yard, str]:
    """It did not accept the job in time."""
    yard = two_workers(**spec)
    attempt = yard.attempt("a")
    yard.wait(ACCEPT_WITHIN_S)
    return yard, attempt


def test_what_was_not_accepted_is_pending_at_no_cost_and_its_worker_has_to_register_again() -> None:
    yard, attempt = unanswered()
    assert [one.worker_id for one in yard.of(CloseSession)] == ["first"]
    assert yard.cancelled() == [("first", attempt)]
    assert (yard.state("a"), yard.task("a").losses, yard.where("a")) == (states.PENDING, 0, "first")


def test_it_goes_to_another_when_its_worker_comes_back_without_it() -> None:
    yard, _ = unanswered()
    yard.wait(30)
    assert yard.assigned() == []
    yard.register("first")
    assert (yard.where("a"), yard.task("a").losses) == ("second", 0)


def test_it_goes_to_another_only_when_its_process_is_gone_where_its_worker_comes_back_with_it() -> None:
    yard, attempt = unanswered()
    yard.register("first", holds=holding(("a", attempt)))
    assert (yard.cancelled(), yard.where("a")) == ([("first", attempt)], "first")
    yard.beat("first", holding(("a", attempt)))
    assert yard.where("a") == "first"
    yard.end("a", "cancelled", worker="first", attempt=attempt)
    assert yard.where("a") == "second"


def test_it_goes_to_another_after_its_grace_where_its_worker_never_comes_back() -> None:
    yard, _ = unanswered()
    yard.wait(569)
    assert yard.where("a") == "first"
    yard.wait(32)
    assert yard.where("a") == "second"


def test_it_is_looked_at_anew_after_a_restart() -> None:
    yard, _ = unanswered()
    yard.restart()
    yard.register("second", slots=1)
    assert yard.where("a") == "first"
    yard.register("first")
    yard.beat("second", slots=Slots(batch_total=1))
    assert yard.where("a") == "second"


@pytest.mark.parametrize("on_lost_contact", ["continue", "stop"])
def test_an_account_without_a_requeued_assignment_may_be_older_than_that(on_lost_contact: str) -> None:
    """The assignment may still be on its way, and the cancellation behind it."""
    yard = Yard()
    yard.worker("first")
    yard.submit("a", on_lost_contact=on_lost_contact)
    attempt = yard.attempt("a")
    yard.requeue("a")
    yard.worker("second")
    yard.beat("first", [])
    assert (yard.attempt("a"), yard.cancelled()) == (attempt, [("first", attempt)])
    yard.end("a", "cancelled", worker="first", attempt=attempt, error="not on this worker")
    assert yard.attempt("a") != attempt


def test_a_worker_that_never_says_what_became_of_a_cancelled_assignment_has_to_register_again() -> None:
    yard = two_workers()
    yard.cancel("a")
    yard.wait(ACCEPT_WITHIN_S - 1)
    yard.beat("first", [])
    assert yard.where("a") == "first"
    yard.wait(1)
    assert [one.worker_id for one in yard.of(CloseSession)] == ["first"]
    yard.register("first")
    assert (yard.fleet.held, yard.state("a")) == ({}, states.CANCELLED)


def test_a_worker_is_not_closed_for_a_cancelled_assignment_of_which_it_never_speaks_if_that_may_run_twice() -> None:
    yard = Yard()
    yard.worker("box", cores=1, slots=1)
    yard.submit("a", min_cpu_cores=1)
    attempt = yard.attempt("a")
    yard.cancel("a")
    waits = yard.submit("waits", min_cpu_cores=1)
    yard.beat("box", [])
    assert yard.where(waits) == "", "the assignment may arrive yet"
    yard.wait(ACCEPT_WITHIN_S)
    assert (yard.of(CloseSession), yard.where(waits)) == ([], "box")
    yard.beat("box", holding(("a", attempt), (waits, yard.attempt(waits))))
    assert yard.cancelled() == [("box", attempt)]
    assert yard.free("box")[0] < 0, "it has turned up all the same, and its core is taken twice until it is gone"


def test_a_cancelled_assignment_keeps_its_room_from_others_until_its_worker_has_answered() -> None:
    """An account that was on its way before the assignment came says nothing about it."""
    yard = Yard()
    yard.worker("box", gpus=1, vram=24)
    yard.submit("a", gpu_count=1)
    attempt = yard.attempt("a")
    yard.cancel("a")
    yard.submit("next", gpu_count=1)
    yard.beat("box", [])
    assert (yard.cancelled(), yard.where("next")) == ([("box", attempt)], "")
    yard.end("a", "cancelled", worker="box", attempt=attempt, error="not on this worker")
    assert yard.where("next") == "box"


def test_a_late_acceptance_of_a_requeued_assignment_shows_that_it_is_there_until_it_is_gone() -> None:
    yard = two_workers()
    attempt = yard.attempt("a")
    yard.requeue("a")
    yard.accept("a", worker="first", attempt=attempt)
    assert yard.cancelled() == [("first", attempt)]
    yard.wait(2 * ACCEPT_WITHIN_S)
    assert (yard.of(CloseSession), yard.where("a")) == ([], "first")
    yard.beat("first", [])
    assert yard.attempt("a") != attempt


def test_a_registration_that_was_held_up_on_its_way_says_nothing_any_more() -> None:
    """The worker has connected anew since, and was given work: an old account must not take that for lost."""
    yard = Yard()
    old = WorkerRegistered(worker_id="box", session=1, capabilities=capabilities())
    yard.turn(WorkerRegistered(worker_id="box", session=2, capabilities=capabilities()))
    yard.beat("box", slots=Slots(batch_total=1))
    yard.submit("a")
    yard.start("a")
    assert yard.turn(old) == [CloseSession(worker_id="box", session=1, taken_over=False)]
    assert (yard.state("a"), yard.task("a").losses, yard.session("box")) == (states.RUNNING, 0, 2)
    yard.leave("box")
    yard.turn(old)
    assert (yard.state("a"), yard.of(AssignTask)) == (states.ORPHANED, [])
