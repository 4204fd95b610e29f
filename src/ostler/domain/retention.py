"""For how long what has ended is kept, and how much of it: what an operator writes under [retention]."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from math import inf
from typing import Any

import msgspec

from ostler.domain.errors import BadInput
from ostler.domain.quantities import parse_duration, parse_size

DAY_S = 86_400.0
GIB = 1024**3
NEVER = "never"
SHORTEST_KEY_S = 3600.0
"""A client that was cut off asks again for minutes."""


class Retention(msgspec.Struct, frozen=True):
    """Ages count from the end of the job; infinite: it stays for ever."""

    jobs: float = 90 * DAY_S
    """What a job was and what became of it: its rows, those of its attempts, its lines of the feed."""
    logs: float = 30 * DAY_S
    artifacts: float = inf
    keys: float = 7 * DAY_S
    """Idempotency-Keys, from their first use."""
    audit: float = 365 * DAY_S
    """Who did what, from when it was done."""
    most_jobs: float = 1_000_000
    most_logs: float = 20 * GIB
    most_artifacts: float = inf
    """Where there are more of them, or more bytes, the oldest go first."""


def read_retention(table: Mapping[str, Any], where: str = "retention") -> Retention:
    """The table, or BadInput that names every mistake in it."""
    values: dict[str, float] = {}
    errors: list[tuple[str, str]] = []
    for key, given in table.items():
        if key not in _READERS:
            errors.append((f"{where}.{key}", f"unknown key {key!r}{_instead(key)}"))
            continue
        try:
            values[key] = inf if given == NEVER else _READERS[key](given, f"{where}.{key}")
        except BadInput as error:
            errors += error.errors
    if values.get("keys", inf) < SHORTEST_KEY_S:
        errors.append((f"{where}.keys", "must be an hour or more: a client that was cut off asks again by its key"))
    if errors:
        raise BadInput("; ".join(f"{field}: {what}" for field, what in errors), errors)
    return Retention(**values)


def _count(given: Any, where: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise BadInput(f"{where}: not a number of jobs", [(where, f"must be a whole number, or {NEVER!r}")])
    return given


def _duration(given: Any, where: str) -> float:
    if isinstance(given, bool) or not isinstance(given, (str, int, float)):
        raise BadInput(f"{where}: not a duration", [(where, f"must be a duration like '30d', or {NEVER!r}")])
    return parse_duration(given, where)


def _size(given: Any, where: str) -> float:
    if not isinstance(given, (str, int, float)):
        raise BadInput(f"{where}: not a size", [(where, f"must be a size like '20g', or {NEVER!r}")])
    return parse_size(given, where)


_READERS: dict[str, Callable[[Any, str], float]] = {
    "jobs": _duration,
    "logs": _duration,
    "artifacts": _duration,
    "keys": _duration,
    "audit": _duration,
    "most_jobs": _count,
    "most_logs": _size,
    "most_artifacts": _size,
}


def _instead(key: str) -> str:
    close = get_close_matches(key, _READERS, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(_READERS)}"
