"""`ostler explain`: what an error means and what to do about it, without asking a hub."""

import shutil
import textwrap
from difflib import get_close_matches
from typing import Annotated

import typer

from ostler.cli import exits
from ostler.cli.options import Json
from ostler.cli.render.terminal import show_json
from ostler.domain import advice
from ostler.domain.errors import NotFound

Said = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ERROR]",
        help="An error's name, an HTTP status, an exit code, an exception's class, or why a job ended, as it was told.",
    ),
]


def explain(error: Said = None, json: Json = False) -> int:
    """Say what an error means, and what to do about it; without one, list them all.

    ostler explain 409
    """
    found = _found(" ".join(error)) if error else list(advice.ALL.values())
    if json:
        show_json({"errors": [one._asdict() for one in found]})
    elif error:
        print("\n".join(_wrapped(advice.text(one)) for one in found), end="")
    else:
        width = max(len(one.name) for one in found) + 2
        for one in found:
            print(f"{one.name:<{width}}{one.kind if one.kind == advice.REASON else one.sign}")
    return exits.DONE


def _found(said: str) -> list[advice.Advice]:
    said = said.strip().removeprefix(advice.PATH).removesuffix(".")
    for matches in (_is_called, _has_number):
        found = [one for one in advice.ALL.values() if matches(one, said)]
        if found:
            return found
    of_job = advice.of_reason(said)
    if of_job is not None:
        return [of_job]
    close = _beginning_so(said.lower()) or get_close_matches(said.lower(), advice.ALL, n=1)
    raise NotFound(
        f"there is no error called {said[:100]!r}"
        + (f"; did you mean {close[0]!r}?" if close else "; `ostler explain` lists those that there are")
    )


def _beginning_so(said: str) -> list[str]:
    return [name for name in advice.ALL if said and name.startswith(said)]


def _is_called(one: advice.Advice, said: str) -> bool:
    return said.lower() == one.name or (one.kind != advice.REASON and said.lower() in _spellings(one))


def _spellings(one: advice.Advice) -> tuple[str, str]:
    return one.sign.lower(), one.sign.lower().partition(" ")[2]


def _has_number(one: advice.Advice, said: str) -> bool:
    return one.kind == advice.ANSWER and one.sign.partition(" ")[0] == said


def _wrapped(text: str) -> str:
    width = min(100, shutil.get_terminal_size().columns)
    return "".join(textwrap.fill(line, width, break_on_hyphens=False) + "\n" for line in text.splitlines())
