"""What both schedulers do alike: all but the order in which requests are served and the choice of what to load."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from ostler.gateway.core import explain, gates, orders, refusals
from ostler.gateway.core.effects import Effect, Grant, Refuse, StartLoad, StopProcesses, Tell, Unloaded
from ostler.gateway.core.events import (
    CallerGone,
    Event,
    GateDrained,
    GateUsed,
    LoadDone,
    RequestArrived,
    RequestCancelled,
    RequestFailed,
    RoomChanged,
    ServeDone,
    Stopped,
    TimePassed,
)
from ostler.gateway.core.eviction import HORIZON_LOADS, Capacity, may_go, reload_loss
from ostler.gateway.core.explain import Blocked, Place
from ostler.gateway.core.learnt import STEADY_S, LoadTimes
from ostler.gateway.core.models import Config
from ostler.gateway.core.refusals import NOWHERE_S
from ostler.gateway.core.state import HERE, IN_FLIGHT, LOADING, MISSED, QUEUED, READY, Instance, Request, State

PAUSE_S = 1.0
"""How long the word about a process that has died may be behind the word about its requests."""


class Machine(ABC):
    def __init__(self, config: Config, capacity: Capacity) -> None:
        self.state = State(config)
        self.capacity = capacity

    def step(self, event: Event, now: float) -> list[Effect]:
        match event:
            case RequestArrived():
                return self._arrived(event, now)
            case ServeDone():
                return self._served(event.request, now)
            case RequestCancelled():
                return self._cancelled(event.request, now)
            case CallerGone():
                return self._caller_gone(event.request, now)
            case RequestFailed():
                return self._request_failed(event.request, now)
            case LoadDone():
                return self._load_done(event, now)
            case Stopped():
                return self._stopped(event, now)
            case GateUsed():
                return self._gate_used(event, now)
            case GateDrained():
                return self._gate_drained(event, now)
            case TimePassed():
                return self._time_passed(now)
            case RoomChanged():
                return self.settle(now)
            case _:
                return orders.obey(self, event, now)

    def due(self) -> float | None:
        """The next moment at which `TimePassed` changes something."""
        return self.state.due()

    def why(self, request_id: int, now: float) -> str:
        """What a request waits for."""
        request = self.state.requests.get(request_id)
        if request is None:
            return "It is not here: it was answered, or it never came."
        if request.place != QUEUED:
            return explain.not_queued(self.state, request, now)
        return explain.sentence(request.model, self.blocked(request, now), now)

    def places(self, now: float) -> list[Place]:
        """All who wait, in the order in which they are asked."""
        return explain.places(self.state, lambda requests: self._estimates(requests, now), now)

    def price(self, load: int, now: float) -> float | None:
        """What a job that wants the room of this process should pay for it, in seconds; None: it is not to be had. An
        open gate through which nobody goes is no use of it: it is closed and drained when the job asks."""
        instance = self.state.present.get(load)
        if instance is None or instance.in_flight or instance.through_gate or not may_go(self.state, instance, ""):
            return None
        if instance.home != HERE:
            return None
        horizon_s = HORIZON_LOADS * self.state.load_s(instance.model, now)
        return reload_loss(self.state, instance, horizon_s, now)

    def load_times(self) -> dict[str, LoadTimes]:
        """Of all models that were loaded, for whoever comes after this gateway."""
        every = ((model, seen.times) for model, seen in self.state.learnt.items())
        return {model: times for model, times in every if times is not None}

    # What the two differ in

    @abstractmethod
    def settle(self, now: float) -> list[Effect]:
        """Something has ended or changed: let those go on who can."""

    @abstractmethod
    def _serves_at_once(self, instance: Instance) -> bool: ...

    @abstractmethod
    def _wait(self, request: Request, now: float) -> list[Effect]:
        """It cannot be served at once: find it a place, and do what can be done for it."""

    @abstractmethod
    def _serve_loaded(self, instance: Instance, now: float) -> list[Effect]:
        """It is ready: those who waited for it are served, as far as they may be at once; the rest are in the line."""

    @abstractmethod
    def _flight_ended(self, instance: Instance, now: float) -> list[Effect]: ...

    @abstractmethod
    def _has_free_room(self, model: str) -> bool: ...

    @abstractmethod
    def _estimates(self, requests: list[Request], now: float) -> list[float]: ...

    @abstractmethod
    def blocked(self, request: Request, now: float) -> Blocked:
        """What keeps a request in the line."""

    # Requests

    def _arrived(self, event: RequestArrived, now: float) -> list[Effect]:
        state = self.state
        if state.closing:
            return [refusals.closing(event.request)]
        model = state.catalogue.names.get(event.model)
        if model is None:
            return [refusals.unknown(event.request, event.model)]
        seen = state.learnt[model]
        seen.arrived(now)
        most = state.catalogue.recipes[model].request_limit
        if most is not None and not event.again and (there := state.count_requests(model)) >= most:
            return [refusals.too_many(event.request, model, there, self._place_free_in_s(model, now))]
        instance = state.best(model)
        if instance is not None and self._serves_at_once(instance):
            return [self.grant(state.arrive(event, model, now), instance, now)]
        if self.is_hopeless(model, now):
            return [refusals.load_failed(event.request, model, seen, now)]
        waiting, may_wait = state.count_waiting(model), state.catalogue.recipes[model].queue_limit
        if may_wait is not None and waiting >= may_wait:
            return [refusals.full(event.request, model, waiting, self._place_free_in_s(model, now))]
        return self._wait(state.arrive(event, model, now), now)

    def _place_free_in_s(self, model: str, now: float) -> float:
        """About when one of those who wait for the model will have gone on."""
        seen, there = self.state.learnt[model], self.state.of(model)
        if any(each.phase == READY for each in there):
            return seen.serve_s
        loading = (each.expected_s - (now - each.began) for each in there if each.phase == LOADING)
        return min(loading, default=self.state.load_s(model, now))

    def is_hopeless(self, model: str, now: float) -> bool:
        """It backs off, and there is no process of it to wait for."""
        return now < self.state.learnt[model].backoff_until and not any(each.stays for each in self.state.of(model))

    def grant(self, request: Request, instance: Instance, now: float) -> Grant:
        self.state.fly(request, instance, now)
        return Grant(request.id, instance.load)

    def tell(self, request: Request) -> Tell:
        if request.on is not None:
            return Tell(request.id, 0, f"{request.model!r} is being loaded")
        return Tell(request.id, 1 + self.state.queued_before(request), f"waiting for {request.model!r}")

    def _cancelled(self, request_id: int, now: float) -> list[Effect]:
        request = self.state.requests.get(request_id)
        if request is None or request.place == IN_FLIGHT:
            return []
        self.state.forget(request)
        return self.settle(now)

    def _in_flight(self, request_id: int) -> tuple[Request, Instance] | None:
        request = self.state.requests.get(request_id)
        if request is None or request.place != IN_FLIGHT or request.on is None:
            return None
        return request, request.on

    def _served(self, request_id: int, now: float) -> list[Effect]:
        if (found := self._in_flight(request_id)) is None:
            return []
        request, instance = found
        self.state.forget(request)
        self.state.learnt[request.model].served(now - request.granted_at)
        instance.last_use = now
        return self._after_flight(instance, now)

    def _caller_gone(self, request_id: int, now: float) -> list[Effect]:
        if (found := self._in_flight(request_id)) is None:
            return []
        self.state.forget(found[0])
        return self._after_flight(found[1], now)

    def _request_failed(self, request_id: int, now: float) -> list[Effect]:
        if (found := self._in_flight(request_id)) is None:
            return []
        request, instance = found
        effects: list[Effect] = []
        if (refusal := self._final_answer(request, instance, now)) is not None:
            self.state.forget(request)
            effects.append(refusal)
        else:
            self.state.land(request)
            request.failed_before = True
            if instance.phase == READY:
                instance.paused_until = now + PAUSE_S
                instance.reopen(now)
            effects += self._wait(request, now)
        return effects + self._after_flight(instance, now)

    def _final_answer(self, request: Request, instance: Instance, now: float) -> Refuse | None:
        """What a request hears that its process failed; None: it is tried again. Once is the fault of the process; a
        request that fails twice may be what kills it."""
        model, seen = request.model, self.state.learnt[request.model]
        if self.state.closing:
            return refusals.closing(request.id)
        if instance.ended_by == "unloaded":
            return refusals.unloaded(request.id, model)
        if model not in self.state.catalogue.recipes:
            return refusals.removed(request.id, model)
        if request.failed_before or self.is_hopeless(model, now):
            return refusals.died(request.id, model, seen, now)
        return None

    def _after_flight(self, instance: Instance, now: float) -> list[Effect]:
        self.state.miss(now)
        return self._leave_if_idle(instance) + self._flight_ended(instance, now)

    def _leave_if_idle(self, instance: Instance) -> list[Effect]:
        is_over = instance.leaving and not instance.busy and instance.phase == READY
        return self.stop([instance], instance.leaving) if is_over else []

    def refuse(self, requests: Iterable[Request], refusal: Callable[[Request], Refuse]) -> list[Effect]:
        effects: list[Effect] = []
        for request in list(requests):
            self.state.forget(request)
            effects.append(refusal(request))
        return effects

    def refuse_nowhere(self, model: str, now: float) -> list[Effect]:
        """There is no room for it. Whoever has waited long enough hears so, if no machine could ever have any."""
        first = self.state.line.first(model)
        if first is not None and now >= first.since + NOWHERE_S and not self.capacity.could_hold(model):
            over = [request for request in self.state.line.row(model) if now >= request.since + NOWHERE_S]
            return self.refuse(over, lambda each: refusals.nowhere(each.id, model)) + self.refuse_nowhere(model, now)
        if first is not None and now < first.since + NOWHERE_S:
            self.state.look_again(first.since + NOWHERE_S)
        return []

    # Processes

    def start(
        self, model: str, waiters: Iterable[Request], evict: list[Instance], now: float, *, preload: bool = False
    ) -> list[Effect]:
        missed = [each for each in self.state.of(model) if each.home == MISSED and each.phase == READY]
        effects = self.stop([each for each in missed if each not in evict], "missed")
        seen, places = self.state.learnt[model], {victim.place for victim in evict}
        known_s = [self.state.load_at(model, place, now) for place in places]
        for victim in evict:
            self.state.is_stopping(victim, "evicted")
        expected_s = max(known_s, default=self.state.best_load_s(model, now))
        instance = self.state.begin(model, expected_s, now)
        instance.preload = preload
        loads = sorted(victim.load for victim in evict)
        effects.append(StartLoad(instance.load, model, loads, dict(seen.places)))
        for request in list(waiters):
            self.state.join(request, instance)
            effects.append(self.tell(request))
        return effects

    def preload(self, model: str, now: float) -> list[Effect]:
        """Load it though nobody waits for it, if there is room and nothing speaks against it."""
        seen = self.state.learnt[model]
        not_before = max(seen.held_until, seen.backoff_until)
        if now < not_before:
            self.state.look_again(not_before)
            return []
        if not self._has_free_room(model):
            return []
        del self.state.preloads[model]
        return self.start(model, (), [], now, preload=True)

    def want_again(self, model: str) -> None:
        """Have it loaded as soon as there is free room: it was loaded, and went only because its worker did."""
        if model in self.state.catalogue.recipes and not self.state.closing:
            self.state.preloads[model] = None

    def stop(self, instances: list[Instance], reason: str) -> list[Effect]:
        if not instances:
            return []
        for instance in instances:
            self.state.is_stopping(instance, reason)
        return [StopProcesses([instance.load for instance in instances], reason)]

    def _load_done(self, event: LoadDone, now: float) -> list[Effect]:
        instance = self.state.loads.get(event.load)
        if instance is None:
            return []
        if event.error or event.no_room:
            return self._load_failed(instance, event, now)
        self.state.is_ready(instance, now)
        instance.place = event.place
        self.state.learnt[instance.model].loaded(now - instance.began, event.place)
        self.state.learn_loads()
        waited = list(instance.waiters.values())
        effects = self._serve_loaded(instance, now)
        effects += [self.tell(request) for request in waited if request.place == QUEUED]
        return effects + self.settle(now)

    def _load_failed(self, instance: Instance, event: LoadDone, now: float) -> list[Effect]:
        """Those who wait for it hear so, unless the model has another process that may serve them yet."""
        model, waiters = instance.model, list(instance.waiters.values())
        seen = self.state.learnt[model]
        if event.error:
            seen.failed(event.error, now)
        else:
            seen.held_until = now + PAUSE_S
            if instance.preload:
                self.state.preloads[model] = None
        others = any(each.stays and each is not instance for each in self.state.of(model))
        if event.error and not others:
            lost = self.state.waiting_for(model) if now < seen.backoff_until else waiters
            effects = self.refuse(lost, lambda request: refusals.load_failed(request.id, model, seen, now))
        else:
            effects = self.back_to_line(waiters)
        self.state.is_gone(instance)
        return effects + self.settle(now)

    def back_to_line(self, requests: list[Request]) -> list[Effect]:
        effects: list[Effect] = []
        for request in requests:
            self.state.enqueue(request)
            effects.append(self.tell(request))
        return effects

    def _stopped(self, event: Stopped, now: float) -> list[Effect]:
        instance = self.state.present.get(event.load)
        if instance is None:
            return self.settle(now)  # whatever it was, its room is free
        if instance.phase == LOADING:
            return self._load_done(LoadDone(event.load, event.error or "it was stopped"), now)
        model, seen = instance.model, self.state.learnt[instance.model]
        if now - instance.ready_at >= STEADY_S:
            seen.forgive()
        if event.error and instance.phase == READY:
            seen.failed(event.error, now)
        if event.lost and instance.phase == READY and not instance.leaving:
            self.want_again(model)
        self.state.is_gone(instance)
        effects: list[Effect] = []
        if self.is_hopeless(model, now):
            lost = self.state.waiting_for(model)
            effects = self.refuse(lost, lambda request: refusals.died(request.id, model, seen, now))
        return effects + self._tell_unloaded(instance) + self.settle(now)

    def _gate_used(self, event: GateUsed, now: float) -> list[Effect]:
        """Somebody may wait for the room of a process that serves nothing any more, or serves again."""
        served = gates.used(self.state, event, now)
        return self.settle(now) if served and self.state.line else []

    def _gate_drained(self, event: GateDrained, now: float) -> list[Effect]:
        instance = gates.drained(self.state, event, now)
        if instance is None:
            return []
        self.state.miss(now)
        return self._leave_if_idle(instance) + self.settle(now)

    def _tell_unloaded(self, gone: Instance) -> list[Effect]:
        for unloading in self.state.unloading:
            unloading.left.discard(gone.load)
        done = [unloading for unloading in self.state.unloading if not unloading.left]
        self.state.unloading = [unloading for unloading in self.state.unloading if unloading.left]
        return [Unloaded(unloading.ref, unloading.models) for unloading in done]

    def _time_passed(self, now: float) -> list[Effect]:
        idle = self.state.idle_too_long(now)
        effects = [effect for instance in idle for effect in orders.leave(self, instance, "idle", now)]
        missed = self.state.miss(now)
        return effects + self.settle(now) if idle or missed or self.state.look_at <= now else []
