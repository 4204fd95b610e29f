"""From options to the spec that is sent."""

import re
from pathlib import Path
from typing import Any

import pytest

from ostler.cli.spec import FIELDS, SpecOptions, build_spec, left_behind, option_of
from ostler.domain.errors import BadInput, Unreadable
from ostler.domain.job import JobSpec


def spec_of(**given: Any) -> dict[str, Any]:
    return build_spec(SpecOptions(**{"command": ["true"], **given}))


def test_a_command_alone_is_a_whole_spec() -> None:
    assert spec_of(command=["python", "train.py", "--lr", "3e-4"]) == {
        "command": ["python", "train.py", "--lr", "3e-4"]
    }


def test_every_need_becomes_the_field_that_the_hub_knows() -> None:
    spec = spec_of(cpus=2.5, memory="8g", gpus=2, gpu_type="A100", backend="nvidia", vram="48g", nodes=1)
    assert spec == {
        "command": ["true"],
        "min_cpu_cores": 2.5,
        "min_memory_gb": 8.0,
        "gpu_count": 2,
        "gpu_type": "A100",
        "gpu_backend": "nvidia",
        "min_vram_gb": 48.0,
        "node_count": 1,
    }


def test_a_part_of_a_gpu_and_types_that_will_do_are_passed_on() -> None:
    spec = spec_of(gpu_share=0.5, gpu_type="A100|H100")
    assert spec == {"command": ["true"], "gpu_share": 0.5, "gpu_type": "A100|H100"}


def test_amounts_may_be_left_to_the_hub() -> None:
    spec = build_spec(SpecOptions(command=["x"], vram="auto", memory=" Auto ", on_oom="larger"))
    assert spec == {"command": ["x"], "min_vram_gb": "auto", "min_memory_gb": "auto", "on_oom": "larger"}


def test_a_manifest_is_not_taken_for_a_spec(tmp_path: Path) -> None:
    path = tmp_path / "manifest.toml"
    path.write_text('[[jobs]]\nmodel = "a"\n')
    with pytest.raises(BadInput, match=f"is a manifest; `ostler apply {path}` is for those"):
        spec_of(file=path)


@pytest.mark.parametrize(
    ("command", "file"),
    [
        (["python", "train.py"], "train.py"),
        (["./train.py", "--lr", "1"], "./train.py"),
        (["train.py"], None),
        (["python", "-c", "x" * 5000], None),
        (["python", "elsewhere.py"], None),
        (["ls", "."], None),
    ],
)
def test_files_of_this_folder_that_a_command_names_are_known(
    command: list[str], file: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    assert left_behind(command) == file
    assert left_behind([command[0], str(tmp_path / "train.py")]) in (None, "./train.py"), "absolute paths are meant so"


def test_times_are_read_in_the_units_people_write() -> None:
    spec = spec_of(schedule_timeout="5m", max_runtime="90m")
    assert spec["scheduling_timeout_seconds"] == 300
    assert spec["max_runtime_hours"] == 1.5


def test_zero_is_a_value_and_not_an_option_left_out() -> None:
    assert spec_of(gpus=0, priority=0, retries=0) == {
        "command": ["true"],
        "gpu_count": 0,
        "priority": 0,
        "max_retries": 0,
    }


def test_flags_and_lists_find_their_fields() -> None:
    spec = spec_of(
        service=True, preemptible=True, where=["zone = eu"], prefer=["nvlink exists"], after=["a"], output=["o"]
    )
    assert spec["type"] == "service"
    assert spec["preemptible"] is True
    assert spec["labels"] == ["zone = eu"]
    assert spec["prefer_labels"] == ["nvlink exists"]
    assert spec["depends_on"] == ["a"]
    assert spec["outputs"] == ["o"]


def test_every_field_that_an_option_sets_is_a_field_of_a_spec() -> None:
    assert {field for field, _ in FIELDS.values()} <= set(JobSpec.__struct_fields__)


def test_a_refused_field_is_named_by_the_option_that_set_it() -> None:
    assert option_of("node_count") == "--nodes"
    assert option_of("scheduling_timeout_seconds") == "--schedule-timeout"
    assert option_of("env") == "--env"
    assert option_of("prolog") is None


def test_a_variable_without_a_value_takes_the_one_it_has_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTLER_TEST_RATE", "0.1")
    assert spec_of(env=["A=b=c", "OSTLER_TEST_RATE", "EMPTY="])["env"] == {
        "A": "b=c",
        "OSTLER_TEST_RATE": "0.1",
        "EMPTY": "",
    }


def test_a_variable_that_is_not_set_here_is_asked_for() -> None:
    with pytest.raises(BadInput, match="--env OSTLER_TEST_NOT_SET=VALUE"):
        spec_of(env=["OSTLER_TEST_NOT_SET"])


def test_a_spec_file_may_be_toml(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('command = ["python", "t.py"]\ngpu_count = 1\n[env]\nA = "1"\n')
    assert build_spec(SpecOptions(file=file)) == {"command": ["python", "t.py"], "gpu_count": 1, "env": {"A": "1"}}


@pytest.mark.parametrize("name", ["job.json", "job", "job.spec"])
def test_a_spec_file_may_be_json_whatever_its_name(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text('{"command": ["x"], "array": 3}')
    assert build_spec(SpecOptions(file=file)) == {"command": ["x"], "array": 3}


def test_options_go_before_the_file_and_lists_add_up(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('command = ["a"]\nname = "old"\nlabels = ["zone = eu"]\n[env]\nA = "1"\nB = "1"\n')
    spec = build_spec(SpecOptions(file=file, command=["b", "c"], name="new", where=["os = linux"], env=["B=2"]))
    assert spec == {
        "command": ["b", "c"],
        "name": "new",
        "labels": ["zone = eu", "os = linux"],
        "env": {"A": "1", "B": "2"},
    }


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.toml", "command = [", "is not TOML"),
        ("a.json", "{", "is not JSON"),
        ("a.json", "[1]", "must hold one spec"),
        ("a.toml", 'command = ["x"]\nlabels = "zone = eu"', "labels must be a list"),
        ("a.toml", 'command = ["x"]\nenv = 3', "env must be a table"),
    ],
)
def test_a_spec_file_that_is_wrong_is_named(tmp_path: Path, name: str, text: str, told: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(BadInput, match=re.escape(told)):
        build_spec(SpecOptions(file=file, where=["a = b"], env=["A=1"]))


def test_a_spec_file_that_is_no_text_is_unreadable(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Unreadable, match="UTF-8"):
        build_spec(SpecOptions(file=file))


def test_a_misspelt_command_is_named_and_not_missed(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('comand = ["ls"]\ngpu_cout = 1\n')
    with pytest.raises(BadInput, match="unknown field 'comand'; did you mean 'command'\\?; unknown field 'gpu_cout'"):
        spec_of(command=None, file=file)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"memory": "8q"}, "--memory: '8q' is not a size"),
        ({"vram": "lots"}, "--vram: 'lots' is not a size"),
        ({"schedule_timeout": "soon"}, "--schedule-timeout: 'soon' is not a duration"),
        ({"max_runtime": "-1h"}, "--max-runtime: '-1h' is not a duration"),
        ({"env": ["=1"]}, "--env: '=1' has no name"),
        ({"command": None}, "there is no command to run"),
        ({"file": Path("no-such-file")}, "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_named_with_what_to_write(given: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=re.escape(told)):
        spec_of(**given)
