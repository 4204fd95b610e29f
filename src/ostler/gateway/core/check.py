"""Every invariant of the two schedulers, in one place. Run after every event in tests and in the simulator."""

import math
from collections import Counter
from collections.abc import Collection, Iterable

from ostler.gateway.core import growth
from ostler.gateway.core.effects import Effect, Grant, StartLoad
from ostler.gateway.core.eviction import fits, is_kept, may_go_now
from ostler.gateway.core.explain import NOTHING, Blocked
from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.gates import may_be_open
from ostler.gateway.core.machine import Machine
from ostler.gateway.core.orders import DRAINED
from ostler.gateway.core.serial import Serial
from ostler.gateway.core.state import (
    AWAY,
    CLOSED,
    CLOSING,
    HERE,
    IN_FLIGHT,
    LOADING,
    MISSED,
    OPEN,
    QUEUED,
    READY,
    SHUT,
    STOPPING,
    WAITING_FOR_LOAD,
    Instance,
    State,
)


class InvariantBroken(AssertionError):
    """The gateway contradicts itself. Always a bug."""


def check(machine: Machine, now: float, effects: Collection[Effect] = ()) -> None:
    """Raise InvariantBroken with the first contradiction found. `effects` are those of the last step."""
    state = machine.state
    _requests_are_in_one_place(state)
    _indexes_agree(state)
    for instance in state.present.values():
        _instance_agrees_with_itself(state, instance)
    _nobody_waits_in_vain(state, now)
    _grants_keep_to_the_limit(state, effects)
    if isinstance(machine, Serial):
        _one_at_a_time(state)
    if isinstance(machine, Fifo):
        _no_model_has_too_many_processes(state)
        _gates_are_open_for_nobody_elses_room(machine)
        _promises_and_residents_agree(machine)
        _loads_do_not_collide(state, effects)
    _the_queue_does_not_stand_still(machine, now)


def _need(truth: bool, broken: str) -> None:
    if not truth:
        raise InvariantBroken(broken)


def _requests_are_in_one_place(state: State) -> None:
    queued = {request.id for request in state.line.everyone()}
    loading = {request for load in state.loads.values() for request in load.waiters}
    flying = {request.id for request in state.requests.values() if request.place == IN_FLIGHT}
    _need(len(queued) + len(loading) + len(flying) == len(state.requests), "a request is in two places, or in none")
    _need(queued | loading | flying == state.requests.keys(), "a request is in no place")
    for request in state.requests.values():
        place = QUEUED if request.id in queued else WAITING_FOR_LOAD if request.id in loading else IN_FLIGHT
        _need(request.place == place, f"request {request.id} says {request.place!r} and is {place!r}")
        _need((request.on is None) == (place == QUEUED), f"request {request.id} is {place!r} of the wrong process")
    _need(state.waiting.keys() == queued | loading, "those who wait are not those in the line and at loads")
    arrivals = [request.seq for request in state.waiting.values()]
    _need(arrivals == sorted(arrivals), "those who wait are out of order")
    _need(state.flights == len(flying), "the count of requests in flight is wrong")
    for model, row in state.line.rows.items():
        seqs = [request.seq for request in row.values()]
        _need(bool(row) and seqs == sorted(seqs), f"the row of {model} is empty or out of order")


def _indexes_agree(state: State) -> None:
    """What is kept to be found quickly is what could be derived."""
    for model in {instance.model for instance in state.present.values()}:
        there = [instance for instance in state.present.values() if instance.model == model]
        _need(
            {*map(id, state.of(model))} == {*map(id, there)}, f"the processes of {model} are not those that are there"
        )
        ready = [instance.ready_at for instance in state.of(model) if instance.phase == READY]
        _need(ready == sorted(ready), f"the processes of {model} are not in the order in which they became ready")
    per_model = Counter(request.model for request in state.requests.values())
    _need(state.per_model == per_model, "the counts of each model's requests are wrong")
    flying = (request for request in state.requests.values() if request.place == IN_FLIGHT)
    served_for = Counter((request.model, request.user) for request in flying)
    _need(state.served_for == served_for, "the counts of what is served for each user are wrong")
    for model, row in state.line.rows.items():
        firsts = {request.user: request for request in reversed(row.values())}
        _need({*map(id, firsts.values())} == {*map(id, state.line.firsts(model))}, f"the users in the row of {model}")


def _instance_agrees_with_itself(state: State, instance: Instance) -> None:
    name = instance.model
    served = sum(request.on is instance and request.place == IN_FLIGHT for request in state.requests.values())
    _need(instance.in_flight == served, f"{name}: {instance.in_flight} in flight, and {served} requests say so")
    _need(instance.phase in (LOADING, READY, STOPPING), f"{name} is {instance.phase} and still here")
    _need((state.loads.get(instance.load) is instance) == (instance.phase == LOADING), f"{name}: its load is not known")
    _need(not instance.waiters or instance.phase == LOADING, f"{name} is {instance.phase}, and somebody waits for it")
    _need(served == 0 or instance.phase != LOADING, f"{name} serves before it is loaded")
    evicted = instance.phase == STOPPING and instance.ended_by == "evicted"
    _need(not (evicted and served), f"{name} was evicted while it served")
    takes = instance.phase == READY and instance.home == HERE and not instance.leaving and not instance.closed
    _need(takes or not instance.open, f"{name} takes requests and should not")
    _need(takes <= (instance.open or instance.paused_until > -math.inf), f"{name} takes no requests and should")
    _need(not instance.leaving or instance.phase != READY or instance.busy, f"{name} is to leave, is idle, and stays")
    _need(instance.gate == SHUT or instance.phase == READY, f"{name} has a gate and is {instance.phase}")
    waited = sum(instance.waited.values())
    _need(waited >= len(instance.waiters), f"{name}: {waited} requests waited for its load, and more do")
    _home_agrees(state, instance)


def _home_agrees(state: State, instance: Instance) -> None:
    """Whether its worker takes work is known in one way only, and decides whether the process stays."""
    name, home, is_ready = instance.model, instance.home, instance.phase == READY
    _need(home in (HERE, AWAY, MISSED, CLOSED), f"the worker of {name} is {home}")
    _need(home in (HERE, CLOSED) or instance.phase != LOADING, f"{name} is loaded where nobody can be reached")
    awaited = state.away.get(instance.load) is instance
    _need(awaited == (home == AWAY and is_ready), f"it is not known that the worker of {name} is waited for")
    _need(home != CLOSED or not is_ready or bool(instance.leaving), f"the worker of {name} leaves, and it stays")
    _need(home == CLOSED or not is_ready or instance.leaving != DRAINED, f"{name} leaves a worker that stays")
    _need(home != MISSED or not instance.busy, f"{name} was given up while it served")


def _nobody_waits_in_vain(state: State, now: float) -> None:
    for request in state.waiting.values():
        _need(request.model in state.catalogue.recipes, f"somebody waits for {request.model}, which is not configured")
        hopeless = now < state.learnt[request.model].backoff_until
        hopeless = hopeless and not any(each.stays for each in state.of(request.model))
        _need(not hopeless, f"somebody waits for {request.model}, which backs off")
    _need(not state.closing or not (state.waiting or state.loads), "somebody waits though the gateway shuts down")


def _grants_keep_to_the_limit(state: State, effects: Iterable[Effect]) -> None:
    """What was granted under another configuration may be more."""
    for load in {effect.load for effect in effects if isinstance(effect, Grant)}:
        instance = state.present.get(load)
        kept = instance is None or instance.in_flight <= instance.limit
        _need(kept, f"process {load} was granted more requests at once than it may serve")


def _one_at_a_time(state: State) -> None:
    there = [instance.model for instance in state.present.values() if instance.phase != STOPPING]
    _need(len(there) <= 1, f"{there} are in memory at once")
    _need(state.flights <= 1, "more than one request is in flight")
    at_loads = sum(len(load.waiters) for load in state.loads.values())
    _need(at_loads + state.flights <= 1, "more than one request has its turn")


def _no_model_has_too_many_processes(state: State) -> None:
    for model, recipe in state.catalogue.recipes.items():
        staying = sum(instance.stays for instance in state.of(model))
        _need(staying <= recipe.max_instances, f"{model} has {staying} processes, more than it may have")


def _gates_are_open_for_nobody_elses_room(machine: Fifo) -> None:
    state = machine.state
    victims = machine.victims()
    for instance in state.present.values():
        _need(instance.gate == SHUT or machine.has_gates, f"{instance.model} has a gate, and there are none")
        may = instance.gate != OPEN or may_be_open(instance, victims)
        _need(may, f"the gate of {instance.model} is open, and should not be")


def _promises_and_residents_agree(machine: Fifo) -> None:
    state, promises = machine.state, machine.turns.promises
    for target, loads in promises.items():
        _need(bool(loads) and state.line.first(target) is not None, f"{target} has a promise and does not wait")
        for load in loads:
            kept = load in state.present and state.present[load].promised_to == target
            _need(kept, f"process {load} was promised to {target} and knows nothing of it")
    for instance in state.present.values():
        told = not instance.promised_to or instance.load in promises.get(instance.promised_to, ())
        _need(told, f"{instance.model} is kept for {instance.promised_to}, which does not know")
        _need(not instance.closed or bool(instance.promised_to), f"{instance.model} is closed for nobody")
        _need(not instance.promised_to or instance.phase == READY, f"{instance.model} is promised and not ready")


def _loads_do_not_collide(state: State, effects: Iterable[Effect]) -> None:
    for effect in effects:
        if not isinstance(effect, StartLoad) or effect.load not in state.loads:
            continue
        beside = [
            other.model
            for other in state.present.values()
            if other.model != effect.model and (other.phase != LOADING or other.load < effect.load)
            if other.load not in effect.evict
        ]
        _need(state.catalogue.may_join(effect.model, beside), f"{effect.model} may not be loaded beside {beside}")


def _the_queue_does_not_stand_still(machine: Machine, now: float) -> None:
    for model in machine.state.line.rows:
        first = machine.state.line.first(model)
        assert first is not None
        blocked = machine.blocked(first, now)
        _need(blocked.kind != NOTHING, f"{model} waits for nothing")
        _need(_is_true(machine, model, blocked, now), f"{model} waits for {blocked.kind!r} of {blocked.by}: not so")
        if isinstance(machine, Fifo):
            _its_turn_will_come(machine, model, blocked, now)


def _is_true(machine: Machine, model: str, blocked: Blocked, now: float) -> bool:
    """What is said to be in the way is under way, or time is waited for, or room that is not the gateway's."""
    state = machine.state
    by = [each for name in blocked.by for each in state.of(name)]
    own, due = state.of(model), machine.due()
    match blocked.kind:
        case "serving":
            return any(each.serves or state.line.count(each.model) for each in by)
        case "leaving":
            return any(each.busy for each in by)
        case "draining":
            return any(each.gate == CLOSING for each in by)
        case "limit" | growth.NOT_WORTH_IT | growth.OTHERS_WAIT | growth.NO_ROOM | growth.LATER | "itself leaving":
            return any(each.busy for each in own)
        case "growing":
            return any(each.phase == LOADING for each in own)
        case "away":
            soon = blocked.until is not None and due is not None and now < blocked.until and due <= blocked.until
            return soon or any(each.busy for each in own)
        case "turn":
            return state.flights > 0
        case "loading":
            return any(each.phase == LOADING for each in by)
        case "stopping" | "itself stopping":
            return any(each.phase == STOPPING for each in by or own)
        case "order":
            return next(iter(state.waiting.values())).model in blocked.by
        case "promised" | "given away" | "turn over":
            return isinstance(machine, Fifo) and bool(machine.turns.promises)
        case "held" | "paused" | "soon wanted" | "nowhere":
            return blocked.until is not None and blocked.until > now and due is not None and due <= blocked.until
        case "kept":
            return any(is_kept(state, each, model) for each in by)
        case "jobs":
            return not machine.capacity.fits(model, list(state.present), {})
        case _:
            return False


def _its_turn_will_come(machine: Fifo, model: str, blocked: Blocked, now: float) -> None:
    """From the facts alone: an idle resident that nothing protects gives way at once, a serving one after its turn."""
    state, first = machine.state, machine.state.line.first(model)
    if not state.lacks_process(model) or blocked.kind == "held" or machine.turns.promises:
        return
    ready = [each for each in state.present.values() if each.phase == READY and not each.leaving]
    ready = [each for each in ready if not is_kept(state, each, model)]
    idle = [each for each in ready if may_go_now(state, machine.turns.policy, each, model, now)]
    _need(
        model in machine.chosen or not fits(state, machine.capacity, model, {each.load for each in idle}),
        f"there is room for {model}",
    )
    quantum, stopping = state.catalogue.config.quantum, any(each.phase == STOPPING for each in state.present.values())
    if quantum < math.inf and first is not None and blocked.kind == "serving" and not stopping:
        due, ripe = machine.due(), first.since + quantum * state.load_s(model, now)
        _need(now < ripe and due is not None and due <= ripe, f"{model} has waited for its turn, and none was promised")
