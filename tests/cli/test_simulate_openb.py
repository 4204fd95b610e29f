"""`ostler simulate --format openb`, as it is typed."""

import json
from pathlib import Path

import pytest

from ostler.cli import exits
from ostler.cli.main import run

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,8000,9999,2,T4\nn1,8000,9999,8,V100\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\na,1000,1,1,500,\nb,1000,1,8,1000,V100|T4\nc,1000,1,0,0,\n"


@pytest.fixture
def lists(tmp_path: Path) -> list[str]:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    return ["--nodes", str(tmp_path / "nodes.csv"), "--pods", str(tmp_path / "pods.csv")]


def test_json_has_the_allocations_the_failures_and_the_times(
    lists: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", "--format", "openb", *lists, "--seed", "42", "--json"]) == exits.DONE
    found = json.loads(capsys.readouterr().out)
    assert (found["gpus"], found["nodes"], found["seed"]) == (10, 2, 42)
    assert 0 < found["alloc_at_100"] <= found["alloc_at_130"] <= 100
    assert 0 < found["decision_us_p50"] <= found["decision_us_p99"] and found["failed"] > 0


def test_a_person_gets_a_table(lists: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--format", "openb", *lists]) == exits.DONE
    said = capsys.readouterr().out
    assert "2 machines with 10 GPUs" in said and "130 %" in said


def test_both_lists_are_needed_and_a_mistake_in_one_is_named(
    lists: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", "--format", "openb", *lists[:2]]) != exits.DONE
    assert "--pods: --format openb needs two CSV files" in capsys.readouterr().err
    (tmp_path / "pods.csv").write_text(f"{PODS}d,x,1,0,0,\n")
    assert run(["simulate", "--format", "openb", *lists]) != exits.DONE
    assert "pods.csv, line 5: cpu_milli is 'x'" in capsys.readouterr().err
