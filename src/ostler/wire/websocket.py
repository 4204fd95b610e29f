"""WebSocket frames (RFC 6455) as a server reads and writes them: bytes in, messages out, and no connection."""

from collections.abc import Iterator

try:
    from websockets.speedups import apply_mask
except ImportError:  # a platform for which it was not compiled
    from websockets.utils import apply_mask

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
KNOWN = frozenset((CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG))
CLOSE_PROTOCOL_ERROR, CLOSE_NOT_UTF8, CLOSE_TOO_LARGE = 1002, 1007, 1009
NO_CODE = 1005
MAX_REASON_BYTES = 123
SAYABLE = (range(1000, 1004), range(1007, 1015), range(3000, 5000))
"""The codes that a close may carry."""
_FIN, _RESERVED, _MASKED = 0x80, 0x70, 0x80


class Violation(Exception):
    """The peer breaks the protocol: the connection is closed with this code, for this reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def frame(opcode: int, payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        return bytes((_FIN | opcode, size)) + payload
    if size < 65_536:
        return bytes((_FIN | opcode, 126)) + size.to_bytes(2, "big") + payload
    return bytes((_FIN | opcode, 127)) + size.to_bytes(8, "big") + payload


def close_frame(code: int, reason: str = "") -> bytes:
    said = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore").encode()
    return frame(CLOSE, code.to_bytes(2, "big") + said if code != NO_CODE else b"")


def close_code(payload: bytes) -> int:
    """What a close says, which is said back; to one that says what none may, that it broke the rules."""
    if not payload:
        return NO_CODE
    code = int.from_bytes(payload[:2], "big")
    return code if any(code in codes for codes in SAYABLE) else CLOSE_PROTOCOL_ERROR


class Reader:
    """One connection's bytes. A message over the limit is refused as soon as its head says how long it is."""

    __slots__ = ("_at", "_buffer", "_gathered", "_limit", "_opcode")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = b""
        self._at = 0
        self._opcode = CONTINUATION
        """Of the message that is being gathered; none begins with a continuation."""
        self._gathered = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The messages and control frames that are whole by now. Violation if they are none."""
        self._buffer = self._buffer[self._at :] + data if self._at < len(self._buffer) else data
        self._at = 0
        while (found := self._next()) is not None:
            first, payload = found
            opcode = first & 0x0F
            if opcode >= CLOSE or (first & _FIN and opcode != CONTINUATION):
                yield opcode, payload
            elif (whole := self._gather(first, payload)) is not None:
                yield whole
        if self._at == len(self._buffer):
            self._buffer, self._at = b"", 0

    def _next(self) -> tuple[int, bytes] | None:
        buffer, start = self._buffer, self._at + 2
        if len(buffer) < start:
            return None
        first, second = buffer[start - 2], buffer[start - 1]
        size = second & 0x7F
        if size >= 126:
            length = 2 if size == 126 else 8
            if len(buffer) < start + length:
                return None
            size = int.from_bytes(buffer[start : start + length], "big")
            start += length
        self._check(first, second, size)
        end = start + 4 + size
        if len(buffer) < end:
            return None
        self._at = end
        return first, apply_mask(buffer[start + 4 : end], buffer[start : start + 4])

    def _check(self, first: int, second: int, size: int) -> None:
        opcode = first & 0x0F
        if first & _RESERVED or opcode not in KNOWN:
            raise Violation(CLOSE_PROTOCOL_ERROR, "a frame of an unknown kind")
        if not second & _MASKED:
            raise Violation(CLOSE_PROTOCOL_ERROR, "a frame that is not masked")
        if opcode >= CLOSE:
            if size > 125 or not first & _FIN:
                raise Violation(CLOSE_PROTOCOL_ERROR, "a control frame that is too long or not whole")
        elif (opcode == CONTINUATION) != bool(self._opcode):
            raise Violation(CLOSE_PROTOCOL_ERROR, "a continuation of nothing, or a message within another")
        elif len(self._gathered) + size > self._limit:
            raise Violation(CLOSE_TOO_LARGE, f"a message has over {self._limit} bytes")

    def _gather(self, first: int, payload: bytes) -> tuple[int, bytes] | None:
        self._opcode = self._opcode or first & 0x0F
        self._gathered += payload  # and not kept in parts: there is no limit to how many may be empty
        if not first & _FIN:
            return None
        whole = self._opcode, bytes(self._gathered)
        self._opcode, self._gathered = CONTINUATION, bytearray()
        return whole
