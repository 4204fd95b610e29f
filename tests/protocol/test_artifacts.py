"""Artifacts over HTTP: brought, cut, gone on with, fetched, listed, looked after."""

import asyncio
import hashlib
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.protocol.api import Answer, Api
from tests.protocol.client import Worker
from tests.protocol.hub import RunningHub
from tests.protocol.process_hub import ProcessHub

DATA = random.Random(5).randbytes(3_000_000)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def at(data: bytes = DATA) -> str:
    return f"/v1/model/{sha256(data)}"


@pytest.fixture
async def worker(hub: RunningHub) -> Worker:
    return await hub.worker()


@pytest.fixture
async def machine(hub: RunningHub) -> Api:
    """The worker's side of HTTP."""
    return hub.caller(hub.join_token)


def folder(hub: RunningHub) -> Path:
    return hub.state / "artifacts"


def visible(state: Path) -> list[str]:
    root = state / "artifacts"
    return sorted(
        str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.parent.name != ".arriving"
    )


async def put(caller: Api, data: bytes, first: int | None = None, end: int | None = None, name: str = "") -> Answer:
    """All of it, or the bytes from first to end as a part."""
    headers = {}
    if first is not None:
        end = len(data) if end is None else end
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(data)}"
    return await caller.call("PUT", name or at(data), data=data[first or 0 : end], headers=headers)


async def offset(caller: Api, data: bytes = DATA) -> tuple[int, int, bool]:
    """Status, offset, and whether it is whole."""
    answer = await caller.call("HEAD", at(data))
    return answer.status, int(answer.headers["Upload-Offset"]), answer.headers.get("Ostler-Complete") == "1"


async def begin(caller: Api, size: int, total: int = len(DATA), name: str = "") -> asyncio.StreamWriter:
    """A connection that has announced all, sent so much, and is still open."""
    host, _, port = caller.url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"PUT {name or at()} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {caller.token}\r\nContent-Length: {total}\r\n\r\n"
    writer.write(head.encode() + DATA[:size])
    await writer.drain()
    return writer


async def until_offset(caller: Api, least: int) -> int:
    async with asyncio.timeout(60):
        while (found := (await offset(caller))[1]) < least:  # noqa: ASYNC110  another process is only looked at
            await asyncio.sleep(0.01)
        return found


async def cut(caller: Api, size: int) -> None:
    """An upload that breaks off after so many bytes, of which the hub has half at least."""
    writer = await begin(caller, size)
    await until_offset(caller, size // 2)
    writer.transport.abort()


async def go_on(caller: Api) -> int:
    """Bring the rest, as any client does that was cut off; from where that was in the end."""
    first = (await offset(caller))[1]
    while (answer := await put(caller, DATA, first)).status == 409:  # the hub was still writing down what had come
        assert int(answer.headers["Upload-Offset"]) > first
        first = int(answer.headers["Upload-Offset"])
    assert answer.status == 201
    return first


async def trained(api: Api, worker: Worker, machine: Api, data: bytes = DATA, metrics: Any = None, **spec: Any) -> str:
    """A job that has succeeded with this artifact; its id."""
    await put(machine, data)
    job = await api.submit(**spec)
    await worker.end(await worker.take(job), artifact_id=sha256(data), metrics=metrics or {})
    return job


async def settled(hub: RunningHub) -> None:
    """Until what was said to be done has its name in the folder too."""
    await hub._hub.artifacts._store.settled()


# Bringing


async def test_bytes_are_stored_once_under_their_hash(hub: RunningHub, machine: Api) -> None:
    assert await offset(machine) == (404, 0, False)
    first = await put(machine, DATA)
    assert (first.status, first.headers["Upload-Offset"]) == (201, str(len(DATA)))
    assert (await put(machine, DATA)).status == 200
    assert await offset(machine) == (200, len(DATA), True)
    assert visible(hub.state) == [f"objects/{sha256(DATA)[:2]}/{sha256(DATA)}"]
    assert (await machine.call("GET", at())).body == DATA


async def test_a_wrong_hash_is_422_and_nothing_is_kept(hub: RunningHub, machine: Api) -> None:
    (await put(machine, b"wrong", name=at())).problem(422)
    assert await offset(machine) == (404, 0, False)
    assert visible(hub.state) == []
    (await machine.call("GET", at())).problem(404)
    assert (await put(machine, DATA)).status == 201


@pytest.mark.parametrize("name", ["short", "Z" * 64, "A" * 64, "..%2f..%2fadmin.token"])
async def test_a_name_that_is_no_hash_is_refused(machine: Api, name: str) -> None:
    for method in ("PUT", "GET", "HEAD"):
        answer = await machine.call(method, f"/v1/model/{name}", **({"data": b"x"} if method == "PUT" else {}))
        assert answer.status in (404, 422)


async def test_a_cut_upload_leaves_nothing_visible_and_goes_on_with_the_rest(hub: RunningHub, machine: Api) -> None:
    await cut(machine, 2_000_000)
    status, _, whole = await offset(machine)
    assert (status, whole) == (200, False)
    assert visible(hub.state) == []
    (await machine.call("GET", at())).problem(404)
    assert 1_000_000 <= await go_on(machine) <= 2_000_000
    assert (await machine.call("GET", at())).body == DATA


async def test_a_cut_upload_goes_on_after_the_hub_was_started_again(hub: RunningHub) -> None:
    await cut(hub.api, 2_000_000)
    await hub.restart()
    assert 1_000_000 <= await go_on(hub.api) <= 2_000_000
    assert (await hub.api.call("GET", at())).body == DATA


async def test_a_cut_upload_may_begin_anew(machine: Api) -> None:
    await cut(machine, 2_000_000)
    assert (await put(machine, DATA)).status == 201


async def test_an_upload_in_parts_is_202_until_it_is_whole(machine: Api) -> None:
    answer = await put(machine, DATA, 0, 1_000_000)
    assert (answer.status, answer.headers["Upload-Offset"]) == (202, "1000000")
    assert await offset(machine) == (200, 1_000_000, False)
    assert (await put(machine, DATA, 1_000_000, 2_999_999)).status == 202
    assert (await put(machine, DATA, 2_999_999)).status == 201
    assert (await machine.call("GET", at())).body == DATA


async def test_a_part_that_does_not_begin_at_the_offset_is_409_with_the_offset(machine: Api) -> None:
    await put(machine, DATA, 0, 1_000_000)
    for first in (0, 999_999, 1_000_001):
        refused = await put(machine, DATA, first)
        assert "1000000" in refused.problem(409)["detail"]
        assert refused.headers["Upload-Offset"] == "1000000"
    assert (await put(machine, DATA, 1_000_000)).status == 201


@pytest.mark.parametrize("text", ["", "bytes", "bytes 5-/10", "bytes 9-5/10", "bytes 0-10/10", "bytes 0-9/*", "0-9/10"])
async def test_a_range_that_is_none_is_422(machine: Api, text: str) -> None:
    answer = await machine.call("PUT", at(), data=DATA[:10], headers={"Content-Range": text})
    assert answer.problem(422)["errors"][0]["where"] == "Content-Range"


@pytest.mark.parametrize("text", [f"bytes */{len(DATA)}", f"bytes {len(DATA)}-{len(DATA) - 1}/{len(DATA)}"])
async def test_an_upload_of_which_nothing_is_missing_is_looked_at_again(
    hub: RunningHub, machine: Api, text: str
) -> None:
    (folder(hub) / ".arriving" / sha256(DATA)).write_bytes(DATA)
    assert (await machine.call("PUT", at(), headers={"Content-Range": text})).status == 201


async def test_a_newer_upload_takes_over_from_one_that_has_gone_quiet(machine: Api) -> None:
    stalled = await begin(machine, 2_000_000)
    await until_offset(machine, 1_000_000)
    assert 1_000_000 <= await go_on(machine) <= 2_000_000
    stalled.close()


async def test_many_who_bring_the_same_at_once_all_succeed(hub: RunningHub, machine: Api) -> None:
    answers = await asyncio.gather(*(put(machine, DATA) for _ in range(6)))
    assert sorted(answer.status for answer in answers) == [200, 200, 200, 200, 200, 201]
    assert len(visible(hub.state)) == 1


async def test_an_upload_of_unknown_length_is_taken(machine: Api) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(DATA), 100_000):
            yield DATA[start : start + 100_000]

    assert (await machine.call("PUT", at(), data=pieces())).status == 201


async def test_what_the_disk_has_no_room_for_is_507_before_it_is_sent(machine: Api) -> None:
    host, _, port = machine.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"PUT {at()} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {machine.token}\r\nContent-Length: {2**50}\r\n\r\n"
    writer.write(head.encode())
    assert b" 507 " in await asyncio.wait_for(reader.readline(), 60)
    writer.close()


# Fetching


@pytest.mark.parametrize(
    ("span", "status", "expected"),
    [
        ("bytes=1000000-", 206, DATA[1_000_000:]),
        ("bytes=0-9", 206, DATA[:10]),
        ("bytes=-5", 206, DATA[-5:]),
        ("bytes=3000000-", 416, None),
    ],
)
async def test_a_download_goes_on_where_it_was_cut(
    machine: Api, span: str, status: int, expected: bytes | None
) -> None:
    await put(machine, DATA)
    answer = await machine.call("GET", at(), headers={"Range": span, "If-Range": f'"{sha256(DATA)}"'})
    assert answer.status == status
    assert expected is None or answer.body == expected


# Who may


async def test_users_see_and_fetch_only_the_artifacts_of_their_own_jobs(
    hub: RunningHub, worker: Worker, machine: Api
) -> None:
    ann, bob, eve = await hub.user("ann"), await hub.user("bob"), await hub.user("eve", "viewer")
    job = await trained(ann, worker, machine)
    for caller in (ann, eve, hub.api):
        assert [one["id"] for one in (await caller.get("/v1/artifacts"))["artifacts"]] == [sha256(DATA)]
        assert (await caller.get(f"/v1/artifacts/{sha256(DATA)}"))["jobs"][0]["id"] == job
        assert (await caller.call("GET", at())).body == DATA
    assert (await bob.get("/v1/artifacts"))["artifacts"] == []
    for path in (
        f"/v1/artifacts/{sha256(DATA)}",
        f"/v1/artifacts/{sha256(DATA)[:10]}",
        at(),
        f"/v1/artifacts?job={job}",
    ):
        (await bob.call("GET", path)).problem(404)
    (await bob.call("POST", f"/v1/artifacts/{sha256(DATA)}/verify")).problem(404)
    await trained(bob, worker, machine)
    assert [one["user_id"] for one in (await bob.get(f"/v1/artifacts/{sha256(DATA)}"))["jobs"]] == ["bob"]
    assert len((await hub.api.get(f"/v1/artifacts/{sha256(DATA)}"))["jobs"]) == 2


async def test_roles_reach_as_far_as_they_should(hub: RunningHub, machine: Api) -> None:
    user, viewer, stranger = await hub.user("ann"), await hub.user("eve", "viewer"), hub.caller("")
    (await viewer.call("PUT", at(), data=DATA)).problem(403)
    (await user.call("PUT", at(), data=DATA)).problem(403)
    assert (await machine.call("PUT", at(), data=DATA)).status == 201
    for caller in (user, viewer, machine):
        (await caller.call("POST", "/v1/artifacts/gc")).problem(403)
    (await viewer.call("POST", f"/v1/artifacts/{sha256(DATA)}/verify")).problem(403)
    (await machine.call("GET", "/v1/artifacts")).problem(403)
    for method, path in (("PUT", at()), ("GET", at()), ("GET", "/v1/artifacts"), ("POST", "/v1/artifacts/gc")):
        (await stranger.call(method, path)).problem(401)


# Documents


async def test_an_artifact_is_told_with_its_jobs(hub: RunningHub, api: Api, worker: Worker, machine: Api) -> None:
    training = {"model": "gbt", "mode": "realistic"}
    job = await trained(api, worker, machine, name="gbt-realistic", training=training, metrics={"f1": 0.75})
    document = await api.get(f"/v1/artifacts/{sha256(DATA)}")
    path = f"gbt_realistic/{sha256(DATA)}/bundle.tar"
    jobs = document.pop("jobs")
    created_at = document.pop("created_at")
    assert document == {
        "id": sha256(DATA),
        "size": len(DATA),
        "model": "gbt",
        "mode": "realistic",
        "metrics": {"f1": 0.75},
        "path": path,
        "compressed": False,
    }
    assert jobs == [
        {
            "id": job,
            "task": job,
            "name": "gbt-realistic",
            "user_id": "admin",
            "attempt": (await api.job(job))["attempt"],
            "worker": "w",
            **training,
            "created_at": created_at,
            "metrics": {"f1": 0.75},
        }
    ]
    await settled(hub)
    assert (folder(hub) / path).read_bytes() == DATA
    lines = (folder(hub) / "index.jsonl").read_text().splitlines()
    assert [(line["artifact_id"], line["job"], line["path"]) for line in map(json.loads, lines)] == [
        (sha256(DATA), job, path)
    ]


async def test_names_and_lines_that_a_crash_left_out_are_there_after_the_next_start(
    hub: RunningHub, worker: Worker, machine: Api
) -> None:
    job = await trained(hub.api, worker, machine, training={"model": "gbt", "mode": "m"})
    await settled(hub)
    index = folder(hub) / "index.jsonl"
    whole = index.read_bytes()
    index.write_bytes(whole[: len(whole) // 2])
    (folder(hub) / "gbt_m" / sha256(DATA) / "bundle.tar").unlink()
    await worker.drop()
    await hub.restart()
    await hub.api.get(f"/v1/jobs/{job}")
    assert index.read_bytes() == whole
    assert (folder(hub) / "gbt_m" / sha256(DATA) / "bundle.tar").read_bytes() == DATA


async def test_an_artifact_is_found_by_an_unambiguous_beginning(api: Api, worker: Worker, machine: Api) -> None:
    kept, brought = [bytes([number]) for number in range(17)], b"brought by nobody"
    for data in kept:
        await trained(api, worker, machine, data)
    await put(machine, brought)
    one = sha256(kept[0])
    assert (await api.get(f"/v1/artifacts/{one[:16]}"))["id"] == one
    beginnings = [sha256(data)[0] for data in kept]
    shared = next(sign for sign in beginnings if beginnings.count(sign) > 1)
    assert "several" in (await api.call("GET", f"/v1/artifacts/{shared}")).problem(404)["detail"]
    for unknown in ("f" * 64, "zz", "..", "%00", sha256(brought)):
        (await api.call("GET", f"/v1/artifacts/{unknown}")).problem(404)


async def test_the_list_is_paged_filtered_and_tells_each_artifact_once(api: Api, worker: Worker, machine: Api) -> None:
    same = await trained(api, worker, machine, b"same", training={"model": "gbt"})
    others = [b"1", b"2", b"3"]
    for data in others:
        await trained(api, worker, machine, data, training={"model": "mlp"})
    again = await trained(api, worker, machine, b"same", training={"model": "gbt"})
    for limit in (1, 2, 3, 100):
        found, cursor = [], ""
        while cursor is not None:
            page = await api.get(f"/v1/artifacts?limit={limit}&cursor={cursor or 0}")
            found += page["artifacts"]
            cursor = page["next"]
        assert [one["id"] for one in found] == [sha256(data) for data in (b"same", b"3", b"2", b"1")]
        assert [job["id"] for job in found[0]["jobs"]] == [again, same]
    of_model = (await api.get("/v1/artifacts?model=mlp"))["artifacts"]
    assert [one["id"] for one in of_model] == [sha256(data) for data in reversed(others)]
    of_job = (await api.get(f"/v1/artifacts?job={same}"))["artifacts"]
    assert [(one["id"], [job["id"] for job in one["jobs"]]) for one in of_job] == [(sha256(b"same"), [same])]
    (await api.call("GET", "/v1/artifacts?job=nobody")).problem(404)
    for query in ("limit=0", "limit=x", "cursor=x"):
        (await api.call("GET", f"/v1/artifacts?{query}")).problem(422)


async def test_the_artifacts_of_an_array_are_told_by_job_and_by_task(api: Api, worker: Worker, machine: Api) -> None:
    job = await api.submit(array=2)
    for index, task in enumerate(await worker.take_all(f"{job}.0", f"{job}.1")):
        await put(machine, bytes([index]))
        await worker.end(task, artifact_id=sha256(bytes([index])))
    assert len((await api.get(f"/v1/artifacts?job={job}"))["artifacts"]) == 2
    (one,) = (await api.get(f"/v1/artifacts?job={job}.1"))["artifacts"]
    assert (one["id"], one["jobs"][0]["task"]) == (sha256(b"\1"), f"{job}.1")


# Looking after


async def test_a_damaged_artifact_is_found_out(hub: RunningHub, api: Api, worker: Worker, machine: Api) -> None:
    await trained(api, worker, machine)
    verify = f"/v1/artifacts/{sha256(DATA)[:20]}/verify"
    assert await api.post(verify) == {"id": sha256(DATA), "ok": True, "here": True}
    stored = folder(hub) / "objects" / sha256(DATA)[:2] / sha256(DATA)
    stored.chmod(0o600)
    stored.write_bytes(DATA[:-1] + b"?")
    assert await api.post(verify) == {"id": sha256(DATA), "ok": False, "here": True}
    stored.unlink()
    assert await api.post(f"/v1/artifacts/{sha256(DATA)}/verify") == {"id": sha256(DATA), "ok": False, "here": False}
    assert (await api.get(f"/v1/artifacts/{sha256(DATA)}"))["path"] is None


@pytest.mark.parametrize("killed", [True, False])
async def test_an_upload_that_the_hub_ended_in_goes_on_at_the_next_one(tmp_path: Path, killed: bool) -> None:
    process = ProcessHub(tmp_path)
    await asyncio.to_thread(process.start)
    caller = Api(process.url, process.token("join"))
    try:
        stalled = await begin(caller, 2_500_000)
        await until_offset(caller, 1_000_000)
        if killed:
            await asyncio.to_thread(process.kill)
        else:
            assert await asyncio.to_thread(process.stop) == 0
            assert not [line for line in process.said if "error" in line.lower()], "it is not taken for a failure"
        stalled.close()
        assert visible(tmp_path) == []
        await asyncio.to_thread(process.start)
        assert 1_000_000 <= await go_on(caller) <= 2_500_000
        assert (await caller.call("GET", at())).body == DATA
    finally:
        await caller.close()
        if process.running:
            process.kill()
