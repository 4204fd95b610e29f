"""Go's `encoding/json` for structs that are written out here: what Go sends, and what Go refuses to read.

Encoding: a nil slice or map is `null`, `omitempty` leaves out zero values, a float64 without a fraction has no point.
Decoding: `null` changes nothing, unknown fields are ignored, and a value of another kind is an error, also a number with
a point for an integer.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ZERO_TIME = "0001-01-01T00:00:00Z"
RANGES = {"int": (-(2**63), 2**63 - 1), "int64": (-(2**63), 2**63 - 1), "uint64": (0, 2**64 - 1)}
ZEROS: dict[str, Any] = {
    "string": "",
    "bool": False,
    "int": 0,
    "int64": 0,
    "uint64": 0,
    "float64": 0.0,
    "time": ZERO_TIME,
    "raw": None,
}


class CannotUnmarshal(AssertionError):
    """Go's json.Unmarshal returns an error here."""


@dataclass(frozen=True)
class Number:
    """A number with a point or an exponent, as it was written."""

    text: str


@dataclass(frozen=True)
class Slice:
    of: Any


@dataclass(frozen=True)
class Map:
    of: Any


@dataclass(frozen=True)
class Pointer:
    to: "Struct"


@dataclass(frozen=True)
class Struct:
    """Fields by their JSON names, each with its Go type; those in `optional` have `omitempty`."""

    name: str
    fields: Mapping[str, Any]
    optional: frozenset[str] = field(default_factory=frozenset)

    def marshal(self, **values: Any) -> str:
        return json.dumps(_marshalled(self, values))

    def unmarshal(self, text: str | bytes) -> dict[str, Any]:
        """The struct after json.Unmarshal, zero values included; or CannotUnmarshal."""
        found = json.loads(text, parse_float=Number)
        value: dict[str, Any] = _unmarshalled(self, found, self.name)
        return value


def struct(name: str, optional: str = "", **fields: Any) -> Struct:
    return Struct(name, fields, frozenset(optional.split()))


def _marshalled(kind: Any, value: Any) -> Any:
    match kind:
        case Struct():
            unknown = set(value) - set(kind.fields)
            assert not unknown, f"{kind.name} has no fields {unknown}"
            filled = {name: value.get(name, _zero(one)) for name, one in kind.fields.items()}
            sent = {name: one for name, one in filled.items() if name not in kind.optional or not _is_zero(one)}
            return {name: _marshalled(kind.fields[name], one) for name, one in sent.items()}
        case Slice():
            return None if value is None else [_marshalled(kind.of, one) for one in value]
        case Map():
            return None if value is None else {name: _marshalled(kind.of, one) for name, one in value.items()}
        case Pointer():
            return None if value is None else _marshalled(kind.to, value)
        case "float64":
            return int(value) if float(value).is_integer() else value
        case _:
            return value


def _zero(kind: Any) -> Any:
    if isinstance(kind, Struct):
        return {}
    return ZEROS[kind] if isinstance(kind, str) else None


def _is_zero(value: Any) -> bool:
    return not value and not isinstance(value, dict)


def _unmarshalled(kind: Any, found: Any, where: str) -> Any:
    if found is None:
        return _unmarshalled(kind, {}, where) if isinstance(kind, Struct) else _zero(kind)
    match kind:
        case Struct():
            _must_be(found, dict, kind.name, where)
            return {name: _unmarshalled(one, found.get(name), f"{where}.{name}") for name, one in kind.fields.items()}
        case Slice():
            _must_be(found, list, "slice", where)
            return [_unmarshalled(kind.of, one, f"{where}[{place}]") for place, one in enumerate(found)]
        case Map():
            _must_be(found, dict, "map", where)
            return {name: _unmarshalled(kind.of, one, f"{where}[{name}]") for name, one in found.items()}
        case Pointer():
            return _unmarshalled(kind.to, found, where)
        case "raw":
            return found
        case "float64":
            if isinstance(found, Number):
                return float(found.text)
            _must_be(found, int, kind, where)
            return float(found)
        case "int" | "int64" | "uint64":
            _must_be(found, int, kind, where)
            low, high = RANGES[kind]
            if not low <= found <= high:
                raise CannotUnmarshal(f"cannot unmarshal number {found} into Go struct field {where} of type {kind}")
            return found
        case "bool":
            _must_be(found, bool, kind, where)
            return found
        case _:
            _must_be(found, str, kind, where)
            return found


def _must_be(found: Any, expected: type, kind: str, where: str) -> None:
    is_bool_as_number = isinstance(found, bool) and expected is int
    if not isinstance(found, expected) or is_bool_as_number:
        raise CannotUnmarshal(f"cannot unmarshal {found!r} into Go struct field {where} of type {kind}")
