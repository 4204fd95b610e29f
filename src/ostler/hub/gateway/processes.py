"""The models' processes, which are jobs on the ledger: started, stopped, found again; and what becomes of them."""

import asyncio
import logging
import re
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from ostler.core import models as ledger_models
from ostler.core.events import CancelRequested, ModelLoad
from ostler.core.events import Event as FleetEvent
from ostler.core.fleet import Fleet, Worker
from ostler.domain import states
from ostler.domain.job import JobSpec
from ostler.domain.records import Changes, TaskRecord
from ostler.gateway.control import Way
from ostler.gateway.core import effects, events
from ostler.gateway.core.refusals import log_of
from ostler.gateway.settings import DIGEST, MODEL, GatewaySettings
from ostler.hub.gateway.instances import FOUND, LOADING, READY, SHUT, STOPPING, Instance, Instances
from ostler.hub.gateway.memory import Memory
from ostler.hub.gateway.spending import Spending
from ostler.hub.ids import new_job_id
from ostler.hub.loop import Loop
from ostler.hub.new_job import new_job

_log = logging.getLogger("ostler.gateway")
LOOPBACK = ("127.0.0.1", "::1", "localhost", "")
EXIT_CODE = re.compile(r"exit code \d+( \(SIG[A-Z0-9+]+\))?\)?")
_decode = msgspec.json.Decoder(JobSpec).decode


class Processes:
    """`became` hears of every instance that is ready, leaves, or is gone; `step` takes what the scheduler must know."""

    def __init__(
        self,
        loop: Loop,
        settings: GatewaySettings,
        instances: Instances,
        memory: Memory,
        spending: Spending,
        became: Callable[[Instance], None],
        step: Callable[[events.Event], None],
    ) -> None:
        self._loop = loop
        self.settings = settings
        self._instances = instances
        self._memory = memory
        self._spending = spending
        self._became = became
        self._step = step
        self._errands: set[asyncio.Task[Any]] = set()
        self._awaited: list[Instance] = []
        """Found, and not seen well yet."""
        self.errors: dict[str, str] = {}
        """Of each model, what went wrong last."""

    # Begin and end

    def start(self, effect: effects.StartLoad) -> None:
        recipe = self.settings.models[effect.model]
        job_id = f"model-{re.sub(r'[^A-Za-z0-9_-]', '-', effect.model)[:60]}-{new_job_id()}"
        instance = Instance(
            job_id=job_id,
            model=effect.model,
            load=effect.load,
            digest=recipe.digest,
            load_timeout_s=recipe.load_timeout_s,
            began=self._loop.now(),
        )
        evicted = [one for load in effect.evict if (one := self._instances.by_load.get(load)) is not None]
        for one in evicted:
            self._leaves(one)
        self._instances.add(instance)
        self._give_time(instance)
        spec = recipe.spec(job_id, self._memory.seen(recipe))
        spec.priority = ledger_models.PRIORITY
        spec.metadata[DIGEST] = recipe.digest
        job = new_job(spec, chosen=False)
        jobs = [one.job_id for one in evicted]
        self._ask(lambda ref: ModelLoad(ref=ref, job=job, evict=jobs, load_s=effect.load_s))

    def _give_time(self, instance: Instance) -> None:
        """From now on, until it is ready. Who gets its room only later has all of it then."""
        if instance.timer is not None:
            instance.timer.cancel()
        instance.timer = asyncio.get_running_loop().call_later(instance.load_timeout_s, self._too_late, instance)

    def _too_late(self, instance: Instance) -> None:
        if instance.phase not in (LOADING, FOUND):
            return
        if instance.attempt:
            instance.error = f"it was not ready within {instance.load_timeout_s:g} s"
        self._cancel(instance, f"not ready within {instance.load_timeout_s:g} s")

    def stop(self, load: int, reason: str) -> None:
        instance = self._instances.by_load.get(load)
        if instance is None:
            self._soon(events.Stopped(load))
        else:
            instance.unloaded = reason == "unloaded"
            self._leaves(instance)
            self._cancel(instance, reason)

    def stop_found(self, names: list[str]) -> list[Instance]:
        """Those of an earlier hub that are not well, and of which the scheduler has not heard; of all models if none is
        named."""
        found = [one for one in self._instances.all() if one.phase == FOUND and (not names or one.model in names)]
        for instance in found:
            instance.is_gone = asyncio.Event()
            self.stop(instance.load, "unloaded")
        return found

    def _leaves(self, instance: Instance) -> None:
        if instance.phase == LOADING:
            self._spending.load_ended(instance)
        instance.phase, instance.gate = STOPPING, SHUT
        if instance.timer is not None:
            instance.timer.cancel()
        self._became(instance)

    def _cancel(self, instance: Instance, reason: str) -> None:
        self._ask(lambda ref: CancelRequested(ref=ref, job_id=instance.job_id, reason=reason))

    # What the ledger says

    def saw(self, changes: Changes) -> None:
        for task in changes.tasks:
            instance = self._instances.by_job.get(task.job_id)
            if instance is not None:
                self._look_at(instance, task)
        for attempt in changes.attempts:
            instance = self._instances.by_job.get(attempt.job_id)
            if instance is not None:
                if attempt.attempt == instance.attempt:
                    instance.outcome = attempt.state
                self._memory.took(self._loop.fleet, instance, attempt)
                self._look_for_end(instance)
        self._look_for_found()

    def _look_at(self, instance: Instance, task: TaskRecord) -> None:
        if task.attempt and task.attempt != instance.attempt and instance.phase == LOADING:
            self._give_time(instance)
        instance.attempt, instance.worker = task.attempt or instance.attempt, task.worker or instance.worker
        if task.state == states.RUNNING:
            self._spending.begins(instance)
        if task.state in states.TERMINAL:
            instance.error = instance.error or _without_log(task.reason)
            instance.has_ended, instance.ended_as = True, task.state
            self._look_for_end(instance)
        elif task.health == "healthy" and instance.phase in (LOADING, FOUND):
            asyncio.get_running_loop().call_soon(self._is_healthy, instance)

    def _look_for_end(self, instance: Instance) -> None:
        if instance.has_ended and ledger_models.holder(self._loop.fleet, instance.job_id) is None:
            asyncio.get_running_loop().call_soon(self._gone, instance)

    def _gone(self, instance: Instance) -> None:
        """Its process has ended, and its room is free."""
        if instance.job_id not in self._instances.by_job:
            return
        was, instance.phase = instance.phase, STOPPING
        for timer in (instance.timer, instance.idle_timer):
            if timer is not None:
                timer.cancel()
        self._instances.drop(instance)
        if instance.is_gone is not None:
            instance.is_gone.set()
        if was == LOADING:
            self._spending.load_ended(instance)
        is_failure = was in (LOADING, READY) and not instance.is_lost
        if is_failure:
            self._went_wrong(instance)
        self._became(instance)
        if was == LOADING:
            no_room = not instance.attempt or instance.is_lost
            error = "" if no_room else instance.error or "it did not start"
            self._step(events.LoadDone(instance.load, error, no_room=no_room))
        else:
            error = (instance.error or "it ended") if is_failure else ""
            self._step(events.Stopped(instance.load, error, lost=instance.is_lost))
        if was == FOUND and instance.is_lost:
            self._step(events.PreloadAsked([instance.model]))  # the scheduler has not heard of it

    def _went_wrong(self, instance: Instance) -> None:
        """What viewers of the models see. The log may hold secrets, and is shown by its own command."""
        self.errors[instance.model] = f"{instance.error or 'it ended'}; {log_of(instance.model)}"

    def _is_healthy(self, instance: Instance) -> None:
        held = ledger_models.holder(self._loop.fleet, instance.job_id)
        if held is None or not held.port or instance.phase not in (LOADING, FOUND) or instance.host:
            return
        instance.host, instance.port = "127.0.0.1", held.port
        if not is_here(self._loop.fleet.workers[held.worker_id]):
            instance.way = Way(tunnel=True, worker=held.worker_id)
        if instance.timer is not None:
            instance.timer.cancel()
        self._spending.begins(instance)
        if instance.phase == LOADING:
            self._spending.load_ended(instance)
        was, instance.phase = instance.phase, READY
        instance.ready = instance.last_use = self._loop.now()
        self.errors.pop(instance.model, None)
        self._became(instance)
        if was == FOUND:
            self._step(events.ModelFound(instance.model, instance.digest, instance.load, instance.worker))
        else:
            self._step(events.LoadDone(instance.load, place=instance.worker))

    # Those of an earlier hub

    async def adopt_all(self) -> None:
        found = await self._loop.look(lambda fleet, _: _live_models(fleet))
        specs = await self._loop.read(lambda ledger: ledger.specs(found)) if found else {}
        for number, job_id in enumerate(found, 1):
            self._adopt(job_id, specs[job_id], -number)

    def _adopt(self, job_id: str, spec: bytes, load: int) -> None:
        model, digest = _what_runs(spec)
        recipe = self.settings.models.get(model)
        if recipe is None or recipe.digest != digest:
            reason = "it is not wanted any more"
            self._ask(lambda ref: CancelRequested(ref=ref, job_id=job_id, reason=reason))
            return
        limit_s = recipe.load_timeout_s
        instance = Instance(job_id=job_id, model=model, load=load, digest=digest, load_timeout_s=limit_s, phase=FOUND)
        self._instances.add(instance)
        self._give_time(instance)
        held = ledger_models.holder(self._loop.fleet, job_id)
        if held is not None:
            instance.attempt, instance.worker = held.id, held.worker_id
        self._awaited.append(instance)
        self._look_for_found()

    def _look_for_found(self) -> None:
        """Where a found process listens is known only when its worker is back, which changes nothing on the ledger."""
        for instance in self._awaited:
            task = self._loop.fleet.find_task(instance.job_id)
            held = ledger_models.holder(self._loop.fleet, instance.job_id)
            if task is not None and task.health == "healthy" and held is not None and held.port:
                asyncio.get_running_loop().call_soon(self._is_healthy, instance)
        self._awaited = [one for one in self._awaited if one.phase == FOUND and not one.host]

    # Errands

    def _ask(self, make: Callable[[int], FleetEvent]) -> None:
        self._send(self._loop.ask_any(make))

    def _send(self, errand: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._came_back)

    def _came_back(self, task: "asyncio.Task[Any]") -> None:
        self._errands.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the gateway could not do what it decided: %s", error)

    def _soon(self, event: events.Event) -> None:
        """An answer of the world comes after the step that asked for it."""
        asyncio.get_running_loop().call_soon(self._step, event)


def _without_log(reason: str) -> str:
    """A worker may put the last line of the log after an exit code. Callers never see a line of the log."""
    found = EXIT_CODE.search(reason)
    return reason[: found.end()] if found is not None else reason


def is_here(worker: Worker) -> bool:
    """On the hub's own machine. What comes through a proxy on it has a local address as well, and another name."""
    return worker.address in LOOPBACK and worker.capabilities.hostname in ("", socket.gethostname())


def _what_runs(stored: bytes) -> tuple[str, str]:
    """Of a model's job: the model, and the digest of its recipe."""
    metadata = _decode(stored).metadata
    return str(metadata.get(MODEL, "")), str(metadata.get(DIGEST, ""))


def _live_models(fleet: Fleet) -> list[str]:
    return [job.id for job in fleet.jobs.values() if job.terms.model and job.state in states.LIVE]
