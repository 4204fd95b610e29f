"""A command beside a task, seen from the hub: which workers are asked for one, and what a caller must say first."""

import asyncio

import aiohttp
import pytest
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub

from ostler.client.beside import Beside
from ostler.client.http import Hub
from ostler.domain.errors import NotRunning


async def test_a_worker_older_than_its_hub_is_not_asked_and_that_is_said(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker("old")
    job = await api.submit(command=["sleep", "9"])
    await worker.take(job)
    with Hub(api.url, api.token) as client, pytest.raises(NotRunning) as caught:
        await asyncio.to_thread(Beside, client, job, ["true"])
    told = "old, where it runs, is older than the hub and runs nothing beside its tasks; update Ostler there"
    assert str(caught.value) == told


@pytest.mark.parametrize("said", ["no json", "{}{}", '{"argv": "ls"}', '{"argv": [], "term": "../x"}', '{"more": 1}'])
async def test_whoever_says_nonsense_first_is_told_and_no_worker_hears_of_it(
    hub: RunningHub, api: Api, said: str
) -> None:
    worker = hub.stranger("new")
    await worker.connect()
    await worker.register(protocol={"batch": True, "beside": True})
    await worker.beat()
    job = await api.submit(command=["sleep", "9"])
    await worker.take(job)
    async with api.session.ws_connect(f"{api.url}/v1/jobs/{job}/exec") as socket:
        await socket.send_str(said)
        answer = await socket.receive()
        assert answer.type is aiohttp.WSMsgType.CLOSE
        assert answer.data == 4422
    await worker.quiet()
