"""`make crash`: the scenario once for every point of the hub and of a worker, each killed there by `kill -9`; and how
long a hub with a long queue takes to answer again.

make crash ARGS='[--role hub|worker|restart] [--every N] [--from N] [--jobs N] [--json FILE]'
"""

import argparse
import json
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.crash import restart
from tests.crash.scenario import ROLES, CrashingFleet, check_all, play

RESTART = "restart"
TOLD_EVERY = 20


@dataclass
class Run:
    role: str
    at: int
    what: str
    """The point at which it died; empty: it came to its end before that."""
    seconds: float
    broken: str = ""


def points_of(role: str) -> list[str]:
    """What one undisturbed life of the fleet passes, in order."""
    with TemporaryDirectory(prefix="crash-") as folder:
        fleet = CrashingFleet(Path(folder), role)
        try:
            fleet.begin()
            check_all(fleet, play(fleet))
        finally:
            fleet.end()
        return fleet.points.read_text().splitlines()


def run(role: str, at: int) -> Run:
    begun = time.monotonic()
    broken, what = "", ""
    with TemporaryDirectory(prefix="crash-", ignore_cleanup_errors=True) as folder:
        fleet = CrashingFleet(Path(folder), role, at)
        try:
            fleet.begin()
            check_all(fleet, play(fleet))
        except BaseException:
            broken = traceback.format_exc() + "".join(fleet.log_of(name) for name in ("hub", "a", "b"))
        finally:
            fleet.end()
        passed = fleet.points.read_text().splitlines() if fleet.points.exists() else []
        if len(passed) >= at:
            what = passed[at - 1]
        elif fleet.crashes:
            broken += f"somebody else has killed one of the processes: only {len(passed)} points were passed"
    return Run(role, at, what, time.monotonic() - begun, broken)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--role", choices=(*ROLES, RESTART), help="this part alone; left out: one after the other")
    parser.add_argument("--every", type=int, default=1, help="take every n-th point only")
    parser.add_argument("--from", type=int, default=1, dest="first", help="the first point that is tried")
    parser.add_argument("--jobs", type=int, default=2, help="how many lives at a time")
    parser.add_argument("--json", type=Path, help="write every run into this file")
    chosen = parser.parse_args()
    runs: list[Run] = []
    for role in ROLES:
        if chosen.role in (None, role):
            runs += die_at_each(role, chosen)
    slow = chosen.role in (None, RESTART) and restart_slowly()
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(one) for one in runs], indent=1))
    return 1 if slow or any(one.broken for one in runs) else 0


def die_at_each(role: str, chosen: argparse.Namespace) -> list[Run]:
    names = points_of(role)
    tried = range(chosen.first, len(names) + 1, chosen.every)
    print(f"{role}: {len(names)} points, {len(tried)} of them are tried", flush=True)
    runs: list[Run] = []
    begun = time.monotonic()
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for done in pool.map(run, [role] * len(tried), tried):
            runs.append(done)
            if len(runs) % TOLD_EVERY == 0:
                print(f"{role}: {len(runs)} of {len(tried)} after {time.monotonic() - begun:.0f} s", flush=True)
            if done.broken:
                print(f"{role} {done.at} ({done.what}) BROKEN\n{done.broken}", flush=True)
    report(role, runs)
    return runs


def restart_slowly() -> bool:
    seconds = restart.restarts()
    told = ", ".join(f"{wall:.2f} s ({cpu:.2f} s of a core)" for wall, cpu in seconds)
    print(f"restart: with {restart.JOBS} jobs in the ledger the hub answers after {told}", flush=True)
    return min(seconds)[0] > restart.BOUND_S


def report(role: str, runs: list[Run]) -> None:
    died = [one for one in runs if one.what]
    kinds = Counter(one.what for one in died)
    broken = sum(bool(one.broken) for one in runs)
    print(f"{role}: died at {len(died)} points, {len(runs) - len(died)} came to their end before; {broken} broken")
    for what, times in sorted(kinds.items()):
        print(f"  {times:5} × {what}")


if __name__ == "__main__":
    sys.exit(main())
