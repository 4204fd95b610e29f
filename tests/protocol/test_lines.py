"""Several in one message: the assignments of a line, and acknowledgements, for workers that take them so."""

from typing import Any

import pytest
from tests.protocol.api import Api
from tests.protocol.client import Worker, message
from tests.protocol.hub import RunningHub
from tests.protocol.test_ahead import short_ones

AHEAD = 5


async def joined(hub: RunningHub, api: Api, slots: int = 1, **protocol: Any) -> Worker:
    worker = hub.stranger("eager", slots=slots)
    worker.batch = True
    await worker.connect()
    await worker.register(protocol={"ahead": AHEAD, "batch": True, **protocol})
    await worker.beat()
    await short_ones(api, worker)
    return worker


@pytest.fixture
async def worker(hub: RunningHub, api: Api) -> Worker:
    return await joined(hub, api, lines=True)


def line_of(assigned: dict[str, Any]) -> list[tuple[str, int | None]]:
    """Its first, and those that come after it: their tasks, and which of an array they are."""
    followers = [(task_id, index) for task_id, _, index in assigned.get("line", ())]
    return [(assigned["spec"]["id"], assigned.get("index")), *followers]


async def test_those_sent_ahead_are_one_message_with_their_spec_said_once(api: Api, worker: Worker) -> None:
    job = await api.submit(array=10)
    assigned = await worker.expect("job_assign")
    assert line_of(assigned) == [(f"{job}.{n}", n) for n in range(1 + AHEAD)]
    attempts = [assigned["attempt"], *(attempt for _, attempt, _ in assigned["line"])]
    assert len(set(attempts)) == 1 + AHEAD
    assert [(await api.job(f"{job}.{n}"))["attempts"][0]["attempt"] for n in range(1 + AHEAD)] == attempts


async def test_each_of_two_places_has_a_line_of_its_own(hub: RunningHub, api: Api) -> None:
    worker = await joined(hub, api, slots=2, lines=True)
    job = await api.submit(array=10)
    first, second = [line_of(await worker.expect("job_assign")) for _ in range(2)]
    assert [name for name, _ in first] == [f"{job}.{n}" for n in (0, 2, 4, 6)]
    assert [name for name, _ in second] == [f"{job}.{n}" for n in (1, 3, 5)]


async def test_jobs_are_of_one_line_where_they_differ_in_nothing_but_their_names(api: Api, worker: Worker) -> None:
    specs = [{"command": ["true"]} for _ in range(3)]
    alike = (await api.post("/v1/jobs", [*specs, {"command": ["true"], "env": {"A": "b"}}], 201))["ids"]
    assigned = await worker.expect("job_assign")
    assert line_of(assigned) == [(name, None) for name in alike[:3]]
    other = await worker.assigned(alike[3])
    assert (other.payload["spec"]["env"], other.payload["after"]) == ({"A": "b"}, [assigned["line"][-1][1]])


async def test_what_names_secrets_is_told_by_itself(api: Api, worker: Worker) -> None:
    assert (await api.call("PUT", "/v1/secrets/key", data=b"canary")).status == 200
    job = await api.submit(array=3, secrets=["key"])
    tasks = [await worker.assigned(f"{job}.{n}") for n in range(3)]
    assert all("secrets" in task.payload and "line" not in task.payload for task in tasks)


async def test_ends_that_come_together_are_acknowledged_together(api: Api, worker: Worker) -> None:
    await api.submit(array=3)
    assigned = await worker.expect("job_assign")
    names = [(assigned["spec"]["id"], assigned["attempt"]), *(one[:2] for one in assigned["line"])]
    ends = [
        message("job_result", task_id=task, attempt=attempt, state="succeeded", exit_code=0, run_s=0.004)
        for task, attempt in names
    ]
    await worker.send_together(*ends)
    acknowledged = await worker.expect("ack", of="job_result")
    assert acknowledged["attempts"] == [attempt for _, attempt in names]
    await worker.send_together(ends[0])
    await worker.expect("ack", of="job_result", task_id=names[0][0], attempt=names[0][1])


async def test_a_worker_that_did_not_ask_for_it_is_told_each_by_itself(hub: RunningHub, api: Api) -> None:
    worker = await joined(hub, api)
    job = await api.submit(array=3)
    tasks = [await worker.assigned(f"{job}.{n}") for n in range(3)]
    assert all("line" not in task.payload for task in tasks)
    ends = [message("job_result", task_id=one.task_id, attempt=one.attempt, state="succeeded") for one in tasks]
    await worker.send_together(*ends)
    for task in tasks:
        await worker.expect("ack", of="job_result", task_id=task.task_id, attempt=task.attempt)
