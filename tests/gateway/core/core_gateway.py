"""The real schedulers of the gateway with a clock, a table of sizes as their ledger, and short methods for each event.
Every invariant is checked after every event."""

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import count
from typing import Any, TypeVar

from ostler.gateway.core.check import check
from ostler.gateway.core.effects import Effect, Grant, Refuse, StartLoad, StopProcesses, Tell, Unloaded
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
from ostler.gateway.core.state import LOADING, STOPPING, Instance

E = TypeVar("E")


class Sizes:
    """Room for so much; each model takes 1 where nothing else is said, and jobs take what they take."""

    def __init__(self, room: float, sizes: dict[str, float] | None = None) -> None:
        self.room = room
        self.sizes = sizes or {}
        self.jobs = 0.0
        self.holding: Callable[[], Mapping[int, str]] = dict
        self.asked = 0
        self.is_known: Callable[[str], bool] = lambda model: True

    def fits(self, target: str, gone: Collection[int], coming: Mapping[int, str], beside: Collection[str] = ()) -> bool:
        self.asked += 1
        assert all(map(self.is_known, (target, *coming.values(), *beside))), (
            "nobody knows the size of what is not there"
        )
        held = {**self.holding(), **coming}
        staying = [model for load, model in held.items() if load not in gone]
        return self.jobs + sum(self.sizes.get(model, 1.0) for model in (*staying, *beside, target)) <= self.room

    def could_hold(self, target: str) -> bool:
        return self.sizes.get(target, 1.0) <= self.room


def recipes(names: Iterable[str], **each: dict[str, Any]) -> tuple[Recipe, ...]:
    """Of these names; `each` says more about single ones."""
    return tuple(Recipe(name=name, **each.get(name, {})) for name in names)


class CoreGateway:
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
        self.capacity.holding = lambda: {load: each.model for load, each in self.machine.state.present.items()}
        self.capacity.is_known = lambda model: model in self.machine.state.catalogue.recipes
        self.now = 0.0
        self.heard: list[Effect] = []
        """The effects of the last event."""
        self.loads: list[tuple[str, list[str]]] = []
        """Every load that was started, with the models it evicted."""
        self.granted: list[int] = []
        self.refused: dict[int, Refuse] = {}
        self._ids = count(1)
        self._models: dict[int, str] = {}
        self._evicted: dict[int, list[int]] = {}

    def turn(self, event: Event) -> list[Effect]:
        self.heard = self.machine.step(event, self.now)
        for effect in self.heard:
            match effect:
                case StartLoad():
                    self._models[effect.load] = effect.model
                    self._evicted[effect.load] = effect.evict
                    self.loads.append((effect.model, sorted(self._models[load] for load in effect.evict)))
                case Grant():
                    self.granted.append(effect.request)
                case Refuse():
                    assert effect.request not in self.refused
                    self.refused[effect.request] = effect
        self._models.update((load, each.model) for load, each in self.machine.state.present.items())
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

    def ask_for(self, user: str, model: str) -> int:
        request = next(self._ids)
        self.turn(RequestArrived(request, model, user=user))
        return request

    def cancel(self, request: int) -> list[Effect]:
        return self.turn(RequestCancelled(request))

    def gone(self, request: int) -> list[Effect]:
        return self.turn(CallerGone(request))

    # Processes

    def loaded(self, model: str, error: str = "", **more: Any) -> list[Effect]:
        """The oldest load of this model under way ends, those it evicts first."""
        load = self.load(model, LOADING)
        going = [old for old in self._evicted[load] if old in self.machine.state.present]
        said = [effect for old in going for effect in self.turn(Stopped(old))]
        said += self.turn(LoadDone(load, error, **more))
        self.heard = said
        return said

    def stopped(self, model: str, error: str = "", load: int = 0) -> list[Effect]:
        """The process of this model that was to stop; else the one it has."""
        there = {each.phase for each in self.machine.state.of(model)}
        return self.turn(Stopped(load or self.load(model, STOPPING if STOPPING in there else ""), error))

    def load(self, model: str, phase: str = "") -> int:
        """The token of its first process, or its first in this phase."""
        return self.all_loads(model, phase)[0]

    def all_loads(self, model: str, phase: str = "") -> list[int]:
        return [each.load for each in self.machine.state.of(model) if phase in ("", each.phase)]

    def instance(self, model: str) -> Instance:
        return self.machine.state.present[self.load(model)]

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
        return self.turn(YieldAsked(self.load(model)))

    def price(self, model: str) -> float | None:
        return self.machine.price(self.load(model), self.now)

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
        """Of each of its processes."""
        return ", ".join(each.phase for each in self.machine.state.of(model))

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
        return [([self._models[load] for load in stop.loads], stop.reason) for stop in self.of(StopProcesses)]

    def told(self) -> list[tuple[int, int]]:
        return [(tell.request, tell.position) for tell in self.of(Tell)]

    def answered(self) -> list[int]:
        return [unloaded.ref for unloaded in self.of(Unloaded)]
