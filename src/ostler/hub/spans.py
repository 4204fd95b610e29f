"""A job's rows as OpenTelemetry's spans, sent by OTLP over HTTP. Needs the extra `otel`; hub/traces.py loads it."""

import logging

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from ostler import __version__
from ostler.domain import tracing
from ostler.domain.job import JobSpec, decode_spec
from ostler.domain.records import AttemptRecord, JobRecord
from ostler.domain.states import CANCELLED, SUCCEEDED
from ostler.hub.traces import Story

_SCOPE = InstrumentationScope("ostler", __version__)
_NANOSECONDS = 1_000_000_000
Attributes = dict[str, str | int | float | bool]

_log = logging.getLogger("ostler.hub")


class OtlpSender:
    """Endpoint, headers, compression and time limit come from the variables that OpenTelemetry knows."""

    def __init__(self) -> None:
        self._exporter = OTLPSpanExporter()
        self._resource = Resource.create({"service.name": "ostler", "service.version": __version__})

    def send(self, stories: list[Story]) -> tuple[int, int]:
        spans = [span for story in stories for span in spans_of(story, self._resource)]
        if not spans:
            return 0, 0
        try:
            done = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:
            _log.warning("%d spans could not be sent: %s", len(spans), error)
            done = False
        return (len(spans), 0) if done else (0, len(spans))


def spans_of(story: Story, resource: Resource) -> list[ReadableSpan]:
    """The job's, and below it its wait and its attempts. None where its submitter's trace is not sampled."""
    job, spec = story.job, decode_spec(story.job.spec)
    context = tracing.context_of(job.id, spec.env.get(tracing.TRACEPARENT, ""))
    if not context.sampled:
        return []
    trace = _Trace(context.trace, resource)
    begun = job.queued_at or job.submitted_at
    ended = job.finished_at or begun
    own = tracing.span_of(f"{job.id} {ended}" if job.queued_at else job.id)
    placed = min((one.assigned_at for one in story.attempts), default=ended)
    about = _about_job(job, spec, story.left_out)
    return [
        trace.span(
            f"job {job.name or job.id}", own, context.span, (begun, ended), about, _status(job.state, job.reason)
        ),
        trace.span("queued", tracing.span_of(f"{own} queued"), own, (begun, placed), {"ostler.job.id": job.id}),
        *(_attempt(trace, one, number, own, ended) for number, one in enumerate(story.attempts, 1)),
    ]


def _attempt(trace: "_Trace", attempt: AttemptRecord, number: int, parent: str, ended: float) -> ReadableSpan:
    about: Attributes = {
        "ostler.job.id": attempt.job_id,
        "ostler.task.id": attempt.task_id,
        "ostler.attempt": attempt.attempt,
        "ostler.worker": attempt.worker,
        "ostler.state": attempt.state,
        "ostler.gpus": len(attempt.devices),
        "ostler.run_s": attempt.run_s,
        "ostler.peak_memory_mib": attempt.peak_memory_mib,
        "ostler.peak_vram_mib": attempt.peak_vram_mib,
    }
    times = (attempt.assigned_at, attempt.finished_at or ended)
    begun = [] if attempt.started_at is None else [Event("started", timestamp=_at(attempt.started_at))]
    status = _status(attempt.state, attempt.reason or attempt.stop_reason)
    return trace.span(f"attempt {number}", tracing.span_of(attempt.attempt), parent, times, about, status, begun)


def _about_job(job: JobRecord, spec: JobSpec, left_out: int) -> Attributes:
    about: Attributes = {
        "ostler.job.id": job.id,
        "ostler.job.name": job.name,
        "ostler.job.tier": spec.job_tier,
        "ostler.user": job.user,
        "ostler.state": job.state,
    }
    if job.size:
        about["ostler.job.tasks"] = job.size
    if left_out:
        about["ostler.attempts_left_out"] = left_out
    return about


def _status(state: str, reason: str) -> Status:
    if state == SUCCEEDED:
        return Status(StatusCode.OK)
    # That somebody changed their mind is no error of the job's.
    return Status(StatusCode.UNSET) if state == CANCELLED else Status(StatusCode.ERROR, reason or state)


def _at(seconds: float) -> int:
    return int(seconds * _NANOSECONDS)


class _Trace:
    """One trace, in which spans are made from what has been written down about them."""

    def __init__(self, trace_id: str, resource: Resource) -> None:
        self._id = int(trace_id, 16)
        self._resource = resource

    def span(
        self,
        name: str,
        span_id: str,
        parent: str,
        times: tuple[float, float],
        attributes: Attributes,
        status: Status | None = None,
        events: list[Event] | None = None,
    ) -> ReadableSpan:
        begun, ended = times
        return ReadableSpan(
            name,
            context=self._context(span_id),
            parent=self._context(parent) if parent else None,
            resource=self._resource,
            attributes=attributes,
            events=events or (),
            kind=SpanKind.INTERNAL,
            status=status or Status(StatusCode.UNSET),
            start_time=_at(begun),
            end_time=_at(max(begun, ended)),
            instrumentation_scope=_SCOPE,
        )

    def _context(self, span_id: str) -> SpanContext:
        return SpanContext(self._id, int(span_id, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
