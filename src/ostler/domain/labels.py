"""Label constraints: 'label op value', as in `zone = eu`, `driver >= 550`, `gpu in a100,h100`, `nvlink exists`."""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Final, TypeVar

import msgspec

from ostler.domain.errors import BadInput
from ostler.domain.versions import compare_versions, parse_version

_FORM = re.compile(
    r"^(?P<label>[A-Za-z0-9_./-]+)\s*(?:(?P<exists>\bexists)|(?P<op><=|>=|!=|==|=|<|>|\bin\b)\s*(?P<value>[^\s=].*))$"
)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")

VERSIONS: Final = frozenset({"python", "torch", "driver", "cuda"})
"""Facts whose values are versions even with fewer than two dots."""
TEXTS: Final = frozenset({"hostname", "os", "arch"})
"""Facts whose values are text, also where they look like numbers or versions."""

MAX_LENGTH = 512

Value = TypeVar("Value")


class Constraint(msgspec.Struct, frozen=True, order=True):
    label: str
    op: str
    value: str = ""

    def holds(self, labels: Mapping[str, str]) -> bool:
        have = labels.get(self.label)
        if have is None:
            return self.op == "!="
        if self.op == "exists":
            return True
        if self.op == "in":
            return any(is_equal(self.label, have, choice) for choice in self.choices())
        if self.op in ("=", "!="):
            return is_equal(self.label, have, self.value) == (self.op == "=")
        order = compare(self.label, have, self.value)
        match self.op:
            case "<":
                return order is not None and order < 0
            case "<=":
                return order is not None and order <= 0
            case ">":
                return order is not None and order > 0
            case _:
                return order is not None and order >= 0

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


def is_equal(label: str, have: str, want: str) -> bool:
    """
    Whether two values of a label are the same. Values with two or more dots are so only letter by letter, except those
    of the facts that are versions: an address 10.0.0.0 is not 10.0, and an image 1.0.0-1 is not 1.0.0.1.
    """
    if label not in VERSIONS and _has_dots(have, want):
        return have == want
    return compare(label, have, want) == 0


def _has_dots(have: str, want: str) -> bool:
    return have.count(".") > 1 or want.count(".") > 1


def compare(label: str, have: str, want: str) -> int | None:
    """
    Returns a negative number, 0 or a positive number, as `have` is below `want`, equal to it or above it. Returns None
    if only one of them is a number or a version: such a pair has no order, and differs.
    """
    if have == want:
        return 0
    if label in TEXTS:
        return (have > want) - (have < want)
    if label in VERSIONS or _has_dots(have, want):
        return _compare_as(have, want, parse_version, compare_versions)
    return _compare_as(have, want, _number, _compare_numbers)


def _compare_as(
    have: str, want: str, read: Callable[[str], Value | None], compare_values: Callable[[Value, Value], int]
) -> int | None:
    left, right = read(have), read(want)
    if left is not None and right is not None:
        return compare_values(left, right)
    return (have > want) - (have < want) if left is None and right is None else None


def _number(text: str) -> Decimal | None:
    """Exact: as floats, two long numbers that differ would be equal."""
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def _compare_numbers(left: Decimal, right: Decimal) -> int:
    return (left > right) - (left < right)
