"""One job: waiting for its end, and what that end means to whoever asked for it."""

import codecs
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from ostler.client import notebook
from ostler.client.errors import (
    HubUnreachable,
    JobCancelled,
    JobFailed,
    JobUnschedulable,
    NotFound,
    OstlerError,
    WaitTimeout,
)
from ostler.client.functions import Outcome, is_function, open_result
from ostler.client.http import LONGEST_WAIT_S, Document, Hub
from ostler.client.streams import Outage
from ostler.domain.states import CANCELLED, FAILED, SUCCEEDED, TERMINAL, UNSCHEDULABLE

T = TypeVar("T")


class Job:
    """A job that was submitted. It does not need this object: the id is all there is to it."""

    def __init__(self, hub: Hub, job_id: str, name: str = "", notes: list[str] | None = None) -> None:
        self._hub = hub
        self.id = job_id
        self.name = name
        self.notes = notes or []
        """What the hub changed in the spec, one sentence each."""

    def __repr__(self) -> str:
        return f"<Job {self.id}{' ' + self.name if self.name else ''}>"

    def _repr_html_(self) -> str:
        return notebook.shown(lambda: notebook.job_html(self.status()), repr(self))

    def status(self) -> Document:
        """The job as the hub tells it now."""
        return self._hub.job(self.id)

    def done(self) -> bool:
        return self.status()["state"] in TERMINAL

    def wait(self, timeout: float | None = None) -> Document:
        """The job's document when it has ended, however it ended; WaitTimeout if that takes longer."""
        return wait_for_end(self._hub, self.id, timeout)

    def result(self, timeout: float | None = None) -> Any:
        """What the function returned; a list of that for a map's job; 0 for a command that succeeded.

        What the function raised is raised here, with the worker's traceback as its cause. JobFailed where a process
        ended without success, JobCancelled and JobUnschedulable where it never came that far, WaitTimeout where it
        has not ended in time.
        """
        return self._outcome(timeout).get()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What `result` would raise, or None."""
        return self._outcome(timeout).error

    def _outcome(self, timeout: float | None) -> Outcome:
        deadline = deadline_of(timeout)
        return outcome_of(self._hub, self.wait(timeout), deadline, timeout or 0.0)

    def cancel(self) -> Document:
        return self._hub.cancel(self.id)

    def requeue(self) -> Document:
        return self._hub.requeue(self.id)

    def why(self) -> Document:
        """Why it is where it is: what blocks it, why it runs there, or what ended it."""
        return self._hub.why(self.id)

    def logs(self) -> str:
        """Its output so far."""
        return "".join(as_text(self._hub.logs(self.id)))

    def follow_logs(self) -> Iterator[str]:
        """Pieces of its output as they come, until it has ended."""
        return as_text(self._hub.logs(self.id, follow=True))


def as_text(chunks: Iterator[bytes]) -> Iterator[str]:
    return codecs.iterdecode(chunks, "utf-8", errors="replace")


def wait_for_end(hub: Hub, job_id: str, timeout: float | None) -> Document:
    """The document of a job that has ended. A hub that restarts meanwhile is waited for."""
    deadline = deadline_of(timeout)
    hub = hub.until(deadline)
    outage = Outage(hub.patience)
    watching = notebook.Watching() if notebook.is_here() else None
    most_s = LONGEST_WAIT_S if watching is None else notebook.Watching.AFTER_S
    while True:
        left_s = most_s if deadline is None else max(0.0, min(most_s, deadline - time.monotonic()))
        try:
            document = hub.job(job_id, wait=left_s)
        except HubUnreachable as error:
            endure(outage, error, job_id, deadline, timeout or 0.0)
            continue
        outage.over()
        if watching is not None:
            watching.tell(document, over=document["state"] in TERMINAL)
        if document["state"] in TERMINAL:
            return document
        if deadline is not None and time.monotonic() >= deadline:
            raise still_running(document, timeout or 0.0)


def deadline_of(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def asked(hub: Hub, ask: Callable[[Hub], T], job_id: str, deadline: float | None, timeout: float) -> T:
    """The answer of a hub that may restart meanwhile."""
    outage = Outage(hub.patience)
    while True:
        try:
            return ask(hub.until(deadline))
        except HubUnreachable as error:
            if hub.is_closed:
                raise
            endure(outage, error, job_id, deadline, timeout)


def endure(outage: Outage, error: HubUnreachable, job_id: str, deadline: float | None, timeout: float) -> None:
    """Wait a moment for a hub that is away; WaitTimeout where there is no time left for that."""
    if deadline is not None and time.monotonic() >= deadline:
        raise WaitTimeout(f"job {job_id} was waited for {timeout:g} s; {error}") from error
    outage.endure(error, deadline)


def is_away(error: BaseException) -> bool:
    """Whether there is no hub that could be told to cancel what nobody waits for any more."""
    return isinstance(error, HubUnreachable) or isinstance(error.__cause__, HubUnreachable)


def still_running(document: Document, timeout: float) -> WaitTimeout:
    return WaitTimeout(f"job {document['id']} is still {document['state']} after {timeout:g} s", document)


def outcome_of(hub: Hub, document: Document, deadline: float | None = None, timeout: float = 0.0) -> Outcome:
    """What the end of a job means. Its value is waited for as its end is: WaitTimeout, or HubUnreachable where the hub
    does not come back."""
    soon = hub.until(deadline)
    try:
        if (document.get("spec") or {}).get("array") and "index" not in document:
            return _array_outcome(hub, document, deadline, timeout)
        if not is_function(document.get("spec") or {}):
            return Outcome(value=0) if document["state"] == SUCCEEDED else Outcome(error=failure(soon, document))
        data = asked(hub, lambda hub: _result_of(hub, document), document["id"], deadline, timeout)
        return call_outcome(soon, document, data)
    except (HubUnreachable, WaitTimeout):
        raise
    except OstlerError as error:
        return Outcome(error=error)


def call_outcome(hub: Hub, document: Document, data: bytes | None) -> Outcome:
    """What the end of a function's task means; `data` is what its process wrote, where it wrote something."""
    if document["state"] in (CANCELLED, UNSCHEDULABLE):
        return Outcome(error=failure(hub, document))
    if data is None:
        what = "has left no value" if document["state"] == SUCCEEDED else None
        return Outcome(error=failure(hub, document, what))
    try:
        outcome = open_result(data, document)
    except OstlerError as error:
        return Outcome(error=error)
    if outcome.error is None and document["state"] != SUCCEEDED:
        return Outcome(error=failure(hub, document))  # it returned, and its process ended badly afterwards
    return outcome


def failure(hub: Hub, document: Mapping[str, Any], what: str | None = None) -> JobFailed:
    """The exception for a job that has not succeeded."""
    state, reason = document["state"], document.get("reason") or ""
    name = f" ({document['name']})" if document.get("name") else ""
    because = f": {reason}" if reason else ""
    if state == CANCELLED:
        return JobCancelled(f"job {document['id']}{name} was cancelled{because}", dict(document))
    if state == UNSCHEDULABLE:
        return JobUnschedulable(f"job {document['id']}{name} could not be placed{because}", dict(document))
    code = document.get("exit_code")
    shown = f" with exit code {code}" if state == FAILED and code is not None and str(code) not in reason else ""
    log = ""
    with contextlib.suppress(OstlerError):
        log = hub.log_tail(str(document["id"]))
    return JobFailed(f"job {document['id']}{name} {what or 'failed' + shown}{because}", dict(document), log)


def _result_of(hub: Hub, document: Document) -> bytes | None:
    if document["state"] not in (SUCCEEDED, FAILED):
        return None
    try:
        return hub.result(document["id"])
    except NotFound:
        return None


def _array_outcome(hub: Hub, document: Document, deadline: float | None, timeout: float) -> Outcome:
    if is_function(document["spec"]):
        return _map_outcome(hub, document, deadline, timeout)
    if document["state"] == SUCCEEDED:
        return Outcome(value=0)
    counts = document.get("counts") or {}
    failed = sum(count for state, count in counts.items() if state in TERMINAL and state != SUCCEEDED)
    of_all = f"{failed} of {sum(counts.values())} tasks did not succeed"
    first = asked(hub, lambda hub: _first_failed(hub, document["id"]), document["id"], deadline, timeout)
    hub = hub.until(deadline)
    if first is None:
        return Outcome(error=failure(hub, {**document, "reason": document.get("reason") or of_all}))
    error = failure(hub, {**first, "name": document.get("name")})
    return Outcome(error=JobFailed(f"{of_all}; the first one: {error}", document, ""))


def _first_failed(hub: Hub, job_id: str) -> Document | None:
    return next((task for task in hub.all_tasks(job_id) if task["state"] == FAILED), None)


def _map_outcome(hub: Hub, document: Document, deadline: float | None, timeout: float) -> Outcome:
    from ostler.client.mapping import Calls

    values: list[Any] = []
    for outcome in Calls(hub, document["id"], document["spec"]).outcomes(deadline, timeout):
        if outcome.error is not None:
            return outcome
        values.append(outcome.get())
    return Outcome(value=values)
