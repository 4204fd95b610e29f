"""The worker at work: what happens goes through one inbox, one step at a time; what a step asks for is done here."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from ostler.runtime.base import Ended, Runtime
from ostler.runtime.clock import also_asleep
from ostler.wire.messages import (
    Ack,
    Frame,
    Heartbeat,
    JobAccepted,
    JobAssign,
    JobCancel,
    JobHint,
    JobResult,
    LogRequest,
    Message,
    PrewarmHint,
    RelayRequest,
)
from ostler.worker.api import HubApi
from ostler.worker.blobs import Blobs
from ostler.worker.carrying import Carrier
from ostler.worker.checkpoints import Checkpoints, remove
from ostler.worker.core import step
from ostler.worker.credentials import Credentials
from ostler.worker.events import (
    Acknowledged,
    Assigned,
    AwaitRelease,
    BeatDue,
    CallBack,
    CancelAsked,
    CollectOutcome,
    Connected,
    ConnectionLost,
    DevicesReleased,
    DevicesSeen,
    DrainAsked,
    DrainEnded,
    Effect,
    Event,
    ForgetTask,
    HubHeard,
    LaunchTask,
    Misassigned,
    ProcessEnded,
    RenewLeases,
    Send,
    SnapshotsChanged,
    StopTask,
    TookBack,
    WatchService,
)
from ostler.worker.gpus import Blind, Gpus
from ostler.worker.launching import Place, read_facts
from ostler.worker.logs import Logs
from ostler.worker.orders import NotUnderstood, following, is_task_id, task_id_of, understand
from ostler.worker.outcomes import Outcomes
from ostler.worker.relay import Relays
from ostler.worker.secrets import Secrets
from ostler.worker.services import Services
from ostler.worker.snapshots import Snapshots
from ostler.worker.starting import Starts
from ostler.worker.state import State
from ostler.worker.uploads import Traffic
from ostler.worker.verdict import BY_RECALL

BLOBS, CHECKPOINTS, SNAPSHOTS, SECRETS = "blobs", "checkpoints", "snapshots", "secrets"
ACCEPT_WITHIN_S = 0.025
"""An acceptance may wait this long for the end of a short task: together they cost the hub one commit, not two."""
GATHER_S = 0.04
"""So may a result, while more tasks wait here that were sent ahead than results for the hub: nobody is idle for it."""
GATHER_MOST = 128
"""Enough for one commit. With more, hub and worker are busy one after the other instead of at once."""
LAST_WORDS_S = 10.0
"""How long a drained worker waits for its last acknowledgements; its results are on the disk for the next start."""
IMPATIENT = 3
"""So many signals, and nothing is waited for."""

_log = logging.getLogger("ostler.worker")


class Agent:
    def __init__(
        self,
        state: State,
        runtime: Runtime,
        api: HubApi,
        credentials: Credentials,
        place: Place,
        gpus: Gpus | None = None,
    ) -> None:
        self._state = state
        self._runtime = runtime
        self._credentials = credentials
        self._say_token_is_kept = api.say_token_is_kept
        self._place = place
        self._secrets = Secrets(place.folder, place.reached(SECRETS), place.secrets_in)
        self._logs = Logs(api, runtime.folder, self._runs, self._knows, self._secrets.redactor)
        self._traffic = Traffic()
        apart = place.accounts is not None
        self._checkpoints = Checkpoints(place.reached(CHECKPOINTS), shared=apart)
        self._carrier = Carrier(
            api,
            self._checkpoints,
            state.worker_id,
            runs=self._runs,
            tell=self.post,
            traffic=self._traffic,
            owner=lambda order: place.identity(order.spec.user_id),
        )
        self._outcomes = Outcomes(api, self._logs, runtime.folder, self._carrier, self._traffic)
        self._outcomes.redactor = self._secrets.redactor
        self._blobs = Blobs(api, place.reached(BLOBS), shared=apart)
        self._snapshots = Snapshots(api, place.folder / SNAPSHOTS, place.snapshot_bytes, self._tell_snapshots)
        self._services = Services(self._runs, self.post)
        self._gpus = gpus or Gpus(Blind())
        self._relays = Relays(api, self._port_of, start=getattr(runtime, "beside", None))
        self._starts = Starts(
            runtime,
            place,
            blobs=self._blobs,
            snapshots=self._snapshots,
            checkpoints=self._checkpoints,
            carrier=self._carrier,
            services=self._services,
            gpus=self._gpus,
            secrets=self._secrets,
            capabilities=lambda: state.capabilities,
            tell=self.post,
        )
        self._inbox: deque[Event] = deque()
        self._beat_sent: tuple[str | float | int | None, float] = (None, 0.0)
        """The last heartbeat's own time, and the clock's when it was sent."""
        self._contact_at = 0.0
        """When the last thing was sent that the hub is known to have got. Whatever it says, it says after that."""
        self._wake = asyncio.Event()
        self._accepted: dict[str, JobAccepted] = {}
        """By attempt, those that are not sent yet; one that ends before that is told by its end alone."""
        self._gathered: list[JobResult] = []
        self._say: Callable[[Message], None] = lambda _: None
        self._errands: set[asyncio.Task[None]] = set()
        self._timers: list[asyncio.TimerHandle] = []
        self._signals = 0
        self._last_words = False
        self._left = False

    def speak_through(self, say: Callable[[Message], None]) -> None:
        self._say = say

    # What happens

    def post(self, event: Event) -> None:
        self._inbox.append(event)
        self._wake.set()

    def connected(self) -> None:
        self._contact_at = also_asleep()  # the hub says nothing before it has heard what is sent from now on
        self.post(Connected())

    def disconnected(self) -> None:
        self._accepted.clear()  # the next registration says what is held, and the results follow it
        self._gathered.clear()
        self._starts.foresee(None)
        self.post(ConnectionLost())

    def heard(self, frame: Frame) -> None:
        message = frame.message
        match message:
            case JobHint():
                self._hinted(message)
            case JobAssign():
                self._assigned(message)
            case Ack():
                self._acknowledged(message, frame.error)
            case JobCancel():
                self.post(
                    CancelAsked(
                        task_id=message.task_id,
                        attempt=message.attempt,
                        reason=message.reason,
                        grace_s=message.grace_seconds,
                        unstarted=message.unstarted is True,
                    )
                )
            case LogRequest():
                self._logs.request(message)
            case RelayRequest():
                self._relays.request(message)
            case PrewarmHint():
                self._snapshots.prewarm(message.snapshot_id)

    def told_to_leave(self) -> None:
        """SIGTERM. The first drains, the second ends the drain, any further one waits for nobody."""
        self._signals += 1
        if self._signals == 1:
            _log.info("draining: tasks may finish within %.0f s; a second signal stops them now", self._place.drain_s)
            self.post(DrainAsked())
            self._later(self._place.drain_s, lambda: self.post(DrainEnded()))
        else:
            self.post(DrainEnded(grace_s=10.0 if self._signals < IMPATIENT else 0.0))

    def _assigned(self, message: JobAssign) -> None:
        try:
            order = understand(message)
        except NotUnderstood as error:
            self._misassigned(task_id_of(message), message.attempt, error)
            for follower in message.line:  # they have the same spec
                self._misassigned(follower.task_id, follower.attempt, error)
            return
        self.post(Assigned(order))
        for follower in message.line:
            try:
                order = following(order, follower)
            except NotUnderstood as error:
                self._misassigned(follower.task_id, follower.attempt, error)
            else:
                self.post(Assigned(order))

    def _misassigned(self, task_id: str, attempt: str, error: NotUnderstood) -> None:
        self.post(Misassigned(task_id=task_id, attempt=attempt, error=str(error)))

    def _hinted(self, message: JobHint) -> None:
        try:
            self._starts.foresee(understand(message))
        except NotUnderstood:
            return  # that is answered when it comes

    def _acknowledged(self, message: Ack, error: str) -> None:
        if error:
            _log.warning("the hub did not take a message: %s", error)
        if message.token:
            self._credentials.received(message.token)
        if self._credentials.unsaid and message.of in ("token", "register"):
            self._errand(self._say_token_is_kept())
        if message.of == "job_result":
            if message.attempt or not message.attempts:
                self.post(Acknowledged(task_id=message.task_id, attempt=message.attempt))
            for attempt in message.attempts:
                self.post(Acknowledged(attempt=attempt))
        elif message.of == "heartbeat" and message.sent_at == self._beat_sent[0]:
            self._contact_at = self._beat_sent[1]
            self.post(HubHeard(age_s=also_asleep() - self._contact_at))

    def _runs(self, attempt: str) -> bool:
        return attempt in self._state.held

    def _knows(self, attempt: str) -> bool:
        state = self._state
        return attempt in state.held or attempt in state.endings or attempt in state.results

    def _tell_snapshots(self, ids: list[str]) -> None:
        self.post(SnapshotsChanged(ids))

    def _port_of(self, task_id: str, attempt: str) -> int:
        """Of the service that runs here; of any attempt of the task, where none is named."""
        for hold in self._state.held.values():
            if hold.task_id == task_id and attempt in ("", hold.attempt):
                return self._services.port(hold.attempt)
        return 0

    # The loop

    async def open(self) -> None:
        """Take back what an earlier process of this worker left. Before anything is said to the hub."""
        held = await self._runtime.open()
        if held:
            running = sum(one.ended is None for one in held)
            _log.info("taken back: %d running and %d ended tasks", running, len(held) - running)
        facts = [read_facts(self._runtime.folder(one.attempt)) for one in held]
        for one, its in zip(held, facts, strict=True):
            self._starts.took_back(one.attempt, its)
            self._checkpoints.took_back(one.task_id, one.checkpoint)
            self._carrier.begun(one.attempt, one.task_id)
        self._secrets.clean({one.attempt for one in held}.__contains__)
        self._tell_snapshots(self._snapshots.ids())
        self.post(TookBack(list(zip(held, facts, strict=True))))
        self._carrier.start()
        await self._work()

    async def run(self) -> None:
        """Until the worker has been told to leave, and has."""
        self._beat()
        while not self._left:
            await self._wake.wait()
            self._wake.clear()
            await self._work()
            self._see_whether_to_leave()

    async def watch_ends(self) -> None:
        async for end in self._runtime.ends():
            self._secrets.ended(end.attempt)
            self.post(ProcessEnded(end))

    async def watch_gpus(self) -> None:
        """For ever, where there is anything to see."""
        await self._gpus.watch(lambda usages: self.post(DevicesSeen(usages)), self._holds_devices)
        await asyncio.Event().wait()

    def _holds_devices(self) -> bool:
        return any(hold.facts.devices for hold in self._state.held.values())

    async def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        errands = list(self._errands)
        for errand in errands:
            errand.cancel()
        await asyncio.gather(*errands, return_exceptions=True)
        await self._starts.close()
        await self._carrier.close()
        await self._relays.close()
        await self._services.close()
        await self._snapshots.close()
        await self._gpus.close()
        await self._logs.close()
        await self._blobs.close()

    async def _work(self) -> None:
        while self._inbox:
            event = self._inbox.popleft()
            if isinstance(event, ProcessEnded):
                event.nothing_to_bring = event.end.left_nothing and not self._logs.is_asked_for(event.end.attempt)
            for effect in step(self._state, event, time.time()):
                if isinstance(effect, Send):
                    self._send(effect.message)
                elif isinstance(effect, CollectOutcome):
                    self._collect(effect)
                else:
                    await self._perform(effect)

    def _beat(self) -> None:
        self.post(BeatDue(dict(self._runtime.peaks()), dict(self._runtime.samples())))
        self._outcomes.look_for_kills()
        self._later(self._place.heartbeat_s, self._beat)

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        """At least one tick later: uvloop's timer for no time at all is none that could be asked when it is due."""
        now = asyncio.get_running_loop().time()
        self._timers = [timer for timer in self._timers if timer.when() > now and not timer.cancelled()]
        self._timers.append(asyncio.get_running_loop().call_later(max(0.001, seconds), call))

    def _see_whether_to_leave(self) -> None:
        state = self._state
        if not state.draining or state.held:
            return
        if state.is_quiet:
            self._leave()
        elif not self._last_words:
            self._last_words = True
            self._traffic.has_moved()  # from now on
            self._later(LAST_WORDS_S, self._leave_unless_busy)

    def _leave_unless_busy(self) -> None:
        """What moves towards the hub may be the work of days; whoever cannot wait for it says so by a signal."""
        if self._traffic.has_moved() and self._signals < IMPATIENT:
            self._later(LAST_WORDS_S, self._leave_unless_busy)
        else:
            self._leave()

    def _leave(self) -> None:
        self._left = True
        self._wake.set()

    # What is to be done

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case LaunchTask():
                if effect.order.spec.lease_s():
                    await self._runtime.renew(also_asleep() - self._contact_at)
                await self._starts.begin(effect.order)
            case ForgetTask():
                await self._forget(effect)
            case RenewLeases():
                await self._runtime.renew(effect.age_s)
            case WatchService():
                self._services.watch(effect.attempt, effect.facts.port, effect.facts.checks)
            case AwaitRelease():
                self._errand(self._await_release(effect))
            case StopTask():
                await self._stop(effect)
            case CallBack():
                await self._call_back(effect.attempt)

    def _send(self, message: Message) -> None:
        if isinstance(message, JobAccepted):
            if not self._accepted:
                asyncio.get_running_loop().call_later(ACCEPT_WITHIN_S, self._send_accepted)
            self._accepted[message.attempt] = message
            return
        if isinstance(message, JobResult):
            self._accepted.pop(message.attempt, None)
            self._send_result(message)
            return
        if isinstance(message, Heartbeat):
            self._send_gathered()
            self._send_accepted()
            self._beat_sent = (message.sent_at, also_asleep())
        self._say(message)

    def _send_result(self, result: JobResult) -> None:
        if not self._gathered and self._state.has_waiting:
            asyncio.get_running_loop().call_later(GATHER_S, self._send_gathered)
        self._gathered.append(result)
        count, waiting = len(self._gathered), len(self._state.held) - self._state.batch_slots
        if count >= GATHER_MOST or count > waiting or not self._state.has_waiting:
            self._send_gathered()

    def _send_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        for result in gathered:
            self._say(result)

    def _send_accepted(self) -> None:
        accepted, self._accepted = self._accepted, {}
        for message in accepted.values():
            self._say(message)

    async def _stop(self, effect: StopTask) -> None:
        if not self._called_off(effect.attempt, effect.reason):
            await self._runtime.stop(effect.attempt, effect.reason, effect.grace_s)

    async def _call_back(self, attempt: str) -> None:
        if not self._called_off(attempt, BY_RECALL):
            await self._runtime.call_back(attempt, BY_RECALL)

    def _called_off(self, attempt: str, reason: str) -> bool:
        """True if it was still being prepared: then this is its end."""
        if not self._starts.call_off(attempt):
            return False
        task_id = self._state.held[attempt].task_id
        self.post(ProcessEnded(Ended(attempt=attempt, task_id=task_id, exit_code=143, stopped=reason)))
        return True

    def _collect(self, effect: CollectOutcome) -> None:
        found = self._outcomes.at_once(effect)
        if found is not None:
            self.post(found)
        else:
            self._errand(self._collect_slowly(effect))

    async def _collect_slowly(self, effect: CollectOutcome) -> None:
        self.post(await self._outcomes.collect(effect))

    async def _await_release(self, effect: AwaitRelease) -> None:
        usages = await self._gpus.released(effect.baseline_mib, effect.task_id, effect.attempt)
        self.post(DevicesReleased(attempt=effect.attempt, usages=usages))

    async def _forget(self, effect: ForgetTask) -> None:
        self._outcomes.forget(effect.attempt)
        self._carrier.forget(effect.attempt)
        await self._runtime.forget(effect.attempt)
        self._logs.forget(effect.attempt)
        if self._secrets.holds(effect.attempt):
            self._errand(self._secrets.forget(effect.attempt))
        if self._starts.is_to_clear(effect.attempt):
            self._errand(self._starts.clear(effect.attempt))
        if is_task_id(effect.task_id) and effect.task_id not in self._state.tasks:
            left = self._checkpoints.close(effect.task_id, done=effect.done)
            if left:
                self._errand(asyncio.to_thread(remove, left))

    def tasks(self) -> set[str]:
        """The names of all that this worker answers for, and whose files are needed."""
        return {task.task_id for task in self._state.account()} | self._checkpoints.spares()

    def _errand(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errand_done)
        return task

    def _errand_done(self, task: asyncio.Task[None]) -> None:
        self._errands.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a bug: an errand failed", exc_info=error)
