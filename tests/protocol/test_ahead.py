"""Assignments beyond the room there is: only for workers that said how many they take, and given back when asked for."""

import pytest
from tests.protocol.api import Api
from tests.protocol.client import Assignment, Worker
from tests.protocol.hub import RunningHub

AHEAD = 3


async def short_ones(api: Api, worker: Worker) -> None:
    """So many short runs that what comes next is known to be short."""
    for _ in range(12):
        await api.submit()
        await worker.end(await worker.assigned(), run_s=0.004)


@pytest.fixture
async def plain(hub: RunningHub, api: Api) -> Worker:
    worker = await hub.worker("plain", slots=1, plain=True)
    await short_ones(api, worker)
    return worker


@pytest.fixture
async def eager(hub: RunningHub, api: Api) -> Worker:
    worker = hub.stranger("eager", slots=1)
    await worker.connect()
    await worker.register(protocol={"ahead": AHEAD})
    await worker.beat()
    await short_ones(api, worker)
    return worker


async def test_a_plain_worker_is_sent_one_message_a_frame_and_nothing_beyond_its_room(api: Api, plain: Worker) -> None:
    await api.submit(array=5)
    for _ in range(5):
        task = await plain.take()
        assert "after" not in task.payload
        await plain.end(task, run_s=0.004)
    assert plain.largest_frame == 1


async def given(worker: Worker, count: int) -> list[Assignment]:
    return [await worker.assigned() for _ in range(count)]


async def test_a_worker_that_takes_them_is_sent_as_many_ahead_as_it_said_each_after_another(
    api: Api, eager: Worker
) -> None:
    await api.submit(array=10)
    tasks = await given(eager, 1 + AHEAD)
    assert [task.payload.get("after", []) for task in tasks] == [[], *([task.attempt] for task in tasks[:-1])]
    await eager.end(tasks[0], run_s=0.004)
    (another,) = await given(eager, 1)
    assert another.payload["after"] == [tasks[-1].attempt]
    assert eager.largest_frame == 1


async def test_those_ahead_are_called_back_for_somebody_more_urgent_and_cost_nothing(api: Api, eager: Worker) -> None:
    job = await api.submit(array=2)
    first, second = await given(eager, 2)
    urgent = await api.submit(priority=9)
    await eager.expect("job_cancel", task_id=second.task_id, attempt=second.attempt, unstarted=True)
    await eager.end(second, "returned", None, fault="drain", error="called back")
    await eager.end(first, run_s=0.004)
    await eager.end(await eager.assigned(urgent), run_s=0.004)
    again = await eager.assigned(f"{job}.1")
    assert again.attempt != second.attempt
    assert [one["state"] for one in (await api.job(f"{job}.1"))["attempts"]] == ["returned", "assigned"]


async def test_one_that_begun_before_it_was_called_back_goes_on(api: Api, eager: Worker) -> None:
    job = await api.submit(array=2)
    first, second = await given(eager, 2)
    await api.submit(priority=9)
    await eager.expect("job_cancel", attempt=second.attempt, unstarted=True)
    await eager.end(first, run_s=0.004)
    await eager.accept(second)
    assert (await api.job(f"{job}.1"))["state"] == "running"
    await eager.end(second, run_s=0.004)
    await eager.assigned()


async def test_those_sent_ahead_are_seen_with_their_worker_one_by_one_and_in_the_list(api: Api, eager: Worker) -> None:
    ident = await api.submit(array=10)
    tasks = await given(eager, 1 + AHEAD)
    listed = (await api.get(f"/v1/jobs/{ident}/tasks"))["tasks"]
    assert [(row["index"], row["state"], row["worker"]) for row in listed] == [
        (index, "assigned", "eager") for index in range(1 + AHEAD)
    ]
    seen = await api.get(f"/v1/jobs/{ident}.{AHEAD}")
    assert (seen["state"], seen["worker"]) == ("assigned", "eager")
    assert [one["attempt"] for one in seen["attempts"]] == [tasks[-1].attempt]
    waiting = await api.get(f"/v1/jobs/{ident}.{AHEAD + 1}")
    assert (waiting["state"], waiting["attempts"]) == ("pending", [])
