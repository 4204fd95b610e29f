"""Messages between a worker and its supervisor: one JSON object per line.

Standard library only: the supervisor imports this.
"""

import json
from json.encoder import encode_basestring_ascii
from typing import Any

MAX_LINE_BYTES = 16 * 1024 * 1024

# ASCII with escapes: a name with bytes that are no text (surrogates) passes unharmed both ways.
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_decode = json.JSONDecoder().raw_decode


class LineTooLong(Exception):
    """The other side sends no line end: what it says can no longer be told apart."""


class Lines:
    """Cuts a stream of bytes into lines; keeps the unfinished one for the next call."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n") if self._rest else data.split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise LineTooLong(f"a line of more than {MAX_LINE_BYTES} bytes")
        return lines


def quote(text: str) -> str:
    """Text as JSON: for the few messages that come by the thousand and are put together by hand."""
    return encode_basestring_ascii(text) if text else '""'


def pack(message: dict[str, Any]) -> bytes:
    return _encode(message).encode() + b"\n"


def unpack(line: bytes) -> dict[str, Any]:
    message, _ = _decode(line.decode())
    if not isinstance(message, dict):
        raise ValueError("a message is a JSON object")
    return message
