"""The answers that are not a model's: what was wrong and what to do, one sentence each."""

import math

from ostler.gateway.core.effects import Refuse
from ostler.gateway.core.learnt import Learnt

NOWHERE_S = 30.0
"""How long a request waits for a machine on which its model could be at all: one that is being restarted comes back."""


def unknown(request: int, model: str) -> Refuse:
    message = f"There is no model {model!r}; GET /v1/models lists those there are."
    return Refuse(request, "model_not_found", message, 404)


def removed(request: int, model: str) -> Refuse:
    message = f"The model {model!r} was taken out of the configuration; GET /v1/models lists those there are."
    return Refuse(request, "model_not_found", message, 404)


def full(request: int, model: str, waiting: int, retry_after_s: float) -> Refuse:
    wait_s = max(1.0, math.ceil(retry_after_s))
    message = f"{waiting} requests wait for {model!r} already, as many as may; try again in {wait_s:.0f} s."
    return Refuse(request, "queue_full", message, 429, wait_s)


def too_many(request: int, model: str, there: int, retry_after_s: float) -> Refuse:
    wait_s = max(1.0, math.ceil(retry_after_s))
    message = f"{model!r} serves or queues {there} requests, as many as it may have; try again in {wait_s:.0f} s."
    return Refuse(request, "request_limit_reached", message, 429, wait_s)


def log_of(model: str) -> str:
    """Where an operator reads why. Callers never get the log itself: it may hold secrets."""
    return f"`ostler models logs {model}` shows its log"


def load_failed(request: int, model: str, seen: Learnt, now: float) -> Refuse:
    return _failed(request, model, "could not be loaded", seen, now)


def died(request: int, model: str, seen: Learnt, now: float) -> Refuse:
    return _failed(request, model, "ended before it answered", seen, now)


def _failed(request: int, model: str, what: str, seen: Learnt, now: float) -> Refuse:
    said = f"{model!r} {what}: {seen.error}" if seen.error else f"{model!r} {what}"
    wait_s = seen.backoff_until - now
    if wait_s <= 0:
        return Refuse(request, "model_load_failed", f"{said}; {log_of(model)}.", 502)
    said += f"; that was {seen.failures} times in a row, and it is tried again in {math.ceil(wait_s)} s"
    return Refuse(request, "model_load_failed", f"{said}; {log_of(model)}.", 502, wait_s)


def nowhere(request: int, model: str) -> Refuse:
    message = f"No machine that takes work could hold {model!r}; `ostler workers` says what each offers."
    return Refuse(request, "no_machine", message, 503)


def unloaded(request: int, model: str) -> Refuse:
    return Refuse(request, "unloaded", f"{model!r} was unloaded; ask again to have it loaded anew.", 503)


def closing(request: int) -> Refuse:
    return Refuse(request, "shutting_down", "The gateway is shutting down; ask again when it is back.", 503)
