"""Label constraints: 'label op value', as in `zone = eu`, `driver >= 550`, `gpu in a100,h100`, `nvlink exists`."""

import re
from collections.abc import Mapping

import msgspec

from ostler.domain.errors import BadInput

_FORM = re.compile(
    r"^(?P<label>[A-Za-z0-9_./-]+)\s*(?:(?P<exists>\bexists)|(?P<op><=|>=|!=|==|=|<|>|\bin\b)\s*(?P<value>[^\s=].*))$"
)


MAX_LENGTH = 512


class Constraint(msgspec.Struct, frozen=True, order=True):
    label: str
    op: str
    value: str = ""

    def holds(self, labels: Mapping[str, str]) -> bool:
        have = labels.get(self.label)
        if self.op == "!=":
            return have != self.value
        if have is None:
            return False
        match self.op:
            case "exists":
                return True
            case "=":
                return have == self.value
            case "in":
                return have in self.choices()
            case _:
                return _ordered(self.op, have, self.value)

    def choices(self) -> list[str]:
        return [part.strip() for part in self.value.strip("()[]").split(",")]

    def __str__(self) -> str:
        return f"{self.label} {self.op} {self.value}".rstrip()


def parse_constraint(text: str, where: str) -> Constraint:
    match = _FORM.match(text.strip()) if len(text) <= MAX_LENGTH else None
    if match is None:
        raise BadInput(
            f"{where}: {text!r} is not a constraint; write 'label op value' with op one of "
            "=, !=, in, exists, <, <=, >, >=",
            [(where, f"{text!r} is not 'label op value'")],
        )
    if match["exists"]:
        return Constraint(match["label"], "exists")
    return Constraint(match["label"], "=" if match["op"] == "==" else match["op"], match["value"])


def _ordered(op: str, have: str, want: str) -> bool:
    left, right = _comparable(have), _comparable(want)
    if op == "<":
        return left < right
    if op == "<=":
        return left <= right
    if op == ">":
        return left > right
    return left >= right


def _comparable(text: str) -> tuple[tuple[int, float, str], ...]:
    """Numbers compare as numbers and versions part by part, so that 3.11 > 3.9 and 550 > 99."""
    parts = re.split(r"[.\-+_]", text)
    return tuple((0, float(part), "") if part.isascii() and part.isdecimal() else (1, 0.0, part) for part in parts)
