"""Which program a command runs, what its help says it takes, and which hyper keys it does not take."""

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from tests.cli.direct_hub import DirectHub

from ostler.cli import drift
from ostler.cli.handover import Value, handed_over, program_of, values_of
from ostler.cli.interface import CLICK as CLICK_KIND
from ostler.cli.interface import Unchecked, options_in
from ostler.client.errors import HubFailed, HubUnreachable
from ostler.domain.errors import NotAllowed, NotAuthenticated, NotFound, OstlerError, QuotaExceeded
from ostler.domain.job import JobSpec, Training

ARGPARSE = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("--model")
p.add_argument("--width", type=int)
p.add_argument("--learning-rate", type=float)
p.add_argument("--bias", action=argparse.BooleanOptionalAction)
p.parse_args()
"""
CLICK = """
import click
@click.command()
@click.option("--width", type=int)
@click.option("--learning-rate", type=float)
@click.option("--bias/--no-bias")
def main(**_): pass
main()
"""
TYPER = """
import typer
def main(model: str = "", width: int = 1, learning_rate_of_the_second_optimizer_of_the_generator: float = 0.1): pass
typer.run(main)
"""
GROUPS = {
    "argparse": """
import argparse
p = argparse.ArgumentParser()
p.add_subparsers().add_parser("fit").add_argument("--width")
p.parse_args()
""",
    "click": """
import click
@click.group()
def main(): pass
@main.command()
@click.option("--width")
def fit(width): pass
main()
""",
    "typer": """
import typer
app = typer.Typer()
@app.command()
def fit(width: int = 1): pass
@app.command()
def other(): pass
app()
""",
}


def spec(command: list[str], name: str = "mlp", **hyper: Any) -> JobSpec:
    return JobSpec(id=name, name=name, command=command, training=Training(model="mlp", mode="real", hyper=hyper))


def help_of(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments, "--help"],
        capture_output=True,
        text=True,
        env=drift.WIDE,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("python -m trainer --model mlp --lr 1", "python -m trainer"),
        ("python -u -m trainer --lr 1", "python -u -m trainer"),
        ("python train.py --lr 1", "python train.py"),
        ("./train.py fit --lr 1", "./train.py fit"),
        ("python3.11 -X dev src/train.py mlp real --lr 1", "python3.11 -X dev src/train.py"),
        ("trainer --lr 1", "trainer"),
        ("trainer fit --lr 1", "trainer fit"),
        ("trainer mlp --lr 1", "trainer"),
        ("trainer $OSTLER_OUT --lr 1", "trainer"),
        ("torchrun --nproc-per-node 2 train.py --lr 1", "torchrun --nproc-per-node 2 train.py"),
        ("torchrun --nnodes 1 -m trainer.main --lr 1", "torchrun --nnodes 1 -m trainer.main"),
        ("uv run trainer --lr 1", "uv run trainer"),
        ("python bin/train --lr 1", "python bin/train"),
        ("python train.py fit data/in.csv --lr 1", "python train.py fit"),
    ],
)
def test_a_program_is_the_command_before_its_own_options_and_values(line: str, program: str) -> None:
    assert program_of(spec(line.split(), lr=1)) == tuple(program.split())


@pytest.mark.parametrize("program", [ARGPARSE, CLICK])
def test_options_are_read_from_the_help_of_the_usual_parsers(program: str) -> None:
    found = options_in(help_of(program))
    assert {"width", "learning-rate", "bias", "no-bias", "help"} <= found
    assert "widht" not in found


def test_long_options_in_boxes_are_read_whole() -> None:
    found = options_in(help_of(TYPER))
    assert {"width", "learning-rate-of-the-second-optimizer-of-the-generator"} <= found


def test_a_flag_that_is_shown_with_its_negation_in_brackets_counts_both_ways() -> None:
    assert options_in("  --[no]debug: run slowly\n  --lr: rate") == {"debug", "nodebug", "lr"}


def test_dashes_in_running_text_are_no_options() -> None:
    assert options_in("usage: x [--lr LR]\na--b ---- c -- d") == {"lr"}


@pytest.mark.parametrize("kind", GROUPS)
def test_a_program_with_commands_does_not_tell_their_options_until_one_is_named(kind: str) -> None:
    with pytest.raises(Unchecked, match="commands with options of their own"):
        options_in(help_of(GROUPS[kind]))
    assert "width" in options_in(help_of(GROUPS[kind], "fit"))


def test_an_option_with_several_choices_is_no_command() -> None:
    several = 'import argparse\np = argparse.ArgumentParser()\np.add_argument("--on", nargs="+", choices=["a", "b"])\n'
    assert options_in(help_of(several + "p.parse_args()")) == {"help", "on"}


def test_a_help_without_options_tells_nothing() -> None:
    with pytest.raises(Unchecked, match="shows no options"):
        options_in("Trains a model.")


def test_only_hyper_keys_that_the_command_hands_over_as_options_are_looked_at() -> None:
    assert handed_over(spec(["t", "--lr", "1", "--deep"], lr=1, deep=True)) == ["lr", "deep"]
    assert handed_over(spec(["t", "--rate", "1", "--width", "2"], lr=1, width=2)) == ["width"]
    assert handed_over(spec(["t", "config.json"], lr=1)) == []


def test_a_key_that_is_false_is_looked_at_where_all_others_are_handed_over() -> None:
    assert handed_over(spec(["t", "--lr", "1"], lr=1, deep=False)) == ["lr", "deep"]
    assert handed_over(spec(["t", "--rate", "1"], lr=1, deep=False)) == []


def test_the_points_of_one_sweep_are_told_together_with_the_nearest_option() -> None:
    jobs = [spec(["t", "--widht", str(n), "--lr", "1"], f"mlp-{n}", widht=n, lr=1) for n in range(5)]
    found = drift._drift(("t",), jobs, CLICK_KIND, {"width", "lr"}, {job.id: 12 for job in jobs})
    assert [one.sentence("manifest.toml") for one in found] == [
        "manifest.toml:12: jobs 'mlp-0', 'mlp-1', 'mlp-2' and 2 more: hyper key 'widht': `t` takes no --widht; "
        "did you mean --width?"
    ]


def test_a_key_like_no_option_is_told_without_a_guess() -> None:
    found = drift._drift(("t",), [spec(["t", "--zzz", "1"], zzz=1)], CLICK_KIND, {"width"}, {})
    assert found[0].sentence("m.toml") == "m.toml:1: job 'mlp': hyper key 'zzz': `t` takes no --zzz; see its --help"


def test_each_value_that_the_jobs_hand_over_is_tried_once() -> None:
    jobs = [spec(["t", "--lr", lr, "--deep"], lr=float(lr), deep=True) for lr in ("0.1", "0.2", "0.1")]
    assert values_of(jobs) == [Value("lr", "0.1"), Value("deep", None), Value("lr", "0.2")]
    assert values_of([spec(["t", "--lr", "1"], lr=1, deep=False)]) == [Value("lr", "1")]


def test_a_value_is_read_as_the_command_spells_it() -> None:
    assert values_of([spec(["t", "--amp", "true", "--deep"], amp=True, deep=True)]) == [
        ("amp", "true", False),
        ("deep", None, False),
    ]
    joined = values_of([spec(["t", "--lr=0.1", "--flags=a=b", "x"], lr=0.1, flags="a=b")])
    assert [value.arguments() for value in joined] == [["--lr=0.1"], ["--flags=a=b"]]


STRICT = """
import argparse
def positive(text):
    if int(text) <= 0:
        raise argparse.ArgumentTypeError(text + " is not positive")
    return int(text)
p = argparse.ArgumentParser()
p.add_argument("--lr", type=float)
p.add_argument("--width", type=positive)
either = p.add_mutually_exclusive_group()
either.add_argument("--steps", type=int)
either.add_argument("--epochs", type=int)
p.parse_args()
raise SystemExit("it trains")
"""


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    file = tmp_path / "trainer.py"
    file.write_text(STRICT)
    return file


def found_by(hub: DirectHub, trainer: Path, *hypers: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What is wrong with jobs of the trainer that have these values; and why it could not be asked."""
    jobs = []
    for number, hyper in enumerate(hypers):
        options = [part for key, value in hyper.items() for part in (f"--{key}", str(value))]
        jobs.append(spec([sys.executable, str(trainer), *options], f"job-{number}", **hyper))
    findings = drift.check(cast(Any, hub), jobs, {job.id: 10 + number for number, job in enumerate(jobs)})
    told = [one.sentence("m.toml").partition(f"`{findings.drift[0].program}` ") for one in findings.drift]
    return [before + after for before, _, after in told], list(findings.unchecked.values())


def test_a_value_of_another_type_than_the_program_takes_is_found_with_its_line(trainer: Path) -> None:
    hub = DirectHub()
    assert found_by(hub, trainer, {"lr": 0.1, "width": 64}, {"lr": "fast", "width": 64}) == (
        ["m.toml:11: job 'job-1': hyper key 'lr': does not take --lr fast: invalid float value: 'fast'"],
        [],
    )
    assert all(command[-1] == "--help" for command in hub.commands)


def test_several_wrong_values_and_keys_are_found_at_once(trainer: Path) -> None:
    found, _ = found_by(DirectHub(), trainer, {"lr": "fast", "widht": 64}, {"lr": "slow", "width": 0})
    assert found == [
        "m.toml:10: job 'job-0': hyper key 'widht': takes no --widht; did you mean --width?",
        "m.toml:10: job 'job-0': hyper key 'lr': does not take --lr fast: invalid float value: 'fast'",
        "m.toml:11: job 'job-1': hyper key 'lr': does not take --lr slow: invalid float value: 'slow'",
        "m.toml:11: job 'job-1': hyper key 'width': does not take --width 0: 0 is not positive",
    ]


def test_options_of_several_jobs_that_exclude_each_other_are_no_fault(trainer: Path) -> None:
    assert found_by(DirectHub(), trainer, {"steps": 5}, {"epochs": 3, "lr": 0.1}) == ([], [])


def test_what_does_not_fit_on_one_command_line_is_tried_on_the_next(
    trainer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift, "MOST_VALUES", 2)
    hub = DirectHub()
    found, _ = found_by(hub, trainer, *({"width": width} for width in (1, 2, 3, 4, "wide")))
    assert [one.rpartition(": ")[2] for one in found] == ["'wide'"]
    assert [len(command[2:-1]) // 2 for command in hub.commands] == [0, 2, 2, 1]


def test_no_program_is_run_again_and_again_for_one_wrong_value_after_the_other(trainer: Path) -> None:
    found, _ = found_by(DirectHub(), trainer, *({"lr": f"no-{n}"} for n in range(20)))
    assert len(found) == drift.MOST_REFUSED


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("print('it trains')", "its --help is not that of argparse, click or typer"),
        ("raise SystemExit(3)", "its --help failed: exit code 3"),
        ("import no_such_module", "its --help failed: exit code 1"),
    ],
)
def test_a_program_that_cannot_be_asked_is_only_noted(trainer: Path, program: str, why: str) -> None:
    trainer.write_text(program)
    found, unchecked = found_by(DirectHub(), trainer, {"lr": "fast"})
    assert (found, unchecked) == ([], [why])


def test_a_program_that_hangs_is_noted_and_its_job_is_cancelled(trainer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = DirectHub(hangs="--help")
    monkeypatch.setattr(drift, "time", hub)
    found, unchecked = found_by(hub, trainer, {"lr": "fast"})
    assert (found, unchecked) == ([], ["its --help had not ended after 20 s"])
    assert hub.cancelled == ["job-0"]


def test_a_program_that_hangs_does_not_hide_what_another_does_not_take(
    trainer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = DirectHub(hangs="hangs.py")
    monkeypatch.setattr(drift, "time", hub)
    jobs = [spec([sys.executable, file, "--lr", "fast"], file, lr="fast") for file in ("hangs.py", str(trainer))]
    findings = drift.check(cast(Any, hub), jobs, {})
    assert [one.why for one in findings.drift] == ["invalid float value: 'fast'"]
    assert list(findings.unchecked.values()) == ["its --help had not ended after 20 s"]


def test_a_note_names_the_question_for_which_there_was_no_time(trainer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = DirectHub(hangs="--lr")
    monkeypatch.setattr(drift, "time", hub)
    _, unchecked = found_by(hub, trainer, {"lr": 0.1})
    assert unchecked == ["its --help with the values of the manifest had not ended after 20 s"]


@pytest.mark.parametrize(
    "error", [QuotaExceeded("queued_jobs: 5 of 5 are used"), NotFound("there is no log"), HubFailed("it answered 500")]
)
@pytest.mark.parametrize("call", ["submit", "logs"])
def test_an_error_of_the_hub_is_a_note_of_the_check(trainer: Path, call: str, error: OstlerError) -> None:
    hub = DirectHub(refuses={call: error})
    assert found_by(hub, trainer, {"lr": "fast"}) == ([], [str(error)])


@pytest.mark.parametrize("error", [HubUnreachable("no hub answers"), NotAllowed("no"), NotAuthenticated("no")])
def test_a_hub_that_is_away_or_does_not_allow_the_check_ends_the_command(trainer: Path, error: OstlerError) -> None:
    with pytest.raises(type(error)):
        found_by(DirectHub(refuses={"submit": error}), trainer, {"lr": "fast"})


WRITER = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("log", nargs="?", type=argparse.FileType("w"))
p.add_argument("--table", type=argparse.FileType("w"))
p.add_argument("--lr", type=float)
p.parse_args()
"""


def test_no_path_of_the_manifest_is_given_to_a_program_that_is_asked(trainer: Path, tmp_path: Path) -> None:
    trainer.write_text(WRITER)
    results = tmp_path / "results.csv"
    results.write_text("of three weeks")
    hub = DirectHub()
    assert found_by(hub, trainer, {"table": str(results), "lr": 0.1}) == ([], [])
    places = ["~/results.csv", "C:\\results.csv", "of/today.csv"]
    assert found_by(hub, trainer, *({"table": place} for place in places)) == ([], [])
    positional = spec([sys.executable, str(trainer), str(results), "--lr", "fast"], lr="fast")
    findings = drift.check(cast(Any, hub), [positional], {})
    assert [one.why for one in findings.drift] == ["invalid float value: 'fast'"]
    assert results.read_text() == "of three weeks"
    assert not any("results" in part for command in hub.commands for part in command)


def test_a_value_that_the_command_joins_to_its_option_is_looked_at(trainer: Path) -> None:
    command = [sys.executable, str(trainer), "--lr=fast", "--widht=64"]
    findings = drift.check(cast(Any, DirectHub()), [spec(command, lr="fast", widht=64)], {})
    assert [(one.key, one.value) for one in findings.drift] == [("widht", ""), ("lr", "--lr=fast")]


def test_a_true_value_that_the_command_spells_out_is_handed_over_as_a_word(trainer: Path) -> None:
    trainer.write_text(
        "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--amp', type={'true': True, 'false': False}.__getitem__)\np.parse_args()\n"
    )
    findings = drift.check(
        cast(Any, DirectHub()), [spec([sys.executable, str(trainer), "--amp", "true"], amp=True)], {}
    )
    assert findings.drift == []


SHORTENED = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("--learning-rate", type=float)
p.add_argument("--width-of-layers", type=int)
p.add_argument("--width-of-heads", type=int)
p.parse_args()
"""


def test_the_beginning_of_an_option_counts_as_argparse_has_it(trainer: Path) -> None:
    trainer.write_text(SHORTENED)
    assert found_by(DirectHub(), trainer, {"learning": 0.1}) == ([], [])
    found, unchecked = found_by(DirectHub(), trainer, {"learning": "fast", "width": 3})
    assert unchecked == []
    assert sorted(one.partition("hyper key ")[2] for one in found) == [
        "'learning': does not take --learning fast: invalid float value: 'fast'",
        "'width': does not take --width 3: could match --width-of-layers, --width-of-heads",
    ]
    trainer.write_text(CLICK)
    assert [one.partition(": takes ")[2] for one in found_by(DirectHub(), trainer, {"learning": 0.1})[0]] == [
        "no --learning; did you mean --learning-rate?"
    ]


def test_a_fleet_without_machines_is_not_asked(trainer: Path) -> None:
    hub = DirectHub(workers=0)
    found, unchecked = found_by(hub, trainer, {"lr": "fast"})
    assert (found, unchecked) == ([], ["no machine is connected to run it"])
    assert hub.commands == []


def test_values_are_tried_only_on_programs_of_argparse(trainer: Path) -> None:
    trainer.write_text(CLICK)
    hub = DirectHub()
    found, unchecked = found_by(hub, trainer, {"width": "wide"})
    assert [one.rpartition(": ")[2] for one in found] == ["it takes INTEGER"]
    assert (unchecked, [command[2:] for command in hub.commands]) == ([], [["--help"]])
