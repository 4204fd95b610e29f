"""`ostler.toml`: what it may hold, what is said about what it may not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.process_fleet import OSTLER
from tests.protocol.hub import RunningHub

from ostler import config
from ostler.domain.errors import BadInput
from ostler.domain.quota import Quota, Quotas
from ostler.domain.scheduling import Scheduling
from ostler.hub.settings import load

WHOLE = """
[templates.finetune]
command = ["python", "finetune.py"]
gpu_count = 1
labels = ["zone = eu"]
env = { HF_HOME = "/data/hf" }

[quotas]
running_gpus = 4
queued_jobs = 100

[quotas.users.ann]
running_gpus = 8
running_jobs = 3
[quotas.users.bob]
queued_jobs = 0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ostler.toml"


def test_templates_and_quotas_are_read(file: Path) -> None:
    file.write_text(WHOLE)
    found = load(file)
    assert found.templates == {
        "finetune": {
            "command": ["python", "finetune.py"],
            "gpu_count": 1,
            "labels": ["zone = eu"],
            "env": {"HF_HOME": "/data/hf"},
        }
    }
    assert found.quotas.of("somebody") == Quota(running_gpus=4, queued_jobs=100)


def test_a_users_quota_is_everybodys_except_for_what_it_says(file: Path) -> None:
    file.write_text(WHOLE)
    quotas = load(file).quotas
    assert quotas.of("ann") == Quota(running_gpus=8, running_jobs=3, queued_jobs=100)
    assert quotas.of("bob") == Quota(running_gpus=4), "0 lifts everybody's limit"


def test_without_a_file_nothing_is_limited(tmp_path: Path) -> None:
    found = load(config.config_file(None, tmp_path))
    assert (found.templates, found.quotas.of("anybody")) == ({}, Quota())


def test_the_flag_goes_before_the_variable_and_that_before_the_state_folder(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("")
    assert config.config_file(None, file.parent) == file
    monkeypatch.setenv("OSTLER_CONFIG", "/of/variable.toml")
    assert config.config_file(None, file.parent) == Path("/of/variable.toml")
    assert config.config_file("/of/flag.toml", file.parent) == Path("/of/flag.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("template = {}", "template: unknown key 'template'; did you mean 'templates'?"),
        ("[colours]", "colours: unknown key 'colours'; known are templates, quotas"),
        ("[quotas]\nrunning_gpu = 1", "quotas.running_gpu: unknown key 'running_gpu'; did you mean 'running_gpus'?"),
        ("[quotas.user.ann]", "quotas.user: unknown key 'user'; did you mean 'users'?"),
        ("[quotas.users.ann]\ngpus = 1", "quotas.users.ann.gpus: unknown key 'gpus'; "),
        ("[quotas]\nrunning_gpus = -1", "quotas.running_gpus: Expected `int` >= 0"),
        ("[quotas.users.ann]\nrunning_jobs = 'two'", "quotas.users.ann.running_jobs: Expected `int`, got `str`"),
        ("[quotas.users.gateway]\nrunning_gpus = 1", "quotas.users.gateway: no quota limits models"),
        ("quotas = 3", "quotas: must be a table: [quotas]"),
        ("[templates]\nfinetune = 1", "templates.finetune: must be a table: [templates.finetune]"),
        (
            "[templates.a]\ngpu_counts = 1",
            "templates.a.gpu_counts: unknown field 'gpu_counts'; did you mean 'gpu_count'?",
        ),
        ("[templates.a]\ngpu_count = -1", "templates.a.gpu_count: Expected `int` >= 0"),
        ("[templates.a]\nlabels = ['zone is eu']", "templates.a.labels: "),
        ("[templates.a]\nid = 'x'", "templates.a.id: must not be in a template"),
        ("[templates.a]\ntemplate = 'b'", "templates.a.template: must not be in a template"),
        ("hosts = 'ostler.lab'", "hosts: must be a list of names in quotes"),
        ("hosts = ['not a name']", "hosts: must be a list of names in quotes"),
        ("hosts = ['https://']", "hosts: must be a list of names in quotes"),
        ("[limits]\nfailed_logins = 0", "limits.failed_logins: Expected `int` >= 1"),
        ("[limits]\nrequest_per_s = 1", "limits.request_per_s: unknown key 'request_per_s'; did you mean"),
        ("[limits]\nburst = 'much'", "limits.burst: Expected `float`"),
        ('[quotas.users."a\\"\\\\q.b"]\ngpus = 1', 'quotas.users."a\\"\\\\q.b".gpus: unknown key'),
        ("[templates]\n'a.b' = 1", 'templates."a.b": must be a table: [templates."a.b"]'),
        ("[quotas", "is not TOML: "),
    ],
)
def test_what_is_wrong_is_said_with_the_file_the_key_and_the_nearest_right_one(
    file: Path, text: str, said: str
) -> None:
    file.write_text(text)
    with pytest.raises(BadInput) as caught:
        load(file)
    where, _, what = str(caught.value).partition(": ")
    assert where in (str(file), f"{file}:1", f"{file}:2")
    assert what.startswith(said)


def test_a_hub_with_a_wrong_settings_file_does_not_start_and_exits_with_2(tmp_path: Path) -> None:
    chosen = tmp_path / "elsewhere.toml"
    chosen.write_text("[quotas]\nrunning_gpu = 1\n")
    arguments = ["hub", "--port", "0", "--state-dir", str(tmp_path / "state"), "--config", str(chosen)]
    ended = subprocess.run([*OSTLER, *arguments], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr == (
        f"ostler hub: {chosen}:2: quotas.running_gpu: unknown key 'running_gpu'; did you mean 'running_gpus'?\n"
    )
    chosen.unlink()
    ended = subprocess.run([*OSTLER, *arguments], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (
        2,
        f"ostler hub: {chosen}: cannot be read: No such file or directory\n",
    )


def test_config_show_tells_templates_and_quotas_and_where_they_come_from(file: Path) -> None:
    file.write_text(WHOLE)
    command = [sys.executable, "-m", "ostler", "config", "show", "--json", "--state-dir", str(file.parent)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    rows = {row["setting"]: row for row in json.loads(shown.stdout)["settings"]}
    assert "gpu_count = 1" in rows["templates.finetune"]["value"]
    assert rows["quotas"] == {"setting": "quotas", "value": "running_gpus = 4, queued_jobs = 100", "from": str(file)}
    assert rows["quotas.users.ann"]["value"] == "running_gpus = 8, running_jobs = 3, queued_jobs = 100"


async def test_a_hub_takes_no_more_jobs_into_its_queue_than_a_user_may_have_there(hub: RunningHub) -> None:
    hub.settings.quotas = Quotas(default=Quota(queued_jobs=1), users={"ann": Quota(queued_jobs=2)})
    await hub.restart()
    for name, many in (("ann", 2), ("bob", 1)):
        user = await hub.user(name)
        for _ in range(many):
            await user.submit()
        refused = (await user.call("POST", "/v1/jobs", json={"command": ["true"]})).problem(429)
        assert "queued_jobs" in refused["detail"]
        asked = await user.call("POST", "/v1/whatif", json={"spec": {"command": ["true"]}})
        assert asked.problem(429)["detail"] == refused["detail"]


def test_when_jobs_get_holds_and_what_devices_count_is_read(file: Path) -> None:
    file.write_text('[scheduling]\nhold_after = "5m"\n[scheduling.weights]\nA100 = 3\nt4 = 0.5\n')
    assert load(file).scheduling == Scheduling(hold_after_s=300.0, weights={"a100": 3.0, "t4": 0.5})
    file.write_text('[scheduling]\nclaim_lease = "20m"\n')
    assert load(file).scheduling == Scheduling(claim_lease_s=1200.0)
    file.write_text('[scheduling]\nhold_after = "never"\n')
    assert not load(file).scheduling.holds
    file.write_text("")
    assert load(file).scheduling.hold_after_s == 600.0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[scheduling]\nclaim_lease = true", "scheduling.claim_lease: must be a duration like '10m'"),
        ('[scheduling]\nclaim_lease = "30s"', "scheduling.claim_lease: must be at least 120 s"),
        ("[scheduling]\nhold_after = true", "scheduling.hold_after: must be a duration like '10m', or 'never'"),
        ('[scheduling]\nhold_after = "soon"', "scheduling.hold_after"),
        ("[scheduling]\nholdafter = 3", "did you mean 'hold_after'?"),
        ("[scheduling.weights]\na100 = 0", "scheduling.weights.a100: must be a number above 0"),
        ('[scheduling.weights]\na100 = "big"', "scheduling.weights.a100: must be a number above 0"),
    ],
)
def test_what_is_said_of_scheduling_and_makes_no_sense_is_refused(file: Path, text: str, told: str) -> None:
    file.write_text(text)
    with pytest.raises(BadInput) as caught:
        load(file)
    assert told in str(caught.value)
