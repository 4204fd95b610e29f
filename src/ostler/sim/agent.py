"""A machine whose side of the protocol is the worker's own core: only its processes, and the time they take, are a
model. Its supervisor outlives its worker: what runs, and every end that the hub has not acknowledged, is with it."""

import math
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from ostler.core.effects import Acknowledge, AssignTask, CancelTask, CloseSession
from ostler.core.effects import Effect as Heard
from ostler.core.events import TaskAccepted, TaskEnded, WorkerAsked, WorkerBeat, WorkerRegistered
from ostler.domain.worker import Capabilities
from ostler.runtime.base import Ended, Held
from ostler.sim.machine import HEARTBEAT_S, SILENCE_S, STOPS_EARLIER_S, Machine, Process
from ostler.wire.messages import Heartbeat, JobAccepted, JobResult, Message, ReadyForWork, Register
from ostler.worker.core import step
from ostler.worker.events import (
    Acknowledged,
    Assigned,
    BeatDue,
    Begun,
    CallBack,
    CancelAsked,
    CollectOutcome,
    Connected,
    ConnectionLost,
    Effect,
    Event,
    ForgetTask,
    HubHeard,
    LaunchTask,
    OutcomeCollected,
    ProcessEnded,
    RenewLeases,
    Send,
    StopTask,
    TookBack,
)
from ostler.worker.orders import Facts, Order, TaskSpec
from ostler.worker.state import State
from ostler.worker.verdict import BY_BUDGET, BY_LEASE, BY_RECALL

if TYPE_CHECKING:
    from ostler.sim.world import World

EPOCH = 1_700_000_000.0
COLLECTS_WITHIN_S = (0.5, 25.0)
SLOW = 0.2
"""So often a task has left much that has to be brought to the hub before its result."""
TERMINATED = 143
TURN_COMES_S = (0.1, 0.1, 3.0, 3.0, 45.0)
"""How long it is until a turn comes in somebody else's queue."""
HELD_UP_S = (0.1, 1.0, 1.0, 45.0)
"""How long whoever keeps that queue takes to say that a turn has come, or to end something."""
LONGEST_TURN_S = max(TURN_COMES_S) + max(HELD_UP_S)


class Agent(Machine):
    def __init__(
        self, world: "World", name: str, capabilities: Capabilities, slots: int, ahead: int = 0, queue: str = ""
    ) -> None:
        super().__init__(world, name, capabilities, slots, ahead)
        self.queue = queue
        self.ends: dict[str, Ended] = {}
        """What the supervisor has seen the end of, and has not been told to forget."""
        self.orders: dict[str, Order] = {}
        """Of all that the supervisor has."""
        self.lined_up: dict[str, Order] = {}
        """Those of them that wait for the end of others, or for their turn."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        """A new process of the worker: what it knows is what its supervisor has."""
        self.boots += 1
        self.is_down = False
        self.state = State(
            worker_id=self.name,
            boot_id=f"{self.name}-{self.boots}",
            capabilities=self.capabilities,
            batch_slots=self.slots,
            service_slots=0,
            queue=self.queue,
            held={},
            behind={},
            instead={},
            endings={},
            results={},
            quarantine={},
            outside={},
        )
        self.results = self.state.results  # type: ignore[assignment]
        self._beaten: tuple[str | float | int | None, float] = (None, 0.0)
        self._feel(TookBack([(self._held(order), order.facts) for order in self.orders.values()]))

    def _held(self, order: Order) -> Held:
        waits = self.lined_up.get(order.attempt)
        return Held(
            attempt=order.attempt,
            task_id=order.task_id,
            started_at=0.0 if waits else EPOCH,
            after=list(waits.after) if waits else [],
            ended=self.ends.get(order.attempt),
        )

    # The connection

    def connect(self) -> None:
        if self.is_down:
            self._begin_anew()
        self.session = self.world.new_session(self)
        self._connected_at = self._heard_at = self.world.now
        self._feel(Connected())
        self.world.after(self.world.rng.uniform(0, HEARTBEAT_S), partial(self.beat, self.session))

    def disconnected(self) -> None:
        self._feel(ConnectionLost())
        super().disconnected()

    def beat(self, session: int) -> None:
        if session != self.session:
            return
        if self.world.now >= self._heard_at + SILENCE_S:
            self.disconnected()
            return
        self._feel(BeatDue())
        self.world.after(HEARTBEAT_S, partial(self.beat, session))

    def worker_killed(self) -> None:
        """The worker's process dies; its supervisor and its tasks go on, and are there when it comes back."""
        self.is_down = True
        self.world.cut(self)

    def power_cut(self) -> None:
        self.orders.clear()
        self.ends.clear()
        self.lined_up.clear()
        self.is_down = True
        super().power_cut()

    def kept(self) -> list[str]:
        return [*self.orders, *self.state.endings, *self.state.results]

    # What it hears

    def hear(self, effect: Heard, session: int) -> None:
        if session != self.session:
            return
        self._heard_at = self.world.now
        match effect:
            case Acknowledge(of="heartbeat"):
                if effect.sent_at == self._beaten[0]:
                    self._connected_at = self._beaten[1]
                    self._feel(HubHeard(age_s=self.world.now - self._beaten[1]))
            case Acknowledge(of="job_result"):
                self._feel(Acknowledged(task_id=effect.task_id, attempt=effect.attempt))
            case AssignTask():
                self._assigned(effect)
            case CancelTask():
                self._feel(
                    CancelAsked(
                        task_id=effect.task_id,
                        attempt=effect.attempt,
                        reason=effect.reason,
                        grace_s=effect.grace_s,
                        unstarted=effect.unstarted,
                    )
                )
            case CloseSession():
                self.disconnected()

    def _assigned(self, effect: AssignTask) -> None:
        is_whole = bool(effect.devices) and not self.world.shares(effect.task_id)
        order = Order(
            task_id=effect.task_id,
            attempt=effect.attempt,
            facts=Facts(devices=effect.devices, whole=is_whole),
            spec=TaskSpec(id=effect.task_id, command=["true"]),
            remaining_s=effect.remaining_s,
            after=effect.after,
        )
        knew = effect.attempt in self.state.results
        self._feel(Assigned(order))
        self.world.clashes += effect.attempt in self.state.results and not knew

    # What its core asks for

    def _feel(self, event: Event) -> None:
        if self.is_down:
            return
        for effect in step(self.state, event, EPOCH + self.world.now):
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._say(effect.message)
            case LaunchTask():
                self._launch(effect.order)
            case StopTask():
                self._end_early(effect.attempt, effect.reason, effect.grace_s)
            case CallBack() if effect.attempt in self.lined_up:
                self._end_early(effect.attempt, BY_RECALL, 0.0)
            case CollectOutcome():
                slowly = self.world.rng.random() < SLOW
                delay = effect.after_s + self.world.rng.uniform(0, COLLECTS_WITHIN_S[slowly])
                self.world.after(delay, partial(self._collected, self.state, effect.attempt))
            case RenewLeases():
                self._contact = max(self._contact, self.world.now - effect.age_s)
            case ForgetTask():
                self.ends.pop(effect.attempt, None)
                self.orders.pop(effect.attempt, None)

    def _collected(self, state: State, attempt: str) -> None:
        if state is self.state:
            self._feel(OutcomeCollected(attempt=attempt, unreachable=not self.session))

    def _say(self, message: Message) -> None:
        name, session = self.name, self.session
        match message:
            case Register():
                ahead = min(self.ahead, message.protocol.ahead)
                said = msgspec.structs.asdict(message)
                del said["id"], said["protocol"]
                self._send(WorkerRegistered(worker_id=name, session=session, ahead=ahead, **said))
            case Heartbeat():
                self._beaten = (message.sent_at, self.world.now)
                self._send(
                    WorkerBeat(
                        worker_id=name,
                        session=session,
                        slots=message.slots,
                        capabilities=message.capability,
                        active_tasks=None if message.active_tasks is msgspec.UNSET else message.active_tasks,
                        sent_at=message.sent_at,
                        draining=message.draining,
                    )
                )
            case ReadyForWork():
                self._send(WorkerAsked(worker_id=name, session=session, slots=message.slots))
            case JobAccepted():
                self._send(
                    TaskAccepted(worker_id=name, session=session, task_id=message.task_id, attempt=message.attempt)
                )
            case JobResult():
                self._send(self._result(message))

    def _result(self, message: JobResult) -> TaskEnded:
        return TaskEnded(
            worker_id=self.name,
            session=self.session,
            task_id=message.task_id,
            attempt=message.attempt,
            state=message.state,
            exit_code=message.exit_code,
            error=message.error,
            fault=message.fault,
            run_s=message.run_s,
        )

    # Its supervisor

    def _launch(self, order: Order) -> None:
        if order.attempt in self.orders:
            return  # a second launch of the same attempt does nothing
        self.orders[order.attempt] = order
        self._contact = max(self._contact, self._connected_at)  # whoever orders it was in contact since then
        if any(name in self.processes or name in self.lined_up for name in order.after):
            self.lined_up[order.attempt] = order
        elif self.queue:
            self.lined_up[order.attempt] = order
            self.world.after(self.world.rng.choice(TURN_COMES_S), partial(self._turn_came, order))
        else:
            self._run(order)

    def _turn_came(self, order: Order) -> None:
        if self.lined_up.get(order.attempt) is order:
            del self.lined_up[order.attempt]
            if self.world.now >= self._alone_until(order.task_id):
                self._gone(order.attempt, TERMINATED, BY_LEASE)
                return
            self._run(order)
            self.world.after(self._held_up_s(), partial(self._feel, Begun(attempt=order.attempt)))

    def _alone_until(self, task_id: str) -> float:
        """Then it ends by itself, and if it has not begun it never does: without contact it would not be alone."""
        grace_s = self.world.alone_for(task_id)
        return self._contact + grace_s - STOPS_EARLIER_S if grace_s else math.inf

    def _held_up_s(self) -> float:
        return self.world.rng.choice(HELD_UP_S) if self.queue else 0.0

    def _run(self, order: Order) -> None:
        now, shares = self.world.now, self.world.shares(order.task_id)
        ends_at = now + self.world.duration(order.task_id)
        process = Process(order.task_id, order.attempt, order.facts.devices, not shares, ends_at, began_at=now)
        self.processes[order.attempt] = process
        self.world.started(self, process)
        self.world.at(ends_at, partial(self._exit, process))
        if order.remaining_s:
            self.world.after(order.remaining_s, partial(self._end_early, order.attempt, BY_BUDGET, 10.0))
        self._watch(process)

    def _exit(self, process: Process) -> None:
        if self.processes.get(process.attempt) is process and not process.stopping:
            fails = self.world.rng.random() < self.world.failure_rate
            self._gone(process.attempt, 1 if fails else 0, "")

    def _watch(self, process: Process) -> None:
        over_at = self._alone_until(process.task_id)
        if math.isinf(over_at) or self.processes.get(process.attempt) is not process or process.stopping:
            return
        if over_at > self.world.now:
            self.world.at(over_at, partial(self._watch, process))
        else:
            self._end_early(process.attempt, BY_LEASE, 10.0)

    def _end_early(self, attempt: str, reason: str, grace_s: float) -> None:
        process = self.processes.get(attempt)
        if attempt in self.lined_up:
            gone = self.lined_up.pop(attempt)
            for other in self.lined_up.values():  # they wait for what it waited for
                if attempt in other.after:
                    other.after = gone.after
            self._gone(attempt, TERMINATED, reason)
        elif process is not None and not process.stopping:
            process.stopping = True
            held_up_s = 0.0 if reason == BY_LEASE else self._held_up_s()  # that, whoever runs it sees to by itself
            delay_s = held_up_s + self.world.rng.uniform(0, grace_s)
            self.world.after(delay_s, partial(self._stopped, process, reason))

    def _stopped(self, process: Process, reason: str) -> None:
        if self.processes.get(process.attempt) is process:
            self._gone(process.attempt, TERMINATED, reason)

    def _gone(self, attempt: str, exit_code: int, stopped: str) -> None:
        """All its processes are gone: whoever waited for it begins, whether a worker is there or not."""
        process = self.processes.pop(attempt, None)
        order = self.orders[attempt]
        ran_s = self.world.now - process.began_at if process is not None else 0.0
        end = Ended(attempt=attempt, task_id=order.task_id, exit_code=exit_code, stopped=stopped, ran_s=ran_s)
        self.ends[attempt] = end
        if process is not None:
            self.world.exited(process, "succeeded" if exit_code == 0 else "failed")
        self._feel(ProcessEnded(end))
        for waiting in [one for one in self.lined_up.values() if attempt in one.after]:
            del self.lined_up[waiting.attempt]
            self._run(waiting)
