"""A spec that names a template is laid over it."""

from pathlib import Path
from typing import Any

import pytest
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub

from ostler.hub.settings import load

TEMPLATES = """
[templates.finetune]
command = ["python", "finetune.py"]
gpu_count = 1
priority = 5
labels = ["zone = eu"]
env = { HF_HOME = "/data/hf", RATE = "0.1" }
metadata = { team = "vision" }

[templates.evaluate]
job_tier = "evaluation"
min_vram_gb = 12
"""


@pytest.fixture
async def templates(hub: RunningHub, tmp_path: Path) -> Api:
    """An operator of a hub that knows two templates."""
    file = tmp_path / "ostler.toml"
    file.write_text(TEMPLATES)
    hub.settings = load(file)
    await hub.restart()
    return hub.api


async def spec_of(api: Api, **given: Any) -> dict[str, Any]:
    created = await api.post("/v1/jobs", given, 201)
    spec: dict[str, Any] = (await api.job(created["id"]))["spec"]
    return spec


async def test_the_whole_spec_is_kept_together_with_the_templates_name(templates: Api) -> None:
    spec = await spec_of(templates, template="finetune")
    assert spec["template"] == "finetune"
    assert (spec["command"], spec["gpu_count"], spec["priority"]) == (["python", "finetune.py"], 1, 5)


async def test_what_the_spec_says_goes_before_what_the_template_says(templates: Api) -> None:
    spec = await spec_of(templates, template="finetune", command=["true"], priority=0, gpu_count=2)
    assert (spec["command"], spec["gpu_count"], spec.get("priority", 0)) == (["true"], 2, 0)


async def test_variables_and_metadata_are_merged_by_name_and_labels_add_up(templates: Api) -> None:
    spec = await spec_of(
        templates,
        template="finetune",
        env={"RATE": "0.5", "SEED": "1"},
        metadata={"run": 7},
        labels=["driver >= 550", "zone = eu"],
    )
    assert spec["env"] == {"HF_HOME": "/data/hf", "RATE": "0.5", "SEED": "1"}
    assert spec["metadata"] == {"team": "vision", "run": 7}
    assert spec["labels"] == ["zone = eu", "driver >= 550"]


async def test_an_amount_that_the_spec_leaves_open_begins_with_the_templates(templates: Api) -> None:
    spec = await spec_of(templates, template="evaluate", command=["x"], min_vram_gb="auto")
    assert (spec["min_vram_gb"], spec["first_vram_gb"]) == ("auto", 12)
    spec = await spec_of(templates, template="evaluate", command=["x"], min_vram_gb="auto", first_vram_gb=3)
    assert spec["first_vram_gb"] == 3


async def test_each_spec_of_many_may_name_its_own_template(templates: Api) -> None:
    specs = [{"template": "finetune"}, {"template": "evaluate", "command": ["true"]}, {"command": ["true"]}]
    ids = (await templates.post("/v1/jobs", specs, 201))["ids"]
    found = [(await templates.job(job_id))["spec"] for job_id in ids]
    assert [spec.get("gpu_count", 0) for spec in found] == [1, 0, 0]
    assert found[1]["job_tier"] == "evaluation"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("finetunes", "there is no template 'finetunes'; did you mean 'finetune'? known are evaluate, finetune"),
        ("xyz", "there is no template 'xyz'; known are evaluate, finetune"),
    ],
)
async def test_an_unknown_template_is_422_with_the_known_ones_and_the_nearest(
    templates: Api, name: str, said: str
) -> None:
    one = await templates.call("POST", "/v1/jobs", json={"template": name})
    assert one.problem(422)["errors"] == [{"where": "template", "what": said}]
    many = await templates.call("POST", "/v1/jobs", json=[{"command": ["true"]}, {"template": name}])
    assert many.problem(422)["errors"] == [{"where": "[1].template", "what": said}]
    assert not (await templates.get("/v1/jobs"))["jobs"]


async def test_a_hub_without_templates_says_so(api: Api) -> None:
    answer = await api.call("POST", "/v1/jobs", json={"template": "finetune"})
    assert "this hub has none" in answer.problem(422)["detail"]


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({"template": 5}, "template"),
        ({"template": "evaluate"}, "command"),
        ({"template": "finetune", "env": ["RATE"]}, "env"),
        ({"template": "finetune", "gpus": 1}, "gpus"),
    ],
)
async def test_what_is_wrong_with_the_whole_is_refused_as_ever(templates: Api, spec: Any, where: str) -> None:
    answer = await templates.call("POST", "/v1/jobs", json=spec)
    assert where in [error["where"] for error in answer.problem(422)["errors"]]


async def test_the_same_id_and_words_again_are_the_same_job(templates: Api) -> None:
    spec = {"id": "mine", "template": "finetune"}
    await templates.post("/v1/jobs", spec, 201)
    await templates.post("/v1/jobs", spec, 200)
