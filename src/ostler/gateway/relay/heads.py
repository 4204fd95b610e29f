"""Heads that need not be read again, and what the head of an answer says.

Callers write the same heads with all their requests, and a model's server the same with all its answers: only the
number after `Content-Length` differs. What the parser has made of such a head holds for the next one that is the same
byte for byte but for that number; to find it again takes a tenth of the time to read it.
"""

from functools import cached_property
from typing import Generic, TypeVar

from ostler.gateway.relay.answers import REASONS, UNBUFFERED

MAX_HEAD_BYTES = 4096
"""A longer head is read each time."""
MAX_DIGITS = 15
STREAM = b"text/event-stream"
COUNTED = (STREAM, b"application/json")
# As nearly all write it; who writes it otherwise is read each time.
_LENGTH, _LENGTH_LOW = b"\r\nContent-Length: ", b"\r\ncontent-length: "
_END = b"\r\n\r\n"
H = TypeVar("H")


class Heads(Generic[H]):
    """Heads that were read before, and what was made of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[bytes, H] = {}
        self._once: set[int] = set()
        """Heads that came once, by their hashes: one with a number of its own will not come again."""

    def find(self, data: bytes) -> tuple[H, bytes] | None:
        """The head and the body, if all of these bytes are one message with a body, and its head is known.

        Whether they are a message at all is not looked at: they are one if the parser has taken the same for a head.
        """
        end = data.find(_END, 0, MAX_HEAD_BYTES) + len(_END)
        at = data.find(_LENGTH, 0, end)
        if at < 0:
            at = data.find(_LENGTH_LOW, 0, end)
            if at < 0:
                return None
        at += len(_LENGTH)
        after = data.find(b"\r", at, at + MAX_DIGITS + 1)
        digits = data[at:after]
        if not digits.isdigit() or int(digits) != len(data) - end or end == len(data):
            return None
        head = self._known.get(data[:at] + data[after:end])
        return (head, data[end:]) if head is not None else None

    def keep(self, data: bytes, length: int, head: H) -> None:
        """Of a message that is all of these bytes, with a body of this length, as the parser says. It is kept when it
        comes for the second time."""
        end = len(data) - length
        at = max(data.find(_LENGTH, 0, end), data.find(_LENGTH_LOW, 0, end)) + len(_LENGTH)
        after = at + len(b"%d" % length)
        plain = at >= len(_LENGTH) and data[at:after] == b"%d" % length and data.startswith(b"\r\n", after)
        if not plain or length == 0 or end > MAX_HEAD_BYTES or data.find(_END) + len(_END) != end:
            return
        key = data[:at] + data[after:end]
        known = self._once if hash(key) not in self._once else self._known
        if len(known) >= self._most:
            known.clear()
        self._once.add(hash(key))
        if known is self._known:
            self._known[key] = head


class AnswerHead:
    status = 0
    reason = b""
    content_type = b""
    chunked = False
    encoded = False
    persistent = False
    """Another request may follow on the connection."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        """The headers that go on to the caller, as they are written."""

    @cached_property
    def start(self) -> bytes:
        """What the caller gets of it, without how its body ends and whether the connection does."""
        return self._start(self.lines)

    @cached_property
    def start_for_page(self) -> bytes:
        """The same for a page of another origin. Two answers to who may read it are none to a browser: the gateway's
        own counts."""
        return self._start(_without(b"access-control-", self.lines))

    def _start(self, lines: list[bytes]) -> bytes:
        status = b"HTTP/1.1 %d %b\r\n" % (self.status, self.reason or REASONS.get(self.status, b""))
        if not self.is_stream:
            return b"".join([status, *lines])
        return b"".join([status, *_without(b"x-accel-buffering:", lines), UNBUFFERED])

    @cached_property
    def is_stream(self) -> bool:
        return self.content_type.startswith(STREAM)

    @cached_property
    def counts(self) -> bool:
        """The end of the answer may tell how many tokens there were."""
        return not self.encoded and self.content_type.startswith(COUNTED)


def _without(prefix: bytes, lines: list[bytes]) -> list[bytes]:
    return [line for line in lines if not line.lower().startswith(prefix)]
