"""What people and the hub ask of the gateway as a whole."""

from typing import TYPE_CHECKING

from ostler.gateway.core import refusals
from ostler.gateway.core.effects import Effect, Unloaded
from ostler.gateway.core.events import (
    ConfigChanged,
    LoadTimesKnown,
    ModelFound,
    PlaceChanged,
    PreloadAsked,
    ShutdownAsked,
    UnloadAsked,
    YieldAsked,
)
from ostler.gateway.core.models import Catalogue
from ostler.gateway.core.state import AWAY, CLOSED, LOADING, MISSED, READY, STOPPING, Instance, Unloading

if TYPE_CHECKING:
    from ostler.gateway.core.machine import Machine

RECIPE = ("changed", "removed", "surplus")
"""Why a process leaves that another configuration would keep."""
DRAINED = "drained"
"""Why a process leaves whose worker does."""
Order = (
    ModelFound | PlaceChanged | LoadTimesKnown | UnloadAsked | PreloadAsked | YieldAsked | ConfigChanged | ShutdownAsked
)


def obey(machine: "Machine", order: Order, now: float) -> list[Effect]:
    match order:
        case ModelFound():
            return _found(machine, order, now)
        case PlaceChanged():
            return _move(machine, order, now)
        case LoadTimesKnown():
            return _know(machine, order)
        case UnloadAsked():
            return _unload(machine, order, now)
        case PreloadAsked():
            return _preload(machine, order.models, now)
        case YieldAsked():
            return _yield(machine, order.load, now)
        case ConfigChanged():
            return _configure(machine, Catalogue(order.config), now)
        case ShutdownAsked():
            return _shut_down(machine, now)


def _found(machine: "Machine", found: ModelFound, now: float) -> list[Effect]:
    state = machine.state
    if found.load in state.present:
        return []
    instance = state.find(found, now)
    unwanted = "shutdown" if state.closing else _unwanted(machine, instance)
    effects = leave(machine, instance, unwanted, now) if unwanted else []
    return effects + machine.settle(now)


def _move(machine: "Machine", moved: PlaceChanged, now: float) -> list[Effect]:
    state = machine.state
    instance = state.present.get(moved.load)
    if instance is None or (moved.home == AWAY and (instance.phase != READY or instance.home == MISSED)):
        return machine.settle(now)  # a load is waited for until its own time is over, wherever it runs
    state.move_home(instance, moved.home, now)
    state.miss(now)  # at once, where a load takes no time
    effects: list[Effect] = []
    if moved.home == CLOSED and instance.phase != STOPPING:
        effects = _leave_with_worker(machine, instance, now)
    elif instance.phase == READY:
        effects = _stay_with_worker(machine, instance, now)
    return effects + machine.settle(now)


def _leave_with_worker(machine: "Machine", instance: Instance, now: float) -> list[Effect]:
    """Those who wait for its load wait for one elsewhere; what was ready is wanted again."""
    waiters = list(instance.waiters.values())
    if not instance.leaving and (instance.phase == READY or instance.preload):
        machine.want_again(instance.model)
    if instance.phase == LOADING:
        instance.leaving = DRAINED
        return machine.stop([instance], DRAINED) + machine.back_to_line(waiters)
    return leave(machine, instance, instance.leaving or DRAINED, now)


def _stay_with_worker(machine: "Machine", instance: Instance, now: float) -> list[Effect]:
    if instance.leaving == DRAINED:
        instance.leaving = ""
        instance.reopen(now)
    unwanted = "" if instance.leaving else _unwanted(machine, instance)
    return leave(machine, instance, unwanted, now) if unwanted else []


def _unwanted(machine: "Machine", instance: Instance) -> str:
    """Why a process should not be there under the present configuration."""
    catalogue, there = machine.state.catalogue, machine.state.of(instance.model)
    recipe = catalogue.recipes.get(instance.model)
    if recipe is None:
        return "removed"
    if recipe.digest != instance.digest:
        return "changed"
    return "surplus" if sum(each.stays for each in there) > recipe.max_instances else ""


def _know(machine: "Machine", known: LoadTimesKnown) -> list[Effect]:
    for model, times in known.times.items():
        if model in machine.state.learnt:
            machine.state.learnt[model].know(times)
    machine.state.learn_loads()
    return []


def _preload(machine: "Machine", models: list[str], now: float) -> list[Effect]:
    if machine.state.closing:
        return []
    names = machine.state.catalogue.names
    machine.state.preloads.update((names[model], None) for model in models if model in names)
    return machine.settle(now)


def _unload(machine: "Machine", asked: UnloadAsked, now: float) -> list[Effect]:
    state = machine.state
    known = [state.catalogue.names.get(model, model) for model in asked.models]
    every = [*state.catalogue.recipes, *(each.model for each in state.present.values())]
    models = list(dict.fromkeys(known or every))
    effects: list[Effect] = []
    for model in models:
        state.preloads.pop(model, None)
        lost = state.waiting_for(model)
        effects += machine.refuse(lost, lambda request: refusals.unloaded(request.id, request.model))
    there = [instance for model in models for instance in state.of(model)]
    effects += machine.stop([instance for instance in there if instance.phase != STOPPING], "unloaded")
    if there:
        names = list(dict.fromkeys(instance.model for instance in there))
        state.unloading.append(Unloading(asked.ref, names, {instance.load for instance in there}))
    else:
        effects.append(Unloaded(asked.ref, []))
    return effects + machine.settle(now)


def _yield(machine: "Machine", load: int, now: float) -> list[Effect]:
    """A process that is being loaded for somebody is not idle: the job asks again when it is."""
    instance = machine.state.present.get(load)
    if instance is None or instance.phase == STOPPING or machine.state.is_pinned(instance):
        return []
    if instance.phase == READY:
        effects = leave(machine, instance, "yielded", now)
    else:
        wanted = instance.waiters or machine.state.line.count(instance.model)
        effects = [] if wanted else machine.stop([instance], "yielded")
    return effects + machine.settle(now)


def leave(machine: "Machine", instance: Instance, reason: str, now: float) -> list[Effect]:
    """It takes no new requests, and is stopped when it serves none."""
    instance.leaving = reason
    instance.reopen(now)
    return [] if instance.busy else machine.stop([instance], reason)


def _configure(machine: "Machine", catalogue: Catalogue, now: float) -> list[Effect]:
    state = machine.state
    effects: list[Effect] = []
    vanished = [request for request in state.waiting.values() if request.model not in catalogue.recipes]
    effects += machine.refuse(vanished, lambda request: refusals.removed(request.id, request.model))
    state.configure(catalogue)
    for instance in reversed(list(state.present.values())):
        effects += _follow_recipe(machine, instance, now)
    return effects + machine.settle(now)


def _follow_recipe(machine: "Machine", instance: Instance, now: float) -> list[Effect]:
    """A process goes on only with the recipe it was started with; who waits for it waits for the next one."""
    if instance.leaving in RECIPE:
        instance.leaving = DRAINED if instance.home == CLOSED else ""
        instance.reopen(now)
    unwanted = _unwanted(machine, instance) if instance.stays else ""
    if not unwanted:
        return []
    if instance.phase == READY:
        return leave(machine, instance, unwanted, now)
    stopped = machine.stop([instance], unwanted)
    return stopped + machine.back_to_line(list(instance.waiters.values()))


def _shut_down(machine: "Machine", now: float) -> list[Effect]:
    """Who waits is refused; what is being served ends, and its model after it."""
    state = machine.state
    state.closing = True
    state.preloads.clear()
    effects = machine.refuse(state.waiting.values(), lambda request: refusals.closing(request.id))
    effects += machine.stop(list(state.loads.values()), "shutdown")
    for instance in list(state.present.values()):
        if instance.phase == READY:
            effects += leave(machine, instance, "shutdown", now)
    return effects + machine.settle(now)
