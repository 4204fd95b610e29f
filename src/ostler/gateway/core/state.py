"""What the gateway knows: who waits where, what is loaded, what is under way. One process of a model at most."""

import heapq
import math
import sys
from collections.abc import Collection
from itertools import count

import msgspec

from ostler.gateway.core.learnt import FIRST_LOAD_S, Learnt
from ostler.gateway.core.line import Line, Overtakings
from ostler.gateway.core.models import Catalogue, Config, Recipe

LOADING, READY, STOPPING, GONE = "loading", "ready", "stopping", "gone"
ARRIVING, QUEUED, WAITING_FOR_LOAD, IN_FLIGHT = "arriving", "queued", "waiting for a load", "in flight"
SHUT, OPEN, CLOSING = "shut", "open", "closing"
"""A gate: requests are asked for one by one; go by without asking; are asked for, and some that went by are still
there."""


class Request(msgspec.Struct, eq=False):
    id: int
    model: str
    seq: int
    since: float
    place: str = ARRIVING
    failed_before: bool = False
    granted_at: float = 0.0
    on: "Instance | None" = None
    """The process that it waits for or is served by."""


class Instance(msgspec.Struct, eq=False):
    """One process of a model, from the decision to load it until it is gone."""

    model: str
    load: int
    digest: str
    began: float
    limit: int = sys.maxsize
    phase: str = LOADING
    waiters: dict[int, Request] = {}
    """Those who are served when the load is done."""
    preload: bool = False
    in_flight: int = 0
    ready_at: float = 0.0
    last_use: float = -math.inf
    promised_to: str = ""
    """Its room will be this model's."""
    closed: bool = False
    """Its turn is over: it takes no new requests, for the sake of the model its room is promised to."""
    leaving: str = ""
    """Why it is to be stopped as soon as it is idle."""
    paused_until: float = -math.inf
    ended_by: str = ""
    """Why it is being stopped."""
    open: bool = False
    """Takes requests: ready, and nothing above says otherwise."""
    gate: str = SHUT
    through_gate: int = 0
    """Requests that were there without having been asked for, as was last told."""

    @property
    def idle_since(self) -> float:
        return max(self.ready_at, self.last_use)

    @property
    def busy(self) -> bool:
        """Serves, or may serve for all that is known here."""
        return self.in_flight > 0 or self.gate != SHUT

    def reopen(self, now: float) -> None:
        self.open = self.phase == READY and not self.leaving and not self.closed and self.paused_until <= now


class Unloading(msgspec.Struct, eq=False):
    """Somebody waits for these to be gone."""

    ref: int
    models: list[str]
    left: set[str]


class State:
    def __init__(self, config: Config) -> None:
        self.catalogue = Catalogue(config)
        self.learnt: dict[str, Learnt] = {}
        self.present: dict[str, Instance] = {}
        self.loads: dict[int, Instance] = {}
        self.requests: dict[int, Request] = {}
        self.waiting: dict[int, Request] = {}
        """All that are not in flight, by arrival."""
        self.flights = 0
        self.line = Line()
        self.overtakings = Overtakings()
        self.preloads: dict[str, None] = dict.fromkeys(config.preload)
        """To be loaded when there is room for it."""
        self.unloading: list[Unloading] = []
        self.closing = False
        self.usual_wait_s = 0.0
        """How long the first of those who wait for a load had to wait until it began."""
        self.look_at = math.inf
        """When something that waits for time alone may go on."""
        self._idle_ends: list[tuple[float, int, str]] = []
        self._seqs = count(1)
        self._tokens = count(1)
        self.configure(self.catalogue)

    def configure(self, catalogue: Catalogue) -> None:
        before, self.catalogue = self.catalogue, catalogue
        added = [model for model in catalogue.config.preload if model not in before.config.preload]
        self.preloads = {model: None for model in (*self.preloads, *added) if model in catalogue.recipes}
        for recipe in catalogue.recipes.values():
            if recipe.name not in self.learnt:
                self.learnt[recipe.name] = Learnt(load_s=FIRST_LOAD_S if recipe.load_s is None else recipe.load_s)
            elif recipe.name not in before.recipes or before.recipes[recipe.name].digest != recipe.digest:
                self.learnt[recipe.name].forgive()
        for instance in self.present.values():
            instance.limit = limit(catalogue.recipes.get(instance.model))
            self.arm(instance)

    # Requests

    def arrive(self, request: int, model: str, now: float, failed_before: bool = False) -> Request:
        made = Request(request, model, next(self._seqs), now, failed_before=failed_before)
        self.requests[request] = made
        return made

    def enqueue(self, request: Request) -> None:
        self._detach(request)
        request.place, request.on = QUEUED, None
        self.line.add(request)
        self._waits(request)

    def join(self, request: Request, instance: Instance) -> None:
        """Wait for this load with the others."""
        self._detach(request)
        request.place, request.on = WAITING_FOR_LOAD, instance
        instance.waiters[request.id] = request
        self._waits(request)

    def fly(self, request: Request, instance: Instance, now: float) -> None:
        self._detach(request)
        request.place, request.on, request.granted_at = IN_FLIGHT, instance, now
        instance.in_flight += 1
        self.flights += 1
        if self.waiting:
            self.waiting.pop(request.id, None)
            self.overtakings.granted(request.seq, self.waiting)

    def land(self, request: Request) -> None:
        """It is in flight no more, and nowhere else yet."""
        self._detach(request)
        request.place = ARRIVING

    def forget(self, request: Request) -> None:
        self._detach(request)
        self.waiting.pop(request.id, None)
        del self.requests[request.id]

    def _detach(self, request: Request) -> None:
        if request.place == ARRIVING:
            return
        if request.place == QUEUED:
            self.line.remove(request)
        elif request.on is not None and request.place == WAITING_FOR_LOAD:
            del request.on.waiters[request.id]
        elif request.on is not None:
            request.on.in_flight -= 1
            self.flights -= 1

    def _waits(self, request: Request) -> None:
        if request.id in self.waiting:
            return
        comes_back = bool(self.waiting) and next(reversed(self.waiting.values())).seq > request.seq
        self.waiting[request.id] = request
        if comes_back:
            self.waiting = {each.id: each for each in sorted(self.waiting.values(), key=lambda each: each.seq)}

    def queued_before(self, request: Request) -> int:
        """Of those in the line, how many are asked first when something has ended."""
        urgency = self.priority(request.model)
        more_urgent = sum(len(row) for model, row in self.line.rows.items() if self.priority(model) > urgency)
        alike = (row for model, row in self.line.rows.items() if self.priority(model) == urgency)
        return more_urgent + sum(self.line.older(row, request.seq) for row in alike)

    def waiting_for(self, model: str) -> list[Request]:
        """Those in the line, and those who wait for its load."""
        instance = self.present.get(model)
        return [*self.line.row(model), *(instance.waiters.values() if instance is not None else ())]

    def count_waiting(self, model: str) -> int:
        instance = self.present.get(model)
        return self.line.count(model) + (len(instance.waiters) if instance is not None else 0)

    def priority(self, model: str) -> int:
        return self.catalogue.recipes[model].priority

    # Processes

    def begin(self, model: str, now: float) -> Instance:
        recipe = self.catalogue.recipes[model]
        made = Instance(model, next(self._tokens), recipe.digest, now, limit(recipe))
        self.present[model] = self.loads[made.load] = made
        return made

    def find(self, model: str, digest: str, load: int, now: float) -> Instance:
        self.learnt.setdefault(model, Learnt())
        made = Instance(model, load or next(self._tokens), digest, now, limit(self.catalogue.recipes.get(model)))
        self.present[model] = self.loads[made.load] = made
        self.is_ready(made, now)
        return made

    def is_ready(self, instance: Instance, now: float) -> None:
        del self.loads[instance.load]
        instance.phase, instance.ready_at = READY, now
        instance.reopen(now)
        self.arm(instance)

    def is_stopping(self, instance: Instance, reason: str) -> None:
        self.loads.pop(instance.load, None)
        instance.phase, instance.ended_by = STOPPING, reason
        instance.promised_to, instance.closed, instance.open, instance.gate = "", False, False, SHUT

    def is_gone(self, instance: Instance) -> None:
        self.loads.pop(instance.load, None)
        del self.present[instance.model]
        instance.phase, instance.open, instance.gate = GONE, False, SHUT

    def coming(self) -> Collection[str]:
        return [instance.model for instance in self.loads.values()]

    # Time

    def look_again(self, at: float) -> None:
        self.look_at = min(self.look_at, at)

    def arm(self, instance: Instance) -> None:
        """Be reminded of a model that may have been idle for too long. Only a reminder: who gets it looks."""
        recipe = self.catalogue.recipes.get(instance.model)
        if recipe is not None and recipe.ttl_s > 0 and not recipe.pinned and instance.phase == READY:
            self._remind(instance, instance.idle_since + recipe.ttl_s)

    def idle_too_long(self, now: float) -> list[Instance]:
        found = []
        while self._idle_ends and self._idle_ends[0][0] <= now:
            _, load, model = heapq.heappop(self._idle_ends)
            instance = self.present.get(model)
            recipe = self.catalogue.recipes.get(model)
            if instance is None or instance.load != load or instance.phase != READY:
                continue
            if recipe is None or recipe.pinned or not recipe.ttl_s:
                continue
            is_used = instance.in_flight or instance.through_gate or instance.leaving
            ends = (now if is_used else instance.idle_since) + recipe.ttl_s
            if ends <= now:
                found.append(instance)
            else:
                self._remind(instance, ends)
        return found

    def _remind(self, instance: Instance, at: float) -> None:
        heapq.heappush(self._idle_ends, (at, instance.load, instance.model))

    def due(self) -> float | None:
        at = min(self.look_at, self._idle_ends[0][0] if self._idle_ends else math.inf)
        return None if at == math.inf else at


def limit(recipe: Recipe | None) -> int:
    return sys.maxsize if recipe is None or recipe.concurrency is None else recipe.concurrency
