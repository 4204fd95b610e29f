"""One request at a time, in the exact order of arrival, with one model in memory."""

from ostler.gateway.core import explain
from ostler.gateway.core.effects import Effect
from ostler.gateway.core.explain import Blocked
from ostler.gateway.core.machine import Machine
from ostler.gateway.core.state import LOADING, MISSED, STOPPING, Instance, Request


class Serial(Machine):
    def _serves_at_once(self, instance: Instance) -> bool:
        state = self.state
        return not state.flights and not state.waiting and len(state.present) == 1

    def _wait(self, request: Request, now: float) -> list[Effect]:
        self.state.enqueue(request)
        effects = self.settle(now)
        return [*effects, self.tell(request)] if request.on is None else effects

    def _serve_loaded(self, instance: Instance, now: float) -> list[Effect]:
        return [self.grant(request, instance, now) for request in list(instance.waiters.values())]

    def _flight_ended(self, instance: Instance, now: float) -> list[Effect]:
        return self.settle(now)

    def settle(self, now: float) -> list[Effect]:
        state = self.state
        state.look_at = float("inf")
        request = next(iter(state.waiting.values()), None)
        effects = self._stop_all_but_one(request.model if request is not None else "")
        if state.flights or any(load.waiters for load in state.loads.values()):
            return effects
        if request is None:
            return effects + self._preload(now)
        there = (each for each in state.of(request.model) if each.home != MISSED)
        own = max(there, key=lambda each: each.phase != STOPPING, default=None)
        if own is None:
            return effects + self._load(request, now)
        if own.phase == LOADING:
            state.join(request, own)
            return [*effects, self.tell(request)]
        own.reopen(now)
        if own.open:
            return [*effects, self.grant(request, own, now)]
        if now < own.paused_until:
            state.look_again(own.paused_until)
        return effects

    def _stop_all_but_one(self, next_model: str) -> list[Effect]:
        """Several are there only when they were found running."""
        there = [each for each in self.state.present.values() if each.phase != STOPPING]
        if len(there) < 2:
            return []
        kept = max(there, key=lambda each: (each.in_flight, len(each.waiters), each.model == next_model, each.last_use))
        return self.stop([each for each in there if each is not kept], "evicted")

    def _load(self, request: Request, now: float) -> list[Effect]:
        others = list(self.state.present.values())
        held_until = self.state.learnt[request.model].held_until
        if now < held_until:
            self.state.look_again(held_until)
            return []
        if not self.capacity.fits(request.model, list(self.state.present), {}):
            refused = self.refuse_nowhere(request.model, now)
            return refused + self.settle(now) if refused else []
        return self.start(request.model, [request], others, now)

    def _preload(self, now: float) -> list[Effect]:
        """The first that can be, into an empty memory."""
        for model in list(self.state.preloads):
            if any(each.counts for each in self.state.present.values()):
                self.state.preloads.clear()
            if self.state.present:
                break
            if effects := self.preload(model, now):
                return effects
        return []

    def _has_free_room(self, model: str) -> bool:
        return self.capacity.fits(model, (), {})

    def _estimates(self, requests: list[Request], now: float) -> list[float]:
        return explain.estimate_in_a_row(self.state, requests, now)

    def blocked(self, request: Request, now: float) -> Blocked:
        return explain.blocked_in_serial(self.state, self.capacity, request, now)
