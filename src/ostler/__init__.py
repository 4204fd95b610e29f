"""Ostler: one control plane for a mixed fleet of machines that do machine learning."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from ostler.client import AsyncFleet as AsyncFleet
    from ostler.client import Fleet as Fleet
    from ostler.client import connect as connect
    from ostler.client import connect_async as connect_async
    from ostler.client import local as local

_CLIENT_NAMES = ("AsyncFleet", "Fleet", "connect", "connect_async", "local")


def __getattr__(name: str) -> Any:
    # Loaded on first use: a task's own process and the supervisor import the package, not the client.
    if name in _CLIENT_NAMES:
        import ostler.client

        return getattr(ostler.client, name)
    raise AttributeError(f"module 'ostler' has no attribute {name!r}")
