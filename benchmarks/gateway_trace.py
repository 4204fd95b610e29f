"""An hour of real requests through the gateway: how many loads, and how long callers wait.

python -m benchmarks.gateway_trace [--data FOLDER] [--trace conv code] [--seeds 12] [--first-seed 1] [--quantum 8]
    [--slots 4] [--concurrency N] [--requests N] [--load-factor 0.7] [--checked]

Requests arrive when those of the trace did (Azure, November 2023). The trace has one model: which one a request names
is drawn by Zipf's law over 12 names, anew for each seed. As many models fit at once as there are slots, and a load
takes 20 s. A request is served for

    context tokens / 5,000 per second + generated tokens / 30 per second,

however many are served beside it, at most `--concurrency` by one process. `--requests` takes the first of the trace;
`--load-factor` stretches the time between requests until their service fills this part of what the slots can serve.

`fifo` runs through the hub's own gates and capacity code over a real fleet (gateway_world.py): only the clock and the
processes are simulated. It knows no load time at the beginning. `collating LRU` is the usual policy, with the same
bound. A slot serves the requests of the model that it holds, oldest first. An idle slot whose model has no requests, or
whose turn is over, loads the model of the oldest waiting request; the least recently used slot goes first. A turn ends
`quantum` loads after a request of a model that no slot holds began to wait. `fifo with LRU` and `told the future` are
the pure scheduler with other policies: whom it displaces, and when. Numbers are means over the seeds; the last lines
give the ratios to the collating LRU, seed by seed, with their standard errors.
"""

import argparse
import bisect
import csv
import heapq
import itertools
import math
import random
import statistics
import sys
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from benchmarks.gateway_world import Asked, GatewayWorld

from ostler.gateway.core.effects import Grant, Refuse, StartLoad, StopProcesses
from ostler.gateway.core.events import Event, LoadDone, RequestArrived, ServeDone, Stopped, TimePassed
from ostler.gateway.core.eviction import Policy
from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.machine import Machine
from ostler.gateway.core.models import Config, Recipe
from ostler.gateway.core.state import Instance, State

MODELS = [f"model-{number:02d}" for number in range(1, 13)]
LOAD_S = 20.0
LRU, FUTURE, OURS, COLLATING = "fifo with LRU", "told the future", "fifo", "collating LRU"
PREFILL_PER_S, DECODE_PER_S = 5_000.0, 30.0
DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "azure_llm_2023"


class Lru:
    """The usual policy."""

    def loss(self, state: State, victim: Instance, target: str, now: float) -> float:
        return victim.idle_since

    def kept_until(self, state: State, resident: Instance, target: str, now: float) -> float:
        return -math.inf


class ToldTheFuture:
    """Whoever will be asked for last goes first."""

    def __init__(self, requests: list[Asked]) -> None:
        self._arrivals: dict[str, list[float]] = {}
        for asked in requests:
            self._arrivals.setdefault(asked.model, []).append(asked.at)

    def loss(self, state: State, victim: Instance, target: str, now: float) -> float:
        arrivals = self._arrivals[victim.model]
        index = bisect.bisect_right(arrivals, now)
        return -arrivals[index] if index < len(arrivals) else -math.inf

    def kept_until(self, state: State, resident: Instance, target: str, now: float) -> float:
        return -math.inf


class Slots:
    """So many models at once."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.present: Collection[int] = ()

    def fits(self, target: str, gone: Collection[int], coming: Mapping[int, str], beside: Collection[str] = ()) -> bool:
        return len({*self.present, *coming} - {*gone}) + len(beside) + 1 <= self.count

    def could_hold(self, target: str) -> bool:
        return True


class Setting(NamedTuple):
    slots: int
    concurrency: int | None
    quantum: float
    requests: int | None
    load_factor: float | None
    checked: bool


def requests_of(path: Path, seed: int, setting: Setting) -> list[Asked]:
    draw = random.Random(seed)
    weights = [1.0 / rank for rank in range(1, len(MODELS) + 1)]
    with path.open() as lines:
        rows = sorted(
            (_seconds(row[0]), float(row[1]) / PREFILL_PER_S + float(row[2]) / DECODE_PER_S)
            for row in itertools.islice(csv.reader(lines), 1, None)
        )[: setting.requests]
    begun, last = rows[0][0], rows[-1][0]
    stretch = 1.0
    if setting.load_factor is not None and setting.concurrency is not None:
        offered = sum(serve_s for _, serve_s in rows) / ((last - begun) * setting.slots * setting.concurrency)
        stretch = offered / setting.load_factor
    return [Asked((at - begun) * stretch, draw.choices(MODELS, weights)[0], serve_s) for at, serve_s in rows]


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text[:26]).timestamp()


class Result(NamedTuple):
    loads: int
    waits: list[float]


class Slot:
    def __init__(self) -> None:
        self.model = ""
        self.busy = 0
        self.ready_at = 0.0
        self.used_at = -1.0
        self.turn_ends = math.inf


class CollatingLru:
    """The policy by itself, without groups, gates or a ledger."""

    def __init__(self, requests: list[Asked], setting: Setting) -> None:
        self._requests, self._setting = requests, setting
        self._slots = [Slot() for _ in range(setting.slots)]
        self._waiting: dict[int, None] = {}
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Slot | None]] = []
        self.loads = 0
        self.waits = [0.0] * len(requests)
        self._run()

    def _run(self) -> None:
        arrivals = 0
        while self._heap or arrivals < len(self._requests):
            arrives = self._requests[arrivals].at if arrivals < len(self._requests) else math.inf
            if not self._heap or arrives <= self._heap[0][0]:
                now = arrives
                self._waiting[arrivals] = None
                arrivals += 1
            else:
                now, _, served_by = heapq.heappop(self._heap)
                if served_by is not None:
                    served_by.busy -= 1
                    served_by.used_at = now
            while self._begin_one(now):
                pass

    def _begin_one(self, now: float) -> bool:
        """Serve one of those that wait, or load its model. False: nothing can be done."""
        held = {slot.model for slot in self._slots}
        homeless = next((each for each in self._waiting if self._requests[each].model not in held), None)
        if homeless is not None:
            self._bound_turns(now)
        limit = self._setting.concurrency or math.inf
        for slot in self._slots:
            own = next((each for each in self._waiting if self._requests[each].model == slot.model), None)
            if own is not None and slot.busy < limit and now < slot.turn_ends:
                self._serve(own, slot, now)
                return True
        if not self._waiting:
            return False
        wanted = {self._requests[each].model for each in self._waiting}
        idle = [slot for slot in self._slots if not slot.busy and (now >= slot.turn_ends or slot.model not in wanted)]
        target = homeless if homeless is not None else next(iter(self._waiting))
        model = self._requests[target].model
        is_served = any(slot.model == model and now < slot.turn_ends for slot in self._slots)
        if not idle or (homeless is None and is_served):
            return False
        slot = min(idle, key=lambda each: each.used_at)
        if slot.model == model:
            slot.turn_ends = math.inf
        self._serve(target, slot, now)
        return True

    def _bound_turns(self, now: float) -> None:
        for slot in self._slots:
            if slot.model and slot.turn_ends == math.inf:
                slot.turn_ends = max(now, slot.ready_at) + self._setting.quantum * LOAD_S
                if slot.turn_ends < math.inf:
                    self._push(slot.turn_ends, None)

    def _serve(self, request: int, slot: Slot, now: float) -> None:
        asked = self._requests[request]
        del self._waiting[request]
        if slot.model != asked.model:
            self.loads += 1
            slot.model, slot.ready_at, slot.turn_ends = asked.model, now + LOAD_S, math.inf
        begins = max(now, slot.ready_at)
        self.waits[request] = begins - asked.at
        slot.busy += 1
        self._push(begins + asked.serve_s, slot)

    def _push(self, at: float, slot: Slot | None) -> None:
        heapq.heappush(self._heap, (at, next(self._order), slot))


class Pure:
    """The scheduler alone, with a table of slots in the place of the ledger."""

    def __init__(self, machine: Machine, slots: Slots, requests: list[Asked]) -> None:
        self.machine = machine
        slots.present = machine.state.present.keys()
        self.requests = requests
        self.loads = 0
        self.evicted: list[tuple[str, list[str]]] = []
        """For which model, and which models made way."""
        self.waits = [0.0] * len(requests)
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Event]] = []
        for request, asked in enumerate(requests):
            self._push(asked.at, RequestArrived(request, asked.model))
        self._until_all_are_served()

    def _push(self, at: float, event: Event) -> None:
        heapq.heappush(self._heap, (at, next(self._order), event))

    def _until_all_are_served(self) -> None:
        while self._heap:
            due, (at, _, event) = self.machine.due(), self._heap[0]
            if due is not None and due <= at:
                at, event = due, TimePassed()
            else:
                heapq.heappop(self._heap)
            for effect in self.machine.step(event, at):
                self._perform(effect, at)

    def _perform(self, effect: object, now: float) -> None:
        match effect:
            case Grant():
                asked = self.requests[effect.request]
                self.waits[effect.request] = now - asked.at
                self._push(now + asked.serve_s, ServeDone(effect.request))
            case StartLoad():
                self.loads += 1
                evicted = [self.machine.state.present[load].model for load in effect.evict]
                self.evicted.append((effect.model, sorted(evicted)))
                for load in effect.evict:
                    self._push(now, Stopped(load))
                self._push(now + LOAD_S, LoadDone(effect.load))
            case StopProcesses():
                for load in effect.loads:
                    self._push(now, Stopped(load))
            case Refuse():
                raise SystemExit(f"gateway_trace: {effect.message}")


def run(line: str, requests: list[Asked], setting: Setting) -> Result:
    known_s = None if line == OURS else LOAD_S
    models = tuple(Recipe(name=name, load_s=known_s, concurrency=setting.concurrency) for name in MODELS)
    config = Config(models=models, quantum=setting.quantum)
    if line == OURS:
        world = GatewayWorld(config, slots=setting.slots, load_s=LOAD_S, checked=setting.checked)
        world.run(requests)
        return Result(len(world.loads), [world.waits[number] for number in range(len(requests))])
    if line == COLLATING:
        lru = CollatingLru(requests, setting)
        return Result(lru.loads, lru.waits)
    slots = Slots(setting.slots)
    policy: Policy = Lru() if line == LRU else ToldTheFuture(requests)
    pure = Pure(Fifo(config, slots, policy), slots, requests)
    return Result(pure.loads, pure.waits)


def measure(found: Result) -> tuple[float, ...]:
    cuts = statistics.quantiles(found.waits, n=100, method="inclusive")
    return (found.loads, cuts[49], cuts[98], statistics.fmean(found.waits), max(found.waits))


def report(path: Path, seeds: range, lines: list[str], setting: Setting) -> None:
    found: dict[str, list[tuple[float, ...]]] = {}
    for seed in seeds:
        requests = requests_of(path, seed, setting)
        for line in lines:
            found.setdefault(line, []).append(measure(run(line, requests, setting)))
    each = "any number" if setting.concurrency is None else setting.concurrency
    print(
        f"{path.stem}: {len(requests)} requests in {requests[-1].at / 60:.0f} minutes, {len(seeds)} seeds, "
        f"{setting.slots} slots, {each} at once in a slot"
    )
    print(f"  {'':16s} {'loads':>9s} {'wait p50':>11s} {'p99':>11s} {'mean':>11s} {'max':>11s}")
    for line, rows in found.items():
        loads, *waits = (statistics.fmean(column) for column in zip(*rows, strict=True))
        print(f"  {line:16s} {loads:9.1f}", *(f"{value:9.1f} s" for value in waits))
    for line in lines if len(seeds) > 1 else ():
        if line != COLLATING:
            print(f"  {line + ' / LRU':21s}", *(ratio(found[line], found[COLLATING], index) for index in range(5)))


def ratio(ours: list[tuple[float, ...]], theirs: list[tuple[float, ...]], index: int) -> str:
    each = [mine[index] / other[index] for mine, other in zip(ours, theirs, strict=True) if other[index]]
    return f"{statistics.fmean(each):.3f}±{statistics.stdev(each) / math.sqrt(len(each)):.3f}" if len(each) > 1 else "-"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of the trace")
    parser.add_argument("--trace", nargs="*", choices=("conv", "code"), default=["conv", "code"])
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--quantum", type=float, default=8.0)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--concurrency", type=int)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--load-factor", type=float)
    parser.add_argument("--checked", action="store_true", help="check every invariant after every event; slow")
    parser.add_argument("--lines", nargs="*", choices=(COLLATING, OURS, LRU, FUTURE), default=[COLLATING, OURS])
    options = parser.parse_args()
    setting = Setting(
        options.slots,
        options.concurrency,
        options.quantum,
        options.requests,
        options.load_factor,
        options.checked,
    )
    for trace in options.trace:
        path = options.data / f"AzureLLMInferenceTrace_{trace}.csv"
        if not path.exists():
            print(f"gateway_trace: skipped, {path} is not here; --data names the folder of the Azure trace of 2023.")
            return 0
        report(path, range(options.first_seed, options.first_seed + options.seeds), options.lines, setting)
    return 0


if __name__ == "__main__":
    sys.exit(main())
