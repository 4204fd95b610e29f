"""What has ended goes after a while: over HTTP, with a real hub and its files."""

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.protocol.api import Api
from tests.protocol.client import Worker
from tests.protocol.hub import RunningHub
from tests.protocol.puller import Puller, apply, counts
from tests.protocol.test_artifacts import put, sha256, trained
from tests.protocol.test_artifacts_gc import aged

from ostler.core.events import JobsSubmitted, RequeueRequested
from ostler.domain.errors import BadInput
from ostler.domain.job import JobSpec
from ostler.domain.retention import DAY_S, Retention, read_retention
from ostler.hub import old
from ostler.hub.clock import Steadiness
from ostler.hub.new_job import new_job
from ostler.hub.settings import Settings


async def keeping(hub: RunningHub, days: float = 100.0, **chosen: Any) -> None:
    """So many days later, under these settings, everything was looked at once."""
    hub.settings = Settings(retention=Retention(**chosen))
    await hub.restart(away_s=days * DAY_S)
    await hub._hub.keeper.sweep()


async def done(api: Api, worker: Worker, **spec: Any) -> str:
    job = await api.submit(**spec)
    await worker.end(await worker.take(job))
    return job


async def removed(api: Api) -> dict[str, int]:
    found: dict[str, int] = (await api.get("/v1/status"))["retention"]["removed"]
    return {what: count for what, count in found.items() if count}


async def test_a_job_goes_with_all_that_is_known_of_it_and_what_lives_stays(hub: RunningHub) -> None:
    worker = await hub.worker()
    old_job, other = await done(hub.api, worker), await done(hub.api, worker)
    live = await hub.api.submit(gpu_count=8)
    assert (await hub.api.get("/v1/status"))["ended"]["succeeded"] == 2
    await worker.leave()
    await keeping(hub, days=10)
    assert await hub.api.state(old_job) == "succeeded", "not old enough"
    await keeping(hub, days=90)
    for job in (old_job, other):
        (await hub.api.call("GET", f"/v1/jobs/{job}")).problem(404)
    assert await hub.api.state(live) == "pending"
    assert [job["id"] for job in (await hub.api.get("/v1/jobs"))["jobs"]] == [live]
    status = await hub.api.get("/v1/status")
    assert (status["ended"]["succeeded"], status["jobs"]["pending"]) == (0, 1)
    assert (await removed(hub.api))["jobs"] == 2
    metrics = (await hub.api.call("GET", "/metrics")).body.decode()
    assert 'ostler_pruned_total{what="jobs"} 2.0' in metrics
    ledger = hub._ledger
    assert not ledger.tasks([old_job])
    assert not ledger.attempts_of(old_job)
    assert not ledger.feed(after=0, subject=old_job)
    assert ledger.feed(after=0, subject=live)


async def test_an_id_that_a_client_chose_is_not_run_again_by_accident(hub: RunningHub) -> None:
    worker = await hub.worker()
    await done(hub.api, worker, id="mine", command=["true"])
    await hub.api.submit(gpu_count=8)
    await worker.leave()
    await keeping(hub)
    (await hub.api.call("GET", "/v1/jobs/mine")).problem(404)
    again = await hub.api.post("/v1/jobs", {"id": "mine", "command": ["true"]}, 200)
    assert (again["id"], again["state"]) == ("mine", "succeeded")
    refused = await hub.api.call("POST", "/v1/jobs", json={"id": "mine", "command": ["false"]})
    assert "exists with another spec" in refused.problem(409)["detail"]
    follower = await hub.api.submit(depends_on=["mine"], gpu_count=8)
    assert await hub.api.state(follower) == "pending", "what it waits for has succeeded"
    await hub.restart()
    assert (await hub.api.post("/v1/jobs", {"id": "mine", "command": ["true"]}, 200))["id"] == "mine"


async def test_how_a_job_ended_that_is_gone_is_told_to_nobody_else(hub: RunningHub) -> None:
    ann, worker = await hub.user("ann"), await hub.worker()
    await done(ann, worker, id="hers", command=["true"])
    await ann.submit(gpu_count=8)
    await worker.leave()
    await keeping(hub)
    ann, bob = await hub.user("ann"), await hub.user("bob")
    refused = await bob.call("POST", "/v1/jobs", json={"command": ["true"], "depends_on": ["hers"]})
    assert "there is no job hers" in refused.problem(422)["detail"]
    assert await ann.state(await ann.submit(depends_on=["hers"], gpu_count=8)) == "pending"


async def test_what_a_live_job_depends_on_stays_with_its_logs(hub: RunningHub) -> None:
    worker = await hub.worker()
    first = await hub.api.submit(id="first")
    attempt = await worker.take(first)
    hub._hub.logs.store.append(attempt.attempt, 0, b"what it said")
    await worker.end(attempt)
    second = await hub.api.submit(depends_on=[first], gpu_count=8)
    await worker.leave()
    await keeping(hub)
    assert await hub.api.state(first) == "succeeded"
    assert (await hub.api.call("GET", f"/v1/jobs/{first}/logs")).body == b"what it said"
    await hub.api.cancel(second)
    await keeping(hub, days=1)
    (await hub.api.call("GET", f"/v1/jobs/{first}")).problem(404)


async def test_what_a_job_depends_on_stays_from_the_batch_on_that_brings_it_or_runs_it_again(hub: RunningHub) -> None:
    worker = await hub.worker()
    first = await done(hub.api, worker)
    second = await done(hub.api, worker, depends_on=[first])
    third = await done(hub.api, worker)
    await hub.api.submit(gpu_count=8)
    await worker.leave()
    await hub.restart(away_s=100 * DAY_S)
    hub._ledger._writer.execute("DELETE FROM needs")  # as in the ledger of a hub that did not write them down
    loop, wall = hub._hub.loop, hub.clock.wall()
    spec = JobSpec(id="new", user_id="u", depends_on=[third], gpu_count=8, command=["true"])
    await asyncio.gather(
        hub._hub.keeper._portion(old.OldJobs(before=wall - 90 * DAY_S, wall=wall)),
        loop.ask(lambda ref: JobsSubmitted(ref=ref, jobs=[new_job(spec)])),
        loop.ask(lambda ref: RequeueRequested(ref=ref, job_id=second)),
    )
    await hub._hub.keeper.sweep()
    assert [await hub.api.state(job) for job in (first, second, third)] == ["succeeded", "pending", "succeeded"]


async def test_a_key_whose_job_is_gone_says_so(hub: RunningHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old, "given_here", lambda *_: True)  # by the clock on the wall it was made at another time
    worker, spec, headers = await hub.worker(), {"command": ["true"]}, {"Idempotency-Key": "k"}
    job = (await hub.api.post("/v1/jobs", spec, 201, headers=headers))["id"]
    await worker.end(await worker.take(job))
    await hub.api.submit(gpu_count=8)
    await worker.leave()
    await keeping(hub, days=2, jobs=DAY_S)
    answer = await hub.api.call("POST", "/v1/jobs", json=spec, headers=headers)
    assert "has ended and is gone" in answer.problem(404)["detail"]


async def test_what_a_manifest_brought_stays(hub: RunningHub, api: Api) -> None:
    await apply(api)
    puller = Puller(hub, "pi")
    job = (await puller.claim())["job_id"]
    assert (await puller.say(job, "complete")).status == 200
    await keeping(hub)
    assert await hub.api.state(job) == "succeeded"
    assert counts(await apply(hub.api)) == (0, 5, 0, 0), "it is not trained twice"


async def test_jobs_over_the_number_that_is_kept_go_oldest_first(hub: RunningHub) -> None:
    worker = await hub.worker()
    jobs = [await done(hub.api, worker) for _ in range(5)]
    await worker.leave()
    await keeping(hub, days=1, most_jobs=2)
    assert [job["id"] for job in (await hub.api.get("/v1/jobs"))["jobs"]] == [jobs[4], jobs[3]]
    assert (await hub.api.get("/v1/status"))["ended"]["succeeded"] == 2


async def test_a_job_that_ended_just_now_stays_however_many_there_are(hub: RunningHub) -> None:
    worker = await hub.worker()
    jobs = [await done(hub.api, worker) for _ in range(3)]
    await worker.leave()
    await keeping(hub, days=0, most_jobs=1)
    assert [await hub.api.state(job) for job in jobs] == ["succeeded"] * 3


def test_a_clock_that_was_set_is_believed_after_a_day() -> None:
    even, ahead = 0.0, 0.0
    clock = Steadiness(lambda: even + ahead, lambda: even)
    even += 30 * DAY_S
    assert clock.is_steady(), "a machine that slept has a clock that goes on"
    ahead = 50.0
    assert clock.is_steady()
    ahead = 400 * DAY_S
    assert not clock.is_steady()
    even += DAY_S - 1
    assert not clock.is_steady()
    even += 1
    assert clock.is_steady()


async def test_a_large_array_goes_in_portions_and_a_restart_in_the_midst_of_it_loses_nothing(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old, "ROWS", 3)
    worker = await hub.worker(slots=20)
    array = await hub.api.submit(array=10)
    for task in await worker.take_all(*(f"{array}.{index}" for index in range(10))):
        await worker.end(task)
    await hub.api.submit(gpu_count=8)
    await worker.leave()
    hub.settings = Settings(retention=Retention())
    await hub.restart(away_s=100 * DAY_S)
    wall = hub.clock.wall()
    await hub._hub.keeper._portion(old.OldJobs(before=wall, wall=wall))
    (await hub.api.call("GET", f"/v1/jobs/{array}")).problem(404)
    rows = hub._ledger.tasks_of(array)
    assert 0 < len(rows) < 10, "some of it is left for the next time"
    await hub.restart()
    await hub._hub.keeper.sweep()
    assert not hub._ledger.tasks_of(array)
    assert not hub._ledger.feed(after=0, subject=array)
    assert not hub._ledger.kept("pruning")


async def test_logs_go_before_their_jobs_by_age_and_by_size(hub: RunningHub) -> None:
    worker = await hub.worker()
    attempts: list[str] = []
    for _ in range(3):
        job = await hub.api.submit()
        task = await worker.take(job)
        hub._hub.logs.store.append(task.attempt, 0, b"x" * 100)
        attempts.append(task.attempt)
        await worker.end(task)
        age(hub, task.attempt)
        hub.clock.now += 2 * DAY_S
    await worker.drop()
    running = hub._hub.logs.store
    assert [running.size(attempt) for attempt in attempts] == [100] * 3
    await keeping(hub, days=1, logs=5.5 * DAY_S)
    assert [hub._hub.logs.store.size(attempt) for attempt in attempts] == [0, 100, 100], "the first ended 7 days ago"
    await keeping(hub, days=0, most_logs=150)
    assert [hub._hub.logs.store.size(attempt) for attempt in attempts] == [0, 0, 100]
    assert await removed(hub.api) == {"logs": 1, "log_bytes": 100}
    assert len((await hub.api.get("/v1/jobs"))["jobs"]) == 3


async def test_of_the_logs_of_one_hour_no_more_go_than_are_too_many(hub: RunningHub) -> None:
    worker = await hub.worker()
    attempts: list[str] = []
    for _ in range(3):
        task = await worker.take(await hub.api.submit())
        hub._hub.logs.store.append(task.attempt, 0, b"x" * 100)
        attempts.append(task.attempt)
        await worker.end(task)
        age(hub, task.attempt)
        hub.clock.now += 120
    await worker.drop()
    await keeping(hub, days=0, most_logs=250)
    assert [hub._hub.logs.store.size(attempt) for attempt in attempts] == [0, 100, 100]


def age(hub: RunningHub, attempt: str) -> None:
    """As if its last byte had come now, by the hub's clock."""
    path: Path = hub._hub.logs.store._path(attempt)
    os.utime(path, (hub.clock.wall(),) * 2)


async def test_artifacts_stay_for_ever_unless_the_operator_says_otherwise(hub: RunningHub) -> None:
    worker, machine = await hub.worker(), hub.caller(hub.join_token)
    kept, shared, needed = b"kept", b"shared", b"needed"
    job = await trained(hub.api, worker, machine, kept)
    twin = await trained(hub.api, worker, machine, shared)
    first = await trained(hub.api, worker, machine, needed)
    await hub.api.submit(depends_on=[first], gpu_count=8)
    await worker.leave()
    for data in (kept, shared, needed):
        aged(hub, data)
    await keeping(hub, days=1000)
    assert await hub.api.state(job) == "succeeded", "a job of which an artifact is kept is kept"
    await keeping(hub, days=1, artifacts=30 * DAY_S)
    objects = hub.state / "artifacts" / "objects"
    assert [path.name for path in objects.glob("*/*")] == [sha256(needed)]
    assert await removed(hub.api) == {"artifacts": 2, "artifact_bytes": 10, "jobs": 2}
    (await hub.api.call("GET", f"/v1/jobs/{twin}")).problem(404)


async def test_artifacts_over_the_size_that_is_kept_go_oldest_first(hub: RunningHub) -> None:
    worker, machine = await hub.worker(), hub.caller(hub.join_token)
    datas = [b"a" * 10, b"b" * 10, b"c" * 10]
    jobs = [await trained(hub.api, worker, machine, data) for data in datas]
    await worker.leave()
    for data in datas:
        aged(hub, data)
    await keeping(hub, days=1, most_artifacts=25)
    shown = [(await hub.api.job(job))["artifact_id"] for job in jobs]
    assert shown == [None, sha256(datas[1]), sha256(datas[2])]


async def test_an_artifact_stays_for_a_task_that_made_it_too_and_whose_job_has_not_ended(hub: RunningHub) -> None:
    worker, machine, data = await hub.worker(), hub.caller(hub.join_token), b"the same"
    await trained(hub.api, worker, machine, data)
    again = await trained(hub.api, worker, machine, data)
    await worker.leave()
    await hub.restart(away_s=100 * DAY_S)
    await hub.api.requeue(again)
    aged(hub, data)
    await keeping(hub, days=1, artifacts=30 * DAY_S)
    objects = hub.state / "artifacts" / "objects"
    assert [path.name for path in objects.glob("*/*")] == [sha256(data)]
    assert [one["jobs"][0]["id"] for one in (await hub.api.get("/v1/artifacts"))["artifacts"]] == [again]


async def test_bytes_that_no_task_made_go_and_no_artifact_goes_for_them(hub: RunningHub) -> None:
    worker, machine, kept, nobodys = await hub.worker(), hub.caller(hub.join_token), b"k" * 10, b"n" * 30
    job = await trained(hub.api, worker, machine, kept)
    await worker.leave()
    await put(machine, nobodys)
    aged(hub, kept)
    await keeping(hub, days=1, most_artifacts=20)
    assert (await hub.api.job(job))["artifact_id"] == sha256(kept)
    aged(hub, nobodys)
    await hub._hub.keeper.sweep()
    assert await removed(hub.api) == {"artifacts": 1, "artifact_bytes": 30}
    assert (await hub.api.job(job))["artifact_id"] == sha256(kept)


async def test_a_key_is_remembered_for_a_week(hub: RunningHub) -> None:
    headers = {"Idempotency-Key": "k"}
    spec = {"command": ["true"], "gpu_count": 8}
    first = await hub.api.post("/v1/jobs", spec, 201, headers=headers)
    await keeping(hub, days=6)
    assert (await hub.api.post("/v1/jobs", spec, 200, headers=headers))["id"] == first["id"]
    await keeping(hub, days=2)
    assert (await removed(hub.api))["keys"] == 1
    assert (await hub.api.post("/v1/jobs", spec, 201, headers=headers))["id"] != first["id"]


async def test_lines_about_workers_go_and_the_feed_is_numbered_on(hub: RunningHub) -> None:
    await (await hub.worker()).leave()
    live = await hub.api.submit(gpu_count=8)
    await keeping(hub)
    subjects = {line.subject for line in hub._ledger.feed(after=0)}
    assert subjects == {live}
    last = hub._ledger.feed(after=0)[-1].seq
    await hub.restart()
    await hub.api.cancel(live)
    assert min(line.seq for line in hub._ledger.feed(after=last)) == last + 1


def test_what_the_operator_writes_is_read_and_mistakes_are_named() -> None:
    read = read_retention({"jobs": "30d", "logs": "never", "most_logs": "5g", "most_jobs": 10})
    assert (read.jobs, read.most_logs, read.most_jobs) == (30 * DAY_S, 5 * 1024**3, 10)
    assert msgspec.structs.replace(read, jobs=1.0).logs == float("inf")
    with pytest.raises(BadInput) as told:
        read_retention({"job": "1d", "logs": "soon", "most_jobs": -1, "keys": "5m", "most_logs": True})
    assert [where for where, _ in told.value.errors] == [
        "retention.job",
        "retention.logs",
        "retention.most_jobs",
        "retention.most_logs",
        "retention.keys",
    ]
