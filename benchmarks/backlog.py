"""A long queue and a long history: what they cost a job that comes today. `python -m benchmarks.backlog [--jobs N]`

A real hub on SQLite with every commit forced to the disk, spoken to over HTTP. Jobs that cannot run are queued, each
with a spec of its own in batches of 1,000 and as arrays of 10,000; then one job that can run is timed beside the same
job on an empty queue, the hub is stopped and started again, and its peak memory is read. Then a ledger full of jobs
that have ended: what a job, the hub's work for it and a page of a list cost beside those of a short history. And a
manifest of 20,000 jobs: for how long it keeps others waiting.
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import psutil
from benchmarks.process_fleet import TRUE, peak_mb, report, spawn, worker

from ostler.client.http import Hub
from ostler.domain.job import JobSpec
from ostler.domain.records import AttemptRecord, Changes, FeedRecord, JobRecord, TaskRecord
from ostler.hub.ledgers import FILE
from ostler.ledger.sqlite import SqliteLedger

BATCH = 1000
ARRAY = 10_000
MANIFEST = 20_000
AT_ONCE = 2
"""Connections that submit: the next batch arrives while the last one is committed."""
ONE = 30
"""How often the one job is timed."""
OLD_AT = time.time() - 10 * 86_400
"""Long ago, and yet not so old that it would be removed meanwhile."""
Found = dict[str, float]


@contextlib.contextmanager
def hub(state: Path) -> Iterator[tuple[Hub, psutil.Process, str]]:
    """A hub on this folder, once it answers; a long queue takes its time to come back."""
    process = spawn("hub", "--port", "0", "--state-dir", str(state), log=state / "hub.out")
    try:
        while not (state / "hub.url").exists():
            if process.poll() is not None:
                raise SystemExit(f"bench: the hub did not start: {(state / 'hub.out').read_text()}")
            time.sleep(0.01)
        url = (state / "hub.url").read_text().strip()
        with Hub(url, (state / "admin.token").read_text().strip()) as client:
            client.health()
            yield client, psutil.Process(process.pid), url
    finally:
        process.terminate()
        process.wait(60)


def queue_up(client: Hub, count: int, make: Callable[[int], object], each: int) -> Found:
    """Submits per second, acknowledged, and what the hub's processor spent on each."""
    begun = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for done in threads.map(lambda first: client.submit(make(first)), range(0, count, each)):
            assert done
    return {"per_s": count / (time.perf_counter() - begun)}


def batch(first: int) -> list[dict[str, object]]:
    return [
        {"command": ["train", "--seed", str(n)], "gpu_count": 4, "name": f"q{n}"} for n in range(first, first + BATCH)
    ]


def array(_: int) -> dict[str, object]:
    return {"command": ["train"], "gpu_count": 4, "array": ARRAY}


def one_job_ms(client: Hub) -> float:
    """From the submit of one job that can run to its recorded result, median."""
    times = []
    for _ in range(ONE):
        begun = time.perf_counter()
        ident = client.submit({"command": [TRUE]})["id"]
        while client.job(ident, wait=30)["finished_at"] is None:
            pass
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1000


def cpu_s(process: psutil.Process) -> float:
    spent = process.cpu_times()
    return spent.user + spent.system


@contextlib.contextmanager
def watched(client: Hub, found: Found) -> Iterator[None]:
    """How long the hub takes to say that it is well, meanwhile: whoever beats would wait as long."""
    stop, waits = threading.Event(), [0.0]

    def ask() -> None:
        while not stop.wait(0.02):
            begun = time.perf_counter()
            client.health()
            waits.append(time.perf_counter() - begun)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        stop.set()
        asking.join()
        waits.sort()
        found["wait_p99_ms"] = waits[int(len(waits) * 0.99)] * 1000
        found["wait_max_ms"] = waits[-1] * 1000


def measure_queue(jobs: int, make: Callable[[int], object], each: int) -> Found:
    found: Found = {"jobs": jobs}
    with tempfile.TemporaryDirectory(prefix="ostler-bench-") as folder:
        state = Path(folder)
        with hub(state) as (client, process, url), worker(state, client, url, 2):
            found["empty_ms"] = one_job_ms(client)
            spent = cpu_s(process)
            with watched(client, found):
                found |= queue_up(client, jobs, make, each)
            found["cpu_us"] = (cpu_s(process) - spent) / jobs * 1e6
            found["queued_ms"] = one_job_ms(client)
            found["peak_mb"] = peak_mb(process)
        found["ledger_mb"] = (state / FILE).stat().st_size / 2**20
        begun = time.perf_counter()
        with hub(state) as (client, process, _):
            found["restart_s"] = time.perf_counter() - begun
            found["restart_cpu_s"] = cpu_s(process)
            found["restart_peak_mb"] = peak_mb(process)
            assert client.status()["jobs"]["pending"] == jobs // (each if make is array else 1)
    return found


def ended_jobs(first: int, count: int) -> Changes:
    """Jobs that have run and ended, with all that is written down of such a job."""
    changes = Changes()
    spec = JobSpec(command=[TRUE])
    data, request, terms = msgspec.json.encode(spec), spec.request(), spec.terms()
    for seq in range(first, first + count):
        id_, at = f"old-{seq:012}", OLD_AT + seq * 0.001
        common = {"state": "succeeded", "finished_at": at}
        changes.new_jobs.append(
            JobRecord(
                id=id_,
                seq=seq,
                user=f"user-{seq % 20}",
                name=f"old-{seq // 50}",
                spec=data,
                request=request,
                terms=terms,
                size=0,
                submitted_at=at,
                **common,
            )
        )
        changes.tasks.append(TaskRecord(id=id_, job_id=id_, index=0, attempt=f"{id_}-1", worker="w", **common))
        changes.attempts.append(
            AttemptRecord(attempt=f"{id_}-1", task_id=id_, job_id=id_, worker="w", held=False, assigned_at=at, **common)
        )
        for number, state in enumerate(("pending", "assigned", "running", "succeeded")):
            body = {"state": state, "user": f"user-{seq % 20}"}
            line = FeedRecord(seq=4 * seq - 3 + number, at=at, kind="job", subject=id_, body=body)
            changes.feed.append(line)
    return changes


def cpu_per_job_ms(client: Hub, process: psutil.Process, count: int = 300) -> float:
    """What the hub's processor spends on a job from its submit to its recorded end."""
    before = cpu_s(process)
    ids = client.submit([{"command": [TRUE]} for _ in range(count)])["ids"]
    for ident in ids:
        while client.job(ident, wait=30)["finished_at"] is None:
            pass
    return (cpu_s(process) - before) / count * 1000


def page_ms(client: Hub) -> float:
    """The slowest kind of page, median: the newest, one user's, one state's, and one from the middle."""
    newest = client.jobs(limit=100)["next"]
    asked: list[dict[str, Any]] = [
        {},
        {"user": "user-7"},
        {"state": "failed"},
        {"user": "user-7", "state": "succeeded"},
        {"cursor": str(int(newest) // 2)},
    ]
    slowest = 0.0
    for one in asked:
        times = []
        for _ in range(20):
            begun = time.perf_counter()
            client.jobs(limit=100, **one)
            times.append(time.perf_counter() - begun)
        slowest = max(slowest, statistics.median(times))
    return slowest * 1000


def measure_history(jobs: int) -> Found:
    found: Found = {"history": jobs}
    with tempfile.TemporaryDirectory(prefix="ostler-bench-") as folder:
        state = Path(folder)
        ledger = SqliteLedger(state / FILE)
        for first in range(1, jobs + 1, BATCH):
            ledger.commit(ended_jobs(first, min(BATCH, jobs + 1 - first)))
        ledger.close()
        begun = time.perf_counter()
        with hub(state) as (client, process, url):
            found["restart_s"] = time.perf_counter() - begun
            with worker(state, client, url, 2):
                cpu_per_job_ms(client, process, 50)
                found["one_ms"] = one_job_ms(client)
                found["cpu_ms"] = statistics.median(cpu_per_job_ms(client, process) for _ in range(3))
                found["page_ms"] = page_ms(client)
                found["peak_mb"] = peak_mb(process)
    return found


def measure_apply(jobs: int) -> Found:
    """A manifest of so many jobs, applied, and applied again unchanged."""
    found: Found = {"manifest": jobs}
    text = f'[[sweeps]]\nname = "s-{{lr}}"\nmodel = "m"\ncommand = ["train"]\ngrid = {{ lr = {list(range(jobs))} }}\n'
    with tempfile.TemporaryDirectory(prefix="ostler-bench-") as folder, hub(Path(folder)) as (client, process, _):
        for key, change in (("new", "inserted"), ("again", "unchanged")):
            waits: Found = {}
            begun, spent = time.perf_counter(), cpu_s(process)
            with watched(client, waits):
                assert client.apply_manifest(text.encode())[change] == jobs
            found[f"{key}_s"] = time.perf_counter() - begun
            found[f"{key}_cpu_s"] = cpu_s(process) - spent
            found[f"{key}_wait_ms"] = waits["wait_max_ms"]
    return found


def told_apply(found: Found) -> bool:
    print(f"a manifest of {int(found['manifest']):,} jobs")
    for key, what in (("new", "applied"), ("again", "applied again, unchanged")):
        report(what, f"{found[f'{key}_s']:.1f} s")
        report("the longest that others waited for the hub's word meanwhile", f"{found[f'{key}_wait_ms']:.0f} ms")
    return True


def told_queue(title: str, found: Found, least: int) -> bool:
    jobs = int(found["jobs"])
    print(f"{jobs:,} queued jobs that cannot run, {title}")
    ratio = found["queued_ms"] / found["empty_ms"]
    report("submits acknowledged", f"{found['per_s']:,.0f}/s", f"at least {least:,}")
    report("the hub's processor for each", f"{found['cpu_us']:.2f} µs")
    report("the hub's word to others meanwhile, p99", f"{found['wait_p99_ms']:.0f} ms")
    report("one job that can run, beside that on an empty queue", f"{ratio:.2f}", "at most 2")
    report("peak memory of the hub", f"{found['peak_mb']:.0f} MB", "under 1,000")
    report("ledger", f"{found['ledger_mb']:.0f} MB")
    report("restart until it answers", f"{found['restart_s']:.1f} s", "at most 5 with 100,000")
    report("peak memory after the restart", f"{found['restart_peak_mb']:.0f} MB", "under 1,000")
    soon = found["restart_s"] <= max(5.0, 5.0 * jobs / 100_000)
    small = max(found["peak_mb"], found["restart_peak_mb"]) < 1000
    return found["per_s"] >= least and ratio <= 2 and soon and small


def told_history(short: Found, long: Found) -> bool:
    print(f"{int(long['history']):,} jobs that have ended, beside {int(short['history']):,}")
    ratios = {key: long[key] / short[key] for key in ("one_ms", "cpu_ms", "page_ms")}
    report("one job, from submit to result", f"{ratios['one_ms']:.2f}", "about 1")
    report("the hub's processor for a job", f"{ratios['cpu_ms']:.2f}", "about 1")
    report("a page of a list", f"{ratios['page_ms']:.2f}", "about 1")
    report("restart until it answers", f"{long['restart_s']:.1f} s")
    report("peak memory of the hub", f"{long['peak_mb']:.0f} MB")
    return max(ratios.values()) < 1.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="queued, and in the history; fewer is quicker")
    parser.add_argument("--only", choices=("specs", "arrays", "history", "apply"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, Found] = {}
    if options.only in (None, "specs"):
        found["specs"] = measure_queue(options.jobs, batch, BATCH)
    if options.only in (None, "arrays"):
        found["arrays"] = measure_queue(max(options.jobs, ARRAY), array, ARRAY)
    if options.only in (None, "history"):
        found["short"], found["long"] = measure_history(1000), measure_history(options.jobs)
    if options.only in (None, "apply"):
        found["apply"] = measure_apply(min(options.jobs, MANIFEST))
    if options.json:
        print(json.dumps(found))
        return 0
    met = [told_queue("each with a spec of its own", found["specs"], 10_000)] if "specs" in found else []
    met += [told_queue("as arrays of 10,000", found["arrays"], 100_000)] if "arrays" in found else []
    met += [told_history(found["short"], found["long"])] if "long" in found else []
    met += [told_apply(found["apply"])] if "apply" in found else []
    print("every bar is met" if all(met) else "a bar was missed")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
