"""The life of a task: reserved, accepted, fenced, ended once, paid for by the right budget, released only at the end."""

import pytest
from tests.core.yard import Yard, holding, submission

from ostler.core.effects import Acknowledge, Answer, AssignTask, CancelTask, CloseSession, Refuse
from ostler.core.events import HubWasAway, TaskEnded, WorkerBeat, WorkerLeft
from ostler.domain.errors import Conflict, NotFound
from ostler.domain.worker import Slots

END_STATES = ["succeeded", "completed", "failed", "cancelled", "returned"]


def running(yard: Yard, **spec: object) -> str:
    job = yard.submit("job", **spec)
    yard.start(job)
    return job


def start_when_placed(yard: Yard, job: str) -> None:
    while not yard.where(job):
        yard.wait(5)
    yard.start(job)


def one_box(**offer: object) -> Yard:
    yard = Yard()
    yard.worker("box", **offer)
    return yard


# Submitted


def test_a_submit_is_answered_with_the_ids() -> None:
    yard = Yard()
    yard.submit("job")
    assert [effect.ids for effect in yard.of(Answer)] == [["job"]]
    assert yard.job("job").state == "pending"


def test_the_same_spec_again_is_not_submitted_twice_and_another_is_refused() -> None:
    yard = Yard()
    yard.submit("job", name="x")
    again = submission(7, "job", name="x")
    again.known = yard.ledger.jobs(["job"])
    [answer] = yard.turn(again)
    assert isinstance(answer, Answer) and not answer.created
    other = submission(8, "job", name="y")
    other.known = yard.ledger.jobs(["job"])
    [refusal] = yard.turn(other)
    assert isinstance(refusal, Refuse) and isinstance(refusal.error, Conflict)


def test_of_many_jobs_all_are_taken_or_none() -> None:
    yard = Yard()
    yard.submit("old", name="x")
    batch = submission(7, "new")
    batch.jobs += submission(8, "old", name="other").jobs
    batch.known = yard.ledger.jobs(["old"])
    [refusal] = yard.turn(batch)
    assert isinstance(refusal, Refuse)
    assert yard.ledger.jobs(["new"]) == {}


# Assigned


def test_an_assignment_reserves_its_room_and_says_what_it_grants() -> None:
    yard = one_box(devices=[24, 24], cores=8, memory=16)
    yard.submit("job", gpu_count=1, min_cpu_cores=2, min_memory_gb=4, max_runtime_hours=2)
    [effect] = yard.of(AssignTask)
    assert (effect.worker_id, effect.task_id, effect.devices, effect.remaining_s) == ("box", "job", (0,), 7200)
    assert yard.free("box") == (6000, 12 * 1024, (0, 24 * 1024))
    assert yard.state("job") == "assigned"


def test_an_assignment_not_accepted_within_30_s_goes_back_at_no_cost() -> None:
    yard = one_box()
    yard.submit("job")
    old = yard.attempt("job")
    yard.wait(29)
    assert yard.attempt("job") == old
    yard.wait(2)
    assert yard.attempt("job") != old
    assert (yard.task("job").losses, yard.task("job").failures) == (0, 0)
    yard.accept("job", attempt=old)
    assert yard.cancelled() == [("box", old)]
    assert yard.state("job") == "assigned"


def test_a_result_without_an_acceptance_counts_all_the_same() -> None:
    yard = one_box()
    yard.submit("job")
    yard.end("job")
    assert yard.state("job") == "succeeded"


# Fenced


@pytest.mark.parametrize("state", END_STATES)
def test_a_stale_result_changes_nothing_and_is_acknowledged(state: str) -> None:
    yard = one_box()
    yard.submit("job")
    old = yard.attempt("job")
    yard.end("job", "returned", fault="drain")
    yard.start("job")
    before = yard.task("job")
    [ack] = yard.end("job", state, attempt=old)
    assert isinstance(ack, Acknowledge)
    assert (ack.of, ack.task_id, ack.attempt) == ("job_result", "job", old)
    assert yard.task("job") == before


@pytest.mark.parametrize("state", END_STATES)
def test_a_result_counts_once_however_often_it_comes(state: str) -> None:
    yard = one_box()
    job = running(yard, max_retries=5)
    attempt = yard.attempt(job)
    yard.end(job, state, attempt=attempt)
    row, counted = yard.job(job), yard.task(job)
    for _ in range(3):
        yard.end(job, state, attempt=attempt, worker="box")
        assert [effect.of for effect in yard.of(Acknowledge)] == ["job_result"]
    assert yard.task(job) == counted
    assert yard.job(job).state == row.state


def test_a_stale_acceptance_is_answered_by_a_cancel_of_that_attempt() -> None:
    yard = one_box()
    yard.submit("job")
    yard.accept("job", attempt="forged")
    assert yard.cancelled() == [("box", "forged")]
    assert yard.state("job") == "assigned"


def test_another_worker_cannot_speak_for_a_task_it_does_not_hold() -> None:
    yard = one_box()
    yard.worker("other", cores=0)
    job = running(yard, min_cpu_cores=1)
    for attempt in (yard.attempt(job), ""):
        yard.end(job, "failed", worker="other", attempt=attempt)
        assert [effect.of for effect in yard.of(Acknowledge)] == ["job_result"]
        yard.accept(job, worker="other", attempt=attempt)
        assert yard.cancelled() == [("other", attempt)]
        assert yard.state(job) == "running"


def test_a_message_without_an_attempt_counts_from_the_worker_that_holds_the_task() -> None:
    yard = one_box()
    yard.submit("job")
    yard.accept("job", attempt="")
    assert yard.state("job") == "running"
    yard.end("job", attempt="", worker="box")
    assert yard.state("job") == "succeeded"


def test_a_task_that_was_placed_again_can_not_be_ended_by_its_old_worker() -> None:
    yard = Yard()
    yard.worker("old")
    job = running(yard)
    zombie = yard.attempt(job)
    yard.leave("old")
    yard.wait(31)
    yard.worker("new")
    yard.start(job)
    assert yard.where(job) == "new"
    yard.register("old", holds=holding((job, zombie)), slots=0)
    assert yard.cancelled() == [("old", zombie)]
    yard.end(job, "failed", worker="old", attempt=zombie)
    assert (yard.state(job), yard.where(job)) == ("running", "new")
    yard.end(job)
    assert yard.state(job) == "succeeded"


def test_an_older_socket_is_closed_and_says_nothing_any_more() -> None:
    yard = one_box()
    job = running(yard)
    older, attempt = yard.session("box"), yard.attempt(job)
    yard.register("box", holds=holding((job, attempt)))
    assert [effect.session for effect in yard.of(CloseSession)] == [older]
    late = TaskEnded(worker_id="box", session=older, task_id=job, attempt=attempt, state="failed")
    assert [type(effect) for effect in yard.turn(late)] == [CloseSession]
    assert [type(effect) for effect in yard.turn(WorkerBeat(worker_id="box", session=older))] == [CloseSession]
    yard.turn(WorkerLeft(worker_id="box", session=older))
    assert yard.state(job) == "running"
    assert yard.fleet.workers["box"].connected


def test_a_worker_that_never_registered_is_not_listened_to() -> None:
    yard = Yard()
    assert [type(effect) for effect in yard.turn(WorkerBeat(worker_id="who", session=9))] == [CloseSession]


# Two budgets


def test_the_fourth_loss_is_failed_and_says_why() -> None:
    yard = one_box()
    job = running(yard)
    for loss in range(1, 4):
        yard.end(job, "returned", fault="worker", error="no disk")
        assert yard.task(job).losses == loss
        start_when_placed(yard, job)
    yard.end(job, "returned", fault="worker", error="no disk")
    assert yard.state(job) == "failed"
    assert yard.job(job).reason == "box handed it back: no disk; lost 4 times, max_attempts is 3"


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_a_job_is_lost_as_often_as_it_may_be(limit: int) -> None:
    yard = one_box()
    job = running(yard, max_attempts=limit)
    for _ in range(limit):
        yard.beat("box", [])
        assert yard.state(job) == "assigned"
        yard.start(job)
    yard.beat("box", [])
    assert yard.state(job) == "failed"


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_jobs_own_failures_count_against_its_retries(limit: int) -> None:
    yard = one_box()
    job = running(yard, max_retries=limit)
    for failure in range(1, limit + 1):
        yard.end(job, "failed", exit_code=7)
        assert yard.task(job).failures == failure
        yard.start(job)
    yard.end(job, "failed", exit_code=7)
    assert yard.state(job) == "failed"
    assert yard.task(job).exit_code == 7
    assert "exit code 7" in yard.job(job).reason
    assert yard.task(job).losses == 0


def test_the_budgets_do_not_touch_each_other() -> None:
    yard = one_box()
    job = running(yard, max_retries=2)
    yard.end(job, "failed")
    yard.start(job)
    yard.beat("box", [])
    yard.start(job)
    assert (yard.task(job).failures, yard.task(job).losses) == (1, 1)


def test_a_drain_and_an_unaccepted_assignment_cost_nothing() -> None:
    yard = one_box()
    job = running(yard, max_attempts=0, max_retries=0)
    yard.end(job, "returned", fault="drain")
    yard.wait(31)
    yard.start(job)
    yard.end(job)
    assert yard.state(job) == "succeeded"


def test_a_requeue_begins_both_budgets_anew() -> None:
    yard = one_box()
    job = running(yard, max_attempts=1)
    yard.beat("box", [])
    yard.start(job)
    yard.end(job, "failed")
    yard.requeue(job)
    row = yard.task(job)
    assert (row.state, row.losses, row.failures, row.exit_code, row.reason) == ("assigned", 0, 0, None, "")


# The run-time budget


def test_the_run_time_budget_stops_a_task_and_it_fails() -> None:
    yard = one_box()
    job = running(yard, max_runtime_hours=0.1)
    yard.wait(359)
    assert yard.state(job) == "running"
    yard.wait(2)
    [effect] = yard.of(CancelTask)
    assert (effect.task_id, effect.reason) == (job, "max_runtime")
    assert yard.where(job) == "box"
    yard.end(job, "cancelled", exit_code=143)
    assert yard.state(job) == "failed"
    assert yard.job(job).reason == "max_runtime: its budget of 0.1 h is spent"


def test_what_earlier_attempts_used_is_taken_off_the_budget() -> None:
    yard = one_box()
    job = running(yard, max_runtime_hours=0.1)
    yard.wait(100)
    yard.end(job, "returned", fault="drain")
    [effect] = yard.of(AssignTask)
    assert effect.remaining_s == pytest.approx(260)
    yard.start(job)
    yard.wait(250)
    assert yard.cancelled() == []
    yard.wait(11)
    assert len(yard.cancelled()) == 1


def test_a_lost_stop_is_said_again_on_the_next_account() -> None:
    yard = one_box()
    job = running(yard, max_runtime_hours=0.1)
    yard.wait(361)
    yard.beat("box", holding((job, yard.attempt(job))))
    assert yard.cancelled() == [("box", yard.attempt(job))]
    assert yard.state(job) == "running"


def test_a_service_without_a_budget_runs_on() -> None:
    yard = one_box(service_slots=1)
    job = running(yard, type="service")
    for _ in range(30):
        yard.now += 86_400
        yard.turn(HubWasAway(86_400))
        assert (yard.state(job), yard.cancelled()) == ("running", [])


def test_an_attempt_that_came_back_after_its_grace_still_has_its_budget() -> None:
    yard = one_box()
    job = running(yard, max_runtime_hours=0.1)
    attempt = yard.attempt(job)
    yard.leave("box")
    yard.wait(400)
    assert yard.state(job) == "pending"
    yard.register("box", holds=holding((job, attempt)), slots=1)
    assert yard.state(job) == "running"
    yard.wait(361)
    assert yard.cancelled() == [("box", attempt)], "nobody minds its budget any more"


# Released only at the end


@pytest.mark.parametrize("tell", ["cancel", "requeue"])
def test_a_task_that_is_told_to_stop_keeps_its_room_until_its_end_is_seen(tell: str) -> None:
    yard = one_box(devices=[24])
    job = running(yard, gpu_count=1)
    old = yard.attempt(job)
    yard.submit("next", gpu_count=1, priority=9)
    getattr(yard, tell)(job)
    assert yard.cancelled() == [("box", old)]
    assert yard.state(job) == {"cancel": "cancelled", "requeue": "pending"}[tell]
    assert yard.where("next") == ""
    yard.wait(3600)
    assert yard.where("next") == "", "the grace of a stop is the worker's to keep"
    yard.beat("box", holding((job, old)))
    assert yard.cancelled() == [("box", old)]
    assert yard.where("next") == ""
    yard.end(job, "cancelled", attempt=old)
    assert yard.where("next") == "box"


def test_a_requeued_task_is_placed_again_when_its_old_process_is_gone() -> None:
    yard = one_box()
    job = running(yard)
    old = yard.attempt(job)
    yard.requeue(job)
    assert yard.assigned() == []
    yard.end(job, "succeeded", attempt=old)
    assert yard.assigned() == [job]
    assert yard.state(job) == "assigned"
    assert yard.attempt(job) != old


def test_a_cancelled_task_that_is_seen_to_be_gone_gives_its_room_back() -> None:
    yard = one_box(slots=1)
    job = running(yard)
    yard.submit("next")
    yard.cancel(job)
    yard.beat("box", [])
    assert yard.where("next") == "box"
    assert yard.state(job) == "cancelled"


def test_a_cancelled_task_holds_its_room_again_when_its_worker_comes_back_with_it() -> None:
    yard = one_box(devices=[24])
    job = running(yard, gpu_count=1)
    old = yard.attempt(job)
    yard.cancel(job)
    yard.leave("box")
    yard.wait(31)
    yard.submit("next", gpu_count=1)
    yard.register("box", holds=holding((job, old)), slots=4)
    assert yard.cancelled() == [("box", old)]
    assert yard.where("next") == ""
    yard.end(job, "cancelled", worker="box", attempt=old)
    assert yard.where("next") == "box"


def test_an_orphans_room_stays_taken() -> None:
    yard = one_box(devices=[24])
    running(yard, gpu_count=1)
    yard.leave("box")
    yard.wait(3600)
    assert yard.free("box")[2] == (0,)


def test_cancelling_what_has_ended_changes_nothing() -> None:
    yard = one_box()
    job = running(yard)
    yard.end(job)
    before = yard.task(job)
    yard.cancel(job)
    assert (yard.state(job), yard.task(job)) == ("succeeded", before)
    assert yard.of(CancelTask) == []


def test_a_requeue_of_what_nobody_knows_is_refused() -> None:
    yard = Yard()
    yard.requeue("nothing")
    [refusal] = yard.of(Refuse)
    assert isinstance(refusal.error, NotFound)


def test_a_requeue_that_meets_the_end_of_its_job_in_one_batch_loses_nothing() -> None:
    """The loop reads history before the batch: the row it brings may be older than the event before it."""
    yard = one_box()
    job = running(yard)
    requeue = yard.requeueing(job)
    ended = TaskEnded(
        worker_id="box",
        session=yard.session("box"),
        task_id=job,
        attempt=yard.attempt(job),
        state="failed",
        exit_code=1,
    )
    yard.turn(ended, requeue)
    assert yard.state(job) == "assigned"


def test_a_requeue_that_meets_the_cancel_of_its_job_in_one_batch_loses_nothing() -> None:
    yard = Yard()
    job = yard.submit("job")
    yard.turn(yard.cancellation(job), yard.requeueing(job))
    assert yard.state(job) == "pending"
    assert yard.queue() == [job]


def test_a_requeue_that_meets_the_last_end_of_an_array_in_one_batch_loses_nothing() -> None:
    yard = one_box()
    yard.submit("a", array=2)
    yard.start("a.0", "a.1")
    yard.end("a.0", "failed")
    requeue = yard.requeueing("a")
    last = TaskEnded(
        worker_id="box", session=yard.session("box"), task_id="a.1", attempt=yard.attempt("a.1"), state="failed"
    )
    yard.turn(last, requeue)
    assert sum(yard.job("a").counts.values()) == 2
    assert yard.job("a").state in ("pending", "running")


def test_a_requeue_of_a_job_that_waits_for_another_loses_neither() -> None:
    yard = Yard()
    yard.submit("first")
    yard.submit("second", depends_on=["first"])
    yard.requeue("second")
    yard.worker("box")
    yard.start("first")
    yard.end("first")
    assert yard.where("second") == "box"


def test_a_gang_that_came_back_and_is_not_placed_in_time_ends_whole_or_not_at_all() -> None:
    yard = Yard()
    yard.worker("a")
    yard.worker("b")
    yard.submit("gang", node_count=2, scheduling_timeout_seconds=60)
    yard.start("gang.0")
    yard.wait(31)
    yard.drain("a")
    yard.drain("b")
    yard.end("gang.0", "cancelled")
    assert yard.states("gang.0", "gang.1") == ["pending", "pending"]
    yard.wait(60)
    assert len(set(yard.states("gang.0", "gang.1"))) == 1


def test_the_time_to_be_placed_counts_on_when_it_ran_out_on_the_way_to_a_worker_that_did_not_take_it() -> None:
    yard = one_box(gpus=1)
    yard.start(yard.submit("hog", gpu_count=1))
    yard.submit("job", gpu_count=1, scheduling_timeout_seconds=60)
    yard.wait(50)
    yard.end("hog")
    assert yard.where("job") == "box"
    yard.wait(20)
    yard.drain("box")
    assert yard.state("job") == "assigned"
    yard.wait(20)
    assert yard.state("job") == "unschedulable"


@pytest.mark.parametrize("what", ["job", "array"])
def test_the_end_of_an_old_attempt_does_not_take_its_requeued_job_along(what: str) -> None:
    """The job had left memory and came back; the attempt still speaks of the one that left."""
    yard = one_box()
    yard.submit("job", array=1 if what == "array" else 0)
    task = "job.0" if what == "array" else "job"
    yard.start(task)
    old = yard.attempt(task)
    yard.leave("box")
    yard.wait(31)
    yard.cancel("job")
    assert "job" not in yard.fleet.jobs
    yard.requeue("job")
    assert yard.queue() == ["job"]
    yard.register("box", holds=holding((task, old)))
    yard.end(task, "cancelled", worker="box", attempt=old)
    assert yard.queue() == ["job"]
    yard.beat("box", slots=Slots(batch_total=1))
    assert yard.where(task) == "box"


def test_what_has_ended_leaves_no_reminders_for_the_rest_of_the_day() -> None:
    yard = one_box()
    for number in range(50):
        job = yard.submit(f"short{number}")
        yard.start(job)
        yard.end(job)
    yard.wait(700)
    assert yard.fleet.timers.due(yard.now + 3600) in ([], [("contact", "box")])
