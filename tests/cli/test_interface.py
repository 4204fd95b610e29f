"""What the help and the errors of argparse, click and typer show of a program's options."""

import re
import subprocess
import sys

import pytest

from ostler.cli.drift import WIDE
from ostler.cli.interface import ARGPARSE, CLICK, Unchecked, fault_of, interface_of, refusal_in

ARGPARSE_PROGRAM = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("-l", "--lr", type=float)
p.add_argument("--width", type=int)
p.add_argument("--solver", choices=["adam", "sgd"])
p.add_argument("--deep", action="store_true")
p.add_argument("-v", "--verbose", "--loud", action="store_true", help="say more than --width and\\n--lr does, or --quiet")
p.add_argument("-q", "--quiet", action="store_true")
p.add_argument("--bias", action=argparse.BooleanOptionalAction)
p.parse_args()
"""
CLICK_PROGRAM = """
import click
@click.command()
@click.option("-l", "--lr", type=float)
@click.option("--width", type=int, default=3, show_default=True)
@click.option("--share", type=click.FloatRange(0, 1))
@click.option("--solver", type=click.Choice(["adam", "sgd"]))
@click.option("--shuffle", type=bool)
@click.option("--name", help="FLOAT or any other text")
@click.option("--deep/--flat")
@click.option("--since", type=click.DateTime(formats=["%Y-%m-%d", "%Y%m%d"]))
@click.option("-v", "--verbose", count=True)
def main(**_): pass
main()
"""
TYPER_PROGRAM = """
import datetime, enum, typer
class Solver(str, enum.Enum):
    adam = "adam"
    sgd = "sgd"
def main(
    lr: float = typer.Option(0.1, "--lr", "-l"), width: int = 3, solver: Solver = Solver.adam, deep: bool = False,
    verbose: int = typer.Option(0, "--verbose", "-v", count=True),
    since: datetime.datetime = typer.Option(None, formats=["%Y-%m-%d", "%Y%m%d"]),
): pass
typer.run(main)
"""


def output_of(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=WIDE, timeout=60)
    return done.stdout


@pytest.mark.parametrize(
    ("program", "kind"), [(ARGPARSE_PROGRAM, ARGPARSE), (CLICK_PROGRAM, CLICK), (TYPER_PROGRAM, CLICK)]
)
def test_the_parser_is_known_by_its_help(program: str, kind: str) -> None:
    assert interface_of(output_of(program, "--help")) == kind


@pytest.mark.parametrize("text", ["", "Trains.", "usage: train [--lr LR]\n  --help  a long text", "  --lr: the rate"])
def test_the_help_of_another_parser_proves_nothing(text: str) -> None:
    with pytest.raises(Unchecked, match="not that of argparse, click or typer"):
        interface_of(text)


@pytest.mark.parametrize("program", [CLICK_PROGRAM, TYPER_PROGRAM])
@pytest.mark.parametrize(
    ("key", "word", "why"),
    [
        ("lr", "fast", "it takes (FLOAT|<float>)"),
        ("lr", "1e-3", ""),
        ("lr", None, "it takes a value, (FLOAT|<float>)"),
        ("width", "0.5", "it takes (INTEGER|<int>)"),
        ("width", "64", ""),
        ("solver", "lion", r"it takes .adam\|sgd."),
        ("solver", "SGD", ""),
        ("deep", None, ""),
        ("since", "2024-01-01", ""),
        ("verbose", None, ""),
    ],
)
def test_click_and_typer_show_the_types_of_options(program: str, key: str, word: str | None, why: str) -> None:
    assert re.fullmatch(why, fault_of(CLICK, output_of(program, "--help"), key, word))


def test_a_flag_does_not_have_the_type_of_the_option_on_the_next_line() -> None:
    shown = "  -d, --deep / --flat\n  -l, --lr FLOAT\n"
    assert fault_of(CLICK, shown, "deep", None) == ""
    assert fault_of(CLICK, shown, "lr", "fast") == "it takes FLOAT"


@pytest.mark.parametrize("shown", ["--lr FLOAT RANGE  [0<=x<=1]", "│ --lr  -l  <float range>  [default: 1] │"])
def test_a_range_is_of_its_type(shown: str) -> None:
    assert fault_of(CLICK, shown, "lr", "fast").startswith("it takes")
    assert fault_of(CLICK, shown, "lr", "0.5") == ""


@pytest.mark.parametrize(
    "shown", ["--lr TEXT", "--lr PATH  FLOAT", "--lr  [required]", "--lr  <path>", "--lr-decay FLOAT"]
)
def test_what_shows_no_known_type_takes_anything(shown: str) -> None:
    assert fault_of(CLICK, shown, "lr", "fast") == fault_of(CLICK, shown, "lr", None) == ""


@pytest.mark.parametrize(
    ("key", "word", "why"),
    [
        ("share", "much", "it takes FLOAT"),
        ("share", "0.5", ""),
        ("shuffle", "maybe", "it takes BOOLEAN"),
        ("shuffle", "on", ""),
        ("name", "fast", ""),
    ],
)
def test_click_shows_ranges_and_truth_and_leaves_texts_open(key: str, word: str, why: str) -> None:
    assert fault_of(CLICK, output_of(CLICK_PROGRAM, "--help"), key, word) == why


def test_argparse_shows_which_options_are_flags_and_no_types() -> None:
    text = output_of(ARGPARSE_PROGRAM, "--help")
    assert fault_of(ARGPARSE, text, "deep", "1") == "it takes no value"
    assert fault_of(ARGPARSE, text, "deep", None) == ""
    for flag in ("verbose", "loud", "quiet", "bias", "no-bias"):
        assert fault_of(ARGPARSE, text, flag, "3") == "it takes no value"
        assert fault_of(ARGPARSE, text, flag, None) == ""
    for option in ("lr", "width", "solver", "unknown"):
        assert fault_of(ARGPARSE, text, option, "fast") == ""


@pytest.mark.parametrize(
    ("arguments", "names", "why"),
    [
        (["--lr", "fast", "--help"], {"l", "lr"}, "invalid float value: 'fast'"),
        (["--width", "6.5", "--help"], {"width"}, "invalid int value: '6.5'"),
        (["--solver", "lion", "--help"], {"solver"}, "invalid choice: 'lion'"),
        (["--width", "--help"], {"width"}, "expected one argument"),
    ],
)
def test_argparse_refuses_a_value_before_it_reaches_the_help(arguments: list[str], names: set[str], why: str) -> None:
    refusal = refusal_in(output_of(ARGPARSE_PROGRAM, *arguments))
    assert refusal is not None
    assert refusal.names == names
    assert refusal.why.startswith(why)
    assert refusal.is_about_the_value()


def test_values_that_convert_are_followed_by_the_help() -> None:
    output = output_of(ARGPARSE_PROGRAM, "--lr", "1e-3", "--width", "64", "--deep", "--help")
    assert refusal_in(output) is None
    assert interface_of(output) == ARGPARSE
