"""Services: a port of their own, and how they are, told to the hub."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.worker.conftest import RunningWorker, eventually, running_worker
from tests.worker.scripted_hub import ScriptedHub
from tests.worker.test_main import Programs

from ostler.worker.health import Pulse
from ostler.worker.services import PORTS, free_port

PROGRAM = str(Path(__file__).with_name("web_service.py"))
CHECKS = {"readiness": "/ready", "liveness": "live", "interval_secs": 0.05}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "service"
    path.mkdir()
    return path


@pytest.fixture
async def programs(hub: ScriptedHub, tmp_path: Path) -> AsyncIterator[Programs]:
    found = Programs(hub, tmp_path)
    yield found
    await found.stop()


async def serve(hub: ScriptedHub, folder: Path, attempt: str = "s1", **more: Any) -> None:
    await hub.assign(attempt, "{python}", PROGRAM, str(folder), type="service", **{"health_check": CHECKS, **more})


def healths(hub: ScriptedHub) -> list[tuple[bool, str]]:
    return [(one["healthy"], one.get("message", "")) for kind, one in hub.messages if kind == "service_health"]


async def until_healthy(hub: ScriptedHub) -> dict[str, Any]:
    told = await hub.next("service_health")
    while not told["healthy"]:
        told = await hub.next("service_health")
    return told


async def test_a_service_is_told_its_port_and_is_healthy_once_it_is_ready(
    hub: ScriptedHub, worker: RunningWorker, folder: Path
) -> None:
    (folder / "busy").touch()
    await serve(hub, folder)
    await hub.until(lambda: (False, "readiness /ready answered 503") in healths(hub))
    assert (True, "") not in healths(hub)
    (folder / "busy").unlink()
    assert (await until_healthy(hub))["task_id"] == "job-s1"
    assert worker.agent._port_of("job-s1", "s1") in PORTS
    (folder / "busy").touch()
    assert await hub.next("service_health") == {
        "task_id": "job-s1",
        "healthy": False,
        "message": "readiness /ready answered 503",
        "port": worker.agent._port_of("job-s1", "s1"),
    }


async def test_without_checks_a_port_that_accepts_is_healthy_and_argv_may_name_it(
    hub: ScriptedHub, worker: RunningWorker, folder: Path
) -> None:
    (folder / "deaf").touch()
    command = ["{python}", PROGRAM, str(folder), "--port", "{port}"]
    await hub.assign("s1", *command, type="service")
    port = 0
    await hub.until(lambda: any("connection refused" in message for _, message in healths(hub)))
    port = worker.agent._port_of("job-s1", "s1")
    assert healths(hub) == [(False, f"port {port}: connection refused")]
    (folder / "deaf").unlink()
    await until_healthy(hub)


async def test_only_changes_are_told(hub: ScriptedHub, worker: RunningWorker, folder: Path) -> None:
    await serve(hub, folder)
    await until_healthy(hub)
    count = len(healths(hub))
    seen = 0
    pulse = worker.agent._state.held["s1"].pulse
    take = Pulse.take

    def counted(self: Pulse, not_ready: str, not_alive: str) -> bool:
        nonlocal seen
        seen += 1
        return take(self, not_ready, not_alive)

    Pulse.take = counted  # type: ignore[method-assign]
    try:
        await eventually(lambda: seen >= 5)
    finally:
        Pulse.take = take  # type: ignore[method-assign]
    assert pulse.healthy
    assert len(healths(hub)) == count


async def test_health_is_told_again_after_every_registration(
    hub: ScriptedHub, worker: RunningWorker, folder: Path
) -> None:
    await serve(hub, folder)
    await until_healthy(hub)
    await hub.drop()
    await hub.next("register")
    told = await hub.next("service_health")
    assert (told["task_id"], told["healthy"], told.get("message", "")) == ("job-s1", True, "")
    kinds = [kind for kind, _ in hub.messages]
    assert kinds[-kinds[::-1].index("register") :].count("service_health") == 1


async def test_a_service_that_no_longer_lives_is_stopped_and_failed(
    hub: ScriptedHub, worker: RunningWorker, folder: Path
) -> None:
    await serve(hub, folder)
    await until_healthy(hub)
    (folder / "dead").touch()
    assert (await hub.next("service_health"))["message"] == "liveness /live answered 503"
    result = await hub.next("job_result")
    assert (result["state"], result["error"]) == ("failed", "liveness failed: liveness /live answered 503")


async def test_a_service_may_take_its_time_to_start(hub: ScriptedHub, worker: RunningWorker, folder: Path) -> None:
    (folder / "dead").touch()
    await serve(hub, folder, health_check={"liveness": "/live", "interval_secs": 0.05})
    await hub.until(lambda: (False, "liveness /live answered 503") in healths(hub))
    pulse = worker.agent._state.held["s1"].pulse
    assert pulse.misses == 0
    (folder / "dead").unlink()
    await until_healthy(hub)
    (folder / "dead").touch()
    assert (await hub.next("job_result"))["state"] == "failed"


async def test_no_port_is_given_twice_while_it_is_in_use(hub: ScriptedHub, tmp_path: Path) -> None:
    async with running_worker(hub.url, tmp_path / "w1", service_slots=8) as worker:
        await hub.next("register")
        for n in range(8):
            await hub.assign(f"s{n}", "sleep", "600", type="service")
        for _ in range(8):
            await hub.next("job_accepted")
        ports = [worker.agent._port_of(f"job-s{n}", f"s{n}") for n in range(8)]
        assert len(set(ports)) == 8
        assert worker.agent._port_of("job-s1", "s2") == 0
        await hub.send("job_cancel", task_id="job-s0", attempt="s0", grace_seconds=1)
        await hub.next("job_result")
        assert worker.agent._port_of("job-s0", "s0") == 0


def test_a_port_that_somebody_listens_on_is_not_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr("ostler.worker.services.PORTS", range(port, port + 1))
        with pytest.raises(OSError, match="no port is free"):
            free_port(set())


async def test_a_service_outlives_a_killed_worker_with_its_port_and_is_polled_again(
    hub: ScriptedHub, programs: Programs, folder: Path, tmp_path: Path
) -> None:
    process = await programs.start()
    await hub.next("ready_for_work")
    await serve(hub, folder)
    await until_healthy(hub)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await programs.start()
    assert [task["attempt"] for task in (await hub.next("register")).get("active_tasks", [])] == []
    register = await hub.next("register")
    assert [task["attempt"] for task in register["active_tasks"]] == ["s1"]
    await until_healthy(hub)
    relay = await hub.relay("r1", "job-s1", "s1")
    await relay.send_bytes(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert b"hello" in await everything(relay)
    (folder / "dead").touch()
    assert (await hub.next("job_result"))["error"].startswith("liveness failed")


async def everything(relay: Any) -> bytes:
    return b"".join([frame.data async for frame in relay])


async def test_a_relay_carries_a_conversation_and_ends_with_either_side(
    hub: ScriptedHub, worker: RunningWorker, folder: Path
) -> None:
    await serve(hub, folder)
    await until_healthy(hub)
    relay = await hub.relay("r1", "job-s1", "s1")
    body = os.urandom(3_000_000)
    await relay.send_bytes(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
    received = bytearray()

    async def read() -> None:
        while not received.endswith(body[-64:]):
            received.extend(await asyncio.wait_for(relay.receive_bytes(), 60))

    async def write() -> None:
        for start in range(0, len(body), 100_000):
            await relay.send_bytes(body[start : start + 100_000])

    await asyncio.gather(read(), write())
    assert received.partition(b"\r\n\r\n")[2] == body
    await relay.send_bytes(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert (await everything(relay)).endswith(b"hello")
    assert relay.close_code == 1000
    await eventually(lambda: not worker.agent._relays._open)


async def test_a_caller_that_leaves_ends_the_services_connection(
    hub: ScriptedHub, worker: RunningWorker, folder: Path
) -> None:
    await serve(hub, folder)
    await until_healthy(hub)
    relay = await hub.relay("r1", "job-s1")
    await relay.send_bytes(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await relay.receive_bytes()).startswith(b"HTTP/1.1 200")
    await relay.close()
    await eventually(lambda: not worker.agent._relays._open)


async def test_a_reader_that_does_not_read_holds_the_service_up_and_not_the_worker(
    hub: ScriptedHub, worker: RunningWorker, folder: Path
) -> None:
    await serve(hub, folder)
    await until_healthy(hub)
    relay = await hub.relay("r1", "job-s1", "s1")
    await relay.send_bytes(b"GET /big/200000000 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    before = _rss()
    await hub.assign("a1", "sleep", "1")
    await hub.next("job_result")
    assert _rss() - before < 60_000_000
    size = 0
    async for frame in relay:
        size += len(frame.data)
    assert size > 200_000_000


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("task", "attempt", "reason"),
    [
        ("job-s1", "s1", "the service does not listen on its port"),
        ("job-s1", "other", "this service does not run here"),
        ("nothing", "", "this service does not run here"),
        ("job-b1", "b1", "this service does not run here"),
    ],
)
async def test_a_call_of_nothing_is_refused_with_a_reason(
    hub: ScriptedHub, worker: RunningWorker, task: str, attempt: str, reason: str
) -> None:
    await hub.assign("s1", "sleep", "600", type="service")
    await hub.assign("b1", "sleep", "600")
    await hub.next("job_accepted")
    await hub.next("job_accepted")
    relay = await hub.relay("r1", task, attempt)
    frame = await relay.receive()
    assert (frame.data, frame.extra[: len(reason)]) == (4404, reason)


async def test_there_is_an_end_to_how_many_calls_are_relayed_at_once(
    hub: ScriptedHub, worker: RunningWorker, folder: Path
) -> None:
    worker.agent._relays._at_once = 2
    await serve(hub, folder)
    await until_healthy(hub)
    first = await hub.relay("r1", "job-s1")
    await hub.relay("r2", "job-s1")
    refused = await (await hub.relay("r3", "job-s1")).receive()
    assert (refused.data, refused.extra) == (4429, "this worker relays 2 connections already")
    await first.close()
    await eventually(lambda: len(worker.agent._relays._open) == 1)
    fourth = await hub.relay("r4", "job-s1")
    await fourth.send_bytes(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert b"hello" in await everything(fourth)


async def test_an_id_that_could_lead_elsewhere_opens_nothing(hub: ScriptedHub, worker: RunningWorker) -> None:
    await hub.send("relay_request", relay_id="../../jobs", task_id="t")
    await hub.assign("a1", "true")
    await hub.next("job_result")
    assert not hub.relays


def test_three_misses_in_a_row_are_the_end_and_one_answer_between_them_is_not() -> None:
    pulse = Pulse()
    assert pulse.take("", "")
    assert [pulse.take("", "late"), pulse.take("", "late")] == [True, False]
    assert not pulse.is_dead
    assert pulse.take("", "")
    for _ in range(3):
        pulse.take("", "late")
    assert pulse.is_dead
    assert (pulse.healthy, pulse.message) == (False, "late")


async def test_a_service_may_want_a_port_and_is_handed_back_where_it_is_taken(
    hub: ScriptedHub, worker: RunningWorker, folder: Path
) -> None:
    wanted = free_port(())
    command = ["{python}", PROGRAM, str(folder), "--port", "{port}"]
    await hub.assign("s1", *command, type="service", metadata={"ostler.port": wanted})
    assert (await until_healthy(hub))["port"] == wanted
    await hub.assign("s2", *command, type="service", metadata={"ostler.port": wanted})
    result = await hub.next("job_result")
    assert (result["state"], result["error"]) == ("returned", f"port {wanted} is taken on this machine")
