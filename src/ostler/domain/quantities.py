"""Amounts with units: the ways people write them, and the whole numbers that the core counts in."""

import math
import re
from typing import Final

from ostler.domain.errors import BadInput

MIB = 1024 * 1024
AUTO: Final = "auto"
"""In place of an amount: what jobs of its kind have taken."""
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?b)?\s*$", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*$", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(text: str | int | float, where: str = "size") -> int:
    """Bytes in '512m', '8g', '16gb', '1.5TiB' or a plain number of bytes. Units are powers of 1024."""
    if isinstance(text, bool):
        raise BadInput(f"{where}: expected a size such as '8g', got {text!r}", [(where, "not a size")])
    if isinstance(text, (int, float)):
        if not math.isfinite(text) or text < 0:
            raise BadInput(f"{where}: a size cannot be {text}", [(where, "must be 0 or more")])
        return int(text)
    match = _SIZE.match(text)
    if match is None:
        raise BadInput(
            f"{where}: {text!r} is not a size; write it like '512m', '8g', '16gb' or '1.5TiB'",
            [(where, f"{text!r} is not a size")],
        )
    return int(float(match[1]) * 1024 ** _POWER[match[2].lower()])


def parse_duration(text: str | int | float, where: str = "duration") -> float:
    """Seconds in '90', '90s', '5m', '2h' or '1d'."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        if not math.isfinite(text) or text < 0:
            raise BadInput(f"{where}: a duration cannot be {text}", [(where, "must be 0 or more")])
        return float(text)
    match = _DURATION.match(text) if isinstance(text, str) else None
    if match is None:
        raise BadInput(
            f"{where}: {text!r} is not a duration; write it like '90s', '5m', '2h' or '1d'",
            [(where, f"{text!r} is not a duration")],
        )
    return float(match[1]) * _SECONDS[(match[2] or "s").lower()]


def needed_mib(gib: float) -> int:
    """A need, rounded up: a job never gets less than it asked for."""
    return math.ceil(round(gib * 1024, 6)) if gib else 0


def offered_mib(gib: float) -> int:
    """An offer, rounded down: a worker never promises more than it has."""
    return math.floor(round(gib * 1024, 6))


def needed_milli(cores: float) -> int:
    return math.ceil(round(cores * 1000, 6)) if cores else 0


def offered_milli(cores: float) -> int:
    return math.floor(round(cores * 1000, 6))


def show_mib(mib: int) -> str:
    """Cut, never rounded up: what is shown as free can be asked for."""
    return f"{mib} MiB" if mib < 1024 else f"{mib * 1000 // 1024 / 1000:g} GiB"


def show_cores(milli: int) -> str:
    return f"{milli / 1000:g}"
