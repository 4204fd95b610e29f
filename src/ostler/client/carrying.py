"""What of the submitter's own environment travels with every job: where experiments are tracked, and what is traced.

Never what is secret: an API key is set once by `ostler secret set` and asked for by the job.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

from ostler.domain.tracing import TRACEPARENT, TRACESTATE

TRACKERS = (
    "MLFLOW_TRACKING_URI",
    "MLFLOW_REGISTRY_URI",
    "MLFLOW_EXPERIMENT_NAME",
    "MLFLOW_EXPERIMENT_ID",
    "WANDB_BASE_URL",
    "WANDB_ENTITY",
    "WANDB_PROJECT",
    "WANDB_RUN_GROUP",
    "WANDB_JOB_TYPE",
    "WANDB_TAGS",
    "WANDB_NOTES",
    "WANDB_MODE",
    "WANDB_RESUME",
)
"""Ids of runs are not here: jobs that share one would write over each other. WANDB_RUN_ID is made on the worker."""
OFF = "OSTLER_CARRY"


def carried(spec: Mapping[str, Any], own: Mapping[str, str] | None = None, *, traced: bool = True) -> dict[str, Any]:
    """The spec with these variables in its environment, where it does not set them itself. OSTLER_CARRY=0: as it is.

    Not `traced`: one whose id somebody chose, so that it may be sent again with the same spec and is one job.
    """
    own = os.environ if own is None else own
    if own.get(OFF, "1").lower() in ("0", "no", "false", "off"):
        return dict(spec)
    found = {name: own[name] for name in TRACKERS if own.get(name) and not _has_password(name, own[name])}
    found |= _span(own) if traced else {}
    found = {name: value for name, value in found.items() if _is_text(value)}
    given = spec.get("env") or {}
    return {**spec, "env": {**found, **given}} if found else dict(spec)


def _has_password(name: str, value: str) -> bool:
    """http://user:password@host, with anything in the password; of an address also whatever is asked after a '?'."""
    if name.endswith(("_URI", "_URL")):
        return "@" in value or "?" in value
    return "@" in value.partition("://")[2]


def _is_text(value: str) -> bool:
    """Bytes that are no text cannot be written into a spec."""
    return value.encode(errors="replace").decode() == value


def _span(own: Mapping[str, str]) -> dict[str, str]:
    """The span that is current here; else that of whoever started this process."""
    if "opentelemetry" in sys.modules:
        from opentelemetry.propagate import inject

        headers: dict[str, str] = {}
        inject(headers)
        found = {name: headers[name.lower()] for name in (TRACEPARENT, TRACESTATE) if headers.get(name.lower())}
        if found:
            return found
    return {name: own[name] for name in (TRACEPARENT, TRACESTATE) if own.get(name)}
