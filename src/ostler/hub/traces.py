"""Traces of jobs that have ended, for OpenTelemetry: only where OTEL_EXPORTER_OTLP_ENDPOINT is set.

The loop leaves the ids of ended jobs here, never more than a bound, and goes on. Their rows are read from the ledger
beside it, and a thread of its own sends the spans: a hub that stops does not wait for that. Whatever does not fit, or
is not taken, is counted and forgotten.
"""

import asyncio
import contextlib
import logging
import os
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Protocol

import msgspec
from prometheus_client.core import CounterMetricFamily, Metric

from ostler.domain.records import AttemptRecord, FeedRecord, JobRecord
from ostler.domain.states import TERMINAL
from ostler.hub.aside import Aside
from ostler.hub.loop import Loop
from ostler.ledger.base import Ledger

MOST_WAITING = 10_000
AT_ONCE = 200
READ_AT_ONCE = 20
"""Whoever else reads the ledger waits no longer than for so many: of an array there are many rows to read."""
MOST_ATTEMPTS = 100
"""Of one job: an array of a million is one span with so many below it, and says how many are left out."""
GATHER_S = 0.5
LAST_S = 3.0
"""For what is left when the hub stops."""
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

_log = logging.getLogger("ostler.hub")


class Story(msgspec.Struct):
    """What a trace tells of one job."""

    job: JobRecord
    attempts: list[AttemptRecord]
    left_out: int = 0


class Sender(Protocol):
    def send(self, stories: list[Story]) -> tuple[int, int]:
        """How many spans were taken, and how many were not. Called in a thread; may take seconds."""
        ...


class Traces:
    def __init__(self, loop: Loop, sender: Sender | None) -> None:
        self._loop = loop
        self._sender = sender
        self._waiting: deque[str] = deque()
        self._some = asyncio.Event()
        self._counts: Counter[str] = Counter({"sent": 0, "dropped": 0, "failed": 0})

    def saw(self, records: list[FeedRecord]) -> None:
        if self._sender is None:
            return
        for record in records:
            if record.kind == "job" and record.body.get("state") in TERMINAL:
                if len(self._waiting) >= MOST_WAITING:
                    self._counts["dropped"] += 1
                else:
                    self._waiting.append(record.subject)
        if self._waiting:
            self._some.set()

    async def run(self) -> None:
        """For as long as the hub runs; what is left then is sent if that is quick."""
        if self._sender is None:
            return
        sender, aside = self._sender, Aside("traces")
        try:
            while True:
                await self._some.wait()
                await asyncio.sleep(GATHER_S)
                await self._send_some(sender, aside)
        finally:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._send_rest(sender, aside), LAST_S)
            aside.leave()

    async def _send_rest(self, sender: Sender, aside: Aside) -> None:
        while self._waiting:
            await self._send_some(sender, aside)

    def collect(self) -> Iterator[Metric]:
        told = CounterMetricFamily("ostler_trace_spans", "Spans of jobs, and jobs dropped unread", labels=["outcome"])
        for outcome, count in self._counts.items():
            told.add_metric([outcome], count)
        yield told

    async def _send_some(self, sender: Sender, aside: Aside) -> None:
        ids = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
        if not self._waiting:
            self._some.clear()
        if not ids:
            return
        try:
            stories = await self._read(ids)
            taken, lost = await aside.do(lambda: sender.send(stories))
        except Exception as error:  # a trace is not worth a hub
            _log.warning("the traces of %d jobs could not be told: %s", len(ids), error)
            taken, lost = 0, len(ids)
        self._counts["sent"] += taken
        self._counts["failed"] += lost

    async def _read(self, ids: list[str]) -> list[Story]:
        parts = [ids[first : first + READ_AT_ONCE] for first in range(0, len(ids), READ_AT_ONCE)]
        return [story for part in parts for story in await self._loop.read(partial(_stories, ids=part))]


def _stories(ledger: Ledger, ids: list[str]) -> list[Story]:
    return [_story(ledger, job) for job in ledger.jobs(ids).values()]


def _story(ledger: Ledger, job: JobRecord) -> Story:
    if not job.size:
        since = _told(ledger, job, job.id)
        return Story(job, since[-MOST_ATTEMPTS:], max(0, len(since) - MOST_ATTEMPTS))
    tasks = ledger.tasks_of(job.id, limit=MOST_ATTEMPTS)
    attempts = [one for task in tasks for one in _told(ledger, job, task.id)]
    return Story(job, attempts[:MOST_ATTEMPTS], job.size - len(tasks) + max(0, len(attempts) - MOST_ATTEMPTS))


def _told(ledger: Ledger, job: JobRecord, task_id: str) -> list[AttemptRecord]:
    """Those that a worker began; of a job that was requeued, those after that."""
    return [one for one in ledger.attempts_of(task_id) if one.accepted and one.assigned_at >= job.queued_at]


def opened(loop: Loop, environ: Mapping[str, str] | None = None) -> Traces:
    """Those that the environment asks for, in OpenTelemetry's own variables; else none."""
    environ = os.environ if environ is None else environ
    if not any(environ.get(name) for name in ENDPOINTS) or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return Traces(loop, None)
    return Traces(loop, _sender())


def _sender() -> Sender | None:
    try:
        from ostler.hub.spans import OtlpSender
    except ImportError as error:
        _log.warning(
            "no traces are exported: %s; install opentelemetry-sdk and its OTLP exporter for http, or unset %s",
            error,
            ENDPOINTS[1],
        )
        return None
    return OtlpSender()
