"""Workers of version 1 without extensions: one answer for each question, and one push at a time."""

from tests.core.core_fleet import CoreFleet
from tests.core.core_fleet import capabilities as capabilities_of

from ostler.core.effects import AssignTask, SayNoWork
from ostler.domain.worker import Slots

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
    jobs = [core.submit() for _ in range(3)]
    assert [core.where(job) for job in jobs] == ["box", "", ""]
    assert "has not accepted the last one" in core.why(jobs[1]).summary
    core.accept(jobs[0])
    assert core.assigned() == jobs[1:2]
    core.accept(jobs[1])
    assert core.assigned() == jobs[2:]


def test_a_push_that_is_not_accepted_in_time_is_taken_back_and_sent_again() -> None:
    core = CoreFleet()
    plain(core, slots=4)
    first, second = core.submit(), core.submit()
    before = core.attempt(first)
    core.wait(31)
    assert core.attempt(first) != before
    assert core.where(second) == ""


def test_a_question_is_answered_although_a_push_is_on_its_way() -> None:
    core = CoreFleet()
    plain(core, slots=4)
    jobs = [core.submit() for _ in range(3)]
    core.ask("box", FOUR)
    assert core.assigned() == jobs[1:2] and not core.of(SayNoWork)


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


def test_nothing_yields_while_a_plain_worker_has_room_and_accepts_another_task() -> None:
    core = CoreFleet()
    core.worker("full", cores=1, slots=1)
    core.submit("preemptible", preemptible=True, min_cpu_cores=1)
    core.accept("preemptible")
    plain(core, slots=4)
    core.submit("on its way")
    core.submit("urgent", priority=10)
    assert core.state("preemptible") == "running"
    core.accept("on its way")
    assert core.where("urgent") == "box"
