"""A service that moves from one worker to another while it is being called: nobody who calls it sees more than a wait."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest
from tests.process_fleet import ProcessFleet, process_fleet, until

CALLERS = 3
SERVER = """
import os, sys
import aiohttp
from aiohttp import web

async def ready(request):
    return web.Response(text="ready")

async def who(request):
    body = await request.text()
    return web.Response(text=f"{os.environ['OSTLER_ATTEMPT']} {body}")

async def echo(request):
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    await socket.send_str(os.environ["OSTLER_ATTEMPT"])
    async for said in socket:
        if said.type is aiohttp.WSMsgType.TEXT:
            await socket.send_str(said.data)
        else:
            await socket.send_bytes(said.data)
    return socket

app = web.Application()
app.add_routes([web.get("/ready", ready), web.get("/who", who), web.post("/who", who), web.get("/echo", echo)])
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None, shutdown_timeout=0.5, handler_cancellation=True)
"""
SPEC = {
    "name": "echo",
    "type": "service",
    "command": [sys.executable, "-c", SERVER, "{port}"],
    "health_check": {"readiness": "/ready", "interval_secs": 0.1},
    "min_cpu_cores": 1,
}


class Stream:
    """Callers that call the service without a pause, each over its own connection; and what they saw."""

    def __init__(self, fleet: ProcessFleet, method: str) -> None:
        self._url = f"{fleet.url}/services/echo/who"
        self._headers = {"Authorization": f"Bearer {fleet.token}"}
        self._method = method
        self.seen: list[tuple[int, str]] = []
        """Status and body, in the order of the answers."""
        self._more = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Stream"]:
        callers = [asyncio.create_task(self._call(number)) for number in range(CALLERS)]
        try:
            yield self
        finally:
            for caller in callers:
                caller.cancel()
            ends = await asyncio.gather(*callers, return_exceptions=True)
        assert [end for end in ends if not isinstance(end, asyncio.CancelledError)] == []

    async def _call(self, number: int) -> None:
        async with aiohttp.ClientSession(headers=self._headers) as session:
            count = 0
            while True:
                count += 1
                body = f"{number}-{count}" if self._method == "POST" else None
                async with session.request(self._method, self._url, data=body) as answer:
                    text = await answer.text()
                    self.seen.append((answer.status, text))
                    assert body is None or answer.status != 200 or text.endswith(f" {body}")
                    self._more.set()

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Looked at again after every answer."""
        try:
            async with asyncio.timeout(60):
                while not holds():
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            raise AssertionError(f"20 s are over before {what}; the last answers: {self.seen[-3:]}") from None

    async def until_more(self, count: int) -> None:
        wanted = len(self.seen) + count
        await self.until(lambda: len(self.seen) >= wanted, f"{count} more answers")

    def bad(self) -> list[tuple[int, str]]:
        return [one for one in self.seen if one[0] != 200]

    def attempts(self) -> list[str]:
        """Who answered, each named once, in the order of the first answers."""
        return list(dict.fromkeys(text.partition(" ")[0] for status, text in self.seen if status == 200))


async def leave_by_signal(fleet: ProcessFleet, worker: str, job_id: str) -> None:
    """SIGTERM to the worker's process; it has exited when this returns."""
    assert await asyncio.to_thread(fleet.terminate, worker) == 0


async def leave_by_operator(fleet: ProcessFleet, worker: str, job_id: str) -> None:
    """The worker takes nothing new, and the service is sent elsewhere."""
    await asyncio.to_thread(fleet.hub.drain, worker)
    await asyncio.to_thread(fleet.hub.requeue, job_id)


async def begin(fleet: ProcessFleet) -> tuple[str, str]:
    """The service's job and the worker that it runs on."""
    job_id = (await asyncio.to_thread(fleet.hub.submit, SPEC))["id"]

    def healthy() -> str | None:
        job = fleet.hub.job(job_id)
        return job["worker"] if job["health"] == "healthy" else None

    return job_id, await asyncio.to_thread(until, healthy, "the service is healthy")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[ProcessFleet]:
    with process_fleet(tmp_path, "one", "other", drain_s=5) as made:
        yield made


Leave = Callable[[ProcessFleet, str, str], Awaitable[None]]
each_way = pytest.mark.parametrize(
    "leave", [leave_by_signal, leave_by_operator], ids=["its worker leaves", "an operator moves it"]
)


async def call_through_a_move(fleet: ProcessFleet, leave: Leave, method: str) -> Stream:
    """What callers see from before the move until after it; at the end they are answered from the other worker."""
    job_id, worker = await begin(fleet)
    other = {"one": "other", "other": "one"}[worker]
    first = fleet.hub.job(job_id)["attempt"]
    async with Stream(fleet, method).running() as stream:
        await stream.until_more(20)
        assert stream.attempts() == [first]
        await leave(fleet, worker, job_id)
        await stream.until(lambda: len(stream.attempts()) > 1, "the service answers again")
        await stream.until_more(20)
    job = fleet.hub.job(job_id)
    assert (job["worker"], job["state"], job["health"]) == (other, "running", "healthy")
    assert stream.attempts() == [first, job["attempt"]]
    assert stream.seen[-1][1].startswith(job["attempt"])
    return stream


@each_way
async def test_callers_of_a_service_see_only_answers_while_it_moves_to_another_worker(
    fleet: ProcessFleet, leave: Leave
) -> None:
    assert (await call_through_a_move(fleet, leave, "GET")).bad() == []


@each_way
async def test_a_call_with_a_body_waits_for_a_moving_service_unless_the_service_had_taken_it(
    fleet: ProcessFleet, leave: Leave
) -> None:
    """A POST whose connection the service closes may have been carried out, and is not made again: each caller has one
    such call at most. All others reached nobody, and are kept until somebody is there."""
    stream = await call_through_a_move(fleet, leave, "POST")
    broke_off = [one for one in stream.bad() if one[0] == 502]
    assert [one for one in stream.bad() if one not in broke_off] == []
    assert len(broke_off) <= CALLERS, broke_off


async def test_a_websocket_to_a_service_echoes_and_is_found_again_after_the_service_has_moved(
    fleet: ProcessFleet,
) -> None:
    job_id, worker = await begin(fleet)
    attempts = []
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {fleet.token}"}) as session:
        for leaves in (True, False):
            async with session.ws_connect(f"{fleet.url}/services/echo/echo") as socket:
                attempts.append(await socket.receive_str(timeout=60))
                await socket.send_str("a word")
                assert await socket.receive_str(timeout=60) == "a word"
                await socket.send_bytes(bytes(range(256)) * 1024)
                assert await socket.receive_bytes(timeout=60) == bytes(range(256)) * 1024
                if leaves:
                    await leave_by_operator(fleet, worker, job_id)
                    ended = await socket.receive(timeout=60)
                    assert ended.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED), ended
    job = fleet.hub.job(job_id)
    assert attempts[0] != attempts[1] == job["attempt"]
    assert job["worker"] != worker
