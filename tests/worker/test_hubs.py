"""A worker that knows several hubs goes to the one that leads, by itself."""

import asyncio
from pathlib import Path

import pytest
from tests.worker.conftest import eventually, running_worker
from tests.worker.scripted_hub import ScriptedHub

from ostler.domain.hubs import Addresses
from ostler.worker.connection import TIMES_SENT_AWAY, Pauses
from ostler.worker.credentials import remember, told_of


async def other_hub() -> ScriptedHub:
    made = ScriptedHub()
    await made.start()
    return made


async def test_a_worker_passes_over_a_hub_that_is_away_or_stands_by(hub: ScriptedHub, tmp_path: Path) -> None:
    away, waiting = await other_hub(), await other_hub()
    await away.stop()
    waiting.refuses_with = 503
    async with running_worker(f"{away.url},{waiting.url},{hub.url}", tmp_path / "w1"):
        await hub.next("ready_for_work")
        assert len(waiting.authorizations) == 1
        await hub.assign("a1", "sh", "-c", "echo told")
        await hub.until(lambda: hub.logs)
        assert (await hub.next("job_result"))["state"] == "succeeded", "its log and its end come there too"
    await waiting.stop()


async def test_a_worker_goes_where_a_standby_sends_it(hub: ScriptedHub, tmp_path: Path) -> None:
    waiting = await other_hub()
    waiting.refuses_with, waiting.leader = 503, hub.url
    async with running_worker(waiting.url, tmp_path / "w1"):
        await hub.next("register")
    await waiting.stop()


async def test_a_worker_that_is_told_to_come_back_again_and_again_asks_another_hub(
    hub: ScriptedHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pauses, "next_s", lambda *_: 0.0)
    asked = 0

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Away\r\nRetry-After: 5\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with running_worker(f"http://127.0.0.1:{port},{hub.url}", tmp_path / "w1"):
            await hub.next("register")
    assert asked == TIMES_SENT_AWAY


async def test_a_worker_leaves_a_hub_that_is_silent_for_one_that_leads(hub: ScriptedHub, tmp_path: Path) -> None:
    leads = await other_hub()
    hub.acknowledges = {"register"}
    async with running_worker(f"{hub.url},{leads.url}", tmp_path / "w1", heartbeat_s=0.1, silence_s=2.0):
        await hub.next("heartbeat")
        await leads.next("register")
    assert leads.health_asked == 1, "it asked before it went"
    await leads.stop()


async def test_a_worker_stays_with_a_hub_that_is_silent_while_no_other_leads(hub: ScriptedHub, tmp_path: Path) -> None:
    waiting = await other_hub()
    waiting.role, waiting.refuses_with = "standby", 503
    hub.acknowledges = {"register"}
    async with running_worker(f"{hub.url},{waiting.url}", tmp_path / "w1", heartbeat_s=0.1, silence_s=1.0):
        await hub.next("register")
        await hub.next("register")
    assert waiting.health_asked >= 1
    await waiting.stop()


async def test_where_hubs_are_is_learnt_at_registration_and_remembered(hub: ScriptedHub, tmp_path: Path) -> None:
    other = await other_hub()
    folder = tmp_path / "w1"
    hub.hubs = [hub.url, other.url]
    async with running_worker(hub.url, folder) as worker:
        await eventually(lambda: told_of(folder, hub.url) == [hub.url, other.url])
        await hub.stop()
        await other.next("register")
        assert worker.connection._hubs.current == other.url
    assert told_of(folder, "http://another.fleet") == [], "another fleet's hubs are not these"
    await other.stop()


def test_what_is_remembered_is_written_once(tmp_path: Path) -> None:
    hubs = Addresses("http://a:1")
    hubs.learn(["http://b:2"])
    remember(tmp_path, "http://a:1", hubs.known)
    written = (tmp_path / "hubs").stat()
    remember(tmp_path, "http://a:1", hubs.known)
    assert (tmp_path / "hubs").stat().st_ino == written.st_ino
    assert told_of(tmp_path, "http://a:1") == ["http://a:1", "http://b:2"]


@pytest.mark.parametrize("text", ["", "\n"])
def test_a_file_that_says_nothing_is_nothing_remembered(tmp_path: Path, text: str) -> None:
    (tmp_path / "hubs").write_text(text)
    assert told_of(tmp_path, "http://a:1") == []
