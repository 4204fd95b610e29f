"""Free slots = total − max(in use as reported, less what has ended since; placed there by the hub)."""

import pytest
from tests.core.core_fleet import CoreFleet, holding

from ostler.core.effects import AssignTask, SayNoWork
from ostler.domain.worker import Slots


def placed(core: CoreFleet, name: str) -> int:
    return len(core.fleet.workers[name].attempts)


def test_no_more_is_placed_than_there_are_slots() -> None:
    core = CoreFleet()
    core.worker("box", slots=3)
    jobs = [core.submit() for _ in range(5)]
    assert [core.where(job) for job in jobs] == ["box"] * 3 + [""] * 2


def test_what_the_hub_placed_counts_before_the_worker_has_said_so() -> None:
    core = CoreFleet()
    core.worker("box", slots=2)
    for _ in range(3):
        core.submit()
    core.beat("box", slots=Slots(batch_total=2, batch_in_use=0))
    assert placed(core, "box") == 2


@pytest.mark.parametrize(("in_use", "free"), [(0, 4), (1, 3), (3, 1), (4, 0), (5, -1)])
def test_what_the_worker_says_is_in_use_is_not_free(in_use: int, free: int) -> None:
    core = CoreFleet()
    core.worker("box", slots=None)
    core.beat("box", slots=Slots(batch_total=4, batch_in_use=in_use))
    assert core.fleet.workers["box"].free_slots("batch") == free
    assert core.where(core.submit()) == ("box" if free > 0 else "")


def test_the_larger_of_both_accounts_counts_and_never_their_sum() -> None:
    """The tasks that the hub placed are among those that the worker reports."""
    core = CoreFleet()
    core.worker("box", slots=4)
    core.start(*[core.submit() for _ in range(3)])
    core.beat("box", slots=Slots(batch_total=4, batch_in_use=3))
    assert core.fleet.workers["box"].free_slots("batch") == 1
    core.submit()
    assert core.fleet.workers["box"].free_slots("batch") == 0


def test_what_has_ended_since_the_report_is_taken_off_it() -> None:
    core = CoreFleet()
    core.worker("box", slots=2)
    jobs = [core.submit() for _ in range(4)]
    core.start(*jobs[:2])
    core.wait(1)
    core.beat("box", slots=Slots(batch_total=2, batch_in_use=2))
    core.end(jobs[0])
    assert core.where(jobs[2]) == "box"
    assert core.where(jobs[3]) == ""


def test_pools_are_counted_apart() -> None:
    core = CoreFleet()
    core.worker("box", slots=1, service_slots=1)
    batch, service = [core.submit() for _ in range(2)], [core.submit(type="service") for _ in range(2)]
    assert [core.where(job) for job in batch + service] == ["box", "", "box", ""]


def test_fewer_slots_close_a_worker_and_stop_nothing() -> None:
    core = CoreFleet()
    core.worker("box", slots=2)
    jobs = [core.submit() for _ in range(3)]
    core.start(*jobs[:2])
    core.beat("box", slots=Slots(batch_total=1, batch_in_use=2))
    core.end(jobs[0])
    assert core.states(*jobs) == ["succeeded", "running", "pending"]
    core.end(jobs[1])
    assert core.where(jobs[2]) == "box"


def test_a_stopping_task_keeps_its_slot_until_it_has_ended() -> None:
    core = CoreFleet()
    core.worker("box", slots=1)
    first, second = core.submit(), core.submit()
    core.start(first)
    core.cancel(first)
    assert (core.state(first), core.where(second)) == ("cancelled", "")
    core.end(first, "cancelled")
    assert core.where(second) == "box"


def test_slots_are_forgotten_when_a_worker_registers_anew() -> None:
    core = CoreFleet()
    core.worker("box", slots=4)
    core.leave("box")
    core.register("box")
    job = core.submit()
    assert core.where(job) == ""
    core.beat("box", slots=Slots(batch_total=4))
    assert core.where(job) == "box"


def test_a_worker_that_asks_gets_work_or_the_word_that_there_is_none() -> None:
    core = CoreFleet()
    core.worker("box", slots=None)
    core.ask("box", Slots(batch_total=1))
    assert [effect.worker_id for effect in core.of(SayNoWork)] == ["box"]
    core.drain("box")
    core.submit("job")
    core.drain("box", False)
    assert core.where("job") == ""
    core.ask("box")
    assert core.assigned() == ["job"]
    core.ask("box")
    assert core.of(SayNoWork) and not core.of(AssignTask)


def test_a_worker_that_only_ever_asks_is_served_as_well() -> None:
    core = CoreFleet()
    core.worker("box", slots=None)
    core.submit("job")
    core.ask("box", Slots(batch_total=1))
    assert core.assigned() == ["job"] and not core.of(SayNoWork)


def test_a_process_that_nobody_authorised_takes_a_slot_until_it_is_gone() -> None:
    core = CoreFleet()
    core.worker("box", slots=1)
    core.beat("box", holding(("unknown", "x1")))
    assert core.cancelled() == [("box", "x1")]
    job = core.submit()
    assert core.where(job) == ""
    core.end("unknown", "cancelled", attempt="x1", worker="box")
    assert core.where(job) == "box"
