"""The Python client: `ostler.connect()`, `ostler.connect_async()`, `ostler.local()`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ostler.client.asynchronous import AsyncFleet as AsyncFleet
    from ostler.client.asynchronous import AsyncJob as AsyncJob
    from ostler.client.asynchronous import connect_async as connect_async
    from ostler.client.embedded import local as local
    from ostler.client.errors import BadResources as BadResources
    from ostler.client.errors import CannotSend as CannotSend
    from ostler.client.errors import HubFailed as HubFailed
    from ostler.client.errors import HubUnreachable as HubUnreachable
    from ostler.client.errors import JobCancelled as JobCancelled
    from ostler.client.errors import JobFailed as JobFailed
    from ostler.client.errors import JobUnschedulable as JobUnschedulable
    from ostler.client.errors import RemoteError as RemoteError
    from ostler.client.errors import RemoteTraceback as RemoteTraceback
    from ostler.client.errors import WaitTimeout as WaitTimeout
    from ostler.client.errors import WrongPython as WrongPython
    from ostler.client.fleet import Fleet as Fleet
    from ostler.client.fleet import connect as connect
    from ostler.client.http import Hub as Hub
    from ostler.client.job import Job as Job
    from ostler.client.transport import Patience as Patience
    from ostler.domain.errors import BadInput as BadInput
    from ostler.domain.errors import Conflict as Conflict
    from ostler.domain.errors import NotAllowed as NotAllowed
    from ostler.domain.errors import NotAuthenticated as NotAuthenticated
    from ostler.domain.errors import NotFound as NotFound
    from ostler.domain.errors import OstlerError as OstlerError
    from ostler.domain.errors import TooLarge as TooLarge

_HOMES = {
    "ostler.client.asynchronous": ("AsyncFleet", "AsyncJob", "connect_async"),
    "ostler.client.embedded": ("local",),
    "ostler.client.errors": (
        *("BadResources", "CannotSend", "HubFailed", "HubUnreachable", "JobCancelled", "JobFailed"),
        *("JobUnschedulable", "RemoteError", "RemoteTraceback", "WaitTimeout", "WrongPython"),
    ),
    "ostler.client.fleet": ("Fleet", "connect"),
    "ostler.client.http": ("Hub",),
    "ostler.client.job": ("Job",),
    "ostler.client.transport": ("Patience",),
    "ostler.domain.errors": (
        *("BadInput", "Conflict", "NotAllowed", "NotAuthenticated", "NotFound", "OstlerError", "TooLarge"),
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    # Loaded on first use: the commands need the HTTP layer only, not asyncio and cloudpickle.
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_HOME)
