"""How much the supervisor adds to starting a process: `true`, a few at a time, against bare posix_spawn.

python benchmarks/launches.py [--tasks 300] [--at-once 2] [--rounds 15]
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import uvloop

from ostler.runtime.base import Launch
from ostler.runtime.process import ProcessRuntime

ENV = {"PATH": os.environ.get("PATH", os.defpath), "OSTLER_HUB": "http://127.0.0.1:7600", "LANG": "C.UTF-8"}


def bare(tasks: int, at_once: int) -> float:
    begin = time.perf_counter()
    running = 0
    for _ in range(tasks):
        if running == at_once:
            os.waitpid(-1, 0)
            running -= 1
        os.posix_spawn("/bin/true", ["true"], ENV, setsid=True)
        running += 1
    for _ in range(running):
        os.waitpid(-1, 0)
    return tasks / (time.perf_counter() - begin)


async def supervised(runtime: ProcessRuntime, tasks: int, at_once: int, first: int, ahead: bool = False) -> float:
    """With `ahead`, each slot's next task is launched before the present one ends, to come after it."""
    begin = time.perf_counter()
    started = 0
    for _ in range(2 * at_once if ahead else at_once):
        await runtime.launch(_order(first + started, first + started - at_once if started >= at_once else -1))
        started += 1
    ended = 0
    async for end in runtime.ends():
        if end.exit_code != 0:
            raise SystemExit(f"{end}")
        await runtime.forget(end.attempt)
        ended += 1
        if ended == tasks:
            break
        if started < tasks:
            await runtime.launch(_order(first + started, first + started - at_once if ahead else -1))
            started += 1
    return tasks / (time.perf_counter() - begin)


def _order(number: int, after: int) -> Launch:
    return Launch(
        attempt=f"attempt-{number}",
        task_id=f"job-{number}",
        argv=["true"],
        env={**ENV, "OSTLER_ATTEMPT": f"attempt-{number}"},
        after=[f"attempt-{after}"] if after >= 0 else [],
    )


async def compare(folder: Path, tasks: int, at_once: int, rounds: int) -> None:
    """In turns, and the median of many short rounds: other work on the machine then falls on all alike."""
    runtime = ProcessRuntime(folder)
    await runtime.open()
    rates: list[tuple[float, float, float]] = []
    for number in range(0, 2 * rounds * tasks, 2 * tasks):
        rates.append(
            (
                bare(tasks, at_once),
                await supervised(runtime, tasks, at_once, number),
                await supervised(runtime, tasks, at_once, number + tasks, ahead=True),
            )
        )
    await runtime.close(stop_tasks=True)
    print(f"`true`, {at_once} at a time")
    for name, column in (("bare posix_spawn", 0), ("one after the other", 1), ("the next one ready", 2)):
        rate = statistics.median(one[column] for one in rates)
        ratio = statistics.median(one[column] / one[0] for one in rates)
        print(f"  {name:20} {rate:6.0f}/s  {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=300, help="in each round")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ostler-bench-") as folder:
        uvloop.run(compare(Path(folder), options.tasks, options.at_once, options.rounds))


if __name__ == "__main__":
    main()
