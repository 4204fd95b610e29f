"""The gateway's single loop, which is the hub's: what the relay and the ledger say becomes events of the scheduler, and
what it decides becomes jobs and words to the relay. No decision is made here."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
from prometheus_client.core import Metric

from ostler.core.effects import AskYield
from ostler.core.models import in_the_way
from ostler.domain.records import Changes
from ostler.domain.resources import Request
from ostler.gateway import control
from ostler.gateway.core import effects, events, refusals
from ostler.gateway.core.models import Catalogue
from ostler.gateway.core.scheduler import Scheduler, make
from ostler.gateway.core.state import AWAY
from ostler.gateway.settings import GatewaySettings, Seen
from ostler.hub.gateway.activity import Activity, Ended
from ostler.hub.gateway.callers import Callers
from ostler.hub.gateway.capacity import LedgerCapacity
from ostler.hub.gateway.counts import Counts
from ostler.hub.gateway.homes import Homes
from ostler.hub.gateway.instances import CLOSING, LOADING, OPEN, READY, SHUT, Instance, Instances
from ostler.hub.gateway.link import Link
from ostler.hub.gateway.memory import Memory
from ostler.hub.gateway.peers import Peers
from ostler.hub.gateway.prices import Prices
from ostler.hub.gateway.processes import Processes
from ostler.hub.gateway.spending import Spending
from ostler.hub.gateway.tunnels import Tunnels
from ostler.hub.gateway.wishes import Wishes
from ostler.hub.loop import Loop
from ostler.hub.relays import Relays
from ostler.tls import Identity

_log = logging.getLogger("ostler.gateway")
CALLER_GONE = 499


class Waiting(msgspec.Struct, frozen=True):
    model: str
    user: str
    since: float
    request_id: str = ""


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
        kept: Mapping[str, bytes],
        identity: Identity | None = None,
    ) -> None:
        self._loop = loop
        self.audit = loop.audit
        self.settings = settings
        self.names = Catalogue(settings.config).names
        """The model's name by any of its names."""
        self.instances = Instances()
        self.memory = Memory(loop, kept)
        self._requests: dict[tuple[str, Seen], Request] = {}
        """What a process of a recipe needs that was seen to take so much."""
        self.capacity = LedgerCapacity(loop, self.instances, self._request_of)
        config = self.memory.applied_to(settings.config)
        self._kind = settings.scheduler
        self.scheduler: Scheduler = make(self._kind, config, self.capacity, has_gates=True)
        self._hands_over = self._is_over = False
        self._scheme = "http" if identity is None else "https"
        self.link = Link(listen, spool, self._heard, self._relay_began, self._relay_lost, identity)
        self.callers = Callers(settings, keys, loop.now, self.link.say)
        self.counts = Counts()
        self.activity = Activity()
        self.spending = Spending(loop, self._waited_for)
        self.processes = Processes(loop, settings, self.instances, self.memory, self.spending, self._became, self._step)
        self.prices = Prices(loop, lambda load, now: self.scheduler.price(load, now))
        self.homes = Homes(loop.fleet, self.instances, self._step)
        self.tunnels = Tunnels(loop.fleet, relays, self.link.say)
        self.peers = Peers(settings)
        self.errors = self.processes.errors
        self.wishes = Wishes(self._step, self.errors)
        self.pages: Callable[[control.Asked], None] = lambda asked: None
        self.page_left: Callable[[int], None] = lambda request: None
        self._granted: dict[int, Instance] = {}
        """Requests that are being served, and where."""
        self._waiting: dict[int, Waiting] = {}
        self._unloads: dict[int, asyncio.Future[list[str]]] = {}
        self._refs = 0
        self._timer: asyncio.TimerHandle | None = None
        self.room_seen = -1
        """Which of the changes of the fleet's room the scheduler has been told of."""
        self.listens_on: tuple[str, int] | None = None
        self._wanted = asyncio.Event()
        if settings.wanted:
            self._wanted.set()

    def now(self) -> float:
        return self._loop.now()

    def _wall(self) -> float:
        return self._loop.fleet.wall(self._loop.now())

    # What is configured

    def configure(self, settings: GatewaySettings) -> None:
        """From now on. Processes whose recipe is another one are drained and started anew, the others go on."""
        self.names = Catalogue(settings.config).names
        self.settings = self.processes.settings = settings
        self.peers = Peers(settings)
        self.callers.configure(settings)
        self.callers.tell()
        self._apply()
        if settings.scheduler != self._kind:
            self._begin_handover()
        if settings.wanted:
            self._wanted.set()

    def _apply(self) -> None:
        self._step(events.ConfigChanged(self.memory.applied_to(self.settings.config)))
        for instance in self.instances.all():
            self.prices.anew(instance)

    def _begin_handover(self) -> None:
        """Another scheduler takes over when nothing of this one's is under way; who waits, and who comes, waits until
        then."""
        self._hands_over = True
        for instance in self.instances.all():
            if instance.gate == OPEN:
                self._close_gate(instance)
        gone = [events.RequestCancelled(request) for request in (*self._waiting, *self.wishes.waiting)]
        self._perform_all([effect for event in gone for effect in self.scheduler.step(event, self.now())])

    def _hand_over(self) -> None:
        under_way = any(one.phase == LOADING or one.gate != SHUT for one in self.instances.all())
        if under_way or self._granted or self._unloads:
            return
        self._hands_over, self._kind = False, self.settings.scheduler
        self.instances.rename()
        self.scheduler = make(self._kind, self.memory.applied_to(self.settings.config), self.capacity, has_gates=True)
        wanted = [waited.model for waited in self._waiting.values()][:1]
        found = sorted(self.instances.all(), key=lambda one: (one.model not in wanted, -one.last_use))
        for one in found:
            self.prices.anew(one)  # who was promised its room by the former one asks again
            if one.phase == READY:
                self._step(events.ModelFound(one.model, one.digest, one.load, one.worker))
        self.homes.look_anew()
        for request, waited in list(self._waiting.items()):
            self._step(events.RequestArrived(request, waited.model, user=waited.user))
        self.wishes.ask_again()

    def _request_of(self, model: str) -> Request:
        recipe = self.settings.models[model]
        key = recipe.digest, self.memory.seen(recipe)
        if key not in self._requests:
            self._requests[key] = recipe.spec("x", key[1]).request()
        return self._requests[key]

    # The relay

    def _relay_began(self) -> None:
        self.callers.tell()
        for instance in self.instances.all():
            if instance.phase == READY:
                self._announce(instance)
                self._drained(instance)

    def _announce(self, instance: Instance) -> None:
        """Loaded: it may be used without asking, or each request is asked for."""
        places = None if instance.gate == OPEN else 0
        host, port, watched = instance.host, instance.port, instance.watched
        self.link.say(control.Open(instance.job_id, instance.model, host, port, places, instance.way, watched))

    def _relay_lost(self) -> None:
        """Its callers have gone with it: those who wait before those who are served, whose places they would get."""
        self.spending.relay_lost(self.instances.by_job)
        while self._waiting:
            request, _ = self._waiting.popitem()
            self._step(events.RequestCancelled(request))
        while self._granted:
            request, instance = self._granted.popitem()
            self._unused(instance)
            self._step(events.ServeDone(request))
        for instance in self.instances.all():
            instance.forget_relay()
            if instance.gate == OPEN:
                self._step(events.GateUsed(instance.load, 0, 0))
                self.prices.look(instance)
            self._drained(instance)

    def _heard(self, message: control.ToHub) -> None:
        match message:
            case control.Hello():
                self.listens_on = (message.host, message.port)
                self.link.stays_at(message.port)
                _log.info("the gateway listens on %s://%s:%s/v1", self._scheme, message.host, message.port)
            case control.Arrived():
                self._arrived(message)
            case control.Cancelled():
                self._cancelled(message.request)
            case control.Done():
                self._done(message)
            case control.Used():
                self._was_used(message)
            case control.Worked():
                self.spending.worked(message)
            case control.Drained():
                if (instance := self.instances.by_job.get(message.instance)) is not None:
                    self._drained(instance)
            case control.NeedTunnel() if self.listens_on is not None:
                self.tunnels.needed(message, self.listens_on[1], self.settings.url)
            case control.Asked():
                self.pages(message)
            case _:
                return

    def _arrived(self, message: control.Arrived) -> None:
        peer = self.peers.answer(message)
        if peer is not None:
            self.link.say(peer)
            return
        request, now = message.request, self._loop.now()
        if self._is_over:
            self._refuse(refusals.closing(request))
            return
        model = self.names.get(message.model, message.model)
        self._waiting[request] = Waiting(model, message.user, now, message.request_id)
        arrived = events.RequestArrived(request, message.model, user=message.user)
        if self._hands_over:
            return
        if not message.again:
            self._step(arrived)
            return
        # It comes from a process that failed, of whose end the scheduler may not have heard: not there again at once.
        found = self.scheduler.step(arrived, now)
        kept = [one for one in found if not (isinstance(one, effects.Grant) and one.request == request)]
        if len(kept) < len(found):
            kept += self.scheduler.step(events.RequestFailed(request), now)
        self._perform_all(kept)

    def _cancelled(self, request: int) -> None:
        instance = self._granted.pop(request, None)
        if instance is not None:
            self._unused(instance)
            self._step(events.CallerGone(request))
        elif (waited := self._waiting.pop(request, None)) is not None:
            self._not_served(waited, CALLER_GONE, "the caller hung up")
            self._step(events.RequestCancelled(request))
        else:
            self.page_left(request)

    def _done(self, message: control.Done) -> None:
        if not message.gave_back:
            self.counts.ended(message)
            self.activity.served(message, self._wall())
        elif (failed := self.instances.by_job.get(message.instance)) is not None:
            self.homes.failed(failed)
        instance = self._granted.pop(message.request, None)
        if instance is None:
            self._passed(message)
            return
        self._unused(instance)
        if message.gave_back:
            waits = Waiting(message.model, message.user, self._loop.now(), message.request_id)
            self._waiting[message.request] = waits
            self._step(events.RequestFailed(message.request))
        else:
            self._step(events.ServeDone(message.request))

    def _passed(self, message: control.Done) -> None:
        """It was not granted: it went through a gate, or to a peer."""
        instance = self.instances.by_job.get(message.instance)
        if instance is not None and not message.asked:
            instance.served += 1
        elif message.gave_back and (refusal := self.peers.gave_back(message)) is not None:
            self.counts.refused(message.model, refusal.status)
            since = self._loop.now() - message.total_s
            waited = Waiting(message.model, message.user, since, message.request_id)
            self._not_served(waited, refusal.status, refusal.message)
            self.link.say(refusal)

    def _unused(self, instance: Instance) -> None:
        instance.busy -= 1
        instance.served += 1
        self.prices.used(instance)

    def _was_used(self, message: control.Used) -> None:
        instance = self.instances.by_job.get(message.instance)
        if instance is None:
            return
        arrived = instance.was_used(message)
        if instance.gate != SHUT:
            self.prices.used(instance)
            self._step(events.GateUsed(instance.load, arrived, instance.through_gate))

    def _drained(self, instance: Instance) -> None:
        if instance.gate == CLOSING:
            instance.gate, instance.passing = SHUT, 0
            self._announce(instance)
            self._step(events.GateDrained(instance.load))

    # The scheduler

    def _step(self, event: events.Event) -> None:
        self._perform_all(self.scheduler.step(event, self._loop.now()))

    def _perform_all(self, decided: list[effects.Effect]) -> None:
        if self._is_over:  # who waits has been told, and nothing is begun for nobody
            return
        for effect in decided:
            self._perform(effect)
        self._wake_when_due()
        if self._hands_over:
            self._hand_over()

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
                self._count_stops(effect.evict, "evicted")
                self.processes.start(effect)
            case effects.StopProcesses():
                self._count_stops(effect.loads, effect.reason)
                for load in effect.loads:
                    self.processes.stop(load, effect.reason)
            case effects.OpenGate() if not self._hands_over:
                self._open_gate(self.instances.by_load[effect.load], watched=False)
            case effects.WatchGate() if not self._hands_over:
                self._open_gate(self.instances.by_load[effect.load], watched=effect.watched)
            case effects.CloseGate() if not self._hands_over:
                self._close_gate(self.instances.by_load[effect.load])
            case effects.Refuse():
                self._refuse(effect)
            case effects.Tell() if effect.request >= 0:
                self.link.say(control.Tell(effect.request, effect.note))
            case effects.Unloaded():
                future = self._unloads.pop(effect.ref, None)
                if future is not None and not future.done():
                    future.set_result(effect.models)

    def _count_stops(self, loads: list[int], reason: str) -> None:
        for load in loads:
            if (instance := self.instances.by_load.get(load)) is not None:
                self.counts.stopped(instance.model, reason)

    def _open_gate(self, instance: Instance, *, watched: bool) -> None:
        instance.gate, instance.watched = OPEN, watched
        self._announce(instance)

    def _close_gate(self, instance: Instance) -> None:
        """Answered when it has drained; at once where there is no relay."""
        instance.gate = CLOSING
        self.link.say(control.Close(instance.job_id))

    def _refuse(self, effect: effects.Refuse) -> None:
        if effect.request < 0:
            self.wishes.refused(effect)
            return
        waited = self._waiting.pop(effect.request, None)
        if waited is not None:
            self.counts.refused(waited.model, effect.status)
            self._not_served(waited, effect.status, effect.message)
        self.link.say(control.Refuse(effect.request, effect.status, effect.code, effect.message, effect.retry_after_s))

    def _not_served(self, waited: Waiting, status: int, error: str) -> None:
        waited_s, at = self._loop.now() - waited.since, self._wall()
        model, user, request_id = waited.model, waited.user, waited.request_id
        self.activity.add(Ended(at, model, user, status, error, waited_s, total_s=waited_s, request_id=request_id))

    def _grant(self, effect: effects.Grant) -> None:
        if effect.request < 0:
            self.wishes.granted(effect.request)
            return
        instance = self.instances.by_load[effect.load]
        del self._waiting[effect.request]
        self._granted[effect.request] = instance
        instance.busy += 1
        instance.granted += 1
        self.prices.used(instance)
        self.link.say(control.Grant(effect.request, instance.job_id, instance.host, instance.port, instance.way))

    # The processes

    def _became(self, instance: Instance) -> None:
        """Ready, on its way out, or gone."""
        if instance.job_id not in self.instances.by_job:
            self.link.say(control.Gone(instance.job_id))
        elif instance.phase == READY:
            if instance.began:
                self.counts.loaded(instance.model, instance.ready - instance.began)
                asyncio.get_running_loop().call_soon(self._remember_load, instance.model)
            self._announce(instance)
            self.prices.look(instance)
            asyncio.get_running_loop().call_soon(self.homes.look)
        else:
            self.link.say(control.Close(instance.job_id, instance.unloaded))

    def _waited_for(self, load: int) -> dict[str, int]:
        found = self.scheduler.state.present.get(load)
        return found.waited if found is not None else {}

    def _remember_load(self, model: str) -> None:
        found = self.scheduler.state.learnt[model]
        if found.measured_load_s is not None:
            self.memory.loaded(model, found.measured_load_s, found.places)

    def asked_to_yield(self, effect: AskYield) -> None:
        """It leaves when it is idle; or stays, and the job looks elsewhere."""
        instance = self.instances.by_job.get(effect.job_id)
        if instance is not None and instance.phase == READY:
            self._step(events.YieldAsked(instance.load))
            found = self.scheduler.state.present.get(instance.load)
            if found is not None and found.stays:
                self.prices.withdraw(instance)

    def saw(self, changes: Changes) -> None:
        """What has become durable."""
        if self.instances.by_job:
            self.processes.saw(changes)
        if self.room_seen != self._loop.fleet.index.changes:
            asyncio.get_running_loop().call_soon(self._room_changed)

    def _room_changed(self) -> None:
        self.room_seen = self._loop.fleet.index.changes
        self.homes.look()
        if self._waiting or self.wishes.waiting or self.scheduler.state.preloads:
            self._step(events.RoomChanged())

    # People

    def why(self, request: int, jobs: list[str]) -> str:
        """What a request waits for; the jobs by name, where it waits for those."""
        said = self.scheduler.why(request, self.now())
        return f"{said} In its room: {', '.join(jobs)}." if jobs else said

    def state_of(self, instance: Instance) -> str:
        """What people are shown: one that is ready and takes no requests is not called ready."""
        if instance.phase != READY:
            return instance.phase
        if instance.home == AWAY:
            return "unreachable"
        found = self.scheduler.state.present.get(instance.load)
        return "draining" if found is not None and found.leaving else READY

    def jobs_in_the_way(self, model: str) -> list[str]:
        gone = [one.job_id for one in self.instances.by_job.values()]
        return in_the_way(self._loop.fleet, self._request_of(model), gone, self.now())

    async def unload(self, names: list[str]) -> list[str]:
        """The models that have left, once they have."""
        found = self.processes.stop_found(names)
        for instance in found:
            self.counts.stopped(instance.model, "unloaded")
        unloaded = await self._unload_known(names)
        for instance in found:
            if instance.is_gone is not None:
                await instance.is_gone.wait()
        return sorted({*unloaded, *(one.model for one in found)})

    async def _unload_known(self, names: list[str]) -> list[str]:
        self._refs += 1
        future: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._unloads[self._refs] = future
        self._step(events.UnloadAsked(names, self._refs))
        return await future

    def load(self, name: str) -> None:
        """As if somebody called it: others that are idle make room."""
        if not any(one.stays for one in self.scheduler.state.of(name)):
            self.errors.pop(name, None)
            self.wishes.ask(name)

    async def pin(self, name: str, pinned: bool) -> None:
        """Until it is said otherwise, and durable then. Who says what the configuration says too lets that count
        again."""
        self.memory.pin(name, None if pinned == self.settings.models[name].pinned else pinned)
        self._apply()
        await self._loop.turn()

    def collect(self) -> Iterator[Metric]:
        queued = Counter(dict.fromkeys(self.settings.models, 0))
        queued.update(waiting.model for waiting in self._waiting.values())
        return self.counts.collect(self.instances, queued)

    async def run(self) -> None:
        """Come back to the processes that an earlier hub started, then load what is to be there from the start. The
        port is opened when there is something to be called."""
        await self.processes.adopt_all()
        if self.settings.config.preload:
            self._step(events.PreloadAsked(list(self.settings.config.preload)))
        await self._wanted.wait()
        self.callers.look()
        await self.link.run()

    async def stop(self) -> None:
        """Who waits is told; the models go on, and the next hub comes back to them."""
        self._is_over = True
        self.callers.stop()
        if self._timer is not None:
            self._timer.cancel()
        for request in list(self._waiting):
            self._refuse(refusals.closing(request))
        await self.link.stop(2.0)
