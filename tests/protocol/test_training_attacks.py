"""The training fleet's hub under strangers: what they say is bounded, what they hear is true, and it goes on."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.protocol.api import Api
from tests.protocol.client import Assignment
from tests.protocol.fuzzing import Stranger
from tests.protocol.hub import RunningHub
from tests.protocol.puller import MANIFEST, Puller, apply, bundle, cuda

ROUNDS = 60


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_strangers_say_the_hub_goes_on(hub: RunningHub, seed: int) -> None:
    stranger = Stranger(hub, seed)
    for _ in range(ROUNDS):
        await stranger.round()


# What is said is bounded


@pytest.mark.parametrize(
    ("extra", "status"),
    [
        (b'"\xff\xfe"', 400),
        (b'"\\ud800"', 400),
        (b"9" * 5000, 422),
        (b"1e999", 422),
        (b"[" * 900 + b"]" * 900, 422),
        (b'{"a":' * 900 + b"1" + b"}" * 900, 422),
    ],
)
async def test_no_machine_can_make_the_list_of_workers_unreadable(
    hub: RunningHub, api: Api, extra: bytes, status: int
) -> None:
    await Puller(hub, "pi").why_not()
    said = b'{"hostname": "pi", "capability": {"cpu_cores": 1, "ram_available_gib": 1, "more": ' + extra + b"}}"
    assert (await hub.caller(hub.join_token).call("POST", "/v1/job/claim", data=said)).problem(status)
    (worker,) = (await api.get("/v1/workers"))["workers"]
    assert worker["capability"]["cpu_cores"] == 4


async def test_progress_that_is_nested_too_deep_is_not_kept(hub: RunningHub, api: Api) -> None:
    job_id = await api.submit()
    pi = Puller(hub, "pi")
    await pi.claim()
    await pi.beat(job_id, progress={"epoch": [1, {"of": 3}]})
    assert (await api.job(job_id))["progress"] == {"epoch": [1, {"of": 3}]}
    await pi.beat(job_id, progress=json.loads("[" * 400 + "]" * 400))
    assert (await api.job(job_id))["progress"] is None


# What is heard is true


async def test_an_end_is_answered_with_what_became_of_the_job(hub: RunningHub, api: Api) -> None:
    pi = Puller(hub, "pi")
    cancelled = await api.submit()
    await pi.claim()
    await api.cancel(cancelled)
    assert (await pi.say(cancelled, "complete")).json() == {"job_id": cancelled, "status": "cancelled"}
    retried = await api.submit(max_retries=1)
    for status in ("pending", "failed"):
        await pi.claim()
        assert (await pi.say(retried, "fail", error="boom")).json()["status"] == status


async def test_gpus_that_the_manifest_keeps_back_are_hidden_from_the_task(hub: RunningHub, api: Api) -> None:
    await apply(api, "[hosts.box]\ncapability = { gpu_count = 0 }\n" + MANIFEST)
    claim = await Puller(hub, "box").claim(said=cuda((24.0, 24.0), (24.0, 24.0)))
    assert (claim["devices"], claim["env"]) == ([], {"CUDA_VISIBLE_DEVICES": ""})


async def test_a_state_is_itself_and_a_status_is_all_that_it_stands_for(hub: RunningHub, api: Api) -> None:
    running, orphan = await api.submit(), await api.submit(priority=1)
    box = await hub.worker("box", slots=1)
    await box.take(orphan)
    await hub.lose(box)
    pi = Puller(hub, "pi")
    await pi.claim()
    await pi.beat(running)

    async def listed(query: str) -> set[str]:
        return {job["id"] for job in (await api.get(f"/v1/jobs?{query}"))["jobs"]}

    assert await listed("status=running") == {running, orphan}
    assert await listed("state=running") == {running}
    assert await listed("status=orphaned") == await listed("state=orphaned") == {orphan}
    assert "claimed" in (await api.call("GET", "/v1/jobs?status=done")).problem(422)["detail"]


async def test_users_find_the_manifests_jobs_as_they_find_their_own(hub: RunningHub, api: Api) -> None:
    await apply(api)
    ann = await hub.user("ann")
    found = (await ann.get("/v1/jobs/gbt-realistic"))["id"]
    assert (await ann.get(f"/v1/jobs/{found[:12]}"))["id"] == found
    assert (await ann.call("POST", "/v1/jobs/gbt-realistic/cancel")).problem(403)
    own = (await ann.post("/v1/jobs", {"command": ["true"], "name": "gbt-realistic"}, 201))["id"]
    assert (await ann.get("/v1/jobs/gbt-realistic"))["id"] == own


async def test_a_job_by_hand_in_the_way_of_a_manifest_is_named_with_its_entry(hub: RunningHub, api: Api) -> None:
    planned = (await apply(api, query="?plan=1")).json()["jobs"]
    ids = {line["name"]: line["job_id"] for line in planned}
    await api.submit(id=ids["gbt-realistic"])
    told = (await apply(api)).problem(409)["detail"]
    assert told.startswith("gbt-realistic: ")
    assert ids["gbt-realistic"] in told
    assert "another seed" in told


async def test_a_job_by_hand_in_the_way_of_an_entry_without_a_model_asks_for_another_name(api: Api) -> None:
    text = '[[jobs]]\nname = "eval"\ncommand = ["eval"]'
    (line,) = (await apply(api, text, "?plan=1")).json()["jobs"]
    await api.submit(id=line["job_id"])
    told = (await apply(api, text)).problem(409)["detail"]
    assert told.endswith("give the entry another name")


async def test_a_job_by_hand_in_the_way_of_its_manifest_does_not_keep_a_hub_from_starting(
    hub: RunningHub, tmp_path: Path
) -> None:
    planned = (await apply(hub.api, query="?plan=1")).json()["jobs"]
    await (await hub.user("ann")).post("/v1/jobs", {"command": ["true"], "id": planned[0]["job_id"]}, 201)
    hub.manifest = tmp_path / "fleet.toml"
    hub.manifest.write_text(MANIFEST)
    await hub.restart()
    assert len((await hub.api.get("/v1/jobs"))["jobs"]) == 1
    assert (await hub.api.call("POST", "/v1/manifest/reload")).problem(409)


async def test_a_plan_does_not_count_on_a_machine_that_has_stopped_asking(hub: RunningHub, api: Api) -> None:
    await Puller(hub, "pi").why_not()

    async def planned() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await apply(api, query="?plan=1")).json()["jobs"]
        return found

    assert {tuple(line["workers"]) for line in await planned()} == {("pi",)}
    await hub.pass_time(130)
    assert {tuple(line["workers"]) for line in await planned()} == {()}
    assert "pi has not been heard of for 130 s" in (await planned())[0]["why"]


async def test_no_name_is_no_sweep(hub: RunningHub, api: Api) -> None:
    await apply(api)
    assert (await api.call("GET", "/v1/sweeps/")).problem(404)
    assert (await api.call("POST", "/v1/sweeps//cancel")).problem(404)
    assert {job["status"] for job in (await api.get("/v1/jobs"))["jobs"]} == {"pending"}


async def test_a_sweep_may_have_any_name(hub: RunningHub, api: Api) -> None:
    name = "ö/%2F {lr}/cancel?"
    text = f'[defaults]\ncommand = ["true"]\n[[sweeps]]\nname = "{name}"\nmodel = "m"\ngrid = {{ lr = [1, 2] }}'
    assert (await apply(api, text)).status == 200
    spelt = "%C3%B6/%252F%20%7Blr%7D/cancel%3F"
    assert (await api.get(f"/v1/sweeps/{spelt}"))["counts"] == {"pending": 2}
    assert (await api.post(f"/v1/sweeps/{spelt}/cancel"))["counts"] == {"cancelled": 2}


# Who may


async def test_a_workers_own_token_writes_no_log_of_another(hub: RunningHub, api: Api) -> None:
    async def puller(name: str) -> Puller:
        return Puller(hub, name, (await api.post("/v1/tokens", {"role": "worker", "user": name}, 201))["token"])

    async def write(who: Puller, claim: dict[str, Any]) -> int:
        path = f"/v1/tasks/{claim['job_id']}/logs?attempt={claim['attempt']}&offset=0"
        return (await who.api.call("POST", path, data=b"hello\n")).status

    await api.submit()
    pi, mac = await puller("pi"), await puller("mac")
    claim = await pi.claim()
    assert await write(mac, claim) == 403
    assert await write(pi, claim) == 200
    await pi.say(claim["job_id"], "complete")
    assert await write(mac, claim) == 403
    assert (await api.call("GET", f"/v1/jobs/{claim['job_id']}/logs")).body == b"hello\n"


@pytest.mark.parametrize("operator_first", [True, False])
@pytest.mark.parametrize("other", ["Basic Zm9vOmJhcg==", "Bearer {join}"])
async def test_an_operators_token_counts_whatever_came_with_it(
    hub: RunningHub, api: Api, other: str, operator_first: bool
) -> None:
    job_id = await api.submit()
    headers = [("X-Operator-Token", hub.admin_token), ("Authorization", other.format(join=hub.join_token))]
    nobody = hub.caller("")
    answer = await nobody.call("POST", f"/v1/job/{job_id}/cancel", headers=headers if operator_first else headers[::-1])
    assert answer.json()["status"] == "cancelled"


# A name that is used in two ways


async def test_a_machine_that_comes_back_with_a_connection_keeps_what_it_had_claimed(hub: RunningHub, api: Api) -> None:
    job_id = await api.submit()
    claim = await Puller(hub, "pi").claim()
    box = hub.stranger("pi")
    task = Assignment(job_id, claim["attempt"], {})
    box.holding.append(task)
    await hub.join(box, [task])
    await hub.pass_time(700, [box])
    assert (await api.job(job_id))["state"] == "running"
    assert (await Puller(hub, "pi").say(job_id, "heartbeat")).problem(409)
    await box.end(task)
    assert (await api.job(job_id))["state"] == "succeeded"


async def test_a_name_whose_worker_is_away_with_a_task_cannot_claim_and_hears_why(hub: RunningHub, api: Api) -> None:
    job_id = await api.submit()
    box = await hub.worker("box")
    await box.take(job_id)
    await hub.lose(box)
    assert "may still run" in (await Puller(hub, "box").ask()).problem(409)["detail"]


async def test_outputs_that_a_task_names_count_as_young_from_before_the_commit_that_names_them(
    hub: RunningHub, api: Api
) -> None:
    await api.submit()
    pi = Puller(hub, "pi")
    claim = await pi.claim()
    sha256 = await pi.upload(bundle(a=b"b"))
    stored = hub.state / "artifacts" / "objects" / sha256[:2] / sha256
    os.utime(stored, (0, 0))
    assert (await pi.say(claim["job_id"], "complete", artifact_id=sha256, attempt="not this one")).status == 409
    assert (await api.post("/v1/artifacts/gc?older_than_s=3600"))["removed"] == []
    assert stored.exists()


async def test_the_artifact_of_a_job_that_was_cancelled_meanwhile_is_nobodys(hub: RunningHub, api: Api) -> None:
    job_id = await api.submit()
    pi = Puller(hub, "pi")
    await pi.claim()
    sha256 = await pi.upload(bundle(a=b"b"))
    await api.cancel(job_id)
    assert (await pi.say(job_id, "complete", artifact_id=sha256)).status == 200
    assert (await api.job(job_id))["artifact_id"] is None
    assert (await api.get("/v1/artifacts"))["artifacts"] == []
    os.utime(hub.state / "artifacts" / "objects" / sha256[:2] / sha256, (0, 0))
    assert (await api.post("/v1/artifacts/gc?older_than_s=0"))["removed"][0]["id"] == sha256
