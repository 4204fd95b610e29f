"""A worker of the original make at a real hub: each of its messages counts, and it can read each frame of the hub."""

import hashlib
import json
from typing import Any

import pytest
from tests.originals.go_json import CannotUnmarshal, struct
from tests.originals.go_worker import SPEC, GoWorker, go_tool, go_worker, unmarshal
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub

GIB = 1024**3
A100 = {"gpu_type": "A100", "count": 2, "driver": "550.54.15", "mem_total": 160 * GIB}
GPUS = {"gpu_backend": "nvidia", "gpu_count": 2, "gpu_type": "A100", "vram_gb": 160.0, "gpu_info": A100}


def sent_spec(worker: GoWorker) -> dict[str, Any]:
    """The spec of the last assignment, as it came."""
    payload: dict[str, Any] = json.loads(worker.frames[-1])["payload"]
    spec: dict[str, Any] = payload["spec"]
    return spec


async def blob(api: Api, data: bytes = b"the files") -> str:
    """A snapshot that the hub has."""
    name = hashlib.sha256(data).hexdigest()
    assert (await api.call("PUT", f"/v1/snapshots/{name}", data=data)).status in (200, 201)
    return name


def test_the_client_decodes_by_the_rules_of_go() -> None:
    kind = struct("T", n="int", f="float64", s="string")
    assert kind.unmarshal('{"n": null, "f": 3, "more": [1]}') == {"n": 0, "f": 3.0, "s": ""}
    for wrong in ('{"n": 8.0}', '{"n": 1e3}', '{"n": "8"}', '{"n": true}', '{"s": 5}', '{"f": "x"}'):
        with pytest.raises(CannotUnmarshal):
            kind.unmarshal(wrong)
    with pytest.raises(CannotUnmarshal):
        unmarshal('{"type": "job_assign", "payload": {"spec": {"min_cpu_cores": 8.0}, "remaining_time": 1}}')


async def test_a_job_goes_its_whole_way(hub: RunningHub, api: Api) -> None:
    """Register, heartbeat, ready, accept and result, with a nil slice and a nil map wherever Go would send one."""
    async with go_worker(hub, **GPUS) as worker:
        await worker.register(active=None)
        await worker.ask()
        await worker.expect("no_work")
        job = await api.submit(gpu_count=2, gpu_type="a100", command=["train", "--fast"])
        await worker.ask()
        spec = await worker.take(job)
        assert (spec["command"], spec["gpu_count"], spec["type"]) == (["train", "--fast"], 2, "batch")
        await worker.beat()
        assert await api.state(job) == "running"
        await worker.end(job)
        assert await api.state(job) == "succeeded"
        await worker.quiet()


async def test_a_gpu_memory_in_bytes_is_accepted(hub: RunningHub, api: Api) -> None:
    async with go_worker(hub, gpu_info={"mem_total": 2**64 - 1, "devices": ["0", "1"]}) as worker:
        await worker.register()
        assert (await api.worker(worker.name))["status"] == "ready"


async def test_null_for_the_active_tasks_of_a_heartbeat_means_that_none_is_active(hub: RunningHub, api: Api) -> None:
    async with go_worker(hub) as worker:
        await worker.register()
        await worker.beat()
        job = await api.submit()
        await worker.take(job)
        await worker.quiet()
        await worker.send_raw("heartbeat", {"worker_id": worker.name, "active_tasks": None})
        await worker.expect("ack")
        await worker.take(job)  # it was lost, and is placed again
        assert len((await api.job(job))["attempts"]) == 2


async def test_a_submit_with_nulls_is_a_submit_without_them(hub: RunningHub, api: Api) -> None:
    text = SPEC.marshal(id="go-job", command=["true"], type="batch", job_tier="training", node_count=1)
    assert '"env": null' in text and '"metadata": null' in text
    await api.post("/v1/jobs", json.loads(text), 201)
    assert (await api.job("go-job"))["spec"].get("env", {}) == {}
    problem = (await api.call("POST", "/v1/jobs", json={"command": None, "env": None, "nmae": "x"})).problem(422)
    assert [error["where"] for error in problem["errors"]] == ["nmae", "command"]


async def test_the_fields_that_the_original_needs_are_sent_at_their_defaults_too(hub: RunningHub, api: Api) -> None:
    async with go_worker(hub) as worker:
        await worker.register()
        await worker.beat()
        await worker.take(await api.submit())
        spec = sent_spec(worker)
        assert (spec["type"], spec["slot_pool"], spec["node_count"], spec["env"]) == ("batch", "batch", 1, {})
        assert (spec["max_runtime_hours"], spec["metadata"]) == (24, {})


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({"min_cpu_cores": 8}, {"min_cpu_cores": 8}),
        ({"min_cpu_cores": 1.5}, {"min_cpu_cores": 2}),
        ({"max_runtime_hours": 0.25}, {"max_runtime_hours": 1}),
        ({"max_runtime_hours": 500}, {"max_runtime_hours": 168}),
        ({"min_vram_gb": 16.5, "gpu_count": 1}, {"min_vram_gb": 16.5}),
        ({"min_vram_gb": "auto"}, {"min_vram_gb": 80.0, "gpu_count": 1}),
        ({"min_vram_gb": "auto", "first_vram_gb": 10}, {"min_vram_gb": 10.0, "gpu_count": 0}),
        ({"min_memory_gb": "auto", "first_memory_gb": 3}, {"min_memory_gb": 3.0}),
        ({"gpu_share": 0.25}, {"min_vram_gb": 20.0}),
        ({"metadata": {"team": "nlp", "runs": 3, "on": {"a": 1.0}}}, {"metadata": {"team": "nlp"}}),
        ({"snapshot_id": "snap-2026"}, {"snapshot_id": "snap-2026", "snapshot_sha": ""}),
    ],
)
async def test_numbers_and_labels_are_sent_as_the_original_reads_them(
    hub: RunningHub, api: Api, asked: dict[str, Any], sent: dict[str, Any]
) -> None:
    async with go_worker(hub, **GPUS) as worker:
        await worker.register()
        await worker.beat()
        spec = await worker.take(await api.submit(**asked))
        assert {name: spec[name] for name in sent} == sent


async def test_a_task_of_an_array_and_a_member_of_a_gang_know_their_place(hub: RunningHub, api: Api) -> None:
    async with go_worker(hub) as worker:
        await worker.register()
        await worker.beat()
        job = await api.submit(array=2, env={"A": "b"})
        for index in range(2):
            spec = await worker.take(f"{job}.{index}")
            assert spec["env"] == {"A": "b", "OSTLER_INDEX": str(index)}
        async with go_worker(hub, "other") as other:
            await other.register()
            await other.beat()
            gang = await api.submit(node_count=2)
            members = [await worker.take(), await other.take()]
        assert {member["env"]["RANK"]: member["id"] for member in members} == {"0": f"{gang}.0", "1": f"{gang}.1"}
        assert {member["env"]["WORLD_SIZE"] for member in members} == {"2"}


async def test_a_run_time_budget_that_no_integer_holds_is_the_longest_there_is(hub: RunningHub, api: Api) -> None:
    async with go_worker(hub) as worker:
        worker.slots["service_total"] = 1
        await worker.register()
        await worker.beat()
        await worker.take(await api.submit(type="service", max_runtime_hours=5_000_000))


async def test_objects_of_the_metadata_travel_beside_its_strings(hub: RunningHub, api: Api) -> None:
    async with go_worker(hub) as worker:
        await worker.register()
        await worker.beat()
        job = await api.submit(metadata={"team": "nlp", "runs": 3}, metadata_json={"on": {"a": [1.0]}})
        await worker.take(job)
        assert sent_spec(worker)["metadata_json"] == {"runs": 3, "on": {"a": [1.0]}}
        assert '"a":[1.0]' in worker.frames[-1]
        assert (await api.job(job))["spec"]["metadata"] == {"team": "nlp", "runs": 3, "on": {"a": [1.0]}}


async def test_a_service_is_assigned_and_its_health_is_shown(hub: RunningHub, api: Api) -> None:
    async with go_worker(hub) as worker:
        worker.slots["service_total"] = 1
        await worker.register()
        await worker.beat()
        check = {"liveness": "/live", "readiness": "/ready", "interval_secs": 2.5}
        job = await api.submit(type="service", health_check=check)
        spec = await worker.take(job)
        assert (spec["type"], spec["slot_pool"], spec["max_runtime_hours"]) == ("service", "service", 0)
        assert spec["health_check"] == {"liveness": "/live", "readiness": "/ready", "interval_secs": 3}
        await worker.send("service_health", task_id=job, healthy=False, message="no answer on /ready")
        await worker.quiet()
        assert (await api.job(job))["health"] == "no answer on /ready"


async def test_the_metrics_come_over_the_same_socket(hub: RunningHub) -> None:
    async with go_worker(hub) as worker:
        await worker.register()
        await worker.send("metrics_request")
        assert "ostler_" in (await worker.expect("metrics_response"))["text"]


async def test_a_cancelled_job_is_stopped_and_its_end_counts(hub: RunningHub, api: Api) -> None:
    async with go_worker(hub) as worker:
        await worker.register()
        await worker.beat()
        job = await api.submit()
        await worker.take(job)
        await worker.quiet()
        await api.cancel(job)
        cancel = await worker.expect("job_cancel")
        assert (cancel["task_id"], cancel["reason"]) == (job, "cancelled")
        await worker.end(job, "cancelled", exit_code=-1)
        assert (await api.worker(worker.name))["tasks"] == []


async def test_a_result_of_an_unknown_state_fails_the_task_and_names_the_state(hub: RunningHub, api: Api) -> None:
    async with go_worker(hub) as worker:
        await worker.register()
        await worker.beat()
        job = await api.submit()
        await worker.take(job)
        await worker.end(job, "timed_out", exit_code=1, error="took too long")
        document = await api.job(job)
        assert document["state"] == "failed"
        assert document["reason"] == "unknown result state 'timed_out'; took too long"


async def test_a_hint_names_the_same_blob_as_the_assignment(hub: RunningHub, api: Api) -> None:
    sha256 = await blob(api)
    async with go_worker(hub, slots=1) as worker:
        await worker.register()
        await worker.beat()
        first = await api.submit()
        await worker.take(first)
        await worker.quiet()
        second = await api.submit(snapshot_id="snap-2026", snapshot_sha=sha256)
        hint = await worker.expect("prewarm_hint")
        assert (hint["task_id"], hint["snapshot_id"], hint["snapshot_sha"]) == (second, "snap-2026", sha256)
        await worker.end(first)
        spec = await worker.take(second)
        assert (spec["snapshot_id"], spec["snapshot_sha"]) == ("snap-2026", sha256)


async def test_a_model_is_never_assigned_and_why_names_that(hub: RunningHub, api: Api) -> None:
    async with go_worker(hub) as worker:
        worker.slots["service_total"] = 1
        await worker.register()
        await worker.beat()
        job = await api.submit(type="model")
        await worker.quiet()
        assert "speaks version 1 of the worker protocol" in (await api.why(job))["summary"]


async def test_tools_of_the_original_read_the_workers(hub: RunningHub, api: Api) -> None:
    async with go_worker(hub, cpu_count=6, **GPUS) as worker, go_tool(hub) as tool:
        await worker.register()
        await worker.beat()
        await hub.worker("half-core", cpu_count=2.5)
        job = await api.submit(gpu_count=1)
        await worker.take(job)
        await worker.quiet()
        await tool.send("worker_list_request")
        workers = (await tool.expect("worker_list_response"))["workers"]
        assert [(one["id"], one["cpu_count"]) for one in workers] == [("gpu-worker-1", 6), ("half-core", 3)]
        await tool.send("worker_show_request", worker_id=worker.name)
        shown = await tool.expect("worker_show_response")
        assert shown["worker"]["active_jobs"] == 1
        assert [one["task_id"] for one in shown["jobs"]] == [job]


async def test_a_worker_takes_its_task_back_after_a_restart_of_the_hub(hub: RunningHub, api: Api) -> None:
    async with go_worker(hub) as worker:
        await worker.register()
        await worker.beat()
        job = await api.submit()
        await worker.take(job)
        await worker.quiet()
    await hub.restart()
    async with go_worker(hub) as again:
        await again.register(active=[{"task_id": job, "state": "running"}])
        assert await hub.api.state(job) == "running"
        await again.end(job)
        assert await hub.api.state(job) == "succeeded"
