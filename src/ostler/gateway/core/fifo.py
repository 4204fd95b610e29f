"""Many models at once, as far as groups, sets and the ledger let them. Whoever can be served is; the rest wait in the
order of priority and arrival, and one load serves all who wait for it."""

import math
from collections.abc import Callable
from functools import partial

from ostler.gateway.core import explain, gates, refusals
from ostler.gateway.core.effects import Effect
from ostler.gateway.core.eviction import (
    EXPECTED_LOSS,
    Capacity,
    Policy,
    choose,
    fits,
    may_go,
    may_go_now,
)
from ostler.gateway.core.explain import Blocked
from ostler.gateway.core.growth import BEGIN, look
from ostler.gateway.core.machine import Machine
from ostler.gateway.core.models import Config
from ostler.gateway.core.state import QUEUED, READY, SHUT, Instance, Request
from ostler.gateway.core.turns import Turns

NEWEST_WAIT_WEIGHS = 0.05
"""Waits change with the hour, not with the minute."""


class Fifo(Machine):
    def __init__(
        self, config: Config, capacity: Capacity, policy: Policy = EXPECTED_LOSS, *, has_gates: bool = False
    ) -> None:
        super().__init__(config, capacity)
        self.has_gates = has_gates
        self.turns = Turns(self.state, capacity, policy)
        self._others_may_go_on = False
        """A load began: a promise may have been kept that held up others who were asked before."""
        self.chosen: dict[str, tuple[int, ...]] = {}
        """By model, the processes that make room for its load as soon as their gates have drained."""

    def _serves_at_once(self, instance: Instance) -> bool:
        return instance.in_flight < instance.limit

    def _wait(self, request: Request, now: float) -> list[Effect]:
        self.state.enqueue(request)
        effects = self._try(request.model, now)
        effects += self.settle(now) if self._others_may_go_on else self._tend_gates()
        return effects if request.place != QUEUED else [*effects, self.tell(request)]

    def _serve_loaded(self, instance: Instance, now: float) -> list[Effect]:
        for request in list(instance.waiters.values()):
            self.state.enqueue(request)
        return self._serve_row(instance.model, now)

    def _flight_ended(self, instance: Instance, now: float) -> list[Effect]:
        if not self.state.line:
            return []
        if not instance.in_flight:
            return self.settle(now)
        effects = self._serve_row(instance.model, now)
        return effects if self.state.line else effects + self._tend_gates()

    def settle(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        self._others_may_go_on = True
        while self._others_may_go_on:
            self._others_may_go_on = False
            self.state.look_at = math.inf
            self.turns.drop_stale(now)
            self._drop_stale_choices()
            for model in self._in_order():
                effects += self._try(model, now)
        return effects + self._preload(now) + self._tend_gates()

    def _tend_gates(self) -> list[Effect]:
        return gates.tend(self.state, self.victims()) if self.has_gates else []

    def victims(self) -> set[int]:
        """The processes whose gates are closed for the sake of a load."""
        return {load for chosen in self.chosen.values() for load in chosen}

    def _drop_stale_choices(self) -> None:
        for target in list(self.chosen):
            if self.state.line.first(target) is None or not self.state.lacks_process(target):
                del self.chosen[target]

    def _in_order(self) -> list[str]:
        rows = self.state.line.rows
        return sorted(rows, key=lambda model: (-self.state.priority(model), next(iter(rows[model].values())).seq))

    def _try(self, model: str, now: float) -> list[Effect]:
        """Serve those who wait for the model, or load it, or see to it that room is made."""
        state, seen = self.state, self.state.learnt[model]
        if self.is_hopeless(model, now):
            return self.refuse(state.line.row(model), lambda each: refusals.load_failed(each.id, model, seen, now))
        effects = self._serve_row(model, now)
        return effects + (self._load(model, now) if state.lacks_process(model) else self._grow(model, now))

    def _serve_row(self, model: str, now: float) -> list[Effect]:
        """By those of its processes that take requests; where it has none yet, they wait for the first to come."""
        state, effects = self.state, list[Effect]()
        for instance in state.of(model):
            if instance.phase == READY and not instance.open:
                if now < instance.paused_until:
                    state.look_again(instance.paused_until)
                instance.reopen(now)
        while (request := state.next_in_line(model)) is not None:
            best = state.best(model)
            if best is None or best.in_flight >= best.limit:
                break
            effects.append(self.grant(request, best, now))
        return effects + self._join_load(model)

    def _join_load(self, model: str) -> list[Effect]:
        staying = [each for each in self.state.of(model) if each.stays]
        if not staying or any(each.phase == READY for each in staying):
            return []
        first = min(staying, key=lambda each: each.began + each.expected_s)
        effects: list[Effect] = []
        for request in self.state.line.row(model):
            self.state.join(request, first)
            effects.append(self.tell(request))
        return effects

    def _load(self, model: str, now: float) -> list[Effect]:
        state = self.state
        held_until = state.learnt[model].held_until
        if now < held_until:
            state.look_again(held_until)
            return []
        if (victims := self._room_for(model, now)) is None:
            self.chosen.pop(model, None)
            if stopped := self._stop_unwanted_loads(model, now):
                return stopped
            self.turns.take(model, now)
            victims = self._room_for(model, now)  # an idle resident whose turn is over makes way at once
        if victims is None:
            return self.refuse_nowhere(model, now)
        if any(state.present[victim].gate != SHUT for victim in victims):
            self.chosen[model] = tuple(victims)
            return []
        self.chosen.pop(model, None)
        row = state.line.row(model)
        state.usual_wait_s += NEWEST_WAIT_WEIGHS * (now - row[0].since - state.usual_wait_s)
        self.turns.drop(model, now)
        self._others_may_go_on = True
        return self.start(model, row, [state.present[victim] for victim in victims], now)

    def _grow(self, model: str, now: float) -> list[Effect]:
        growth = look(self.state, self.turns, model, now)
        if growth.until is not None:
            self.state.look_again(growth.until)
        if growth.verdict != BEGIN:
            return []
        self._others_may_go_on = True
        return self.start(model, (), [self.state.present[victim] for victim in growth.evict], now)

    def _room_for(self, target: str, now: float) -> list[int] | None:
        """Whom to evict, none of them serving; None: there is no room now. A choice stands while it can be kept: its
        gates are about to drain."""
        may = partial(may_go_now, self.state, self.turns.policy, target=target, now=now)
        chosen = self.chosen.get(target, ())
        if chosen and self._stands(chosen, may) and self.turns.lets_start(target, chosen):
            return list(chosen)
        candidates = self.turns.candidates(target, may, now)
        victims = choose(candidates, partial(self.turns.lets_start, target))
        if victims is None:
            self._look_when_idle_ones_may_go(target, now)
        return victims

    def _stands(self, chosen: tuple[int, ...], may: Callable[[Instance], bool]) -> bool:
        there = self.state.present
        return all(load in there and may(there[load]) for load in chosen)

    def _look_when_idle_ones_may_go(self, target: str, now: float) -> None:
        for instance in self.state.present.values():
            if not instance.serves and may_go(self.state, instance, target):
                kept_until = self.turns.policy.kept_until(self.state, instance, target, now)
                if kept_until > now:
                    self.state.look_again(kept_until)

    def _stop_unwanted_loads(self, target: str, now: float) -> list[Effect]:
        """A load that nobody waits for any more goes on, unless it is in somebody's way."""
        loads, line = self.state.loads.values(), self.state.line
        unwanted = [each for each in loads if not (each.waiters or each.preload or line.count(each.model))]
        if not unwanted:
            return []
        may = partial(may_go_now, self.state, self.turns.policy, target=target, now=now)
        gone = {each.load for each in self.state.present.values() if may(each)} | {each.load for each in unwanted}
        return self.stop(unwanted, "abandoned") if fits(self.state, self.capacity, target, gone) else []

    def _preload(self, now: float) -> list[Effect]:
        """Only into room that nobody uses or waits for."""
        effects: list[Effect] = []
        for model in list(self.state.preloads) if not self.state.line else ():
            if any(each.counts for each in self.state.of(model)):
                del self.state.preloads[model]
            else:
                effects += self.preload(model, now)
        return effects

    def _has_free_room(self, model: str) -> bool:
        return fits(self.state, self.capacity, model, ())

    def _estimates(self, requests: list[Request], now: float) -> list[float]:
        return explain.estimate_side_by_side(self.state, self.turns, requests, now)

    def blocked(self, request: Request, now: float) -> Blocked:
        chosen = self.chosen.get(request.model, ())
        return explain.blocked_in_fifo(self.state, self.turns, chosen, request, now)
