"""The trace of a job, in the words of W3C's Trace Context. Nobody hands ids around: they follow from the job's and the
attempt's own, so that the hub's span of an attempt and what runs in it meet without a message."""

import re
from hashlib import sha256
from typing import NamedTuple

TRACEPARENT = "TRACEPARENT"
TRACESTATE = "TRACESTATE"
"""Variables of a spec's environment: what the submitter was doing."""
_SHAPE = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class Context(NamedTuple):
    trace: str
    """32 hexadecimal digits."""
    span: str
    """16 of them; empty: the trace begins here."""
    sampled: bool = True


def read_traceparent(text: str) -> Context | None:
    """The submitter's span, or None where this names none."""
    found = _SHAPE.fullmatch(text.strip().lower())
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not trace.strip("0") or not span.strip("0"):
        return None
    return Context(trace, span, bool(int(flags, 16) & 1))


def context_of(job_id: str, traceparent: str) -> Context:
    """In which a job's span stands: its submitter's, else a trace of its own."""
    return read_traceparent(traceparent) or Context(sha256(job_id.encode()).hexdigest()[:32], "")


def span_of(name: str) -> str:
    return sha256(name.encode()).hexdigest()[-16:]


def continued(traceparent: str, attempt: str) -> str:
    """What a task finds as its parent: the span of its attempt, in its submitter's trace; else what was given."""
    context = read_traceparent(traceparent)
    return traceparent if context is None else f"00-{context.trace}-{span_of(attempt)}-{context.sampled:02x}"
