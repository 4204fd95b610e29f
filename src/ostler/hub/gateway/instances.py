"""Model processes as the gateway sees them: each is a job of its own, from its load to the end of its process."""

import asyncio

import msgspec

from ostler.hub.gateway.bridge import Bridge

LOADING, READY, STOPPING, FOUND = "loading", "ready", "stopping", "found"
SHUT, OPEN, CLOSING = "shut", "open", "closing"


class Instance(msgspec.Struct, kw_only=True, eq=False):
    """`load` is the scheduler's token of it; of one that an earlier hub started, a number below zero."""

    job_id: str
    model: str
    load: int
    digest: str
    phase: str = LOADING
    attempt: str = ""
    worker: str = ""
    host: str = ""
    port: int = 0
    busy: int = 0
    """Requests that were granted and are served there."""
    gate: str = SHUT
    stands_in: int = 0
    """The request that stands, before the scheduler, for all who go through the open gate."""
    passing: int = 0
    """All that the relay has there, as it said last."""
    served: int = 0
    error: str = ""
    began: float = 0.0
    ready: float = 0.0
    last_use: float = 0.0
    priced: bool = False
    """The ledger knows a price for its room."""
    bridge: Bridge | None = None
    timer: asyncio.TimerHandle | None = None
    """When its load has taken too long."""
    idle_timer: asyncio.TimerHandle | None = None

    @property
    def in_flight(self) -> int:
        return max(self.busy, self.passing)


class Instances:
    def __init__(self) -> None:
        self.by_job: dict[str, Instance] = {}
        self.current: dict[str, Instance] = {}
        """By model: the newest, unless it is on its way out."""

    def add(self, instance: Instance) -> None:
        self.by_job[instance.job_id] = instance
        self.current[instance.model] = instance

    def drop(self, instance: Instance) -> None:
        self.by_job.pop(instance.job_id, None)
        if self.current.get(instance.model) is instance:
            del self.current[instance.model]

    def of(self, model: str) -> list[Instance]:
        """All processes of a model: beside the current one there may be those that still end."""
        return [one for one in self.by_job.values() if one.model == model]
