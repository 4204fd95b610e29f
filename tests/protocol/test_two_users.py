"""Two users on one hub: nothing of the one can be read or changed by the other, or be told from what is not there."""

import hashlib
import json
from typing import Any

import pytest
from tests.protocol.api import Answer, Api
from tests.protocol.client import Worker
from tests.protocol.hub import RunningHub
from tests.protocol.puller import bundle

from ostler.domain.job import CALL
from ostler.hub.api.openapi import METHODS
from ostler.hub.permissions import ANY_METHOD, ROUTES, SOCKET

CANARY = "zq7canary"
"""In everything of hers that she would not like to be read."""
ABSENT_ID, ABSENT_SHA = "absent-0", "f" * 64
HIDDEN_FROM_USERS = ("{name:path}", "{relay_id}")
"""Sweeps are the manifest's, models the configuration's: both are everybody's."""


class Hers:
    """What ann has on the hub: a job that ran, with a log, a result and an artifact; one that waits, a snapshot."""

    def __init__(self, ann: Api) -> None:
        self.ann = ann
        self.job = self.task = self.waiting = self.snapshot = self.artifact = ""

    @property
    def ids(self) -> list[str]:
        return [self.job, self.waiting, f"{CANARY}-name", self.job[:-2], self.snapshot, self.artifact]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
async def hers(hub: RunningHub) -> Hers:
    worker: Worker = await hub.worker("w")
    machine = hub.caller(hub.join_token)
    hers = Hers(await hub.user("ann"))
    code = f"{CANARY} code".encode()
    hers.snapshot = digest(code)
    assert (await hers.ann.call("PUT", f"/v1/snapshots/{hers.snapshot}", data=code)).status == 201
    spec = {"name": f"{CANARY}-name", "env": {"KEY": CANARY}, "command": ["echo", CANARY]}
    hers.job = await hers.ann.submit(id=f"{CANARY}-run", snapshot_id=hers.snapshot, **spec)
    task = await worker.take(hers.job)
    log = f"/v1/tasks/{task.task_id}/logs?attempt={task.attempt}&offset=0&final=1"
    assert (await machine.call("POST", log, data=f"{CANARY} said\n".encode())).status == 200
    made = bundle(weights=CANARY.encode())
    hers.artifact = digest(made)
    assert (await machine.call("PUT", f"/v1/model/{hers.artifact}", data=made)).status == 201
    await worker.end(task, artifact_id=hers.artifact, metrics={CANARY: 1.0})
    assert (await hers.ann.call("PUT", f"/v1/secrets/{CANARY}-name", data=CANARY.encode())).status in (200, 201)
    hers.waiting = await hers.ann.submit(id=f"{CANARY}-waits", min_cpu_cores=1000, **spec)
    return hers


def taking_an_id() -> list[tuple[str, str, str]]:
    """Every route that takes an id: its method, its path, and the name of that part."""
    found = []
    for (method, path), roles in ROUTES.items():
        part = next((part for part in path.split("/") if part.startswith("{")), "")
        if not part or "user" not in roles or method == SOCKET or part in HIDDEN_FROM_USERS or "/assets/" in path:
            continue
        found += [
            (one, path.replace("{path:path}", ""), part) for one in (METHODS if method == ANY_METHOD else [method])
        ]
    return found


def plain(answer: Answer, asked: str) -> tuple[int, str]:
    """What it says, with the id that was asked for taken out: all that may differ."""
    return answer.status, answer.body.decode(errors="replace").replace(asked, "ID")


async def test_nothing_of_hers_is_read_or_changed_or_told_from_what_is_not_there(hub: RunningHub, hers: Hers) -> None:
    bob = await hub.user("bob")
    before = [await hers.ann.job(job) for job in (hers.job, hers.waiting)]
    seen = 0
    for method, path, part in taking_an_id():
        body: dict[str, Any] = {"json": {"indices": [0]}} if path.endswith("/results") else {}
        for ident in hers.ids:
            if part == "{sha256}" and len(ident) != 64:
                continue
            absent = ident[0] + ABSENT_SHA[1:] if len(ident) == 64 else ABSENT_ID
            nothing = plain(await bob.call(method, path.replace(part, absent), **body), absent)
            found = plain(await bob.call(method, path.replace(part, ident), **body), ident)
            assert found == nothing, (method, path, ident)
            assert CANARY not in found[1]
            seen += 1
    assert seen > 60
    assert [await hers.ann.job(job) for job in (hers.job, hers.waiting)] == before


async def test_no_list_and_no_view_of_the_fleet_tells_him_of_hers(hub: RunningHub, hers: Hers) -> None:
    bob = await hub.user("bob")
    running = await hers.ann.submit(id=f"{CANARY}-runs", name=CANARY)
    task = await hub.workers[0].take(running)
    for (method, path), roles in ROUTES.items():
        if method == "GET" and "{" not in path and "user" in roles and path != "/v1/events":
            answer = await bob.call("GET", path)
            assert answer.status == 200 or path == "/v1/manifest", path
            assert CANARY not in answer.body.decode() and task.attempt not in answer.body.decode(), path
    for query in (f"?user=ann&name={CANARY}-name", "?user=ann", "?state=pending", "?status=completed"):
        assert (await bob.get("/v1/jobs" + query))["jobs"] == []
    assert (await bob.get("/v1/artifacts?model="))["artifacts"] == []
    shown = await bob.call("GET", "/v1/workers/w")
    assert shown.json()["active_jobs"] == 1 and CANARY not in shown.body.decode()
    async with bob.session.ws_connect(hub.url.replace("http", "ws", 1) + "/v1/ws/cli") as socket:
        for asked in ({"type": "worker_list_request"}, {"type": "worker_show_request", "payload": {"worker_id": "w"}}):
            await socket.send_json(asked)
            assert CANARY not in await socket.receive_str(timeout=60)
    assert CANARY in (await hers.ann.call("GET", "/v1/workers/w")).body.decode()
    assert CANARY in (await hub.api.call("GET", "/v1/workers/w")).body.decode()
    await hub.workers[0].end(task)


async def test_he_cannot_take_her_snapshot_along_with_a_job_of_his(hub: RunningHub, hers: Hers) -> None:
    bob = await hub.user("bob")
    for more in ({"snapshot_id": hers.snapshot}, {"metadata": {CALL: {"blob": hers.snapshot}}}):
        for spec in ({"command": ["cat"], **more}, [{"command": ["cat"], **more}]):
            refused = await bob.call("POST", "/v1/jobs", json=spec)
            refused.problem(422)
            told = json.dumps(spec).replace(hers.snapshot, ABSENT_SHA)
            absent = await bob.call("POST", "/v1/jobs", data=told)
            assert plain(refused, hers.snapshot) == plain(absent, ABSENT_SHA)
    assert (await bob.get("/v1/jobs"))["jobs"] == []


async def test_who_brings_the_same_bytes_learns_not_that_they_were_there(hub: RunningHub, hers: Hers) -> None:
    bob, path = await hub.user("bob"), f"/v1/snapshots/{hers.snapshot}"
    code = f"{CANARY} code".encode()
    (await bob.call("PUT", path, data=code + b"!")).problem(422)
    assert (await bob.call("HEAD", path)).status == 404
    assert [(await bob.call("PUT", path, data=code)).status for _ in range(2)] == [201, 200]
    assert (await bob.call("GET", path)).body == code
    assert await bob.submit(snapshot_id=hers.snapshot, min_cpu_cores=1000)


async def test_what_his_own_names_stand_for_does_not_tell_him_of_hers(hub: RunningHub, hers: Hers) -> None:
    bob = await hub.user("bob")
    for name in (hers.job, ABSENT_ID):
        own = await bob.submit(name=name, min_cpu_cores=1000)
        assert (await bob.job(name))["id"] == own


async def test_who_asks_for_her_jobs_is_not_shown_his_own_instead(hub: RunningHub, hers: Hers) -> None:
    bob = await hub.user("bob")
    own = await bob.submit(min_cpu_cores=1000)
    assert (await bob.get("/v1/jobs?user=ann"))["jobs"] == []
    assert [job["id"] for job in (await bob.get("/v1/jobs?user=bob"))["jobs"]] == [own]


async def test_he_cannot_wait_for_her_jobs_end(hub: RunningHub, hers: Hers) -> None:
    bob = await hub.user("bob")
    told = []
    for name in (hers.job, hers.waiting, ABSENT_ID):
        answer = await bob.call("POST", "/v1/jobs", json={"command": ["true"], "depends_on": [name]})
        assert answer.status == 422
        told.append(plain(answer, name))
    assert len(set(told)) == 1
    assert await hers.ann.submit(depends_on=[hers.job], min_cpu_cores=1000)


async def test_he_cannot_ask_when_something_would_run_that_waits_for_her_job(hub: RunningHub, hers: Hers) -> None:
    bob = await hub.user("bob")
    told = []
    for name in (hers.job, hers.waiting, ABSENT_ID):
        answer = await bob.call("POST", "/v1/whatif", json={"spec": {"depends_on": [name]}})
        assert answer.status == 422
        told.append(plain(answer, name))
    assert len(set(told)) == 1


async def test_he_cannot_ask_what_if_her_job_were_otherwise(hub: RunningHub, hers: Hers) -> None:
    bob = await hub.user("bob")
    told = {
        plain(await bob.call("POST", "/v1/whatif", json={"job_id": name, "change": {"gpu_count": 0}}), name)
        for name in (hers.job, hers.waiting, ABSENT_ID)
    }
    assert len(told) == 1 and CANARY not in str(told)


# What only the hub says

OWNED_BY_THE_HUB = {
    "user_id": "ann",
    "state": "succeeded",
    "status": "completed",
    "attempt": "0" * 16,
    "attempts": [],
    "worker": "w",
    "reason": "because",
    "exit_code": 0,
    "submitted_at": "2020-01-01T00:00:00Z",
    "started_at": "2020-01-01T00:00:00Z",
    "finished_at": "2020-01-01T00:00:00Z",
    "artifact_id": "0" * 64,
    "result": "x",
    "result_id": "0" * 64,
    "checkpoint": "0" * 64,
    "seq": 1,
    "origin": "manifest",
    "sweep": "s",
    "kind": "k",
    "chosen": True,
    "role": "operator",
    "token_id": "admin",
    "counts": {},
    "losses": 0,
    "health": "healthy",
    "devices": [0],
}


@pytest.mark.parametrize("field", OWNED_BY_THE_HUB)
async def test_a_field_that_is_the_hubs_cannot_be_set_with_a_job(hub: RunningHub, field: str) -> None:
    bob = await hub.user("bob")
    spec = {"command": ["true"], field: OWNED_BY_THE_HUB[field]}
    for body in (spec, [spec], {**spec, "metadata": {}}):
        assert (await bob.call("POST", "/v1/jobs", json=body)).status in (403, 422), field
    assert (await hub.api.get("/v1/jobs"))["jobs"] == []


async def test_a_field_that_is_the_hubs_cannot_be_set_with_a_token_or_a_session(hub: RunningHub) -> None:
    for field in ("id", "digest", "token", "created_at", "revoked_at", "expires_at"):
        (await hub.api.call("POST", "/v1/tokens", json={"role": "user", "user": "x", field: "1"})).problem(422)
    for field in ("role", "user", "expires_at", "csrf"):
        body = {"token": hub.admin_token, field: "x"}
        (await hub.caller("").call("POST", "/v1/session", json=body)).problem(401)
    (await hub.api.call("POST", "/v1/tokens", json={"role": "join", "user": "x"})).problem(422)


async def test_who_a_caller_is_follows_from_its_token_whatever_else_it_says(hub: RunningHub) -> None:
    bob = await hub.user("bob")
    forged = {"X-User": "admin", "X-Remote-User": "admin", "X-Forwarded-User": "admin", "Ostler-Role": "operator"}
    assert await bob.get("/v1/me?role=operator&user=admin", headers=forged) == {"role": "user", "user": "bob"}
    (await bob.call("GET", "/v1/tokens", headers={**forged, "X-Operator-Token": "guess"})).problem(403)
