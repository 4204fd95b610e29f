"""The table of orphan recovery, row by row: at registration, and on a heartbeat that carries `active_tasks`."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.protocol.api import Api
from tests.protocol.client import ABSENT, Assignment, Worker
from tests.protocol.hub import RunningHub

Report = Callable[[RunningHub, Worker, list[Any]], Awaitable[None]]


async def by_registering(hub: RunningHub, worker: Worker, active: list[Any]) -> None:
    """The socket closes; the worker comes back with this account."""
    await hub.lose(worker)
    await worker.connect()
    await worker.register(active=active)


async def by_heartbeat(hub: RunningHub, worker: Worker, active: list[Any]) -> None:
    await worker.beat(active=active)


both_ways = pytest.mark.parametrize("report", [by_registering, by_heartbeat])


@pytest.fixture
async def worker(hub: RunningHub) -> Worker:
    return await hub.worker(gpu_count=1, vram_gb=24)


def an_attempt_was_spent(job: dict[str, Any]) -> bool:
    """Of a job with max_attempts = 0, which no loss leaves alive."""
    return bool(job["state"] == "failed")


# Believed here; reported active


@both_ways
async def test_an_assigned_task_that_is_active_there_is_running(
    hub: RunningHub, api: Api, worker: Worker, report: Report
) -> None:
    task = await worker.assigned(await api.submit(max_attempts=0))
    await report(hub, worker, [task])
    await worker.quiet()
    found = await api.job(task.task_id)
    assert (found["state"], found["attempt"]) == ("running", task.attempt)
    await worker.end(task)
    assert await api.state(task.task_id) == "succeeded"


@both_ways
async def test_a_running_task_that_is_active_there_runs_on_and_nothing_is_restarted(
    hub: RunningHub, api: Api, worker: Worker, report: Report
) -> None:
    task = await worker.take(await api.submit(max_attempts=0))
    started = (await api.job(task.task_id))["started_at"]
    await report(hub, worker, [task])
    await worker.quiet()
    found = await api.job(task.task_id)
    assert (found["state"], found["attempt"], found["started_at"]) == ("running", task.attempt, started)
    assert len(found["attempts"]) == 1


async def test_an_orphan_whose_worker_registers_with_it_is_running_again(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task = await worker.take(await api.submit(max_attempts=0, job_tier="evaluation"))
    await hub.lose(worker)
    assert await api.state(task.task_id) == "orphaned"
    await hub.pass_time(60)
    assert await api.state(task.task_id) == "orphaned"
    await hub.join(worker, [task])
    await worker.quiet()
    found = await api.job(task.task_id)
    assert (found["state"], found["attempt"], len(found["attempts"])) == ("running", task.attempt, 1)


# Believed here; an end is reported, or a kept result comes


@both_ways
@pytest.mark.parametrize("accepted", [True, False], ids=["running", "assigned"])
async def test_a_task_reported_with_an_end_state_is_not_lost_and_its_result_counts_once(
    hub: RunningHub, api: Api, worker: Worker, report: Report, accepted: bool
) -> None:
    task = await worker.assigned(await api.submit(max_attempts=0))
    if accepted:
        await worker.accept(task)
    await report(hub, worker, [task.line("succeeded")])
    await worker.quiet()
    assert await api.state(task.task_id) in ("running", "assigned", "orphaned")
    await worker.end(task)
    await worker.end(task)
    found = await api.job(task.task_id)
    assert (found["state"], len(found["attempts"])) == ("succeeded", 1)


async def test_a_kept_result_that_comes_after_a_reconnect_counts(hub: RunningHub, api: Api, worker: Worker) -> None:
    task = await worker.take(await api.submit(max_attempts=0, max_retries=0))
    await by_registering(hub, worker, [task.line("failed")])
    await worker.end(task, "failed", 9)
    found = await api.job(task.task_id)
    assert (found["state"], found["exit_code"]) == ("failed", 9)


# Assigned here, not accepted; nothing is reported


async def test_an_assignment_that_a_heartbeat_does_not_mention_is_sent_again_and_is_the_same(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task = await worker.assigned(await api.submit(max_attempts=0, gpu_count=1))
    for _ in range(2):
        await worker.beat(active=[])
        again = await worker.assigned(task.task_id)
        assert (again.attempt, again.devices) == (task.attempt, task.devices)
    await worker.accept(again)
    assert await api.state(task.task_id) == "running"


async def test_an_assignment_is_not_sent_again_on_a_heartbeat_without_an_account(api: Api, worker: Worker) -> None:
    task = await worker.assigned(await api.submit())
    await worker.beat(active=ABSENT)
    await worker.quiet()
    assert await api.state(task.task_id) == "assigned"


async def test_an_assignment_that_a_registration_does_not_mention_goes_back_to_pending_for_nothing(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task = await worker.assigned(await api.submit(max_attempts=0))
    await by_registering(hub, worker, [])
    await worker.quiet()
    assert await api.state(task.task_id) == "pending"
    await worker.beat()
    again = await worker.take(task.task_id)
    assert again.attempt != task.attempt


# Running, or orphaned after it ran; nothing is reported


@both_ways
async def test_a_running_task_that_is_not_there_is_lost_and_placed_again_at_once(
    hub: RunningHub, api: Api, worker: Worker, report: Report
) -> None:
    task = await worker.take(await api.submit(job_tier="training", max_attempts=1))
    await report(hub, worker, [])
    worker.forget(task)
    if report is by_registering:
        await worker.quiet()
        assert await api.state(task.task_id) == "pending"
        await worker.beat()
    again = await worker.take(task.task_id)
    assert again.attempt != task.attempt
    assert [attempt["state"] for attempt in (await api.job(task.task_id))["attempts"]] == ["lost", "running"]


@both_ways
async def test_a_running_task_that_is_not_there_fails_when_no_attempt_is_left(
    hub: RunningHub, api: Api, worker: Worker, report: Report
) -> None:
    task = await worker.take(await api.submit(max_attempts=0))
    await report(hub, worker, [])
    worker.forget(task)
    found = await api.job(task.task_id)
    assert an_attempt_was_spent(found)
    assert "max_attempts" in found["reason"]


async def test_a_heartbeat_without_an_account_loses_nothing(api: Api, worker: Worker) -> None:
    task = await worker.take(await api.submit(max_attempts=0))
    await worker.beat(active=ABSENT)
    await worker.quiet()
    assert await api.state(task.task_id) == "running"


# Elsewhere, finished, cancelled or unknown; reported active


async def room_is_taken_until_it_says_so(api: Api, worker: Worker, stray: dict[str, str], slots: int = 1) -> None:
    """What should not be there counts, until its end is told."""
    worker.slots["batch_total"] = slots
    await worker.beat(active=[stray])
    await worker.expect("job_cancel", task_id=stray["task_id"])
    job = await api.submit()
    await worker.quiet()
    assert await api.state(job) == "pending"
    await worker.send("job_result", **stray | {"state": "cancelled"}, exit_code=-15)
    await worker.expect("ack", of="job_result", task_id=stray["task_id"])
    await worker.take(job)


@both_ways
async def test_an_unknown_task_is_cancelled_and_its_room_counts_as_taken_until_it_is_gone(
    hub: RunningHub, api: Api, worker: Worker, report: Report
) -> None:
    stray = {"task_id": "never-heard-of", "attempt": "some", "state": "running"}
    await report(hub, worker, [stray])
    await worker.expect("job_cancel", task_id="never-heard-of", attempt="some", grace_seconds=10)
    await room_is_taken_until_it_says_so(api, worker, stray)


@both_ways
async def test_an_unknown_task_without_an_attempt_is_cancelled_too(
    hub: RunningHub, api: Api, worker: Worker, report: Report
) -> None:
    stray = {"task_id": "never-heard-of", "state": "running"}
    await report(hub, worker, [stray])
    await worker.expect("job_cancel", task_id="never-heard-of")
    await room_is_taken_until_it_says_so(api, worker, stray)


@both_ways
async def test_an_unknown_task_that_is_no_longer_reported_gives_its_room_back(
    hub: RunningHub, api: Api, worker: Worker, report: Report
) -> None:
    stray = {"task_id": "never-heard-of", "attempt": "some", "state": "running"}
    worker.slots["batch_total"] = 1
    await report(hub, worker, [stray])
    await worker.expect("job_cancel", task_id="never-heard-of")
    job = await api.submit()
    await worker.quiet()
    await worker.beat()
    await worker.take(job)


@both_ways
async def test_a_finished_task_that_is_reported_active_is_cancelled(
    hub: RunningHub, api: Api, worker: Worker, report: Report
) -> None:
    task = await worker.take(await api.submit())
    await worker.end(task)
    await report(hub, worker, [task])
    await worker.expect("job_cancel", task_id=task.task_id, attempt=task.attempt)
    assert await api.state(task.task_id) == "succeeded"
    await room_is_taken_until_it_says_so(api, worker, task.line())


@both_ways
async def test_a_cancelled_task_that_is_reported_active_is_cancelled_again(
    hub: RunningHub, api: Api, worker: Worker, report: Report
) -> None:
    task = await worker.take(await api.submit(gpu_count=1))
    await api.cancel(task.task_id)
    await worker.expect("job_cancel", task_id=task.task_id, attempt=task.attempt)
    await report(hub, worker, [task])
    await worker.expect("job_cancel", task_id=task.task_id, attempt=task.attempt)
    assert await api.state(task.task_id) == "cancelled"
    await room_is_taken_until_it_says_so(api, worker, task.line(), slots=1)


@pytest.mark.parametrize("named", [True, False], ids=["with its attempt", "by its id alone"])
async def test_a_task_that_two_workers_report_is_cancelled_where_it_does_not_belong_and_runs_on_where_it_does(
    hub: RunningHub, api: Api, worker: Worker, named: bool
) -> None:
    """As after a copied state folder: both name the same attempt."""
    task = await worker.take(await api.submit(gpu_count=1))
    copy = await hub.worker("copy", gpu_count=1, vram_gb=24)
    line = task.line() if named else {"task_id": task.task_id, "state": "running"}
    await copy.beat(active=[line])
    await copy.expect("job_cancel", task_id=task.task_id)
    await worker.beat()
    await worker.quiet()
    assert (await api.job(task.task_id))["worker"] == "w"
    await worker.end(task)
    await copy.beat()
    await copy.quiet()
    assert await api.state(task.task_id) == "succeeded"


async def test_the_same_unknown_task_on_two_workers_is_cancelled_on_both(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    """As after a new ledger: both ran it once, neither is known any more."""
    other = await hub.worker("other")
    for one in (worker, other):
        await one.beat(active=[{"task_id": "never-heard-of", "state": "running"}])
        await one.expect("job_cancel", task_id="never-heard-of")
    for one in (worker, other):
        await one.beat()
        await one.quiet()


async def elsewhere(hub: RunningHub, api: Api, worker: Worker) -> tuple[Assignment, Worker, Assignment]:
    """A task whose worker stayed away for so long that another got it."""
    task = await worker.take(await api.submit(gpu_count=1))
    await hub.lose(worker)
    other = await hub.worker("other", gpu_count=1, vram_gb=24)
    await hub.pass_time(29, beating=[other])
    await hub.pass_time(2)
    return task, other, await other.take(task.task_id)


async def test_a_task_that_was_placed_elsewhere_is_cancelled_where_it_came_from(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task, other, current = await elsewhere(hub, api, worker)
    await worker.connect()
    await worker.register(active=[task])
    await worker.expect("job_cancel", task_id=task.task_id, attempt=task.attempt)
    waiting = await api.submit(gpu_count=1)
    await worker.beat()
    await worker.expect("job_cancel", task_id=task.task_id, attempt=task.attempt)
    await worker.quiet()
    assert await api.state(waiting) == "pending"
    await worker.end(task, "cancelled", -15)
    await worker.take(waiting)
    found = await api.job(task.task_id)
    assert (found["state"], found["worker"], found["attempt"]) == ("running", "other", current.attempt)
    await other.end(current)
    assert await api.state(task.task_id) == "succeeded"


async def test_a_task_that_was_placed_elsewhere_cannot_publish_from_where_it_came(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task, other, current = await elsewhere(hub, api, worker)
    await worker.connect()
    await worker.register(active=[task.line("succeeded")])
    await worker.end(task)
    assert await api.state(task.task_id) == "running"
    await other.end(current, "failed", 2)
    found = await api.job(task.task_id)
    assert (found["state"], found["exit_code"]) == ("failed", 2)


# The grace ran out, not placed elsewhere yet


async def after_its_grace(hub: RunningHub, api: Api, worker: Worker, **spec: Any) -> Assignment:
    task = await worker.take(await api.submit(**spec))
    await hub.lose(worker)
    await hub.pass_time(31)
    assert await api.state(task.task_id) == "pending"
    return task


async def test_a_task_whose_grace_ran_out_is_taken_back_when_it_reappears_before_being_placed_again(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task = await after_its_grace(hub, api, worker, max_attempts=1)
    await hub.join(worker, [task])
    await worker.quiet()
    found = await api.job(task.task_id)
    assert (found["state"], found["attempt"], len(found["attempts"])) == ("running", task.attempt, 1)
    # No attempt was spent: the one that there is can still be lost.
    worker.forget(task)
    await worker.beat()
    await worker.take(task.task_id)


async def test_a_kept_result_of_the_last_attempt_counts_after_the_grace(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task = await after_its_grace(hub, api, worker)
    await worker.connect()
    await worker.register(active=[task.line("succeeded")])
    await worker.quiet()
    await worker.end(task)
    found = await api.job(task.task_id)
    assert (found["state"], found["exit_code"], len(found["attempts"])) == ("succeeded", 0, 1)
    worker.forget(task)
    await worker.beat()


async def test_a_kept_result_counts_after_the_grace_even_when_the_registration_did_not_announce_it(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    """The last row of the table asks only that the result is of the last attempt and that nobody else has the task."""
    task = await after_its_grace(hub, api, worker)
    await worker.connect()
    await worker.register(active=[])
    await worker.end(task)
    found = await api.job(task.task_id)
    assert (found["state"], found["exit_code"]) == ("succeeded", 0)


async def test_a_task_that_failed_for_want_of_attempts_stays_failed_when_its_worker_comes_back(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task = await worker.take(await api.submit(max_attempts=0))
    await hub.lose(worker)
    await hub.pass_time(31)
    assert await api.state(task.task_id) == "failed"
    await worker.connect()
    await worker.register(active=[task])
    await worker.expect("job_cancel", task_id=task.task_id, attempt=task.attempt)
    await worker.end(task)
    assert await api.state(task.task_id) == "failed"


async def test_a_lost_acceptance_is_repaired_by_the_next_heartbeat(api: Api, worker: Worker) -> None:
    """The worker started it, the frame that said so got lost: no 30 s have to pass, nothing is stuck."""
    task = await worker.assigned(await api.submit())
    worker.holding = [task]
    await worker.beat()
    assert await api.state(task.task_id) == "running"
