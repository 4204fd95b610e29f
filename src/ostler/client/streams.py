"""Answers without an end: logs that are followed, and the feed. Both go on after a hub has been away."""

import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from ostler.client.connections import ReadTimeout, Response, WireError
from ostler.client.errors import HubUnreachable
from ostler.client.transport import Patience, Transport

QUIET_S = 60.0
"""A stream that says nothing for so long is opened again: its hub's machine may be gone without a word."""

T = TypeVar("T")


class Outage:
    """Counts how long a hub has been away, and says when that is too long."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._since: float | None = None
        self._tried = 0

    def over(self) -> None:
        self._since, self._tried = None, 0

    def over_with(self, chunks: Iterable[T]) -> Iterator[T]:
        """These, each of which shows that the hub is there: a feed on which nothing happens is kept alive by it."""
        for chunk in chunks:
            self.over()
            yield chunk

    def endure(self, error: HubUnreachable, until: float | None = None) -> None:
        """Wait a moment, and no longer than until then, or raise: the hub has been away for too long."""
        now = time.monotonic()
        self._since = self._since or now
        self._tried += 1
        if now - self._since > self._patience.outage_s:
            raise error
        pause_s = min(self._patience.pause_s(self._tried), 5.0)
        time.sleep(pause_s if until is None else max(0.0, min(pause_s, until - now)))


class Stream:
    """One answer that is read as it comes. `close` may be called by another thread and ends the reading."""

    def __init__(self, transport: Transport, response: Response) -> None:
        self._transport = transport
        self._response = response
        self._closed = False

    def chunks(self) -> Iterator[bytes]:
        """Until the hub ends the answer. HubUnreachable where it broke off."""
        try:
            yield from self._response.stream()
        except WireError as error:
            if not self._closed:
                raise self._transport.unreachable(error) from error
        except (OSError, ValueError, AttributeError):
            # What a connection that was closed under its reader raises depends on where the reader was.
            if not self._closed:
                raise
        finally:
            # Not back to the pool: an answer that was left half-way is still on its connection.
            self._response.close()

    def close(self) -> None:
        self._closed = True
        try:
            self._response.shutdown()
        except (OSError, ValueError, RuntimeError):
            self._response.close()


def is_quiet(error: HubUnreachable) -> bool:
    """Nothing was said for a while, which is no outage."""
    return isinstance(error.__cause__, ReadTimeout)


def server_sent_events(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The documents of a feed, each with its `seq` and `kind`; comments and keep-alives are left out."""
    rest = b""
    event: dict[str, bytes] = {}
    for chunk in chunks:
        *lines, rest = (rest + chunk).replace(b"\r\n", b"\n").split(b"\n")
        for line in lines:
            if line:
                name, _, value = line.partition(b":")
                event[name.decode()] = event.get(name.decode(), b"") + value.removeprefix(b" ")
            elif event:
                if "data" in event:
                    yield _document(event)
                event = {}


def _document(event: dict[str, bytes]) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.json.decode(event["data"], type=dict[str, Any])
    if "id" in event:
        document.setdefault("seq", int(event["id"]))
    if "event" in event:
        document.setdefault("kind", event["event"].decode())
    return document
