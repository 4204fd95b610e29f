"""Which program a command runs, what its help says it takes, and which hyper keys it does not take."""

import subprocess
import sys
from typing import Any

import pytest

from ostler.cli import drift
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
    ],
)
def test_a_program_is_the_command_before_its_own_options_and_values(line: str, program: str) -> None:
    assert drift.program_of(spec(line.split(), lr=1)) == tuple(program.split())


@pytest.mark.parametrize("program", [ARGPARSE, CLICK])
def test_options_are_read_from_the_help_of_the_usual_parsers(program: str) -> None:
    found = drift.options_in(help_of(program))
    assert {"width", "learning-rate", "bias", "no-bias", "help"} <= found
    assert "widht" not in found


def test_long_options_in_boxes_are_read_whole() -> None:
    found = drift.options_in(help_of(TYPER))
    assert {"width", "learning-rate-of-the-second-optimizer-of-the-generator"} <= found


def test_a_flag_that_is_shown_with_its_negation_in_brackets_counts_both_ways() -> None:
    assert drift.options_in("  --[no]debug: run slowly\n  --lr: rate") == {"debug", "nodebug", "lr"}


def test_dashes_in_running_text_are_no_options() -> None:
    assert drift.options_in("usage: x [--lr LR]\na--b ---- c -- d") == {"lr"}


@pytest.mark.parametrize("kind", GROUPS)
def test_a_program_with_commands_does_not_tell_their_options_until_one_is_named(kind: str) -> None:
    with pytest.raises(drift.Unchecked, match="commands with options of their own"):
        drift.options_in(help_of(GROUPS[kind]))
    assert "width" in drift.options_in(help_of(GROUPS[kind], "fit"))


def test_an_option_with_several_choices_is_no_command() -> None:
    several = 'import argparse\np = argparse.ArgumentParser()\np.add_argument("--on", nargs="+", choices=["a", "b"])\n'
    assert drift.options_in(help_of(several + "p.parse_args()")) == {"help", "on"}


def test_a_help_without_options_tells_nothing() -> None:
    with pytest.raises(drift.Unchecked, match="shows no options"):
        drift.options_in("Trains a model.")


def test_only_hyper_keys_that_the_command_hands_over_as_options_are_looked_at() -> None:
    assert drift.handed_over(spec(["t", "--lr", "1", "--deep"], lr=1, deep=True)) == ["lr", "deep"]
    assert drift.handed_over(spec(["t", "--rate", "1", "--width", "2"], lr=1, width=2)) == ["width"]
    assert drift.handed_over(spec(["t", "config.json"], lr=1)) == []


def test_a_key_that_is_false_is_looked_at_where_all_others_are_handed_over() -> None:
    assert drift.handed_over(spec(["t", "--lr", "1"], lr=1, deep=False)) == ["lr", "deep"]
    assert drift.handed_over(spec(["t", "--rate", "1"], lr=1, deep=False)) == []


def test_the_points_of_one_sweep_are_told_together_with_the_nearest_option() -> None:
    jobs = [spec(["t", "--widht", str(n), "--lr", "1"], f"mlp-{n}", widht=n, lr=1) for n in range(5)]
    found = drift._drift(("t",), jobs, {"width", "lr"}, {job.id: 12 for job in jobs})
    assert [one.sentence("manifest.toml") for one in found] == [
        "manifest.toml:12: jobs 'mlp-0', 'mlp-1', 'mlp-2' and 2 more: hyper key 'widht': `t` takes no --widht; "
        "did you mean --width?"
    ]


def test_a_key_like_no_option_is_told_without_a_guess() -> None:
    found = drift._drift(("t",), [spec(["t", "--zzz", "1"], zzz=1)], {"width"}, {})
    assert found[0].sentence("m.toml") == "m.toml:1: job 'mlp': hyper key 'zzz': `t` takes no --zzz; see its --help"
