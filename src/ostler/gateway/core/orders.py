"""What people and the hub ask of the gateway as a whole."""

from typing import TYPE_CHECKING

from ostler.gateway.core import refusals
from ostler.gateway.core.effects import Effect, Unloaded
from ostler.gateway.core.events import (
    ConfigChanged,
    ModelFound,
    PreloadAsked,
    ShutdownAsked,
    UnloadAsked,
    YieldAsked,
)
from ostler.gateway.core.models import Catalogue
from ostler.gateway.core.state import LOADING, READY, STOPPING, Instance, Unloading

if TYPE_CHECKING:
    from ostler.gateway.core.machine import Machine

Order = ModelFound | UnloadAsked | PreloadAsked | YieldAsked | ConfigChanged | ShutdownAsked


def obey(machine: "Machine", order: Order, now: float) -> list[Effect]:
    match order:
        case ModelFound():
            return _found(machine, order, now)
        case UnloadAsked():
            return _unload(machine, order, now)
        case PreloadAsked():
            return _preload(machine, order.models, now)
        case YieldAsked():
            return _yield(machine, order.model, now)
        case ConfigChanged():
            return _configure(machine, Catalogue(order.config), now)
        case ShutdownAsked():
            return _shut_down(machine, now)


def _found(machine: "Machine", found: ModelFound, now: float) -> list[Effect]:
    state = machine.state
    recipe = state.catalogue.recipes.get(found.model)
    if found.model in state.present:
        return []
    instance = state.find(found.model, found.digest, found.load, now)
    unwanted = "removed" if recipe is None else "changed" if recipe.digest != found.digest else ""
    why = "shutdown" if state.closing else unwanted
    effects = leave(machine, instance, why, now) if why else []
    return effects + machine.settle(now)


def _preload(machine: "Machine", models: list[str], now: float) -> list[Effect]:
    if machine.state.closing:
        return []
    names = machine.state.catalogue.names
    machine.state.preloads.update((names[model], None) for model in models if model in names)
    return machine.settle(now)


def _unload(machine: "Machine", asked: UnloadAsked, now: float) -> list[Effect]:
    state = machine.state
    known = [state.catalogue.names.get(model, model) for model in asked.models]
    models = list(dict.fromkeys(known)) if known else [*state.catalogue.recipes, *state.present]
    effects: list[Effect] = []
    for model in models:
        state.preloads.pop(model, None)
        lost = state.waiting_for(model)
        effects += machine.refuse(lost, lambda request: refusals.unloaded(request.id, request.model))
    there = [state.present[model] for model in dict.fromkeys(models) if model in state.present]
    effects += machine.stop([instance for instance in there if instance.phase != STOPPING], "unloaded")
    names = [instance.model for instance in there]
    if names:
        state.unloading.append(Unloading(asked.ref, names, set(names)))
    else:
        effects.append(Unloaded(asked.ref, []))
    return effects + machine.settle(now)


def _yield(machine: "Machine", model: str, now: float) -> list[Effect]:
    """A model that is being loaded for somebody is not idle: the job asks again when it is."""
    instance = machine.state.present.get(model)
    if instance is None or instance.phase == STOPPING or machine.state.catalogue.pinned(model):
        return []
    if instance.phase == READY:
        effects = leave(machine, instance, "yielded", now)
    else:
        effects = [] if instance.waiters else machine.stop([instance], "yielded")
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
    for instance in list(state.present.values()):
        effects += _follow_recipe(machine, instance, now)
    return effects + machine.settle(now)


def _follow_recipe(machine: "Machine", instance: Instance, now: float) -> list[Effect]:
    """A process goes on only with the recipe it was started with; who waits for it waits for the next one."""
    recipe = machine.state.catalogue.recipes.get(instance.model)
    if recipe is not None and recipe.digest == instance.digest:
        if instance.leaving in ("changed", "removed"):
            instance.leaving = ""
            instance.reopen(now)
        return []
    reason = "removed" if recipe is None else "changed"
    if instance.phase == READY:
        return leave(machine, instance, reason, now)
    if instance.phase == LOADING:
        stopped = machine.stop([instance], reason)
        return stopped + machine.back_to_line(list(instance.waiters.values()))
    return []


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
