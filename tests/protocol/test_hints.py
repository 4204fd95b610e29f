"""An assignment that is still being written down: whoever asked for hints hears of it, and nobody is promised it."""

import asyncio
import base64
from typing import Any

import pytest
from tests.protocol.api import Api
from tests.protocol.client import Worker
from tests.protocol.hub import RunningHub
from tests.protocol.test_durable_first import Held


async def joined(hub: RunningHub, **protocol: Any) -> Worker:
    worker = hub.stranger()
    await worker.connect()
    await worker.register(protocol=protocol)
    await worker.beat()
    return worker


@pytest.fixture
async def worker(hub: RunningHub) -> Worker:
    return await joined(hub, hints=True, batch=True)


async def test_the_hint_is_of_the_assignment_that_follows(api: Api, worker: Worker) -> None:
    worker.batch = True
    job = await api.submit(command=["true"])
    hint = await worker.expect("job_hint")
    task = await worker.assigned(job)
    assert hint == task.payload
    await worker.accept(task)
    await worker.end(task)
    again = await api.submit(command=["true"], array=2)
    assert [(await worker.assigned()).task_id for _ in range(2)] == [f"{again}.0", f"{again}.1"]  # of several, none


async def test_nothing_but_the_hint_comes_before_it_is_durable(hub: RunningHub, api: Api, worker: Worker) -> None:
    held = Held(hub._hub.loop)
    asked = asyncio.create_task(api.submit(command=["true"]))
    hint = await worker.expect("job_hint")
    # Whatever else had been said by now would come before this answer.
    await worker.send_raw('{"type": "metrics_request"}')
    await worker.expect("metrics_response")
    assert not asked.done()
    held.let_go.set()
    job = await asked
    assert (await worker.assigned(job)).attempt == hint["attempt"]


async def test_nobody_else_is_told(hub: RunningHub, api: Api) -> None:
    worker = await joined(hub)
    await worker.take(await api.submit(command=["true"]))


async def test_of_a_job_with_secrets_there_is_no_hint(api: Api, worker: Worker) -> None:
    assert (await api.call("PUT", "/v1/secrets/key", data=b"canary")).status == 200
    task = await worker.assigned(await api.submit(command=["true"], secrets=["key"]))
    assert base64.b64decode(task.payload["secrets"]["key"]) == b"canary"
