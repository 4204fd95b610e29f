"""What the yard can do on this machine, in one run: `make bench`.

Ratios are what counts: everything is measured beside the bare floor of the same minute, medians of three. Durability
is on in every figure: a submit counts when it was acknowledged, which is after its commit; a job counts when its
result is recorded.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from ostler.client.http import Hub

OSTLER = [sys.executable, "-m", "ostler.cli"]
ROUNDS = 3
TRUE = "/usr/bin/true" if os.path.exists("/usr/bin/true") else "/bin/true"


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


def true_jobs(client: Hub, count: int) -> float:
    """Jobs per second, each a process `true`, from the first submit to the last recorded result."""
    begun = time.perf_counter()
    ids: list[str] = []
    for first in range(0, count, 500):
        ids += client.submit([{"command": [TRUE]} for _ in range(min(500, count - first))])["ids"]
    until_ended(client, ids)
    return count / (time.perf_counter() - begun)


def until_ended(client: Hub, ids: list[str]) -> None:
    """The jobs end about in order, so waiting for the last and then asking for stragglers is cheap."""
    for ident in reversed(ids[-50:]):
        while (document := client.job(ident, wait=30))["finished_at"] is None:
            pass
        if document["state"] != "succeeded":
            raise SystemExit(f"bench: {ident} is {document['state']}: {document['reason']}")
    while client.status()["jobs"]["running"] + client.status()["jobs"]["assigned"] + client.status()["jobs"]["pending"]:
        time.sleep(0.01)


def one_at_a_time(client: Hub, count: int) -> float:
    """Median seconds from the submit of one job on an idle fleet to its result."""
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        ident = client.submit({"command": [TRUE]})["id"]
        while client.job(ident, wait=30)["finished_at"] is None:
            pass
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def batched_submits(client: Hub, count: int, batch: int) -> float:
    """Acknowledged submits per second of jobs that cannot run, each with a spec of its own."""
    begun = time.perf_counter()
    for first in range(0, count, batch):
        specs = [{"command": ["train", str(first + n)], "gpu_count": 4, "name": f"q{first + n}"} for n in range(batch)]
        client.submit(specs)
    return count / (time.perf_counter() - begun)


def array_submits(client: Hub, arrays: int, size: int) -> float:
    begun = time.perf_counter()
    for _ in range(arrays):
        client.submit({"command": ["train"], "gpu_count": 4, "array": size})
    return arrays * size / (time.perf_counter() - begun)


def peak_mb(process: psutil.Process) -> float:
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return process.memory_info().rss / 2**20


def report(name: str, value: str, bar: str = "") -> None:
    print(f"  {name:58s} {value:>14s}   {bar}", flush=True)


def measure_running(jobs: int, slots: int) -> dict[str, float]:
    floors, rates = [], []
    with tempfile.TemporaryDirectory(prefix="ostler-bench-") as folder:
        state = Path(folder)
        with hub(state) as (client, _, url), worker(state, client, url, slots):
            true_jobs(client, 200)
            for _ in range(ROUNDS):
                floors.append(bare_spawns(jobs))
                rates.append(true_jobs(client, jobs))
            idle = one_at_a_time(client, 50)
    ratio = statistics.median(rate / floor for rate, floor in zip(rates, floors, strict=True))
    return {
        "bare_spawns_per_s": statistics.median(floors),
        "true_jobs_per_s": statistics.median(rates),
        "ratio": ratio,
        "idle_p50_ms": idle * 1000,
    }


def measure_queueing(queued: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="ostler-bench-") as folder, hub(Path(folder)) as (client, process, _):
        batched = batched_submits(client, queued, 1000)
        memory = peak_mb(process)
        arrays = array_submits(client, 20, 10_000)
    return {"batched_submits_per_s": batched, "array_submits_per_s": arrays, "hub_peak_mb": memory, "queued": queued}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1500, help="jobs per round of `true`")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--queued", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure_running(options.jobs, options.slots) | measure_queueing(options.queued)
    if options.json:
        print(json.dumps(found))
        return 0
    report("process starts this machine can do (posix_spawn of true)", f"{found['bare_spawns_per_s']:,.0f}/s")
    report("`true` jobs, submit to recorded result, durable", f"{found['true_jobs_per_s']:,.0f}/s")
    report("ratio", f"{found['ratio']:.2f}", "at least 0.30")
    report("one job on an idle fleet, submit to result, median", f"{found['idle_p50_ms']:.1f} ms")
    report(
        "submits acknowledged, batches of 1,000 specs", f"{found['batched_submits_per_s']:,.0f}/s", "at least 10,000"
    )
    report("submits acknowledged, arrays of 10,000", f"{found['array_submits_per_s']:,.0f}/s", "at least 10,000")
    report(
        f"peak memory of the hub with {options.queued:,} queued jobs", f"{found['hub_peak_mb']:.0f} MB", "under 300 MB"
    )
    met = found["ratio"] >= 0.3 and found["batched_submits_per_s"] >= 10_000 and found["hub_peak_mb"] < 300
    print("  every bar is met" if met else "  a bar was missed")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
