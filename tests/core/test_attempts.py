"""The life of a task: reserved, accepted, fenced, ended once, paid for by the right budget, released only at the end."""

import pytest
from tests.core.core_fleet import CoreFleet, holding, submission

from ostler.core.effects import Acknowledge, Answer, AssignTask, CancelTask, CloseSession, Refuse
from ostler.core.events import HubWasAway, TaskEnded, WorkerBeat, WorkerLeft
from ostler.domain.errors import Conflict, NotFound
from ostler.domain.worker import Slots

END_STATES = ["succeeded", "completed", "failed", "cancelled", "returned"]


def running(core: CoreFleet, **spec: object) -> str:
    job = core.submit("job", **spec)
    core.start(job)
    return job


def start_when_placed(core: CoreFleet, job: str) -> None:
    while not core.where(job):
        core.wait(5)
    core.start(job)


def one_box(**offer: object) -> CoreFleet:
    core = CoreFleet()
    core.worker("box", **offer)
    return core


# Submitted


def test_a_submit_is_answered_with_the_ids() -> None:
    core = CoreFleet()
    core.submit("job")
    assert [effect.ids for effect in core.of(Answer)] == [["job"]]
    assert core.job("job").state == "pending"


def test_the_same_spec_again_is_not_submitted_twice_and_another_is_refused() -> None:
    core = CoreFleet()
    core.submit("job", name="x")
    again = submission(7, "job", name="x")
    again.known = core.ledger.jobs(["job"])
    [answer] = core.turn(again)
    assert isinstance(answer, Answer) and not answer.created
    other = submission(8, "job", name="y")
    other.known = core.ledger.jobs(["job"])
    [refusal] = core.turn(other)
    assert isinstance(refusal, Refuse) and isinstance(refusal.error, Conflict)


def test_of_many_jobs_all_are_taken_or_none() -> None:
    core = CoreFleet()
    core.submit("old", name="x")
    batch = submission(7, "new")
    batch.jobs += submission(8, "old", name="other").jobs
    batch.known = core.ledger.jobs(["old"])
    [refusal] = core.turn(batch)
    assert isinstance(refusal, Refuse)
    assert core.ledger.jobs(["new"]) == {}


# Assigned


def test_an_assignment_reserves_its_room_and_says_what_it_grants() -> None:
    core = one_box(devices=[24, 24], cores=8, memory=16)
    core.submit("job", gpu_count=1, min_cpu_cores=2, min_memory_gb=4, max_runtime_hours=2)
    [effect] = core.of(AssignTask)
    assert (effect.worker_id, effect.task_id, effect.devices, effect.remaining_s) == ("box", "job", (0,), 7200)
    assert core.free("box") == (6000, 12 * 1024, (0, 24 * 1024))
    assert core.state("job") == "assigned"


def test_an_assignment_not_accepted_within_30_s_goes_back_at_no_cost() -> None:
    core = one_box()
    core.submit("job")
    old = core.attempt("job")
    core.wait(29)
    assert core.attempt("job") == old
    core.wait(2)
    assert core.attempt("job") != old
    assert (core.task("job").losses, core.task("job").failures) == (0, 0)
    core.accept("job", attempt=old)
    assert core.cancelled() == [("box", old)]
    assert core.state("job") == "assigned"


def test_a_result_without_an_acceptance_counts_all_the_same() -> None:
    core = one_box()
    core.submit("job")
    core.end("job")
    assert core.state("job") == "succeeded"


# Fenced


@pytest.mark.parametrize("state", END_STATES)
def test_a_stale_result_changes_nothing_and_is_acknowledged(state: str) -> None:
    core = one_box()
    core.submit("job")
    old = core.attempt("job")
    core.end("job", "returned", fault="drain")
    core.start("job")
    before = core.task("job")
    [ack] = core.end("job", state, attempt=old)
    assert isinstance(ack, Acknowledge)
    assert (ack.of, ack.task_id, ack.attempt) == ("job_result", "job", old)
    assert core.task("job") == before


@pytest.mark.parametrize("state", END_STATES)
def test_a_result_counts_once_however_often_it_comes(state: str) -> None:
    core = one_box()
    job = running(core, max_retries=5)
    attempt = core.attempt(job)
    core.end(job, state, attempt=attempt)
    row, counted = core.job(job), core.task(job)
    for _ in range(3):
        core.end(job, state, attempt=attempt, worker="box")
        assert [effect.of for effect in core.of(Acknowledge)] == ["job_result"]
    assert core.task(job) == counted
    assert core.job(job).state == row.state


def test_a_stale_acceptance_is_answered_by_a_cancel_of_that_attempt() -> None:
    core = one_box()
    core.submit("job")
    core.accept("job", attempt="forged")
    assert core.cancelled() == [("box", "forged")]
    assert core.state("job") == "assigned"


def test_another_worker_cannot_speak_for_a_task_it_does_not_hold() -> None:
    core = one_box()
    core.worker("other", cores=0)
    job = running(core, min_cpu_cores=1)
    for attempt in (core.attempt(job), ""):
        core.end(job, "failed", worker="other", attempt=attempt)
        assert [effect.of for effect in core.of(Acknowledge)] == ["job_result"]
        core.accept(job, worker="other", attempt=attempt)
        assert core.cancelled() == [("other", attempt)]
        assert core.state(job) == "running"


def test_a_message_without_an_attempt_counts_from_the_worker_that_holds_the_task() -> None:
    core = one_box()
    core.submit("job")
    core.accept("job", attempt="")
    assert core.state("job") == "running"
    core.end("job", attempt="", worker="box")
    assert core.state("job") == "succeeded"


def test_a_task_that_was_placed_again_can_not_be_ended_by_its_old_worker() -> None:
    core = CoreFleet()
    core.worker("old")
    job = running(core)
    zombie = core.attempt(job)
    core.leave("old")
    core.wait(31)
    core.worker("new")
    core.start(job)
    assert core.where(job) == "new"
    core.register("old", holds=holding((job, zombie)), slots=0)
    assert core.cancelled() == [("old", zombie)]
    core.end(job, "failed", worker="old", attempt=zombie)
    assert (core.state(job), core.where(job)) == ("running", "new")
    core.end(job)
    assert core.state(job) == "succeeded"


def test_an_older_socket_is_closed_and_says_nothing_any_more() -> None:
    core = one_box()
    job = running(core)
    older, attempt = core.session("box"), core.attempt(job)
    core.register("box", holds=holding((job, attempt)))
    assert [effect.session for effect in core.of(CloseSession)] == [older]
    late = TaskEnded(worker_id="box", session=older, task_id=job, attempt=attempt, state="failed")
    assert [type(effect) for effect in core.turn(late)] == [CloseSession]
    assert [type(effect) for effect in core.turn(WorkerBeat(worker_id="box", session=older))] == [CloseSession]
    core.turn(WorkerLeft(worker_id="box", session=older))
    assert core.state(job) == "running"
    assert core.fleet.workers["box"].connected


def test_a_worker_that_never_registered_is_not_listened_to() -> None:
    core = CoreFleet()
    assert [type(effect) for effect in core.turn(WorkerBeat(worker_id="who", session=9))] == [CloseSession]


# Two budgets


def test_the_fourth_loss_is_failed_and_says_why() -> None:
    core = one_box()
    job = running(core)
    for loss in range(1, 4):
        core.end(job, "returned", fault="worker", error="no disk")
        assert core.task(job).losses == loss
        start_when_placed(core, job)
    core.end(job, "returned", fault="worker", error="no disk")
    assert core.state(job) == "failed"
    assert core.job(job).reason == "box handed it back: no disk; lost 4 times, max_attempts is 3"


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_a_job_is_lost_as_often_as_it_may_be(limit: int) -> None:
    core = one_box()
    job = running(core, max_attempts=limit)
    for _ in range(limit):
        core.beat("box", [])
        assert core.state(job) == "assigned"
        core.start(job)
    core.beat("box", [])
    assert core.state(job) == "failed"


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_jobs_own_failures_count_against_its_retries(limit: int) -> None:
    core = one_box()
    job = running(core, max_retries=limit)
    for failure in range(1, limit + 1):
        core.end(job, "failed", exit_code=7)
        assert core.task(job).failures == failure
        core.start(job)
    core.end(job, "failed", exit_code=7)
    assert core.state(job) == "failed"
    assert core.task(job).exit_code == 7
    assert "exit code 7" in core.job(job).reason
    assert core.task(job).losses == 0


def test_the_budgets_do_not_touch_each_other() -> None:
    core = one_box()
    job = running(core, max_retries=2)
    core.end(job, "failed")
    core.start(job)
    core.beat("box", [])
    core.start(job)
    assert (core.task(job).failures, core.task(job).losses) == (1, 1)


def test_a_drain_and_an_unaccepted_assignment_cost_nothing() -> None:
    core = one_box()
    job = running(core, max_attempts=0, max_retries=0)
    core.end(job, "returned", fault="drain")
    core.wait(31)
    core.start(job)
    core.end(job)
    assert core.state(job) == "succeeded"


def test_a_requeue_begins_both_budgets_anew() -> None:
    core = one_box()
    job = running(core, max_attempts=1)
    core.beat("box", [])
    core.start(job)
    core.end(job, "failed")
    core.requeue(job)
    row = core.task(job)
    assert (row.state, row.losses, row.failures, row.exit_code, row.reason) == ("assigned", 0, 0, None, "")


# The run-time budget


def test_the_run_time_budget_stops_a_task_and_it_fails() -> None:
    core = one_box()
    job = running(core, max_runtime_hours=0.1)
    core.wait(359)
    assert core.state(job) == "running"
    core.wait(2)
    [effect] = core.of(CancelTask)
    assert (effect.task_id, effect.reason) == (job, "max_runtime")
    assert core.where(job) == "box"
    core.end(job, "cancelled", exit_code=143)
    assert core.state(job) == "failed"
    assert core.job(job).reason == "max_runtime: its budget of 0.1 h is spent"


def test_what_earlier_attempts_used_is_taken_off_the_budget() -> None:
    core = one_box()
    job = running(core, max_runtime_hours=0.1)
    core.wait(100)
    core.end(job, "returned", fault="drain")
    [effect] = core.of(AssignTask)
    assert effect.remaining_s == pytest.approx(260)
    core.start(job)
    core.wait(250)
    assert core.cancelled() == []
    core.wait(11)
    assert len(core.cancelled()) == 1


def test_a_lost_stop_is_said_again_on_the_next_account() -> None:
    core = one_box()
    job = running(core, max_runtime_hours=0.1)
    core.wait(361)
    core.beat("box", holding((job, core.attempt(job))))
    assert core.cancelled() == [("box", core.attempt(job))]
    assert core.state(job) == "running"


def test_a_service_without_a_budget_runs_on() -> None:
    core = one_box(service_slots=1)
    job = running(core, type="service")
    for _ in range(30):
        core.now += 86_400
        core.turn(HubWasAway(86_400))
        assert (core.state(job), core.cancelled()) == ("running", [])


def test_an_attempt_that_came_back_after_its_grace_still_has_its_budget() -> None:
    core = one_box()
    job = running(core, max_runtime_hours=0.1)
    attempt = core.attempt(job)
    core.leave("box")
    core.wait(400)
    assert core.state(job) == "pending"
    core.register("box", holds=holding((job, attempt)), slots=1)
    assert core.state(job) == "running"
    core.wait(361)
    assert core.cancelled() == [("box", attempt)], "nobody minds its budget any more"


# Released only at the end


@pytest.mark.parametrize("tell", ["cancel", "requeue"])
def test_a_task_that_is_told_to_stop_keeps_its_room_until_its_end_is_seen(tell: str) -> None:
    core = one_box(devices=[24])
    job = running(core, gpu_count=1)
    old = core.attempt(job)
    core.submit("next", gpu_count=1, priority=9)
    getattr(core, tell)(job)
    assert core.cancelled() == [("box", old)]
    assert core.state(job) == {"cancel": "cancelled", "requeue": "pending"}[tell]
    assert core.where("next") == ""
    core.wait(3600)
    assert core.where("next") == "", "the grace of a stop is the worker's to keep"
    core.beat("box", holding((job, old)))
    assert core.cancelled() == [("box", old)]
    assert core.where("next") == ""
    core.end(job, "cancelled", attempt=old)
    assert core.where("next") == "box"


def test_a_requeued_task_is_placed_again_when_its_old_process_is_gone() -> None:
    core = one_box()
    job = running(core)
    old = core.attempt(job)
    core.requeue(job)
    assert core.assigned() == []
    core.end(job, "succeeded", attempt=old)
    assert core.assigned() == [job]
    assert core.state(job) == "assigned"
    assert core.attempt(job) != old


def test_a_cancelled_task_that_is_seen_to_be_gone_gives_its_room_back() -> None:
    core = one_box(slots=1)
    job = running(core)
    core.submit("next")
    core.cancel(job)
    core.beat("box", [])
    assert core.where("next") == "box"
    assert core.state(job) == "cancelled"


def test_a_cancelled_task_holds_its_room_again_when_its_worker_comes_back_with_it() -> None:
    core = one_box(devices=[24])
    job = running(core, gpu_count=1)
    old = core.attempt(job)
    core.cancel(job)
    core.leave("box")
    core.wait(31)
    core.submit("next", gpu_count=1)
    core.register("box", holds=holding((job, old)), slots=4)
    assert core.cancelled() == [("box", old)]
    assert core.where("next") == ""
    core.end(job, "cancelled", worker="box", attempt=old)
    assert core.where("next") == "box"


def test_an_orphans_room_stays_taken() -> None:
    core = one_box(devices=[24])
    running(core, gpu_count=1)
    core.leave("box")
    core.wait(3600)
    assert core.free("box")[2] == (0,)


def test_cancelling_what_has_ended_changes_nothing() -> None:
    core = one_box()
    job = running(core)
    core.end(job)
    before = core.task(job)
    core.cancel(job)
    assert (core.state(job), core.task(job)) == ("succeeded", before)
    assert core.of(CancelTask) == []


def test_a_requeue_of_what_nobody_knows_is_refused() -> None:
    core = CoreFleet()
    core.requeue("nothing")
    [refusal] = core.of(Refuse)
    assert isinstance(refusal.error, NotFound)


def test_a_requeue_that_meets_the_end_of_its_job_in_one_batch_loses_nothing() -> None:
    """The loop reads history before the batch: the row it brings may be older than the event before it."""
    core = one_box()
    job = running(core)
    requeue = core.requeueing(job)
    ended = TaskEnded(
        worker_id="box",
        session=core.session("box"),
        task_id=job,
        attempt=core.attempt(job),
        state="failed",
        exit_code=1,
    )
    core.turn(ended, requeue)
    assert core.state(job) == "assigned"


def test_a_requeue_that_meets_the_cancel_of_its_job_in_one_batch_loses_nothing() -> None:
    core = CoreFleet()
    job = core.submit("job")
    core.turn(core.cancellation(job), core.requeueing(job))
    assert core.state(job) == "pending"
    assert core.queue() == [job]


def test_a_requeue_that_meets_the_last_end_of_an_array_in_one_batch_loses_nothing() -> None:
    core = one_box()
    core.submit("a", array=2)
    core.start("a.0", "a.1")
    core.end("a.0", "failed")
    requeue = core.requeueing("a")
    last = TaskEnded(
        worker_id="box", session=core.session("box"), task_id="a.1", attempt=core.attempt("a.1"), state="failed"
    )
    core.turn(last, requeue)
    assert sum(core.job("a").counts.values()) == 2
    assert core.job("a").state in ("pending", "running")


def test_a_requeue_of_a_job_that_waits_for_another_loses_neither() -> None:
    core = CoreFleet()
    core.submit("first")
    core.submit("second", depends_on=["first"])
    core.requeue("second")
    core.worker("box")
    core.start("first")
    core.end("first")
    assert core.where("second") == "box"


def test_a_gang_that_came_back_and_is_not_placed_in_time_ends_whole_or_not_at_all() -> None:
    core = CoreFleet()
    core.worker("a")
    core.worker("b")
    core.submit("gang", node_count=2, scheduling_timeout_seconds=60)
    core.start("gang.0")
    core.wait(31)
    core.drain("a")
    core.drain("b")
    core.end("gang.0", "cancelled")
    assert core.states("gang.0", "gang.1") == ["pending", "pending"]
    core.wait(60)
    assert len(set(core.states("gang.0", "gang.1"))) == 1


def test_the_time_to_be_placed_counts_on_when_it_ran_out_on_the_way_to_a_worker_that_did_not_take_it() -> None:
    core = one_box(gpus=1)
    core.start(core.submit("hog", gpu_count=1))
    core.submit("job", gpu_count=1, scheduling_timeout_seconds=60)
    core.wait(50)
    core.end("hog")
    assert core.where("job") == "box"
    core.wait(20)
    core.drain("box")
    assert core.state("job") == "assigned"
    core.wait(20)
    assert core.state("job") == "unschedulable"


@pytest.mark.parametrize("what", ["job", "array"])
def test_the_end_of_an_old_attempt_does_not_take_its_requeued_job_along(what: str) -> None:
    """The job had left memory and came back; the attempt still speaks of the one that left."""
    core = one_box()
    core.submit("job", array=1 if what == "array" else 0)
    task = "job.0" if what == "array" else "job"
    core.start(task)
    old = core.attempt(task)
    core.leave("box")
    core.wait(31)
    core.cancel("job")
    assert "job" not in core.fleet.jobs
    core.requeue("job")
    assert core.queue() == ["job"]
    core.register("box", holds=holding((task, old)))
    core.end(task, "cancelled", worker="box", attempt=old)
    assert core.queue() == ["job"]
    core.beat("box", slots=Slots(batch_total=1))
    assert core.where(task) == "box"


def test_what_has_ended_leaves_no_reminders_for_the_rest_of_the_day() -> None:
    core = one_box()
    for number in range(50):
        job = core.submit(f"short{number}")
        core.start(job)
        core.end(job)
    core.wait(700)
    assert core.fleet.timers.due(core.now + 3600) in ([], [("contact", "box")])
