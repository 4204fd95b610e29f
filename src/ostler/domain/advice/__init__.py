"""What to do about everything that can go wrong: a paragraph for each error, exit code and end of a job.

The hub serves these at `/docs/errors/NAME`, which is the `type` of its problem documents; `ostler explain NAME` prints
them, and docs/errors.md is made of them.
"""

import re

from ostler.domain.advice.answers import ANSWERS
from ostler.domain.advice.entry import ANSWER, REASON, Advice
from ostler.domain.advice.exceptions import EXCEPTIONS
from ostler.domain.advice.exits import EXITS
from ostler.domain.advice.gateway import REFUSALS
from ostler.domain.advice.reasons import REASONS

PATH = "/docs/errors/"
__all__ = ["ALL", "ANSWER", "PATH", "REASON", "Advice", "name_of", "of_reason", "text"]
ALL: dict[str, Advice] = {one.name: one for one in (*ANSWERS, *EXITS, *EXCEPTIONS, *REFUSALS, *REASONS)}


def name_of(title: str) -> str:
    """An error's title as the last part of its address."""
    return title.lower().replace(" ", "-")


def of_reason(reason: str) -> Advice | None:
    """What there is to say of the reason that a job ended for; None where it needs no words."""
    return next((one for one in REASONS if re.search(one.sign, reason)), None)


def text(one: Advice) -> str:
    """The whole of it, for a terminal and for whoever follows the address with curl."""
    known = "" if one.kind == REASON else f": {one.sign}"
    return f"{one.name} ({one.kind}{known})\n\n{one.happened}\n\nWhat to do: {one.act}\n"
