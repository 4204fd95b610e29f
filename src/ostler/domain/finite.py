"""JSON in which every number is finite.

JSON has neither infinity nor NaN. msgspec writes null for them, and a reader that expects a number fails on null.
"""

import math
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


def encode(document: Any) -> bytes:
    """The document as JSON. A field whose number is not finite is absent, and such a number in a list is null."""
    data = _encode(document)
    if b"null" not in data or _is_finite(document):  # without a null there was no such number: most end here
        return data
    return _encode(_without_infinite(msgspec.to_builtins(document, enc_hook=msgspec.json.decode)))


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_finite, value))
    if isinstance(value, msgspec.Struct):
        return all(_is_finite(getattr(value, name)) for name in value.__struct_fields__)
    return True


def _without_infinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_infinite(one) for name, one in value.items() if not _is_infinite(one)}
    if isinstance(value, list | tuple):
        return [None if _is_infinite(one) else _without_infinite(one) for one in value]
    return value


def _is_infinite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
