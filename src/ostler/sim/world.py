"""Hub, machines and network on one virtual clock. Everything that happens follows from the plan."""

import heapq
import random
from collections import Counter
from collections.abc import Callable

import msgspec

from ostler.core.check import check, check_touched
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
    DrainRequested,
    Event,
    HubWasAway,
    JobsSubmitted,
    NewJob,
    RequeueRequested,
    TaskEnded,
    TimePassed,
    WorkerAsked,
)
from ostler.core.fleet import Fleet
from ostler.core.learning.kinds import kind_of
from ostler.core.persist import restore, take_changes
from ostler.core.placing.place import settle, settled
from ostler.core.step import step
from ostler.domain import states
from ostler.domain.quota import Quotas
from ostler.domain.scheduling import Scheduling
from ostler.ledger.base import Ledger
from ostler.ledger.memory import MemoryLedger
from ostler.sim import account, plan
from ostler.sim.account import SETTLED_S, Account, Violation
from ostler.sim.agent import Agent
from ostler.sim.machine import Machine, Process
from ostler.sim.network import FAIR, Network
from ostler.sim.plan import Deed, Plan, PlannedJob, PlannedMachine
from ostler.sim.promises import Promises
from ostler.sim.puller import Puller

EPOCH = 1_700_000_000.0
COMMIT_S = 0.004
AWAY_S = 20.0
"""A hub that was held up for longer knows that it was."""
LOOK_EVERY_S = 10.0
CHECK_EVERY = 16
"""Batches between two checks of everything; what a batch has touched is checked after each."""
UNASKED = 0
"""The number of a request whose answer nobody waits for."""


class World:
    def __init__(self, given: Plan, check_every: int = CHECK_EVERY) -> None:
        self.plan, self.seed = given, given.seed
        self.rng = random.Random(given.seed)
        self.check_every = check_every
        """Batches between two checks of everything; 1: after every event."""
        self.now = 0.0
        self.events = self.batches = self.clashes = self.begun = 0
        self.done: Counter[str] = Counter()
        """The deeds that came to something."""
        self.failure_rate = given.failing
        self.acknowledged: set[str] = set()
        self.ledger: Ledger = MemoryLedger()
        self.account, self.promises = Account(), Promises()
        self.network = Network(self, given.weather)
        self.in_order = given.weather.in_order
        self.loses_nothing = given.loses_nothing
        self.is_steady = given.is_steady
        self.settled_at = SETTLED_S if given.is_calm else float("inf")
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._wakes_at = float("inf")
        self._ref = UNASKED
        self._jobs: dict[str, PlannedJob] = {}
        self._alone: dict[str, float] = {}
        """Jobs that must never run twice at once, with the grace of each."""
        self._inbox: list[Event] = []
        self._pumping = False
        self._stalled_until = 0.0
        self._falls: tuple[int, float] | None = None
        """At which point of its next batch the hub dies, and for how long."""
        self._wall_offset = 0.0
        self.fleet = self._load()
        self.hub_up = True
        self.machines = [self._machine(one) for one in given.machines if not one.claims]
        self.pullers = [Puller(self, one) for one in given.machines if one.claims]
        for machine in self.machines:
            self.after(self.rng.uniform(0, 2), machine.reconnect)
        for puller in self.pullers:
            self.after(self.rng.uniform(0, 2), puller.poll)
        for job in given.jobs:
            self.at(job.at, lambda job=job: self.submit(job))  # type: ignore[misc]
        for deed in given.deeds:
            self.at(deed.at, lambda deed=deed: self._do(deed))  # type: ignore[misc]
        self.after(LOOK_EVERY_S, self._look)

    def _machine(self, one: PlannedMachine) -> Machine:
        if one.real:
            return Agent(self, one.name, one.offer, one.slots, one.ahead, one.queue)
        return Machine(self, one.name, one.offer, one.slots, one.ahead, one.plain)

    # Time

    def at(self, time: float, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (time, self._order, action))

    def after(self, delay: float, action: Callable[[], None]) -> None:
        self.at(self.now + delay, action)

    def run(self, until: float) -> None:
        while self._heap and self._heap[0][0] <= until:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = max(self.now, until)

    # The hub: inbox → step each → place → commit → perform, and a crash at any point between

    def _load(self) -> Fleet:
        epoch = EPOCH + self._wall_offset
        fleet = restore(self.ledger.load(), lambda: f"{self.rng.getrandbits(64):016x}", self.now, epoch)
        fleet.policy = Scheduling(hold_after_s=self.plan.hold_after_s, claim_lease_s=self.plan.claim_lease_s)
        fleet.set_quotas(Quotas(default=self.plan.quota))
        return fleet

    @property
    def is_busy(self) -> bool:
        return bool(self._inbox) or not self.hub_up

    def hear(self, event: Event) -> None:
        if self.hub_up:
            self._inbox.append(event)
            self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            self.after(COMMIT_S, self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if not self.hub_up or self.now < self._stalled_until:
            return
        most = self.plan.batch or len(self._inbox)
        batch, self._inbox = self._inbox[:most], self._inbox[most:]
        effects = self._step(batch)
        if self._dies(plan.BEFORE_COMMIT):
            return
        changes = take_changes(self.fleet, self.now)
        if changes:
            self.ledger.commit(changes)
        if self._dies(plan.AFTER_COMMIT):
            return
        dies_among = self._falls is not None
        for effect in effects[: len(effects) // 2] if dies_among else effects:
            self._perform(effect)
        if self._dies(plan.AMONG_EFFECTS):
            return
        self._wake_at_next_deadline()
        if self._inbox or not settled(self.fleet):
            self._pump_soon()

    def _step(self, batch: list[Event]) -> list[Effect]:
        fleet, now = self.fleet, self.now
        fleet.epoch = EPOCH + self._wall_offset
        for event in batch:
            self._look_up(event)
        effects: list[Effect] = []
        for event in [*batch, TimePassed()]:
            self.events += 1
            effects += step(fleet, event, now)
            if self.check_every == 1:
                check(fleet, now, after_pass=False)
        effects += settle(fleet, now)
        self.batches += 1
        if self.batches % self.check_every == 0:
            check(fleet, now, after_pass=settled(fleet))
        else:
            check_touched(fleet)
        return effects

    def _wake_at_next_deadline(self) -> None:
        due = self.fleet.timers.next_at()
        if due is None or self.now < self._wakes_at <= due:
            return
        self._wakes_at, fleet = max(due, self.now), self.fleet
        self.at(self._wakes_at, lambda: self._pump_soon() if fleet is self.fleet else None)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Reply) and effect.ref < UNASKED:
            self.network.reply(effect)
            return
        match effect:
            case Answer():
                self.acknowledged.update(effect.ids if effect.ref != UNASKED else ())
            case Refuse() if effect.ref != UNASKED:
                raise Violation(f"refused: {effect.error}")
            case AssignTask() | CancelTask() | Acknowledge() | SayNoWork() | CloseSession() | HintSnapshot():
                self.network.to_machine(effect, effect.session)
            case _:
                return  # for those who look on

    def _dies(self, point: int) -> bool:
        if self._falls is None or self._falls[0] != point:
            return False
        self._fall(self._falls[1])
        return True

    def crash_hub(self, point: int, seconds: float) -> None:
        if self.hub_up and point == plan.AT_REST:
            self._fall(seconds)
        elif self.hub_up:
            self._falls = (point, seconds)
            self._pump_soon()

    def _fall(self, seconds: float) -> None:
        """Memory, inbox and links are gone; what the ledger has is not."""
        self.hub_up = False
        self._falls = None
        self._stalled_until = 0.0
        self._inbox.clear()
        self.network.drop_all()
        self.after(seconds, self._restart_hub)

    def _restart_hub(self) -> None:
        self.fleet = self._load()
        self.hub_up = True
        self._wakes_at = float("inf")
        check(self.fleet, self.now, after_pass=False)
        self._all_there()
        self._pump_soon()

    def stall_hub(self, seconds: float) -> None:
        """It does not run for a while; what waits for it is read before anyone is declared lost."""
        if self.hub_up:
            self._stalled_until = self.now + seconds
            fleet = self.fleet
            self.after(seconds, lambda: self._wake_up(seconds) if fleet is self.fleet and self.hub_up else None)

    def _wake_up(self, seconds: float) -> None:
        if seconds > AWAY_S:
            self._inbox.insert(0, HubWasAway(seconds))
        self._pump_soon()

    # What is done to the world

    def _do(self, deed: Deed) -> None:
        self.done[deed.what] += 1
        match deed.what:
            case plan.HUB_CRASH:
                self.crash_hub(deed.detail, deed.seconds)
            case plan.HUB_STALL:
                self.stall_hub(deed.seconds)
            case plan.WALL_JUMP:
                self._wall_offset += deed.seconds
            case plan.CANCEL | plan.REQUEUE | plan.CANCEL_TASK | plan.REQUEUE_TASK:
                self._user(deed)
            case _:
                self._to_a_machine(deed)

    def _to_a_machine(self, deed: Deed) -> None:
        for machine in [one for one in self.machines if one.name == deed.on]:
            self._to_machine(deed, machine)
        for puller in [one for one in self.pullers if one.name == deed.on]:
            self._to_puller(deed, puller)

    def _to_machine(self, deed: Deed, machine: Machine) -> None:
        match deed.what:
            case plan.DRAIN | plan.RESUME:
                self.drain(machine.name, deed.what == plan.DRAIN)
            case plan.ASK if machine.session:
                self.to_hub(machine, WorkerAsked(worker_id=machine.name, session=machine.session), machine.session)
            case plan.CUT:
                machine.away_until = self.now + deed.seconds
                self.cut(machine)
            case plan.CUT_UP | plan.CUT_DOWN:
                self.network.cut_one_way(machine, "up" if deed.what == plan.CUT_UP else "down")
            case plan.WORKER_KILLED:
                machine.away_until = self.now + deed.seconds
                machine.worker_killed()
            case plan.WORKER_STALL:
                self.network.hold(machine, deed.seconds)
            case plan.POWER_CUT:
                machine.away_until = self.now + deed.seconds
                machine.power_cut()
            case plan.BURNS:
                machine.burn(silently=bool(deed.detail))
                self.machines.remove(machine)

    def _to_puller(self, deed: Deed, puller: Puller) -> None:
        match deed.what:
            case plan.DRAIN | plan.RESUME:
                self.drain(puller.name, deed.what == plan.DRAIN)
            case plan.CUT | plan.CUT_UP | plan.CUT_DOWN | plan.WORKER_STALL:
                puller.cut_off(deed.seconds)
            case plan.WORKER_KILLED:
                puller.leave()
            case plan.POWER_CUT:
                puller.power_cut(deed.seconds)
            case plan.BURNS:
                puller.power_cut(float("inf"))
                self.pullers.remove(puller)

    def calm(self) -> None:
        """From here on nothing fails, so that everything must end."""
        self.network.weather = msgspec.structs.replace(FAIR, in_order=self.in_order)
        self.failure_rate = 0.0
        self.settled_at = min(self.settled_at, self.now + self.plan.worst_delay_s() + SETTLED_S)
        for puller in self.pullers:
            puller.mend()
        self._open_all()

    def _open_all(self) -> None:
        """Nobody keeps a machine closed for ever."""
        for name in [*(one.name for one in self.machines), *(one.name for one in self.pullers)]:
            self.drain(name, False)
        if self.now < self.settled_at:
            self.after(LOOK_EVERY_S, self._open_all)

    # The users

    def submit(self, job: PlannedJob) -> None:
        spec = job.spec
        needs = [name for name in spec.depends_on if name in self.acknowledged]
        self._jobs[spec.id] = job
        terms = spec.terms()
        if terms.stops_alone:
            self._alone[spec.id] = terms.grace_s
        new = NewJob(
            id=spec.id,
            user=spec.user_id or "someone",
            name=spec.name,
            spec=b"{}",
            request=spec.request(),
            terms=terms,
            size=spec.size(),
            depends_on=needs,
            kind=kind_of(spec),
        )
        self._ref += 1
        self.promises.submitted(spec.id, needs)
        self.hear(JobsSubmitted(ref=self._ref, jobs=[new]))

    def _user(self, deed: Deed) -> None:
        """People cancel and requeue what they know of."""
        if deed.on not in self.acknowledged:
            return
        index = deed.detail if deed.what in (plan.CANCEL_TASK, plan.REQUEUE_TASK) else None
        if deed.what in (plan.CANCEL, plan.CANCEL_TASK):
            self.account.cancelled.add(deed.on)
            self.hear(CancelRequested(ref=UNASKED, job_id=deed.on, index=index))
        else:
            self.account.requeues[deed.on] += 1
            self.hear(RequeueRequested(ref=UNASKED, job_id=deed.on, index=index))

    def drain(self, name: str, draining: bool) -> None:
        if name in self.fleet.workers:
            self.hear(DrainRequested(ref=UNASKED, worker_id=name, draining=draining))

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

    # What machines ask of the world

    def new_session(self, machine: Machine) -> int:
        return self.network.open(machine)

    def to_hub(self, machine: Machine, event: Event, session: int) -> None:
        self.network.to_hub(machine, event, session)

    def cut(self, machine: Machine) -> None:
        self.network.cut(machine)

    def request(self, puller: Puller, make: Callable[[int], Event], answered: Callable[[Reply | None], None]) -> None:
        self.network.request(puller, make, answered)

    def _planned(self, task_id: str) -> PlannedJob:
        return self._jobs[task_id.partition(".")[0]]

    def duration(self, task_id: str) -> float:
        return self._planned(task_id).duration_s

    def shares(self, task_id: str) -> bool:
        return self._planned(task_id).spec.request().shares_gpu

    def alone_for(self, task_id: str) -> float:
        """Of what must never run twice at once: the hub's grace; else 0."""
        return self._alone.get(task_id.partition(".")[0], 0.0)

    def started(self, machine: Machine | Puller, process: Process) -> None:
        self.begun += 1
        account.starts(self, machine, process)
        self.promises.started(self, machine, process)

    def exited(self, process: Process, state: str) -> None:
        self.promises.exited(self, process)
        if state == states.SUCCEEDED:
            self.account.succeeded.add(process.attempt)

    def taken(self, end: TaskEnded) -> None:
        """The hub has answered that it took this end."""
        if end.state == states.SUCCEEDED:
            self.account.taken.add((end.task_id, end.attempt))

    def contradicted(self, told: str) -> None:
        raise Violation(f"the hub contradicts itself: {told}")

    # What must hold, seen from outside the core

    def _look(self) -> None:
        self.after(LOOK_EVERY_S, self._look)
        self.account.look(self)
        self.promises.look(self)

    def _all_there(self) -> None:
        """An acknowledged job is there, for ever."""
        missing = self.acknowledged - self.ledger.specs(self.acknowledged).keys()
        if missing:
            raise Violation(f"acknowledged and not in the ledger: {sorted(missing)}")

    def unfinished(self) -> list[str]:
        self._all_there()
        records = self.ledger.jobs(self.acknowledged)
        return sorted(job.id for job in records.values() if job.state not in states.TERMINAL)
