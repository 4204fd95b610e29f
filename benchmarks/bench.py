"""What Ostler can do on this machine, beside what it could do when that was last recorded: `make bench`.

Under three minutes; medians of three. W1 is taken in turns with bare process starts and told as a part of them too, so
that a slower machine can be told from a slower Ostler. `--record` keeps this run in benchmarks/recorded.json, for the
next to be compared with: do it on a quiet machine, for a busy one leaves the next run much to be better than.
"""

import argparse
import datetime
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from benchmarks.commits import two_commits_ms
from benchmarks.core import Churn
from benchmarks.process_fleet import (
    alone_ms,
    array_submits,
    bare_spawns,
    batched_submits,
    calls,
    hub,
    machine,
    one_job,
    peak_mb,
    rate,
    true_jobs,
    worker,
)

RECORDED = Path(__file__).resolve().parent / "recorded.json"
SLOWER = 1.2
"""What got worse by more than this is said."""
Runs = dict[str, list[float]]


@dataclass(frozen=True)
class Figure:
    title: str
    unit: str
    more_is_better: bool = True
    compared: bool = True
    """False: it tells about the machine, not about Ostler."""


FIGURES = {
    "spawns": Figure("W1 process starts without a scheduler", "/s", compared=False),
    "jobs": Figure("W1 jobs that are a process `true`", "/s"),
    "jobs_to_spawns": Figure("W1 as a part of those process starts", ""),
    "calls": Figure("W2 calls that do nothing, by `map`", "/s"),
    "alone": Figure("W3 one job alone, median", " ms", more_is_better=False),
    "commits": Figure("W3 two commits on this disk", " ms", compared=False),
    "batched": Figure("W4 submits, each a spec, batches of 1,000", "/s"),
    "arrays": Figure("W4 submits as arrays of 10,000", "/s"),
    "behind": Figure("W4 one job behind them, to one before", " times", more_is_better=False),
    "memory": Figure("W4 peak memory of the hub", " MB", more_is_better=False),
    "decisions": Figure("W6 decisions of the pure core, processor time", "/s"),
}


def nothing(number: int) -> int:
    return number


def running(options: argparse.Namespace) -> Runs:
    found: Runs = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="ostler-bench-") as folder:
        state = Path(folder)
        with hub(state) as (client, _, url), worker(state, client, url, slots=2):
            true_jobs(client, 100)
            calls(client, nothing, 100)
            for _ in range(options.rounds):
                found["spawns"].append(bare_spawns(options.jobs))
                found["jobs"].append(rate(options.jobs, lambda count: true_jobs(client, count)))
                found["jobs_to_spawns"].append(found["jobs"][-1] / found["spawns"][-1])
                found["calls"].append(rate(options.calls, lambda count: calls(client, nothing, count)))
                found["alone"].append(alone_ms(lambda: one_job(client), options.alone))
        found["commits"] = [two_commits_ms(state)]
    return found


def queueing(options: argparse.Namespace) -> Runs:
    with tempfile.TemporaryDirectory(prefix="ostler-bench-") as folder:
        state = Path(folder)
        with hub(state) as (client, process, url), worker(state, client, url, slots=2):
            one_job(client)
            before = alone_ms(lambda: one_job(client), options.alone)
            batched = rate(options.queued, lambda count: batched_submits(client, count))
            arrays = rate(4 * options.queued, lambda count: array_submits(client, count))
            behind = alone_ms(lambda: one_job(client), options.alone) / before
            return {"batched": [batched], "arrays": [arrays], "behind": [behind], "memory": [peak_mb(process)]}


def deciding(options: argparse.Namespace) -> Runs:
    churn = Churn(workers=1000, shapes=100, queued=20_000, users=20)
    gc.collect()
    gc.disable()
    try:
        return {"decisions": [decisions(churn, options.seconds) for _ in range(options.rounds)]}
    finally:
        gc.enable()


def decisions(churn: Churn, seconds: float) -> float:
    """Per second of processor time: the core does nothing but compute."""
    made, begun = 0, time.process_time()
    while (spent := time.process_time() - begun) < seconds:
        made += churn.turn()
    return made / spent


def compare(found: Runs, last: dict[str, float]) -> list[str]:
    """The table, and after it what got slower."""
    worse = []
    print(f"  {'':46s} {'now':>12s}  {'least..most':>20s}  {'recorded':>12s}  {'ratio':>6s}")
    for key, figure in FIGURES.items():
        now, before = statistics.median(found[key]), last.get(key)
        spread = f"{_shown(min(found[key]))}..{_shown(max(found[key]))}" if len(found[key]) > 1 else ""
        line = f"  {figure.title:46s} {_shown(now) + figure.unit:>12s}  {spread:>20s}"
        if before:
            line += f"  {_shown(before) + figure.unit:>12s}  {now / before:6.2f}"
            times = before / now if figure.more_is_better else now / before
            if figure.compared and times > SLOWER:
                worse.append(f"{figure.title}: {times:.2f} times worse than recorded")
        print(line)
    return worse


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1000, help="W1, in each round")
    parser.add_argument("--calls", type=int, default=3000, help="W2, in each round")
    parser.add_argument("--alone", type=int, default=20, help="W3 and W4: how often one job is timed")
    parser.add_argument("--queued", type=int, default=50_000, help="W4, each way")
    parser.add_argument("--seconds", type=float, default=2.0, help="W6, in each round")
    parser.add_argument("--record", action="store_true", help="keep this run as the one to compare with")
    options = parser.parse_args()
    kept = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    load = os.getloadavg()[0]
    found = running(options) | queueing(options) | deciding(options)
    worse = compare(found, kept.get("figures", {}))
    if kept:
        print(f"  recorded on {kept['date']}: {kept['machine']}, load average before {kept['load']}")
    print(f"  here: {machine()}, load average before {load:.1f}")
    for line in worse:
        print(f"  {line}")
    if options.record:
        figures = {key: float(f"{statistics.median(found[key]):.4g}") for key in FIGURES}
        run = {"date": str(datetime.date.today()), "machine": machine(), "load": round(load, 1), "figures": figures}
        RECORDED.write_text(json.dumps(run, indent=2) + "\n")
        print(f"  kept in {RECORDED.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
