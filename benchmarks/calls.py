"""Small function calls per second: `fleet.map` on an embedded fleet beside a ProcessPoolExecutor, in one run.

python benchmarks/calls.py [--calls 10000] [--slots 2] [--fresh-calls 100] [--rounds 3]

Not the same thing, and not meant to be: every call of a fleet is a durable record with its own attempt, log and exit
code, survives any process of it being killed, and may run on any machine. Medians; in turns, so that other work on the
machine falls on all alike. "fresh" starts an interpreter for each call, as a fleet does without warm ones.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import ostler

FRESH = {"ostler.fresh": True}


def nothing(number: int) -> int:
    return number


def rate(count: int, run: Callable[[Iterable[int]], Iterable[Any]]) -> float:
    begun = time.perf_counter()
    if list(run(range(count))) != list(range(count)):
        raise SystemExit("calls: a value is wrong")
    return count / (time.perf_counter() - begun)


def measure(calls: int, fresh_calls: int, slots: int, rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"pool": [], "fleet": [], "fresh": []}
    offer = {"cpu_count": max(slots, 2), "memory_gb": max(slots, 4)}
    with ProcessPoolExecutor(2) as pool, ostler.local(slots=slots, offer=offer) as fleet:
        rate(100, lambda numbers: pool.map(nothing, numbers))
        rate(100, lambda numbers: fleet.map(nothing, numbers))
        for _ in range(rounds):
            found["pool"].append(rate(calls, lambda numbers: pool.map(nothing, numbers)))
            found["fleet"].append(rate(calls, lambda numbers: fleet.map(nothing, numbers)))
            if fresh_calls:
                found["fresh"].append(rate(fresh_calls, lambda numbers: fleet.map(nothing, numbers, metadata=FRESH)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--fresh-calls", type=int, default=100)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found = measure(options.calls, options.fresh_calls, options.slots, options.rounds)
    names = {
        "pool": f"ProcessPoolExecutor(2), {options.calls:,} calls",
        "fleet": f"fleet.map, {options.slots} slots, {options.calls:,} calls",
        "fresh": f"fleet.map, an interpreter for each call, {options.fresh_calls:,} calls",
    }
    for key, name in names.items():
        if found[key]:
            rounds = " ".join(f"{one:,.0f}" for one in found[key])
            print(f"  {name:58s} {statistics.median(found[key]):>8,.0f}/s   ({rounds})")


if __name__ == "__main__":
    main()
