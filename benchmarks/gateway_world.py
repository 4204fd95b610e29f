"""The gateway's scheduler in a world of its own: the hub's gates, instances and capacity code over a real fleet.

Only the clock, the processes of the models and the bytes of the requests are simulated: a load takes so many seconds, a
request is served for so many, and a process that is told to stop has gone at once. The relay keeps to its protocol with
the hub: it tells the use of an instance before each question, and answers a closed gate when that has drained.
"""

import heapq
import itertools
from collections.abc import Iterable
from typing import NamedTuple, cast

from ostler.core import models as ledger_models
from ostler.core.check import check as check_fleet
from ostler.core.effects import AssignTask, CancelTask
from ostler.core.effects import Effect as FleetEffect
from ostler.core.events import Event as FleetEvent
from ostler.core.events import ModelLoad, TaskAccepted, TaskEnded, WorkerBeat, WorkerRegistered
from ostler.core.fleet import Fleet
from ostler.core.persist import take_changes
from ostler.core.placing.place import settle
from ostler.core.step import step as step_fleet
from ostler.domain.job import JobSpec
from ostler.domain.worker import Capabilities, Slots
from ostler.gateway.core.check import check as check_gateway
from ostler.gateway.core.effects import CloseGate, Effect, Grant, OpenGate, Refuse, StartLoad, StopProcesses, WatchGate
from ostler.gateway.core.events import (
    Event,
    GateDrained,
    GateUsed,
    LoadDone,
    RequestArrived,
    ServeDone,
    Stopped,
    TimePassed,
)
from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.models import Config
from ostler.hub.gateway.capacity import LedgerCapacity
from ostler.hub.gateway.instances import Instance, Instances
from ostler.hub.loop import Loop
from ostler.hub.new_job import new_job

WORKER = "gpu-box"
LOADED, SERVED, REPORT = "loaded", "served", "report"
USED_EVERY_S = 0.1
"""How often the relay tells of requests that it served without asking."""


class Asked(NamedTuple):
    """One request: when it comes, for which model, and how long it is served."""

    at: float
    model: str
    serve_s: float


class Process:
    """A model's process as the relay knows it."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.gate_is_open = self.is_closing = self.is_watched = False
        self.granted: set[int] = set()
        self.through_gate: set[int] = set()
        self.arrived = 0
        """Requests through the gate since the last report."""


class GatewayWorld:
    """One scheduler, one machine with so many GPUs, of which each model takes one."""

    def __init__(self, config: Config, *, slots: int, load_s: float, checked: bool = False) -> None:
        self.now = 0.0
        self.checked = checked
        self.load_s = load_s
        self.loads: list[tuple[float, str, list[str]]] = []
        """When, what, and what was evicted for it."""
        self.waits: dict[int, float] = {}
        self.refused: dict[int, Refuse] = {}
        self.asked: list[Asked] = []
        self._order = itertools.count()
        self._heap: list[tuple[float, int, str, int]] = []
        self._arrivals: list[Asked] = []
        self._next = 0
        attempts = itertools.count(1)
        self.fleet = Fleet(lambda: f"a{next(attempts)}")
        self._instances = Instances()
        self._processes: dict[int, Process] = {}
        self._names = itertools.count(1)
        self._reporting = False
        request = JobSpec(command=["serve"], type="model", gpu_count=1).request()
        capacity = LedgerCapacity(cast(Loop, _Present(self)), self._instances, lambda model: request)
        self.scheduler = Fifo(config, capacity, has_gates=True)
        offer = Capabilities(gpu_backend="nvidia", gpu_count=slots, vram_gb=24.0 * slots, cpu_count=64, memory_gb=256)
        self._step_fleet(WorkerRegistered(worker_id=WORKER, session=1, capabilities=offer))
        self._step_fleet(WorkerBeat(worker_id=WORKER, session=1, slots=Slots(service_total=slots)))

    # Requests

    def run(self, requests: Iterable[Asked]) -> None:
        """All of them, until the last is served or refused."""
        self.ask_later(requests)
        while self.advance():
            pass

    def ask_later(self, requests: Iterable[Asked]) -> None:
        self._arrivals += requests

    def advance(self) -> bool:
        """The next thing happens. False: there is none."""
        due = self.scheduler.due()
        arrives = self._arrivals[self._next].at if self._next < len(self._arrivals) else None
        ends = self._heap[0][0] if self._heap else None
        at = min((one for one in (due, arrives, ends) if one is not None), default=None)
        if at is None:
            return False
        self.now = max(self.now, at)
        if ends is not None and ends <= at:
            _, _, kind, number = heapq.heappop(self._heap)
            self._happens(kind, number)
        elif arrives is not None and arrives <= at:
            self._next += 1
            self.ask(self._arrivals[self._next - 1])
        else:
            self._step(TimePassed())
        return True

    def ask(self, asked: Asked) -> int:
        """A request reaches the relay."""
        number = len(self.asked)
        self.asked.append(asked)
        process = next(
            (one for one in self._processes.values() if one.gate_is_open and one.instance.model == asked.model), None
        )
        if process is not None:
            self.waits[number] = self.now - asked.at
            process.through_gate.add(number)
            process.arrived += 1
            self._after(asked.serve_s, SERVED, number)
            self._report_soon()
        else:
            self._report()
            self._step(RequestArrived(number, asked.model))
        return number

    def _after(self, seconds: float, kind: str, number: int) -> None:
        heapq.heappush(self._heap, (self.now + seconds, next(self._order), kind, number))

    def _happens(self, kind: str, number: int) -> None:
        if kind == LOADED:
            self._loaded(number)
        elif kind == REPORT:
            self._reporting = False
            self._report()
        else:
            self._served(number)

    def _served(self, request: int) -> None:
        for process in list(self._processes.values()):
            if request in process.granted:
                process.granted.discard(request)
                self._report()
                self._step(ServeDone(request))
            elif request in process.through_gate:
                process.through_gate.discard(request)
                if process.is_watched and not process.through_gate:
                    self._report()
                else:
                    self._report_soon()
                self._drain(process)

    # The relay's side of gates

    def _report_soon(self) -> None:
        if not self._reporting:
            self._reporting = True
            self._after(USED_EVERY_S, REPORT, 0)

    def _report(self) -> None:
        for process in list(self._processes.values()):
            arrived, process.arrived = process.arrived, 0
            if arrived or process.instance.passing != len(process.through_gate):
                process.instance.passing = len(process.through_gate)
                self._step(GateUsed(process.instance.load, arrived, len(process.through_gate)))

    def _drain(self, process: Process) -> None:
        if process.is_closing and not process.through_gate:
            process.is_closing = False
            self._report()
            self._step(GateDrained(process.instance.load))

    # The scheduler

    def _step(self, event: Event) -> None:
        for effect in self._decided(event):
            self._perform(effect)

    def _decided(self, event: Event) -> list[Effect]:
        effects = self.scheduler.step(event, self.now)
        if self.checked:
            check_gateway(self.scheduler, self.now, effects)
        return effects

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Grant():
                asked = self.asked[effect.request]
                self.waits[effect.request] = self.now - asked.at
                self._processes[effect.load].granted.add(effect.request)
                self._after(asked.serve_s, SERVED, effect.request)
            case StartLoad():
                self._start(effect)
            case StopProcesses():
                for load in effect.loads:
                    self._end(self._instances.by_load[load].job_id)
            case OpenGate():
                process = self._processes[effect.load]
                process.gate_is_open, process.is_closing = True, False
            case WatchGate():
                self._processes[effect.load].is_watched = effect.watched
            case CloseGate():
                process = self._processes[effect.load]
                process.gate_is_open, process.is_closing = False, True
                self._report()
                self._drain(process)
            case Refuse():
                self.refused[effect.request] = effect
            case _:
                return

    # Processes, which are jobs on the ledger

    def _start(self, effect: StartLoad) -> None:
        evicted = [self._instances.by_load[load] for load in effect.evict]
        self.loads.append((self.now, effect.model, sorted(one.model for one in evicted)))
        job_id = f"model-{next(self._names)}"
        self._instances.add(
            Instance(job_id=job_id, model=effect.model, load=effect.load, digest="", load_timeout_s=3600.0)
        )
        spec = JobSpec(id=job_id, user_id="gateway", command=["serve"], type="model", gpu_count=1)
        spec.priority = ledger_models.PRIORITY
        self._step_fleet(ModelLoad(ref=0, job=new_job(spec, chosen=False), evict=[one.job_id for one in evicted]))

    def _loaded(self, load: int) -> None:
        if load in self._instances.by_load:
            self._processes[load] = Process(self._instances.by_load[load])
            self._step(LoadDone(load, place=WORKER))

    def _end(self, job_id: str) -> None:
        held = ledger_models.holder(self.fleet, job_id)
        if held is not None:
            self._gone(job_id, held.id)

    def _gone(self, job_id: str, attempt: str) -> None:
        """A process that was told to stop is gone."""
        instance = self._instances.by_job[job_id]
        self._instances.drop(instance)
        process = self._processes.pop(instance.load, None)
        served = process.granted | process.through_gate if process is not None else set()
        assert not served, f"{instance.model} was stopped while it served {served}"
        ended = TaskEnded(worker_id=WORKER, session=1, task_id=job_id, attempt=attempt, state="cancelled")
        self._step_fleet(ended)
        self._step(Stopped(instance.load))

    def _step_fleet(self, event: FleetEvent) -> None:
        effects: list[FleetEffect] = step_fleet(self.fleet, event, self.now)
        effects += settle(self.fleet, self.now)
        if self.checked:
            check_fleet(self.fleet, self.now)
        take_changes(self.fleet, self.now)
        for effect in effects:
            if isinstance(effect, AssignTask):
                accepted = TaskAccepted(worker_id=WORKER, session=1, task_id=effect.task_id, attempt=effect.attempt)
                self._step_fleet(accepted)
                self._after(self.load_s, LOADED, self._instances.by_job[effect.job_id].load)
            elif isinstance(effect, CancelTask):
                self._gone(effect.task_id, effect.attempt)


class _Present:
    """What `LedgerCapacity` sees of the hub's loop."""

    def __init__(self, world: GatewayWorld) -> None:
        self._world = world

    @property
    def fleet(self) -> Fleet:
        return self._world.fleet

    def now(self) -> float:
        return self._world.now
