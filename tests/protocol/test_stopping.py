"""Cancel, requeue, scheduling timeouts and the run-time budget."""

from typing import Any

import pytest
from tests.protocol.api import Api
from tests.protocol.client import Assignment, Worker
from tests.protocol.hub import RunningHub

NS = 1_000_000_000


@pytest.fixture
async def worker(hub: RunningHub) -> Worker:
    return await hub.worker(gpu_count=1, vram_gb=24)


async def told_to_stop(worker: Worker, task: Assignment) -> dict[str, Any]:
    return await worker.expect("job_cancel", task_id=task.task_id, attempt=task.attempt, grace_seconds=10)


# Cancel


async def test_cancelling_a_running_job_shows_at_once_and_its_room_is_held_until_its_end_is_seen(
    api: Api, worker: Worker
) -> None:
    task = await worker.take(await api.submit(gpu_count=1))
    assert (await api.cancel(task.task_id))["state"] == "cancelled"
    assert (await told_to_stop(worker, task))["reason"]
    waiting = await api.submit(gpu_count=1)
    await worker.ask()
    await worker.expect("no_work")
    assert await api.state(waiting) == "pending"
    await worker.end(task, "cancelled", -15)
    await worker.take(waiting)
    assert await api.state(task.task_id) == "cancelled"


@pytest.mark.parametrize("said", ["succeeded", "failed", "returned"])
async def test_a_cancelled_job_stays_cancelled_whatever_its_process_came_to(
    api: Api, worker: Worker, said: str
) -> None:
    task = await worker.take(await api.submit(max_retries=3))
    await api.cancel(task.task_id)
    await told_to_stop(worker, task)
    await worker.end(task, said, 0, fault="worker")
    assert await api.state(task.task_id) == "cancelled"


async def test_the_room_of_a_cancelled_job_comes_back_when_its_worker_no_longer_reports_it(
    api: Api, worker: Worker
) -> None:
    task = await worker.take(await api.submit(gpu_count=1))
    await api.cancel(task.task_id)
    await told_to_stop(worker, task)
    waiting = await api.submit(gpu_count=1)
    worker.forget(task)
    await worker.beat()
    await worker.take(waiting)


async def test_cancelling_an_assigned_job_answers_its_acceptance_by_job_cancel(api: Api, worker: Worker) -> None:
    task = await worker.assigned(await api.submit())
    assert (await api.cancel(task.task_id))["state"] == "cancelled"
    await told_to_stop(worker, task)
    await worker.send("job_accepted", task_id=task.task_id, attempt=task.attempt)
    await told_to_stop(worker, task)
    await worker.end(task, "cancelled", None)


async def test_cancelling_a_pending_job_is_told_to_nobody(api: Api, worker: Worker) -> None:
    job = await api.submit(gpu_count=5)
    assert (await api.cancel(job))["state"] == "cancelled"
    await worker.quiet()


async def test_cancelling_what_has_ended_changes_nothing(api: Api, worker: Worker) -> None:
    task = await worker.take(await api.submit())
    await worker.end(task)
    before = await api.job(task.task_id)
    assert await api.cancel(task.task_id) == before


async def test_cancelling_an_orphan_shows_at_once_and_is_told_to_the_worker_when_it_comes_back(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task = await worker.take(await api.submit(gpu_count=1, job_tier="training"))
    await hub.lose(worker)
    assert (await api.cancel(task.task_id))["state"] == "cancelled"
    await worker.connect()
    await worker.register(active=[task])
    await told_to_stop(worker, task)
    waiting = await api.submit(gpu_count=1)
    await worker.send_beat()
    await worker.expect("ack", of="heartbeat")
    await told_to_stop(worker, task)
    await worker.quiet()
    await worker.end(task, "cancelled", -15)
    await worker.take(waiting)


async def test_a_cancelled_job_that_its_worker_reports_after_the_grace_holds_its_room_again(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task = await worker.take(await api.submit(gpu_count=1))
    await api.cancel(task.task_id)
    await told_to_stop(worker, task)
    await hub.lose(worker)
    await hub.pass_time(60)
    waiting = await api.submit(gpu_count=1)
    await worker.connect()
    await worker.register(active=[task])
    await told_to_stop(worker, task)
    await worker.beat()
    await told_to_stop(worker, task)
    await worker.quiet()
    assert await api.state(waiting) == "pending"
    await worker.end(task, "cancelled", -15)
    await worker.take(waiting)


# Requeue


async def test_a_running_job_that_is_requeued_is_placed_again_only_after_its_end_was_seen(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task = await worker.take(await api.submit())
    other = await hub.worker("other")
    assert (await api.requeue(task.task_id))["state"] == "pending"
    await told_to_stop(worker, task)
    for one in (worker, other):
        await one.ask()
        await one.expect("no_work")
    await worker.end(task)
    # Its result is fenced out, and it runs again.
    again = await other.take(task.task_id)
    assert again.attempt != task.attempt
    await other.end(again, "failed", 4)
    found = await api.job(task.task_id)
    assert (found["state"], found["exit_code"]) == ("failed", 4)


async def test_a_requeued_jobs_old_process_is_fenced_out_at_once(api: Api, worker: Worker) -> None:
    task = await worker.take(await api.submit())
    await api.requeue(task.task_id)
    await told_to_stop(worker, task)
    await worker.send("job_accepted", task_id=task.task_id, attempt=task.attempt)
    await told_to_stop(worker, task)
    assert await api.state(task.task_id) == "pending"
    await worker.end(task, "cancelled", -15)
    await worker.end(await worker.take(task.task_id))


async def test_a_requeued_job_whose_worker_is_away_is_placed_again_when_the_grace_is_over(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task = await worker.take(await api.submit(job_tier="evaluation"))
    await hub.lose(worker)
    other = await hub.worker("other")
    assert (await api.requeue(task.task_id))["state"] == "pending"
    await other.quiet()
    await hub.pass_time(119, beating=[other])
    await hub.pass_time(2)
    await other.take(task.task_id)


@pytest.mark.parametrize("ended", ["succeeded", "failed", "cancelled"])
async def test_a_job_that_has_ended_runs_again_when_it_is_requeued(api: Api, worker: Worker, ended: str) -> None:
    task = await worker.take(await api.submit())
    await worker.end(task, ended, 0)
    assert await api.state(task.task_id) == ended
    assert (await api.requeue(task.task_id))["state"] in ("pending", "assigned")
    again = await worker.take(task.task_id)
    assert again.attempt != task.attempt
    await worker.end(again)
    found = await api.job(task.task_id)
    assert (found["state"], len(found["attempts"])) == ("succeeded", 2)


async def test_a_cancelled_job_whose_process_still_runs_waits_for_its_end_when_it_is_requeued(
    api: Api, worker: Worker
) -> None:
    task = await worker.take(await api.submit())
    await api.cancel(task.task_id)
    await told_to_stop(worker, task)
    assert (await api.requeue(task.task_id))["state"] == "pending"
    await worker.ask()
    await worker.expect("no_work")
    await worker.end(task, "cancelled", -15)
    await worker.end(await worker.take(task.task_id))
    assert await api.state(task.task_id) == "succeeded"


async def test_requeueing_gives_both_budgets_anew(api: Api, worker: Worker) -> None:
    job = await api.submit(max_attempts=0, max_retries=1)
    await worker.end(await worker.take(job), "failed", 1)
    await worker.end(await worker.take(job), "failed", 1)
    assert await api.state(job) == "failed"
    await api.requeue(job)
    await worker.end(await worker.take(job), "failed", 1)
    await worker.end(await worker.take(job))
    assert await api.state(job) == "succeeded"


# The scheduling timeout


async def test_a_job_that_is_not_placed_in_time_is_unschedulable_with_the_reasons_that_held_it(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    job = await api.submit(gpu_count=4, scheduling_timeout_seconds=45)
    await hub.pass_time(44, beating=[worker])
    assert await api.state(job) == "pending"
    await hub.pass_time(2)
    found = await api.job(job)
    assert found["state"] == "unschedulable"
    assert "needs 4 GPUs" in found["reason"]
    assert "1 free of 1" in found["reason"]


async def test_a_job_that_was_placed_in_time_is_not_ended_by_its_scheduling_timeout(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task = await worker.take(await api.submit(scheduling_timeout_seconds=5))
    await hub.pass_time(60, beating=[worker])
    assert await api.state(task.task_id) == "running"


async def test_the_scheduling_timeout_goes_on_across_a_restart_of_the_hub(hub: RunningHub, api: Api) -> None:
    job = await api.submit(gpu_count=4, scheduling_timeout_seconds=100)
    await hub.pass_time(50)
    await hub.restart(away_s=30)
    await hub.pass_time(15)
    assert await hub.api.state(job) == "pending"
    await hub.pass_time(10)
    assert await hub.api.state(job) == "unschedulable"


# The run-time budget


async def test_the_time_that_remains_is_in_nanoseconds_and_a_batch_job_has_24_hours(api: Api, worker: Worker) -> None:
    task = await worker.take(await api.submit())
    assert task.payload["remaining_time"] == 24 * 3600 * NS


async def test_a_budget_of_more_than_168_hours_is_cut_and_the_answer_says_so(api: Api, worker: Worker) -> None:
    answer = await api.post("/v1/jobs", {"command": ["true"], "max_runtime_hours": 500}, 201)
    assert "168" in " ".join(answer["notes"])
    task = await worker.take(answer["id"])
    assert task.payload["remaining_time"] == 168 * 3600 * NS


async def test_a_service_has_no_end(hub: RunningHub, api: Api, worker: Worker) -> None:
    worker.slots["service_total"] = 1
    await worker.beat()
    task = await worker.take(await api.submit(type="service"))
    assert task.payload["remaining_time"] == 0


async def test_what_earlier_attempts_used_is_taken_off(hub: RunningHub, api: Api, worker: Worker) -> None:
    job = await api.submit(max_runtime_hours=0.5)
    task = await worker.take(job)
    assert task.payload["remaining_time"] == 1800 * NS
    await hub.pass_time(600, beating=[worker])
    worker.forget(task)
    await worker.beat()
    assert (await worker.take(job)).payload["remaining_time"] == 1200 * NS


async def test_a_task_whose_budget_is_spent_is_told_to_stop_and_ends_failed(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task = await worker.take(await api.submit(max_runtime_hours=0.05, max_retries=5, gpu_count=1))
    await hub.pass_time(179, beating=[worker])
    await worker.quiet()
    await hub.pass_time(2)
    assert (await told_to_stop(worker, task))["reason"] == "max_runtime"
    # Its room is held until it is gone.
    waiting = await api.submit(gpu_count=1)
    await worker.quiet()
    await worker.end(task, "cancelled", -15)
    found = await api.job(task.task_id)
    assert found["state"] == "failed"
    assert "max_runtime" in found["reason"]
    await worker.take(waiting)


async def test_the_budget_runs_over_all_attempts(hub: RunningHub, api: Api, worker: Worker) -> None:
    job = await api.submit(max_runtime_hours=0.05)
    task = await worker.take(job)
    await hub.pass_time(100, beating=[worker])
    worker.forget(task)
    await worker.beat()
    again = await worker.take(job)
    await hub.pass_time(79, beating=[worker])
    await worker.quiet()
    await hub.pass_time(2)
    assert (await told_to_stop(worker, again))["reason"] == "max_runtime"
    await worker.end(again, "cancelled", -15)
    assert await api.state(job) == "failed"


async def test_a_job_of_another_tier_is_stopped_by_its_budget_while_it_is_an_orphan(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task = await worker.take(await api.submit(max_runtime_hours=0.05, job_tier="training"))
    await hub.lose(worker)
    await hub.pass_time(300)
    await worker.connect()
    await worker.register(active=[task])
    assert (await told_to_stop(worker, task))["reason"] == "max_runtime"
    await worker.end(task, "cancelled", -15)
    assert await api.state(task.task_id) == "failed"


async def test_the_budget_of_a_task_that_was_taken_back_after_its_grace_still_ends_it(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    """It ran all the while; the moment at which its budget was spent passed while its worker was away."""
    task = await worker.take(await api.submit(max_runtime_hours=0.05))
    await hub.pass_time(100, beating=[worker])
    await hub.lose(worker)
    await hub.pass_time(100)
    assert await api.state(task.task_id) == "pending"
    await hub.join(worker, [task])
    for _ in range(30):
        await hub.pass_time(10)
        await worker.send_beat()
        found = await worker.receive()
        if found["type"] == "job_cancel":
            assert found["payload"]["reason"] == "max_runtime"
            await worker.expect("ack", of="heartbeat")
            await told_to_stop(worker, task)
            return
    pytest.fail("nobody stopped it")
