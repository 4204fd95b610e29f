"""The manifest over HTTP: what an apply answers, and what everybody sees of it."""

from pathlib import Path

import pytest
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub
from tests.protocol.puller import MANIFEST, Puller, apply, counts


async def test_an_apply_is_idempotent_and_counts_what_it_did(hub: RunningHub, api: Api) -> None:
    assert counts(await apply(api, query="?plan=1")) == (5, 0, 0, 0)
    assert (await api.get("/v1/jobs"))["jobs"] == []
    assert counts(await apply(api)) == (5, 0, 0, 0)
    assert counts(await apply(api)) == (0, 5, 0, 0)
    assert counts(await apply(api, "# nothing but a remark\n" + MANIFEST.replace("= 6", "= 6.0"))) == (0, 5, 0, 0)
    changed = MANIFEST.replace('mode = "realistic"', 'mode = "realistic"\npriority = 4')
    answer = await apply(api, changed)
    assert counts(answer) == (0, 4, 1, 0)
    (line,) = [line for line in answer.json()["jobs"] if line["change"] == "updated"]
    assert line["differs"] == ["priority"]
    assert counts(await apply(api, changed.split("[[sweeps]]")[0])) == (0, 1, 0, 4)
    assert len((await api.get("/v1/jobs"))["jobs"]) == 5


@pytest.mark.parametrize("end", ["fail", "complete"])
async def test_a_job_that_is_requeued_runs_as_the_manifest_has_it_by_then(hub: RunningHub, api: Api, end: str) -> None:
    """Until then it says what it ran with."""
    text = '[[jobs]]\nname = "a"\nmodel = "gbt"\ncommand = ["trian"]\n'
    await apply(api, text)
    puller = Puller(hub, "pi")
    job = await puller.claim()
    assert (await puller.say(job["job_id"], end)).status == 200
    answer = await apply(api, text.replace("trian", "train"))
    (line,) = answer.json()["jobs"]
    assert (line["change"], line["differs"]) == ("unchanged", ["command"])
    ident = job["job_id"]
    assert (await api.job(ident))["spec"]["command"] == ["trian"]
    await api.post(f"/v1/jobs/{ident}/requeue")
    assert (await puller.claim())["command"] == ["train"]
    assert (await api.job(ident))["spec"]["command"] == ["train"]


async def test_a_restart_of_the_hub_keeps_what_the_manifest_says_of_hosts(hub: RunningHub, api: Api) -> None:
    await apply(api, '[hosts.pi]\nallow_jobs = ["mlp"]\n' + MANIFEST.split("[[sweeps]]")[0])
    assert "whitelist" in await Puller(hub, "pi").why_not()
    await hub.restart()
    assert "whitelist" in await Puller(hub, "pi").why_not()
    text = await hub.api.call("GET", "/v1/manifest")
    assert text.body.decode().startswith("[hosts.pi]")


async def test_a_bad_manifest_names_file_line_and_key_and_nothing_is_applied(hub: RunningHub, api: Api) -> None:
    bad = MANIFEST.replace('mode = "realistic"', 'mood = "realistic"\nmin_cores = "two"')
    problem = (await apply(api, bad, "?file=/home/ann/fleet.toml")).problem(422)
    told = {error["where"]: error["what"] for error in problem["errors"]}
    assert set(told) == {"fleet.toml:7: jobs[0].mood", "fleet.toml:8: jobs[0].min_cores"}
    assert "did you mean 'mode'" in told["fleet.toml:7: jobs[0].mood"]
    assert (await api.get("/v1/jobs"))["jobs"] == []
    assert (await api.call("GET", "/v1/manifest")).problem(404)
    assert "manifest.toml:1: " in (await apply(api, "[[")).problem(400)["detail"]


async def test_a_plan_says_who_could_run_each_job_now_under_the_new_policy(hub: RunningHub, api: Api) -> None:
    await hub.worker("box")
    await Puller(hub, "pi").why_not()
    text = '[hosts.box]\ndeny_jobs = ["mlp"]\n' + MANIFEST
    jobs = (await apply(api, text, "?plan=1")).json()["jobs"]
    assert jobs[0]["workers"] == ["box", "pi"]
    assert jobs[1]["workers"] == ["pi"]
    none = MANIFEST.replace('mode = "realistic"', 'mode = "realistic"\nrequire_cuda = true')
    (first, *_) = (await apply(api, none, "?plan=1")).json()["jobs"]
    assert first["workers"] == []
    assert "no CUDA" in first["why"]


async def test_only_an_operator_applies_and_everybody_may_look(hub: RunningHub, api: Api) -> None:
    ann = await hub.user("ann")
    assert (await apply(ann)).problem(403)
    await apply(api)
    jobs = (await ann.get("/v1/jobs?status=pending"))["jobs"]
    assert len(jobs) == 5
    await ann.get(f"/v1/jobs/{jobs[0]['id']}")
    assert (await ann.call("POST", f"/v1/jobs/{jobs[0]['id']}/cancel")).problem(403)


async def test_a_hub_without_a_file_has_nothing_to_reload(hub: RunningHub, api: Api) -> None:
    assert "ostler apply" in (await api.call("POST", "/v1/manifest/reload")).problem(422)["detail"]


async def test_a_hub_with_a_file_follows_it_from_its_start_and_when_told(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(MANIFEST)
    hub = RunningHub(tmp_path, manifest=file)
    await hub.start()
    try:
        assert len((await hub.api.get("/v1/jobs"))["jobs"]) == 5
        assert counts(await hub.api.call("POST", "/v1/manifest/reload")) == (0, 5, 0, 0)
        file.write_text(MANIFEST.replace("[64, 128]", "[64, 128, 256]"))
        assert counts(await hub.api.call("POST", "/v1/manifest/reload")) == (2, 5, 0, 0)
        file.write_text("[[")
        assert "fleet.toml" in (await hub.api.call("POST", "/v1/manifest/reload")).problem(422)["detail"]
    finally:
        await hub.stop()


# Sweeps


async def test_a_sweep_is_one_thing_with_its_progress_and_its_best_run(hub: RunningHub, api: Api) -> None:
    await apply(api)
    pi = Puller(hub, "pi")
    for accuracy in (None, 0.7, 0.9):
        job = await pi.claim()
        metrics = {} if accuracy is None else {"accuracy": accuracy, "loss": 1 - accuracy}
        assert (await pi.say(job["job_id"], "complete", metrics=metrics)).status == 200
    (sweep,) = (await api.get("/v1/sweeps"))["sweeps"]
    assert (sweep["name"], sweep["total"], sweep["goal"]) == ("mlp-{lr}-{width}", 4, "max")
    assert sweep["counts"] == {"completed": 2, "pending": 2}
    assert (sweep["best"]["value"], sweep["best"]["hyper"]) == (0.9, {"lr": 0.1, "width": 128})
    shown = await api.get("/v1/sweeps/mlp?metric=loss")
    assert (shown["goal"], shown["best"]["value"]) == ("min", pytest.approx(0.1))
    assert [point["hyper"]["width"] for point in shown["jobs"]] == [64, 128, 64, 128]


async def test_a_sweep_is_cancelled_and_requeued_as_a_whole(hub: RunningHub, api: Api) -> None:
    await apply(api)
    assert (await api.post("/v1/sweeps/mlp/cancel"))["counts"] == {"cancelled": 4}
    assert (await api.post("/v1/sweeps/mlp/requeue"))["counts"] == {"pending": 4}
    assert (await api.call("GET", "/v1/sweeps/other")).problem(404)


async def test_the_status_tells_of_the_manifest_and_of_what_failed(hub: RunningHub, api: Api) -> None:
    assert (await api.get("/v1/status"))["manifest"] is None
    await apply(api)
    pi = Puller(hub, "pi")
    job = await pi.claim()
    await pi.say(job["job_id"], "fail", error="exit code 1: ValueError: no such solver", exit_code=1)
    status = await api.get("/v1/status")
    assert status["manifest"]["counts"] == {"failed": 1, "pending": 4}
    (failed,) = status["manifest"]["failed"]
    assert (failed["name"], failed["reason"]) == ("gbt-realistic", "exit code 1: ValueError: no such solver")
    assert failed["worker"] == "pi"
