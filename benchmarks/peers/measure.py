"""What the peers' scripts share: each says how its system does the workloads, and here they are timed and told.

Needs only the standard library and psutil, for it is run by each peer's own interpreter. A script tells each fact in a
line of JSON as soon as it is known, so that what was measured stays when the rest fails or runs out of time.
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

WARM = 8
TIMES = 3
"""How often calls are timed in a round, of which the median counts: they are over in a second or two, and a machine
may be a third faster or slower in the next."""
IDLE_S = (0.05, 0.15)
"""Before each job that is timed alone: drawn anew each time, so as to lock onto nobody's timer."""
BEHIND = 15
"""How often the job that can run is timed behind those that cannot."""


@dataclass
class Peer:
    """A system that is up and warm."""

    version: str
    setup: str
    """How it is set up for speed, as whoever uses it would."""
    jobs: Callable[[int], None] | None = None
    """So many jobs, each a process `true`, until the last has ended."""
    calls: dict[str, Callable[[int], None]] = field(default_factory=dict)
    """So many calls of a function that does nothing, until the last has answered; by the way that it is done."""
    once: Callable[[], None] | None = None
    """One process `true`, from its submit until its end is known."""
    queue: dict[str, Callable[[int], None]] = field(default_factory=dict)
    """So many jobs that cannot run, until the system has them; by the way that it is done."""
    processes: Iterable[int] = ()
    """Those whose memory a long queue is in."""
    at_most: dict[str, int] = field(default_factory=dict)
    """Where the asked number would take minutes."""


def measure(peer: Peer) -> None:
    """The workloads that the command line names, such as `W1=1000 W2=10000 W3=20`."""
    tell(version=peer.version, setup=peer.setup)
    for name, asked in (part.split("=") for part in sys.argv[1:]):
        count = min(int(asked), peer.at_most.get(name, int(asked)))
        match name:
            case "W1" if peer.jobs is not None:
                tell_rate("W1", "", count, peer.jobs)
            case "W2":
                for way, run in peer.calls.items():
                    tell_rate("W2", way, count, run, TIMES)
            case "W3" if peer.once is not None:
                tell(work="W3", way="", count=count, p50_ms=alone_ms(peer.once, count))
            case "W4" if peer.queue and peer.once is not None:
                before_ms = alone_ms(peer.once, BEHIND)
                for way, run in peer.queue.items():
                    tell_queue(way, count, run, peer.processes)
                    tell(work="W4", way=way, count=count, before_ms=before_ms, behind_ms=alone_ms(peer.once, BEHIND))


def tell(**fact: object) -> None:
    print(json.dumps(fact), flush=True)


def tell_rate(work: str, way: str, count: int, run: Callable[[int], None], times: int = 1) -> None:
    run(WARM)
    rates = []
    for _ in range(times):
        begun = time.perf_counter()
        run(count)
        rates.append(count / (time.perf_counter() - begun))
    tell(work=work, way=way, count=count, per_s=statistics.median(rates))


def tell_queue(way: str, count: int, run: Callable[[int], None], processes: Iterable[int]) -> None:
    before_mb = memory_mb(processes)
    begun = time.perf_counter()
    run(count)
    took = time.perf_counter() - begun
    tell(work="W4", way=way, count=count, per_s=count / took, grown_mb=memory_mb(processes) - before_mb)


def alone_ms(once: Callable[[], None], count: int) -> float:
    times = []
    for _ in range(count):
        time.sleep(random.uniform(*IDLE_S))
        begun = time.perf_counter()
        once()
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1000


def memory_mb(processes: Iterable[int]) -> float:
    total = 0
    for process in processes:
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                total += int(line.split()[1])
    return total / 1024


def until(happened: Callable[[], object], what: str, within_s: float = 60.0, every_s: float = 0.02) -> None:
    deadline = time.monotonic() + within_s
    while not happened():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not happen within {within_s:g} s")
        time.sleep(every_s)
