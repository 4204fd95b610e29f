"""Versions as programs number themselves: '3.10', '2.3.1+cu121', '550.54.15', '5.15.0-91-generic', '2.4.0rc1'."""

import re
from itertools import zip_longest
from typing import Final, NamedTuple

Part = tuple[int, int, str]
"""Its sort, then its value. An early release sorts below 0, and a word between 0 and 1. A number is compared by the
count of its digits and then by its digits, because `int` refuses a text of more than 4,300 digits."""

_FORM: Final = re.compile(r"[vV]?([0-9][0-9A-Za-z._~-]*)(?:\+([0-9A-Za-z.+_~-]*))?")
_PART: Final = re.compile(r"[0-9]+|[A-Za-z]+")
_EARLY: Final = {"dev": 0, "a": 1, "alpha": 1, "b": 2, "beta": 2, "c": 3, "rc": 3, "pre": 3, "preview": 3}
_ZERO: Final[Part] = (0, 0, "")


class Version(NamedTuple):
    release: tuple[Part, ...]
    build: tuple[Part, ...]
    """After the `+`: how it was built."""


def parse_version(text: str) -> Version | None:
    """Returns None for a text that does not begin with a number."""
    found = _FORM.fullmatch(text)
    return Version(_parts(found[1]), _parts(found[2] or "")) if found else None


def compare_versions(left: Version, right: Version) -> int:
    """
    Returns a negative number, 0 or a positive number, as `left` is older than `right`, the same or newer.
    Builds are compared only if both versions have one: whoever asks for 2.3.1 is content with 2.3.1+cu121.
    """
    order = _compare(left.release, right.release)
    return order if order or not (left.build and right.build) else _compare(left.build, right.build)


def _compare(left: tuple[Part, ...], right: tuple[Part, ...]) -> int:
    for one, other in zip_longest(left, right, fillvalue=_ZERO):
        if one != other:
            return -1 if one < other else 1
    return 0


def _parts(text: str) -> tuple[Part, ...]:
    parts: list[Part] = []
    for word in _PART.findall(text.lower()):
        part = _part(word)
        while part[0] < 0 and parts and parts[-1] == _ZERO:
            parts.pop()  # 2.4.0rc1 is 2.4rc1
        parts.append(part)
    return tuple(parts)


def _part(word: str) -> Part:
    if word in _EARLY:
        return -1, _EARLY[word], ""
    if not word.isdecimal():
        return 1, 0, word
    digits = word.lstrip("0")
    return (2, len(digits), digits) if digits else _ZERO
