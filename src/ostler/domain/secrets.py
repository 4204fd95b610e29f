"""How a job names the secrets that it is given: `NAME`, or `NAME:VARIABLE` to have it in a variable, too."""

import re
from collections.abc import Sequence
from typing import NamedTuple

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
MAX_BYTES = 16 * 1024
MOST_OF_A_JOB = 16
"""All of them, and the spec, are in one frame."""
FLEET = ""
"""The owner of those that are everybody's."""


class Wanted(NamedTuple):
    name: str
    variable: str = ""


def parse(text: str) -> Wanted | None:
    name, colon, variable = text.partition(":")
    if NAME.fullmatch(name) is None or (colon and VARIABLE.fullmatch(variable) is None):
        return None
    return Wanted(name, variable)


def problems(texts: Sequence[str]) -> list[tuple[str, str]]:
    """What is wrong with the secrets of a spec."""
    if len(texts) > MOST_OF_A_JOB:
        return [("secrets", f"a job has at most {MOST_OF_A_JOB}")]
    found = [("secrets", f"{text[:80]!r} is neither NAME nor NAME:VARIABLE") for text in texts if parse(text) is None]
    names = [text.partition(":")[0] for text in texts]
    return found or [("secrets", f"{name!r} is named twice") for name in names if names.count(name) > 1][:1]


def names_some(spec: bytes) -> bool:
    """Whether it is worth reading: within a text of the spec there would be a backslash."""
    return b'"secrets":' in spec
