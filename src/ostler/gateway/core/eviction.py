"""Whom to displace to make room for a model: of all sets that suffice, the one whose loss is least."""

import heapq
import math
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import msgspec

from ostler.gateway.core.state import READY, Instance, State

EXACT_UP_TO = 12
"""Candidates among which the best set is found for certain; among more, a good one."""
HORIZON_LOADS = 8.0
"""How far a decision looks ahead, in loads of the target: about as long as the target's turn."""
PATIENCE = 0.85
"""A target that has waited for less than this share of the usual wait can wait a little longer."""
WORTH_KEEPING_FOR = 2.0
"""Requests that an idle model must be expected to receive while it is kept."""
BELIEVED_FOR = 4.0
"""Requests that fail to come, as its rate would have it, until an idle model is no longer expected to receive any."""


class Capacity(Protocol):
    """The room of the fleet. In the hub this is its ledger."""

    def fits(self, target: str, gone: Collection[int], coming: Mapping[int, str], beside: Collection[str] = ()) -> bool:
        """Could one more process of the target be placed if these were gone, and the loads under way (of which model is
        each) had their room, and each of the models `beside` one more process? A load counts once, whether the ledger
        already knows of it or not. More gone is never worse."""
        ...

    def could_hold(self, target: str) -> bool:
        """Is there a machine that takes work and could hold the target, if nothing else were on it?"""
        ...


class Candidate(msgspec.Struct, frozen=True):
    load: int
    loss: float
    last_use: float
    model: str = ""


class Policy(Protocol):
    """What decides among sets that suffice, and what is left alone for a while."""

    def loss(self, state: State, victim: Instance, target: str, now: float) -> float: ...

    def kept_until(self, state: State, resident: Instance, target: str, now: float) -> float:
        """Until when a resident that is idle is not displaced for this target."""
        ...


def turn_ends(state: State, resident: Instance, target: str, waits_since: float, now: float) -> float:
    """Both are loaded once in a round of the two: the longer of the loads is what their swap costs each."""
    swap_s = max(state.load_s(target, now), state.load_s(resident.model, now))
    quantum = state.catalogue.config.quantum
    return max(resident.ready_at, waits_since) + (quantum * swap_s if swap_s else 0.0)


def drain_s(state: State, instance: Instance) -> float:
    """About how long what it serves still takes, if nothing more comes."""
    return state.learnt[instance.model].serve_s if instance.serves else 0.0


def reload_loss(state: State, victim: Instance, horizon_s: float, now: float) -> float:
    """Seconds of reloading × the chance that the process is missed within the horizon: 1 − e^(−arrival rate × horizon).
    Weighed by its eviction cost. A model's first process is missed by all who ask for it, one that is extra only by
    those whom the others cannot serve."""
    seen = state.learnt[victim.model]
    rate = seen.rate(now)
    if rank := state.rank(victim):
        rate = max(0.0, rate - rank * victim.limit / seen.serve_s) if seen.serve_s else 0.0
    chance = 1.0 - math.exp(-rate * horizon_s)
    return state.catalogue.evict_cost(victim.model) * state.load_s(victim.model, now) * chance


class ExpectedLoss:
    def loss(self, state: State, victim: Instance, target: str, now: float) -> float:
        """What its reload would cost before the target's turn is over and it could be back anyway; and for how much
        longer the target waits for its own first byte: the seconds that the turn of one that serves and its drain still
        last, and those by which a load in that place is slower than where it is quickest."""
        first = state.line.first(target)
        lost_s = reload_loss(state, victim, HORIZON_LOADS * state.load_s(target, now), now)
        lost_s += max(0.0, state.load_at(target, victim.place, now) - state.best_load_s(target, now))
        if victim.serves and first is not None:
            lost_s += max(0.0, turn_ends(state, victim, target, first.since, now) - now) + drain_s(state, victim)
        return lost_s

    def kept_until(self, state: State, resident: Instance, target: str, now: float) -> float:
        """An idle model that will be asked for again stays in its turn, as long as the target has not waited for long
        as waits go. That evens out the waits: there are fewer loads, and the longest waits are no longer for it."""
        first, rate = state.line.first(target), state.learnt[resident.model].last_rate
        if first is None or not rate:
            return -math.inf
        patience_ends = first.since + PATIENCE * state.usual_wait_s
        kept_until = min(patience_ends, turn_ends(state, resident, target, first.since, now)) - WORTH_KEEPING_FOR / rate
        return min(kept_until, resident.idle_since + BELIEVED_FOR / rate)


EXPECTED_LOSS = ExpectedLoss()


def may_go(state: State, instance: Instance, target: str) -> bool:
    """Its room could be the target's, if it were idle."""
    return (
        instance.phase == READY
        and not instance.leaving
        and instance.promised_to in ("", target)
        and not is_kept(state, instance, target)
    )


def is_kept(state: State, instance: Instance, target: str) -> bool:
    """Pinned or persistent, whatever the target waits: the model stays, though not every process of it."""
    return state.catalogue.never_evicted_by(target, instance.model) and not state.rank(instance)


def may_go_now(state: State, policy: Policy, instance: Instance, target: str, now: float) -> bool:
    """Its room could be the target's at once. A resident with requests in the queue serves them first, until its turn
    is over."""
    if instance.serves or not may_go(state, instance, target):
        return False
    if instance.closed:
        return True
    return not state.line.count(instance.model) and policy.kept_until(state, instance, target, now) <= now


def fits(state: State, capacity: Capacity, target: str, gone: Collection[int], beside: Collection[str] = ()) -> bool:
    """Groups and sets are constraints, the ledger is capacity: both must hold."""
    staying = [each.model for each in state.present.values() if each.load not in gone]
    if not state.catalogue.may_join(target, [*staying, *beside]):
        return False
    return capacity.fits(target, gone, state.coming(), beside)


def choose(candidates: list[Candidate], suffices: Callable[[Collection[int]], bool]) -> list[int] | None:
    """The set of least loss that suffices; of several the smallest, then the least recently used, then by name. None:
    not even all of them do. `suffices` may not turn false when more are gone."""
    if suffices(()):
        return []
    loads = {candidate.load for candidate in candidates}
    if not candidates or not suffices(loads):
        return None
    candidates = sorted(candidates, key=lambda each: (each.loss, each.last_use, each.model, each.load))
    needed = {each.load for each in candidates if not suffices(loads - {each.load})}
    if suffices(needed):
        return sorted(needed)
    rest = [each for each in candidates if each.load not in needed]
    find = _cheapest if len(rest) <= EXACT_UP_TO else _greedy
    return sorted(needed | find(rest, lambda some: suffices(needed | some)))


def _cheapest(candidates: list[Candidate], suffices: Callable[[set[int]], bool]) -> set[int]:
    """Sets in the order of their loss, each made from a cheaper one; the first that suffices."""

    def entry(chosen: tuple[int, ...]) -> tuple[float, int, float, list[str], tuple[int, ...]]:
        some = [candidates[index] for index in chosen]
        names = sorted(each.model for each in some)
        return sum(each.loss for each in some), len(some), max(each.last_use for each in some), names, chosen

    heap = [entry((0,))]
    while True:
        *_, chosen = heapq.heappop(heap)
        loads = [candidates[index].load for index in chosen]
        if suffices(set(loads)):
            return _spare(loads, suffices)
        if (following := chosen[-1] + 1) < len(candidates):
            heapq.heappush(heap, entry((*chosen, following)))
            heapq.heappush(heap, entry((*chosen[:-1], following)))


def _greedy(candidates: list[Candidate], suffices: Callable[[set[int]], bool]) -> set[int]:
    chosen: list[int] = []
    for candidate in candidates:
        chosen.append(candidate.load)
        if suffices(set(chosen)):
            break
    return _spare(chosen, suffices)


def _spare(chosen: list[int], suffices: Callable[[set[int]], bool]) -> set[int]:
    """Without those that turn out not to be needed, the dearest first."""
    kept = set(chosen)
    for spared in reversed(chosen):
        if suffices(kept - {spared}):
            kept.discard(spared)
    return kept
