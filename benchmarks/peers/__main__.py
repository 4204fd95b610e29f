"""Ostler beside its peers on this machine, in one run: `make bench-peers`.

In each round every system is started, measured (W1: jobs that are a process `true`; W2: calls of a function that does
nothing; W3: one job alone) and stopped, so that whatever else the machine does falls on all alike; then each is given a
long queue of jobs that cannot run (W4). A system that is not there, fails or takes too long is a row that says why.
"""

import argparse
import os
import tempfile
from pathlib import Path

from benchmarks.peers.environments import ROOT, NotInstalled, interpreter
from benchmarks.peers.runs import BARE, COMPILED, OSTLER, PEERS, Found, System, run
from benchmarks.peers.table import page
from benchmarks.process_fleet import KEPT_IN

PAGE = Path(__file__).resolve().parent.parent / "peers.md"


def turns(systems: list[System], number: int) -> list[System]:
    """Another one comes first in every round; the floor is always taken right before ours."""
    ours = [one for one in systems if one in (BARE, OSTLER, COMPILED)]
    by_turns = [OSTLER, *(one for one in systems if one not in ours)]
    first = number * 2 % len(by_turns)
    order = by_turns[first:] + by_turns[:first]
    place = order.index(OSTLER)
    return [*order[:place], *ours, *order[place + 1 :]]


def measured(systems: list[System], options: argparse.Namespace) -> list[Found]:
    found = {system: Found(system) for system in systems}
    works = {"W1": options.jobs, "W2": options.calls, "W3": options.alone}
    for number in range(options.rounds):
        for system in turns(systems, number):
            run(found[system], works, number, options.deadline)
            print(f"  round {number + 1} of {options.rounds}: {said(found[system], number)}", flush=True)
    for system in systems[1:]:
        run(found[system], {"W4": options.queued}, 0, options.deadline)
        print(f"  a long queue: {system.name} {found[system].failed or 'done'}", flush=True)
    return list(found.values())


def said(found: Found, number: int) -> str:
    parts = [
        f"{work} {way}{' ' if way else ''}{series.by_round[number]:,.{1 if what == 'p50_ms' else 0}f}"
        for (work, way, what), series in found.figures.items()
        if number in series.by_round
    ]
    return ", ".join([found.system.name, *parts, *([found.failed] if found.failed else [])])


def install() -> None:
    for system in PEERS:
        try:
            interpreter(system.environment)
        except NotInstalled as error:
            print(f"  {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=5000, help="W1, in each round")
    parser.add_argument("--calls", type=int, default=10_000, help="W2, in each round")
    parser.add_argument("--alone", type=int, default=60, help="W3, in each round")
    parser.add_argument("--queued", type=int, default=100_000, help="W4, once")
    parser.add_argument("--deadline", type=float, default=120.0, help="seconds for each system in each round")
    parser.add_argument("--only", nargs="+", choices=[one.name.lower() for one in PEERS], help="these peers")
    parser.add_argument("--to", type=Path, default=PAGE, help="where the page is written")
    parser.add_argument("--install", action="store_true", help="make the peers' environments, and measure nothing")
    options = parser.parse_args()
    if options.install:
        return install()
    wanted = [one for one in PEERS if not options.only or one.name.lower() in options.only]
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="ostler-peers-") as folder:
        os.environ[KEPT_IN] = folder
        ours = [BARE, OSTLER, *([COMPILED] if (ROOT / COMPILED.path).exists() else [])]
        text = page(measured([*ours, *wanted], options), options.rounds, load)
    options.to.write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
