"""What the rest of the gateway sees of either scheduler."""

from typing import Protocol

from ostler.gateway.core.effects import Effect
from ostler.gateway.core.events import Event
from ostler.gateway.core.eviction import Capacity
from ostler.gateway.core.explain import Place
from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.learnt import LoadTimes
from ostler.gateway.core.models import Config
from ostler.gateway.core.serial import Serial
from ostler.gateway.core.state import State


class Scheduler(Protocol):
    state: State

    def step(self, event: Event, now: float) -> list[Effect]: ...

    def due(self) -> float | None:
        """The next moment at which `TimePassed` changes something."""
        ...

    def why(self, request_id: int, now: float) -> str: ...

    def places(self, now: float) -> list[Place]: ...

    def price(self, load: int, now: float) -> float | None:
        """What a job that wants the room of this process should pay for it, in seconds; None: it is not to be had."""
        ...

    def load_times(self) -> dict[str, LoadTimes]:
        """Of all models that were loaded, for whoever comes after this gateway: `LoadTimesKnown`."""
        ...


SCHEDULERS = ("serial", "fifo")


def make(name: str, config: Config, capacity: Capacity, *, has_gates: bool = False) -> Scheduler:
    """By its name in the configuration. `serial` needs to be asked for every request: it has no gates."""
    return Serial(config, capacity) if name == "serial" else Fifo(config, capacity, has_gates=has_gates)
