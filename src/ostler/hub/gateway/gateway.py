"""The gateway's single loop, which is the hub's: what the relay and the ledger say becomes events of the scheduler, and
what it decides becomes jobs and words to the relay. No decision is made here."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from prometheus_client.core import Metric

from ostler.core.effects import AskYield
from ostler.core.events import ModelPriced
from ostler.core.models import in_the_way
from ostler.domain.records import Changes
from ostler.gateway import control
from ostler.gateway.core import effects, events, refusals
from ostler.gateway.core.models import Catalogue
from ostler.gateway.core.scheduler import Scheduler, make
from ostler.gateway.settings import GatewaySettings
from ostler.hub.gateway.capacity import LedgerCapacity
from ostler.hub.gateway.counts import Counts
from ostler.hub.gateway.gates import Gates
from ostler.hub.gateway.instances import OPEN, READY, SHUT, Instance, Instances
from ostler.hub.gateway.link import Link
from ostler.hub.gateway.peers import Peers
from ostler.hub.gateway.processes import Processes
from ostler.hub.loop import Loop
from ostler.hub.relays import Relays

_log = logging.getLogger("ostler.gateway")
IDLE_AFTER_S = 1.0
"""So long after its last request a model's room is offered to jobs: one that is used all the time costs the ledger
nothing."""

LOOK_AT_CALLERS_S = 0.5
MAY_CALL = "caller"
"""The role of the configuration's keys: they open the models, and nothing else."""


class Waiting(msgspec.Struct, frozen=True):
    model: str
    since: float


class Gateway:
    def __init__(
        self,
        loop: Loop,
        relays: Relays,
        settings: GatewaySettings,
        *,
        listen: str,
        spool: Path,
        keys: Callable[[], list[control.KeySetup]],
        log_tail: Callable[[str, int], str],
    ) -> None:
        self._loop = loop
        self._keys = keys
        self.settings = settings
        keys_of_config = [msgspec.structs.replace(key, role=MAY_CALL) for key in settings.keys]
        self._shown = msgspec.structs.replace(settings, keys=keys_of_config)
        self._callers: list[control.KeySetup] = []
        self._callers_timer: asyncio.TimerHandle | None = None
        self.pins: dict[str, bool] = {}
        """Models that were pinned, or unpinned, since the hub began."""
        self.names = Catalogue(settings.config).names
        """The model's name by any of its names."""
        self.instances = Instances()
        self.capacity = LedgerCapacity(loop, settings, self.instances)
        self.scheduler: Scheduler = make(settings.scheduler, settings.config, self.capacity)
        self.link = Link(listen, spool, self._heard, self._relay_began, self._relay_lost)
        self.counts = Counts()
        self.gates = Gates(self.instances, self._has_gate, self.link.say, self._step)
        self.processes = Processes(loop, relays, settings, self.instances, log_tail, self._became, self._step)
        self.peers = Peers(settings)
        self.errors = self.processes.errors
        self.pages: Callable[[control.Asked], None] = lambda asked: None
        self.page_left: Callable[[int], None] = lambda request: None
        self._granted: dict[int, str] = {}
        """Requests that are being served, and by which job."""
        self._waiting: dict[int, Waiting] = {}
        self._used: Instance | None = None
        """Which was granted a request in this step."""
        self._unloads: dict[int, asyncio.Future[list[str]]] = {}
        self._refs = 0
        self._timer: asyncio.TimerHandle | None = None
        self._looks_for_room = False
        self.listens_on: tuple[str, int] | None = None

    def now(self) -> float:
        return self._loop.now()

    # The relay

    def _relay_began(self) -> None:
        self._say_setup()
        for instance in self.instances.by_job.values():
            if instance.phase == READY:
                self.gates.announce(instance)

    def _say_setup(self) -> None:
        self._callers = self._keys()
        self.link.say(self._shown.setup(self._callers))

    def _look_at_callers(self) -> None:
        """Tokens are made, revoked, and expire, of which the last is told by nobody."""
        if self._callers != self._keys():
            self._say_setup()
        self._callers_timer = asyncio.get_running_loop().call_later(LOOK_AT_CALLERS_S, self._look_at_callers)

    def _relay_lost(self) -> None:
        """Its callers have gone with it: those who wait before those who are served, whose places they would get."""
        while self._waiting:
            request, _ = self._waiting.popitem()
            self._step(events.RequestCancelled(request))
        while self._granted:
            request, job_id = self._granted.popitem()
            self._unused(job_id)
            self._step(events.ServeDone(request))
        self.gates.forget_all()

    def _heard(self, message: control.ToHub) -> None:
        match message:
            case control.Hello():
                self.listens_on = (message.host, message.port)
                self.link.stays_at(message.port)
                _log.info("the gateway listens on http://%s:%s/v1", message.host, message.port)
            case control.Arrived():
                self._arrived(message)
            case control.Cancelled():
                self._cancelled(message.request)
            case control.Done():
                self._done(message)
            case control.Used():
                self._was_used(message)
            case control.Drained():
                self._drained(message.instance)
            case control.Asked():
                self.pages(message)
            case _:
                return

    def _arrived(self, message: control.Arrived) -> None:
        peer = self.peers.answer(message)
        if peer is not None:
            self.link.say(peer)
            return
        request = message.request
        self._waiting[request] = Waiting(message.model, self._loop.now())
        if not message.again:
            self._step(events.RequestArrived(request, message.model))
            return
        # It comes from a process that failed, of whose end the scheduler may not have heard: not there again at once.
        now = self._loop.now()
        found = self.scheduler.step(events.RequestArrived(request, message.model), now)
        kept = [one for one in found if not (isinstance(one, effects.Grant) and one.request == request)]
        if len(kept) < len(found):
            kept += self.scheduler.step(events.RequestFailed(request), now)
        self._perform_all(kept)

    def _cancelled(self, request: int) -> None:
        job_id = self._granted.pop(request, None)
        if job_id is not None:
            self._unused(job_id)
            self._step(events.CallerGone(request))
        elif self._waiting.pop(request, None) is not None:
            self._step(events.RequestCancelled(request))
        else:
            self.page_left(request)

    def _done(self, message: control.Done) -> None:
        self.counts.ended(message)
        job_id = self._granted.pop(message.request, None)
        if job_id is None:
            instance = self.instances.by_job.get(message.instance)
            if instance is not None and not message.asked:
                instance.served += 1
                self.gates.one_has_left(instance)
            return
        self._unused(job_id)
        if message.gave_back:
            self._waiting[message.request] = Waiting(message.model, self._loop.now())
            self._step(events.RequestFailed(message.request))
        else:
            self._step(events.ServeDone(message.request))

    def _was_used(self, message: control.Used) -> None:
        instance = self.instances.by_job.get(message.instance)
        if instance is not None and instance.gate != SHUT:
            instance.passing, instance.last_use = message.in_flight, self._loop.now()
            self._look_when_idle(instance)

    def _drained(self, job_id: str) -> None:
        instance = self.instances.by_job.get(job_id)
        if instance is not None:
            self.gates.drained(instance)
            self._look_when_idle(instance)

    # The scheduler

    def _step(self, event: events.Event) -> None:
        self._perform_all(self.scheduler.step(event, self._loop.now()))

    def _perform_all(self, decided: list[effects.Effect]) -> None:
        for effect in decided:
            self._perform(effect)
        self._wake_when_due()
        used, self._used = self._used, None
        if self._waiting:
            self.gates.close_all()
        elif used is not None:
            self.gates.open(used)

    def _wake_when_due(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.scheduler.due()
        if due is not None:
            wait = max(0.001, due - self._loop.now())
            self._timer = asyncio.get_running_loop().call_later(wait, self._step, events.TimePassed())

    def _perform(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Grant():
                self._grant(effect)
            case effects.StartLoad():
                for model in effect.evict:
                    self.counts.stopped(model, "evicted")
                self.processes.start(effect)
            case effects.StopModels():
                for model in effect.models:
                    self.counts.stopped(model, effect.reason)
                    self.processes.stop(model, effect.reason)
            case effects.Refuse():
                self._refuse(effect)
            case effects.Tell():
                self.link.say(control.Tell(effect.request, effect.note))
            case effects.Unloaded():
                future = self._unloads.pop(effect.ref, None)
                if future is not None and not future.done():
                    future.set_result(effect.models)

    def _refuse(self, effect: effects.Refuse) -> None:
        waited = self._waiting.pop(effect.request, None)
        if waited is not None:
            self.counts.refused(waited.model, effect.status)
        self.link.say(control.Refuse(effect.request, effect.status, effect.code, effect.message, effect.retry_after_s))

    def _grant(self, effect: effects.Grant) -> None:
        instance = self.instances.current[effect.model]
        if effect.request < 0:
            self.gates.granted(instance, effect.request)
            return
        waited = self._waiting.pop(effect.request)
        self.counts.waited(effect.model, self._loop.now() - waited.since)
        self._granted[effect.request] = instance.job_id
        instance.busy += 1
        instance.last_use = self._loop.now()
        self._used = instance
        if instance.priced:
            instance.priced = False
            self._loop.post(ModelPriced(job_id=instance.job_id, price_s=None))
        self.link.say(control.Grant(effect.request, instance.job_id, instance.host, instance.port))

    # Use

    def _has_gate(self, model: str) -> bool:
        return self.settings.scheduler == "fifo" and self.settings.models[model].concurrency is None

    def _unused(self, job_id: str) -> None:
        instance = self.instances.by_job.get(job_id)
        if instance is not None:
            instance.busy -= 1
            instance.served += 1
            instance.last_use = self._loop.now()
            self._look_when_idle(instance)

    def _look_when_idle(self, instance: Instance, after_s: float = IDLE_AFTER_S) -> None:
        if instance.idle_timer is None and instance.phase == READY:
            instance.idle_timer = asyncio.get_running_loop().call_later(after_s, self._may_be_idle, instance)

    def _may_be_idle(self, instance: Instance) -> None:
        """An idle model's gate is shut, and its room has a price."""
        instance.idle_timer = None
        left_s = instance.last_use + IDLE_AFTER_S - self._loop.now()
        if instance.phase != READY or instance.in_flight or instance.priced:
            return
        if left_s > 0:
            self._look_when_idle(instance, left_s)
        elif instance.gate == OPEN:
            self.gates.close(instance)
        elif instance.gate == SHUT:
            price_s = self.scheduler.price(instance.model, self._loop.now())
            if price_s is not None:
                instance.priced = True
                self._loop.post(ModelPriced(job_id=instance.job_id, price_s=price_s))

    # The processes

    def _became(self, instance: Instance) -> None:
        """Ready, on its way out, or gone."""
        if instance.job_id not in self.instances.by_job:
            self.link.say(control.Gone(instance.job_id))
            self.gates.forget(instance)
        elif instance.phase == READY:
            if instance.began:
                self.counts.loaded(instance.model, instance.ready - instance.began)
            self.gates.announce(instance)
            self._look_when_idle(instance)
        else:
            self.link.say(control.Close(instance.job_id))

    def asked_to_yield(self, effect: AskYield) -> None:
        instance = self.instances.by_job.get(effect.job_id)
        if instance is not None and instance.phase == READY:
            self.gates.close(instance)
            self._step(events.YieldAsked(instance.model))

    def saw(self, changes: Changes) -> None:
        """What has become durable."""
        for task in changes.tasks:
            instance = self.instances.by_job.get(task.job_id)
            if instance is not None:
                self.processes.look_at(instance, task)
        self.processes.look_for_found()
        if any(not attempt.held for attempt in changes.attempts) or changes.workers:
            self.look_for_room()

    def look_for_room(self) -> None:
        """There may be more of it than before."""
        if not self._looks_for_room:
            self._looks_for_room = True
            asyncio.get_running_loop().call_soon(self._look_for_room)

    def _look_for_room(self) -> None:
        self._looks_for_room = False
        self._step(events.RoomChanged())

    # People

    def why(self, request: int, model: str) -> str:
        """What a request waits for; the jobs by name, where it waits for those."""
        said = self.scheduler.why(request, self.now())
        gone = [one.job_id for one in self.instances.by_job.values()]
        jobs = in_the_way(self._loop.fleet, self.capacity.requests[model], gone, self.now())
        return f"{said} In its room: {', '.join(jobs)}." if jobs else said

    async def unload(self, names: list[str]) -> list[str]:
        self._refs += 1
        future: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._unloads[self._refs] = future
        self._step(events.UnloadAsked(names, self._refs))
        return await future

    def preload(self, names: list[str]) -> None:
        self._step(events.PreloadAsked(names))

    def pin(self, name: str, pinned: bool) -> None:
        """Until the hub ends; what the configuration says is not changed by it."""
        self.pins[name] = pinned
        config = self.settings.config
        models = tuple(
            msgspec.structs.replace(one, pinned=self.pins.get(one.name, one.pinned)) for one in config.models
        )
        self._step(events.ConfigChanged(msgspec.structs.replace(config, models=models)))

    def is_pinned(self, name: str) -> bool:
        return self.pins.get(name, self.settings.models[name].pinned)

    def collect(self) -> Iterator[Metric]:
        queued = Counter(dict.fromkeys(self.settings.models, 0))
        queued.update(waiting.model for waiting in self._waiting.values())
        return self.counts.collect(self.instances, queued)

    async def start(self) -> None:
        """Come back to the processes that an earlier hub started, then load what is to be there from the start."""
        self._look_at_callers()
        await self.processes.adopt_all()
        if self.settings.config.preload:
            self.preload(list(self.settings.config.preload))

    async def stop(self) -> None:
        """Who waits is told; the models go on, and the next hub comes back to them."""
        for timer in (self._timer, self._callers_timer):
            if timer is not None:
                timer.cancel()
        for request in list(self._waiting):
            self._refuse(refusals.closing(request))
        await self.link.stop(2.0)
        for instance in self.instances.by_job.values():
            if instance.bridge is not None:
                instance.bridge.close()
