"""Tasks that print without end, on real workers: what they do to heartbeats, to the hub's memory and to disks.

One task that prints 100 MB a second, then 200 that print 1 MB a second each; once with nobody reading and once with a
reader who follows one of them. Every line has a number and a time, so that the reader knows of every byte that it was
not shown whether it was told.
"""

import argparse
import contextlib
import http.client
import json
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from benchmarks.crowd import ProcessHub, quantile
from benchmarks.process_fleet import report, spawn

from ostler.client.http import Hub
from ostler.worker.trimming import KEEP_HEAD, KEEP_TAIL, SLACK

LINE = 1000
MB = 1_000_000
BEAT_S = 10.0
MAX_LATE_S, MAX_GROWTH_MIB = 1.0, 64.0
PER_LOG_MIB = (KEEP_HEAD + KEEP_TAIL + SLACK) / 2**20
PRINTER = """
import os, sys, time
rate, block, number = float(sys.argv[1]), int(sys.argv[2]), 0
rest = "." * 1000
begun = time.time()
while True:
    now = time.time()
    lines = [f"{number + one:012d} {now:.3f} {rest}"[:999] + chr(10) for one in range(block)]
    data = memoryview("".join(lines).encode())
    while data:
        data = data[os.write(1, data):]
    number += block
    time.sleep(max(0.0, begun + number * 1000 / rate - time.time()))
"""
_GAP = re.compile(rb"\n\[ostler: (\d+) bytes left out here\]\n")


class Follower(threading.Thread):
    """Reads a log as it grows, and knows of every byte where in the task's output it belongs."""

    def __init__(self, hub: ProcessHub, job: str) -> None:
        super().__init__(daemon=True)
        self.seen = self.told = self.gaps = 0
        self.wrong: list[str] = []
        self.behind_s: list[float] = []
        self._at = 0
        where = urlsplit(hub.url)
        self._connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
        self._connection.request(
            "GET", f"/v1/jobs/{job}/logs?follow=1", headers={"Authorization": f"Bearer {hub.token}"}
        )

    def run(self) -> None:
        waiting = b""
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer = self._connection.getresponse()
            while data := answer.read1(1 << 18):
                waiting = self._take(waiting + data)

    def _take(self, data: bytes) -> bytes:
        """What may be part of a word about a gap is left for the next time."""
        while found := _GAP.search(data):
            self._check(data[: found.start()])
            self.gaps += 1
            self.told += int(found[1])
            self._at += int(found[1])
            data = data[found.end() :]
        keep = data.rfind(b"\n[")
        keep = keep if keep >= 0 else len(data) - (data[-1:] == b"\n")
        self._check(data[:keep])
        return data[keep:]

    def _check(self, data: bytes) -> None:
        for start in range(-self._at % LINE, len(data) - 30, LINE):
            number, at, _ = data[start : start + 64].split(b" ", 2)
            if int(number) != (self._at + start) // LINE:
                self.wrong.append(f"line {int(number)} where {(self._at + start) // LINE} should be")
            self.behind_s.append(time.time() - float(at))
        self.seen += len(data)
        self._at += len(data)


class Watch(threading.Thread):
    """The workers' heartbeats as the hub hears them, and what the hub takes, five times a second."""

    def __init__(self, hub: ProcessHub, client: Hub, workers: list[str]) -> None:
        super().__init__(daemon=True)
        self.late_s = 0.0
        self.rss_mib: list[float] = []
        self._hub, self._client = hub, client
        self._heard: dict[str, tuple[str, float]] = {name: ("", time.monotonic()) for name in workers}
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.2):
            self.rss_mib.append(self._hub.rss_mib())
            for worker in self._client.workers():
                last, since = self._heard[worker["id"]]
                if worker["last_heartbeat"] != last:
                    if last:
                        self.late_s = max(self.late_s, time.monotonic() - since - BEAT_S)
                    self._heard[worker["id"]] = (worker["last_heartbeat"], time.monotonic())

    def stop(self) -> None:
        self._over.set()
        self.join()


@contextlib.contextmanager
def workers(hub: ProcessHub, client: Hub, count: int, slots: int) -> Iterator[list[str]]:
    offer = hub.state / "offer.toml"
    offer.write_text("cpu_count = 1000\nmemory_gb = 1000\n")
    names = [f"bench{number}" for number in range(count)]
    join = f"@{hub.state / 'join.token'}"
    running = [
        spawn(
            *("worker", "--hub", hub.url, "--token", join, "--name", name, "--slots", str(slots)),
            *("--offer", str(offer), "--state-dir", str(hub.state / name), "--drain-seconds", "0"),
            log=hub.state / f"{name}.out",
        )
        for name in names
    ]
    try:
        while sum(one["status"] == "ready" for one in client.workers()) < count:
            time.sleep(0.05)
        yield names
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(60)


def disk_mib(folder: Path) -> float:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(where, name)).st_blocks * 512
    return total / 2**20


def printed_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.glob("*/workers/*/attempts/*/log")) / MB


def measure(tasks: int, mb_per_s: float, machines: int, follow: bool, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ostler-logs-") as folder:
        hub = ProcessHub(Path(folder))
        with contextlib.ExitStack() as stack:
            stack.callback(hub.stop)
            client = stack.enter_context(Hub(hub.url, hub.token))
            names = stack.enter_context(workers(hub, client, machines, -(-tasks // machines)))
            block = max(1, int(mb_per_s * MB / 10 / LINE))
            command = [sys.executable, "-I", "-S", "-c", PRINTER, str(mb_per_s * MB), str(block)]
            job = client.submit({"command": command, "array": tasks} if tasks > 1 else {"command": command})["id"]
            while client.status()["jobs"]["running"] < 1 or not printed_mb(hub.state):
                time.sleep(0.1)
            follower = Follower(hub, f"{job}.0" if tasks > 1 else job) if follow else None
            found = _watched(hub, client, names, follower, seconds)
            client.cancel(job)
            return {"tasks": tasks, "followed": follow, **found, **(_followed(follower) if follower else {})}


def _watched(
    hub: ProcessHub, client: Hub, names: list[str], follower: Follower | None, seconds: float
) -> dict[str, Any]:
    watch = Watch(hub, client, names)
    lag, cpu, printed, begun = hub.lag(), hub.cpu_s(), printed_mb(hub.state), time.perf_counter()
    watch.start()
    if follower is not None:
        follower.start()
    time.sleep(seconds)
    wall = time.perf_counter() - begun
    watch.stop()
    rss = watch.rss_mib
    return {
        "printed_mb_per_s": (printed_mb(hub.state) - printed) / wall,
        "late_s": watch.late_s,
        "hub_rss_mib": rss[len(rss) // 10],
        "hub_rss_grown_mib": max(rss) - rss[len(rss) // 10],
        "hub_core_share": (hub.cpu_s() - cpu) / wall,
        "lag_p99_s": quantile(lag, hub.lag(), 0.99),
        "worker_disk_mib": max(disk_mib(hub.state / name) for name in names),
        "hub_disk_mib": disk_mib(hub.state / "logs"),
    }


def _followed(follower: Follower) -> dict[str, Any]:
    return {
        "read_mb": follower.seen / MB,
        "told_left_out_mb": follower.told / MB,
        "gaps": follower.gaps,
        "unsaid": len(follower.wrong),
        "first_unsaid": follower.wrong[:1],
        "behind_s": statistics.median(follower.behind_s[len(follower.behind_s) // 2 :] or [0.0]),
    }


def tell(found: dict[str, Any], most_disk_mib: float) -> bool:
    name = f"{found['tasks']} task{'s' * (found['tasks'] > 1)} printing {found['printed_mb_per_s']:.0f} MB/s together"
    print(f"{name}, {'one reader follows' if found['followed'] else 'nobody reads'}", flush=True)
    report("latest heartbeat, late by", f"{found['late_s']:.2f} s", f"at most {MAX_LATE_S:.0f} s")
    grown = f"{found['hub_rss_mib']:.0f} + {found['hub_rss_grown_mib']:.0f} MiB"
    report("the hub's memory, and what it grew by", grown, f"grows by at most {MAX_GROWTH_MIB:.0f} MiB")
    report("the hub's share of a core", f"{found['hub_core_share']:.2f}")
    report("the hub's loop late, p99", f"{found['lag_p99_s'] * 1000:.0f} ms")
    disk = f"{found['worker_disk_mib']:.0f} MiB"
    report("what one worker keeps on its disk", disk, f"at most {most_disk_mib:.0f} MiB")
    report("what the hub keeps on its disk", f"{found['hub_disk_mib']:.0f} MiB")
    if found["followed"]:
        report("the reader has seen", f"{found['read_mb']:.0f} MB")
        report(f"and was told of {found['gaps']} gaps, together", f"{found['told_left_out_mb']:.0f} MB")
        report("gaps that it was not told of", f"{found['unsaid']}", "none")
        report("how far it is behind, median", f"{found['behind_s']:.1f} s")
    met = found["late_s"] <= MAX_LATE_S and found["hub_rss_grown_mib"] <= MAX_GROWTH_MIB
    return met and found["worker_disk_mib"] <= most_disk_mib and not found.get("unsaid")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=45.0, help="how long each of the four is watched")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--flood", type=float, default=100.0, help="what the one task prints, in MB a second")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if psutil.disk_usage(tempfile.gettempdir()).free < 40 * 2**30:
        print("logs: less than 40 GiB are free where temporary files are; the runs may not fit", file=sys.stderr)
    met = True
    for tasks, rate, machines in ((1, options.flood, 1), (options.tasks, 1.0, 4)):
        for follow in (False, True):
            found = measure(tasks, rate, machines, follow, options.seconds)
            if options.json:
                print(json.dumps(found), flush=True)
            else:
                met &= tell(found, PER_LOG_MIB * tasks / machines + 2 * rate * machines + 64)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
