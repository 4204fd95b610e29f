"""The operator tools' socket: lists and shows workers, says what is wrong and stays open."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from tests.protocol.api import Api
from tests.protocol.client import PATIENCE_S, message
from tests.protocol.hub import RunningHub

INFO = {
    *("id", "backend", "gpu_count", "vram_gb", "cpu_count", "status", "active_jobs", "total_slots"),
    "last_heartbeat",
}


class Tool:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def ask_raw(self, frame: str) -> Any:
        await self._socket.send_str(frame)
        return json.loads(await self._socket.receive_str(timeout=PATIENCE_S))

    async def ask(self, kind: str, **payload: Any) -> Any:
        return await self.ask_raw(json.dumps(message(kind, **payload)))

    async def workers(self, **asked: Any) -> list[dict[str, Any]]:
        answer = await self.ask("worker_list_request", **asked)
        assert answer["type"] == "worker_list_response", answer
        found: list[dict[str, Any]] = answer["payload"]["workers"]
        return found


@asynccontextmanager
async def tool(api: Api) -> AsyncIterator[Tool]:
    async with api.session.ws_connect(api.url.replace("http", "ws", 1) + "/v1/ws/cli") as socket:
        yield Tool(socket)


async def test_workers_are_listed_in_the_words_of_the_page(hub: RunningHub, api: Api) -> None:
    await hub.worker("gpu", slots=4, gpu_count=2, vram_gb=48)
    await hub.worker("cpu", slots=2)
    async with tool(api) as asking:
        found = await asking.workers()
        assert [worker["id"] for worker in found] == ["cpu", "gpu"]
        assert all(set(worker) == INFO for worker in found)
        assert found[1] | {"last_heartbeat": ""} == {
            "id": "gpu",
            "backend": "nvidia",
            "gpu_count": 2,
            "vram_gb": 48,
            "cpu_count": 16,
            "status": "ready",
            "active_jobs": 0,
            "total_slots": 4,
            "last_heartbeat": "",
        }
        assert isinstance(found[1]["cpu_count"], int)
        assert found[1]["last_heartbeat"].endswith("Z")


async def test_a_backend_chooses_among_them(hub: RunningHub, api: Api) -> None:
    await hub.worker("gpu", gpu_count=1, vram_gb=24)
    await hub.worker("cpu")
    async with tool(api) as asking:
        assert [worker["id"] for worker in await asking.workers(backend="nvidia")] == ["gpu"]
        assert await asking.workers(backend="metal") == []


async def test_one_worker_is_shown_with_what_it_holds(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker("w")
    task = await worker.take(await api.submit(name="sweep"))
    async with tool(api) as asking:
        answer = await asking.ask("worker_show_request", worker_id="w")
    assert answer["type"] == "worker_show_response"
    assert set(answer["payload"]["worker"]) == INFO
    assert answer["payload"]["worker"]["active_jobs"] == 1
    (held,) = answer["payload"]["jobs"]
    assert held.pop("started_at").endswith("Z")
    assert held == {"task_id": task.task_id, "job_name": "sweep", "status": "running"}


async def test_names_of_other_peoples_jobs_are_not_told(hub: RunningHub) -> None:
    ann, bob = await hub.user("ann"), await hub.user("bob")
    worker = await hub.worker("w")
    await worker.take(await ann.submit(name="secret"))
    for person, told in ((ann, "secret"), (bob, "")):
        async with tool(person) as asking:
            answer = await asking.ask("worker_show_request", worker_id="w")
        assert [held["job_name"] for held in answer["payload"]["jobs"]] == [told]


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (json.dumps(message("worker_show_request", worker_id="nobody")), "there is no worker 'nobody'"),
        (json.dumps(message("worker_show_request")), "worker_show_request: Object missing required field `worker_id`"),
        (json.dumps(message("worker_list_request", backend=3)), "worker_list_request: Expected `str`"),
        (json.dumps(message("heartbeat")), "type: 'heartbeat'"),
        (json.dumps(message("dance")), "type: 'dance'"),
        ("not json", "frame: "),
        ("[]]", "frame: "),
    ],
)
async def test_what_cannot_be_answered_is_said_back_and_the_connection_stays_open(
    hub: RunningHub, api: Api, frame: str, said: str
) -> None:
    async with tool(api) as asking:
        answer = await asking.ask_raw(frame)
        assert answer["type"] == "ack"
        assert said in answer["error"]
        assert await asking.workers() == []


@pytest.mark.parametrize("role", ["viewer", "user", "operator"])
async def test_every_person_may_ask(hub: RunningHub, role: str) -> None:
    async with tool(await hub.user("ann", role)) as asking:
        assert await asking.workers() == []


async def test_a_worker_and_a_stranger_may_not(hub: RunningHub) -> None:
    for token, status in ((hub.join_token, 403), ((await hub.user("", "worker")).token, 403), ("", 401), ("x", 401)):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with tool(hub.caller(token)):
                pass
        assert refused.value.status == status
