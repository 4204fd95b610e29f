"""Hub, machines and network on one virtual clock. Everything that happens follows from the seed."""

import heapq
import random
from collections.abc import Callable, Sequence
from functools import partial

from ostler.core.check import check
from ostler.core.effects import (
    Acknowledge,
    Answer,
    AssignTask,
    CancelTask,
    CloseSession,
    Effect,
    HintSnapshot,
    Refuse,
    Reply,
    SayNoWork,
)
from ostler.core.events import (
    CancelRequested,
    ClaimEnded,
    Event,
    JobsSubmitted,
    NewJob,
    RequeueRequested,
    TaskEnded,
    TimePassed,
    WorkerLeft,
)
from ostler.core.fleet import Fleet
from ostler.core.learning.kinds import kind_of
from ostler.core.persist import restore, take_changes
from ostler.core.placing.place import settle, settled
from ostler.core.step import step
from ostler.domain import states
from ostler.domain.job import JobSpec
from ostler.domain.scheduling import Scheduling
from ostler.domain.worker import Capabilities
from ostler.ledger.base import Ledger
from ostler.ledger.memory import MemoryLedger
from ostler.sim.account import Account
from ostler.sim.faults import NONE, Faults
from ostler.sim.machine import Machine, Process
from ostler.sim.puller import Puller

EPOCH = 1_700_000_000.0
COMMIT_S = 0.004
ANSWERED_WITHIN_S = 30.0
"""Whoever asks over HTTP gives up waiting then, whatever became of the question."""
CUTS_OF_PULLERS = 10.0
"""They are cut off for longer than a connection is, and less often."""
CUT_OFF_MOST_S = 1200.0
HOLD_AFTER_S = (0.0, 20.0, 200.0, 600.0)
"""How long a job waits for a hold: each seed has its own."""


class Violation(AssertionError):
    """The world saw something that must never happen."""


class World:
    def __init__(
        self,
        seed: int,
        machines: list[tuple[Capabilities, int]],
        faults: Faults = NONE,
        pullers: Sequence[Capabilities] = (),
        ahead: int = 0,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.faults = faults
        self.now = 0.0
        self.events = 0
        self.clashes = 0
        self.failure_rate = 0.1
        self.check_every = 1
        self.acknowledged: set[str] = set()
        self.policy = Scheduling(hold_after_s=random.Random(f"policy {seed}").choice(HOLD_AFTER_S))
        self.ledger: Ledger = MemoryLedger()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._ref = 0
        self._asked_before = 0
        self._session = 0
        self._links: dict[int, Machine] = {}
        self._durations: dict[str, float] = {}
        self._sharing: set[str] = set()
        self._alone: dict[str, float] = {}
        """Jobs that must never run twice at once, with the grace of each."""
        self._asked: dict[int, Callable[[Reply | None], None]] = {}
        self._last_arrival: dict[tuple[str, int], float] = {}
        self.in_order = bool(pullers)
        """What is said on one connection arrives in the order in which it was said, late or not at all. Without that
        much nobody can tell an old account from a new one, and a task that is taken for lost runs twice."""
        self.account = Account()
        self._inbox: list[Event] = []
        self._pumping = False
        self.fleet = self._load()
        self.hub_up = True
        self.machines = [
            Machine(self, f"w{i:03d}", offer, slots, ahead if i % 3 else 0) for i, (offer, slots) in enumerate(machines)
        ]
        for machine in self.machines:
            self.after(self.rng.uniform(0, 2), machine.reconnect)
        self.pullers = [Puller(self, f"p{i:03d}", offer, stubborn=i % 4 == 3) for i, offer in enumerate(pullers)]
        for puller in self.pullers:
            self.after(self.rng.uniform(0, 2), puller.poll)
        self._schedule_faults()

    # Time

    def at(self, time: float, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (time, self._order, action))

    def after(self, delay: float, action: Callable[[], None]) -> None:
        self.at(self.now + delay, action)

    def run(self, until: float, max_events: int | None = None) -> None:
        while self._heap and self._heap[0][0] <= until:
            if max_events is not None and self.events >= max_events:
                return
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = max(self.now, until)

    # The hub: inbox → step each → place → commit → perform, and a crash at any point between

    def _load(self) -> Fleet:
        fleet = restore(self.ledger.load(), lambda: f"{self.rng.getrandbits(64):016x}", self.now, EPOCH)
        fleet.policy = self.policy
        return fleet

    def hear(self, event: Event) -> None:
        if not self.hub_up:
            return
        self._inbox.append(event)
        if not self._pumping:
            self._pumping = True
            self.after(COMMIT_S, self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if not self.hub_up:
            return
        batch, self._inbox = self._inbox, []
        effects: list[Effect] = []
        for event in batch:
            self._look_up(event)
        for event in [*batch, TimePassed()]:
            self.events += 1
            effects += step(self.fleet, event, self.now)
            if self.events % self.check_every == 0:
                check(self.fleet, self.now, after_pass=False)
        effects += settle(self.fleet, self.now)
        check(self.fleet, self.now, after_pass=settled(self.fleet))
        self.ledger.commit(take_changes(self.fleet, self.now))
        for effect in effects:
            self._perform(effect)
        self._watch_outcomes()
        self._wake_at_next_deadline()
        if not settled(self.fleet):
            self.hear(TimePassed())

    def _wake_at_next_deadline(self) -> None:
        due = self.fleet.timers.next_at()
        if due is not None:
            fleet = self.fleet
            self.at(max(due, self.now), lambda: self.hear(TimePassed()) if fleet is self.fleet else None)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Reply) and effect.ref < 0:
            self._reply(effect)
            return
        match effect:
            case Answer():
                self.acknowledged.update(effect.ids)
            case Refuse():
                raise Violation(f"refused: {effect.error}")
            case AssignTask() | CancelTask() | Acknowledge() | SayNoWork() | CloseSession() | HintSnapshot():
                self._to_machine(effect, effect.session)
            case _:
                return  # for those who look on

    def crash_hub(self) -> None:
        """Memory, inbox and links are gone; what the ledger has is not."""
        if not self.hub_up:
            return
        self.hub_up = False
        self._inbox.clear()
        for session in list(self._links):
            self._drop_link(session)
        self.after(self.rng.uniform(0.5, 60.0), self._restart_hub)

    def _restart_hub(self) -> None:
        self.fleet = self._load()
        self.hub_up = True
        check(self.fleet, self.now, after_pass=False)
        self.hear(TimePassed())

    # The network

    def new_session(self, machine: Machine) -> int:
        self._session += 1
        self._links[self._session] = machine
        return self._session

    def to_hub(self, machine: Machine, event: Event, session: int) -> None:
        def arrive() -> None:
            if session in self._links:
                self.hear(event)

        self._carry(arrive, ("up", session))
        if not self.hub_up and machine.session == session:
            self.after(self.rng.uniform(0, 1), lambda: self._drop_link(session))

    def _to_machine(self, effect: Effect, session: int) -> None:
        machine = self._links.get(session)
        if machine is not None:
            self._carry(lambda: machine.hear(effect, session), ("down", session))

    def request(self, puller: Puller, make: Callable[[int], Event], answered: Callable[[Reply | None], None]) -> None:
        """One request over HTTP. It may get lost, or its answer; None: there was none in time."""
        ref = -1 - self._asked_before
        self._asked_before += 1
        event = make(ref)

        def unless_cut(reply: Reply | None) -> None:
            if reply is None or not puller.is_cut_off:
                del self._asked[ref]
                answered(reply)

        self._asked[ref] = unless_cut
        self._carry(lambda: None if puller.is_cut_off else self.hear(event))
        self.after(ANSWERED_WITHIN_S, lambda: self._answer(ref, None))

    def _reply(self, effect: Reply) -> None:
        self._carry(lambda: self._answer(effect.ref, effect))

    def _answer(self, ref: int, reply: Reply | None) -> None:
        answered = self._asked.get(ref)
        if answered is not None:
            answered(reply)

    def _carry(self, arrive: Callable[[], None], lane: tuple[str, int] | None = None) -> None:
        is_stream = self.in_order and lane is not None
        copies = 2 if self.rng.random() < self.faults.duplicate and not is_stream else 1
        for _ in range(copies):
            if self.rng.random() < self.faults.lose and not is_stream:
                continue
            slow = self.rng.random() < self.faults.slow
            delay = self.rng.uniform(0.0005, 0.02) + (self.rng.uniform(0, self.faults.slow_s) if slow else 0)
            at = self.now + delay
            if is_stream and lane is not None:
                at = self._last_arrival[lane] = max(at, self._last_arrival.get(lane, 0.0))
            self.at(at, arrive)

    def cut(self, machine: Machine) -> None:
        """The link breaks. One side may notice long after the other."""
        session = machine.session
        if not session:
            return
        if self.faults.cut_one_way and self.rng.random() < 0.5:
            machine.disconnected()
            self.after(self.rng.uniform(0, 60), lambda: self._drop_link(session))
        else:
            self._drop_link(session)

    def _drop_link(self, session: int) -> None:
        machine = self._links.pop(session, None)
        if machine is None:
            return
        self.hear(WorkerLeft(worker_id=machine.name, session=session))
        if machine.session == session:
            machine.disconnected()

    # Faults

    def _schedule_faults(self) -> None:
        self._every(self.faults.hub_crash_every_s, self.crash_hub)
        for machine in self.machines:
            self._every(self.faults.cut_every_s, partial(self.cut, machine))
            self._every(self.faults.worker_crash_every_s, partial(self.cut, machine))
            self._every(self.faults.machine_crash_every_s, machine.power_cut)
        for puller in self.pullers:
            self._every(CUTS_OF_PULLERS * self.faults.cut_every_s, partial(self._cut_off, puller))
            self._every(self.faults.worker_crash_every_s, puller.leave)
            self._every(self.faults.machine_crash_every_s, puller.power_cut)

    def _cut_off(self, puller: Puller) -> None:
        puller.cut_off(self.rng.uniform(0, CUT_OFF_MOST_S))

    def _every(self, mean_s: float, action: Callable[[], None]) -> None:
        if not mean_s:
            return

        def again() -> None:
            if self.faults is not NONE:
                action()
                self._every(mean_s, action)

        self.after(self.rng.expovariate(1 / mean_s), again)

    def calm(self) -> None:
        """From here on nothing fails, so that everything must end."""
        self.faults = NONE
        self.failure_rate = 0.0
        for puller in self.pullers:
            puller.mend()

    # The users

    def submit(self, spec: JobSpec, duration_s: float) -> None:
        spec.depends_on = [name for name in spec.depends_on if name in self.acknowledged]
        request = spec.request()
        self._durations[spec.id] = duration_s
        if request.shares_gpu:
            self._sharing.add(spec.id)
        if spec.on_lost_contact == "stop":
            self._alone[spec.id] = spec.terms().grace_s
        new = NewJob(
            id=spec.id,
            user=spec.user_id or "someone",
            name=spec.name,
            spec=b"{}",
            request=request,
            terms=spec.terms(),
            size=spec.size(),
            depends_on=spec.depends_on,
            kind=kind_of(spec),
        )
        self._ref += 1
        self.hear(JobsSubmitted(ref=self._ref, jobs=[new]))

    def cancel(self, job_id: str) -> None:
        self.account.cancelled.add(job_id)
        self._ref += 1
        self.hear(CancelRequested(ref=self._ref, job_id=job_id))

    def requeue(self, job_id: str) -> None:
        if job_id in self.ledger.jobs([job_id]):
            self.account.requeues[job_id] += 1
            self._ref += 1
            self.hear(RequeueRequested(ref=self._ref, job_id=job_id))

    def _look_up(self, event: Event) -> None:
        """As the loop does it: what has left memory comes from the ledger."""
        if isinstance(event, JobsSubmitted):
            event.known = self.ledger.jobs([name for new in event.jobs for name in new.depends_on])
        elif isinstance(event, RequeueRequested):
            event.ended = self.ledger.jobs([event.job_id])[event.job_id]
            rows = self.ledger.tasks_of(event.job_id)
            event.ended_tasks = [task for task in rows if task.state in states.TERMINAL]
        elif isinstance(event, ClaimEnded):
            event.history = self.ledger.attempts_of(event.end.task_id)

    def duration(self, task_id: str) -> float:
        return self._durations[task_id.partition(".")[0]]

    def shares(self, task_id: str) -> bool:
        return task_id.partition(".")[0] in self._sharing

    def alone_for(self, task_id: str) -> float:
        """Of what must never run twice at once: the hub's grace; else 0."""
        return self._alone.get(task_id.partition(".")[0], 0.0)

    # What must hold, seen from outside the core

    def started(self, machine: Machine | Puller, process: Process) -> None:
        if self.in_order and self.alone_for(process.task_id) and not machine.stubborn:
            self._runs_alone(machine, process)
        taken: dict[int, str] = {}
        for other in machine.processes.values():
            for device in other.devices if other.whole else ():
                if device in taken:
                    raise Violation(f"{machine.name}: {taken[device]} and {other.task_id} both run on GPU {device}")
                taken[device] = other.task_id

    def _runs_alone(self, machine: Machine | Puller, process: Process) -> None:
        others: list[Machine | Puller] = [*self.machines, *self.pullers]
        for other in [one for one in others if not one.stubborn]:
            for beside in other.processes.values():
                if beside is not process and beside.task_id == process.task_id:
                    raise Violation(f"{process.task_id} runs on {other.name} and on {machine.name} at once")

    def exited(self, process: Process, state: str) -> None:
        if state == states.SUCCEEDED:
            self.account.succeeded.add(process.attempt)

    def taken(self, end: TaskEnded) -> None:
        """The hub has answered that it took this end."""
        if end.state == states.SUCCEEDED:
            self.account.taken.add((end.task_id, end.attempt))

    def contradicted(self, told: str) -> None:
        raise Violation(f"the hub contradicts itself: {told}")

    def _watch_outcomes(self) -> None:
        """An acknowledged job is there, for ever."""
        sample = list(self.acknowledged)[:20] if len(self.acknowledged) > 200 else list(self.acknowledged)
        missing = set(sample) - set(self.ledger.jobs(sample))
        if missing:
            raise Violation(f"acknowledged and not in the ledger: {sorted(missing)}")

    def unfinished(self) -> list[str]:
        records = self.ledger.jobs(self.acknowledged)
        lost = self.acknowledged - records.keys()
        if lost:
            raise Violation(f"acknowledged and lost: {sorted(lost)}")
        return [f"{job.id}: {job.state}" for job in records.values() if job.state not in states.TERMINAL]
