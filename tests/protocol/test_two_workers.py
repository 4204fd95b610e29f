"""Two machines on one hub, each with a token of its own: neither touches what the other one holds."""

import hashlib
import json

import aiohttp
import pytest
from tests.protocol.api import Api
from tests.protocol.client import Assignment, Worker
from tests.protocol.hub import RunningHub
from tests.protocol.puller import Puller

from ostler.core.check import check
from ostler.domain.job import CALL


async def enrolled(hub: RunningHub, name: str, **capabilities: object) -> Worker:
    """A worker that came in with the token that it got for itself."""
    worker = hub.stranger(name, **capabilities)
    joining = hub.caller(hub.join_token)
    worker.token = str((await joining.post("/v1/enrol", {"name": name}, 201))["token"])
    await hub.join(worker)
    return worker


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class TwoWorkers:
    """Worker a has nothing; worker b runs a job with a snapshot and a checkpoint."""

    def __init__(self, hub: RunningHub, a: Worker, b: Worker, task: Assignment) -> None:
        self.hub, self.a, self.b, self.task = hub, a, b, task
        self.as_a, self.as_b = hub.caller(a.token), hub.caller(b.token)


SNAPSHOT, CHECKPOINT, PAYLOAD = b"her code", b"her weights", b"her function"


@pytest.fixture
async def two(hub: RunningHub) -> TwoWorkers:
    a, b = await enrolled(hub, "a"), await enrolled(hub, "b")
    for data in (SNAPSHOT, PAYLOAD):
        assert (await hub.api.call("PUT", f"/v1/snapshots/{digest(data)}", data=data)).status == 201
    metadata = {CALL: {"blob": digest(PAYLOAD)}}
    job = await hub.api.submit(snapshot_id=digest(SNAPSHOT), metadata=metadata, allowed_hosts=["b"])
    two = TwoWorkers(hub, a, b, await b.take(job))
    assert (await two.as_b.call("PUT", f"/v1/checkpoints/{digest(CHECKPOINT)}", data=CHECKPOINT)).status == 201
    await b.beat(active=[{**two.task.line(), "checkpoint": digest(CHECKPOINT)}])
    return two


async def test_a_worker_fetches_what_belongs_to_its_own_tasks_and_nothing_else(two: TwoWorkers) -> None:
    for path in (
        f"/v1/snapshots/{digest(SNAPSHOT)}",
        f"/v1/snapshots/{digest(PAYLOAD)}",
        f"/v1/checkpoints/{digest(CHECKPOINT)}",
    ):
        assert (await two.as_b.call("GET", path)).status == 200, path
        hidden = await two.as_a.call("GET", path)
        absent = await two.as_a.call("GET", path[:-1] + ("0" if path[-1] != "0" else "1"))
        assert (hidden.status, absent.status) == (404, 404), path
        assert (await two.as_a.call("HEAD", path)).status == 404
    await two.b.end(two.task)
    assert (await two.as_b.call("GET", f"/v1/snapshots/{digest(SNAPSHOT)}")).status == 404


async def test_a_worker_writes_no_log_of_anothers_task(two: TwoWorkers) -> None:
    path = f"/v1/tasks/{two.task.task_id}/logs?attempt={two.task.attempt}&offset=0"
    (await two.as_a.call("POST", path, data=b"forged")).problem(403)
    assert (await two.as_b.call("POST", path, data=b"true")).status == 200
    await two.b.end(two.task)
    (await two.as_a.call("POST", path.replace("offset=0", "offset=4"), data=b"forged")).problem(403)
    answer = await two.hub.api.call("GET", f"/v1/jobs/{two.task.task_id}/logs")
    assert answer.body == b"true"


async def test_what_a_worker_says_about_anothers_task_changes_nothing(two: TwoWorkers, api: Api) -> None:
    task, a, b = two.task, two.a, two.b
    before = await api.job(task.task_id)
    for state in ("succeeded", "failed", "cancelled", "returned"):
        await a.send("job_result", task_id=task.task_id, attempt=task.attempt, state=state, result="eA==")
        await a.expect("ack", of="job_result", task_id=task.task_id)
    await a.send("job_accepted", task_id=task.task_id, attempt=task.attempt)
    await a.expect("job_cancel", task_id=task.task_id, attempt=task.attempt)
    await a.send("service_health", task_id=task.task_id, healthy=False, message="forged", port=1)
    await a.quiet()
    for state in ("running", "waiting", "succeeded"):
        await a.send_beat(active=[{**task.line(state), "checkpoint": "0" * 64}])
        await said_no_more_than(a, "ack", "job_cancel")
    await two.hub._hub.loop.look(check)
    assert await api.job(task.task_id) == before
    assert [one["attempt"] for one in (await api.worker("b"))["tasks"]] == [task.attempt]
    assert (await api.worker("a"))["tasks"] == []
    await b.beat()
    await b.end(task)
    assert await api.state(task.task_id) == "succeeded"


async def said_no_more_than(worker: Worker, *kinds: str) -> None:
    assert {found["type"] for found in await worker.heard()} <= set(kinds)


async def test_a_worker_that_comes_back_with_anothers_task_takes_nothing_from_it(two: TwoWorkers, api: Api) -> None:
    task, a = two.task, two.a
    await two.hub.lose(a)
    await a.connect()
    await a.send("register", id="a", capabilities=a.capabilities, active_tasks=[task.line()])
    await said_no_more_than(a, "ack", "job_cancel")
    await two.hub._hub.loop.look(check)
    assert (await api.job(task.task_id))["worker"] == "b"
    (await two.as_a.call("POST", f"/v1/tasks/{task.task_id}/logs?attempt={task.attempt}", data=b"x")).problem(403)
    await two.b.beat()
    await two.b.end(task)


async def test_a_workers_token_speaks_for_no_other_worker(two: TwoWorkers) -> None:
    stranger = two.hub.stranger("b")
    stranger.token = two.a.token
    await stranger.connect()
    await stranger.send("register", id="b", capabilities=stranger.capabilities, active_tasks=[])
    assert "token" in await stranger.expect_error()
    assert await stranger.closed() == 1008
    for word in ("heartbeat", "complete", "fail"):
        body = {"hostname": "b", "attempt": two.task.attempt}
        (await two.as_a.call("POST", f"/v1/job/{two.task.task_id}/{word}", json=body)).problem(403)
        (await two.as_a.call("POST", f"/v1/job/{two.task.task_id}/{word}", json={**body, "hostname": "a"})).problem(409)
    assert (await Puller(two.hub, "b", two.a.token).ask()).status == 403


async def test_a_worker_opens_no_relay_that_another_was_asked_for(hub: RunningHub) -> None:
    a, b = await enrolled(hub, "a"), await enrolled(hub, "b")
    b.slots |= {"service_total": 1}
    await b.beat()
    job = await hub.api.submit(type="service", name="web", allowed_hosts=["b"])
    task = await b.take(job)
    await b.send("service_health", task_id=task.task_id, healthy=True, port=1)
    await b.quiet()
    import asyncio

    calling = asyncio.create_task(hub.api.call("GET", "/services/web/x"))
    asked = await b.expect("relay_request", task_id=task.task_id)
    url = hub.url.replace("http", "ws", 1) + f"/v1/ws/relay/{asked['relay_id']}"
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await hub.caller(a.token).session.ws_connect(url)
    assert refused.value.status == 404
    async with hub.caller(b.token).session.ws_connect(url) as relay:
        assert b"/x" in (await relay.receive_bytes(timeout=60))
        await relay.send_bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        assert (await calling).body == b"ok"
    await b.end(task)


async def test_a_refusal_of_a_worker_is_in_the_audit(two: TwoWorkers) -> None:
    path = f"/v1/tasks/{two.task.task_id}/logs?attempt={two.task.attempt}"
    (await two.as_a.call("POST", path, data=b"x")).problem(403)
    rows = (await two.hub.api.get("/v1/audit"))["rows"]
    [row] = [row for row in rows if row["action"] == "refused"]
    assert row["user"] == "a" and two.task.task_id in json.dumps(row)
