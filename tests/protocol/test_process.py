"""The same protocol against a hub that is a process of its own, and dies."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.protocol.api import Api
from tests.protocol.client import Worker
from tests.protocol.process_hub import ProcessHub


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ProcessHub]:
    hub = ProcessHub(tmp_path)
    hub.start()
    yield hub
    if hub.running:
        hub.kill()


@pytest.fixture
async def api(process: ProcessHub) -> AsyncIterator[Api]:
    caller = Api(process.url, process.token("admin"))
    yield caller
    await caller.close()


@pytest.fixture
async def worker(process: ProcessHub) -> AsyncIterator[Worker]:
    one = Worker(process.url, process.token("join"), "w", {"cpu_count": 8, "memory_gb": 16, "hostname": "w"})
    await one.connect()
    await one.register()
    await one.beat()
    yield one
    await one.leave()


async def killed_and_started(process: ProcessHub, worker: Worker) -> None:
    await asyncio.to_thread(process.kill)
    await worker.drop()
    await asyncio.to_thread(process.start)


async def test_a_hub_that_was_killed_finds_its_running_task_again_and_takes_the_kept_result(
    process: ProcessHub, api: Api, worker: Worker
) -> None:
    goes_on, ended = await worker.take_all(*[await api.submit(max_attempts=0) for _ in range(2)])
    await killed_and_started(process, worker)
    await worker.connect()
    await worker.register(active=[goes_on, ended.line("succeeded")])
    await worker.end(ended)
    await worker.end(ended, "failed", 1)
    await worker.beat()
    for task, state in ((goes_on, "running"), (ended, "succeeded")):
        found = await api.job(task.task_id)
        assert (found["state"], found["attempt"], len(found["attempts"])) == (state, task.attempt, 1)
    await worker.end(goes_on)
    assert await api.state(goes_on.task_id) == "succeeded"


async def test_what_ran_when_the_hub_was_killed_is_an_orphan_from_its_first_answer_on(
    process: ProcessHub, api: Api, worker: Worker
) -> None:
    task = await worker.take(await api.submit())
    await killed_and_started(process, worker)
    assert await api.state(task.task_id) == "orphaned"


async def test_the_feed_tells_that_what_ran_when_the_hub_was_killed_is_an_orphan(
    process: ProcessHub, api: Api, worker: Worker
) -> None:
    """The feed is every change, and an observer that resumes it must come to the same picture as one who looks."""
    task = await worker.take(await api.submit())
    last = (await api.get(f"/v1/jobs/{task.task_id}/events"))["events"][-1]
    assert last["state"] == "running"
    await killed_and_started(process, worker)
    async with api.feed(after=last["seq"]) as feed:
        event = await feed.next()
    assert (event["subject"], event["state"]) == (task.task_id, "orphaned")


async def test_a_frame_over_one_mib_closes_the_socket_of_a_real_hub_with_1009(worker: Worker) -> None:
    await worker.send("heartbeat", padding="x" * 1024 * 1024)
    assert await worker.closed() == 1009


async def test_a_hub_that_is_told_to_stop_closes_its_sockets_and_exits_with_0(
    process: ProcessHub, api: Api, worker: Worker
) -> None:
    task = await worker.take(await api.submit())
    assert (process.state / "hub.url").read_text().strip() == process.url
    code = await asyncio.to_thread(process.stop)
    assert code == 0
    assert await worker.closed() not in (1009, 4001)
    assert not (process.state / "hub.url").exists()
    await asyncio.to_thread(process.start)
    assert await api.state(task.task_id) == "orphaned"


async def test_a_hub_that_is_told_to_stop_while_somebody_watches_ends_the_feed_and_reports_no_error(
    process: ProcessHub, api: Api
) -> None:
    async with api.session.get(api.url + "/v1/events") as watching:
        assert await watching.content.readline()
        assert await asyncio.to_thread(process.stop) == 0
    assert "Traceback" not in "".join(process.said)
