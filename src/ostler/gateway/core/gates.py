"""Gates: while nobody waits for its room, requests for a ready process need not be asked for one by one. What goes by
is not seen here, so a process counts as serving from when its gate opens until that is closed and drained."""

import sys

from ostler.gateway.core.effects import CloseGate, Effect, OpenGate
from ostler.gateway.core.events import GateDrained, GateUsed
from ostler.gateway.core.eviction import may_go
from ostler.gateway.core.state import CLOSING, OPEN, READY, SHUT, Instance, State


def tend(state: State) -> list[Effect]:
    """Open and close what should be."""
    effects: list[Effect] = []
    want_room = state.want_room()
    for instance in state.present.values():
        if instance.phase != READY:
            continue
        wanted = may_be_open(state, instance, want_room)
        if wanted and instance.gate == SHUT:
            instance.gate = OPEN
            effects.append(OpenGate(instance.load))
        elif not wanted and instance.gate == OPEN:
            instance.gate = CLOSING
            effects.append(CloseGate(instance.load))
    return effects


def may_be_open(state: State, instance: Instance, want_room: list[str]) -> bool:
    """A limit can only be kept by counting every request."""
    if not instance.open or instance.limit < sys.maxsize:
        return False
    return not any(may_go(state, instance, target) for target in want_room)


def used(state: State, event: GateUsed, now: float) -> list[Effect]:
    instance = state.present.get(event.load)
    if instance is None:
        return []
    if event.arrived:
        state.learnt[instance.model].arrived(now, event.arrived)
    if instance.gate != SHUT:
        instance.through_gate = event.in_flight
        instance.last_use = now
    return []


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
