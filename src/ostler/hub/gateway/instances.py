"""Model processes as the gateway sees them: each is a job of its own, from its load to the end of its process."""

import asyncio

import msgspec

from ostler.domain import states
from ostler.gateway.control import STRAIGHT, Used, Way
from ostler.gateway.core.state import HERE

LOADING, READY, STOPPING, FOUND = "loading", "ready", "stopping", "found"
SHUT, OPEN, CLOSING = "shut", "open", "closing"
_FOREMOST = (READY, LOADING, FOUND, STOPPING)


class Instance(msgspec.Struct, kw_only=True, eq=False):
    """`load` is the scheduler's token of it; of one that an earlier hub started, a number below zero."""

    job_id: str
    model: str
    load: int
    digest: str
    load_timeout_s: float
    phase: str = LOADING
    attempt: str = ""
    worker: str = ""
    home: str = HERE
    """How its worker is, as the scheduler was told."""
    has_failed: bool = False
    """A request had no answer. Cleared when its worker is back."""
    host: str = ""
    port: int = 0
    way: Way = STRAIGHT
    gate: str = SHUT
    """Whether the relay may use it without asking, as the scheduler decided."""
    watched: bool = False
    """The relay reports the end of its last request at once."""
    busy: int = 0
    """Requests that were granted and are served there."""
    passing: int = 0
    """All that the relay has there, as it said last."""
    came: int = 0
    """All that ever came there, as it said last; and how many were granted since."""
    granted: int = 0
    served: int = 0
    unloaded: bool = False
    """It is stopped because somebody said so."""
    has_ended: bool = False
    """So the ledger says; its room may be held for longer."""
    ended_as: str = ""
    """The last state of its job."""
    outcome: str = ""
    """Of its attempt."""
    error: str = ""
    began: float = 0.0
    started: float | None = None
    """When its process was seen to run."""
    ready: float = 0.0
    last_use: float = 0.0
    priced: bool = False
    """The ledger knows a price for its room."""
    timer: asyncio.TimerHandle | None = None
    """When its load has taken too long."""
    idle_timer: asyncio.TimerHandle | None = None
    is_gone: asyncio.Event | None = None
    """Somebody waits for its end."""

    @property
    def is_lost(self) -> bool:
        """Whether it ended because its worker left or was lost. A worker that fails to start a process hands it back,
        too: of one that was never ready, the model may be to blame."""
        if self.outcome == "returned":
            return self.ended_as == states.CANCELLED or bool(self.ready)
        return self.outcome in ("lost", "lapsed")

    @property
    def in_flight(self) -> int:
        return max(self.busy, self.passing)

    @property
    def through_gate(self) -> int:
        return max(0, self.passing - self.busy)

    def was_used(self, message: Used) -> int:
        """How many came without being asked for since the last such word."""
        came = message.in_flight + message.served
        arrived = max(0, came - self.came - self.granted)
        self.came, self.granted, self.passing = came, 0, message.in_flight
        return arrived

    def forget_relay(self) -> None:
        """The next one counts anew, and has nobody there."""
        self.passing = self.came = self.granted = 0


class Instances:
    def __init__(self) -> None:
        self.by_job: dict[str, Instance] = {}
        self.by_load: dict[int, Instance] = {}

    def add(self, instance: Instance) -> None:
        self.by_job[instance.job_id] = self.by_load[instance.load] = instance

    def drop(self, instance: Instance) -> None:
        self.by_job.pop(instance.job_id, None)
        self.by_load.pop(instance.load, None)

    def rename(self) -> None:
        """Tokens that no scheduler makes: another one takes over, and counts anew."""
        found = self.all()
        lowest = min([0, *self.by_load])
        self.by_load = {}
        for number, instance in enumerate(found, 1):
            instance.load = lowest - number
            self.by_load[instance.load] = instance

    def of(self, model: str) -> list[Instance]:
        """All processes of a model, those that serve first, then those that will, then those on their way out. One
        whose worker takes no work comes after the others."""
        found = [one for one in self.by_job.values() if one.model == model]
        return sorted(found, key=lambda one: (one.home != HERE, _FOREMOST.index(one.phase)))

    def foremost(self, model: str) -> Instance | None:
        return next(iter(self.of(model)), None)

    def all(self) -> list[Instance]:
        return list(self.by_job.values())
