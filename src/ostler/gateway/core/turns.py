"""Whose turn is over. A resident serves on while another model waits, but not for ever: when the waiting model has
waited for `quantum` times what the swap costs, the residents whose loss is least are promised to it; each of them takes
no new requests once it had that long a turn itself, drains, and goes.

A bound in seconds would fall below the time a round of all models takes when many wait, and then nothing but swapping
is done; one in units of the swap keeps the loss below 1 / (1 + quantum).
"""

import math
from collections.abc import Callable, Collection

from ostler.gateway.core.eviction import Candidate, Capacity, Policy, choose, fits, may_go, turn_ends
from ostler.gateway.core.state import Instance, State


class Turns:
    def __init__(self, state: State, capacity: Capacity, policy: Policy) -> None:
        self._state = state
        self.capacity = capacity
        self.policy = policy
        self.promises: dict[str, tuple[str, ...]] = {}
        """To each model whose time has come: the residents that make room for it. Nobody else may use that room."""

    def candidates(self, target: str, may: Callable[[Instance], bool], now: float) -> list[Candidate]:
        return [
            Candidate(each.model, self.policy.loss(self._state, each, target, now), each.last_use)
            for each in self._state.present.values()
            if may(each)
        ]

    def lets_start(self, target: str, gone: Collection[str]) -> bool:
        """With these gone the target has room now, and what was promised to others stays possible."""
        return fits(self._state, self.capacity, target, gone) and all(
            fits(self._state, self.capacity, other, {*promised, *gone}, (target,))
            for other, promised in self.promises.items()
            if other != target
        )

    def take(self, target: str, now: float) -> None:
        """The target waits: see to it that it does not wait for ever."""
        state, first = self._state, self._state.line.first(target)
        quantum = state.catalogue.config.quantum
        if quantum == math.inf or first is None:
            return
        if target not in self.promises:
            ripe = first.since + quantum * state.learnt[target].load_s
            if now < ripe:
                return state.look_again(ripe)
            self._promise(target, now)
        for model in self.promises.get(target, ()):
            resident = state.present[model]
            ends = turn_ends(state, resident, target, first.since)
            if ends <= now or resident.closed:
                resident.closed = True
                resident.reopen(now)
            else:
                state.look_again(ends)

    def _promise(self, target: str, now: float) -> None:
        catalogue = self._state.catalogue
        candidates = self.candidates(target, lambda each: may_go(catalogue, each, target), now)
        chosen = choose(candidates, lambda gone: self._possible(target, gone))
        if chosen:
            self.promises[target] = tuple(chosen)
            for model in chosen:
                self._state.present[model].promised_to = target

    def _possible(self, target: str, gone: Collection[str]) -> bool:
        """Once these and all others that were promised are gone, there is room for the target beside all that were
        promised room."""
        waiting = [other for other in self.promises if other != target]
        going = {*gone, *(model for other in waiting for model in self.promises[other])}
        return fits(self._state, self.capacity, target, going, waiting) and all(
            fits(self._state, self.capacity, other, going, [target, *(each for each in waiting if each != other)])
            for other in waiting
        )

    def drop(self, target: str, now: float) -> None:
        """The target needs no promise any more."""
        for model in self.promises.pop(target, ()):
            self._release(model, target, now)

    def _release(self, model: str, target: str, now: float) -> None:
        resident = self._state.present.get(model)
        if resident is not None and resident.promised_to == target:
            resident.promised_to, resident.closed = "", False
            resident.reopen(now)

    def drop_stale(self, now: float) -> None:
        """Forget promises to models that wait no more, and those that can no longer be kept."""
        for target, models in list(self.promises.items()):
            kept = tuple(model for model in models if self._can_keep(model, target))
            for model in models:
                if model not in kept:
                    self._release(model, target, now)
            self.promises[target] = kept
            waits = self._state.line.first(target) is not None and target not in self._state.present
            if not kept or not waits or not self._possible(target, kept):
                self.drop(target, now)

    def _can_keep(self, model: str, target: str) -> bool:
        resident = self._state.present.get(model)
        if resident is None or resident.promised_to != target:
            return False
        return may_go(self._state.catalogue, resident, target)
