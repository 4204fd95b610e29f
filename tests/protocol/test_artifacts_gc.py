"""What becomes of artifacts that nobody needs, also while others bring, name and fetch them; and who sees which."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.types import Message
from tests.protocol import client
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub
from tests.protocol.puller import Puller, apply, bundle
from tests.protocol.test_artifacts import DATA, at, begin, folder, offset, put, sha256, trained, until_offset, visible
from tests.protocol.test_durable_first import Held

from ostler.domain.errors import NotFound
from ostler.hub.api import artifacts
from ostler.hub.api.downloads import download
from ostler.store.blobs import BlobStore

COMPLETERS = 6
JOBS = 60
NO_BOUND = "/v1/artifacts/gc?older_than_s=0"


# What goes and what stays


def aged(hub: RunningHub, data: bytes, age_s: float = 10 * 86400) -> None:
    path = folder(hub) / "objects" / sha256(data)[:2] / sha256(data)
    os.utime(path, (time.time() - age_s,) * 2)


async def test_gc_keeps_what_a_succeeded_job_points_to_and_what_is_young(hub: RunningHub, api: Api) -> None:
    worker, machine = await hub.worker(), hub.caller(hub.join_token)
    wanted, left, young, failed = b"wanted", b"left", b"young", b"failed"
    await trained(api, worker, machine, wanted)
    job = await trained(api, worker, machine, left, training={"model": "gbt"})
    for data in (young, failed):
        await put(machine, data)
    await api.requeue(job)
    await worker.end(await worker.take(job), "failed", 1, artifact_id=sha256(failed))
    for data in (wanted, left, failed):
        aged(hub, data)
    gone = {sha256(left): 4, sha256(failed): 6}
    told = await api.post("/v1/artifacts/gc?dry_run=1")
    assert {one["id"]: one["size"] for one in told["removed"]} == gone
    assert (told["bytes"], told["dry_run"]) == (10, True)
    assert len(visible(hub.state)) > 4
    assert (await api.post(f"/v1/artifacts/gc?older_than_s={20 * 86400}"))["removed"] == []
    done = await api.post("/v1/artifacts/gc")
    assert {one["id"]: one["size"] for one in done["removed"]} == gone
    objects = sorted(f"objects/{sha256(data)[:2]}/{sha256(data)}" for data in (wanted, young))
    assert visible(hub.state) == ["index.jsonl", f"jobs/{sha256(wanted)}/bundle.tar", *objects]
    assert [one["id"] for one in (await api.get("/v1/artifacts"))["artifacts"]] == [sha256(wanted)]
    told = await api.post("/v1/artifacts/gc?older_than_s=0")
    assert (told["bytes"], told["older_than_s"]) == (0, 60), "what is younger than a minute stays, whatever is said"
    aged(hub, young, 61)
    assert (await api.post("/v1/artifacts/gc?older_than_s=0"))["bytes"] == len(young)
    (await api.call("POST", "/v1/artifacts/gc?older_than_s=-1")).problem(422)


async def test_what_a_member_of_a_gang_made_stays_while_the_others_run(
    hub: RunningHub, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    must, may = client.FROM_HUB["job_assign"]
    monkeypatch.setitem(client.FROM_HUB, "job_assign", (must, may | {"master_port"}))
    workers, machine, data = [await hub.worker(name) for name in "ab"], hub.caller(hub.join_token), b"first"
    await put(machine, data)
    gang = await api.submit(node_count=2)
    tasks = [await worker.take() for worker in workers]
    await workers[0].end(tasks[0], artifact_id=sha256(data))
    await hub.turn()
    aged(hub, data)
    assert (await api.post("/v1/artifacts/gc"))["removed"] == []
    await workers[1].end(tasks[1])
    assert await api.state(gang) == "succeeded"
    assert (await api.post("/v1/artifacts/gc"))["removed"] == []


async def test_gc_leaves_what_is_being_brought(hub: RunningHub, api: Api) -> None:
    machine = hub.caller(hub.join_token)
    line = await begin(machine, 2_000_000)
    await until_offset(machine, 1_000_000)
    assert (await api.post("/v1/artifacts/gc?older_than_s=0"))["removed"] == []
    line.write(DATA[2_000_000:])
    async with asyncio.timeout(60):
        while not (await offset(machine))[2]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    line.close()


async def test_what_is_about_to_be_brought_again_counts_as_young(hub: RunningHub, api: Api) -> None:
    machine = hub.caller(hub.join_token)
    await put(machine, DATA)
    aged(hub, DATA)
    await offset(machine)
    assert (await api.post("/v1/artifacts/gc"))["removed"] == []


# Races


def shared(number: int) -> bytes:
    """Of these jobs some leave the same behind."""
    return bundle(out=b"%d" % (number * 2 // 3))


class Race:
    """Completers who bring and name artifacts, while whatever nobody names yet is removed at once."""

    def __init__(self, hub: RunningHub) -> None:
        self.hub = hub
        self.completed: dict[str, bytes] = {}
        self.removed = 0
        self.over = asyncio.Event()

    async def complete(self, name: str) -> None:
        puller = Puller(self.hub, name)
        while (answer := await puller.ask()).status == 200:
            task = answer.json()
            data = shared(task["hyper"]["n"])
            artifact_id = await puller.upload(data)
            for _ in range(task["hyper"]["n"] % 3):
                await puller.beat(task["job_id"])  # time enough for it to be removed
            while (ended := await puller.say(task["job_id"], "complete", artifact_id=artifact_id)).status == 422:
                await puller.upload(data)
            assert ended.status == 200, ended
            self.completed[task["job_id"]] = data

    async def collect(self) -> None:
        while not self.over.is_set():
            self.removed += len((await self.hub.api.post(NO_BOUND))["removed"])

    async def fetch(self) -> None:
        caller = self.hub.caller(self.hub.join_token)
        while not self.over.is_set():
            data = shared(len(self.completed))
            answer = await caller.call("GET", at(data))
            assert answer.status == 404 or answer.body == data, answer

    async def run(self) -> None:
        beside = [asyncio.create_task(work) for work in (self.collect(), self.collect(), self.fetch())]
        try:
            await asyncio.gather(*(self.complete(f"host{number}") for number in range(COMPLETERS)))
        finally:
            self.over.set()
            await asyncio.gather(*beside)


async def test_no_job_that_completes_while_others_collect_loses_its_bytes_or_its_row(
    hub: RunningHub, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "YOUNGEST_S", 0)  # or nothing at all would be removed
    grid = f'[[sweeps]]\nname = "s-{{n}}"\nmodel = "m"\ngrid = {{ n = {list(range(JOBS))} }}\n'
    assert (await apply(api, f'[defaults]\ncommand = ["true"]\n{grid}')).status == 200
    race = Race(hub)
    await race.run()
    await api.post(NO_BOUND)
    assert len(race.completed) == JOBS
    assert race.removed > 0
    for job_id, data in race.completed.items():
        document = await api.get(f"/v1/artifacts/{sha256(data)}")
        assert job_id in [job["id"] for job in document["jobs"]]
        assert (hub.state / "artifacts" / document["path"]).read_bytes() == data
        assert (await api.call("GET", at(data))).body == data


async def test_an_artifact_that_goes_while_its_metrics_are_looked_for_is_to_be_brought_again(
    hub: RunningHub, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, puller = await api.submit(), Puller(hub, "pi")
    await puller.claim()
    there = iter((True, False))  # it goes between the two looks
    monkeypatch.setattr(hub._hub.artifacts._store, "has", lambda _: next(there))
    assert (await puller.say(job_id, "complete", artifact_id=sha256(DATA))).status == 422


async def test_an_artifact_that_is_named_while_the_hub_is_held_up_is_not_taken_for_nobodys(
    hub: RunningHub, api: Api
) -> None:
    """However long ago its job named it: what was said before is durable before anything is removed."""
    job_id = await api.submit()
    puller = Puller(hub, "pi")
    await puller.claim()
    artifact_id = await puller.upload(DATA)
    held = Held(hub._hub.loop)
    completing = asyncio.create_task(puller.say(job_id, "complete", artifact_id=artifact_id))
    await asyncio.to_thread(held.begun.wait, 20)
    aged(hub, DATA)
    collecting = asyncio.create_task(api.post(NO_BOUND))
    done, _ = await asyncio.wait([collecting], timeout=0.1)
    assert not done
    held.let_go.set()
    assert (await completing).status == 200
    assert (await collecting)["removed"] == []
    assert (await api.call("GET", at())).body == DATA


async def test_what_was_just_removed_is_brought_again_as_new(hub: RunningHub, api: Api) -> None:
    machine = hub.caller(hub.join_token)
    await put(machine, DATA)
    for _ in range(5):
        aged(hub, DATA)
        answers = await asyncio.gather(api.post(NO_BOUND), put(machine, DATA), put(machine, DATA))
        assert {answer.status for answer in answers[1:]} <= {200, 201}
        assert (await machine.call("GET", at())).body == DATA


async def test_a_download_that_has_begun_goes_on_when_its_file_is_removed(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")

    async def chunks() -> AsyncIterator[bytes]:
        yield DATA

    await store.put(sha256(DATA), chunks())
    sent: list[Message] = []
    request = Request({"type": "http", "method": "GET", "headers": [], "query_string": b""})

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return await asyncio.Future()

    for span, status, expected in ((b"", 200, DATA), (b"bytes=1000000-", 206, DATA[1_000_000:])):
        answer = await download(store.shelf, sha256(DATA), request)
        path = store.shelf.place(sha256(DATA))
        away = path.rename(path.with_name("away"))
        sent.clear()
        await answer({"type": "http", "method": "GET", "headers": [(b"range", span)] if span else []}, receive, send)
        assert (sent[0]["status"], b"".join(part["body"] for part in sent[1:])) == (status, expected)
        away.rename(path)
    path.unlink()
    with pytest.raises(NotFound):
        await download(store.shelf, sha256(DATA), request)


# Who may


async def test_users_see_and_fetch_the_artifacts_of_the_manifests_jobs_too(hub: RunningHub, api: Api) -> None:
    ann, bob = await hub.user("ann"), await hub.user("bob")
    machine, worker = hub.caller(hub.join_token), await hub.worker()
    await trained(ann, worker, machine, b"of ann")
    await trained(api, worker, machine, b"of the operator")
    await apply(api, '[defaults]\ncommand = ["true"]\n[[jobs]]\nname = "all"\nmodel = "gbt"\n')
    await put(machine, DATA)
    (job,) = (await api.get("/v1/jobs?name=all"))["jobs"]
    await worker.end(await worker.take(job["id"]), artifact_id=sha256(DATA))
    for caller, seen in ((ann, [DATA, b"of ann"]), (bob, [DATA])):
        assert [one["id"] for one in (await caller.get("/v1/artifacts"))["artifacts"]] == [sha256(one) for one in seen]
        for data in seen:
            assert (await caller.get(f"/v1/artifacts/{sha256(data)}"))["id"] == sha256(data)
            assert (await caller.call("GET", at(data))).body == data
        (one,) = (await caller.get("/v1/artifacts?job=all"))["artifacts"]
        assert one["id"] == sha256(DATA)
        assert (await caller.post(f"/v1/artifacts/{sha256(DATA)}/verify"))["ok"]
        for path in (at(b"of the operator"), f"/v1/artifacts/{sha256(b'of the operator')}"):
            (await caller.call("GET", path)).problem(404)
    pages, cursor = [], "0"
    while cursor is not None:
        page = await ann.get(f"/v1/artifacts?limit=1&cursor={cursor}")
        pages += [one["id"] for one in page["artifacts"]]
        cursor = page["next"]
    assert pages == [sha256(DATA), sha256(b"of ann")]
