"""Much at once: thousands of jobs in one request, and lists that are read a page at a time."""

import asyncio
from collections.abc import Awaitable
from itertools import pairwise
from typing import Any

from tests.protocol.api import Api
from tests.protocol.hub import RunningHub
from tests.protocol.puller import apply, counts

from ostler.core.portions import AT_ONCE
from ostler.hub.api.fleet import FleetApi

MANY = 3 * AT_ONCE


async def most_between_turns(hub: RunningHub, doing: Awaitable[Any]) -> tuple[int, Any]:
    """How many jobs came at most while nobody else had the event loop, and the answer."""
    loop, seen = asyncio.get_running_loop(), [0]

    def look() -> None:
        seen.append(len(hub._hub.loop.fleet.jobs))
        handle[0] = loop.call_soon(look)

    handle = [loop.call_soon(look)]
    answer = await doing
    handle[0].cancel()
    return max(after - before for before, after in pairwise(seen)), answer


async def test_thousands_of_specs_in_one_submit_leave_others_their_turn(hub: RunningHub, api: Api) -> None:
    specs = [{"command": ["train", str(number)], "gpu_count": 8} for number in range(MANY)]
    most, answer = await most_between_turns(hub, api.call("POST", "/v1/jobs", json=specs))
    assert (answer.status, len(answer.json()["ids"])) == (201, MANY)
    assert 0 < most <= AT_ONCE
    assert (await api.get("/v1/status"))["jobs"]["pending"] == MANY


async def test_metrics_never_show_half_a_submit(hub: RunningHub, api: Api) -> None:
    specs = [{"command": ["train", str(number)], "gpu_count": 8} for number in range(MANY)]
    submitting = asyncio.create_task(api.call("POST", "/v1/jobs", json=specs))
    while not (jobs := hub._hub.loop.fleet.jobs):  # noqa: ASYNC110 (nothing tells of half a submit)
        await asyncio.sleep(0)
    assert len(jobs) < MANY
    nothing: Any = None
    fleet_api = FleetApi(hub._hub.loop, nothing, hub._hub.metrics, nothing, 0.0, nothing)
    told = bytes((await fleet_api.metrics(nothing)).body).decode()
    assert f'ostler_jobs{{state="pending"}} {MANY}.0' in told
    await submitting


async def test_a_manifest_of_thousands_of_jobs_leaves_others_their_turn(hub: RunningHub, api: Api) -> None:
    text = f'[[sweeps]]\nname = "s-{{lr}}"\nmodel = "m"\ncommand = ["train"]\ngrid = {{ lr = {list(range(MANY))} }}\n'
    most, answer = await most_between_turns(hub, apply(api, text))
    assert counts(answer) == (MANY, 0, 0, 0)
    assert 0 < most <= AT_ONCE
    assert counts(await apply(api, text)) == (0, MANY, 0, 0)


async def test_a_bad_spec_among_thousands_is_named_by_its_place_and_none_is_taken(hub: RunningHub, api: Api) -> None:
    specs: list[Any] = [{"command": ["true"], "gpu_count": 8} for _ in range(MANY)]
    specs[-1]["gpu_count"] = -1
    answer = await api.call("POST", "/v1/jobs", json=specs)
    assert [error["where"] for error in answer.problem(422)["errors"]] == [f"[{MANY - 1}].gpu_count"]
    assert not hub._hub.loop.fleet.jobs


async def test_workers_are_listed_a_page_at_a_time_in_order_of_their_names(hub: RunningHub, api: Api) -> None:
    for name in ("c", "a", "d", "b"):
        await hub.worker(name)
    first = await api.get("/v1/workers?limit=3")
    assert ([worker["id"] for worker in first["workers"]], first["next"]) == (["a", "b", "c"], "c")
    rest = await api.get(f"/v1/workers?limit=3&cursor={first['next']}")
    assert ([worker["id"] for worker in rest["workers"]], rest["next"]) == (["d"], None)
    whole = await api.get("/v1/workers?limit=4")
    assert (len(whole["workers"]), whole["next"]) == (4, None)
    assert len((await api.get("/v1/workers?backend=nvidia"))["workers"]) == 0
    (await api.call("GET", "/v1/workers?limit=0")).problem(422)


async def test_jobs_that_have_ended_are_counted_without_being_in_memory(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker()
    for state, code in (("succeeded", 0), ("succeeded", 0), ("failed", 1)):
        await worker.end(await worker.take(await api.submit()), state, code)
    await api.until("/v1/status", lambda status: sum(status["ended"].values()) == 3)
    assert not hub._hub.loop.fleet.jobs
    await worker.leave()
    await hub.restart()
    ended = (await hub.api.get("/v1/status"))["ended"]
    assert {state: count for state, count in ended.items() if count} == {"succeeded": 2, "failed": 1}
