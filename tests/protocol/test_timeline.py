"""What ran where and when, as the dashboard draws it."""

import pytest
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub

from ostler.hub.access import Caller
from ostler.hub.api.timeline import as_seen_by


async def test_blocks_tell_what_ran_and_runs_on_which_device(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(gpu_backend="nvidia", gpu_count=2, vram_gb=48.0)
    ended = await worker.take(await api.submit(name="ended", gpu_count=1))
    await worker.end(ended, "failed", 3)
    running = await worker.take(await api.submit(name="running", gpu_count=2))
    found = await api.get("/v1/timeline")
    blocks = {block["name"]: block for block in found["blocks"]}
    assert (blocks["ended"]["state"], blocks["ended"]["devices"]) == ("failed", ended.devices)
    assert blocks["ended"]["finished_at"] is not None
    assert (blocks["running"]["state"], sorted(blocks["running"]["devices"])) == ("running", [0, 1])
    assert (blocks["running"]["finished_at"], blocks["running"]["attempt"]) == (None, running.attempt)
    [machine] = found["machines"]
    assert (machine["id"], [device["index"] for device in machine["devices"]]) == ("w", [0, 1])
    assert not found["cut"]


async def test_a_machine_that_was_away_is_shown_as_such_from_when_to_when(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker()
    await hub.lose(worker)
    [gap] = (await api.get("/v1/timeline"))["away"]
    assert (gap["worker"], gap["state"], gap["until"]) == ("w", "offline", None)
    assert gap["reason"]
    await hub.pass_time(5.0)
    await hub.worker()
    [gap] = (await api.get("/v1/timeline"))["away"]
    assert gap["until"] is not None


async def test_only_what_ran_between_the_two_times_is_shown(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker()
    await worker.end(await worker.take(await api.submit(name="long ago")))
    await hub.pass_time(7200.0, beating=[worker])
    await worker.end(await worker.take(await api.submit(name="just now")))
    assert [block["name"] for block in (await api.get("/v1/timeline"))["blocks"]] == ["just now"]
    everything = await api.get("/v1/timeline?since=0")
    assert [block["name"] for block in everything["blocks"]] == ["just now", "long ago"]
    assert (await api.get("/v1/timeline?since=0&limit=1"))["cut"]
    await api.get("/v1/timeline?since=yesterday", status=422)


async def test_others_see_that_something_ran_and_not_what(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker()
    await worker.end(await worker.take(await api.submit(name="secret")))
    ann = await hub.user("ann")
    [block] = (await ann.get("/v1/timeline"))["blocks"]
    assert (block["name"], block["job_id"], block["user"], block["worker"]) == ("", "", "", "w")


def test_what_ran_for_a_job_that_is_gone_is_nobodys_to_see_but_who_sees_all() -> None:
    block = {"attempt": "a", "task_id": "t", "job_id": "j", "reason": "r", "worker": "w"}
    seen = {role: as_seen_by(Caller(role, "ann", "1"), block, None) for role in ("user", "operator")}
    assert [seen["user"][name] for name in ("attempt", "task_id", "job_id", "reason")] == ["", "", "", ""]
    assert seen["operator"]["job_id"] == "j"


@pytest.mark.parametrize("until", ["999999999999", "253402300800", "-1", "nan", "soon"])
async def test_what_is_no_time_is_refused(api: Api, until: str) -> None:
    assert "no time in seconds" in (await api.call("GET", f"/v1/timeline?until={until}")).problem(422)["detail"]
