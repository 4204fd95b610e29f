"""Arrays: N independent tasks of one job, `<id>.0` and on."""

import base64

import pytest
from tests.protocol.api import Api
from tests.protocol.client import Worker
from tests.protocol.hub import RunningHub


@pytest.fixture
async def worker(hub: RunningHub) -> Worker:
    return await hub.worker(slots=2)


async def test_the_tasks_of_an_array_have_their_own_ids_and_indices(api: Api, worker: Worker) -> None:
    job = await api.submit(array=3)
    first, second = await worker.take_all(f"{job}.0", f"{job}.1")
    assert (first.payload["index"], second.payload["index"]) == (0, 1)
    assert first.payload["spec"]["id"] == f"{job}.0"
    await worker.end(first)
    third = await worker.take(f"{job}.2")
    assert third.payload["index"] == 2


async def test_an_array_of_one_is_an_array(api: Api, worker: Worker) -> None:
    job = await api.submit(array=1)
    task = await worker.take(f"{job}.0")
    assert task.payload["index"] == 0
    await worker.end(task)
    found = await api.job(job)
    assert (found["state"], found["counts"]) == ("succeeded", {"succeeded": 1})


async def test_a_single_job_has_no_index(api: Api, worker: Worker) -> None:
    assert "index" not in (await worker.take(await api.submit())).payload


async def test_the_states_of_an_arrays_tasks_are_counted(api: Api, worker: Worker) -> None:
    job = await api.submit(array=4)
    first, second = await worker.take_all(f"{job}.0", f"{job}.1")
    assert (await api.job(job))["counts"] == {"running": 2, "pending": 2}
    await worker.end(first)
    third = await worker.assigned(f"{job}.2")
    assert (await api.job(job))["counts"] == {"succeeded": 1, "running": 1, "assigned": 1, "pending": 1}
    await worker.accept(third)
    await worker.end(second, "failed", 1)
    fourth = await worker.take(f"{job}.3")
    await worker.end(third)
    await worker.end(fourth)
    found = await api.job(job)
    assert (found["state"], found["counts"]) == ("failed", {"succeeded": 3, "failed": 1})


async def test_an_array_whose_tasks_only_wait_is_found_among_the_pending_jobs(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    async def listed(query: str) -> list[str]:
        return [found["id"] for found in (await api.get(f"/v1/jobs?{query}"))["jobs"]]

    job = await api.submit(array=3)
    first, second = await worker.take_all(f"{job}.0", f"{job}.1")
    assert (await listed("state=running"), await listed("state=pending")) == ([job], [])
    await worker.end(first)
    await worker.take(f"{job}.2")
    await api.cancel(f"{job}.2")
    await hub.lose(worker)
    assert (await listed("status=running"), await listed("status=pending")) == ([job], [])
    await hub.pass_time(31)
    found = await api.until_state(job, "pending")
    assert found["counts"] == {"succeeded": 1, "cancelled": 1, "pending": 1}
    assert (await listed("state=running"), await listed("state=pending")) == ([], [job])
    assert (await listed("status=running"), await listed("status=pending")) == ([], [job])
    assert (await api.get("/v1/status"))["jobs"]["pending"] == 1
    assert (found["finished_at"], found["reason"]) == (None, "")
    assert second.task_id == f"{job}.1"


async def test_the_events_of_a_task_are_its_own(api: Api, worker: Worker) -> None:
    job = await api.submit(array=2)
    for task in await worker.take_all(f"{job}.0", f"{job}.1"):
        await worker.end(task)
    found = (await api.get(f"/v1/jobs/{job}.1/events"))["events"]
    assert [(event["task"], event["state"]) for event in found] == [
        (f"{job}.1", state) for state in ("assigned", "running", "succeeded")
    ]
    assert len((await api.get(f"/v1/jobs/{job}/events"))["events"]) > 2 * len(found)


async def test_an_array_succeeds_if_all_its_tasks_do(api: Api, worker: Worker) -> None:
    job = await api.submit(array=2)
    for task in await worker.take_all(f"{job}.0", f"{job}.1"):
        assert await api.state(job) == "running"
        await worker.end(task)
    assert await api.state(job) == "succeeded"


async def test_an_array_is_running_as_soon_as_one_of_its_tasks_is_placed(hub: RunningHub, api: Api) -> None:
    job = await api.submit(array=2)
    assert await api.state(job) == "pending"
    worker = await hub.worker(slots=2)
    await worker.assigned(f"{job}.0")
    await worker.assigned(f"{job}.1")
    assert await api.state(job) == "running"


async def test_an_array_is_running_until_all_have_ended(api: Api, worker: Worker) -> None:
    job = await api.submit(array=3)
    first, second = await worker.take_all(f"{job}.0", f"{job}.1")
    await worker.end(first)
    third = await worker.assigned(f"{job}.2")
    await worker.end(second)
    assert await api.state(job) == "running"
    await worker.end(third)
    assert await api.state(job) == "succeeded"


async def test_each_task_of_an_array_can_be_looked_at_by_itself(api: Api, worker: Worker) -> None:
    job = await api.submit(array=3)
    first, second = await worker.take_all(f"{job}.0", f"{job}.1")
    await worker.end(first, "failed", 5)
    third = await worker.assigned(f"{job}.2")
    found = await api.job(f"{job}.0")
    assert (found["id"], found["state"], found["exit_code"]) == (f"{job}.0", "failed", 5)
    assert [attempt["attempt"] for attempt in found["attempts"]] == [first.attempt]
    assert (await api.job(f"{job}.1"))["state"] == "running"
    assert (await api.job(f"{job}.2"))["attempt"] == third.attempt
    assert (await api.call("GET", f"/v1/jobs/{job}.3")).status == 404
    tasks = await api.get(f"/v1/jobs/{job}/tasks")
    assert [(task["id"], task["index"], task["state"]) for task in tasks["tasks"]] == [
        (f"{job}.0", 0, "failed"),
        (f"{job}.1", 1, "running"),
        (f"{job}.2", 2, "assigned"),
    ]
    await worker.end(second)
    await worker.end(third)


async def test_the_tasks_of_an_array_are_paged(api: Api, hub: RunningHub) -> None:
    worker = await hub.worker("many", slots=5)
    job = await api.submit(array=5)
    await worker.take_all(*(f"{job}.{index}" for index in range(5)))
    seen: list[int] = []
    after: int | None = -1
    while after is not None:
        page = await api.get(f"/v1/jobs/{job}/tasks?limit=2&after={after}")
        seen += [task["index"] for task in page["tasks"]]
        after = page["next"]
    assert seen == [0, 1, 2, 3, 4]


async def test_of_the_tasks_that_have_ended_the_values_come_with_the_list(api: Api, hub: RunningHub) -> None:
    worker = await hub.worker("many", slots=3)
    job = await api.submit(array=3)
    first, second, third = await worker.take_all(*(f"{job}.{index}" for index in range(3)))
    await worker.end(third, result=base64.b64encode(b"value").decode())
    await worker.end(first, "failed", 5)
    page = await api.get(f"/v1/jobs/{job}/tasks?ended=1")
    found = [(task["id"], task["state"], task["exit_code"], task["value"]) for task in page["tasks"]]
    value = base64.b64encode(b"value").decode()
    assert found == [(f"{job}.0", "failed", 5, None), (f"{job}.2", "succeeded", 0, value)]
    await worker.end(second)


async def test_retries_and_losses_are_counted_for_each_task_by_itself(api: Api, worker: Worker) -> None:
    job = await api.submit(array=2, max_retries=1)
    first, second = await worker.take_all(f"{job}.0", f"{job}.1")
    await worker.end(first, "failed", 1)
    first = await worker.take(f"{job}.0")
    await worker.end(second, "failed", 1)
    second = await worker.take(f"{job}.1")
    await worker.end(first)
    await worker.end(second)
    assert await api.state(job) == "succeeded"


async def test_cancelling_an_array_stops_what_runs_and_ends_what_waits(api: Api, worker: Worker) -> None:
    job = await api.submit(array=1000)
    tasks = await worker.take_all(f"{job}.0", f"{job}.1")
    found = await api.cancel(job)
    assert (found["state"], found["counts"]) == ("cancelled", {"cancelled": 1000})
    for task in tasks:
        await worker.expect("job_cancel", task_id=task.task_id, attempt=task.attempt)
    assert (await api.job(f"{job}.999"))["state"] == "cancelled"
    for task in tasks:
        await worker.end(task, "cancelled", -15)


async def test_one_task_of_an_array_can_be_cancelled(api: Api, worker: Worker) -> None:
    job = await api.submit(array=2)
    first, second = await worker.take_all(f"{job}.0", f"{job}.1")
    assert (await api.cancel(f"{job}.1"))["state"] == "cancelled"
    await worker.expect("job_cancel", task_id=second.task_id, attempt=second.attempt)
    assert await api.state(job) == "running"
    await worker.end(second, "cancelled", -15)
    await worker.end(first)
    assert await api.state(job) == "failed"


async def test_requeueing_an_array_runs_again_what_did_not_succeed(api: Api, worker: Worker) -> None:
    job = await api.submit(array=2)
    first, second = await worker.take_all(f"{job}.0", f"{job}.1")
    await worker.end(first)
    await worker.end(second, "failed", 1)
    assert await api.state(job) == "failed"
    await api.requeue(job)
    await worker.end(await worker.take(f"{job}.1"))
    found = await api.job(job)
    assert (found["state"], found["counts"]) == ("succeeded", {"succeeded": 2})


async def test_an_array_that_is_never_placed_in_time_is_unschedulable(hub: RunningHub, api: Api) -> None:
    job = await api.submit(array=3, gpu_count=1, scheduling_timeout_seconds=5)
    await hub.pass_time(6)
    found = await api.job(job)
    assert (found["state"], found["counts"]) == ("unschedulable", {"unschedulable": 3})
    assert (await api.job(f"{job}.2"))["state"] == "unschedulable"


async def test_an_array_of_gangs_is_refused(api: Api) -> None:
    answer = await api.call("POST", "/v1/jobs", json={"command": ["true"], "array": 2, "node_count": 2})
    answer.problem(422)


async def test_a_lost_task_of_an_array_is_lost_alone(api: Api, worker: Worker) -> None:
    job = await api.submit(array=2)
    first, second = await worker.take_all(f"{job}.0", f"{job}.1")
    worker.forget(first)
    await worker.beat()
    again = await worker.take(f"{job}.0")
    assert again.attempt != first.attempt
    assert (await api.job(second.task_id))["attempt"] == second.attempt
