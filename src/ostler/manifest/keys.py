"""Every key of a manifest, and what its value must be."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ostler.manifest.locate import Path
from ostler.manifest.problems import Problems, nearest, suggestion

MAX_EXACT = 2**53 - 1
"""Whole numbers beyond it are not exact in JSON, so that they could not stand in an id."""
MAX_COUNT = 1_000_000_000
MAX_AMOUNT = 1e12
MAX_PRIORITY = 1_000_000
MAX_NAME = 256
MAX_HYPER = 1000

Faults = Iterator[tuple[Path, str]]
"""Where inside a value something is wrong, and what."""


class Key(NamedTuple):
    faults: Callable[[Any], Faults]
    default: Any
    is_whole: bool = False


class Checked(NamedTuple):
    """What of a table can be used."""

    values: dict[str, Any]
    spoiled: set[str]
    """Keys that are there in a form that cannot be used: nothing more is said about them."""


def check(table: Mapping[str, Any], path: Path, keys: Mapping[str, Key], problems: Problems) -> Checked:
    checked = Checked({}, set())
    for name, value in table.items():
        key = keys.get(name)
        if key is None:
            problems.add((*path, name), _unknown(name, list(keys)))
            checked.spoiled.add(nearest(name, list(keys)))
            continue
        for inside, what in key.faults(value):
            problems.add((*path, name, *inside), what)
            checked.spoiled.add(name)
        if name not in checked.spoiled:
            checked.values[name] = int(value) if key.is_whole else value
    return checked


def _unknown(name: str, valid: list[str]) -> str:
    if name in SWEEP_KEYS and "command" in valid:
        return f"{name!r} is a key of [[sweeps]]; move this entry there"
    return f"unknown key {_short(repr(name))}; {suggestion(name, valid, 'key')}"


def shown(value: Any) -> str:
    """A value in an error, in few characters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _short(repr(value))
    if isinstance(value, int | float):
        return _short(str(value))
    return "a list" if isinstance(value, list) else "a table" if isinstance(value, dict) else "a date or a time"


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"


def _text(value: Any) -> Faults:
    if not isinstance(value, str):
        yield (), f"must be a string, not {shown(value)}"
    elif "\0" in value:
        yield (), "must not contain NUL characters"


def _name(value: Any) -> Faults:
    yield from _text(value)
    if isinstance(value, str) and len(value) > MAX_NAME:
        yield (), f"must have at most {MAX_NAME} characters"


def _flag(value: Any) -> Faults:
    if not isinstance(value, bool):
        yield (), f"must be true or false, not {shown(value)}"


def _goal(value: Any) -> Faults:
    if value not in ("min", "max"):
        yield (), f"must be 'min' or 'max', not {shown(value)}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _amount(value: Any) -> Faults:
    if not _is_number(value):
        yield (), f"must be a number, not {shown(value)}"
    elif not 0 <= value <= MAX_AMOUNT:
        yield (), f"must be between 0 and {MAX_AMOUNT:.0f}, not {shown(value)}"


@dataclass(frozen=True)
class Whole:
    low: int
    high: int

    def __call__(self, value: Any) -> Faults:
        if not _is_number(value) or (isinstance(value, float) and not value.is_integer()):
            yield (), f"must be a whole number, not {shown(value)}"
        elif not self.low <= value <= self.high:
            yield (), f"must be between {self.low} and {self.high}, not {shown(value)}"


def _texts(value: Any) -> Faults:
    if not isinstance(value, list):
        yield (), f"must be a list of strings, not {shown(value)}"
        return
    for index, item in enumerate(value):
        for _, what in _text(item):
            yield (index,), what


def _names(value: Any) -> Faults:
    yield from _texts(value)
    if isinstance(value, list):
        yield from (((index,), "must not be empty") for index, item in enumerate(value) if item == "")


def _env(value: Any) -> Faults:
    if not isinstance(value, dict):
        yield (), f"must be a table of strings, not {shown(value)}"
        return
    for name, item in value.items():
        if not name or "=" in name or "\0" in name:
            yield (name,), "the name of a variable must be non-empty, without '=' or NUL"
        elif _is_number(item):
            yield (name,), f'must be a string: write "{shown(item)}"'
        else:
            yield from (((name,), what) for _, what in _text(item))


def _hyper(value: Any) -> Faults:
    if not isinstance(value, dict):
        yield (), f"must be a table, not {shown(value)}"
    elif len(value) > MAX_HYPER:
        yield (), f"has over {MAX_HYPER} keys"
    else:
        yield from hyper_faults(value)


def hyper_faults(value: Any) -> Faults:
    """What of a hyper value has no one spelling in JSON. (How deep it nests was bounded before it was read.)"""
    if isinstance(value, str):
        yield from _text(value)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from (((index, *inside), what) for inside, what in hyper_faults(item))
    elif isinstance(value, dict):
        for name, item in value.items():
            if not name or "\0" in name:
                yield (name,), "a key must be non-empty and without NUL"
            yield from (((name, *inside), what) for inside, what in hyper_faults(item))
    elif not isinstance(value, int | float):
        yield (), "must be a string, a number, true, false, a list or a table; put dates in quotes"
    elif isinstance(value, int):
        if abs(value) > MAX_EXACT:
            yield (), "must be within ±(2^53 - 1); put larger numbers in quotes"
    elif not math.isfinite(value):
        yield (), f"must be a finite number, not {value}"


def _grid(value: Any) -> Faults:
    if not isinstance(value, dict) or not value:
        yield (), "must be a table of lists, such as { lr = [0.1, 0.01] }, with at least one key"
        return
    for name, items in value.items():
        if not isinstance(items, list) or not items:
            yield (name,), "must be a list of at least one value"
    yield from _hyper(value)


def _list(value: Any) -> Faults:
    if not isinstance(value, list) or not value:
        yield (), "must be a list of at least one table, such as [{ lr = 0.1 }]"
        return
    for index, point in enumerate(value):
        yield from (((index, *inside), what) for inside, what in _hyper(point))


def _table(value: Any) -> Faults:
    if not isinstance(value, dict):
        yield (), f"must be a table, not {shown(value)}"


_count = Whole(0, MAX_COUNT)

JOB_KEYS: dict[str, Key] = {
    "name": Key(_name, ""),
    "model": Key(_name, ""),
    "mode": Key(_name, ""),
    "priority": Key(Whole(-MAX_PRIORITY, MAX_PRIORITY), 0, is_whole=True),
    "require_cuda": Key(_flag, False),
    "prefer_cuda": Key(_flag, False),
    "prefer_cuda_grace_s": Key(_amount, 300),
    "min_vram_gib": Key(_amount, 0),
    "min_ram_gib": Key(_amount, 0),
    "min_cores": Key(_amount, 0),
    "allowed_hosts": Key(_names, []),
    "denied_hosts": Key(_names, []),
    "split_recipe": Key(_text, ""),
    "train_hosts": Key(_names, []),
    "seed": Key(Whole(-MAX_EXACT, MAX_EXACT), 0, is_whole=True),
    "n_resamples": Key(_count, 0, is_whole=True),
    "hyper": Key(_hyper, {}),
    "command": Key(_texts, []),
    "env": Key(_env, {}),
    "max_runtime_hours": Key(_amount, 0),
    "max_attempts": Key(_count, 3, is_whole=True),
    "max_retries": Key(_count, 0, is_whole=True),
    "preemptible": Key(_flag, False),
    "labels": Key(_names, []),
    "metric": Key(_name, ""),
    "goal": Key(_goal, ""),
}
"""Of a job, and of [defaults]."""

SWEEP_KEYS: dict[str, Key] = {"grid": Key(_grid, {}), "list": Key(_list, [])}
"""Of a sweep, beside those of a job."""

HOST_KEYS: dict[str, Key] = {
    "allow_jobs": Key(_names, []),
    "deny_jobs": Key(_names, []),
    "capability": Key(_table, {}),
}
CAPABILITY_KEYS: dict[str, Key] = {
    "cpu_cores": Key(_amount, None),
    "ram_gib": Key(_amount, None),
    "vram_gib": Key(_amount, None),
    "gpu_count": Key(_count, None, is_whole=True),
}


def _tables(value: Any) -> Faults:
    if not isinstance(value, list):
        yield (), f"must be an array of tables (double brackets, as in [[jobs]]), not {shown(value)}"
        return
    for index, item in enumerate(value):
        yield from (((index,), what) for _, what in _table(item))


def _hosts(value: Any) -> Faults:
    yield from _table(value)
    if isinstance(value, dict):
        for name, host in value.items():
            yield from (((name,), what) for _, what in _table(host))


TOP_KEYS: dict[str, Key] = {
    "hosts": Key(_hosts, {}),
    "defaults": Key(_table, {}),
    "jobs": Key(_tables, []),
    "sweeps": Key(_tables, []),
}

# The same for editors, as JSON Schema

Shape = dict[str, Any]
_STRING: Shape = {"type": "string", "pattern": r"^[^\u0000]*$"}
_HYPER: Shape = {
    "anyOf": [
        _STRING,
        {"type": ["number", "boolean"]},
        {"type": "array", "items": {"$ref": "#/definitions/hyper"}},
        {"type": "object", "additionalProperties": {"$ref": "#/definitions/hyper"}},
    ]
}
_POINT: Shape = {"type": "object", "maxProperties": MAX_HYPER, "additionalProperties": {"$ref": "#/definitions/hyper"}}
DEFINITIONS: dict[str, Shape] = {"hyper": _HYPER}
_SHAPES: dict[Callable[[Any], Faults], Shape] = {
    _text: _STRING,
    _name: {**_STRING, "maxLength": MAX_NAME},
    _flag: {"type": "boolean"},
    _goal: {"enum": ["min", "max"]},
    _amount: {"type": "number", "minimum": 0, "maximum": MAX_AMOUNT},
    _texts: {"type": "array", "items": _STRING},
    _names: {"type": "array", "items": {**_STRING, "minLength": 1}},
    _env: {"type": "object", "propertyNames": {"pattern": r"^[^=\u0000]+$"}, "additionalProperties": _STRING},
    _hyper: _POINT,
    _grid: {
        "type": "object",
        "minProperties": 1,
        "maxProperties": MAX_HYPER,
        "additionalProperties": {"type": "array", "minItems": 1, "items": {"$ref": "#/definitions/hyper"}},
    },
    _list: {"type": "array", "minItems": 1, "items": _POINT},
}


def shape_of(key: Key) -> Shape:
    """What the value of this key must be."""
    if isinstance(key.faults, Whole):
        return {"type": "integer", "minimum": key.faults.low, "maximum": key.faults.high}
    return _SHAPES[key.faults]
