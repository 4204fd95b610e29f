"""Free slots = total − max(in use as reported, less what has ended since; placed there by the hub)."""

import pytest
from tests.core.yard import Yard, holding

from ostler.core.effects import AssignTask, SayNoWork
from ostler.domain.worker import Slots


def placed(yard: Yard, name: str) -> int:
    return len(yard.fleet.workers[name].attempts)


def test_no_more_is_placed_than_there_are_slots() -> None:
    yard = Yard()
    yard.worker("box", slots=3)
    jobs = [yard.submit() for _ in range(5)]
    assert [yard.where(job) for job in jobs] == ["box"] * 3 + [""] * 2


def test_what_the_hub_placed_counts_before_the_worker_has_said_so() -> None:
    yard = Yard()
    yard.worker("box", slots=2)
    for _ in range(3):
        yard.submit()
    yard.beat("box", slots=Slots(batch_total=2, batch_in_use=0))
    assert placed(yard, "box") == 2


@pytest.mark.parametrize(("in_use", "free"), [(0, 4), (1, 3), (3, 1), (4, 0), (5, -1)])
def test_what_the_worker_says_is_in_use_is_not_free(in_use: int, free: int) -> None:
    yard = Yard()
    yard.worker("box", slots=None)
    yard.beat("box", slots=Slots(batch_total=4, batch_in_use=in_use))
    assert yard.fleet.workers["box"].free_slots("batch") == free
    assert yard.where(yard.submit()) == ("box" if free > 0 else "")


def test_the_larger_of_both_accounts_counts_and_never_their_sum() -> None:
    """The tasks that the hub placed are among those that the worker reports."""
    yard = Yard()
    yard.worker("box", slots=4)
    yard.start(*[yard.submit() for _ in range(3)])
    yard.beat("box", slots=Slots(batch_total=4, batch_in_use=3))
    assert yard.fleet.workers["box"].free_slots("batch") == 1
    yard.submit()
    assert yard.fleet.workers["box"].free_slots("batch") == 0


def test_what_has_ended_since_the_report_is_taken_off_it() -> None:
    yard = Yard()
    yard.worker("box", slots=2)
    jobs = [yard.submit() for _ in range(4)]
    yard.start(*jobs[:2])
    yard.wait(1)
    yard.beat("box", slots=Slots(batch_total=2, batch_in_use=2))
    yard.end(jobs[0])
    assert yard.where(jobs[2]) == "box"
    assert yard.where(jobs[3]) == ""


def test_pools_are_counted_apart() -> None:
    yard = Yard()
    yard.worker("box", slots=1, service_slots=1)
    batch, service = [yard.submit() for _ in range(2)], [yard.submit(type="service") for _ in range(2)]
    assert [yard.where(job) for job in batch + service] == ["box", "", "box", ""]


def test_fewer_slots_close_a_worker_and_stop_nothing() -> None:
    yard = Yard()
    yard.worker("box", slots=2)
    jobs = [yard.submit() for _ in range(3)]
    yard.start(*jobs[:2])
    yard.beat("box", slots=Slots(batch_total=1, batch_in_use=2))
    yard.end(jobs[0])
    assert yard.states(*jobs) == ["succeeded", "running", "pending"]
    yard.end(jobs[1])
    assert yard.where(jobs[2]) == "box"


def test_a_stopping_task_keeps_its_slot_until_it_has_ended() -> None:
    yard = Yard()
    yard.worker("box", slots=1)
    first, second = yard.submit(), yard.submit()
    yard.start(first)
    yard.cancel(first)
    assert (yard.state(first), yard.where(second)) == ("cancelled", "")
    yard.end(first, "cancelled")
    assert yard.where(second) == "box"


def test_slots_are_forgotten_when_a_worker_registers_anew() -> None:
    yard = Yard()
    yard.worker("box", slots=4)
    yard.leave("box")
    yard.register("box")
    job = yard.submit()
    assert yard.where(job) == ""
    yard.beat("box", slots=Slots(batch_total=4))
    assert yard.where(job) == "box"


def test_a_worker_that_asks_gets_work_or_the_word_that_there_is_none() -> None:
    yard = Yard()
    yard.worker("box", slots=None)
    yard.ask("box", Slots(batch_total=1))
    assert [effect.worker_id for effect in yard.of(SayNoWork)] == ["box"]
    yard.drain("box")
    yard.submit("job")
    yard.drain("box", False)
    assert yard.assigned() == ["job"]
    yard.ask("box")
    assert yard.of(SayNoWork) and not yard.of(AssignTask)


def test_a_worker_that_only_ever_asks_is_served_as_well() -> None:
    yard = Yard()
    yard.worker("box", slots=None)
    yard.submit("job")
    yard.ask("box", Slots(batch_total=1))
    assert yard.assigned() == ["job"] and not yard.of(SayNoWork)


def test_a_process_that_nobody_authorised_takes_a_slot_until_it_is_gone() -> None:
    yard = Yard()
    yard.worker("box", slots=1)
    yard.beat("box", holding(("unknown", "x1")))
    assert yard.cancelled() == [("box", "x1")]
    job = yard.submit()
    assert yard.where(job) == ""
    yard.end("unknown", "cancelled", attempt="x1", worker="box")
    assert yard.where(job) == "box"
