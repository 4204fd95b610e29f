"""A hub whose store is a bucket, over HTTP."""

import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub
from tests.protocol.puller import bundle
from tests.store.conftest import PART
from tests.store.s3_server import Server
from tests.store.sending import chunks, noise, sha256
from yarl import URL

from ostler.domain.errors import StoreAway
from ostler.store import shelves as shelves_module
from ostler.store.bucket import Client
from ostler.store.shelves import Shelves

DATA = noise(200_000)


@pytest.fixture
async def hub(tmp_path: Path, client: Client) -> AsyncIterator[RunningHub]:
    running = RunningHub(tmp_path)
    running.shelves = Shelves(tmp_path, client.bucket)
    await running.start()
    yield running
    for worker in running.workers:
        await worker.drop()
    await running.stop()


def keys(client: Client, *parts: str) -> list[str]:
    return [key for key, _ in client.keys(client.key(*parts, ""))]


async def put(caller: Api, path: str, data: bytes) -> int:
    return (await caller.call("PUT", f"{path}/{sha256(data)}", data=data)).status


async def bring(caller: Api, path: str, data: bytes) -> int:
    """Past the hub; the status of its last answer."""
    asked = await caller.call("POST", f"{path}/{sha256(data)}/direct?size={len(data)}")
    if asked.status == 200 and not asked.json()["whole"]:
        [piece] = asked.json()["pieces"]
        async with aiohttp.ClientSession() as session:
            address = URL(piece["url"], encoded=True)
            async with session.put(address, data=data, headers=piece["headers"]) as answer:
                assert answer.status == 200
        asked = await caller.call("POST", f"{path}/{sha256(data)}/direct?size={len(data)}")
    return asked.status


async def settled(hub: RunningHub) -> None:
    """All that an earlier hub has left is in the bucket."""
    await hub.api.get("/v1/health")
    await hub._hub.settling


async def test_whoever_knows_nothing_of_the_bucket_brings_and_fetches_through_the_hub(
    hub: RunningHub, client: Client
) -> None:
    machine = hub.caller(hub.join_token)
    assert await put(machine, "/v1/model", DATA) == 201
    assert await put(machine, "/v1/model", DATA) == 200
    assert [key.rpartition("/")[2] for key in keys(client, "artifacts/objects")] == [sha256(DATA)]
    path = f"/v1/model/{sha256(DATA)}"
    head = await machine.call("HEAD", path)
    assert (head.headers["Ostler-Complete"], head.headers["Upload-Offset"]) == ("1", str(len(DATA)))
    assert (await hub.api.call("GET", path)).body == DATA
    for span, status, expected in (
        ("bytes=100-", 206, DATA[100:]),
        ("bytes=5-9", 206, DATA[5:10]),
        (f"bytes={len(DATA)}-", 416, b""),
        ("bytes=0-0,5-9", 200, DATA),
    ):
        answer = await hub.api.call("GET", path, headers={"Range": span})
        assert (answer.status, answer.body) == (status, expected), span
    asked = await hub.api.call("GET", path, params={"direct": "1"}, allow_redirects=False)
    assert asked.status == 307 and asked.headers["Cache-Control"] == "no-store"
    address = URL(asked.headers["Location"], encoded=True)
    async with aiohttp.ClientSession() as session, session.get(address) as answer:
        assert await answer.read() == DATA
        assert answer.headers["Content-Disposition"] == f'attachment; filename="{sha256(DATA)[:16]}.tar"'


async def test_metrics_of_a_claimed_task_are_found_in_the_bucket(hub: RunningHub) -> None:
    machine = hub.caller(hub.join_token)
    data = bundle(**{"weights": noise(50_000), "metrics.jsonl": b'{"loss": 0.25}\n'})
    assert await bring(machine, "/v1/model", data) == 201
    job = await hub.api.submit(command=["train"])
    claim = {"hostname": "pi", "capability": {"ram_available_gib": 8.0, "ram_total_gib": 8.0, "cpu_cores": 4}}
    assert (await machine.post("/v1/job/claim", claim))["job_id"] == job
    done = {"hostname": "pi", "artifact_id": sha256(data)}
    await machine.post(f"/v1/job/{job}/complete", done)
    assert (await hub.api.job(job))["metrics"] == {"loss": 0.25}


async def test_a_user_proves_to_have_what_is_there_already(hub: RunningHub) -> None:
    ann, bob = await hub.user("ann"), await hub.user("bob")
    path = f"/v1/snapshots/{sha256(DATA)}"
    assert await bring(ann, "/v1/snapshots", DATA) == 201
    asked = (await bob.call("POST", f"{path}/direct?size={len(DATA)}")).json()
    assert not asked["whole"] and asked["pieces"]
    (await bob.call("GET", path)).problem(404)
    assert await bring(bob, "/v1/snapshots", DATA) == 201
    assert (await bob.call("GET", path)).body == DATA
    asked = (await bob.call("POST", f"{path}/direct?size={len(DATA)}")).json()
    assert asked["whole"], "what is proven is known"


async def test_how_much_there_is_to_bring_must_be_said(hub: RunningHub) -> None:
    machine = hub.caller(hub.join_token)
    path = f"/v1/model/{sha256(DATA)}/direct"
    for query in ("", "?size=x", "?size=-1", "?size=99999999999999"):
        (await machine.call("POST", path + query)).problem(422)
    (await machine.call("POST", f"/v1/checkpoints/{sha256(DATA)}/direct?size={11 * 2**30}")).problem(413)


async def test_a_store_that_is_away_is_told_and_nothing_is_lost(hub: RunningHub, server: Server) -> None:
    machine, path = hub.caller(hub.join_token), f"/v1/model/{sha256(DATA)}"
    server.away = True
    for method, where in (("PUT", path), ("POST", f"{path}/direct?size={len(DATA)}")):
        answer = await machine.call(method, where, data=DATA)
        told = answer.problem(503)
        assert (told["title"], answer.headers["Retry-After"]) == ("store away", "5")
        assert "503" in told["detail"] or "SlowDown" in told["detail"]
        assert "ostler doctor" in told["detail"]
    assert await hub.api.submit(), "everything else goes on"
    server.away = False
    last = {"Content-Range": f"bytes */{len(DATA)}"}
    assert (await machine.call("PUT", path, headers=last)).status == 201
    assert (await hub.api.call("GET", path)).body == DATA


async def test_the_log_of_an_ended_attempt_is_moved_and_read_as_before(hub: RunningHub, client: Client) -> None:
    worker = await hub.worker()
    jobs, attempts = [], []
    for _ in range(2):
        jobs.append(await hub.api.submit())
        attempts.append(await worker.take(jobs[-1]))
        hub._hub.logs.store.append(attempts[-1].attempt, 0, b"what it said\n")
    await worker.end(attempts[0])
    for file in (hub.state / "logs").rglob("*.log"):
        os.utime(file, (hub.clock.wall() - 3600,) * 2)
    await hub._hub.keeper.sweep()
    assert [key.rpartition("/")[2] for key in keys(client, "logs")] == [f"{attempts[0].attempt}.log"]
    assert [file.stem for file in (hub.state / "logs").rglob("*.log")] == [attempts[1].attempt], "it still runs"
    path = f"/v1/jobs/{jobs[0]}/logs"
    assert (await hub.api.call("GET", path)).body == b"what it said\n"
    assert (await hub.api.call("GET", path, params={"tail": "5"})).body == b"said\n"
    late = {"attempt": attempts[0].attempt, "offset": "13", "final": "1"}
    machine = hub.caller(hub.join_token)
    assert (await machine.call("POST", f"/v1/tasks/{jobs[0]}/logs", params=late, data=b"at last\n")).status == 200
    assert (await hub.api.call("GET", path)).body == b"what it said\nat last\n"
    await worker.end(attempts[1])


async def test_a_moved_log_whose_store_is_away_says_so_and_goes_when_it_is_old(
    hub: RunningHub, client: Client, server: Server
) -> None:
    worker = await hub.worker()
    job = await hub.api.submit()
    attempt = await worker.take(job)
    hub._hub.logs.store.append(attempt.attempt, 0, b"what it said\n")
    await worker.end(attempt)
    [file] = (hub.state / "logs").rglob("*.log")
    os.utime(file, (hub.clock.wall() - 3600,) * 2)
    await hub._hub.keeper.sweep()
    server.away = True
    assert b"cannot be used now" in (await hub.api.call("GET", f"/v1/jobs/{job}/logs")).body
    server.away = False
    await worker.leave()
    await hub.restart(away_s=40 * 86400)
    await hub._hub.keeper.sweep()
    assert keys(client, "logs") == [] and not list((hub.state / "logs").rglob("*.*"))


async def test_logs_on_the_disk_go_while_those_in_the_bucket_have_to_wait(hub: RunningHub, server: Server) -> None:
    worker, logs = await hub.worker(), hub._hub.logs.store
    attempts = []
    for _ in range(3):
        attempts.append(await worker.take(await hub.api.submit()))
        logs.append(attempts[-1].attempt, 0, b"what it said\n")
        await worker.end(attempts[-1])
    moved = min(one.attempt for one in attempts)
    logs.let_go(moved, logs.copy_out(moved))
    for file in (hub.state / "logs").rglob("*.*"):
        os.utime(file, (hub.clock.wall() - 3600,) * 2)
    await worker.leave()
    server.away = True
    await hub.restart(away_s=40 * 86400)
    with pytest.raises(StoreAway):
        await hub._hub.keeper.sweep()
    assert [file.name for file in (hub.state / "logs").rglob("*.*")] == [f"{moved}.moved"]


async def test_what_a_folder_had_is_moved_to_the_bucket_that_the_hub_is_given(hub: RunningHub, client: Client) -> None:
    await settled(hub)
    old = Shelves(hub.state)
    await old.artifacts().put(sha256(DATA), chunks(DATA))
    await old.snapshots().put(sha256(b"code"), chunks(b"code"))
    assert not hub._hub.shelves.artifacts().has(sha256(DATA))
    await hub.restart()
    await settled(hub)
    assert (await hub.api.call("GET", f"/v1/model/{sha256(DATA)}")).body == DATA
    assert (await hub.api.call("GET", f"/v1/snapshots/{sha256(b'code')}")).body == b"code"
    assert len(keys(client, "artifacts/objects")) == len(keys(client, "snapshots/objects")) == 1
    assert not old.artifacts().has(sha256(DATA)) and not old.blobs().has(sha256(b"code"))


async def test_what_a_folder_had_is_handed_out_from_there_until_the_bucket_has_it(
    hub: RunningHub, client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelves_module, "MOVE_AGAIN_S", 0.05)
    await settled(hub)
    old = Shelves(hub.state).snapshots()
    for data in (b"code", b"unneeded"):
        await old.put(sha256(data), chunks(data))
    server.away = True
    await hub.restart()
    path = f"/v1/snapshots/{sha256(b'code')}"
    for params in ({}, {"direct": "1"}):
        answer = await hub.api.call("GET", path, params=params, allow_redirects=False)
        assert (answer.status, answer.body) == (200, b"code")
    hub._hub.shelves.snapshots().remove(sha256(b"unneeded"))
    assert not old.has(sha256(b"unneeded")) and not hub._hub.settling.done()
    server.away = False
    await settled(hub)
    assert [key.rpartition("/")[2] for key in keys(client, "snapshots/objects")] == [sha256(b"code")]
    assert (await hub.api.call("GET", path)).body == b"code" and not old.has(sha256(b"code"))


@pytest.mark.parametrize("compares", [True, False])
async def test_a_damaged_file_of_a_folder_stays_there_and_keeps_nothing_else_from_the_bucket(
    hub: RunningHub, client: Client, server: Server, compares: bool
) -> None:
    server.compares = server.computes = compares
    await settled(hub)
    old = Shelves(hub.state).artifacts()
    for data in (b"one", b"two", b"three"):
        await old.put(sha256(data), chunks(data))
    damaged = old.shelf.place(sha256(b"two"))
    damaged.chmod(0o600)
    damaged.write_bytes(b"owt")
    await hub.restart()
    await settled(hub)
    moved = {key.rpartition("/")[2] for key in keys(client, "artifacts/objects")}
    assert moved == {sha256(b"one"), sha256(b"three")} and damaged.read_bytes() == b"owt"


async def test_what_was_begun_and_left_goes_though_nothing_else_is_ever_removed(
    hub: RunningHub, client: Client, server: Server
) -> None:
    large = noise(2 * PART)
    machine = hub.caller(hub.join_token)
    for kind, path in (("artifacts", "model"), ("snapshots", "snapshots"), ("checkpoints", "checkpoints")):
        await machine.post(f"/v1/{path}/{sha256(large)}/direct?size={len(large)}")
        client.begin(client.key(kind, "objects", "ab", sha256(large)))  # a copy that was cut
        assert len(client.begun(client.key(kind, ""))) == 2
    server.begun_ago = timedelta(days=8)
    try:
        await hub._hub.keeper.sweep()
        assert client.begun(client.key("")) == []
    finally:
        server.begun_ago = timedelta()


async def test_a_snapshot_of_which_the_hub_has_lost_its_notes_is_found_when_it_is_asked_for(
    hub: RunningHub, client: Client
) -> None:
    path = f"/v1/snapshots/{sha256(DATA)}"
    assert await put(hub.api, "/v1/snapshots", DATA) == 201
    [note] = (hub.state / "known").rglob(sha256(DATA))
    note.unlink()
    assert (await hub.api.call("GET", path)).body == DATA
    note.unlink()
    [key] = keys(client, "snapshots/objects")
    client.put(key, b"another", sha256(b"another"))
    (await hub.api.call("GET", path)).problem(404)


async def test_a_hub_with_a_folder_says_that_it_passes_bytes_on(tmp_path: Path) -> None:
    running = RunningHub(tmp_path)
    await running.start()
    try:
        machine = running.caller(running.join_token)
        for path in ("/v1/model", "/v1/snapshots", "/v1/checkpoints"):
            asked = await machine.post(f"{path}/{sha256(DATA)}/direct?size={len(DATA)}")
            assert asked == {"direct": False, "whole": False, "size": 0, "pieces": []}
            assert await put(machine, path, DATA) == 201
        asked = await running.api.call("GET", f"/v1/model/{sha256(DATA)}", params={"direct": "1"})
        assert (asked.status, asked.body) == (200, DATA)
    finally:
        await running.stop()
