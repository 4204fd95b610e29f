"""Gates: requests for a ready process go through its open gate without asking the scheduler.

The relay reports the use of a gate. A process whose gate has no requests by the last report can be chosen to be
evicted. Then its gate closes, and no other. The process is evicted when its gate has drained; a request that came in
between keeps the process, and the choice is made again.
"""

import sys
from collections.abc import Collection

from ostler.gateway.core.effects import CloseGate, Effect, OpenGate, WatchGate
from ostler.gateway.core.events import GateDrained, GateUsed
from ostler.gateway.core.eviction import may_go
from ostler.gateway.core.state import CLOSING, OPEN, READY, SHUT, Instance, State


def tend(state: State, victims: Collection[int]) -> list[Effect]:
    """Open and close what should be. `victims` are chosen to be evicted: their gates close first."""
    effects: list[Effect] = []
    want_room = state.want_room()
    for instance in state.present.values():
        if instance.phase != READY:
            continue
        wanted = may_be_open(instance, victims)
        if wanted and instance.gate == SHUT:
            instance.gate, instance.is_watched = OPEN, False
            effects.append(OpenGate(instance.load))
        elif not wanted and instance.gate == OPEN:
            instance.gate = CLOSING
            effects.append(CloseGate(instance.load))
        is_watched = instance.gate == OPEN and any(may_go(state, instance, target) for target in want_room)
        if instance.gate == OPEN and instance.is_watched != is_watched:
            instance.is_watched = is_watched
            effects.append(WatchGate(instance.load, is_watched))
    return effects


def may_be_open(instance: Instance, victims: Collection[int]) -> bool:
    """A limit can only be kept by counting every request."""
    return instance.open and instance.limit == sys.maxsize and instance.load not in victims


def used(state: State, event: GateUsed, now: float) -> bool:
    """Returns whether the process has begun or ceased to serve."""
    instance = state.present.get(event.load)
    if instance is None:
        return False
    if event.arrived:
        state.learnt[instance.model].arrived(now, event.arrived)
    if instance.gate == SHUT:
        return False
    before, instance.through_gate = instance.serves, event.in_flight
    instance.last_use = now
    return before != instance.serves


def drained(state: State, event: GateDrained, now: float) -> Instance | None:
    """The process whose gate it was. One that was to leave because it was idle stays if it has been asked for since."""
    instance = state.present.get(event.load)
    if instance is None or instance.gate != CLOSING:
        return None
    instance.gate, instance.through_gate = SHUT, 0
    if instance.leaving == "idle" and (instance.in_flight or state.line.count(instance.model)):
        instance.leaving = ""
        instance.reopen(now)
        state.arm(instance)
    return instance
