"""The names of a manifest's jobs: what a name identifies, and what becomes of jobs that an older version keyed otherwise."""

from pathlib import Path
from typing import Any

import pytest
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub
from tests.protocol.puller import Puller, apply, counts

from ostler.domain.job import Training
from ostler.ledger.base import JobView
from ostler.ledger.sqlite import SqliteLedger
from ostler.manifest import former_job_id

FORMER = """
[defaults]
command = ["train"]

[[jobs]]
name = "done"
seed = 1

[[jobs]]
name = "runs"
seed = 2

[[jobs]]
name = "waits"
min_cores = 64

[[jobs]]
name = "modelled"
model = "gbt"
min_cores = 64
"""


@pytest.fixture
async def former(hub: RunningHub, api: Api, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The manifest FORMER as an older version left it in the ledger: the ids by name. One job has ended, one runs."""
    with monkeypatch.context() as patch:
        patch.setattr("ostler.manifest.specs.job_id", lambda training, name="": former_job_id(training))
        assert counts(await apply(api, FORMER)) == (4, 0, 0, 0)
    done, runs = [(await Puller(hub, hostname).claim())["job_id"] for hostname in ("pi", "box")]
    await Puller(hub, "pi").say(done, "complete")
    await Puller(hub, "box").beat(runs)
    jobs = (await api.get("/v1/jobs"))["jobs"]
    ids = {job["name"]: job["id"] for job in jobs}
    assert ids["waits"] == former_job_id(Training())
    return ids


async def states_of(api: Api) -> dict[str, str]:
    return {job["name"]: job["state"] for job in (await api.get("/v1/jobs"))["jobs"]}


async def test_a_job_without_a_model_does_not_take_the_place_of_another(hub: RunningHub, api: Api) -> None:
    one, two = (
        '[[jobs]]\nname = "train-big"\ncommand = ["train"]',
        '[[jobs]]\nname = "nightly-eval"\ncommand = ["eval"]',
    )
    assert counts(await apply(api, one)) == (1, 0, 0, 0)
    assert counts(await apply(api, two)) == (1, 0, 0, 1)
    commands = {job["name"]: job["spec"]["command"] for job in (await api.get("/v1/jobs"))["jobs"]}
    assert commands == {"train-big": ["train"], "nightly-eval": ["eval"]}


async def test_another_command_under_the_same_name_updates_the_job(hub: RunningHub, api: Api) -> None:
    text = '[[jobs]]\nname = "eval"\nseed = 1\ncommand = ["eval"]'
    await apply(api, text)
    answer = await apply(api, text.replace('["eval"]', '["eval", "--fast"]').replace("seed = 1", "seed = 2"))
    assert counts(answer) == (0, 0, 1, 0)
    (job,) = (await api.get("/v1/jobs"))["jobs"]
    assert (job["spec"]["command"], job["spec"]["training"]["seed"]) == (["eval", "--fast"], 2)


async def test_a_manifest_that_an_older_version_applied_is_unchanged(api: Api, former: dict[str, str]) -> None:
    before = await api.get("/v1/jobs")
    plan = await apply(api, FORMER, "?plan=1")
    answer = await apply(api, FORMER)
    for found in (plan, answer):
        assert counts(found) == (0, 4, 0, 0)
        assert {line["name"]: line["job_id"] for line in found.json()["jobs"]} == former
        assert [line["differs"] for line in found.json()["jobs"]] == [[], [], [], []]
    assert (await api.get("/v1/jobs")) == before


async def test_a_plan_names_the_workers_of_a_job_that_keeps_its_older_id(api: Api, former: dict[str, str]) -> None:
    jobs = (await apply(api, FORMER, "?plan=1")).json()["jobs"]
    assert jobs[0]["workers"] == ["box", "pi"]
    assert "cores" in jobs[2]["why"]


async def test_a_job_that_keeps_its_older_id_is_updated_under_it(api: Api, former: dict[str, str]) -> None:
    changed = FORMER.replace("min_cores = 64", "min_cores = 32", 1).replace("seed = 2", "seed = 3")
    answer = await apply(api, changed)
    assert counts(answer) == (0, 2, 2, 0)
    assert {line["name"]: line["job_id"] for line in answer.json()["jobs"]} == former
    assert (await api.job(former["waits"]))["spec"]["min_cpu_cores"] == 32
    assert counts(await apply(api, changed)) == (0, 4, 0, 0)


async def test_a_job_that_keeps_its_older_id_is_absent_when_its_name_is(api: Api, former: dict[str, str]) -> None:
    answer = await apply(api, FORMER.replace('name = "waits"', 'name = "other"'))
    lines = {line["name"]: (line["change"], line["job_id"] in former.values()) for line in answer.json()["jobs"]}
    assert (lines["other"], lines["waits"]) == (("inserted", False), ("absent", True))
    assert (await states_of(api))["waits"] == "pending"


async def test_a_job_with_a_model_is_not_found_by_its_name(api: Api, former: dict[str, str]) -> None:
    answer = await apply(api, FORMER.replace('model = "gbt"\n', ""))
    lines = [(line["name"], line["change"]) for line in answer.json()["jobs"]]
    assert lines[3:] == [("modelled", "inserted"), ("modelled", "absent")]


async def test_a_requeued_job_with_an_older_id_runs_as_the_manifest_has_it(
    hub: RunningHub, api: Api, former: dict[str, str]
) -> None:
    await apply(api, FORMER.replace('name = "done"', 'name = "done"\ncommand = ["train", "--again"]'))
    await api.post(f"/v1/jobs/{former['done']}/requeue")
    claimed = await Puller(hub, "pi").claim()
    assert (claimed["job_id"], claimed["command"]) == (former["done"], ["train", "--again"])


async def test_a_requeue_reads_only_the_manifest_jobs_of_one_name(
    api: Api, former: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole sweep may be requeued at once, and each reading of all jobs would hold up the hub."""
    read, names = SqliteLedger.manifest_jobs, list[list[str]]()

    def note(ledger: SqliteLedger, **asked: Any) -> list[JobView]:
        found = read(ledger, **asked)
        names.append([view.job.name for view in found])
        return found

    monkeypatch.setattr(SqliteLedger, "manifest_jobs", note)
    await api.post(f"/v1/jobs/{former['done']}/requeue")
    assert names == [["done"]]


async def test_of_several_older_jobs_of_one_name_the_one_that_trains_the_same_is_kept(
    hub: RunningHub, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def text(*seeds: int) -> str:
        return "\n".join(f'[[jobs]]\nname = "eval"\nseed = {seed}\ncommand = ["eval"]' for seed in seeds)

    with monkeypatch.context() as patch:
        patch.setattr("ostler.manifest.specs.job_id", lambda training, name="": former_job_id(training))
        await apply(api, text(1, 2, 3))
    lines: list[dict[str, Any]] = (await apply(api, text(2))).json()["jobs"]
    assert [(line["change"], line["job_id"]) for line in lines] == [
        ("unchanged", former_job_id(Training(seed=2))),
        ("absent", former_job_id(Training(seed=1))),
        ("absent", former_job_id(Training(seed=3))),
    ]
    assert (await apply(api, text(4))).json()["jobs"][0]["job_id"] == former_job_id(Training(seed=3))


ONE = '[[jobs]]\nname = "train-big"\nmodel = "gbt"\ncommand = ["train"]'
OTHER = ONE.replace("train-big", "nightly-eval")


async def test_another_name_for_a_job_is_a_conflict_unless_it_may_replace_it(hub: RunningHub, api: Api) -> None:
    await apply(api, ONE)
    refused = (await apply(api, OTHER)).problem(409)
    assert "'train-big' would become 'nightly-eval'" in refused["detail"]
    plan = (await apply(api, OTHER, "?plan=1")).json()
    assert plan["jobs"][0]["changes"] == [{"key": "name", "old": "train-big", "new": "nightly-eval"}]
    assert "train-big" in await states_of(api)
    assert counts(await apply(api, OTHER, "?replace=1")) == (0, 0, 1, 0)
    assert list(await states_of(api)) == ["nightly-eval"]
    assert counts(await apply(api, OTHER)) == (0, 1, 0, 0)


async def test_an_ended_job_is_listed_by_its_new_name(hub: RunningHub, api: Api) -> None:
    await apply(api, ONE)
    puller = Puller(hub, "pi")
    job = await puller.claim()
    await puller.say(job["job_id"], "complete")
    await apply(api, OTHER, "?replace=1")
    assert await states_of(api) == {"nightly-eval": "succeeded"}
    assert (await api.job(job["job_id"]))["spec"]["name"] == "nightly-eval"
    await hub.restart()
    assert await states_of(hub.api) == {"nightly-eval": "succeeded"}


async def test_a_hub_with_a_file_that_renames_a_job_starts_and_applies_nothing_until_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(ONE)
    hub = RunningHub(tmp_path, manifest=file)
    await hub.start()
    try:
        assert list(await states_of(hub.api)) == ["train-big"]
        file.write_text(OTHER)
        assert "'train-big' would become" in (await hub.api.call("POST", "/v1/manifest/reload")).problem(409)["detail"]
        await hub.restart()
        assert list(await states_of(hub.api)) == ["train-big"]
        assert "'train-big' would become 'nightly-eval'" in caplog.text
        assert counts(await hub.api.call("POST", "/v1/manifest/reload?replace=1")) == (0, 0, 1, 0)
        assert list(await states_of(hub.api)) == ["nightly-eval"]
    finally:
        await hub.stop()
