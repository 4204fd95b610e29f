"""How much of a public GPU cluster is allocated: Ostler's choice of the worker beside FGD and first-fit, in one core.

python benchmarks/placement.py FOLDER [--seeds 42-51] [--processes 2] [--write benchmarks/placement.md]

FOLDER holds openb_node_list_gpu_node.csv and openb_pod_list_*.csv (hkust-adsl/kubernetes-scheduler-simulator).
Arrivals: each pod is tried once, until 130 % of the GPUs have been asked for; the mix is learnt on the way. Turnover:
pods come and go at 95 % load, and wait in the real queue; the first half is left out.
"""

import argparse
import heapq
import multiprocessing
import random
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import rivals

import ostler.core.placing.choose
import ostler.core.placing.place
from ostler.core.effects import AssignTask, Effect
from ostler.sim import openb

POLICIES = ("ostler", "FGD", "first-fit", "first-fit shuffled")
LOAD = 0.95
TURNOVER_PODS = 10_000
TURNOVER_SEEDS = 3


class Turnover(msgspec.Struct):
    """Time-weighted means over the second half of a run."""

    alloc: float = 0.0
    queued: float = 0.0
    """GPUs that are waited for, per cent of all."""
    wait_8: float = 0.0
    """Of pods with eight GPUs, in mean lifetimes."""


class Result(msgspec.Struct):
    policy: str
    workload: str
    seed: int
    arrivals: openb.Outcome | None = None
    turnover: Turnover | None = None


class Work(msgspec.Struct):
    policy: str
    workload: str
    seed: int
    turnover: bool
    folder: str


def cluster_of(policy: str, nodes: list[openb.Node], pods: list[openb.Pod], seed: int) -> openb.Cluster:
    """The real core, with this policy in the place of its own."""
    cluster = openb.Cluster(nodes)
    if policy == "FGD":
        ostler.core.placing.place.choose = rivals.Gradient(pods, cluster.fleet)  # type: ignore[assignment]
    elif policy.startswith("first-fit"):
        names = [node.name for node in nodes]
        if policy.endswith("shuffled"):
            random.Random(seed).shuffle(names)
        rank = {name: place for place, name in enumerate(names)}
        ostler.core.placing.place.choose = rivals.FirstFit(rank)  # type: ignore[assignment]
    else:
        ostler.core.placing.place.choose = ostler.core.placing.choose.choose
    return cluster


def perform(work: Work) -> Result:
    folder = Path(work.folder)
    nodes = openb.read_nodes(folder / "openb_node_list_gpu_node.csv")
    pods = openb.read_pods(folder / f"openb_pod_list_{work.workload}.csv")
    cluster = cluster_of(work.policy, nodes, pods, work.seed)
    if work.turnover:
        return Result(work.policy, work.workload, work.seed, turnover=turn_over(cluster, pods, work.seed))
    return Result(work.policy, work.workload, work.seed, arrivals=openb.run_on(cluster, pods, work.seed))


class _Account:
    """Amounts over time."""

    def __init__(self, cluster: openb.Cluster) -> None:
        self.cluster = cluster
        self.allocated = self.queued = 0
        self.over_time = [0.0, 0.0]
        self.began = self.at = 0.0

    def pass_to(self, now: float) -> None:
        for place, amount in enumerate((self.allocated, self.queued)):
            self.over_time[place] += amount * (now - self.at)
        self.at = self.cluster.now = now

    def begin(self) -> None:
        self.over_time, self.began = [0.0, 0.0], self.at

    def means(self) -> tuple[float, float]:
        spent = (self.at - self.began) * 10 * self.cluster.gpus
        return self.over_time[0] / spent, self.over_time[1] / spent


class _Arrival(msgspec.Struct):
    pod: openb.Pod
    at: float
    stays_s: float


def _arrivals(pods: list[openb.Pod], gpus: int, seed: int) -> tuple[list[_Arrival], int, float]:
    """As if it had always gone on so: at first those that are there, each with a part of its life behind it, and how
    many these are; then new ones at random times. Lifetimes are the cube roots of the trace's, whose few longest would
    else outlast any run; the mean lifetime comes last."""
    chance = random.Random(seed)
    lives = [max(1.0, pod.lifetime_s or chance.expovariate(1e-5)) ** (1 / 3) for pod in pods]
    found, asked = list[_Arrival](), 0
    while asked < LOAD * 1000 * gpus:
        [which] = chance.choices(range(len(pods)), weights=lives)
        found.append(_Arrival(pods[which], 0.0, lives[which] * chance.random()))
        asked += pods[which].gpu_milli
    there, now = len(found), 0.0
    rate = LOAD * 1000 * gpus / statistics.fmean(pod.gpu_milli * life for pod, life in zip(pods, lives, strict=True))
    for _ in range(TURNOVER_PODS):
        now += chance.expovariate(rate)
        which = chance.randrange(len(pods))
        found.append(_Arrival(pods[which], now, lives[which]))
    return found, there, statistics.fmean(lives)


def turn_over(cluster: openb.Cluster, pods: list[openb.Pod], seed: int) -> Turnover:
    drawn, there, mean_s = _arrivals(pods, cluster.gpus, seed)
    measured_from = there + TURNOVER_PODS // 2
    account, ends, waits = _Account(cluster), list[tuple[float, int, AssignTask]](), list[float]()

    def place(effects: list[Effect]) -> None:
        for given in cluster.accept(effects):
            number = int(given.job_id.removeprefix("p"))
            account.allocated += drawn[number].pod.gpu_milli
            account.queued -= drawn[number].pod.gpu_milli
            heapq.heappush(ends, (account.at + drawn[number].stays_s, number, given))
            if drawn[number].pod.gpu_milli == 8000 and number >= measured_from:
                waits.append(account.at - drawn[number].at)

    for number, arrival in enumerate(drawn):
        while ends and ends[0][0] <= arrival.at:
            ended_at, which, given = heapq.heappop(ends)
            account.pass_to(ended_at)
            account.allocated -= drawn[which].pod.gpu_milli
            place(cluster.end(given))
        account.pass_to(arrival.at)
        if number == measured_from:
            account.begin()
        account.queued += arrival.pod.gpu_milli
        place(cluster.submit(f"p{number}", arrival.pod.request))
    late = [arrival.at for number, arrival in enumerate(drawn) if _waits(cluster, number, measured_from, arrival)]
    waits += [account.at - at for at in late]
    return Turnover(*account.means(), wait_8=statistics.fmean(waits) / mean_s if waits else 0.0)


def _waits(cluster: openb.Cluster, number: int, measured_from: int, arrival: _Arrival) -> bool:
    """One with eight GPUs that has not been placed by the end."""
    job = cluster.fleet.jobs.get(f"p{number}")
    return number >= measured_from and arrival.pod.gpu_milli == 8000 and job is not None and bool(job.waiting)


def shown(values: Iterable[float], digits: int = 2) -> str:
    found = list(values)
    spread = statistics.stdev(found) if len(found) > 1 else 0.0
    return f"{statistics.fmean(found):.{digits}f} ± {spread:.{digits}f}"


def tables(results: list[Result], seeds: range) -> str:
    lines = [
        f"Seeds {seeds[0]} to {seeds[-1]}; mean ± standard deviation.",
        "",
        "## Arrivals: allocated GPUs, per cent",
    ]
    lines += _table(results, lambda one: one.arrivals, ("at 100 %", "at 130 %"), _arrival_cells)
    if any(one.turnover for one in results):
        lines += ["", f"## Turnover at {100 * LOAD:.0f} % load: allocated %, queued %, wait of 8-GPU pods in lifetimes"]
        lines += _table(results, lambda one: one.turnover, ("allocated", "queued", "wait"), _turnover_cells)
    return "\n".join(lines) + "\n"


def _workloads(results: list[Result]) -> list[str]:
    return sorted({one.workload for one in results})


def _arrival_cells(found: list[openb.Outcome]) -> list[str]:
    return [shown(one.alloc_at_100 for one in found), shown(one.alloc_at_130 for one in found)]


def _turnover_cells(found: list[Turnover]) -> list[str]:
    return [
        shown(one.alloc for one in found),
        shown(one.queued for one in found),
        shown((one.wait_8 for one in found), 4),
    ]


def _table(
    results: list[Result],
    of: Callable[[Result], object],
    columns: tuple[str, ...],
    cells: Callable[[list], list[str]],  # type: ignore[type-arg]
) -> list[str]:
    lines = ["", f"| workload | policy | {' | '.join(columns)} |", "|---" * (2 + len(columns)) + "|"]
    for workload in _workloads(results):
        for policy in POLICIES:
            found = [of(one) for one in results if (one.workload, one.policy) == (workload, policy) and of(one)]
            if found:
                lines.append(f"| {workload} | {policy} | {' | '.join(cells(found))} |")
    return lines


def _timed(alone: Result) -> str:
    found = alone.arrivals
    assert found is not None
    times = f"p50 {found.decision_us_p50:.0f}, p99 {found.decision_us_p99:.0f}, mean {found.decision_us_mean:.0f} µs"
    return f"Decisions of Ostler's on {found.nodes} machines, {alone.workload}, in a run of its own: {times}.\n"


def _kept(path: Path | None) -> list[Result]:
    if path is None or not path.exists():
        return []
    return [msgspec.json.decode(line, type=Result) for line in path.read_bytes().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", default="42-51")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--workloads", nargs="*")
    parser.add_argument("--turnover", nargs="*", default=["default", "gpuspec10"], help="workloads to turn over")
    parser.add_argument("--no-arrivals", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, help="keep single results in this file, and go on from those in it")
    parser.add_argument("--write", type=Path, help="write the tables to this file")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    found = [path.stem.removeprefix("openb_pod_list_") for path in sorted(options.folder.glob("openb_pod_list_*.csv"))]
    workloads = options.workloads or found
    work = [
        Work(policy, workload, seed, False, str(options.folder))
        for seed in seeds
        for workload in ([] if options.no_arrivals else workloads)
        for policy in options.policies
    ]
    work += [
        Work(policy, workload, seed, True, str(options.folder))
        for seed in seeds[:TURNOVER_SEEDS]
        for workload in options.turnover
        for policy in options.policies
    ]
    results = _kept(options.results)
    done = {(one.policy, one.workload, one.seed, one.turnover is not None) for one in results}
    work = [one for one in work if (one.policy, one.workload, one.seed, one.turnover) not in done]
    with multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=8) as pool:
        for done, result in enumerate(pool.imap_unordered(perform, work), 1):
            results.append(result)
            if options.results:
                with options.results.open("ab") as file:
                    file.write(msgspec.json.encode(result) + b"\n")
            told = result.arrivals or result.turnover
            print(f"{done}/{len(work)} {result.policy} {result.workload} {result.seed}: {told}", file=sys.stderr)
    written = tables(results, seeds)
    if not options.no_arrivals:
        written += "\n" + _timed(perform(Work("ostler", workloads[0], seeds[0], False, str(options.folder))))
    print(written)
    if options.write:
        options.write.write_text(f"# Placement on public data\n\nMade by `benchmarks/placement.py`.\n\n{written}")


if __name__ == "__main__":
    main()
