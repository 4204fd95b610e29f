"""Logs by offset and blobs by hash: the bytes that never travel on the control socket."""

import asyncio
import base64
import hashlib

import pytest
from tests.protocol.api import Answer, Api
from tests.protocol.client import Assignment, Worker
from tests.protocol.hub import RunningHub

from ostler.hub.api import jobs
from ostler.store import logs


@pytest.fixture
async def worker(hub: RunningHub) -> Worker:
    return await hub.worker()


@pytest.fixture
async def machine(hub: RunningHub) -> Api:
    """The worker's side of HTTP."""
    return hub.caller(hub.join_token)


async def bring(machine: Api, task: Assignment, offset: int, data: bytes, more: str = "") -> Answer:
    path = f"/v1/tasks/{task.task_id}/logs?attempt={task.attempt}&offset={offset}{more}"
    return await machine.call("POST", path, data=data)


async def ended_with_log(api: Api, worker: Worker, machine: Api, data: bytes) -> Assignment:
    task = await worker.take(await api.submit())
    assert (await bring(machine, task, 0, data)).json() == {"size": len(data)}
    await worker.end(task)
    return task


# Writing


async def test_a_log_grows_by_what_is_brought_at_its_end(api: Api, worker: Worker, machine: Api) -> None:
    task = await worker.take(await api.submit())
    assert (await bring(machine, task, 0, b"hello ")).json() == {"size": 6}
    assert (await bring(machine, task, 6, b"world")).json() == {"size": 11}
    await worker.end(task)
    answer = await api.call("GET", f"/v1/jobs/{task.task_id}/logs")
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert answer.body == b"hello world"


@pytest.mark.parametrize("offset", [0, 3, 6, 100])
async def test_a_piece_at_another_offset_is_409_with_the_size_that_the_hub_has(
    api: Api, worker: Worker, machine: Api, offset: int
) -> None:
    task = await worker.take(await api.submit())
    await bring(machine, task, 0, b"hello")
    problem = (await bring(machine, task, offset, b"again")).problem(409)
    assert problem["size"] == 5
    assert (await bring(machine, task, problem["size"], b"!")).json() == {"size": 6}


async def test_a_log_is_taken_only_for_an_attempt_that_there_was(api: Api, worker: Worker, machine: Api) -> None:
    task = await worker.take(await api.submit())
    other = Assignment(task.task_id, "made-up", {})
    (await bring(machine, other, 0, b"x")).problem(404)
    (await bring(machine, Assignment("nobody", task.attempt, {}), 0, b"x")).problem(404)
    for attempt in ("", "../../etc/passwd", "%2e%2e%2fx"):
        answer = await machine.call("POST", f"/v1/tasks/{task.task_id}/logs?attempt={attempt}&offset=0", data=b"x")
        assert answer.status in (404, 422)


async def test_a_log_still_grows_after_the_result(api: Api, worker: Worker, machine: Api) -> None:
    task = await worker.take(await api.submit())
    await worker.end(task)
    assert (await bring(machine, task, 0, b"late", "&final=1")).json() == {"size": 4}
    assert (await api.call("GET", f"/v1/jobs/{task.task_id}/logs")).body == b"late"


async def test_a_gap_is_marked_in_the_log(api: Api, worker: Worker, machine: Api) -> None:
    task = await worker.take(await api.submit())
    await bring(machine, task, 0, b"head")
    size = (await bring(machine, task, 4, b"tail", "&gap=1000")).json()["size"]
    await worker.end(task)
    body = (await api.call("GET", f"/v1/jobs/{task.task_id}/logs")).body
    assert len(body) == size
    assert body.startswith(b"head")
    assert b"1000" in body
    assert body.endswith(b"tail")


async def test_whoever_goes_on_after_a_gap_is_told_how_far_the_copy_reaches(
    api: Api, worker: Worker, machine: Api
) -> None:
    task = await worker.take(await api.submit())
    await bring(machine, task, 0, b"head")
    said = (await bring(machine, task, 4, b"tail", "&gap=1000")).json()
    assert said["reached"] == 1008
    refused = (await bring(machine, task, 4, b"again")).problem(409)
    assert (refused["size"], refused["reached"]) == (said["size"], 1008)
    async with api.session.get(f"{api.url}/v1/jobs/{task.task_id}/logs?follow=1"):
        request = await worker.expect("log_request", task_id=task.task_id, attempt=task.attempt)
        assert (request["offset"], request["reached"]) == (said["size"], 1008)
        await worker.end(task)


async def test_a_reader_is_told_when_the_hub_keeps_no_more_and_gets_the_end(
    api: Api, worker: Worker, machine: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_LOG_BYTES", 1000)
    monkeypatch.setattr(logs, "ENDING_BYTES", 900)
    task = await worker.take(await api.submit())
    await bring(machine, task, 0, b"x" * 90)
    (await bring(machine, task, 90, b"y" * 20)).problem(413)
    size = (await bring(machine, task, 90, b"y")).problem(409)["size"]
    (await bring(machine, task, size, b"y")).problem(413)
    end = f"&ending=1&gap={10**9}"
    size = (await bring(machine, task, size, b"last words", end)).json()["size"]
    await bring(machine, task, size, b"!", "&final=1")
    await worker.end(task)
    body = (await api.call("GET", f"/v1/jobs/{task.task_id}/logs")).body.decode()
    assert body.startswith("x" * 90 + "\n[ostler: the hub keeps no more")
    assert body.count("keeps no more") == 1
    assert body.endswith(f"[ostler: {10**9} bytes left out here]\nlast words!")


# Reading


async def test_a_log_is_read_from_an_offset(api: Api, worker: Worker, machine: Api) -> None:
    task = await ended_with_log(api, worker, machine, b"0123456789")
    for offset, expected in ((0, b"0123456789"), (4, b"456789"), (10, b""), (99, b"")):
        answer = await api.call("GET", f"/v1/jobs/{task.task_id}/logs?offset={offset}")
        assert (answer.status, answer.body) == (200, expected)
    (await api.call("GET", f"/v1/jobs/{task.task_id}/logs?offset=-1")).problem(422)


async def test_a_log_keeps_bytes_that_are_no_text(api: Api, worker: Worker, machine: Api) -> None:
    data = bytes(range(256)) * 1000
    task = await ended_with_log(api, worker, machine, data)
    assert (await api.call("GET", f"/v1/jobs/{task.task_id}/logs")).body == data


async def test_a_job_that_was_never_placed_has_an_empty_log(api: Api) -> None:
    answer = await api.call("GET", f"/v1/jobs/{await api.submit()}/logs")
    assert (answer.status, answer.body) == (200, b"")


async def test_each_attempt_has_its_own_log(api: Api, worker: Worker, machine: Api) -> None:
    job = await api.submit(max_retries=1)
    first = await worker.take(job)
    await bring(machine, first, 0, b"first")
    await worker.end(first, "failed", 1)
    second = await worker.take(job)
    await bring(machine, second, 0, b"second")
    await worker.end(second)
    assert (await api.call("GET", f"/v1/jobs/{job}/logs")).body == b"second"
    assert (await api.call("GET", f"/v1/jobs/{job}/logs?attempt={first.attempt}")).body == b"first"


async def test_an_attempt_of_another_job_is_not_read_through_this_one(hub: RunningHub, worker: Worker) -> None:
    ann, bob = await hub.user("ann"), await hub.user("bob")
    machine = hub.caller(hub.join_token)
    hers = await ended_with_log(ann, worker, machine, b"secret")
    his = await bob.submit()
    task = await worker.take(his)
    await worker.end(task)
    answer = await bob.call("GET", f"/v1/jobs/{his}/logs?attempt={hers.attempt}")
    assert b"secret" not in answer.body


async def test_someone_who_reads_a_running_tasks_log_has_its_worker_asked_for_it(
    api: Api, worker: Worker, machine: Api
) -> None:
    task = await worker.take(await api.submit())
    await bring(machine, task, 0, b"early ")
    reading = asyncio.create_task(api.call("GET", f"/v1/jobs/{task.task_id}/logs"))
    request = await worker.expect("log_request", task_id=task.task_id, attempt=task.attempt)
    assert request["offset"] == 6
    await bring(machine, task, 6, b"newest")
    assert (await asyncio.wait_for(reading, 60)).body == b"early newest"


async def test_a_follower_gets_the_log_as_it_grows_and_its_end_when_the_job_has_ended(
    api: Api, worker: Worker, machine: Api
) -> None:
    task = await worker.take(await api.submit())
    async with api.session.get(f"{api.url}/v1/jobs/{task.task_id}/logs?follow=1") as answer:
        request = await worker.expect("log_request", task_id=task.task_id, attempt=task.attempt)
        assert request["follow"] is True
        for offset, piece in ((0, b"one\n"), (4, b"two\n")):
            await bring(machine, task, offset, piece)
            assert await asyncio.wait_for(answer.content.readexactly(4), 60) == piece
        await bring(machine, task, 8, b"end\n")
        await worker.end(task)
        assert await asyncio.wait_for(answer.content.read(), 60) == b"end\n"


async def test_nobody_is_asked_for_a_log_whose_last_piece_has_come(api: Api, worker: Worker, machine: Api) -> None:
    task = await worker.take(await api.submit())
    async with api.session.get(f"{api.url}/v1/jobs/{task.task_id}/logs?follow=1") as answer:
        await worker.expect("log_request", task_id=task.task_id, attempt=task.attempt)
        await bring(machine, task, 0, b"all\n", "&final=1")
        assert await asyncio.wait_for(answer.content.readexactly(4), 60) == b"all\n"
        await worker.end(task)
        assert await asyncio.wait_for(answer.content.read(), 60) == b""


async def test_a_follower_of_a_job_that_waits_gets_its_log_when_it_runs(
    hub: RunningHub, api: Api, machine: Api
) -> None:
    job = await api.submit()
    async with api.session.get(f"{api.url}/v1/jobs/{job}/logs?follow=1") as answer:
        worker = await hub.worker()
        task = await worker.assigned(job)
        await worker.expect("log_request", task_id=job, attempt=task.attempt)
        await worker.accept(task)
        await bring(machine, task, 0, b"hello")
        await worker.end(task)
        assert await asyncio.wait_for(answer.content.read(), 60) == b"hello"


async def test_a_follower_does_not_miss_an_end_that_comes_while_it_begins(api: Api) -> None:
    """Between its look at the job and its wait for news there must be no moment in which news gets lost."""
    jobs = (await api.post("/v1/jobs", [{"command": ["true"]}] * 300, 201))["ids"]
    follow = [api.call("GET", f"/v1/jobs/{job}/logs?follow=1") for job in jobs]
    calls = [call for pair in zip((api.cancel(job) for job in jobs), follow, strict=True) for call in pair]
    async with asyncio.timeout(60):
        await asyncio.gather(*calls)


# Blobs


def named(data: bytes) -> str:
    return f"/v1/snapshots/{hashlib.sha256(data).hexdigest()}"


async def test_bytes_are_stored_once_under_their_hash(hub: RunningHub) -> None:
    user = await hub.user("ann")
    data = b"some bytes" * 100_000
    assert (await user.call("PUT", named(data), data=data)).status == 201
    assert (await user.call("PUT", named(data), data=data)).status == 200
    answer = await user.call("GET", named(data))
    assert (answer.status, answer.body) == (200, data)
    head = await user.call("HEAD", named(data))
    assert (head.status, head.headers["Content-Length"]) == (200, str(len(data)))


async def test_a_blob_is_read_by_workers_too(hub: RunningHub, machine: Api) -> None:
    data = b"for the worker"
    await hub.api.call("PUT", named(data), data=data)
    assert (await machine.call("GET", named(data))).body == data


async def test_bytes_that_are_not_what_their_name_says_are_422_and_nothing_is_kept(api: Api) -> None:
    (await api.call("PUT", named(b"right"), data=b"wrong")).problem(422)
    (await api.call("GET", named(b"right"))).problem(404)
    assert (await api.call("HEAD", named(b"right"))).status == 404
    assert (await api.call("PUT", named(b"right"), data=b"right")).status == 201


@pytest.mark.parametrize("name", ["short", "Z" * 64, "A" * 64, "..%2f..%2fadmin.token"])
async def test_a_name_that_is_no_hash_is_refused(api: Api, name: str) -> None:
    assert (await api.call("PUT", f"/v1/snapshots/{name}", data=b"x")).status in (404, 422)
    assert (await api.call("GET", f"/v1/snapshots/{name}")).status in (404, 422)


async def test_an_empty_blob_is_a_blob(api: Api) -> None:
    assert (await api.call("PUT", named(b""), data=b"")).status == 201
    assert (await api.call("GET", named(b""))).body == b""


# Results


async def test_the_values_of_an_array_are_fetched_together(api: Api, worker: Worker) -> None:
    job = await api.submit(array=3)
    tasks = await worker.take_all(*(f"{job}.{index}" for index in range(3)))
    large = b"large" * 100_000
    await api.call("PUT", named(large), data=large)
    await worker.end(tasks[0], result=base64.b64encode(b"zero").decode())
    await worker.end(tasks[1], artifact_id=hashlib.sha256(large).hexdigest())
    await worker.end(tasks[2])
    found = await api.post(f"/v1/jobs/{job}/results", {"indices": [0, 1, 2, 7]})
    assert {index: base64.b64decode(value) for index, value in found["results"].items()} == {"0": b"zero", "1": large}
    (await api.call("GET", f"/v1/jobs/{job}.2/result")).problem(404)
    assert (await api.call("GET", f"/v1/jobs/{job}.1/result")).body == large


async def test_no_more_values_are_put_into_one_answer_than_the_hub_can_make_in_a_moment(
    api: Api, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MAX_RESULTS_BYTES", 1000)
    job = await api.submit(array=4)
    tasks = await worker.take_all(*(f"{job}.{index}" for index in range(4)))
    for task, size in zip(tasks, (600, 500, 5000, 400), strict=True):
        data = bytes([size % 251]) * size
        await api.call("PUT", named(data), data=data)
        await worker.end(task, artifact_id=hashlib.sha256(data).hexdigest())
    found = await api.post(f"/v1/jobs/{job}/results", {"indices": [0, 1, 2, 3]})
    assert (list(found["results"]), found["left_out"]) == (["0", "3"], [1, 2])
    again = await api.post(f"/v1/jobs/{job}/results", {"indices": found["left_out"]})
    assert (list(again["results"]), again["left_out"]) == (["1"], [2])
    assert len((await api.call("GET", f"/v1/jobs/{job}.2/result")).body) == 5000


@pytest.mark.parametrize(("body", "status"), [(b"not json", 400), (b"{}", 422), (b'{"indices": ["a"]}', 422)])
async def test_a_bad_wish_for_values_is_refused(api: Api, body: bytes, status: int) -> None:
    job = await api.submit(array=1)
    (await api.call("POST", f"/v1/jobs/{job}/results", data=body)).problem(status)


async def test_a_value_over_64_kib_is_refused_on_the_socket(api: Api, worker: Worker) -> None:
    task = await worker.take(await api.submit())
    value = base64.b64encode(b"x" * 70_000).decode()
    await worker.send("job_result", task_id=task.task_id, attempt=task.attempt, state="succeeded", result=value)
    assert "result" in await worker.expect_error()
    assert await api.state(task.task_id) == "running"
    await worker.end(task)


async def test_an_artifact_that_is_no_blob_is_no_result(api: Api, worker: Worker) -> None:
    task = await worker.take(await api.submit())
    await worker.end(task, artifact_id="somewhere-else")
    (await api.call("GET", f"/v1/jobs/{task.task_id}/result")).problem(404)
