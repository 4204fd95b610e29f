"""The pull API over plain HTTP: claims, heartbeats, ends, and who may say what."""

import asyncio
from pathlib import Path

import pytest
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub
from tests.protocol.puller import Puller, apply, bundle, capability, cuda

from ostler.domain.scheduling import Scheduling
from ostler.hub.settings import Settings


async def test_a_claim_brings_all_that_is_needed_to_run_it(hub: RunningHub, api: Api) -> None:
    await apply(api)
    pi = Puller(hub, "pi")
    job = await pi.claim()
    assert job["model"] == "gbt"
    assert (job["mode"], job["hyper"], job["name"]) == ("realistic", {"depth": 6}, "gbt-realistic")
    assert job["command"] == ["train", "--model", "gbt", "--depth", "6", "--out", "$OSTLER_OUT"]
    assert (job["env"], job["lease_s"], job["status"]) == ({}, 600, "claimed")
    assert (await api.job(job["job_id"]))["status"] == "claimed"
    assert await pi.beat(job["job_id"], progress={"epoch": 3}) is False
    shown = await api.job(job["job_id"])
    assert (shown["status"], shown["progress"]) == ("running", {"epoch": 3})
    assert (await pi.say(job["job_id"], "complete", attempt=job["attempt"])).status == 200
    assert (await api.job(job["job_id"]))["status"] == "completed"


async def test_a_claim_is_answered_with_the_lease_that_the_settings_name(tmp_path: Path) -> None:
    hub = RunningHub(tmp_path)
    hub.settings = Settings(scheduling=Scheduling(claim_lease_s=120.0))
    await hub.start()
    try:
        job_id = await hub.api.submit()
        old = await Puller(hub, "p1").claim()
        assert old["lease_s"] == 120
        await hub.restart()
        await hub.pass_time(121)
        assert (await Puller(hub, "p2").claim())["job_id"] == job_id
    finally:
        await hub.stop()


async def test_ordinary_jobs_are_claimed_too(hub: RunningHub, api: Api) -> None:
    job_id = await api.submit(command=["echo", "hi"], env={"A": "b"}, array=2)
    job = await Puller(hub, "pi").claim()
    assert (job["job_id"], job["command"], job["env"]) == (
        f"{job_id}.0",
        ["echo", "hi"],
        {"A": "b", "OSTLER_INDEX": "0"},
    )


async def test_of_200_concurrent_claimers_each_of_100_jobs_has_one(hub: RunningHub, api: Api) -> None:
    jobs = "".join(f'[[jobs]]\nmodel = "m{number}"\n' for number in range(100))
    await apply(api, f'[defaults]\ncommand = ["true"]\n{jobs}')
    pullers = [Puller(hub, f"host{number}") for number in range(200)]
    answers = await asyncio.gather(*[puller.ask() for puller in pullers])
    won = [answer.json()["job_id"] for answer in answers if answer.status == 200]
    assert len(won) == len(set(won)) == 100
    assert sum(answer.status == 204 for answer in answers) == 100


async def test_the_reason_of_a_204_names_the_nearest_job_and_what_it_needs(hub: RunningHub, api: Api) -> None:
    pi = Puller(hub, "pi")
    assert await pi.why_not() == "nothing waits"
    await api.submit(name="großes\nModell", min_cpu_cores=32)
    told = await pi.why_not()
    assert "needs 32 cores; pi has 4 free of 4" in told
    assert told.isascii() and told.isprintable()


async def test_a_claim_that_is_silent_for_its_lease_is_claimed_by_another(hub: RunningHub, api: Api) -> None:
    job_id = await api.submit()
    first, second = Puller(hub, "one"), Puller(hub, "two")
    old = await first.claim()
    await hub.pass_time(590)
    assert (await api.job(job_id))["status"] == "claimed"
    await hub.pass_time(20)
    assert (await api.job(job_id))["status"] == "pending"
    new = await second.claim()
    assert new["attempt"] != old["attempt"]
    assert (await first.say(job_id, "heartbeat")).problem(409)
    assert (await first.say(job_id, "complete", attempt=old["attempt"])).problem(409)
    assert (await second.say(job_id, "complete")).status == 200
    job = await api.job(job_id)
    assert (job["status"], job["worker"]) == ("completed", "two")
    assert [(one["worker"], one["state"]) for one in job["attempts"]] == [("one", "lost"), ("two", "succeeded")]


async def test_the_fourth_lapse_fails_the_job_with_the_reason(hub: RunningHub, api: Api) -> None:
    job_id = await api.submit()
    for number in range(4):
        await Puller(hub, f"host{number}").claim()
        await hub.pass_time(610)
    job = await api.job(job_id)
    assert job["status"] == "failed"
    assert "host3 sent no heartbeat for 600 s; lost 4 times, max_attempts is 3" in job["reason"]


@pytest.mark.parametrize("word", ["heartbeat", "complete", "fail"])
async def test_only_the_worker_that_has_a_job_speaks_about_it(hub: RunningHub, api: Api, word: str) -> None:
    job_id = await api.submit()
    pi, mac = Puller(hub, "pi"), Puller(hub, "mac")
    await pi.claim()
    assert (await mac.say(job_id, word)).problem(409)
    assert (await pi.say(job_id, word, attempt="another")).problem(409)
    assert (await mac.say("nothing", word)).problem(404)
    assert (await api.job(job_id))["status"] == "claimed"


async def test_an_end_may_be_said_again_also_after_a_restart_of_the_hub(hub: RunningHub, api: Api) -> None:
    done, failed = await api.submit(), await api.submit()
    pi = Puller(hub, "pi")
    await pi.claim()
    await pi.claim()
    for _ in range(2):
        assert (await pi.say(done, "complete")).status == 200
        assert (await pi.say(failed, "fail", error="boom", exit_code=3)).status == 200
    await hub.restart()
    pi = Puller(hub, "pi")
    assert (await pi.say(done, "complete")).status == 200
    assert (await pi.say(failed, "fail")).status == 200
    assert (await pi.say(done, "fail")).problem(409)
    job = await hub.api.job(failed)
    assert (job["reason"], job["exit_code"]) == ("boom", 3)


async def test_a_restart_of_the_hub_loses_no_claim(hub: RunningHub, api: Api) -> None:
    job_id = await api.submit()
    await Puller(hub, "pi").claim()
    await hub.restart(away_s=1000)
    assert (await hub.api.job(job_id))["status"] == "claimed"
    pi = Puller(hub, "pi")
    assert await pi.beat(job_id) is False
    assert (await hub.api.job(job_id))["status"] == "running"


async def test_a_cancelled_job_is_told_so_and_an_operator_may_requeue_it_from_any_state(
    hub: RunningHub, api: Api
) -> None:
    job_id = await api.submit()
    pi = Puller(hub, "pi")
    await pi.claim()
    assert (await api.post(f"/v1/job/{job_id}/cancel"))["status"] == "cancelled"
    assert await pi.beat(job_id) is True
    assert (await pi.say(job_id, "fail", error="cancelled")).status == 200
    assert (await api.post(f"/v1/job/{job_id}/requeue"))["status"] == "pending"
    await pi.claim()
    assert (await api.post(f"/v1/job/{job_id}/requeue"))["status"] == "pending"
    assert "nothing waits" in await pi.why_not()
    assert await pi.beat(job_id) is True
    assert (await pi.say(job_id, "complete")).problem(409)
    await pi.claim()
    assert (await pi.say(job_id, "complete")).status == 200
    assert (await api.post(f"/v1/job/{job_id}/requeue"))["status"] == "pending"


async def test_a_machine_that_leaves_hands_its_job_back_at_no_cost(hub: RunningHub, api: Api) -> None:
    job_id = await api.submit()
    pi = Puller(hub, "pi")
    await pi.claim()
    assert (await pi.say(job_id, "fail", error="leaving", returned=True)).status == 200
    assert (await api.job(job_id))["status"] == "pending"
    await pi.claim()


async def test_a_machine_that_hands_jobs_back_by_its_own_fault_spends_attempts_and_is_left_alone(
    hub: RunningHub, api: Api
) -> None:
    job_id = await api.submit()
    pi = Puller(hub, "pi")
    for _ in range(3):
        await pi.claim()
        await pi.say(job_id, "fail", error="its disk is full", returned=True, fault="worker")
    job = await api.job(job_id)
    assert job["status"] == "pending"
    assert [attempt["state"] for attempt in job["attempts"]] == 3 * ["returned"]
    assert "cools down" in await pi.why_not()


async def test_a_claim_names_the_last_attempt_that_succeeded(hub: RunningHub, api: Api) -> None:
    job_id = await api.submit()
    pi = Puller(hub, "pi")
    first = await pi.claim()
    assert first["after"] == ""
    await pi.say(job_id, "complete")
    for end in ("fail", "fail"):
        await api.post(f"/v1/jobs/{job_id}/requeue")
        assert (await pi.claim())["after"] == first["attempt"]
        await pi.say(job_id, end)


async def test_an_artifact_is_named_where_it_is_found_and_its_metrics_are_kept(hub: RunningHub, api: Api) -> None:
    await apply(api)
    pi = Puller(hub, "pi")
    job = await pi.claim()
    unknown = await pi.say(job["job_id"], "complete", artifact_id="0" * 64)
    assert "unknown artifact" in str(unknown.problem(422)["errors"])
    assert (await pi.say(job["job_id"], "complete", artifact_id="../../etc")).problem(422)
    data = bundle(metrics_jsonl=b'{"accuracy": 0.5}\n{"accuracy": 0.75, "note": "x"}\n')
    sha256 = await pi.upload(data)
    assert (await pi.say(job["job_id"], "complete", artifact_id=sha256)).status == 200
    assert (hub.state / "artifacts" / "gbt_realistic" / sha256 / "bundle.tar").read_bytes() == data
    shown = await api.job(job["job_id"])
    assert (shown["artifact_id"], shown["metrics"]) == (sha256, {"accuracy": 0.75})


async def test_machines_that_only_claim_are_listed_with_what_they_last_sent(hub: RunningHub, api: Api) -> None:
    await api.submit()
    said = cuda((24.0, 20.0), torch_version="2.9", extra={"anything": 1})
    await Puller(hub, "gpu").claim(said=said)
    (worker,) = (await api.get("/v1/workers"))["workers"]
    assert (worker["id"], worker["hostname"], worker["capability"]) == ("gpu", "gpu", said)
    assert (worker["status"], worker["backend"], worker["gpu_count"]) == ("busy", "nvidia", 1)
    await Puller(hub, "idle").why_not()
    assert (await api.worker("idle"))["status"] == "ready"
    await hub.pass_time(130)
    assert (await api.worker("idle"))["status"] == "offline"


async def test_a_constraint_names_the_torch_of_a_machine_that_only_claims(hub: RunningHub, api: Api) -> None:
    job = await api.submit(labels=["torch >= 2.9"])
    assert "needs torch >= 2.9" in await Puller(hub, "old").why_not(said=capability(torch_version="2.3.1"))
    assert (await Puller(hub, "new").claim(said=capability(torch_version="2.10.0+cpu")))["job_id"] == job


async def test_a_machine_that_claims_with_long_names_is_asked_for_by_type_and_by_name(
    hub: RunningHub, api: Api
) -> None:
    said = cuda((24.0, 24.0))
    said["cuda_devices"][0]["name"] = "NVIDIA GeForce RTX 4090"
    box = Puller(hub, "box")
    for name in ("rtx4090", "NVIDIA GeForce RTX 4090"):
        job = await api.submit(gpu_count=1, gpu_type=name)
        assert (await box.claim(said=said))["job_id"] == job
        assert (await box.say(job, "complete")).status == 200
    await api.submit(gpu_count=1, gpu_type="a100")
    assert "needs GPU type a100; box has RTX4090" in await box.why_not(said=said)


async def test_a_type_is_not_promised_by_a_machine_whose_gpus_differ(hub: RunningHub, api: Api) -> None:
    said = cuda((24.0, 24.0), (8.0, 8.0))
    said["cuda_devices"][0]["name"], said["cuda_devices"][1]["name"] = "NVIDIA GeForce RTX 4090", "Tesla T4"
    await api.submit(gpu_count=1, gpu_type="rtx4090")
    assert "has no GPU of a known type" in await Puller(hub, "box").why_not(said=said)


async def test_a_gpu_is_granted_by_its_number_and_the_others_are_hidden(hub: RunningHub, api: Api) -> None:
    await api.submit(gpu_backend="nvidia", gpu_count=1, min_vram_gb=20)
    await api.submit()
    box = Puller(hub, "box")
    said = cuda((8.0, 8.0), (24.0, 24.0))
    assert (await box.claim(said=said))["env"]["CUDA_VISIBLE_DEVICES"] == "1"
    assert (await box.claim(said=said))["env"]["CUDA_VISIBLE_DEVICES"] == ""


async def test_what_was_seen_free_bounds_what_is_given(hub: RunningHub, api: Api) -> None:
    await api.submit(min_vram_gb=8, gpu_count=0)
    box = Puller(hub, "box")
    assert "vram_free 2.0 GiB < 8.0 GiB" in await box.why_not(said=cuda((24.0, 2.0)))
    assert "vram_free 0.0 GiB < 8.0 GiB" in await box.why_not()
    await box.claim(said=cuda((24.0, 9.0)))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 422),
        (b"{}", 422),
        (b'{"hostname": "", "capability": {"cpu_cores": 1, "ram_available_gib": 1}}', 422),
        (b'{"hostname": "a\\nb", "capability": {"cpu_cores": 1, "ram_available_gib": 1}}', 422),
        (b'{"hostname": "a\\n", "capability": {"cpu_cores": 1, "ram_available_gib": 1}}', 422),
        (b'{"hostname": "pi"}', 422),
        (b'{"hostname": "pi", "capability": 3}', 422),
        (b'{"hostname": "pi", "capability": {"cpu_cores": -1, "ram_available_gib": 1}}', 422),
        (b'{"hostname": "pi", "capability": {"cpu_cores": 1, "ram_available_gib": "much"}}', 422),
        (b'{"hostname": "pi", "capability": {"cpu_cores": 1e400, "ram_available_gib": 1}}', 422),
    ],
)
async def test_a_claim_that_says_something_else_is_refused(hub: RunningHub, body: bytes, status: int) -> None:
    answer = await hub.caller(hub.join_token).call("POST", "/v1/job/claim", data=body)
    assert answer.problem(status)


async def test_a_name_with_a_connection_cannot_claim(hub: RunningHub, api: Api) -> None:
    await hub.worker("box")
    assert "another name" in (await Puller(hub, "box").ask()).problem(409)["detail"]


async def test_who_may_claim_and_who_may_operate(hub: RunningHub, api: Api) -> None:
    job_id = await api.submit()
    user = await hub.user("ann")
    body = {"hostname": "pi", "capability": capability()}
    assert (await user.call("POST", "/v1/job/claim", json=body)).problem(403)
    assert (await hub.caller("").call("POST", "/v1/job/claim", json=body)).problem(401)
    assert (await user.call("POST", f"/v1/job/{job_id}/cancel")).problem(403)
    own = (await api.post("/v1/tokens", {"role": "worker", "user": "pi"}, 201))["token"]
    assert (await Puller(hub, "mac", own).ask()).problem(403)
    assert (await Puller(hub, "pi", own).ask()).status == 200
    nobody = hub.caller("")
    answer = await nobody.call("POST", f"/v1/job/{job_id}/cancel", headers={"X-Operator-Token": hub.admin_token})
    assert answer.status == 200
    assert (await nobody.get("/v1/health"))["status"] == "ok"
