"""JSON in which every number is finite.

JSON has neither infinity nor NaN. msgspec writes null for them, and a reader that expects a number fails on null.
"""

import math
import re
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode
_INFINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""The beginning of a number that is not finite, as MessagePack has it. Rarely other bytes look the same."""


def encode(document: Any) -> bytes:
    """The document as JSON. A field whose number is not finite is absent, and such a number in a list is null."""
    data = _encode(document)
    if b"null" not in data or not _may_be_infinite(document):
        return data
    return _encode(_without_infinite(msgspec.to_builtins(document, enc_hook=msgspec.json.decode)))


def _may_be_infinite(document: Any) -> bool:
    """Packed, such a number has bytes of its own: to look for them costs little beside a walk over the document."""
    try:
        return _INFINITE.search(_pack(document)) is not None
    except OverflowError:
        return True  # a whole number that JSON can hold and MessagePack cannot


def _without_infinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_infinite(one) for name, one in value.items() if not _is_infinite(one)}
    if isinstance(value, list | tuple):
        return [None if _is_infinite(one) else _without_infinite(one) for one in value]
    return value


def _is_infinite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
