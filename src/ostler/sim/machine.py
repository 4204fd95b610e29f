"""A model worker: it keeps the worker's side of the protocol and lets virtual time run its tasks."""

from typing import TYPE_CHECKING

import msgspec

from ostler.core.effects import Acknowledge, AssignTask, CancelTask, CloseSession, Effect
from ostler.core.events import Event, TaskAccepted, TaskEnded, WorkerBeat, WorkerRegistered
from ostler.domain.worker import WAITING, ActiveTask, Capabilities, Slots

if TYPE_CHECKING:
    from ostler.sim.world import World

HEARTBEAT_S = 10.0
RECONNECT_S = 5.0
SILENCE_S = 30.0
"""Heartbeats are answered: a stream on which nothing was heard for this long is none any more."""
STOPS_WITHIN_S = 10.0
STOPS_EARLIER_S = 30.0
"""What must never run twice at once is stopped this long before the hub's grace ends."""


class Process(msgspec.Struct):
    task_id: str
    attempt: str
    devices: tuple[int, ...]
    whole: bool
    ends_at: float
    stopping: bool = False
    began_at: float = 0.0


class Machine:
    """Processes and kept results live here; `session` is 0 while the network side is down or cut off."""

    stubborn = False

    def __init__(
        self, world: "World", name: str, capabilities: Capabilities, slots: int, ahead: int = 0, is_plain: bool = False
    ) -> None:
        self.world = world
        self.name = name
        self.capabilities = capabilities
        self.slots = slots
        self.ahead = ahead
        """How many assignments it takes beyond its room."""
        self.is_plain = is_plain
        self.waiting: dict[str, AssignTask] = {}
        """Those of them that have not begun."""
        self.processes: dict[str, Process] = {}
        self.results: dict[str, TaskEnded] = {}
        self.session = 0
        self.boots = 0
        self.away_until = 0.0
        """It does not come back before that."""
        self._connected_at = 0.0
        self._heard_at = 0.0
        self._contact = 0.0
        """When it last sent something that the hub is known to have heard."""

    def connect(self) -> None:
        self.session = self.world.new_session(self)
        self.boots += 1
        self._connected_at = self._heard_at = self.world.now
        self._send(
            WorkerRegistered(
                worker_id=self.name,
                session=self.session,
                capabilities=self.capabilities,
                active_tasks=self._account(),
                boot_id=f"{self.name}-{self.boots}",
                ahead=self.ahead,
                is_plain=self.is_plain,
            )
        )
        for result in list(self.results.values()):
            self._send(msgspec.structs.replace(result, session=self.session))
        self.beat(self.session)

    def disconnected(self) -> None:
        """The link is gone, for whatever reason; try again after a while."""
        self.session = 0
        self.world.after(self.world.rng.uniform(0.1, RECONNECT_S), self.reconnect)

    def reconnect(self) -> None:
        if self.session == 0 and self.world.now < self.away_until:
            self.world.at(self.away_until, self.reconnect)
        elif self.session == 0:
            self.connect()

    def beat(self, session: int) -> None:
        if session != self.session:
            return
        if self.world.now >= self._heard_at + SILENCE_S:
            self.disconnected()
            return
        self._tell()
        for result in list(self.results.values()):
            self._send(msgspec.structs.replace(result, session=session))
        self.world.after(HEARTBEAT_S, lambda: self.beat(session))

    def _tell(self) -> None:
        """The whole account of what is here."""
        in_use = len(self.processes)
        self._send(
            WorkerBeat(
                worker_id=self.name,
                session=self.session,
                slots=Slots(batch_total=self.slots, batch_in_use=in_use, service_total=0),
                capabilities=self.capabilities,
                active_tasks=self._account(),
                sent_at=self.world.now,
            )
        )

    def hear(self, effect: Effect, session: int) -> None:
        if session != self.session:
            return
        self._heard_at = self.world.now
        self._contact = max(self._contact, self._connected_at)
        match effect:
            case Acknowledge(of="heartbeat", sent_at=float(sent_at)):
                self._contact = max(self._contact, sent_at)
            case AssignTask():
                self._take(effect)
            case CancelTask(unstarted=True) if effect.attempt in self.processes:
                return  # too late: it has begun
            case CancelTask():
                self._stop(effect)
            case Acknowledge(of="job_result"):
                self.results.pop(effect.attempt, None)
            case CloseSession():
                self.disconnected()

    def _take(self, effect: AssignTask) -> None:
        if effect.attempt in self.processes or effect.attempt in self.results or effect.attempt in self.waiting:
            return
        if any(name in self.processes or name in self.waiting for name in effect.after):
            self.waiting[effect.attempt] = effect
        else:
            self._start(effect)

    def _start(self, effect: AssignTask) -> None:
        clash = {
            device
            for process in self.processes.values()
            for device in process.devices
            if (process.whole or not self.world.shares(effect.task_id)) and device in effect.devices
        }
        if clash:
            # A stale assignment met a process that the hub could not know of: handed back, never run side by side.
            self.world.clashes += 1
            self._tell()
            self._end(effect.task_id, effect.attempt, "returned", None, fault="drain")
            return
        process = Process(
            effect.task_id,
            effect.attempt,
            effect.devices,
            not self.world.shares(effect.task_id),
            self.world.now + self.world.duration(effect.task_id),
            began_at=self.world.now,
        )
        self.processes[effect.attempt] = process
        self.world.started(self, process)
        self._send(
            TaskAccepted(worker_id=self.name, session=self.session, task_id=effect.task_id, attempt=effect.attempt)
        )
        self.world.at(process.ends_at, lambda: self._exit(process))
        self._watch(process)

    def _watch(self, process: Process) -> None:
        """What must never run twice at once is stopped here before the hub lets it run elsewhere."""
        grace_s = self.world.alone_for(process.task_id)
        if not grace_s or self.processes.get(process.attempt) is not process or process.stopping:
            return
        over_at = self._contact + grace_s - STOPS_EARLIER_S
        if over_at > self.world.now:
            self.world.at(over_at, lambda: self._watch(process))
            return
        process.stopping = True
        delay = self.world.rng.uniform(0, STOPS_WITHIN_S)
        self.world.after(delay, lambda: self._end_stopped(process, "returned", "worker"))

    def _exit(self, process: Process) -> None:
        if self.processes.get(process.attempt) is process and not process.stopping:
            fails = self.world.rng.random() < self.world.failure_rate
            self._end(process.task_id, process.attempt, "failed" if fails else "succeeded", 1 if fails else 0)

    def _stop(self, effect: CancelTask) -> None:
        process = self.processes.get(effect.attempt)
        if effect.attempt in self.waiting:
            given_back = self.waiting.pop(effect.attempt)
            for other in self.waiting.values():  # they wait for what it waited for
                if effect.attempt in other.after:
                    other.after = given_back.after
            state, fault = ("returned", "drain") if effect.unstarted else ("cancelled", "")
            self._end(effect.task_id, effect.attempt, state, None, fault)
        elif process is None:
            if effect.attempt not in self.results:  # the hub counts room for it until it hears that it is not here
                self._end(effect.task_id, effect.attempt, "cancelled", None)
        elif not process.stopping:
            process.stopping = True
            delay = self.world.rng.uniform(0.0, effect.grace_s)
            self.world.after(delay, lambda: self._end_stopped(process))

    def _end_stopped(self, process: Process, state: str = "cancelled", fault: str = "") -> None:
        if self.processes.get(process.attempt) is process:
            self._end(process.task_id, process.attempt, state, 143, fault)

    def _end(self, task_id: str, attempt: str, state: str, exit_code: int | None, fault: str = "") -> None:
        process = self.processes.pop(attempt, None)
        if process is not None:
            self.world.exited(process, state)
        result = TaskEnded(
            worker_id=self.name,
            session=self.session,
            task_id=task_id,
            attempt=attempt,
            state=state,
            exit_code=exit_code,
            fault=fault,
            run_s=self.world.now - process.began_at if process is not None else 0.0,
        )
        self.results[attempt] = result
        self._send(result)
        if process is not None:
            for order in [one for one in self.waiting.values() if attempt in one.after]:
                del self.waiting[order.attempt]
                self._start(order)

    def worker_killed(self) -> None:
        """The network side dies and comes back; its supervisor keeps the tasks, and the ends that nobody has heard."""
        self.world.cut(self)

    def power_cut(self) -> None:
        """Processes and results are gone, and so is the link."""
        self.processes.clear()
        self.waiting.clear()
        self.results.clear()
        self.world.cut(self)

    def burn(self, *, silently: bool) -> None:
        """Nothing of it is seen again. Silently: the hub's end of the link stays open."""
        self.away_until = float("inf")
        if silently:
            self.session = 0
        self.power_cut()

    def kept(self) -> list[str]:
        """The attempts of which it has something beside their processes."""
        return [*self.waiting, *self.results]

    def _account(self) -> list[ActiveTask]:
        running = [ActiveTask(task_id=p.task_id, attempt=p.attempt) for p in self.processes.values()]
        running += [ActiveTask(task_id=w.task_id, attempt=w.attempt, state=WAITING) for w in self.waiting.values()]
        return running + [
            ActiveTask(task_id=r.task_id, attempt=r.attempt, state=r.state) for r in self.results.values()
        ]

    def _send(self, event: Event) -> None:
        if self.session:
            self.world.to_hub(self, event, self.session)
