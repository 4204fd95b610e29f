"""What each route takes and answers, where its line in the table of routes does not say it: for the description."""

from typing import Any

from ostler.domain.job import JobSpec
from ostler.hub.api import shapes

_JOB, _WORKER = "/v1/jobs/{id}", "/v1/workers/{id}"
_SWEEP = "/v1/sweeps/{name}"

ANSWERS: dict[tuple[str, str], Any] = {
    ("POST", "/v1/jobs"): (shapes.Submitted, shapes.SubmittedMany),
    ("GET", "/v1/jobs"): shapes.Jobs,
    ("GET", _JOB): shapes.Job,
    ("POST", f"{_JOB}/cancel"): shapes.Job,
    ("POST", f"{_JOB}/requeue"): shapes.Job,
    ("POST", f"{_JOB}/priority"): shapes.Job,
    ("GET", f"{_JOB}/tasks"): shapes.Tasks,
    ("GET", f"{_JOB}/events"): shapes.Events,
    ("POST", f"{_JOB}/results"): shapes.Results,
    ("GET", "/v1/workers"): shapes.Workers,
    ("GET", _WORKER): shapes.Worker,
    ("POST", f"{_WORKER}/drain"): shapes.Worker,
    ("POST", f"{_WORKER}/resume"): shapes.Worker,
    ("GET", "/v1/status"): shapes.Status,
    ("GET", "/v1/health"): shapes.Health,
    ("GET", "/v1/me"): shapes.Me,
    ("GET", "/v1/tokens"): shapes.Tokens,
    ("POST", "/v1/tokens"): shapes.CreatedToken,
    ("DELETE", "/v1/tokens/{id}"): shapes.Token,
    ("GET", "/v1/artifacts"): shapes.Artifacts,
    ("GET", "/v1/artifacts/{id}"): shapes.Artifact,
    ("GET", f"{_JOB}/estimate"): shapes.Estimate,
    ("POST", "/v1/whatif"): shapes.Compared,
    ("GET", "/v1/queue"): shapes.Queue,
    ("GET", "/v1/timeline"): shapes.Timeline,
    ("GET", "/v1/audit"): shapes.Audit,
    ("GET", "/v1/secrets"): shapes.Secrets,
    ("PUT", "/v1/secrets/{name}"): shapes.Secret,
    ("DELETE", "/v1/secrets/{name}"): shapes.NoSecret,
    ("GET", "/v1/sweeps"): shapes.Sweeps,
    ("GET", _SWEEP): shapes.SweepOfRuns,
    ("POST", f"{_SWEEP}/cancel"): shapes.SweepOfRuns,
    ("POST", f"{_SWEEP}/requeue"): shapes.SweepOfRuns,
    ("GET", "/v1/models"): shapes.Models,
}
"""JSON that is answered, by method and path, one of several where it is a tuple; a route may say it itself."""

BODIES: dict[tuple[str, str], Any] = {("POST", "/v1/jobs"): (JobSpec, list[JobSpec])}

HEADERS: dict[tuple[str, str], tuple[str, ...]] = {("POST", "/v1/jobs"): ("Idempotency-Key",)}

MEDIA: dict[tuple[str, str], str] = {
    ("GET", f"{_JOB}/logs"): "text/plain",
    ("GET", f"{_JOB}/result"): "application/octet-stream",
    ("GET", "/v1/events"): "text/event-stream",
    ("GET", "/metrics"): "text/plain",
    ("GET", "/v1/manifest"): "application/toml",
    ("GET", "/v1/model/{sha256}"): "application/octet-stream",
    ("GET", "/v1/snapshots/{sha256}"): "application/octet-stream",
    ("GET", "/v1/checkpoints/{sha256}"): "application/octet-stream",
}
"""Answers that are no JSON."""

QUERY: dict[str, dict[str, Any]] = {
    **{key: {"type": "integer"} for key in ("limit", "offset", "tail", "after", "newest", "older_than_s", "size")},
    "wait": {"type": "number"},
    **{key: {"type": "string", "enum": ["1"]} for key in ("follow", "brief", "plan", "dry_run", "fleet", "ended")},
}
"""Parameters that are more than text."""
