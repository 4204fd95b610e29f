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
        self.promises: dict[str, tuple[int, ...]] = {}
        """To each model whose time has come: the residents that make room for it. Nobody else may use that room."""

    def candidates(self, target: str, may: Callable[[Instance], bool], now: float) -> list[Candidate]:
        return [
            Candidate(each.load, self.policy.loss(self._state, each, target, now), each.last_use, each.model)
            for each in self._state.present.values()
            if may(each)
        ]

    def lets_start(self, target: str, gone: Collection[int]) -> bool:
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
            ripe = first.since + quantum * state.load_s(target, now)
            if now < ripe:
                return state.look_again(ripe)
            self._promise(target, now)
        for load in self.promises.get(target, ()):
            resident = state.present[load]
            ends = turn_ends(state, resident, target, first.since, now)
            if ends <= now or resident.closed:
                resident.closed = True
                resident.reopen(now)
            else:
                state.look_again(ends)

    def _promise(self, target: str, now: float) -> None:
        candidates = self.candidates(target, lambda each: may_go(self._state, each, target), now)
        chosen = choose(candidates, lambda gone: self._possible(target, gone))
        if chosen:
            self.promises[target] = tuple(chosen)
            for load in chosen:
                self._state.present[load].promised_to = target

    def _possible(self, target: str, gone: Collection[int]) -> bool:
        """Once these and all others that were promised are gone, there is room for the target beside all that were
        promised room."""
        waiting = [other for other in self.promises if other != target]
        going = {*gone, *(load for other in waiting for load in self.promises[other])}
        return fits(self._state, self.capacity, target, going, waiting) and all(
            fits(self._state, self.capacity, other, going, [target, *(each for each in waiting if each != other)])
            for other in waiting
        )

    def drop(self, target: str, now: float) -> None:
        """The target needs no promise any more."""
        for load in self.promises.pop(target, ()):
            self._release(load, target, now)

    def _release(self, load: int, target: str, now: float) -> None:
        resident = self._state.present.get(load)
        if resident is not None and resident.promised_to == target:
            resident.promised_to, resident.closed = "", False
            resident.reopen(now)

    def drop_stale(self, now: float) -> None:
        """Forget promises to models that wait no more, and those that can no longer be kept beside the rest."""
        for target in list(self.promises):
            if self._state.line.first(target) is None or not self._state.lacks_process(target):
                self.drop(target, now)
        for target, loads in list(self.promises.items()):
            kept = tuple(load for load in loads if self._can_keep(load, target))
            for load in loads:
                if load not in kept:
                    self._release(load, target, now)
            self.promises[target] = kept
            if not kept or not self._possible(target, kept):
                self.drop(target, now)

    def _can_keep(self, load: int, target: str) -> bool:
        resident = self._state.present.get(load)
        return resident is not None and resident.promised_to == target and may_go(self._state, resident, target)
