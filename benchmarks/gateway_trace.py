"""An hour of real requests through the gateway's schedulers: how many loads, and how long callers wait.

python benchmarks/gateway_trace.py [--data FOLDER] [--trace conv code] [--seeds 12] [--first-seed 1] [--quantum 8]
                                   [--without-serial]

Requests arrive when those of the trace did (Azure, November 2023). The trace has one model: which one a request names
is drawn by Zipf's law over 12 names, anew for each seed. 4 models fit at once, and a load takes 20 s. A request is
served for

    context tokens / 5,000 per second + generated tokens / 30 per second,

however many are served beside it. `fifo` is the same scheduler in all its lines; what differs is whom it displaces and
when: LRU takes the idle resident that was used least recently, at once; `told the future` takes the one that will be
asked for last. Numbers are means over the seeds; the last lines give the ratios to LRU, seed by seed, with their
standard errors.

All 12 models are wanted all the time and about 8 of them wait, so that there is hardly ever more than one idle
resident: whom to displace is no choice, as the line that is told the future shows, and what is left is when. To keep an
idle resident for a while saves loads. In the conversations it also shortens the longest waits; in the code completions,
which come in bursts, those are as long as the rounds of loads that a burst needs, whoever decides.
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
import time
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path

from ostler.gateway.core.effects import Grant, Refuse, StartLoad, StopProcesses
from ostler.gateway.core.events import Event, LoadDone, RequestArrived, ServeDone, Stopped, TimePassed
from ostler.gateway.core.eviction import EXPECTED_LOSS, Policy
from ostler.gateway.core.fifo import Fifo
from ostler.gateway.core.machine import Machine
from ostler.gateway.core.models import Config, Recipe
from ostler.gateway.core.serial import Serial
from ostler.gateway.core.state import Instance, State

MODELS = [f"model-{number:02d}" for number in range(1, 13)]
FIT_AT_ONCE = 4
LOAD_S = 20.0
LRU, FUTURE, OURS = "fifo with LRU", "told the future", "fifo"
PREFILL_PER_S, DECODE_PER_S = 5_000.0, 30.0
DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "azure_llm_2023"


class Lru:
    """The usual policy."""

    def loss(self, state: State, victim: Instance, target: str, now: float) -> float:
        return victim.idle_since

    def kept_until(self, state: State, resident: Instance, target: str) -> float:
        return -math.inf


class ToldTheFuture:
    """Whoever will be asked for last goes first."""

    def __init__(self, requests: list[tuple[float, str, float]]) -> None:
        self._arrivals: dict[str, list[float]] = {}
        for at, model, _ in requests:
            self._arrivals.setdefault(model, []).append(at)

    def loss(self, state: State, victim: Instance, target: str, now: float) -> float:
        arrivals = self._arrivals[victim.model]
        index = bisect.bisect_right(arrivals, now)
        return -arrivals[index] if index < len(arrivals) else -math.inf

    def kept_until(self, state: State, resident: Instance, target: str) -> float:
        return -math.inf


class Slots:
    """So many models at once."""

    def __init__(self) -> None:
        self.present: Collection[int] = ()

    def fits(self, target: str, gone: Collection[int], coming: Mapping[int, str], beside: Collection[str] = ()) -> bool:
        return len({*self.present, *coming} - {*gone}) + len(beside) + 1 <= FIT_AT_ONCE

    def could_hold(self, target: str) -> bool:
        return True


def requests_of(path: Path, seed: int) -> list[tuple[float, str, float]]:
    """(seconds since the first, model, seconds of service) of each."""
    rng = random.Random(f"zipf {seed}")
    weights = [1.0 / rank for rank in range(1, len(MODELS) + 1)]
    with path.open() as lines:
        rows = [
            (_seconds(row[0]), float(row[1]), float(row[2])) for row in itertools.islice(csv.reader(lines), 1, None)
        ]
    rows.sort()
    begun = rows[0][0]
    models = rng.choices(MODELS, weights, k=len(rows))
    return [
        (at - begun, model, context / PREFILL_PER_S + generated / DECODE_PER_S)
        for (at, context, generated), model in zip(rows, models, strict=True)
    ]


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text[:26]).timestamp()


class Run:
    """One scheduler, all requests, until the last is served."""

    def __init__(self, machine: Machine, slots: Slots, requests: list[tuple[float, str, float]]) -> None:
        self.machine = machine
        slots.present = machine.state.present.keys()
        self.requests = requests
        self.loads = 0
        self.waits = [0.0] * len(requests)
        self.steps = 0
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Event]] = []
        for request, (at, model, _) in enumerate(requests):
            self._push(at, RequestArrived(request, model))
        begun = time.perf_counter()
        self._until_all_are_served()
        self.step_us = (time.perf_counter() - begun) / self.steps * 1e6

    def _push(self, at: float, event: Event) -> None:
        heapq.heappush(self._heap, (at, next(self._order), event))

    def _until_all_are_served(self) -> None:
        while self._heap:
            due, (at, _, event) = self.machine.due(), self._heap[0]
            if due is not None and due <= at:
                at, event = due, TimePassed()
            else:
                heapq.heappop(self._heap)
            self.steps += 1
            for effect in self.machine.step(event, at):
                self._perform(effect, at)

    def _perform(self, effect: object, now: float) -> None:
        match effect:
            case Grant():
                at, _, serve_s = self.requests[effect.request]
                self.waits[effect.request] = now - at
                self._push(now + serve_s, ServeDone(effect.request))
            case StartLoad():
                self.loads += 1
                for load in effect.evict:
                    self._push(now, Stopped(load))
                self._push(now + LOAD_S, LoadDone(effect.load))
            case StopProcesses():
                for load in effect.loads:
                    self._push(now, Stopped(load))
            case Refuse():
                raise SystemExit(f"gateway_trace: {effect.message}")


def machines(
    requests: list[tuple[float, str, float]], with_serial: bool, quantum: float
) -> list[tuple[str, Machine, Slots]]:
    config = Config(models=tuple(Recipe(name=name, load_s=LOAD_S) for name in MODELS), quantum=quantum)
    found: list[tuple[str, Machine, Slots]] = []
    if with_serial:
        slots = Slots()
        found.append(("serial", Serial(config, slots), slots))
    policies: dict[str, Policy] = {LRU: Lru(), FUTURE: ToldTheFuture(requests), OURS: EXPECTED_LOSS}
    for name, policy in policies.items():
        slots = Slots()
        found.append((name, Fifo(config, slots, policy), slots))
    return found


def measure(run: Run) -> tuple[float, ...]:
    cuts = statistics.quantiles(run.waits, n=100, method="inclusive")
    return (run.loads, cuts[49], cuts[98], statistics.fmean(run.waits), max(run.waits), run.step_us)


def report(path: Path, seeds: range, with_serial: bool, quantum: float) -> None:
    found: dict[str, list[tuple[float, ...]]] = {}
    for seed in seeds:
        requests = requests_of(path, seed)
        for name, machine, slots in machines(requests, with_serial, quantum):
            found.setdefault(name, []).append(measure(Run(machine, slots, requests)))
    print(f"{path.stem}: {len(requests)} requests in {requests[-1][0] / 60:.0f} minutes, {len(seeds)} seeds")
    print(f"  {'':16s} {'loads':>9s} {'wait p50':>11s} {'p99':>11s} {'mean':>11s} {'max':>11s} {'us/step':>9s}")
    for name, rows in found.items():
        loads, *waits, step_us = (statistics.fmean(column) for column in zip(*rows, strict=True))
        print(f"  {name:16s} {loads:9.1f}", *(f"{value:9.1f} s" for value in waits), f"{step_us:9.1f}")
    for name in (FUTURE, OURS) if len(seeds) > 1 else ():
        print(f"  {name + ' / LRU':21s}", *(ratio(found[name], found[LRU], index) for index in range(4)))


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
    parser.add_argument("--without-serial", action="store_true")
    options = parser.parse_args()
    for trace in options.trace:
        path = options.data / f"AzureLLMInferenceTrace_{trace}.csv"
        if not path.exists():
            print(f"gateway_trace: skipped, {path} is not here; --data names the folder of the Azure trace of 2023.")
            return 0
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        report(path, seeds, not options.without_serial, options.quantum)
    return 0


if __name__ == "__main__":
    sys.exit(main())
