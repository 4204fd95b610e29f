"""A gateway to try things on: the real schedulers with a clock, a few sizes for a ledger, and few words to say what
happens. Every invariant is checked after every event."""

from collections.abc import Callable, Collection, Iterable
from itertools import count
from typing import Any, TypeVar

from ostler.gateway.core.check import check
from ostler.gateway.core.effects import Effect, Grant, Refuse, StartLoad, StopModels, Tell, Unloaded
from ostler.gateway.core.events import (
    CallerGone,
    ConfigChanged,
    Event,
    LoadDone,
    RequestArrived,
    RequestCancelled,
    RequestFailed,
    RoomChanged,
    ServeDone,
    ShutdownAsked,
    Stopped,
    TimePassed,
    UnloadAsked,
    YieldAsked,
)
from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.machine import Machine
from ostler.gateway.core.models import Config, Group, Recipe, Sets
from ostler.gateway.core.serial import Serial
from ostler.gateway.core.state import LOADING, STOPPING

E = TypeVar("E")


class Sizes:
    """Room for so much; each model takes 1 where nothing else is said, and jobs take what they take."""

    def __init__(self, room: float, sizes: dict[str, float] | None = None) -> None:
        self.room = room
        self.sizes = sizes or {}
        self.jobs = 0.0
        self.holding: Callable[[], Iterable[str]] = list
        self.asked = 0

    def fits(self, target: str, gone: Collection[str], coming: Collection[str]) -> bool:
        self.asked += 1
        staying = ({*self.holding(), *coming} - {*gone}) | {target}
        return self.jobs + sum(self.sizes.get(model, 1.0) for model in staying) <= self.room


def recipes(names: Iterable[str], **each: dict[str, Any]) -> tuple[Recipe, ...]:
    """Of these names; `each` says more about single ones."""
    return tuple(Recipe(name=name, **each.get(name, {})) for name in names)


class Stand:
    def __init__(
        self,
        kind: type[Serial] | type[Fifo],
        names: str | Iterable[str] = "abcde",
        *,
        room: float = 100.0,
        sizes: dict[str, float] | None = None,
        groups: Iterable[Group] = (),
        sets: Sets | None = None,
        quantum: float = 8.0,
        **each: dict[str, Any],
    ) -> None:
        self.capacity = Sizes(room, sizes)
        self.config = Config(models=recipes(names, **each), groups=tuple(groups), sets=sets or Sets(), quantum=quantum)
        self.machine: Machine = kind(self.config, self.capacity)
        self.capacity.holding = lambda: self.machine.state.present
        self.now = 0.0
        self.heard: list[Effect] = []
        """The effects of the last event."""
        self.loads: list[tuple[str, list[str]]] = []
        """Every load that was started, with what it evicted."""
        self.granted: list[int] = []
        self.refused: dict[int, Refuse] = {}
        self._ids = count(1)

    def turn(self, event: Event) -> list[Effect]:
        self.heard = self.machine.step(event, self.now)
        for effect in self.heard:
            match effect:
                case StartLoad():
                    self.loads.append((effect.model, effect.evict))
                case Grant():
                    self.granted.append(effect.request)
                case Refuse():
                    assert effect.request not in self.refused
                    self.refused[effect.request] = effect
        check(self.machine, self.now, self.heard)
        return self.heard

    def wait(self, seconds: float) -> list[Effect]:
        """Time passes, deadline by deadline."""
        until, said = self.now + seconds, []
        while (due := self.machine.due()) is not None and due <= until:
            self.now = max(self.now, due)
            said += self.turn(TimePassed())
        self.now, self.heard = until, said
        return said

    # Callers

    def ask(self, *models: str) -> int:
        """One request for each, in this order; the id of the last."""
        for model in models:
            request = next(self._ids)
            self.turn(RequestArrived(request, model))
        return request

    def cancel(self, request: int) -> list[Effect]:
        return self.turn(RequestCancelled(request))

    def gone(self, request: int) -> list[Effect]:
        return self.turn(CallerGone(request))

    # Processes

    def loaded(self, model: str, error: str = "", **more: Any) -> list[Effect]:
        """The load of this model under way ends, those it evicts first."""
        instance = self.machine.state.present[model]
        assert instance.phase == LOADING, f"{model} is {instance.phase}"
        said = [effect for name in self.evicted_for(model) for effect in self.stopped(name)]
        said += self.turn(LoadDone(instance.load, error, **more))
        self.heard = said
        return said

    def evicted_for(self, model: str) -> list[str]:
        evict = next(evict for name, evict in reversed(self.loads) if name == model)
        return [name for name in evict if self.state(name) == STOPPING]

    def stopped(self, model: str, error: str = "", load: int = 0) -> list[Effect]:
        return self.turn(Stopped(model, error, load))

    def done(self, *requests: int) -> list[Effect]:
        said = [effect for request in requests for effect in self.turn(ServeDone(request))]
        self.heard = said
        return said

    def failed(self, request: int) -> list[Effect]:
        return self.turn(RequestFailed(request))

    def make_ready(self, *models: str) -> None:
        """Each loaded in 10 s, used once and idle."""
        for model in models:
            request = self.ask(model)
            self.wait(10.0)
            self.loaded(model)
            self.done(request)

    # People and the hub

    def unload(self, *models: str) -> list[Effect]:
        return self.turn(UnloadAsked(list(models), ref=7))

    def yield_room(self, model: str) -> list[Effect]:
        return self.turn(YieldAsked(model))

    def jobs_take(self, size: float) -> list[Effect]:
        self.capacity.jobs = size
        return self.turn(RoomChanged())

    def reconfigure(self, names: str | Iterable[str], **each: dict[str, Any]) -> list[Effect]:
        self.config = Config(
            models=recipes(names, **each),
            groups=tuple(
                group for group in self.config.groups if all(member in list(names) for member in group.members)
            ),
            quantum=self.config.quantum,
        )
        return self.turn(ConfigChanged(self.config))

    def shut_down(self) -> list[Effect]:
        return self.turn(ShutdownAsked())

    # What is seen

    def state(self, model: str) -> str:
        instance = self.machine.state.present.get(model)
        return instance.phase if instance is not None else ""

    def states(self, models: str) -> list[str]:
        return [self.state(model) for model in models]

    def why(self, request: int) -> str:
        return self.machine.why(request, self.now)

    def of(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.heard if isinstance(effect, kind)]

    def grants(self) -> list[int]:
        """Given in the last event."""
        return [grant.request for grant in self.of(Grant)]

    def code(self, request: int) -> str:
        return self.refused[request].code if request in self.refused else ""

    def stops(self) -> list[tuple[list[str], str]]:
        return [(stop.models, stop.reason) for stop in self.of(StopModels)]

    def told(self) -> list[tuple[int, int]]:
        return [(tell.request, tell.position) for tell in self.of(Tell)]

    def answered(self) -> list[int]:
        return [unloaded.ref for unloaded in self.of(Unloaded)]
