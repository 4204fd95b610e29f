"""Accepted, ended, handed back; the two budgets; the fence."""

import base64
from typing import Any

import pytest
from tests.protocol.api import Api
from tests.protocol.client import ABSENT, Assignment, Worker
from tests.protocol.hub import RunningHub


@pytest.fixture
async def worker(hub: RunningHub) -> Worker:
    return await hub.worker()


def without_attempt(task: Assignment) -> dict[str, str]:
    """As a worker of version 1 names it."""
    return {"task_id": task.task_id}


# Accepting


async def test_a_task_is_assigned_until_its_worker_accepts_it_and_running_from_then_on(
    api: Api, worker: Worker
) -> None:
    job = await api.submit()
    task = await worker.assigned(job)
    found = await api.job(job)
    assert (found["state"], found["worker"], found["attempt"]) == ("assigned", "w", task.attempt)
    await worker.accept(task)
    found = await api.job(job)
    assert (found["state"], found["worker"], found["attempt"]) == ("running", "w", task.attempt)
    assert found["started_at"]


async def test_an_assignment_carries_the_spec_under_the_tasks_id(api: Api, worker: Worker) -> None:
    job = await api.submit(command=["echo", "hello"], env={"A": "b"}, name="greeting", metadata={"deep": [1, {"x": 2}]})
    task = await worker.take(job)
    spec = task.payload["spec"]
    assert spec["id"] == job
    assert spec["command"] == ["echo", "hello"]
    assert spec["env"] == {"A": "b"}
    assert spec["metadata"] == {"deep": [1, {"x": 2}]}
    assert spec["name"] == "greeting"


async def test_an_acceptance_said_twice_changes_nothing(api: Api, worker: Worker) -> None:
    task = await worker.take(await api.submit())
    await worker.send("job_accepted", task_id=task.task_id, attempt=task.attempt)
    await worker.quiet()
    assert await api.state(task.task_id) == "running"


async def test_an_assignment_not_accepted_within_30_s_goes_back_and_costs_no_attempt(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    job = await api.submit(max_attempts=0)
    late = await worker.assigned(job)
    await hub.pass_time(29, beating=[worker], active=ABSENT)
    assert await api.state(job) == "assigned"
    await hub.pass_time(2)
    # Nobody else is there: it comes again, under a new attempt.
    again = await worker.assigned(job)
    assert again.attempt != late.attempt
    await worker.send("job_accepted", task_id=job, attempt=late.attempt)
    await worker.expect("job_cancel", task_id=job, attempt=late.attempt)
    await worker.accept(again)
    found = await api.job(job)
    assert (found["state"], found["attempt"]) == ("running", again.attempt)


async def test_an_assignment_not_accepted_in_time_may_go_to_another_worker(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    job = await api.submit()
    late = await worker.assigned(job)
    await hub.pass_time(29, beating=[worker], active=ABSENT)
    worker.slots["batch_total"] = 0
    await worker.beat(active=ABSENT)
    other = await hub.worker("other")
    await hub.pass_time(2)
    await other.take(job)
    await worker.send("job_accepted", task_id=job, attempt=late.attempt)
    await worker.expect("job_cancel", task_id=job, attempt=late.attempt)
    assert (await api.job(job))["worker"] == "other"


# Results


@pytest.mark.parametrize(
    ("said", "exit_code", "state"),
    [
        ("succeeded", 0, "succeeded"),
        ("completed", 0, "succeeded"),
        ("failed", 3, "failed"),
        ("failed", None, "failed"),
        ("cancelled", -15, "cancelled"),
    ],
)
async def test_a_result_ends_the_task(api: Api, worker: Worker, said: str, exit_code: int | None, state: str) -> None:
    job = await api.submit()
    await worker.end(await worker.take(job), said, exit_code)
    found = await api.job(job)
    assert (found["state"], found["exit_code"]) == (state, exit_code)
    assert found["finished_at"]


async def test_a_result_without_an_acceptance_before_it_counts(api: Api, worker: Worker) -> None:
    job = await api.submit()
    await worker.end(await worker.assigned(job))
    assert await api.state(job) == "succeeded"


async def test_a_failure_says_its_reason(api: Api, worker: Worker) -> None:
    job = await api.submit()
    await worker.end(await worker.take(job), "failed", 137, error="out of memory")
    assert "out of memory" in (await api.job(job))["reason"]


async def test_a_functions_value_and_an_artifact_come_with_the_result(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    job = await api.submit()
    value = base64.b64encode(b"\0value").decode()
    await worker.end(await worker.take(job), result=value, artifact_id="a-1")
    answer = await api.call("GET", f"/v1/jobs/{job}/result")
    assert (answer.status, answer.body) == (200, b"\0value")
    assert (await api.job(job))["artifact_id"] == "a-1"


async def test_a_result_said_again_is_acknowledged_again_and_counts_once(api: Api, worker: Worker) -> None:
    job = await api.submit()
    task = await worker.take(job)
    await worker.end(task)
    before = await api.get(f"/v1/jobs/{job}/events")
    await worker.end(task, "failed", 1)
    assert await api.state(job) == "succeeded"
    assert await api.get(f"/v1/jobs/{job}/events") == before


async def test_room_comes_back_with_the_result(api: Api, hub: RunningHub) -> None:
    worker = await hub.worker("gpu", gpu_count=1, vram_gb=24)
    first, second = await api.submit(gpu_count=1), await api.submit(gpu_count=1)
    task = await worker.take(first)
    await worker.end(task)
    await worker.take(second)


# The two budgets


async def test_the_fourth_loss_is_one_too_many(api: Api, worker: Worker) -> None:
    job = await api.submit()
    for _ in range(3):
        task = await worker.take(job)
        worker.forget(task)
        await worker.beat()
    task = await worker.take(job)
    worker.forget(task)
    await worker.beat()
    found = await api.job(job)
    assert found["state"] == "failed"
    assert "max_attempts" in found["reason"]
    assert len(found["attempts"]) == 4


async def test_a_task_handed_back_by_the_workers_own_fault_costs_an_attempt(api: Api, worker: Worker) -> None:
    job = await api.submit(max_attempts=1)
    await worker.end(await worker.take(job), "returned", None, fault="worker", error="no such interpreter")
    await worker.end(await worker.take(job), "returned", None, fault="worker", error="no such interpreter")
    found = await api.job(job)
    assert found["state"] == "failed"
    assert "no such interpreter" in found["reason"]


async def test_a_task_handed_back_by_a_drain_costs_nothing(api: Api, worker: Worker) -> None:
    job = await api.submit(max_attempts=0)
    for _ in range(5):
        await worker.end(await worker.take(job), "returned", None, fault="drain")
    await worker.end(await worker.take(job))
    assert await api.state(job) == "succeeded"


async def test_a_task_handed_back_by_a_draining_worker_goes_elsewhere_without_any_wait(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    job = await api.submit(max_attempts=0, job_tier="training")
    task = await worker.take(job)
    await worker.beat(draining=True)
    other = await hub.worker("other")
    await worker.end(task, "returned", None, fault="drain")
    await other.take(job)


async def test_a_failure_of_the_jobs_own_is_final_unless_retries_are_asked_for(api: Api, worker: Worker) -> None:
    job = await api.submit(max_attempts=10)
    await worker.end(await worker.take(job), "failed", 1)
    assert await api.state(job) == "failed"


async def test_retries_are_counted_apart_from_losses(api: Api, worker: Worker) -> None:
    job = await api.submit(max_retries=2, max_attempts=1)
    await worker.end(await worker.take(job), "failed", 1)
    lost = await worker.take(job)
    worker.forget(lost)
    await worker.beat()
    await worker.end(await worker.take(job), "failed", 1)
    assert await api.state(job) in ("pending", "assigned")
    await worker.end(await worker.take(job), "failed", 7)
    found = await api.job(job)
    assert (found["state"], found["exit_code"]) == ("failed", 7)
    assert "max_retries" in found["reason"]


async def test_a_retry_that_succeeds_makes_the_job_succeed(api: Api, worker: Worker) -> None:
    job = await api.submit(max_retries=1)
    await worker.end(await worker.take(job), "failed", 1)
    await worker.end(await worker.take(job))
    found = await api.job(job)
    assert (found["state"], found["exit_code"]) == ("succeeded", 0)
    assert [attempt["state"] for attempt in found["attempts"]] == ["failed", "succeeded"]


# The fence


async def lost_and_placed_again(api: Api, worker: Worker) -> tuple[Assignment, Assignment]:
    """The same task twice on the same worker: an attempt that is over, and the current one."""
    job = await api.submit()
    stale = await worker.take(job)
    worker.forget(stale)
    await worker.beat()
    return stale, await worker.take(job)


async def test_a_stale_result_is_acknowledged_and_changes_nothing(api: Api, worker: Worker) -> None:
    stale, current = await lost_and_placed_again(api, worker)
    await worker.end(stale, "failed", 1)
    found = await api.job(current.task_id)
    assert (found["state"], found["attempt"]) == ("running", current.attempt)
    await worker.end(current)
    assert await api.state(current.task_id) == "succeeded"


async def test_a_stale_acceptance_is_answered_by_job_cancel_for_that_attempt(api: Api, worker: Worker) -> None:
    stale, current = await lost_and_placed_again(api, worker)
    await worker.send("job_accepted", task_id=stale.task_id, attempt=stale.attempt)
    await worker.expect("job_cancel", task_id=stale.task_id, attempt=stale.attempt)
    assert (await api.job(current.task_id))["attempt"] == current.attempt


async def test_an_acceptance_of_a_task_that_has_ended_is_answered_by_job_cancel(api: Api, worker: Worker) -> None:
    task = await worker.take(await api.submit())
    await worker.end(task)
    await worker.send("job_accepted", task_id=task.task_id, attempt=task.attempt)
    await worker.expect("job_cancel", task_id=task.task_id, attempt=task.attempt)
    assert await api.state(task.task_id) == "succeeded"


async def test_an_attempt_that_never_was_changes_nothing(api: Api, worker: Worker) -> None:
    task = await worker.take(await api.submit())
    await worker.send("job_result", task_id=task.task_id, attempt="made-up", state="failed", exit_code=1)
    await worker.expect("ack", of="job_result", task_id=task.task_id, attempt="made-up")
    await worker.send("job_accepted", task_id=task.task_id, attempt="made-up")
    await worker.expect("job_cancel", task_id=task.task_id, attempt="made-up")
    assert await api.state(task.task_id) == "running"


async def test_another_tasks_attempt_does_not_count_for_this_task_nor_for_that_one(api: Api, worker: Worker) -> None:
    first, second = await worker.take_all(*[await api.submit() for _ in range(2)])
    await worker.send("job_result", task_id=first.task_id, attempt=second.attempt, state="failed", exit_code=1)
    await worker.expect("ack", of="job_result", task_id=first.task_id, attempt=second.attempt)
    assert await api.state(first.task_id) == "running"
    assert await api.state(second.task_id) == "running"


@pytest.mark.parametrize("state", ["succeeded", "failed"])
async def test_a_result_from_a_worker_that_does_not_hold_the_task_counts_for_nothing(
    hub: RunningHub, api: Api, worker: Worker, state: str
) -> None:
    task = await worker.take(await api.submit())
    other = await hub.worker("other")
    for named in (without_attempt(task), without_attempt(task) | {"attempt": task.attempt}):
        await other.send("job_result", **named, state=state, exit_code=0)
        await other.expect("ack", of="job_result", task_id=task.task_id)
    assert await api.state(task.task_id) == "running"


async def test_an_acceptance_without_an_attempt_counts_only_from_the_worker_that_holds_the_task(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task = await worker.assigned(await api.submit())
    other = await hub.worker("other")
    await other.send("job_accepted", **without_attempt(task))
    await other.expect("job_cancel", task_id=task.task_id)
    assert await api.state(task.task_id) == "assigned"
    await worker.send("job_accepted", **without_attempt(task))
    await worker.quiet()
    assert await api.state(task.task_id) == "running"


async def test_a_plain_version_1_worker_goes_from_assignment_to_result_without_ever_naming_an_attempt(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task = await worker.assigned(await api.submit())
    await worker.send("job_accepted", **without_attempt(task))
    line: dict[str, Any] = {"task_id": task.task_id, "state": "running"}
    await worker.beat(active=[line])
    await hub.lose(worker)
    assert await api.state(task.task_id) == "orphaned"
    await hub.join(worker, [line])
    await worker.beat(active=[line])
    assert await api.state(task.task_id) == "running"
    await worker.send("job_result", **without_attempt(task), state="completed", exit_code=0)
    await worker.expect("ack", of="job_result", task_id=task.task_id)
    found = await api.job(task.task_id)
    assert found["state"] == "succeeded"
    assert len(found["attempts"]) == 1
