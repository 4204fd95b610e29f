"""Calls of services through the hub: HTTP and WebSocket, both ways, wherever the service runs."""

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.protocol.api import Api
from tests.protocol.client import PATIENCE_S, Worker
from tests.protocol.hub import RunningHub
from tests.protocol.web import Relaying, Service, relaying, run_service, service_worker


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    running = Service()
    yield running
    await running.stop()


@pytest.fixture
async def worker(hub: RunningHub) -> Worker:
    return await service_worker(hub)


@pytest.fixture
async def web(hub: RunningHub, worker: Worker, service: Service) -> AsyncIterator[Relaying]:
    """A service called web that runs."""
    port = await service.start()
    await run_service(hub, worker)
    async with relaying(worker, port) as relays:
        yield relays


def told(answer: Any) -> tuple[dict[str, Any], dict[str, str]]:
    assert answer.status == 200, answer
    document = answer.json()
    return document, {name.lower(): value for name, value in document["headers"]}


# What arrives, and what comes back


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"])
async def test_every_method_arrives_with_its_path_and_query_as_they_were_written(
    api: Api, web: Relaying, method: str
) -> None:
    from yarl import URL

    url = URL(api.url + "/services/web/a%2Fb/../c%20d?q=%26x&q=2", encoded=True)
    async with api.session.request(method, url, data=b"hello" if method == "POST" else None) as answer:
        found = json.loads(await answer.read())
        assert answer.headers["X-Of-Service"] == "yes"
    assert (found["method"], found["path"]) == (method, "/a%2Fb/../c%20d?q=%26x&q=2")
    assert found["body"] == ("hello" if method == "POST" else "")


async def test_a_head_request_is_answered_with_the_length_and_without_a_body(api: Api, web: Relaying) -> None:
    answer = await api.call("HEAD", "/services/web/")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["Content-Length"]) > 0


async def test_an_answer_without_a_body_passes(api: Api, web: Relaying) -> None:
    answer = await api.call("GET", "/services/web/unchanged")
    assert (answer.status, answer.headers["ETag"]) == (304, '"x"')


async def test_neither_the_hubs_token_nor_its_cookies_reach_the_service(api: Api, web: Relaying) -> None:
    headers = {
        "Cookie": "mine=1; ostler_session=secret; other=2",
        "X-Operator-Token": "also-secret",
        "X-Forwarded-Prefix": "/forged",
        "Connection": "keep-alive, X-Private",
        "X-Private": "of this connection",
        "X-Own": "kept",
        "Host": "localhost:7600",
    }
    _, found = told(await api.call("GET", "/services/web/x", headers=headers))
    assert not {"authorization", "x-operator-token", "x-private"} & found.keys()
    assert found["cookie"] == "mine=1; other=2"
    assert found["x-forwarded-prefix"] == "/services/web"
    assert (found["x-forwarded-proto"], found["x-forwarded-for"]) == ("http", "127.0.0.1")
    assert (found["x-own"], found["host"]) == ("kept", "localhost:7600")
    assert api.token not in json.dumps(found)


async def test_links_and_cookies_of_the_service_stay_within_its_part_of_the_hub(api: Api, web: Relaying) -> None:
    answer = await api.call("GET", "/services/web/cookies", allow_redirects=False)
    assert answer.status == 302
    assert answer.headers["Location"] == "/services/web/login"
    assert answer.headers.getall("Set-Cookie") == ["a=1; HttpOnly; Path=/services/web/", "b=2; Path=/services/web/"]


async def test_large_bodies_pass_both_ways(api: Api, web: Relaying) -> None:
    body = b"0123456789" * 300_000
    found, headers = told(await api.call("POST", "/services/web/up", data=body))
    assert found["body"].encode() == body
    assert headers["content-length"] == str(len(body))
    assert len((await api.call("GET", "/services/web/big")).body) == 8_000_000


async def test_an_answer_is_passed_on_while_it_is_still_being_written(
    api: Api, web: Relaying, service: Service
) -> None:
    async with asyncio.timeout(PATIENCE_S), api.session.get(api.url + "/services/web/slowly") as answer:
        assert await answer.content.readuntil(b"\n\n") == b"data: 1\n\n"
        service.gate.set()
        assert await answer.content.readuntil(b"\n\n") == b"data: 2\n\n"
        assert await answer.read() == b""


async def test_both_sides_may_speak_at_the_same_time(api: Api, web: Relaying) -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def words() -> AsyncIterator[bytes]:
        yield b"one"
        assert await heard.get() == b"ONE"
        yield b"two"

    async with asyncio.timeout(PATIENCE_S), api.session.post(api.url + "/services/web/both", data=words()) as answer:
        heard.put_nowait(await answer.content.readexactly(3))
        assert await answer.read() == b"TWO"


async def test_an_answer_that_breaks_off_is_seen_to_break_off(api: Api, web: Relaying) -> None:
    with pytest.raises(aiohttp.ClientPayloadError):
        await api.call("GET", "/services/web/cut")


async def test_the_service_notices_that_its_caller_has_gone(api: Api, web: Relaying, service: Service) -> None:
    for path in ("slowly", "never"):
        calling = asyncio.create_task(api.call("GET", f"/services/web/{path}"))
        async with asyncio.timeout(PATIENCE_S):
            assert await service.met.get() == f"{path} begins"
            calling.cancel()
            assert await service.met.get() == f"{path} is cancelled"


async def test_calls_one_after_the_other_share_a_connection(api: Api, web: Relaying) -> None:
    for _ in range(5):
        told(await api.call("GET", "/services/web/x"))
    assert len(web.asked) == 1


async def test_many_calls_at_once_are_answered(api: Api, web: Relaying) -> None:
    answers = await asyncio.gather(*(api.call("GET", f"/services/web/{n}") for n in range(50)))
    assert [told(answer)[0]["path"] for answer in answers] == [f"/{n}" for n in range(50)]


# WebSockets


async def test_a_websocket_passes_with_its_protocol_its_kinds_of_frames_and_its_close_code(
    api: Api, web: Relaying
) -> None:
    url = api.url + "/services/web/chat?room=1"
    async with asyncio.timeout(PATIENCE_S), api.session.ws_connect(url, protocols=("chat.v1", "chat.v2")) as socket:
        assert socket.protocol == "chat.v2"
        await socket.send_str("hello")
        assert (await socket.receive()).data == "HELLO"
        await socket.send_bytes(b"\x00\xff" * 100_000)
        assert (await socket.receive()).data == b"\x00\xff" * 100_000
        await socket.send_str("leave")
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
        assert socket.close_code == 4321


async def test_a_websocket_that_the_service_refuses_is_refused(api: Api, web: Relaying) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await api.session.ws_connect(api.url + "/services/web/nothing-of-the-kind")
    assert refused.value.status == 502


# Who may, and which one


async def test_a_service_is_its_owners_and_the_operators(hub: RunningHub, worker: Worker, service: Service) -> None:
    port = await service.start()
    ann, bob, viewer = await hub.user("ann"), await hub.user("bob"), await hub.user("eve", "viewer")
    job_id = await ann.submit(name="hers", type="service")
    await worker.take(job_id)
    async with relaying(worker, port):
        for caller in (ann, hub.api):
            told(await caller.call("GET", "/services/hers/"))
            told(await caller.call("GET", f"/services/{job_id}/"))
        (await bob.call("GET", "/services/hers/")).problem(404)
        (await bob.call("GET", f"/services/{job_id}/")).problem(404)
        (await viewer.call("GET", "/services/hers/")).problem(403)
        (await hub.caller("").call("GET", "/services/hers/")).problem(401)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await bob.session.ws_connect(bob.url + "/services/hers/chat")
        assert refused.value.status == 404


async def test_of_several_services_of_one_name_the_newest_that_runs_is_called(
    hub: RunningHub, api: Api, worker: Worker, service: Service
) -> None:
    port = await service.start()
    old = await run_service(hub, worker)
    new = await run_service(hub, worker)
    await api.submit(name="web", type="service", gpu_count=8)
    async with relaying(worker, port) as relays:
        told(await api.call("GET", "/services/web/"))
        assert (relays.asked[0]["task_id"], relays.asked[0]["attempt"]) == (new.task_id, new.attempt)
        told(await api.call("GET", f"/services/{old.task_id}/"))
        assert relays.asked[1]["task_id"] == old.task_id


async def test_what_is_no_service_cannot_be_called(api: Api, worker: Worker) -> None:
    await worker.take(await api.submit(name="batch"))
    for name in ("batch", "nobody"):
        assert name in (await api.call("GET", f"/services/{name}/")).problem(404)["detail"]


async def test_a_relay_that_nobody_asked_for_is_404_and_people_may_open_none(hub: RunningHub, api: Api) -> None:
    for token, status in ((hub.join_token, 404), (hub.admin_token, 403), ("", 401)):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await hub.caller(token).session.ws_connect(api.url + "/v1/ws/relay/made-up")
        assert refused.value.status == status


# When it does not run


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostler.hub.services.MOVES_S", 0.3)
    monkeypatch.setattr("ostler.hub.relays.OPENS_S", 0.3)


@pytest.mark.usefixtures("impatient")
async def test_a_service_that_waits_is_503_with_the_reason(api: Api, worker: Worker) -> None:
    await api.submit(name="web", type="service", gpu_count=8)
    answer = await api.call("GET", "/services/web/")
    detail = answer.problem(503)["detail"]
    assert "service web is pending: " in detail
    assert "8 GPUs" in detail
    assert int(answer.headers["Retry-After"]) > 0


async def test_a_service_that_has_ended_is_503_at_once_with_its_end(hub: RunningHub, api: Api, worker: Worker) -> None:
    task = await run_service(hub, worker)
    await api.cancel(task.task_id)
    await worker.expect("job_cancel")
    await worker.end(task, "cancelled")
    assert "has ended: cancelled" in (await api.call("GET", "/services/web/")).problem(503)["detail"]


@pytest.mark.usefixtures("impatient")
async def test_a_worker_that_opens_no_relay_is_504(hub: RunningHub, api: Api, worker: Worker) -> None:
    task = await run_service(hub, worker)
    answer = await api.call("GET", "/services/web/")
    assert "w did not open a connection" in answer.problem(504)["detail"]
    await worker.expect("relay_request", task_id=task.task_id, attempt=task.attempt)


@pytest.mark.usefixtures("impatient")
async def test_a_service_that_does_not_listen_is_503_with_the_workers_words(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    await run_service(hub, worker)
    async with relaying(worker, 1):
        for method in ("GET", "POST"):
            answer = await api.call(method, "/services/web/", data=b"x" if method == "POST" else None)
            assert "does not listen" in answer.problem(503)["detail"]


@pytest.mark.usefixtures("impatient")
async def test_a_service_that_is_not_healthy_is_not_called(hub: RunningHub, api: Api, worker: Worker) -> None:
    task = await run_service(hub, worker)
    await worker.send("service_health", task_id=task.task_id, healthy=False, message="/ready answered 500")
    await worker.quiet()
    assert "/ready answered 500" in (await api.call("GET", "/services/web/")).problem(503)["detail"]


async def test_a_services_health_is_part_of_its_job(hub: RunningHub, api: Api, worker: Worker) -> None:
    task = await run_service(hub, worker)
    assert (await api.job(task.task_id))["health"] is None
    await worker.send("service_health", task_id=task.task_id, healthy=True)
    await worker.quiet()
    assert (await api.job(task.task_id))["health"] == "healthy"
    assert "health" not in await api.job(await api.submit(gpu_count=8))


async def test_a_call_waits_for_a_service_that_begins_to_listen(
    hub: RunningHub, api: Api, worker: Worker, service: Service
) -> None:
    await run_service(hub, worker)
    async with relaying(worker, 1) as relays:
        calling = asyncio.create_task(api.call("GET", "/services/web/x"))
        await relays.was_asked.wait()
        relays.port = await service.start()
        told(await asyncio.wait_for(calling, PATIENCE_S))


async def test_a_call_waits_while_the_service_moves_to_another_worker(
    hub: RunningHub, api: Api, worker: Worker, service: Service
) -> None:
    port = await service.start()
    task = await run_service(hub, worker)
    await worker.beat(draining=True)
    await worker.end(task, "returned", None, fault="drain", error="draining")
    await worker.drop()
    await api.until_status("w", "offline")
    calling = asyncio.create_task(api.call("POST", "/services/web/x", data=b"hello"))
    other = await service_worker(hub, "other")
    await other.take(task.task_id)
    async with relaying(other, port):
        assert told(await asyncio.wait_for(calling, PATIENCE_S))[0]["body"] == "hello"


async def test_a_service_is_called_across_a_restart_of_the_hub(
    hub: RunningHub, worker: Worker, service: Service
) -> None:
    port = await service.start()
    task = await run_service(hub, worker)
    async with relaying(worker, port):
        told(await hub.api.call("GET", "/services/web/"))
    await worker.drop()
    await hub.restart()
    await hub.join(worker, [task])
    async with relaying(worker, port):
        told(await hub.api.call("GET", "/services/web/"))


async def test_a_hub_that_stops_ends_what_would_go_on_for_ever(hub: RunningHub, api: Api, web: Relaying) -> None:
    async with api.session.get(api.url + "/services/web/slowly") as answer:
        await answer.content.readuntil(b"\n\n")
        hub._hub._let_go(hub._server)
        with pytest.raises(aiohttp.ClientError):
            async with asyncio.timeout(PATIENCE_S):
                await answer.read()


async def test_a_service_is_reached_where_the_temporary_folder_has_a_long_name(
    hub: RunningHub, api: Api, web: Relaying, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    told(await api.call("GET", "/services/web/"))


async def test_sockets_of_the_hub_itself_lie_in_a_folder_that_goes_with_it(
    hub: RunningHub, api: Api, web: Relaying
) -> None:
    told(await api.call("GET", "/services/web/"))
    folder = str(hub._hub.services._lines._folder)
    assert os.stat(folder).st_mode & 0o777 == 0o700
    await hub.restart()
    with pytest.raises(FileNotFoundError):
        os.stat(folder)
