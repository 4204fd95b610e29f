"""A hub and a worker as real processes on this machine, and the workloads that are timed there.

Durability is on in every figure: a submit counts when it was acknowledged, which is after its commit; a job counts
when its result is recorded.
"""

import contextlib
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from ostler.client.fleet import Fleet
from ostler.client.http import Hub

OSTLER = [sys.executable, "-m", "ostler"]
TRUE = "/usr/bin/true" if os.path.exists("/usr/bin/true") else "/bin/true"
BATCH = 500
KEPT_IN = "OSTLER_BENCH_KEPT_IN"
IDLE_S = (0.05, 0.15)
"""Before each job that is timed alone: drawn anew each time, so as to lock onto nobody's timer."""


def bare_spawns(count: int, at_once: int = 2) -> float:
    """Process starts per second that this machine can do at all."""
    begun = time.perf_counter()
    running = 0
    for _ in range(count):
        if running == at_once:
            os.waitpid(-1, 0)
            running -= 1
        os.posix_spawn(TRUE, ["true"], {})
        running += 1
    for _ in range(running):
        os.waitpid(-1, 0)
    return count / (time.perf_counter() - begun)


@contextlib.contextmanager
def state_folder() -> Iterator[Path]:
    """Whoever runs several rounds keeps the folders of all until the last is over: for minutes after many files were
    removed, some file systems take ten times as long to make one."""
    if KEPT_IN in os.environ:
        yield Path(tempfile.mkdtemp(dir=os.environ[KEPT_IN]))
    else:
        with tempfile.TemporaryDirectory(prefix="ostler-bench-") as folder:
            yield Path(folder)


@contextlib.contextmanager
def hub(state: Path) -> Iterator[tuple[Hub, psutil.Process, str]]:
    process = spawn("hub", "--port", "0", "--state-dir", str(state), log=state / "hub.out")
    try:
        url = appears(state / "hub.url")
        with Hub(url, (state / "admin.token").read_text().strip()) as client:
            yield client, psutil.Process(process.pid), url
    finally:
        process.terminate()
        process.wait(20)


@contextlib.contextmanager
def worker(state: Path, client: Hub, url: str, slots: int) -> Iterator[None]:
    offer = state / "offer.toml"
    offer.write_text("cpu_count = 64\nmemory_gb = 64\n")
    token = f"@{state / 'join.token'}"
    arguments = ["--hub", url, "--token", token, "--name", "bench", "--slots", str(slots), "--offer", str(offer)]
    process = spawn("worker", *arguments, "--state-dir", str(state), log=state / "worker.out")
    try:
        while not any(one["status"] == "ready" for one in client.workers()):
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(30)


def spawn(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as output:
        return subprocess.Popen([*OSTLER, *arguments], stdout=output, stderr=output)


def appears(path: Path) -> str:
    deadline = time.monotonic() + 20
    while not path.exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"bench: {path.name} did not appear; see {path.parent}")
        time.sleep(0.02)
    return path.read_text().strip()


def true_jobs(client: Hub, count: int) -> None:
    """Jobs, each a process `true`, until the last result is recorded."""
    ids: list[str] = []
    for first in range(0, count, BATCH):
        ids += client.submit([{"command": [TRUE]} for _ in range(min(BATCH, count - first))])["ids"]
    until_ended(client, ids)


def until_ended(client: Hub, ids: Sequence[str]) -> None:
    """The jobs end about in order, so waiting for the last and then asking for stragglers is cheap."""
    succeeded(client, ids[-1])
    while any((jobs := client.status()["jobs"])[state] for state in ("running", "assigned", "pending")):
        time.sleep(0.005)
    if client.jobs(state="failed", limit=1)["jobs"]:
        raise SystemExit(f"bench: jobs have failed, and there are {jobs}")


def succeeded(client: Hub, ident: str) -> None:
    while (document := client.job(ident, wait=25))["finished_at"] is None:
        pass
    if document["state"] != "succeeded":
        raise SystemExit(f"bench: {ident} is {document['state']}: {document['reason']}")


def one_job(client: Hub) -> None:
    succeeded(client, client.submit({"command": [TRUE]})["id"])


def calls(client: Hub, function: Callable[[int], int], count: int) -> None:
    """The function travels by value only if it is the main module's; a worker could not import a benchmark."""
    if list(Fleet(client).map(function, range(count))) != [function(number) for number in range(count)]:
        raise SystemExit("bench: a value is wrong")


def alone_ms(once: Callable[[], None], count: int) -> float:
    """Median milliseconds of one at a time, with nothing else to do before it."""
    times = []
    for _ in range(count):
        time.sleep(random.uniform(*IDLE_S))
        begun = time.perf_counter()
        once()
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1000


def rate(count: int, run: Callable[[int], object]) -> float:
    begun = time.perf_counter()
    run(count)
    return count / (time.perf_counter() - begun)


def batched_submits(client: Hub, count: int, batch: int = 1000) -> None:
    """Jobs that cannot run, each with a spec of its own, until all are acknowledged."""
    for first in range(0, count, batch):
        numbers = range(first, min(first + batch, count))
        client.submit([{"command": ["train", str(n)], "gpu_count": 4, "name": f"q{n}"} for n in numbers])


def array_submits(client: Hub, count: int, size: int = 10_000) -> None:
    for first in range(0, count, size):
        client.submit({"command": ["train"], "gpu_count": 4, "array": min(size, count - first)})


def peak_mb(process: psutil.Process) -> float:
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return process.memory_info().rss / 2**20


def machine() -> str:
    """This machine in words: nothing that names it."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    memory = psutil.virtual_memory().total / 2**30
    return f"{psutil.cpu_count()} cores ({model}), {memory:.0f} GiB, {platform.system()} {platform.machine()}"


def report(name: str, value: str, bar: str = "") -> None:
    print(f"  {name:58s} {value:>14s}   {bar}", flush=True)
