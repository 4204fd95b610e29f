"""The schedulers among servers that take their time, fail and die, callers who leave, jobs that take room, and people who
unload, reconfigure and shut down. Everything is drawn from one seed; a failure prints it."""

import heapq
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import count

from tests.gateway.core.configs import NAMES, draw_config

from ostler.gateway.core.check import check
from ostler.gateway.core.effects import CloseGate, Effect, Grant, OpenGate, Refuse, StartLoad, StopProcesses, Unloaded
from ostler.gateway.core.events import (
    CallerGone,
    ConfigChanged,
    Event,
    GateDrained,
    GateUsed,
    LoadDone,
    ModelFound,
    PlaceChanged,
    PreloadAsked,
    RequestArrived,
    RequestCancelled,
    RequestFailed,
    RoomChanged,
    ServeDone,
    ShutdownAsked,
    Stopped,
    TimePassed,
    UnloadAsked,
    YieldAsked,
)
from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.machine import Machine
from ostler.gateway.core.serial import Serial
from ostler.gateway.core.state import AWAY, CLOSED, HERE, SHUT

ROOM = 4.0
PLACES = ("near", "far")


class Violation(AssertionError):
    """Something that no sequence of events may bring about."""


class Process:
    """One server, from its start to its end. It holds its room until it is really gone."""

    def __init__(self, model: str, load: int, place: str) -> None:
        self.model = model
        self.load = load
        self.place = place
        self.ready = False
        self.ending = False
        self.serving: set[int] = set()
        self.through: set[int] = set()
        """Requests that went through its gate, of which the machine knows nothing."""
        self.draining = False
        self.home = HERE
        """How its worker is, as the machine was told."""


class RandomGateway:
    def __init__(self, seed: int, *, kind: type[Serial] | type[Fifo] | None = None) -> None:
        self.rng = random.Random(f"gateway {seed}")
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._ids = count(1)
        self._refs = count(1)
        self.sizes = {name: self.rng.choice((1.0, 1.0, 2.0, 3.0)) for name in NAMES}
        if self.rng.random() < 0.2:
            self.sizes[self.rng.choice(NAMES)] = 2 * ROOM
        self.jobs = 0.0
        self.away = False
        """The machine takes nothing for the moment."""
        self.homes = dict.fromkeys(PLACES, HERE)
        """How the worker in each place is."""
        self.processes: dict[int, Process] = {}
        self.asked: dict[int, str] = {}
        self.answers: dict[int, str] = {}
        self.known: set[int] = set()
        """Requests that the machine has heard of, and that are not answered."""
        self.left: set[int] = set()
        self.tries: Counter[int] = Counter()
        self.flying: dict[int, Process] = {}
        self.unloads: set[int] = set()
        self.gates: dict[int, Process] = {}
        """Of the open ones."""
        self.most = 0
        """Processes of one model that were ready at once."""
        self.favourites = NAMES[: self.rng.choice((1, 3))]
        self.calm = False
        self.hasty = self.rng.random() < 0.3
        """Loads and stops take no time worth mentioning."""
        self.faults = {fault: self.rng.choice((0.0, 0.1, 0.4)) for fault in ("load", "crash", "room", "gone", "late")}
        self.config = draw_config(self.rng, self.sizes, first=True)
        kind = kind or self.rng.choice((Serial, Fifo, Fifo))
        self.machine: Machine
        if kind is Fifo:
            self.machine = Fifo(self.config, self, has_gates=self.rng.random() < 0.5)
        else:
            self.machine = Serial(self.config, self)

    # The ledger

    def fits(self, target: str, gone: Collection[int], coming: Mapping[int, str], beside: Collection[str] = ()) -> bool:
        held = {load: each.model for load, each in self.processes.items()} | dict(coming)
        away = {load for load, each in self.processes.items() if self.homes[each.place] != HERE}
        staying = [model for load, model in held.items() if load not in gone and load not in away]
        needed = self.jobs + sum(self.sizes[model] for model in (*staying, *beside, target))
        return needed <= ROOM and self._takes_work()

    def _takes_work(self) -> bool:
        return not self.away and HERE in self.homes.values()

    def could_hold(self, target: str) -> bool:
        return self.sizes[target] <= ROOM and self._takes_work()

    # Time

    def at(self, delay: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + delay, next(self._order), what))

    def run(self, until: float) -> None:
        while True:
            due = self.machine.due()
            soonest = self._heap[0][0] if self._heap else float("inf")
            if min(soonest, due if due is not None else float("inf")) > until:
                break
            if due is not None and due <= soonest:
                self.now = max(self.now, due)
                self.tell(TimePassed())
                still = self.machine.due()
                if still is not None and still <= self.now:
                    raise Violation(f"time stands still at {self.now}")
            else:
                self.now, _, what = heapq.heappop(self._heap)
                what()
        self.now = until

    def tell(self, event: Event) -> None:
        effects = self.machine.step(event, self.now)
        self.events += 1
        check(self.machine, self.now, effects)
        for effect in effects:
            self.perform(effect)

    # What is done

    def perform(self, effect: Effect) -> None:
        match effect:
            case Grant():
                self._grant(effect)
            case Refuse():
                self._answer(effect.request, effect.code)
            case StartLoad():
                self._start(effect)
            case StopProcesses():
                for load in effect.loads:
                    process = self._live(load)
                    if process is not None and (process.serving or process.through) and effect.reason != "unloaded":
                        raise Violation(f"{process.model} is stopped ({effect.reason}) while it serves")
                    self._stop(load)
            case OpenGate():
                process = self.processes.get(effect.load)
                if process is None or not process.ready or process.draining:
                    raise Violation(f"the gate of process {effect.load} is opened, and it is not ready")
                if not process.ending:  # else the word that it died is under way
                    self.gates[effect.load] = process
            case CloseGate():
                process = self.gates.pop(effect.load, None)
                if process is not None and not process.ending:
                    process.draining = True
                    self._drains(process)
            case Unloaded():
                if effect.ref not in self.unloads:
                    raise Violation(f"unload {effect.ref} was answered twice")
                self.unloads.discard(effect.ref)

    def _answer(self, request: int, how: str) -> None:
        if request in self.answers:
            raise Violation(f"request {request} was answered {self.answers[request]!r} and then {how!r}")
        if request not in self.asked:
            raise Violation(f"request {request} was answered and never came")
        self.answers[request] = how
        self.known.discard(request)

    def _live(self, load: int) -> Process | None:
        process = self.processes.get(load)
        return process if process is not None and not process.ending else None

    def of(self, model: str) -> list[Process]:
        return [process for process in self.processes.values() if process.model == model]

    def _start(self, effect: StartLoad) -> None:
        for load in effect.evict:
            if (old := self._live(load)) is not None and (old.serving or old.through or load in self.gates):
                raise Violation(f"{old.model} is evicted while it serves")
            self._stop(load)
        staying = [each for each in self.of(effect.model) if each.home == HERE]
        if len(staying) >= self._may_be(effect.model):
            raise Violation(f"{effect.model} is started while as many processes of it are there as may be")
        open_places = [place for place in PLACES if self.homes[place] == HERE]
        known = [place for place in effect.load_s if place in open_places]
        place = min(known, key=lambda place: effect.load_s[place], default="")
        place = place if place and self.rng.random() < 0.7 else self.rng.choice(open_places)
        process = self.processes[effect.load] = Process(effect.model, effect.load, place)
        # Those it evicts must be gone first; a load may be abandoned while it waits for them.
        self._begin_when_alone(process, [old for load in effect.evict if (old := self.processes.get(load)) is not None])

    def _may_be(self, model: str) -> int:
        recipe = next(recipe for recipe in self.config.models if recipe.name == model)
        return recipe.max_instances if isinstance(self.machine, Fifo) else 1

    def _begin_when_alone(self, process: Process, evicted: list[Process]) -> None:
        if any(self.processes.get(old.load) is old for old in evicted):
            self.at(0.1, partial(self._begin_when_alone, process, evicted))
            return
        took = 0.0 if self.hasty else self.rng.uniform(0.5, 10.0 if process.place == "near" else 30.0)
        self.at(took, partial(self._load_ends, process))

    def _load_ends(self, process: Process) -> None:
        if process.ending:
            if self.rng.random() < self.faults["late"]:
                self.tell(LoadDone(process.load))
            return
        luck = 1.0 if self.calm else self.rng.random()
        if luck < self.faults["load"]:
            self._remove(process)
            self.tell(LoadDone(process.load, "exit code 1"))
        elif luck < self.faults["load"] + self.faults["room"]:
            self._remove(process)
            self.tell(LoadDone(process.load, no_room=True))
        else:
            process.ready = True
            self.most = max(self.most, sum(each.ready and not each.ending for each in self.of(process.model)))
            self.tell(LoadDone(process.load, place=process.place))
            self._tell_home(process)
            if not self.calm and self.rng.random() < self.faults["crash"]:
                self.at(self.rng.expovariate(0.05), partial(self._crash, process))

    def _remove(self, process: Process) -> None:
        process.ending = True
        del self.processes[process.load]

    def _stop(self, load: int) -> None:
        process = self._live(load)
        if process is None:
            if load not in self.processes:
                self.at(0.0, lambda: self.tell(Stopped(load)))
            return
        self._ends_now(process)
        self._give_back(process)
        self.at(0.0 if self.hasty else self.rng.uniform(0.0, 10.0), partial(self._is_gone, process, ""))

    def _is_gone(self, process: Process, error: str) -> None:
        del self.processes[process.load]
        self.tell(Stopped(process.load, error))
        if self.rng.random() < self.faults["late"]:
            self.at(self.rng.uniform(0.0, 30.0), lambda: self.tell(Stopped(process.load, error)))

    def _crash(self, process: Process) -> None:
        if process.ending or self.calm:
            return
        self._ends_now(process)
        behind = self.rng.choice((0.0, 0.3))
        if self.rng.random() < 0.5:
            self._give_back(process)
            self.at(behind, partial(self._is_gone, process, "killed by signal 9"))
        else:
            self._is_gone(process, "killed by signal 9")
            self.at(behind, partial(self._give_back, process))

    def _ends_now(self, process: Process) -> None:
        process.ending = True
        self.gates.pop(process.load, None)
        for request in sorted(process.through):
            process.through.discard(request)
            if self.rng.random() < 0.6:
                self.at(self.rng.choice((0.0, 0.2)), partial(self._comes_back, request))
            else:
                self._answer(request, "cut")

    def _comes_back(self, request: int) -> None:
        if request not in self.answers:
            self.known.add(request)
            self.tell(RequestArrived(request, self.asked[request], again=True, user=self._user()))

    def _drains(self, process: Process) -> None:
        if process.draining and not process.through and not process.serving and not process.ending:
            process.draining = False
            self.at(0.0, lambda: self.tell(GateDrained(process.load)))

    def _through_gate(self, request: int, process: Process) -> None:
        process.through.add(request)
        self.tries[request] += 1
        self.tell(GateUsed(process.load, 1, len(process.through)))
        self.at(self.rng.expovariate(0.2), partial(self._through_ends, request, process))

    def _through_ends(self, request: int, process: Process) -> None:
        if request not in process.through:
            return
        process.through.discard(request)
        self._answer(request, "served")
        self.tell(GateUsed(process.load, 0, len(process.through)))
        self._drains(process)

    def _give_back(self, process: Process) -> None:
        """Its callers who had received something have lost the rest, the others are tried again."""
        for request in sorted(process.serving):
            self.at(self.rng.choice((0.0, 0.2)), partial(self._hangs_up, process, request))

    def _hangs_up(self, process: Process, request: int) -> None:
        if self.flying.get(request) is not process:
            return
        self._land(request)
        if self.rng.random() < 0.6:
            self.tell(RequestFailed(request))
        else:
            self._answer(request, "cut")
            self.tell(ServeDone(request))

    def _grant(self, effect: Grant) -> None:
        if effect.request in self.answers or effect.request in self.flying:
            raise Violation(f"request {effect.request} was granted, and it is served or answered")
        process = self.processes.get(effect.load)
        if process is not None and process.home != HERE:
            raise Violation(f"request {effect.request} was granted to a process whose worker takes nothing")
        if process is None or not process.ready or process.model != self.asked[effect.request]:
            raise Violation(f"request {effect.request} was granted to process {effect.load}, which is not ready for it")
        self.flying[effect.request] = process
        self.tries[effect.request] += 1
        if self.tries[effect.request] > 2:
            raise Violation(f"request {effect.request} is tried for the third time")
        process.serving.add(effect.request)
        nobody = effect.request in self.left or self.rng.random() < self.faults["gone"] / 4
        wait = self.rng.choice((0.0, 0.05)) if nobody or process.ending else self.rng.expovariate(0.2)
        self.at(wait, partial(self._ends, process, effect.request, nobody))

    def _land(self, request: int) -> None:
        process = self.flying.pop(request)
        process.serving.discard(request)
        self._drains(process)

    def _ends(self, process: Process, request: int, nobody: bool) -> None:
        if self.flying.get(request) is not process:
            return
        if process.ending:
            self._hangs_up(process, request)
            return
        self._land(request)
        self._answer(request, "nobody there" if nobody else "served")
        self.tell(CallerGone(request) if nobody else ServeDone(request))

    # What happens to it

    def ask(self) -> None:
        request = next(self._ids)
        self.asked[request] = self.rng.choice(self.favourites if self.rng.random() < 0.6 else NAMES + "?")
        if gates := [process for process in self.gates.values() if process.model == self.asked[request]]:
            self._through_gate(request, min(gates, key=lambda process: len(process.through)))
        else:
            self._arrive(request)
        if self.rng.random() < 0.25:
            self.at(self.rng.expovariate(0.1), partial(self.leave, request))

    def _arrive(self, request: int) -> None:
        """A request over the limit of its model is refused, and no other one for that reason."""
        model, state = self.asked[request], self.machine.state
        at_gates = sum(each.through_gate for each in state.of(model) if each.gate != SHUT)
        there = at_gates + sum(self.asked[one] == model for one in self.known)
        most = next((recipe.request_limit for recipe in self.config.models if recipe.name == model), None)
        is_full = most is not None and there >= most and not state.closing
        self.known.add(request)
        self.tell(RequestArrived(request, model, user=self._user()))
        if (self.answers.get(request) == "request_limit_reached") != is_full:
            raise Violation(f"{model} may have {most} requests and has {there}: {self.answers.get(request)!r}")

    def _user(self) -> str:
        return self.rng.choice(("", "x", "y"))

    def leave(self, request: int) -> None:
        """The caller hangs up. A grant may be on its way to it."""
        if request in self.answers:
            return
        self.left.add(request)
        if through := next((each for each in self.processes.values() if request in each.through), None):
            self._through_ends(request, through)
            return
        if request not in self.flying:
            self._answer(request, "left")
        self.tell(RequestCancelled(request))

    def unload(self) -> None:
        ref = next(self._refs)
        self.unloads.add(ref)
        models = [] if self.rng.random() < 0.3 else self.rng.sample(NAMES, 2)
        self.tell(UnloadAsked(models, ref))

    def change_room(self) -> None:
        self.jobs = 0.0 if self.calm else self.rng.choice((0.0, 0.0, 1.0, 2.0, 4.0))
        self.away = not self.calm and self.rng.random() < 0.2
        self.tell(RoomChanged())

    def yield_room(self) -> None:
        self.tell(YieldAsked(self.rng.choice([0, *self.processes])))

    def preload(self) -> None:
        self.tell(PreloadAsked(self.rng.sample(NAMES, 2)))

    def find(self) -> None:
        process = Process(self.rng.choice(NAMES), -next(self._refs), self.rng.choice(PLACES))
        process.ready = True
        self.processes[process.load] = process
        self.tell(ModelFound(process.model, self.rng.choice("12"), process.load, process.place))
        self._tell_home(process)

    def change_place(self) -> None:
        """A worker is drained, is cut off, or is back."""
        place = self.rng.choice(PLACES)
        self._move(place, self.rng.choice([home for home in (HERE, AWAY, CLOSED) if home != self.homes[place]]))

    def _move(self, place: str, home: str) -> None:
        self.homes[place] = home
        for process in [each for each in self.processes.values() if each.place == place]:
            self._tell_home(process)
            if home == AWAY and self._live(process.load) is process and self.rng.random() < 0.5:
                self._give_back(process)
        self.tell(RoomChanged())

    def _tell_home(self, process: Process) -> None:
        home = self.homes[process.place]
        if home != process.home and (home != AWAY or process.ready):
            process.home = home
            self.tell(PlaceChanged(process.load, home))

    def reconfigure(self) -> None:
        self.config = draw_config(self.rng, self.sizes)
        self.tell(ConfigChanged(self.config))

    def shut_down(self) -> None:
        self.tell(ShutdownAsked())

    def go_quiet(self) -> None:
        """No more faults and no more jobs."""
        self.calm = True
        for place in PLACES:
            self._move(place, HERE)
        self.change_room()


def run_seed(seed: int, *, asks: int = 40, kind: type[Serial] | type[Fifo] | None = None) -> RandomGateway:
    """One random gateway from its first request to the quiet end; raises on the first violation."""
    random_gateway = RandomGateway(seed, kind=kind)
    rng = random_gateway.rng
    horizon = rng.choice((20.0, 120.0, 400.0))
    for _ in range(asks):
        random_gateway.at(rng.uniform(0.0, horizon), random_gateway.ask)
    others = (
        random_gateway.unload,
        random_gateway.change_room,
        random_gateway.change_room,
        random_gateway.yield_room,
        random_gateway.preload,
        random_gateway.find,
        random_gateway.change_place,
        random_gateway.change_place,
    )
    for _ in range(rng.choice((0, 3, 12))):
        random_gateway.at(rng.uniform(0.0, horizon), rng.choice(others))
    for _ in range(rng.choice((0, 0, 1, 3))):
        random_gateway.at(rng.uniform(0.0, horizon), random_gateway.reconfigure)
    if rng.random() < 0.1:
        random_gateway.at(rng.uniform(horizon / 2, horizon), random_gateway.shut_down)
    random_gateway.run(horizon)
    random_gateway.go_quiet()
    random_gateway.run(horizon + 100_000.0)
    if unanswered := sorted(random_gateway.asked.keys() - random_gateway.answers.keys()):
        whys = [random_gateway.machine.why(request, random_gateway.now) for request in unanswered[:3]]
        raise Violation(f"never answered: {unanswered[:5]}, for {whys}")
    if random_gateway.machine.state.requests:
        raise Violation("requests are remembered that were answered")
    if random_gateway.unloads:
        raise Violation(f"unloads were never answered: {random_gateway.unloads}")
    return random_gateway
