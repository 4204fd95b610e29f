"""`ostler models`: against a real hub with real models, on terminals of several widths, and without any hub."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from tests.cli.test_render import lines_of
from tests.ports import free_port
from tests.process_fleet import OSTLER, TWO_A100, ProcessFleet

from ostler.cli.render.models import model_line, model_table, took_text

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests" / "gateway" / "config" / "llama-swap.yaml"
MODELS = f"""
[gateway]
scheduler = "fifo"
api_keys = ["sk-test"]
[gateway.macros]
tiny = "{{python}} '{ROOT}/examples/models/tiny_server.py' --port ${{PORT}} --name ${{MODEL_ID}}"
[gateway.groups.turns]
members = ["org/one", "two"]
[models."org/one"]
cmd = "${{tiny}}"
aliases = ["uno"]
[models.two]
cmd = "${{tiny}}"
[models.broken]
cmd = "${{tiny}} --fail"
[models.never]
cmd = "${{tiny}}"
gpus = 64
"""


class FleetWithModels(ProcessFleet):
    gateway: int

    def begin(self) -> None:
        config = self.folder / "ostler.toml"
        config.write_text(MODELS)
        self.gateway = free_port()
        self.hub_options = ("--config", str(config), "--gateway-port", str(self.gateway))
        self.start_hub()
        self.start_worker("box", offer=TWO_A100, drain_s=1)
        self.await_workers("box")

    def models(self) -> dict[str, Any]:
        return {model["name"]: model for model in self.json("models")["models"]}

    def asked(self, model: str) -> Any:
        headers = {"Authorization": "Bearer sk-test", "Content-Type": "application/json"}
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Why is the"}]})
        url = f"http://127.0.0.1:{self.gateway}/v1/chat/completions"
        return urllib3.request("POST", url, body=body, headers=headers, timeout=60, retries=False)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetWithModels]:
    fleet = FleetWithModels(tmp_path_factory.mktemp("fleet"))
    try:
        fleet.begin()
        yield fleet
        for name in ("org/one", "two"):
            fleet.run("models", "unload", name)
    finally:
        fleet.close()


def test_a_model_is_loaded_used_swapped_and_unloaded(fleet: FleetWithModels) -> None:
    done = fleet.run("models", "load", "uno", "--wait")
    assert (done.returncode, done.stdout) == (0, "org/one is ready on box\n"), done.stderr
    answer = fleet.asked("org/one")
    assert (answer.status, answer.json()["model"]) == (200, "org/one"), answer.data
    assert fleet.run("models", "logs", "org/one").stdout == "org/one is ready\n"
    assert fleet.asked("two").status == 200
    models = fleet.models()
    assert (models["two"]["state"], models["org/one"]["state"]) == ("ready", "stopped"), "they take turns"
    assert fleet.run("models", "logs", "uno").stdout == "org/one is ready\n", "also of one that has ended"
    lines = fleet.run("models").stdout.splitlines()
    assert lines[0].split() == "MODEL STATE WORKER SERVING WAITING SERVED IDLE LOAD VRAM".split()
    assert next(line for line in lines if line.startswith("two")).split()[:4] == ["two", "●", "ready", "box"]
    done = fleet.run("models", "unload", "two")
    assert (done.returncode, done.stdout.startswith("two is stop")) == (0, True), done.stderr


def test_a_pinned_model_says_so(fleet: FleetWithModels) -> None:
    assert ", pinned" in fleet.run("models", "pin", "two").stdout
    assert fleet.json("models", "pin", "two")["pinned"] is True
    assert "pinned" in fleet.run("models").stdout
    assert fleet.json("models", "unpin", "two")["pinned"] is False


def test_a_changed_file_counts_when_it_is_reloaded_and_a_broken_one_is_told_of(fleet: FleetWithModels) -> None:
    file = fleet.folder / "ostler.toml"
    file.write_text(MODELS + '[models.third]\ncmd = "${tiny}"\n')
    # Under load the hub may have seen for itself that the file changed.
    assert fleet.run("models", "reload").stdout in ("added third\n", "nothing has changed\n")
    assert "third" in fleet.models()
    file.write_text(MODELS + "[models.third]\ncmd = 3\n")
    done = fleet.run("models", "reload")
    assert (done.returncode, "models.third.cmd" in done.stderr) == (2, True), done.stderr
    shown = fleet.run("models")
    assert "third" in shown.stdout
    assert "what counts is not what the file says" in shown.stderr and "models.third.cmd" in shown.stderr
    file.write_text(MODELS)
    assert fleet.json("models", "reload")["removed"] in (["third"], [])
    assert "third" not in fleet.models()
    assert fleet.run("models").stderr == ""


def test_a_model_that_cannot_be_loaded_says_why(fleet: FleetWithModels) -> None:
    done = fleet.run("models", "load", "broken", "--wait")
    assert (done.returncode, "broken is" in done.stdout) == (1, True), done.stdout
    assert "ostler models logs broken" in done.stdout and "as --fail asks for" not in done.stdout
    assert "as --fail asks for" in fleet.run("models", "logs", "broken").stdout
    row = next(line for line in fleet.run("models").stdout.splitlines() if line.startswith("broken"))
    assert "exit code 1" in row


def test_what_is_not_there_is_said_by_name(fleet: FleetWithModels) -> None:
    for arguments in (("load", "tow"), ("unload", "tow"), ("pin", "tow"), ("logs", "tow")):
        done = fleet.run("models", *arguments)
        assert (done.returncode, done.stdout) == (5, "")
        assert "there is no model 'tow'" in done.stderr
    assert "did you mean 'two'?" in fleet.run("models", "logs", "tow").stderr
    done = fleet.run("models", "logs", "never")
    assert (done.returncode, "has not been started yet" in done.stderr) == (5, True)


# On a terminal

READY = {
    **{"name": "qwen2.5-coder-32b-instruct", "state": "ready", "worker": "gpu-box-1", "job_id": "j", "in_flight": 2},
    **{"queued": 3, "served": 1234, "idle_s": 0.2, "load_s": 12.7, "vram_gb": 24.0, "pinned": True, "error": None},
    **{"gpus": 0, "learnt": [], "instances": [{"worker": "gpu-box-1"}]},
}
IDLE = {
    **READY,
    "name": "pony",
    "in_flight": 0,
    "queued": 0,
    "idle_s": 754.0,
    "load_s": 0.421,
    "vram_gb": 0,
    "pinned": False,
}
LOADING = {**IDLE, "name": "mare", "state": "loading", "served": 0, "idle_s": None, "load_s": None}
STOPPED = {**LOADING, "name": "colt", "state": "stopped", "worker": None, "job_id": None, "instances": []}
FAILED = {**STOPPED, "name": "\x1b[31mgoat", "state": "backing_off", "error": "exit code 1; its log ends:\nTraceback"}
ALL = [READY, IDLE, LOADING, STOPPED, FAILED]


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = lines_of(model_table(ALL), width)
    assert max(map(len, lines)) <= width
    assert len(lines) == len(ALL) + 1


def test_the_table_says_what_each_model_does() -> None:
    lines = lines_of(model_table(ALL), 140)
    assert lines[1].split() == "qwen2.5-coder-32b-instruct ● ready pinned gpu-box-1 2 3 1234 12s 24 GiB".split()
    assert lines[2].split() == "pony ● ready gpu-box-1 – – 1234 12m 0.42s".split()
    assert lines[3].split() == "mare ◐ loading gpu-box-1 – – –".split()
    assert lines[4].split() == "colt ○ stopped – – –".split()
    assert lines[5].split("  ")[-1].strip() == "exit code 1; its log ends:"
    assert "\x1b" not in "".join(lines), "names steer no terminal"


def test_several_processes_and_learnt_sizes_are_said() -> None:
    there = [{"worker": "one"}, {"worker": "two"}, {"worker": "one"}, {"worker": ""}]
    lines = lines_of(model_table([{**READY, "learnt": ["vram"], "instances": there}]), 140)
    assert "● ready ×4 pinned" in lines[1] and "one, two" in lines[1] and lines[1].endswith("24 GiB learnt")
    assert lines_of(model_table([{**IDLE, "gpus": 2}]), 140)[1].endswith("2 GPUs")


def test_no_models_is_a_sentence() -> None:
    assert lines_of(model_table([])) == ["no models; [models] in ostler.toml says what there is to serve"]


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (READY, "qwen2.5-coder-32b-instruct is ready on gpu-box-1, pinned"),
        (LOADING, "mare is loading on gpu-box-1"),
        ({**FAILED, "name": "goat"}, "goat is backing off: exit code 1; its log ends:\nTraceback"),
        ({**READY, "error": "of long ago", "pinned": False, "name": "a"}, "a is ready on gpu-box-1"),
    ],
)
def test_one_model_is_one_line(model: dict[str, Any], line: str) -> None:
    assert model_line(model) == line


@pytest.mark.parametrize(("seconds", "text"), [(None, ""), (0.042, "0.042s"), (9.96, "10s"), (75.0, "1m 15s")])
def test_a_load_takes_as_long_as_is_worth_saying(seconds: float | None, text: str) -> None:
    assert took_text(seconds) == text


# Coming from llama-swap: no hub is asked


def ostler(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OSTLER_STATE_DIR": str(cwd / "none"), "OSTLER_HUB": "http://127.0.0.1:1"}
    return subprocess.run([*OSTLER, *arguments], capture_output=True, text=True, timeout=60, env=environment, cwd=cwd)


def test_an_import_prints_the_file_and_tells_the_rest_beside_it(tmp_path: Path) -> None:
    done = ostler("models", "import", str(SAMPLE), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# Made from a configuration of llama-swap")
    assert "[models.llama]" in done.stdout
    assert "startPort: left out: each worker gives its models free ports\n" in done.stderr


def test_an_import_is_written_where_it_is_wanted_and_over_nothing(tmp_path: Path) -> None:
    done = ostler("models", "import", str(SAMPLE), "--write", "ostler.toml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    text = (tmp_path / "ostler.toml").read_text()
    again = ostler("models", "import", str(SAMPLE), "--write", "ostler.toml", cwd=tmp_path)
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
    document = json.loads(ostler("models", "import", str(SAMPLE), "--json", cwd=tmp_path).stdout)
    assert document["toml"] == text
    assert {"where": "startPort", "what": "left out: each worker gives its models free ports"} in document["remarks"]


@pytest.mark.parametrize(
    ("content", "code", "what"),
    [
        (b"models: {", 2, "config.yaml: cannot be read as YAML"),
        (b"a: 1", 2, "config.yaml: is no configuration of llama-swap"),
        (b"\xff\xfe\x00", 2, "is not UTF-8"),
        (None, 1, "config.yaml: No such file"),
    ],
)
def test_a_file_that_is_none_is_one_sentence(tmp_path: Path, content: bytes | None, code: int, what: str) -> None:
    if content is not None:
        (tmp_path / "config.yaml").write_bytes(content)
    done = ostler("models", "import", "config.yaml", "--write", "out.toml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert what in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out.toml").exists()
