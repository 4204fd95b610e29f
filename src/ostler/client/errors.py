"""The errors that a client can meet beside those of the domain, which the hub's answers become."""

from typing import Any

import msgspec

from ostler.domain import errors as domain
from ostler.domain.errors import BadInput, NotFound, OstlerError


class HubUnreachable(OstlerError):
    """No answer from the hub: start it, or correct the address."""

    status = 503
    title = "hub unreachable"
    leader: str | None = None
    """Of a hub that stands by, and has done nothing but say so: where the one that leads is, where there is one."""


class HubFailed(OstlerError):
    """The hub answered with something that no request can cause: its operator looks at the hub's own log."""

    title = "hub failed"


class JobFailed(OstlerError):
    """The job ended without success. `document` is the job as the hub last told it, `log` the end of its output."""

    title = "job failed"

    def __init__(self, detail: str, document: dict[str, Any] | None = None, log: str = "") -> None:
        super().__init__(f"{detail}\nthe end of its log:\n{log}" if log else detail)
        self.document = document or {}
        self.log = log

    @property
    def job_id(self) -> str:
        return str(self.document.get("id", ""))

    @property
    def exit_code(self) -> int | None:
        code = self.document.get("exit_code")
        return code if isinstance(code, int) else None


class JobCancelled(JobFailed):
    """Somebody cancelled the job."""

    title = "job cancelled"


class JobUnschedulable(JobFailed):
    """No worker had room for the job before its scheduling timeout ran out."""

    title = "job unschedulable"


class RemoteError(JobFailed):
    """The function raised something that cannot be brought here as an object: its type and traceback, as text."""

    title = "remote error"

    def __init__(
        self, detail: str, document: dict[str, Any] | None = None, *, type_name: str = "", traceback: str = ""
    ) -> None:
        super().__init__(detail, document)
        self.type_name = type_name
        self.traceback = traceback


class RemoteTraceback(Exception):
    """Where a function failed on its worker, as text; the cause of the exception that is raised here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text.rstrip()}\n"""'


class WaitTimeout(OstlerError, TimeoutError):
    """The time given for waiting is over; the job goes on. `document` is the job as the hub last told it."""

    status = 504
    title = "timed out"

    def __init__(self, detail: str, document: dict[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.document = document or {}


class BadResources(BadInput, ValueError):
    """`resources` or an option beside it holds a wrong key or a wrong value: the caller corrects it."""


class CannotSend(BadInput, TypeError):
    """A function, or what it refers to, cannot travel to a worker: make it inside the function, or pass it along."""


class WrongPython(OstlerError):
    """The value was made by another Python than this one: open it with that one."""

    title = "wrong Python"


_BY_STATUS: dict[int, type[OstlerError]] = {
    kind.status: kind
    for kind in (
        domain.Unreadable,
        domain.NotAuthenticated,
        domain.NotAllowed,
        domain.NotFound,
        domain.Conflict,
        domain.TooLarge,
        domain.BadInput,
        domain.QuotaExceeded,
        domain.NoSpace,
    )
}


def from_problem(status: int, body: bytes, where: str) -> OstlerError:
    """The error that a hub's answer stands for; `where` is the request, for answers that say nothing themselves."""
    problem = _problem(body)
    detail = str(problem.get("detail") or problem.get("title") or "")
    kind = _BY_STATUS.get(status)
    if kind is None:
        return HubFailed(f"{where} answered {status}: {detail or 'no reason given'}")
    if not detail:
        # Every answer of a hub has a detail: without one this is something else that listens there.
        detail = f"{where} answered {status} ({kind.title})"
    if issubclass(kind, BadInput):
        return kind(detail, _named_errors(problem))
    return kind(detail)


def _problem(body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _named_errors(problem: dict[str, Any]) -> list[tuple[str, str]]:
    listed = problem.get("errors")
    if not isinstance(listed, list):
        return []
    return [(str(one.get("where", "")), str(one.get("what", ""))) for one in listed if isinstance(one, dict)]


__all__ = [
    "BadInput",
    "BadResources",
    "CannotSend",
    "HubFailed",
    "HubUnreachable",
    "JobCancelled",
    "JobFailed",
    "JobUnschedulable",
    "NotFound",
    "OstlerError",
    "RemoteError",
    "RemoteTraceback",
    "WaitTimeout",
    "WrongPython",
    "from_problem",
]
