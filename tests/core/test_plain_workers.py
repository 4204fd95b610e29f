"""Workers of version 1 without extensions: one answer for each question, and one push at a time."""

from typing import Any

import pytest
from tests.core.core_fleet import CoreFleet, submission
from tests.core.core_fleet import capabilities as capabilities_of

from ostler.core.effects import AssignTask, SayNoWork
from ostler.core.events import WorkerRegistered
from ostler.core.placing import place
from ostler.domain.worker import Capabilities, Slots

FOUR = Slots(batch_total=4)


def plain(core: CoreFleet, name: str = "box", *, slots: int | None = None) -> None:
    """A plain worker registers; with `slots`, it announces them in a heartbeat."""
    core.register(name, is_plain=True, slots=slots)


def test_slots_in_a_question_license_one_task_and_no_push() -> None:
    core = CoreFleet()
    plain(core)
    jobs = [core.submit() for _ in range(3)]
    core.ask("box", FOUR)
    assert core.assigned() == jobs[:1] and not core.of(SayNoWork)
    core.accept(jobs[0])
    assert not core.of(AssignTask)
    core.ask("box", FOUR)
    assert core.assigned() == jobs[1:2] and not core.of(SayNoWork)


def test_each_of_several_questions_gets_its_own_answer() -> None:
    core = CoreFleet()
    plain(core)
    core.submit("only")
    core.turn(*[core.asking("box", FOUR) for _ in range(3)])
    assert core.assigned() == ["only"]
    assert len(core.of(SayNoWork)) == 2


def test_a_worker_that_never_beats_is_pushed_nothing() -> None:
    core = CoreFleet()
    plain(core)
    core.ask("box", FOUR)
    assert core.of(SayNoWork)
    job = core.submit()
    assert core.where(job) == ""
    assert "gets work when it asks" in core.why(job).summary


def test_pushes_go_one_at_a_time_and_the_next_after_the_acceptance() -> None:
    core = CoreFleet()
    plain(core, slots=4)
    jobs = [core.submit()]
    assert core.assigned() == jobs
    for _ in range(2):
        jobs.append(core.submit())
        assert core.assigned() == []
    core.accept(jobs[0])
    assert core.assigned() == jobs[1:2]
    core.accept(jobs[1])
    assert core.assigned() == jobs[2:]


def test_capacity_is_reserved_although_the_assignment_waits() -> None:
    core = CoreFleet()
    plain(core, slots=2)
    jobs = [core.submit() for _ in range(3)]
    assert [core.where(job) for job in jobs] == ["box", "box", ""]


def test_the_time_for_an_acceptance_begins_when_the_assignment_is_sent() -> None:
    core = CoreFleet()
    plain(core, slots=2)
    first, second = core.submit(), core.submit()
    before = core.attempt(second)
    core.wait(20)
    core.accept(first)
    assert core.assigned() == [second]
    core.wait(29)
    assert core.attempt(second) == before
    core.wait(2)
    assert core.attempt(second) != before


def test_a_cancelled_task_that_was_never_sent_holds_nothing() -> None:
    core = CoreFleet()
    plain(core, slots=2)
    first, second = core.submit(), core.submit()
    core.cancel(second)
    assert core.cancelled() == []
    assert (core.state(second), core.holder(second)) == ("cancelled", None)
    core.accept(first)
    assert core.assigned() == []


def test_a_drained_worker_gives_back_what_it_was_not_sent() -> None:
    core = CoreFleet()
    plain(core, slots=2)
    first, second = core.submit(), core.submit()
    core.drain("box")
    assert (core.state(first), core.state(second)) == ("assigned", "pending")
    core.drain("box", False)
    assert core.where(second) == "box"


def test_a_question_is_answered_by_a_task_that_waits_to_be_sent() -> None:
    core = CoreFleet()
    plain(core, slots=4)
    jobs = [core.submit() for _ in range(3)]
    core.ask("box", FOUR)
    assert core.assigned() == jobs[1:2] and not core.of(SayNoWork)
    core.accept(jobs[0])
    assert core.assigned() == [], "the answer is not accepted yet"
    core.accept(jobs[1])
    assert core.assigned() == jobs[2:]


def test_a_question_stays_open_when_the_worker_registers_again_on_its_socket() -> None:
    core = CoreFleet()
    plain(core)
    session = core.session("box")
    again = WorkerRegistered(worker_id="box", session=session, capabilities=Capabilities(), is_plain=True)
    core.turn(core.asking("box", FOUR), again)
    assert len(core.of(SayNoWork)) == 1


def test_a_gang_starts_on_plain_workers_that_have_tasks_to_accept() -> None:
    core = CoreFleet()
    plain(core, "a", slots=100)
    plain(core, "b", slots=100)
    small = [core.submit() for _ in range(6)]
    gang = core.submit(node_count=2, priority=10)
    assert sorted(core.where(f"{gang}.{rank}") for rank in range(2)) == ["a", "b"]
    assert "" not in [core.where(job) for job in small]


def test_a_kept_result_counts_although_its_task_was_missing_in_the_registration() -> None:
    core = CoreFleet()
    plain(core, slots=1)
    job = core.submit()
    core.accept(job, attempt="")
    core.leave("box")
    core.register("box", is_plain=True)
    assert core.state(job) == "pending"
    core.end(job, attempt="", worker="box")
    assert core.state(job) == "succeeded"


def test_a_pass_that_is_cut_short_answers_no_question_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "PLACEMENTS_PER_PASS", 2)
    core = CoreFleet()
    core.register("box")
    core.turn(*[submission(1000 + number, f"s{number}") for number in range(2)])
    core.ask("box", FOUR)
    assert len(core.assigned()) == 2
    core.turn()
    assert core.of(SayNoWork) == []


def test_the_slots_of_the_heartbeat_count_again_after_the_answer() -> None:
    core = CoreFleet()
    plain(core, slots=0)
    core.submit("asked")
    core.submit("not pushed")
    core.ask("box", FOUR)
    core.accept("asked")
    assert core.where("not pushed") == ""
    assert core.fleet.workers["box"].slots == Slots(batch_total=0)


def test_a_question_without_a_free_slot_is_answered_with_no_work() -> None:
    core = CoreFleet()
    plain(core, slots=4)
    core.submit("first")
    core.accept("first")
    core.ask("box", Slots(batch_total=1, batch_in_use=1))
    assert core.of(SayNoWork)


def test_the_tier_test_of_the_original() -> None:
    """Neither worker sends a heartbeat. Each asks once, and gets the job that is meant for its machine."""
    core = CoreFleet()
    core.register("gpu-worker", capabilities_of(gpus=4, vram=96), is_plain=True)
    core.register("cpu-worker", capabilities_of(cores=8), is_plain=True)
    core.submit("train", gpu_count=2, gpu_backend="nvidia", job_tier="training")
    core.submit("data", job_tier="data_processing")
    core.ask("gpu-worker", FOUR)
    core.ask("cpu-worker", FOUR)
    assert [core.where(job) for job in ("train", "data")] == ["gpu-worker", "cpu-worker"]


def test_why_names_no_other_worker_as_unable_where_another_only_did_not_ask() -> None:
    core = CoreFleet()
    for name in ("first", "second"):
        plain(core, name)
    core.submit("job")
    core.ask("second", FOUR)
    [row] = core.ledger.attempts_of("job")
    assert "no other could" not in row.why


def test_a_job_takes_free_capacity_of_a_plain_worker_before_another_job_yields() -> None:
    core = CoreFleet()
    core.worker("full", cores=1, slots=1)
    core.submit("preemptible", preemptible=True, min_cpu_cores=1)
    core.accept("preemptible")
    plain(core, slots=4)
    core.submit("on its way")
    core.submit("urgent", priority=10)
    assert core.state("preemptible") == "running"
    assert core.where("urgent") == "box"


def test_slots_that_were_in_use_when_the_worker_asked_stay_in_use_until_its_next_heartbeat() -> None:
    core = CoreFleet()
    plain(core, slots=4)
    core.wait(1)
    core.ask("box", Slots(batch_total=4, batch_in_use=4))
    assert core.of(SayNoWork)
    job = core.submit()
    assert core.where(job) == ""
    core.beat("box", slots=FOUR)
    assert core.assigned() == [job]


@pytest.mark.parametrize(
    "spec", [{"type": "model"}, {"secrets": ["TOKEN"]}, {"outputs": ["out"]}, {"on_lost_contact": "stop"}]
)
def test_a_job_that_version_1_would_run_in_part_goes_elsewhere_and_why_names_that(spec: dict[str, Any]) -> None:
    core = CoreFleet()
    core.register("box", is_plain=True)
    core.beat("box", slots=Slots(batch_total=4, service_total=4))
    job = core.submit(**spec)
    assert "speaks version 1 of the worker protocol" in core.why(job).summary
    core.worker("own", slots=4, service_slots=4)
    assert core.where(job) == "own"
