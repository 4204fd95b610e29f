"""Following a job's output. A byte's place is its attempt and its offset there, so nothing is lost or told twice
when the hub goes away in between; a job that is tried again goes on with the next attempt's output."""

import time
from collections.abc import Iterator
from typing import Any, Protocol

from ostler.client.errors import HubUnreachable
from ostler.client.streams import Outage, Stream, is_quiet
from ostler.client.transport import Patience
from ostler.domain.states import TERMINAL

FIRST_LOOK_S = 0.1
LONGEST_LOOK_S = 2.0
TAIL_BYTES = 4096
TAIL_LINES = 30


class LogSource(Protocol):
    """The part of a hub that logs need."""

    patience: Patience

    def job(self, job_id: str, wait: float | None = None) -> dict[str, Any]: ...

    def open_log(self, job_id: str, follow: bool, offset: int, attempt: str | None) -> Stream: ...


class Left(Exception):
    """Nobody reads this log any more."""


class Leaving:
    """A source whose reader another thread can send away, at once and also while the job says nothing."""

    def __init__(self, hub: LogSource) -> None:
        self.patience = hub.patience
        self._hub = hub
        self._stream: Stream | None = None
        self._is_left = False

    def leave(self) -> None:
        self._is_left = True
        if self._stream is not None:
            self._stream.close()

    def job(self, job_id: str, wait: float | None = None) -> dict[str, Any]:
        self.must_be_wanted()
        return self._hub.job(job_id, wait)

    def open_log(self, job_id: str, follow: bool, offset: int, attempt: str | None) -> Stream:
        self._stream = stream = self._hub.open_log(job_id, follow, offset, attempt)
        if self._is_left:
            stream.close()
        self.must_be_wanted()
        return stream

    def must_be_wanted(self) -> None:
        if self._is_left:
            raise Left


def follow(hub: LogSource, job_id: str, offset: int, only: str | None) -> Iterator[bytes]:
    """The newest attempt's output from this byte on, then that of each later one, until the job has ended."""
    told: str | None = None
    for document in _looks(hub, job_id):
        attempts = document.get("attempts") or []
        newest = only or (attempts[-1]["attempt"] if attempts else None)
        if newest is not None and newest != told:
            if told is not None:
                yield f"[ostler: attempt {len(attempts)} on {attempts[-1]['worker']}]\n".encode()
                offset = 0
            yield from _attempt(hub, job_id, newest, offset)
            told = newest
        elif document["state"] in TERMINAL or only:
            return


def tail(hub: LogSource, job_id: str) -> str:
    """The last lines of the output, as text."""
    kept = b""
    for chunk in hub.open_log(job_id, False, 0, None).chunks():
        kept = (kept + chunk)[-TAIL_BYTES:]
    return "\n".join(kept.decode(errors="replace").splitlines()[-TAIL_LINES:])


def _looks(hub: LogSource, job_id: str) -> Iterator[dict[str, Any]]:
    """The job's document, again and again; ever more seldom, but at once when it has ended."""
    outage = Outage(hub.patience)
    wait_s: float | None = None
    while True:
        try:
            document = hub.job(job_id, wait=wait_s)
        except HubUnreachable as error:
            outage.endure(error)
            continue
        outage.over()
        yield document
        wait_s = FIRST_LOOK_S if wait_s is None else min(wait_s * 1.5, LONGEST_LOOK_S)


def _attempt(hub: LogSource, job_id: str, attempt: str, offset: int) -> Iterator[bytes]:
    outage = Outage(hub.patience)
    ended = False
    while True:
        before = offset
        try:
            for chunk in hub.open_log(job_id, True, offset, attempt).chunks():
                outage.over()
                offset += len(chunk)
                yield chunk
            if ended and offset == before:
                return
            # A hub that stops ends its answers as if all had been said: only the attempt's own end is the end, and
            # what was written between the last byte and that end is read by one more look.
            ended = _has_ended(hub.job(job_id), attempt)
        except HubUnreachable as error:
            if not is_quiet(error):
                outage.endure(error)
        else:
            if not ended:
                time.sleep(FIRST_LOOK_S)


def _has_ended(document: dict[str, Any], attempt: str) -> bool:
    if document["state"] in TERMINAL:
        return True
    attempts = document.get("attempts") or []
    return any(
        one["attempt"] == attempt and (one.get("finished_at") is not None or one is not attempts[-1])
        for one in attempts
    )
