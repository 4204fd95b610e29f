"""A core fleet with model workers that keep their side of the protocol, and everything that may happen to them.

Each act takes small numbers that choose among what is there, so that Hypothesis can pick, order and shrink them. Messages are
kept until they are sent or lost: a frame may be late, come twice, or never come.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import Phase
from tests.core.core_fleet import CoreFleet, capabilities, submission
from tests.core.following import Following
from tests.core.portrait import difference, portrait
from tests.core.pulling import Pulling

from ostler.core.effects import Acknowledge, Answer, AssignTask, CancelTask, CloseSession, Effect, SayNoWork
from ostler.core.events import (
    DrainRequested,
    Event,
    HubWasAway,
    RequeueRequested,
    TaskAccepted,
    TaskEnded,
    WorkerAsked,
    WorkerBeat,
    WorkerLeft,
    WorkerRegistered,
)
from ostler.domain import states
from ostler.domain.worker import ActiveTask, Capabilities, Slots

OFFERS = [
    capabilities(cores=4, memory=8),
    capabilities(cores=8, memory=16, devices=[24, 24]),
    capabilities(cores=4, memory=8, devices=[24], labels={"zone": "eu"}),
    capabilities(cores=2, memory=16, devices=[24, 24, 24, 24]),
]
SPECS: list[dict[str, Any]] = [
    {},
    {"min_cpu_cores": 2, "min_memory_gb": 4, "user_id": "bob"},
    {"gpu_count": 1, "job_tier": "evaluation", "max_attempts": 0},
    {"gpu_count": 2, "priority": 5, "max_retries": 1},
    {"min_vram_gb": 10, "max_attempts": 1},
    {"array": 4, "max_retries": 1},
    {"array": 3, "gpu_count": 1, "scheduling_timeout_seconds": 40, "user_id": "bob"},
    {"scheduling_timeout_seconds": 20, "labels": ["zone = eu"]},
    {"max_runtime_hours": 0.02, "job_tier": "training"},
    {"gpu_count": 9},
    {"gpu_count": 1, "preemptible": True, "max_runtime_hours": 0.1},
    {"gpu_count": 2, "priority": 9, "user_id": "eve"},
    {"node_count": 2, "min_cpu_cores": 1, "max_retries": 1, "preemptible": True},
    {"node_count": 3, "job_tier": "evaluation", "user_id": "bob"},
    {"type": "service", "slot_pool": "batch", "max_retries": 2},
    {"depends_on": True, "min_cpu_cores": 1},
    {"depends_on": True, "array": 2},
    {"min_vram_gb": "auto", "min_memory_gb": "auto", "on_oom": "larger", "name": "auto"},
    {"min_vram_gb": "auto", "array": 3, "max_retries": 1, "name": "auto"},
    {"min_vram_gb": 6, "on_oom": "larger"},
]
"""`depends_on`: the job before."""
NO_EXPLAIN = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
"""Of a failure the shrunk acts are enough; to explain them line by line takes minutes."""
OUTCOMES = ["succeeded", "failed", "cancelled", "returned by fault", "returned by drain", "failed by vram"]
PAUSES = [0.5, 11.0, 31.0, 65.0, 130.0, 700.0]


class Machine:
    """What runs on a machine, what it still has to say, and what has been said to it. A plain one is of version 1: it knows of
    tasks and not of attempts."""

    def __init__(self, name: str, offer: Capabilities, *, plain: bool = False) -> None:
        self.name = name
        self.offer = offer
        self.plain = plain
        self.session = 0
        self.newest = 0
        """The last session that it registered on, with this hub."""
        self.boots = 0
        self.processes: dict[str, str] = {}
        self.results: dict[str, TaskEnded] = {}
        self.checkpoints: dict[str, str] = {}
        self.assigned: set[str] = set()
        """The attempts that it was sent."""
        self.inbox: list[Effect] = []
        self.outbox: list[Event] = []

    def account(self) -> list[ActiveTask]:
        active = [
            ActiveTask(task_id=task_id, attempt=self._named(key), checkpoint=self.checkpoints.get(key, ""))
            for key, task_id in self.processes.items()
        ]
        kept = [ActiveTask(task_id=r.task_id, attempt=r.attempt, state=r.state) for r in self.results.values()]
        return active + kept

    def _named(self, key: str) -> str:
        return "" if self.plain else key

    def hear(self, effect: Effect) -> None:
        key = getattr(effect, "task_id" if self.plain else "attempt", "")
        match effect:
            case AssignTask() if key not in self.processes and key not in self.results:
                self.processes[key] = effect.task_id
                named = self._named(effect.attempt)
                self._say(TaskAccepted(worker_id=self.name, session=0, task_id=effect.task_id, attempt=named))
            case CancelTask() if key not in self.results:
                self.processes.setdefault(key, effect.task_id)
                self.end(key, "cancelled")  # also of what is not here: the hub counts room for it until it hears that
            case Acknowledge(of="job_result"):
                self.results.pop(key, None)
            case CloseSession():
                self.session = 0

    def end(self, key: str, outcome: str) -> None:
        task_id = self.processes.pop(key)
        state, _, fault = outcome.partition(" by ")
        result = TaskEnded(
            worker_id=self.name,
            session=0,
            task_id=task_id,
            attempt=self._named(key),
            state=state,
            exit_code={"succeeded": 0, "failed": 1}.get(state),
            fault={"fault": "worker", "drain": "drain"}.get(fault, ""),
            lacked="vram" if fault == "vram" else "",
            peak_memory_mib=700 + len(task_id),
            peak_vram_mib=5_000 + 900 * len(self.results),
            checkpoint_id=self.checkpoints.pop(key, ""),
        )
        self.results[key] = result
        self._say(result)

    def _say(self, event: Event) -> None:
        self.outbox.append(event)

    def disconnected(self) -> None:
        """What was on its way is lost; results are kept and said again."""
        self.session = 0
        self.inbox.clear()
        self.outbox.clear()


class RandomFleet(Pulling, Following):
    """Acts, and what must hold after each of them."""

    def __init__(self) -> None:
        Pulling.__init__(self)
        Following.__init__(self)
        self.core = CoreFleet()
        self.machines = [Machine(f"w{number}", offer, plain=number == 2) for number, offer in enumerate(OFFERS[:3])]
        self.jobs: list[str] = []
        self.acknowledged: set[str] = set()
        self.waiting: list[Event] = []
        """What people asked for while the hub was busy: it comes last in the next batch."""
        self.said: list[Event] = []
        """What workers said before, to be said again out of turn."""
        self.ended: dict[str, str] = {}
        """Tasks seen in a terminal state."""
        self._sessions = 1000
        self._refs = 0

    # Plumbing

    def turn(self, *events: Event) -> None:
        batch, self.waiting = [*events, *self.waiting], []
        again = {event.job_id for event in batch if isinstance(event, RequeueRequested)}
        effects = self.core.turn(*batch)
        self._look_at_answers(batch, effects)
        for effect in effects:
            if answered := self.asked.pop(getattr(effect, "ref", 0), None):
                answered(effect)
            elif isinstance(effect, Answer):
                self.acknowledged.update(name for name in effect.ids if not name.startswith("w"))
            elif machine := self._at(getattr(effect, "session", -1)):
                machine.inbox.append(effect)
        self._look(again)

    def _at(self, session: int) -> Machine | None:
        return next((machine for machine in self.machines if session and machine.session == session), None)

    def _from(self, machine: Machine, event: Event) -> Event:
        spoken = msgspec.structs.replace(event, session=machine.session)
        self.said.append(spoken)
        return spoken

    def _one(self, number: int) -> Machine:
        return self.machines[number % len(self.machines)]

    def _connected(self, number: int) -> Machine | None:
        awake = [machine for machine in self.machines if machine.session]
        return awake[number % len(awake)] if awake else None

    # What people do

    def submit(self, which: int, _: int = 0) -> None:
        self._refs += 1
        job, spec = f"j{len(self.jobs)}", dict(SPECS[which % len(SPECS)])
        if spec.get("depends_on"):
            spec["depends_on"] = self.jobs[-1:]
        self.jobs.append(job)
        event = submission(self._refs, job, **spec)
        event.known = self.core.ledger.jobs(spec.get("depends_on", []))
        self.turn(event)

    def cancel(self, which: int, index: int) -> None:
        if self.jobs:
            job = self.jobs[which % len(self.jobs)]
            self.turn(self.core.cancellation(job, self._index(job, index)))

    def requeue(self, which: int, index: int) -> None:
        if self.jobs:
            job = self.jobs[which % len(self.jobs)]
            self.turn(self.core.requeueing(job, self._index(job, index)))

    def cancel_soon(self, which: int, index: int) -> None:
        if self.jobs:
            job = self.jobs[which % len(self.jobs)]
            self.waiting.append(self.core.cancellation(job, self._index(job, index)))

    def requeue_soon(self, which: int, index: int) -> None:
        """What it brings from the ledger may be older than the events that come before it."""
        if self.jobs:
            job = self.jobs[which % len(self.jobs)]
            self.waiting.append(self.core.requeueing(job, self._index(job, index)))

    def _index(self, job: str, index: int) -> int | None:
        """Mostly the whole job."""
        size = self.core.job(job).size
        return index % size if size and index % 3 == 0 else None

    def drain(self, which: int, draining: int) -> None:
        machine = self._one(which)
        if machine.name in self.core.fleet.workers:
            self._refs += 1
            self.turn(DrainRequested(ref=self._refs, worker_id=machine.name, draining=bool(draining % 2)))

    # What workers do

    def register(self, which: int, _: int = 0) -> None:
        """The network side is up (again); where it was up already, the new socket takes over."""
        machine = self._one(which)
        machine.disconnected()
        self._sessions += 1
        machine.session = machine.newest = self._sessions
        machine.boots += 1
        event = WorkerRegistered(
            worker_id=machine.name,
            session=0,
            capabilities=machine.offer,
            active_tasks=machine.account(),
            boot_id=str(machine.boots // 2),
            is_plain=machine.plain,
        )
        machine.outbox += machine.results.values()
        self.turn(self._from(machine, event), self._beat(machine, 0))

    def _beat(self, machine: Machine, account: int) -> Event:
        slots = Slots(batch_total=3, batch_in_use=len(machine.processes))
        holds = machine.account() if account % 2 else None
        event = WorkerBeat(
            worker_id=machine.name, session=0, slots=slots, capabilities=machine.offer, active_tasks=holds
        )
        return self._from(machine, event)

    def beat(self, which: int, account: int) -> None:
        if machine := self._connected(which):
            self.turn(self._beat(machine, account))

    def ask(self, which: int, _: int = 0) -> None:
        if machine := self._connected(which):
            self.turn(self._from(machine, WorkerAsked(worker_id=machine.name, session=0)))

    def deliver(self, which: int, _: int = 0) -> None:
        """What the hub said arrives, and what the worker has to say to that goes out."""
        if machine := self._connected(which):
            inbox, machine.inbox = machine.inbox, []
            for effect in inbox:
                machine.hear(effect)
            self.speak(which)

    def lose(self, which: int, how_many: int) -> None:
        """Frames to a worker get lost."""
        if machine := self._connected(which):
            del machine.inbox[: 1 + how_many % 4]

    def speak(self, which: int, _: int = 0) -> None:
        if (machine := self._connected(which)) and machine.outbox:
            outbox, machine.outbox = machine.outbox, []
            self.turn(*[self._from(machine, event) for event in outbox])

    def mumble(self, which: int, _: int = 0) -> None:
        """Frames from a worker get lost."""
        self._one(which).outbox.clear()

    def end(self, which: int, outcome: int) -> None:
        busy = [machine for machine in self.machines if machine.processes]
        if busy:
            machine = busy[which % len(busy)]
            machine.end(next(iter(machine.processes)), OUTCOMES[outcome % len(OUTCOMES)])

    def checkpoint(self, which: int, number: int) -> None:
        """A task leaves files on its way; some are the same as another's."""
        busy = [machine for machine in self.machines if machine.processes]
        if busy:
            machine = busy[which % len(busy)]
            machine.checkpoints[next(iter(machine.processes))] = f"c{number % 4}"

    def repeat_results(self, which: int, _: int = 0) -> None:
        if (machine := self._connected(which)) and machine.results:
            self.turn(*[self._from(machine, result) for result in machine.results.values()])

    def say_again(self, which: int, renewed: int) -> None:
        """An old message comes again: on its old socket, or on the one that is open now."""
        if not self.said:
            return
        event = self.said[-1 - which % min(len(self.said), 12)]
        machine = next(one for one in self.machines if one.name == event.worker_id)
        if isinstance(event, WorkerRegistered) and event.session >= machine.newest:
            return
        if renewed % 2 and machine.session and isinstance(event, (TaskAccepted, TaskEnded)):
            event = msgspec.structs.replace(event, session=machine.session)
        elif event.session == machine.session and isinstance(event, (WorkerBeat, WorkerLeft)):
            return  # one socket delivers in order: only single messages are said twice
        self.turn(event)

    def disconnect(self, which: int, _: int = 0) -> None:
        if machine := self._connected(which):
            event = WorkerLeft(worker_id=machine.name, session=machine.session)
            machine.disconnected()
            self.turn(event)

    def go_quiet(self, which: int, _: int = 0) -> None:
        """The link is gone and the hub has not noticed."""
        if machine := self._connected(which):
            machine.disconnected()

    def lose_power(self, which: int, noticed: int) -> None:
        machine = self._one(which)
        machine.processes.clear()
        machine.results.clear()
        (self.disconnect if noticed % 2 else self.go_quiet)(which)

    def change_offer(self, which: int, offer: int) -> None:
        machine = self._one(which)
        machine.offer = OFFERS[offer % len(OFFERS)]
        if machine.session:
            self.turn(self._beat(machine, 0))

    def good_round(self, _: int = 0, __: int = 0) -> None:
        """Every worker that is there hears, acts, speaks and gives its account."""
        for number, _machine in enumerate([machine for machine in self.machines if machine.session]):
            self.deliver(number)
            self.beat(number, 1)

    def all_come_back(self, _: int = 0, __: int = 0) -> None:
        for number, machine in enumerate(self.machines):
            if not machine.session:
                self.register(number)

    def be_away(self, which: int, pause: int) -> None:
        """One worker is cut off for a while, most often for longer than some grace; the others stay."""
        self.disconnect(which)
        self.pass_time(pause, 1)

    # What happens to all

    def pass_time(self, which: int, silent: int) -> None:
        until = self.core.now + PAUSES[which % len(PAUSES)]
        while self.core.now < until:
            due = self.core.fleet.timers.next_at()
            self.core.now = max(self.core.now, min(until, self.core.now + 10, until if due is None else due))
            awake = [machine for machine in self.machines if machine.session] if silent % 3 else []
            beats = [WorkerBeat(worker_id=machine.name, session=machine.session) for machine in awake]
            self.turn(*beats, *(self.all_beats() if silent % 3 == 1 else []))

    def stall_hub(self, seconds: int, _: int = 0) -> None:
        """The hub did not run for a while; it reads what waits for it before it declares anyone lost."""
        away = 21.0 + seconds * 13
        self.core.now += away
        self.turn(HubWasAway(away))

    def restart_hub(self, seconds: int, _: int = 0) -> None:
        self.compare_with_ledger()
        self.waiting.clear()
        self.asked.clear()
        self.said = [event for event in self.said if not isinstance(event, WorkerRegistered)]  # its sockets are gone
        for machine in self.machines:
            machine.disconnected()
        self.core.restart(away=float(seconds % 90))
        self._look(set())

    def compare_with_ledger(self) -> None:
        """A fleet made from the ledger now is the one in memory."""
        before, after = [portrait(fleet, self.core.now) for fleet in (self.core.fleet, self.core.restored())]
        for part, mine in before.items():
            told = difference(mine, after[part])
            assert not told, f"{part} differs after a restart:\n{told}"

    # What must hold

    def _look_at_answers(self, batch: list[Event], effects: list[Effect]) -> None:
        """Each question of a plain worker has one answer; without a question, one task at most is on its way."""
        for machine in self.machines:
            if not (machine.plain and machine.session):
                continue
            worker = self.core.fleet.workers[machine.name]
            mine = [effect for effect in effects if getattr(effect, "session", 0) == machine.session]
            questions = sum(isinstance(event, WorkerAsked) and event.session == worker.session for event in batch)
            answers = sum(isinstance(effect, SayNoWork) for effect in mine)
            assigned = {effect.attempt for effect in mine if isinstance(effect, AssignTask)}
            new = assigned - machine.assigned
            machine.assigned |= assigned
            if questions:
                assert answers + len(new) == questions, f"{machine.name} asked {questions} times and got {mine}"
            else:
                assert not answers, f"{machine.name} was answered without a question: {mine}"
                assert len(new) <= 1, f"{machine.name} was sent several tasks at once: {mine}"

    def _look(self, requeued: set[str]) -> None:
        core = self.core
        rows = core.ledger.jobs(self.acknowledged)
        assert rows.keys() == self.acknowledged, f"acknowledged and lost: {self.acknowledged - rows.keys()}"
        for job in rows:
            for row in core.ledger.tasks_of(job):
                was = self.ended.get(row.id, row.state)
                assert was == row.state or job in requeued, f"{row.id} was {was} and is {row.state}"
                if row.state in states.TERMINAL:
                    self.ended[row.id] = row.state
                else:
                    self.ended.pop(row.id, None)
        current = [attempt.task_id for attempt in core.fleet.held.values() if attempt.is_current()]
        assert len(current) == len(set(current)), f"two current attempts of one task: {sorted(current)}"
        self.look_at_manifest()
        for job in core.fleet.jobs.values():
            if job.size and job.state not in states.TERMINAL:
                counts = core.job(job.id).counts
                assert not counts or sum(counts.values()) == job.size, f"{job.id} counts {counts}"


Act = Callable[[RandomFleet, int, int], None]
WEIGHTS: dict[Act, int] = {
    RandomFleet.submit: 6,
    RandomFleet.apply: 6,
    RandomFleet.apply_soon: 2,
    RandomFleet.change_hosts: 1,
    RandomFleet.claim: 6,
    RandomFleet.claim_soon: 2,
    RandomFleet.claim_unheard: 1,
    RandomFleet.pull_beat: 4,
    RandomFleet.pull_beat_soon: 1,
    RandomFleet.pull_end: 4,
    RandomFleet.pull_end_soon: 2,
    RandomFleet.pull_repeat: 2,
    RandomFleet.pull_crash: 1,
    RandomFleet.pull_round: 3,
    RandomFleet.checkpoint: 3,
    RandomFleet.cancel: 2,
    RandomFleet.requeue: 3,
    RandomFleet.cancel_soon: 1,
    RandomFleet.requeue_soon: 2,
    RandomFleet.drain: 1,
    RandomFleet.register: 6,
    RandomFleet.beat: 5,
    RandomFleet.ask: 1,
    RandomFleet.deliver: 10,
    RandomFleet.lose: 1,
    RandomFleet.speak: 4,
    RandomFleet.mumble: 1,
    RandomFleet.end: 6,
    RandomFleet.repeat_results: 1,
    RandomFleet.say_again: 2,
    RandomFleet.disconnect: 3,
    RandomFleet.go_quiet: 1,
    RandomFleet.lose_power: 1,
    RandomFleet.change_offer: 1,
    RandomFleet.good_round: 3,
    RandomFleet.all_come_back: 2,
    RandomFleet.be_away: 2,
    RandomFleet.pass_time: 6,
    RandomFleet.stall_hub: 1,
    RandomFleet.restart_hub: 1,
}
ACTS: list[Act] = [act for act, weight in WEIGHTS.items() for _ in range(weight)]
"""As often as they are worth it: most of what happens is ordinary, or nothing ever gets far."""
