"""The trainer of examples/training, as the processes that workers make of it, and its manifest."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ostler import manifest
from ostler.domain.job import Training

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "training"
MANIFEST = FOLDER / "manifest.toml"
SMALL = {"gbt": ("--rounds", "7", "--features", "0.5"), "mlp": ("--epochs", "6", "--width", "8")}
NOT_FOR_TEN_CLASSES = "ValueError: monotonic constraints are not supported for multiclass classification."


def begun(*arguments: str, cwd: Path, **more: str) -> subprocess.Popen[str]:
    """`python -m trainer` as a worker starts it: from a folder of its own, by PYTHONPATH."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OSTLER_")}
    return subprocess.Popen(
        [sys.executable, "-m", "trainer", *arguments],
        cwd=cwd,
        env={**inherited, "PYTHONPATH": str(FOLDER), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def written_by(process: subprocess.Popen[str], out: Path) -> dict[str, bytes]:
    """What a run that must succeed has written, by name."""
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 0, complaint
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*"))}


def trained(out: Path, *arguments: str, cwd: Path, **more: str) -> dict[str, bytes]:
    return written_by(begun("--out", str(out), *arguments, cwd=cwd, **more), out)


@pytest.mark.parametrize(("model", "mode"), [("gbt", "optimistic"), ("mlp", "realistic")])
def test_two_processes_write_the_same_bytes_and_another_seed_gives_others(
    tmp_path: Path, model: str, mode: str
) -> None:
    settings = ("--model", model, "--mode", mode, *SMALL[model])
    outs = [tmp_path / name / "out" for name in ("once", "again", "other")]
    processes = []
    for number, (out, seed) in enumerate(zip(outs, ("3", "3", "4"), strict=True)):
        out.parent.mkdir()
        surroundings = {"PYTHONHASHSEED": str(number), "OMP_NUM_THREADS": str(number + 1)}
        processes.append(begun(*settings, "--seed", seed, "--out", "out", cwd=out.parent, **surroundings))
    once, again, other = (written_by(process, out) for process, out in zip(processes, outs, strict=True))
    assert once.keys() == {"metrics.jsonl", "model.npz", "report.json"}
    assert once == again
    assert once["model.npz"] != other["model.npz"]


def test_the_report_has_the_last_accuracy_inside_its_interval(tmp_path: Path) -> None:
    written = trained(tmp_path / "out", "--model", "mlp", "--mode", "realistic", *SMALL["mlp"], cwd=tmp_path)
    report = json.loads(written["report.json"])
    stages = [json.loads(line) for line in written["metrics.jsonl"].splitlines()]
    low, high = report["interval"]
    assert low < report["accuracy"] < high
    assert [stage.get("epoch") for stage in stages] == [1, 2, 3, 4, 5, 6, None]
    assert stages[-1]["accuracy"] == stages[-2]["accuracy"] == report["accuracy"]
    assert report["samples"]["train"] + report["samples"]["test"] == 1797


def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    settings = ("--model", "mlp", "--mode", "realistic", "--epochs", "60")
    uncut = begun(*settings, "--out", "whole", cwd=tmp_path)
    kept = str(tmp_path / "kept")
    cut = begun("--out", str(tmp_path / "cut"), *settings, cwd=tmp_path, OSTLER_CHECKPOINT=kept)
    assert cut.stdout is not None
    while json.loads(cut.stdout.readline())["epoch"] < 3:
        pass
    cut.kill()
    cut.communicate()
    whole = written_by(uncut, tmp_path / "whole")
    second = begun("--out", str(tmp_path / "second"), *settings, cwd=tmp_path, OSTLER_CHECKPOINT=kept)
    said, complaint = second.communicate(timeout=60)
    first_line, next_line, *_ = said.splitlines()
    kept_epochs = int(first_line.removeprefix("goes on after epoch "))
    assert 3 <= kept_epochs < 60, complaint
    assert json.loads(next_line)["epoch"] == kept_epochs + 1
    assert {name: (tmp_path / "second" / name).read_bytes() for name in whole} == whole


def test_a_checkpoint_of_other_settings_is_not_gone_on_from(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    settings = ("--model", "mlp", "--mode", "realistic", *SMALL["mlp"])
    alone = begun(*settings, "--out", "alone", cwd=tmp_path)
    trained(tmp_path / "other", *settings, "--seed", "1", cwd=tmp_path, OSTLER_CHECKPOINT=kept)
    after = trained(tmp_path / "after", *settings, cwd=tmp_path, OSTLER_CHECKPOINT=kept)
    assert after == written_by(alone, tmp_path / "alone")


def test_the_job_that_cannot_be_trained_fails_with_the_words_of_scikit_learn(tmp_path: Path) -> None:
    process = begun("--model", "gbt", "--mode", "realistic", "--monotone", "--out", str(tmp_path / "out"), cwd=tmp_path)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 1
    assert complaint.splitlines()[-1] == NOT_FOR_TEN_CLASSES
    assert not (tmp_path / "out" / "report.json").exists()


def test_an_option_of_the_other_model_is_refused(tmp_path: Path) -> None:
    process = begun("--model", "gbt", "--mode", "realistic", "--width", "8", "--out", "out", cwd=tmp_path)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "--width: not for gbt" in complaint


def test_help_names_every_hyper_key_of_the_manifest(tmp_path: Path) -> None:
    said, _ = begun("--help", cwd=tmp_path).communicate(timeout=60)
    options = {word.strip("[],") for word in said.split()}
    used = {f"--{key}" for training in trainings() for key in training.hyper}
    assert len(used) > 5
    assert used <= options


def test_the_manifest_has_both_models_in_both_modes_and_two_sweeps() -> None:
    assert len(trainings()) == 16
    assert {(training.model, training.mode) for training in trainings()} == {
        (model, mode) for model in ("gbt", "mlp") for mode in ("realistic", "optimistic")
    }
    assert len({training.sweep for training in trainings()} - {""}) == 2


def test_the_trainer_takes_every_command_of_the_manifest() -> None:
    sys.path.insert(0, str(FOLDER))
    try:
        from trainer import settings_of
    finally:
        sys.path.remove(str(FOLDER))
    for spec in manifest.read(MANIFEST.read_bytes()).specs:
        assert spec.command[:3] == ["python", "-m", "trainer"]
        settings, out = settings_of(spec.command[3:])
        assert spec.training is not None and spec.training.hyper.items() <= {**settings, **settings["hyper"]}.items()
        assert str(out) == "$OSTLER_OUT"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_fleet_of_three_trains_every_model_of_the_manifest_once() -> None:
    process = subprocess.Popen(
        [sys.executable, str(FOLDER / "run.py")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        said, _ = process.communicate()
    finally:
        process.terminate()
        process.wait()
    assert process.returncode == 0, said
    assert "all 15 hold" in said


def trainings() -> list[Training]:
    return [spec.training for spec in manifest.read(MANIFEST.read_bytes()).specs if spec.training]
