"""What the gateway knows: who waits where, what is loaded, what is under way. A process is known by the token of the
load that began it."""

import heapq
import math
import statistics
import sys
from collections import Counter
from collections.abc import Collection
from itertools import count

import msgspec

from ostler.gateway.core.events import ModelFound, RequestArrived
from ostler.gateway.core.learnt import LEAST_LOAD_S, Learnt
from ostler.gateway.core.line import Line, Overtakings
from ostler.gateway.core.models import Catalogue, Config, Recipe

LOADING, READY, STOPPING, GONE = "loading", "ready", "stopping", "gone"
ARRIVING, QUEUED, WAITING_FOR_LOAD, IN_FLIGHT = "arriving", "queued", "waiting for a load", "in flight"
HERE, AWAY, MISSED, CLOSED = "here", "away", "missed", "closed"
"""The worker of a process: takes work; cannot be reached, and is waited for; was waited for long enough; takes no new
work, so that its processes leave."""
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
    user: str = ""
    on: "Instance | None" = None
    """The process that it waits for or is served by."""


class Instance(msgspec.Struct, eq=False):
    """One process of a model, from the decision to load it until it is gone."""

    model: str
    load: int
    digest: str
    began: float
    limit: int = sys.maxsize
    expected_s: float = 0.0
    """How long its load will take, by all that was known when it began."""
    place: str = ""
    """The worker it runs on, once it is ready."""
    home: str = HERE
    """How its worker is, as was last told."""
    away_until: float = -math.inf
    """Until then it is waited for, while its worker cannot be reached."""
    phase: str = LOADING
    waiters: dict[int, Request] = {}
    """Those who are served when the load is done."""
    waited: dict[str, int] = {}
    """How many requests of each user have waited for the load so far."""
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
    is_watched: bool = False
    """The end of its last request through the gate is reported at once."""
    through_gate: int = 0
    """Requests that were there without having been asked for, as was last told."""

    @property
    def idle_since(self) -> float:
        return max(self.ready_at, self.last_use)

    @property
    def serves(self) -> bool:
        """Has requests, by the last report of its gate."""
        return self.in_flight > 0 or self.through_gate > 0

    @property
    def busy(self) -> bool:
        """Has requests, or may have some that were not reported yet."""
        return self.in_flight > 0 or self.gate != SHUT

    @property
    def stays(self) -> bool:
        """Will serve, now or later, for all that was decided."""
        return self.counts and (self.phase == LOADING or (self.phase == READY and not self.leaving))

    @property
    def counts(self) -> bool:
        """Is one of the processes that its model may have. One on a worker that leaves or is missed is not: others take
        its place before it is gone."""
        return self.home in (HERE, AWAY)

    def reopen(self, now: float) -> None:
        takes = self.phase == READY and self.home == HERE and not self.leaving and not self.closed
        self.open = takes and self.paused_until <= now


class Unloading(msgspec.Struct, eq=False):
    """Somebody waits for these to be gone."""

    ref: int
    models: list[str]
    left: set[int]


_NONE: dict[int, Instance] = {}


class State:
    def __init__(self, config: Config) -> None:
        self.catalogue = Catalogue(config)
        self.learnt: dict[str, Learnt] = {}
        self.present: dict[int, Instance] = {}
        self._of: dict[str, dict[int, Instance]] = {}
        self.loads: dict[int, Instance] = {}
        self.away: dict[int, Instance] = {}
        """Ready processes whose worker cannot be reached and is waited for."""
        self.requests: dict[int, Request] = {}
        self.per_model: Counter[str] = Counter()
        """Of `requests`, how many each model has."""
        self.waiting: dict[int, Request] = {}
        """All that are not in flight, by arrival."""
        self.flights = 0
        self.served_for: Counter[tuple[str, str]] = Counter()
        """Requests in flight by model and user."""
        self.line = Line()
        self.overtakings = Overtakings()
        self.preloads: dict[str, None] = dict.fromkeys(config.preload)
        """To be loaded when there is room for it."""
        self.unloading: list[Unloading] = []
        self.closing = False
        self.usual_wait_s = 0.0
        """How long the first of those who wait for a load had to wait until it began."""
        self.unmeasured_load_s = LEAST_LOAD_S
        """How long a load takes that was never measured, for all that is known of other models."""
        self.look_at = math.inf
        """When something that waits for time alone may go on."""
        self._idle_ends: list[tuple[float, int]] = []
        self._seqs = count(1)
        self._tokens = count(1)
        self.configure(self.catalogue)

    def configure(self, catalogue: Catalogue) -> None:
        before, self.catalogue = self.catalogue, catalogue
        added = [model for model in catalogue.config.preload if model not in before.config.preload]
        self.preloads = {model: None for model in (*self.preloads, *added) if model in catalogue.recipes}
        for recipe in catalogue.recipes.values():
            if recipe.name not in self.learnt:
                self.learnt[recipe.name] = Learnt(recipe.load_s, bool(recipe.load_at), dict(recipe.load_at))
            elif recipe.name not in before.recipes or before.recipes[recipe.name].digest != recipe.digest:
                self.learnt[recipe.name].forgive()
        self.learn_loads()
        for instance in self.present.values():
            instance.limit = limit(catalogue.recipes.get(instance.model))
            self.arm(instance)

    def learn_loads(self) -> None:
        """A load was measured, or measured times became known."""
        measured = [seen.measured_load_s for seen in self.learnt.values() if seen.measured_load_s is not None]
        self.unmeasured_load_s = max(LEAST_LOAD_S, statistics.median(measured)) if measured else LEAST_LOAD_S

    def load_s(self, model: str, now: float) -> float:
        """How long a load of the model takes. One that was never measured takes at least as long as it has taken so
        far, and as long as other models do."""
        measured = self.learnt[model].measured_load_s
        if measured is not None:
            return measured
        so_far = (now - each.began for each in self.loads.values() if each.model == model)
        return max(self.unmeasured_load_s, *so_far, 0.0)

    def load_at(self, model: str, place: str, now: float) -> float:
        """The same at a place. Where the model was never loaded it takes as long as anywhere."""
        measured = self.learnt[model].places.get(place)
        return self.load_s(model, now) if measured is None else measured

    def best_load_s(self, model: str, now: float) -> float:
        return min(self.learnt[model].places.values(), default=self.load_s(model, now))

    # Requests

    def arrive(self, asked: RequestArrived, model: str, now: float) -> Request:
        made = Request(asked.request, model, next(self._seqs), now, failed_before=asked.again, user=asked.user)
        self.requests[made.id] = made
        self.per_model[model] += 1
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
        instance.waited[request.user] = instance.waited.get(request.user, 0) + 1
        self._waits(request)

    def fly(self, request: Request, instance: Instance, now: float) -> None:
        self._detach(request)
        request.place, request.on, request.granted_at = IN_FLIGHT, instance, now
        instance.in_flight += 1
        self.flights += 1
        self.served_for[request.model, request.user] += 1
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
        self.per_model[request.model] -= 1
        if not self.per_model[request.model]:
            del self.per_model[request.model]

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
            whose = request.model, request.user
            self.served_for[whose] -= 1
            if not self.served_for[whose]:
                del self.served_for[whose]

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

    def next_in_line(self, model: str) -> Request | None:
        """Of the users who wait for the model, the one for whom it serves the fewest; of several, who came first."""
        firsts = self.line.firsts(model)
        return min(firsts, key=lambda each: (self.served_for[model, each.user], each.seq), default=None)

    def waiting_for(self, model: str) -> list[Request]:
        """Those in the line, and those who wait for its loads."""
        at_loads = (request for each in self.of(model) for request in each.waiters.values())
        return [*self.line.row(model), *at_loads]

    def count_waiting(self, model: str) -> int:
        return self.line.count(model) + sum(len(each.waiters) for each in self.of(model))

    def count_requests(self, model: str) -> int:
        """Those that wait and those that are served, as far as is known of an open gate."""
        return self.per_model[model] + sum(each.through_gate for each in self.of(model) if each.gate != SHUT)

    def priority(self, model: str) -> int:
        return self.catalogue.recipes[model].priority

    # Processes

    def of(self, model: str) -> Collection[Instance]:
        """The processes of a model; those that are ready in the order in which they became so."""
        return self._of.get(model, _NONE).values()

    def best(self, model: str) -> Instance | None:
        """Of those that take requests the one with most free places; of several the one that was ready first."""
        found: Instance | None = None
        for each in self.of(model):
            if each.open and (found is None or each.limit - each.in_flight > found.limit - found.in_flight):
                found = each
        return found

    def rank(self, instance: Instance) -> int:
        """How many processes of its model are ready, stay, and were there before it. What makes a model worth keeping
        is its first process; the others are extra."""
        found = 0
        for each in self.of(instance.model):
            if each is instance:
                break
            found += each.phase == READY and each.stays
        return found

    def is_pinned(self, instance: Instance) -> bool:
        return self.catalogue.pinned(instance.model) and not self.rank(instance)

    def lacks_process(self, model: str) -> bool:
        """It has none that stays, and may have another."""
        there = [each for each in self.of(model) if each.counts]
        return len(there) < self.catalogue.max_instances(model) and not any(each.stays for each in there)

    def want_room(self) -> list[str]:
        """Models that somebody waits for, and that could only be served by a load."""
        return [model for model in self.line.rows if self.lacks_process(model)]

    def begin(self, model: str, expected_s: float, now: float) -> Instance:
        recipe = self.catalogue.recipes[model]
        made = Instance(model, next(self._tokens), recipe.digest, now, limit(recipe), expected_s)
        self._add(made)
        return made

    def find(self, found: ModelFound, now: float) -> Instance:
        self.learnt.setdefault(found.model, Learnt())
        load, recipe = found.load or next(self._tokens), self.catalogue.recipes.get(found.model)
        made = Instance(found.model, load, found.digest, now, limit(recipe), place=found.place)
        self._add(made)
        self.is_ready(made, now)
        return made

    def _add(self, made: Instance) -> None:
        self.present[made.load] = self.loads[made.load] = made
        self._of.setdefault(made.model, {})[made.load] = made

    def is_ready(self, instance: Instance, now: float) -> None:
        del self.loads[instance.load]
        siblings = self._of[instance.model]
        siblings[instance.load] = siblings.pop(instance.load)
        instance.phase, instance.ready_at = READY, now
        instance.reopen(now)
        self.arm(instance)

    def is_stopping(self, instance: Instance, reason: str) -> None:
        self.loads.pop(instance.load, None)
        instance.phase, instance.ended_by = STOPPING, reason
        instance.promised_to, instance.closed, instance.open, instance.gate = "", False, False, SHUT
        instance.through_gate = 0
        self.away.pop(instance.load, None)

    def is_gone(self, instance: Instance) -> None:
        self.loads.pop(instance.load, None)
        del self.present[instance.load]
        siblings = self._of[instance.model]
        del siblings[instance.load]
        if not siblings:
            del self._of[instance.model]
        instance.phase, instance.open, instance.gate = GONE, False, SHUT
        self.away.pop(instance.load, None)

    def move_home(self, instance: Instance, home: str, now: float) -> None:
        """A worker that cannot be reached has as long to come back as another load would take: then waiting costs at
        most twice as much as the better of the two choices."""
        instance.home = home
        self.away.pop(instance.load, None)
        if home == AWAY:
            self.away[instance.load] = instance
            instance.away_until = now + self.best_load_s(instance.model, now)
        instance.reopen(now)

    def miss(self, now: float) -> list[Instance]:
        """Give up waiting for workers whose time to come back is over. A process that may still serve is not given
        up: its connections may outlive the one to the hub."""
        missed = [each for each in self.away.values() if each.away_until <= now and not each.busy]
        for each in missed:
            each.home = MISSED
            del self.away[each.load]
        return missed

    def coming(self) -> dict[int, str]:
        return {load: instance.model for load, instance in self.loads.items()}

    # Time

    def look_again(self, at: float) -> None:
        self.look_at = min(self.look_at, at)

    def arm(self, instance: Instance) -> None:
        """Be reminded of a model that may have been idle for too long. Only a reminder: who gets it looks."""
        recipe = self.catalogue.recipes.get(instance.model)
        if recipe is not None and recipe.ttl_s > 0 and instance.phase == READY and not self.is_pinned(instance):
            self._remind(instance, instance.idle_since + recipe.ttl_s)

    def idle_too_long(self, now: float) -> list[Instance]:
        found = []
        while self._idle_ends and self._idle_ends[0][0] <= now:
            _, load = heapq.heappop(self._idle_ends)
            instance = self.present.get(load)
            recipe = self.catalogue.recipes.get(instance.model) if instance is not None else None
            if instance is None or instance.phase != READY or recipe is None:
                continue
            if not recipe.ttl_s or self.is_pinned(instance):
                continue
            is_used = instance.in_flight or instance.through_gate or instance.leaving
            ends = (now if is_used else instance.idle_since) + recipe.ttl_s
            if ends <= now:
                found.append(instance)
            else:
                self._remind(instance, ends)
        return found

    def _remind(self, instance: Instance, at: float) -> None:
        heapq.heappush(self._idle_ends, (at, instance.load))

    def due(self) -> float | None:
        at = min(self.look_at, self._idle_ends[0][0] if self._idle_ends else math.inf)
        at = min([at, *(each.away_until for each in self.away.values() if not each.busy)])
        return None if at == math.inf else at


def limit(recipe: Recipe | None) -> int:
    """How many requests a process serves at once. A process of a model with a `request_limit` has a limit too, so that
    it gets no gate: requests that pass a gate are not counted one by one."""
    given = () if recipe is None else (recipe.concurrency, recipe.request_limit)
    return min((each for each in given if each is not None), default=sys.maxsize)
