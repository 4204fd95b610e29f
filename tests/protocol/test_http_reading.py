"""Looking: lists and cursors, ids and their short forms, waiting, the feed, workers, the description of the API."""

import asyncio
from datetime import datetime
from typing import Any

import pytest
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub
from tests.protocol.test_permissions import calls

from ostler.hub.api import jobs

JOB_FIELDS = {
    "id",
    "name",
    "state",
    "status",
    "reason",
    "exit_code",
    "worker",
    "user_id",
    "attempt",
    "attempts",
    "submitted_at",
    "started_at",
    "finished_at",
    "artifact_id",
    "spec",
}


# Documents


async def test_a_job_has_the_fields_of_the_page(hub: RunningHub, api: Api) -> None:
    job = await api.submit(name="mlp", env={"A": "b"})
    found = await api.job(job)
    assert found.keys() >= JOB_FIELDS
    assert (found["state"], found["status"], found["worker"], found["attempts"]) == ("pending", "pending", None, [])
    assert found["spec"]["env"] == {"A": "b"}
    worker = await hub.worker()
    task = await worker.take(job)
    await worker.end(task)
    found = await api.job(job)
    assert (found["status"], found["worker"], found["exit_code"]) == ("completed", "w", 0)
    [attempt] = found["attempts"]
    assert attempt.keys() >= {"attempt", "worker", "state", "reason", "started_at", "finished_at"}
    assert (attempt["attempt"], attempt["worker"], attempt["state"]) == (task.attempt, "w", "succeeded")


async def test_times_are_rfc_3339_in_utc(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker()
    task = await worker.take(await api.submit())
    await worker.end(task)
    found = await api.job(task.task_id)
    for name in ("submitted_at", "started_at", "finished_at"):
        offset = datetime.fromisoformat(found[name]).utcoffset()
        assert offset is not None
        assert offset.total_seconds() == 0


async def test_an_array_has_counts_and_a_single_job_has_none(api: Api) -> None:
    assert (await api.job(await api.submit(array=7)))["counts"] == {"pending": 7}
    assert not (await api.job(await api.submit())).get("counts")


async def test_a_worker_has_the_fields_of_the_page(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(gpu_count=2, vram_gb=48, labels={"zone": "eu"})
    task = await worker.take(await api.submit(gpu_count=1))
    found = await api.worker("w")
    assert found["id"] == "w"
    assert (found["backend"], found["gpu_count"], found["vram_gb"], found["cpu_count"]) == ("nvidia", 2, 48, 16)
    assert (found["status"], found["active_jobs"], found["total_slots"]) == ("ready", 1, 4)
    assert found["capabilities"]["memory_gb"] == 64
    assert found["labels"]["zone"] == "eu"
    assert found["draining"] is False
    assert found["last_heartbeat"]
    assert found["last_contact"]
    assert [one["task_id"] for one in found["tasks"]] == [task.task_id]
    held = {device["index"]: [one["task_id"] for one in device["held_by"]] for device in found["devices"]}
    assert held == {task.devices[0]: [task.task_id], 1 - task.devices[0]: []}


async def test_a_worker_without_a_free_slot_is_busy_and_one_without_a_socket_offline(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(slots=1)
    await worker.take(await api.submit())
    assert (await api.worker("w"))["status"] == "busy"
    await hub.lose(worker)
    assert (await api.worker("w"))["status"] == "offline"
    assert [one["id"] for one in (await api.get("/v1/workers"))["workers"]] == ["w"]


async def test_why_has_the_fields_of_the_page_in_every_state(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker()
    waiting = await api.submit(gpu_count=2)
    task = await worker.take(await api.submit())
    for job, state in ((waiting, "pending"), (task.task_id, "running")):
        why = await api.why(job)
        assert why.keys() >= {"state", "summary", "blockers", "workers", "change", "estimate"}
        assert why["state"] == state
        assert why["summary"]
    [blocker] = (await api.why(waiting))["blockers"]
    assert blocker.keys() >= {"axis", "reason", "workers"}
    assert (blocker["axis"], blocker["workers"]) == ("gpu_count", ["w"])
    await worker.end(task, "failed", 3)
    why = await api.why(task.task_id)
    assert why["state"] == "failed"
    assert "3" in why["summary"]


async def test_status_is_the_fleet_in_a_few_numbers(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(gpu_count=2, vram_gb=48)
    await worker.take(await api.submit(gpu_count=1, min_cpu_cores=2, min_memory_gb=8))
    await api.submit(gpu_count=9)
    found = await api.get("/v1/status")
    assert found["jobs"]["running"] == 1
    assert found["jobs"]["pending"] == 1
    assert found["workers"] == {"ready": 1, "busy": 0, "offline": 0}
    assert found["gpus"] == {"total": 2, "held": 1}
    assert found["cores"] == {"total": 16, "held": 2}
    assert found["memory_gb"] == {"total": 64, "held": 8}
    assert found["hub"]["version"]


async def test_metrics_are_in_the_text_format_of_prometheus(api: Api) -> None:
    answer = await api.call("GET", "/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert b"# TYPE ostler_workers gauge" in answer.body


async def test_a_jobs_events_are_its_own(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker()
    await api.submit(gpu_count=9)
    task = await worker.take(await api.submit())
    await worker.end(task)
    events = (await api.get(f"/v1/jobs/{task.task_id}/events"))["events"]
    assert {event["subject"] for event in events} == {task.task_id}
    assert [event["state"] for event in events] == ["pending", "assigned", "running", "succeeded"]
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)


async def test_the_newest_of_a_jobs_events_are_listed_and_older_ones_said_to_be_left_out(
    hub: RunningHub, api: Api
) -> None:
    worker = await hub.worker()
    task = await worker.take(await api.submit())
    await worker.end(task)
    path = f"/v1/jobs/{task.task_id}/events"
    every = await api.get(path)
    assert (every["next"], every["older"]) == (None, False)
    last = await api.get(f"{path}?newest=2")
    assert (last["events"], last["next"], last["older"]) == (every["events"][-2:], None, True)
    assert await api.get(f"{path}?newest=4") == every
    (await api.call("GET", f"{path}?newest=0")).problem(422)


async def test_a_long_history_is_read_a_page_at_a_time(
    hub: RunningHub, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MAX_EVENTS", 3)
    task = await (await hub.worker()).take(await api.submit())
    await hub.workers[0].end(task)
    path = f"/v1/jobs/{task.task_id}/events"
    first = await api.get(path)
    second = await api.get(f"{path}?after={first['next']}")
    assert [len(first["events"]), len(second["events"]), second["next"]] == [3, 1, None]


# Lists


async def pages(api: Api, query: str) -> list[list[str]]:
    found, cursor = [], ""
    while True:
        page = await api.get(f"/v1/jobs?{query}{cursor}")
        found.append([job["id"] for job in page["jobs"]])
        if page["next"] is None:
            return found
        cursor = f"&cursor={page['next']}"


async def test_a_list_is_paged_by_cursor_newest_first(api: Api) -> None:
    ids = (await api.post("/v1/jobs", [{"command": ["true"]}] * 25, 201))["ids"]
    found = await pages(api, "limit=10")
    assert [len(page) for page in found] == [10, 10, 5]
    assert [job for page in found for job in page] == ids[::-1]


async def test_a_cursor_is_not_moved_by_what_comes_in_meanwhile(api: Api) -> None:
    ids = (await api.post("/v1/jobs", [{"command": ["true"]}] * 6, 201))["ids"]
    first = await api.get("/v1/jobs?limit=3")
    await api.submit()
    second = await api.get(f"/v1/jobs?limit=3&cursor={first['next']}")
    assert [job["id"] for job in first["jobs"] + second["jobs"]] == ids[::-1]
    assert second["next"] is None


async def test_a_list_is_narrowed_by_state_status_name_and_user(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker()
    done = await api.submit(name="done")
    await worker.end(await worker.take(done))
    failed = await api.submit(name="broken", user_id="ann")
    await worker.end(await worker.take(failed), "failed", 1)
    waiting = await api.submit(gpu_count=9)
    assert await pages(api, "state=succeeded") == [[done]]
    assert await pages(api, "status=completed") == [[done]]
    assert await pages(api, "state=succeeded,failed") == [[failed, done]]
    assert await pages(api, "state=pending") == [[waiting]]
    assert await pages(api, "name=broken") == [[failed]]
    assert await pages(api, "user=ann") == [[failed]]
    assert await pages(api, "state=cancelled") == [[]]


@pytest.mark.parametrize("query", ["limit=0", "limit=many", "limit=-1", "limit=999999", "cursor=x", "state=splendid"])
async def test_a_bad_query_is_422(api: Api, query: str) -> None:
    (await api.call("GET", f"/v1/jobs?{query}")).problem(422)


# Ids


async def test_a_prefix_stands_for_the_only_job_that_begins_with_it(api: Api) -> None:
    await api.submit(id="alpha-1")
    await api.submit(id="beta-1", array=3)
    assert (await api.job("al"))["id"] == "alpha-1"
    assert (await api.job("beta"))["id"] == "beta-1"
    assert (await api.job("beta.2"))["id"] == "beta-1.2"
    assert (await api.cancel("alp"))["state"] == "cancelled"


async def test_an_ambiguous_prefix_is_refused_and_says_so(api: Api) -> None:
    await api.submit(id="alpha-1")
    await api.submit(id="alpha-2")
    answer = await api.call("GET", "/v1/jobs/alpha")
    assert answer.status in (404, 409, 422)
    assert "several" in answer.problem(answer.status)["detail"]
    assert (await api.call("POST", "/v1/jobs/alpha/cancel")).status == answer.status
    assert await api.state("alpha-1") == "pending"


async def test_a_full_id_wins_over_the_prefix_of_another(api: Api) -> None:
    await api.submit(id="run")
    await api.submit(id="run-2")
    assert (await api.job("run"))["id"] == "run"


async def test_a_name_stands_for_its_newest_job(api: Api) -> None:
    await api.submit(name="mlp")
    newest = await api.submit(name="mlp")
    assert (await api.job("mlp"))["id"] == newest
    array = await api.submit(name="sweep", array=2)
    assert (await api.job("sweep.1"))["id"] == f"{array}.1"


@pytest.mark.parametrize("name", ["%", "_", "*", "x'; drop table jobs; --", "nichts\u00e4", "%00", "..", "a" * 5000])
async def test_an_odd_id_is_simply_not_there(api: Api, name: str) -> None:
    await api.submit(id="one")
    answer = await api.call("GET", f"/v1/jobs/{name}")
    assert answer.status in (404, 422), answer


# Waiting


async def test_wait_holds_the_answer_until_the_job_has_ended(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker()
    task = await worker.take(await api.submit())
    waiting = asyncio.create_task(api.get(f"/v1/jobs/{task.task_id}?wait=600"))
    await worker.beat()
    assert not waiting.done()
    await worker.end(task)
    assert (await asyncio.wait_for(waiting, 60))["state"] == "succeeded"


async def test_wait_answers_with_what_there_is_when_its_seconds_are_over(api: Api) -> None:
    job = await api.submit()
    assert (await api.get(f"/v1/jobs/{job}?wait=0.05"))["state"] == "pending"


async def test_wait_answers_at_once_for_what_has_ended(api: Api) -> None:
    job = await api.submit()
    await api.cancel(job)
    found = await asyncio.wait_for(api.get(f"/v1/jobs/{job}?wait=600"), 60)
    assert found["state"] == "cancelled"


async def test_wait_does_not_miss_an_end_that_comes_while_it_is_asked_for(api: Api) -> None:
    """Between its look at the job and its wait for news there must be no moment in which news gets lost."""
    jobs = (await api.post("/v1/jobs", [{"command": ["true"]}] * 400, 201))["ids"]
    calls = [call for job in jobs for call in (api.cancel(job), api.get(f"/v1/jobs/{job}?wait=600"))]
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*calls)
    assert {found["state"] for found in answers} == {"cancelled"}


@pytest.mark.parametrize("story", ["succeeds", "fails once", "is moved and cancelled", "is lost"])
async def test_whoever_waited_is_told_the_same_as_whoever_looks_afterwards(
    hub: RunningHub, api: Api, story: str
) -> None:
    worker = await hub.worker()
    job = await api.submit(max_retries=1, gpu_count=1 if story == "is moved and cancelled" else 0)
    waiting = asyncio.create_task(api.get(f"/v1/jobs/{job}?wait=600"))
    await hub.turn()
    if story == "is moved and cancelled":
        await api.post(f"/v1/jobs/{job}/priority", {"priority": 7})
        await api.cancel(job)
    else:
        task = await worker.take(job)
        if story == "fails once":
            await worker.end(task, "failed", 3, error="no luck")
            task = await worker.take(job)
        elif story == "is lost":
            worker.forget(task)
            await worker.beat(active=[])
            task = await worker.take(job)
        await worker.end(task, metrics={"loss": 0.25}, peak_memory_mib=77)
    told = await asyncio.wait_for(waiting, 60)
    assert told["finished_at"] is not None
    assert told == await api.job(job)


async def test_wait_for_an_array_lasts_until_all_of_it_has_ended(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker()
    job = await api.submit(array=2)
    first, second = await worker.take_all(f"{job}.0", f"{job}.1")
    whole = asyncio.create_task(api.get(f"/v1/jobs/{job}?wait=600"))
    part = asyncio.create_task(api.get(f"/v1/jobs/{job}.0?wait=600"))
    await hub.turn()
    await worker.beat()
    await worker.end(first)
    assert (await asyncio.wait_for(part, 60))["state"] == "succeeded"
    assert not whole.done()
    await worker.end(second)
    assert (await asyncio.wait_for(whole, 60))["state"] == "succeeded"


async def test_wait_takes_names_and_beginnings_of_ids_as_any_look_does(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker()
    task = await worker.take(await api.submit(name="by-name"))
    asked = [asyncio.create_task(api.get(f"/v1/jobs/{text}?wait=600")) for text in ("by-name", task.task_id[:-1])]
    await worker.beat()
    assert not any(one.done() for one in asked)
    await worker.end(task)
    assert [(await asyncio.wait_for(one, 60))["state"] for one in asked] == ["succeeded"] * 2


async def test_wait_for_somebody_elses_job_is_answered_at_once_as_if_there_were_none(hub: RunningHub) -> None:
    ann, bob = await hub.user("ann"), await hub.user("bob")
    job = await ann.submit()
    (await asyncio.wait_for(bob.call("GET", f"/v1/jobs/{job}?wait=600"), 60)).problem(404)


async def test_a_bad_wait_is_422(api: Api) -> None:
    job = await api.submit()
    (await api.call("GET", f"/v1/jobs/{job}?wait=long")).problem(422)
    assert (await asyncio.wait_for(api.call("GET", f"/v1/jobs/{job}?wait=nan"), 20)).status in (200, 422)


# The feed


async def test_the_feed_tells_every_change_while_it_happens(hub: RunningHub, api: Api) -> None:
    async with api.feed() as feed:
        worker = await hub.worker()
        event = await feed.next()
        assert (event["kind"], event["subject"], event["state"]) == ("worker", "w", "online")
        task = await worker.take(await api.submit())
        await worker.end(task)
        told = [await feed.next() for _ in range(4)]
        assert {event["subject"] for event in told} == {task.task_id}
        assert [event["state"] for event in told] == ["pending", "assigned", "running", "succeeded"]


async def test_the_feed_goes_on_after_the_last_event_that_was_seen(hub: RunningHub, api: Api) -> None:
    async with api.feed() as feed:
        first = await api.submit()
        seen = await feed.next()
        assert seen["subject"] == first
    missed = [await api.submit() for _ in range(3)]
    async with api.feed(after=seen["seq"]) as feed:
        assert [(await feed.next())["subject"] for _ in missed] == missed
        live = await api.submit()
        assert (await feed.next())["subject"] == live


async def test_the_feed_goes_on_across_a_restart_of_the_hub(hub: RunningHub) -> None:
    first = await hub.api.submit()
    second = await hub.api.submit()
    await hub.restart()
    async with hub.api.feed(after=0) as feed:
        assert [(await feed.next())["subject"] for _ in range(2)] == [first, second]
        third = await hub.api.submit()
        assert (await feed.next())["subject"] == third


async def test_a_reader_who_is_far_behind_gets_everything_without_a_pause(hub: RunningHub) -> None:
    """More than one page of history, on a hub that has told nobody anything since it started."""
    count = 2500
    ids = (await hub.api.post("/v1/jobs", [{"command": ["true"]}] * count, 201))["ids"]
    await hub.restart()
    async with asyncio.timeout(60), hub.api.feed(after=0) as feed:
        assert [(await feed.next())["subject"] for _ in range(count)] == ids


async def test_whoever_has_seen_more_than_there_is_hears_what_comes(hub: RunningHub, api: Api) -> None:
    """As after a ledger was restored, whose feed goes on from before that."""
    await api.submit()
    async with api.feed(after=10_000) as feed:
        job = await api.submit()
        assert (await feed.next())["subject"] == job


async def test_a_bad_last_event_id_is_422(api: Api) -> None:
    (await api.call("GET", "/v1/events", headers={"Last-Event-ID": "yesterday"})).problem(422)


# The description


def operations(document: dict[str, Any]) -> set[tuple[str, str]]:
    return {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}


async def test_the_description_lists_every_route(api: Api) -> None:
    document = await api.get("/openapi.json")
    assert document["openapi"].startswith("3.1")
    listed = operations(document)
    assert {(method, path.replace(":path}", "}")) for method, path, _ in calls() if method != "HEAD"} <= listed


async def test_every_route_that_the_description_lists_is_there(api: Api) -> None:
    for method, path in operations(await api.get("/openapi.json")):
        if path == "/v1/events":
            continue
        filled = path.replace("{sha256}", "0" * 64).replace("{", "").replace("}", "")
        answer = await api.call(method, filled)
        assert answer.status != 405, (method, path)
        if answer.status == 404 and method != "HEAD":
            assert "Not Found" not in answer.problem(404)["detail"], (method, path)


async def test_the_description_knows_the_fields_of_a_spec(api: Api) -> None:
    document = await api.get("/openapi.json")
    spec = document["components"]["schemas"]["JobSpec"]["properties"]
    assert {"command", "gpu_count", "min_vram_gb", "array", "labels", "max_runtime_hours"} <= spec.keys()
