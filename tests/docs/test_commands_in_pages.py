"""Whatever a page tells people to type is a command that there is, with options that it has."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from docs.generate.site import ROOT, our_pages

from ostler.cli.main import app

CODE = re.compile(
    r"^(?:    |\t|\$ )(?:\$ )?(?:[A-Z_]+=\S+ )*((?:\.venv/bin/)?ostler [^\n#]+)|`(ostler [^`\n]+)`", re.MULTILINE
)
WORD = re.compile(r"[a-z][a-z-]*")
ROOT_COMMAND: Any = typer.main.get_command(app)
OWN_COMMAND = ("submit", "run", "whatif", "exec")
"""What follows their own options is somebody else's command line."""


def typed(page: Path) -> Iterator[str]:
    text = page.read_text().replace("\\\n", " ")
    for indented, inline in CODE.findall(text):
        for part in re.split(r" (?:&&|\|\||\||>|<|2>|·) ?", (indented or inline).strip()):
            if part.startswith(("ostler ", ".venv/bin/ostler ")):
                yield part.removeprefix(".venv/bin/")


def problem(line: str) -> str:
    """What is wrong with it, or nothing. Words in capitals, brackets and dots stand for something."""
    try:
        words = shlex.split(re.sub(r"[\[\]…]|\.\.\.", " ", line))[1:]
    except ValueError:
        words = line.split()[1:]
    command: Any = ROOT_COMMAND
    known = set(_options(command))
    while words and words[0] in getattr(command, "commands", {}):
        name = words.pop(0)
        command = command.commands[name]
        known |= _options(command)
        if name in OWN_COMMAND and "--" in words:
            words = words[: words.index("--")]
    if words and getattr(command, "commands", {}) and WORD.fullmatch(words[0]) and not command.invoke_without_command:
        return f"there is no command {words[0]}"
    wrong = [word for word in words if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]
    return f"there is no option {wrong[0]}" if wrong else ""


@cache
def _options(command: Any) -> frozenset[str]:
    found = command.get_params(typer.Context(command))
    return frozenset(one for parameter in found for one in (*parameter.opts, *parameter.secondary_opts))


@pytest.mark.parametrize("page", our_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_on_a_page_exists(page: Path) -> None:
    found = {line: what for line in typed(page) if (what := problem(line))}
    assert not found


def test_many_commands_are_found() -> None:
    assert sum(len(list(typed(page))) for page in our_pages()) > 200


def test_a_command_and_an_option_that_there_are_not_are_noticed() -> None:
    assert problem("ostler sumbit -- true") == "there is no command sumbit"
    assert problem("ostler submit --gpu 1 -- python --anything") == "there is no option --gpu"
    assert problem("ostler worker show ID --json") == ""
