"""What a request waits for, found with the same predicates by which it is decided."""

from collections import Counter
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import msgspec

from ostler.gateway.core import growth
from ostler.gateway.core.eviction import Capacity, Policy, drain_s, fits, may_go, may_go_now
from ostler.gateway.core.refusals import NOWHERE_S
from ostler.gateway.core.state import AWAY, HERE, IN_FLIGHT, LOADING, MISSED, READY, STOPPING, Instance, Request, State

if TYPE_CHECKING:
    from ostler.gateway.core.turns import Turns

NOTHING = "nothing"
"""It could go on. Never seen between two events."""


class Blocked(msgspec.Struct):
    """What is in the way, and of whom."""

    kind: str
    by: list[str] = []
    until: float | None = None


class Place(msgspec.Struct):
    """One who waits."""

    request: int
    model: str
    position: int
    """From 1; 0: its model is being loaded."""
    waited_s: float
    estimate_s: float
    """About how long until it is served, if nothing else comes."""
    overtaken: int
    """Younger requests that were served in the meantime."""


def not_queued(state: State, request: Request, now: float) -> str:
    if request.place == IN_FLIGHT or request.on is None:
        return f"{request.model!r} serves it."
    so_far_s, usual_s = now - request.on.began, request.on.expected_s
    return f"{request.model!r} is being loaded: {so_far_s:.0f} s so far, of about {usual_s:.0f} s."


def blocked_in_serial(state: State, capacity: Capacity, request: Request, now: float) -> Blocked:
    serving = [other for other in state.requests.values() if other.place == IN_FLIGHT]
    if serving:
        return Blocked("turn", [serving[0].model])
    if busy := [load.model for load in state.loads.values() if load.waiters]:
        return Blocked("loading", busy)
    first = next(iter(state.waiting.values()))
    if first is not request:
        return Blocked("order", [first.model])
    if own := [each for each in state.of(request.model) if each.home != MISSED]:
        return _blocked_by_itself(own, now)
    seen = state.learnt[request.model]
    if now < seen.held_until:
        return Blocked("held", until=seen.held_until)
    return Blocked(NOTHING) if capacity.fits(request.model, list(state.present), {}) else _no_room(capacity, request)


def blocked_in_fifo(state: State, turns: "Turns", chosen: Collection[int], request: Request, now: float) -> Blocked:
    """`chosen` are the processes that make room for the request's model as soon as their gates have drained."""
    target = request.model
    if not state.lacks_process(target):
        blocked = _blocked_by_itself(state.of(target), now)
        return _full(state, turns, target, now) if blocked.kind == "limit" else blocked
    seen = state.learnt[target]
    if now < seen.held_until:
        return Blocked("held", until=seen.held_until)
    if chosen:
        return Blocked("draining", sorted({state.present[load].model for load in chosen}))
    gone = {each.load for each in state.present.values() if may_go_now(state, turns.policy, each, target, now)}
    if fits(state, turns.capacity, target, gone):
        others = [other for other in turns.promises if other != target]
        return Blocked(NOTHING) if turns.lets_start(target, gone) else Blocked("promised", others)
    for kind, is_such in _in_the_way(state, target):
        such = [each for each in state.present.values() if each.load not in gone and is_such(each)]
        gone |= {each.load for each in such}
        if such and fits(state, turns.capacity, target, gone):
            until = _until(state, turns.policy, kind, such, target, now)
            return Blocked(kind, sorted({each.model for each in such}), until)
    return _no_room(turns.capacity, request)


def _no_room(capacity: Capacity, request: Request) -> Blocked:
    """Whatever else made way."""
    if capacity.could_hold(request.model):
        return Blocked("jobs")
    return Blocked("nowhere", until=request.since + NOWHERE_S)


def _in_the_way(state: State, target: str) -> list[tuple[str, Callable[[Instance], bool]]]:
    """From what gives way soonest to what never does."""

    def free(each: Instance) -> bool:
        return may_go(state, each, target)

    return [
        ("soon wanted", lambda each: free(each) and not each.serves and not state.line.count(each.model)),
        ("stopping", lambda each: each.phase == STOPPING),
        ("serving", free),
        ("leaving", lambda each: each.phase == READY and bool(each.leaving)),
        ("loading", lambda each: each.phase == LOADING),
        ("given away", lambda each: each.promised_to not in ("", target)),
        ("kept", lambda each: True),
    ]


def _until(state: State, policy: Policy, kind: str, such: list[Instance], target: str, now: float) -> float | None:
    if kind != "soon wanted":
        return None
    return max(policy.kept_until(state, each, target, now) for each in such)


def _blocked_by_itself(there: Collection[Instance], now: float) -> Blocked:
    """From what serves soonest to what never will."""
    ready = [each for each in there if each.phase == READY]
    if taking := [each for each in ready if each.open]:
        return Blocked("limit") if all(each.in_flight >= each.limit for each in taking) else Blocked(NOTHING)
    staying = [each for each in ready if each.home == HERE and not (each.leaving or each.closed)]
    if paused := [each.paused_until for each in staying if now < each.paused_until]:
        return Blocked("paused", until=min(paused))
    if away := [each.away_until for each in ready if each.home == AWAY and not each.leaving]:
        return Blocked("away", until=min(away))
    if closed := [each.promised_to for each in ready if each.closed]:
        return Blocked("turn over", closed[:1])
    if leaving := [each.leaving for each in ready if each.leaving]:
        return Blocked("itself leaving", leaving[:1])
    return Blocked("itself stopping" if any(each.phase == STOPPING for each in there) else NOTHING)


def _full(state: State, turns: "Turns", model: str, now: float) -> Blocked:
    """Its processes serve as many as they may: what of another one?"""
    if any(each.phase == LOADING for each in state.of(model)):
        return Blocked("growing")
    found = growth.look(state, turns, model, now)
    return Blocked("limit" if found.verdict in (growth.BEGIN, growth.FULL) else found.verdict, until=found.until)


LEAVING = {
    "changed": "its recipe has changed",
    "removed": "it was taken out of the configuration",
    "yielded": "a job wants its room",
    "idle": "nobody had asked for it for long",
    "shutdown": "the gateway is shutting down",
    "surplus": "the configuration allows fewer processes of it",
    "drained": "its worker takes no new work",
}


def sentence(model: str, blocked: Blocked, now: float) -> str:
    names = ", ".join(repr(name) for name in blocked.by)
    are = "is" if len(blocked.by) == 1 else "are"
    full = f"{model!r} serves as many requests at once as it may"
    left = f"{max(0.0, (blocked.until or now) - now):.0f} s"
    return {
        "turn": f"One request is served at a time, and {names} serves one that came before.",
        "order": f"Requests are served in the order in which they came, and one for {names} is first.",
        "held": f"The room that {model!r} was to have is gone; it is looked for again in {left}.",
        "promised": f"The room there is was promised to {names}, which waited longer.",
        "soon wanted": f"{names} {are} in its room, idle, and likely to be asked for within {left}; then it goes.",
        "stopping": f"{names} {are} in its room and {are} being stopped.",
        "draining": f"{names} {are} about to make way, as soon as the requests there have ended.",
        "serving": f"{names} {are} in its room and {are} serving.",
        "leaving": f"{names} {are} in its room and {are} to be stopped after what {are} being served.",
        "loading": f"{names} {are} being loaded, and there is no room for {model!r} beside.",
        "given away": f"{names} {are} in its room, which was promised to another model.",
        "kept": f"{names} {are} in its room, pinned or persistent; unload it, or change the configuration.",
        "jobs": f"There is no room for {model!r} beside the jobs that run; it is loaded when they leave enough.",
        "nowhere": f"No machine that takes work could hold {model!r}; if none comes within {left} it is refused.",
        "itself stopping": f"{model!r} is being stopped, and is loaded anew after that.",
        "itself leaving": f"{model!r} ends what it serves and is then stopped: {LEAVING.get(''.join(blocked.by))}.",
        "away": f"The worker of {model!r} cannot be reached; in {left} it is loaded elsewhere, where there is room.",
        "turn over": f"{model!r} has had its turn and gives its room to {names}.",
        "paused": f"{model!r} failed a request; whether it still runs is known in {left}.",
        "limit": f"{full}.",
        "growing": f"{full}; another process of it is being loaded.",
        growth.LATER: f"{full}; another process of it is tried in {left}.",
        growth.NOT_WORTH_IT: f"{full}; to load another process would take longer than to wait.",
        growth.OTHERS_WAIT: f"{full}; there is no other process of it while models that have none wait for room.",
        growth.NO_ROOM: f"{full}; there is no room for another process.",
    }.get(blocked.kind, f"{model!r} is about to go on.")


Estimate = Callable[[list[Request]], list[float]]


def places(state: State, estimate: Estimate, now: float) -> list[Place]:
    queued = sorted(state.line.everyone(), key=lambda each: (-state.priority(each.model), each.seq))
    loading = [request for load in state.loads.values() for request in load.waiters.values()]
    ordered = [(0, request) for request in loading] + list(enumerate(queued, 1))
    return [
        Place(
            request=request.id,
            model=request.model,
            position=position,
            waited_s=now - request.since,
            estimate_s=left_s,
            overtaken=state.overtakings.of(request.seq),
        )
        for (position, request), left_s in zip(ordered, estimate([each for _, each in ordered]), strict=True)
    ]


def estimate_side_by_side(state: State, turns: "Turns", requests: list[Request], now: float) -> list[float]:
    """The rest of its load; or its row, served by the processes its model has and will have; or the end of what is
    served in its room now, and then its load there."""
    before: Counter[str] = Counter()

    def left_s(request: Request) -> float:
        if request.on is not None:
            return max(0.0, request.on.began + request.on.expected_s - now)
        before[request.model] += 1
        work_s = before[request.model] * state.learnt[request.model].serve_s
        there = [growth.ready_in(each, now) for each in state.of(request.model) if each.stays and not each.closed]
        return growth.served_in_s(work_s, there) if there else _first_byte_in_s(state, turns, request.model, now)

    return [left_s(request) for request in requests]


def _first_byte_in_s(state: State, turns: "Turns", model: str, now: float) -> float:
    """Of a model that has no process: of those whose room it was promised the last must have drained."""
    promised = turns.promises.get(model, ())
    making_room = [state.present[load] for load in promised] or list(state.present.values())
    drained_in_s = max((drain_s(state, each) for each in making_room), default=0.0)
    loads_s = [state.load_at(model, state.present[load].place, now) for load in promised]
    return drained_in_s + max(loads_s, default=state.load_s(model, now))


def estimate_in_a_row(state: State, requests: list[Request], now: float) -> list[float]:
    """Each after the one before, with a load wherever the model changes."""
    at = max((drain_s(state, each) for each in state.present.values()), default=0.0)
    model = next((each.model for each in state.present.values() if each.phase == READY), "")
    found = []
    for request in requests:
        if request.on is not None:
            at += max(0.0, request.on.began + request.on.expected_s - now)
        elif request.model != model:
            at += state.best_load_s(request.model, now)
        model = request.model
        found.append(at)
        at += state.learnt[model].serve_s
    return found
