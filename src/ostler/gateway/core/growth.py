"""Further processes of a model that serves as many requests at once as it may: begun when waiting costs more than
loading, in room that is free or that is hardly used. Nobody who serves gives way to one."""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ostler.gateway.core.eviction import choose, fits, may_go, may_go_now
from ostler.gateway.core.state import LOADING, Instance, State, limit

if TYPE_CHECKING:
    from ostler.gateway.core.turns import Turns

BEGIN, FULL, LATER = "begin", "full", "later"
NOT_WORTH_IT, OTHERS_WAIT, NO_ROOM = "not worth it", "others wait", "no room"


class Growth(NamedTuple):
    """Whether another process is begun now, and if not, why."""

    verdict: str
    evict: tuple[int, ...] = ()
    until: float | None = None


def look(state: State, turns: "Turns", model: str, now: float) -> Growth:
    there = [each for each in state.of(model) if each.counts]
    recipe, seen = state.catalogue.recipes[model], state.learnt[model]
    staying = [each for each in there if each.stays]
    all_serve = all(each.phase == LOADING or each.open for each in staying)
    if len(there) >= recipe.max_instances or recipe.concurrency is None or not staying or not all_serve:
        return Growth(FULL)
    if now < (until := max(seen.held_until, seen.backoff_until)):
        return Growth(LATER, until=until)
    spared_s = _spared_s(state, model, staying, now)
    if spared_s <= 0:
        return Growth(NOT_WORTH_IT)
    if any(_could_have_room(state, turns, other) for other in state.want_room()):
        return Growth(OTHERS_WAIT)

    def may(each: Instance) -> bool:
        """No gate is closed for a further process."""
        return not each.busy and may_go_now(state, turns.policy, each, model, now)

    candidates = turns.candidates(model, may, now)
    victims = choose(candidates, partial(turns.lets_start, model))
    if victims is None or sum(each.loss for each in candidates if each.load in victims) >= spared_s:
        return Growth(NO_ROOM)
    return Growth(BEGIN, tuple(victims))


def _spared_s(state: State, model: str, staying: list[Instance], now: float) -> float:
    """By how much sooner the last of those who wait would be served if one more process were loaded. Loads under way
    count as if they were done: what they cannot do in the time of another load is what that one is for."""
    seen, recipe = state.learnt[model], state.catalogue.recipes[model]
    work_s = state.count_waiting(model) * seen.serve_s
    ready = [(0.0, each.limit) for each in staying]
    another = (state.load_s(model, now), limit(recipe))
    return served_in_s(work_s, ready) - served_in_s(work_s, [*ready, another])


def _could_have_room(state: State, turns: "Turns", other: str) -> bool:
    """If all that may ever give way to it were gone: what it waits for is not only the jobs."""
    gone = {each.load for each in state.present.values() if may_go(state, each, other)}
    return fits(state, turns.capacity, other, gone)


def ready_in(instance: Instance, now: float) -> tuple[float, int]:
    """In how many seconds it can serve how many at once."""
    left_s = instance.began + instance.expected_s - now if instance.phase == LOADING else 0.0
    return max(0.0, left_s), instance.limit


def served_in_s(work_s: float, processes: Iterable[tuple[float, int]]) -> float:
    """When so many seconds of serving are done by processes that are ready in so many seconds for so many requests."""
    at = places = 0.0
    for begins, more in sorted(processes):
        if places and work_s <= (begins - at) * places:
            break
        work_s -= (begins - at) * places
        at, places = begins, places + more
    return at + work_s / places
