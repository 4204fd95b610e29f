"""A hub with many workers: what the crowd costs while nothing happens, and how soon it is back after kill -9.

Every worker holds one running task, beats every ten seconds and is a real connection; all of them live in one process
whose own cost is told beside the hub's. The hub's durability is on.
"""

import argparse
import asyncio
import contextlib
import json
import resource
import signal
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import uvloop
from benchmarks.model_workers import BEAT_S, Crowd
from benchmarks.process_fleet import appears, report, spawn

from ostler.client.http import Hub

BACK_WITHIN_S = 60.0
RECONNECTS = 1000
MAX_CORE_SHARE, MAX_RSS_MIB, MAX_LAG_S = 0.5, 1024.0, 0.1


class ProcessHub:
    """On one port, through kill -9 and start."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.port = 0
        self.start()

    def start(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self.state / "hub.url").unlink()
        self.begun = time.perf_counter()
        options = ["--port", str(self.port), "--state-dir", str(self.state)]
        self._process = spawn("hub", *options, log=self.state / "hub.out")
        self.usage = psutil.Process(self._process.pid)
        self.url = appears(self.state / "hub.url")
        self.port = int(self.url.rsplit(":", 1)[1])
        self.token = (self.state / "admin.token").read_text().strip()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)

    def cpu_s(self) -> float:
        used = self.usage.cpu_times()
        return float(used.user + used.system)

    def rss_mib(self) -> float:
        return float(self.usage.memory_info().rss) / 2**20

    def lag(self) -> dict[float, int]:
        """How often the loop was late by no more than each bound."""
        asked = urllib.request.Request(f"{self.url}/metrics", headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        found = {}
        for line in lines:
            if line.startswith("ostler_hub_loop_lag_seconds_bucket"):
                bound = line.split('"')[1]
                found[float(bound)] = int(float(line.rsplit(" ", 1)[1]))
        return found


def quantile(before: dict[float, int], after: dict[float, int], part: float) -> float:
    """The bound that this part of what was seen in between stays within."""
    seen = {bound: after[bound] - before[bound] for bound in after}
    wanted = part * max(seen.values())
    return min(bound for bound, count in seen.items() if count >= wanted)


@contextlib.contextmanager
def running_hub() -> Iterator[ProcessHub]:
    with tempfile.TemporaryDirectory(prefix="ostler-crowd-") as folder:
        hub = ProcessHub(Path(folder))
        try:
            yield hub
        finally:
            hub.stop()


async def measure(size: int, steady_s: float, tasks: bool) -> dict[str, Any]:
    with running_hub() as hub:
        token = (hub.state / "join.token").read_text().strip()
        crowd = Crowd("127.0.0.1", hub.port, token, size)
        crowd.start()
        beating = asyncio.create_task(crowd.beat())
        found: dict[str, Any] = {"workers": size, "all_at_once_s": await crowd.all_registered(300)}
        if tasks:
            found["all_busy_s"] = await _fill(hub, crowd)
        await asyncio.sleep(5)
        found |= await _steady(hub, crowd, steady_s)
        found |= await _flapping(hub, token)
        found |= await _restart(hub, crowd, tasks)
        beating.cancel()
        crowd.leave()
        return found


async def _flapping(hub: ProcessHub, token: str) -> dict[str, Any]:
    """One worker that registers and loses its connection, again and again, beside all the others."""
    alone = Crowd("127.0.0.1", hub.port, token, 1, first="restless")
    rss, cpu, begun = hub.rss_mib(), hub.cpu_s(), time.perf_counter()
    alone.start()
    for _ in range(RECONNECTS):
        await alone.all_registered(60)
        alone.workers[0].come_back_s = 0.001
        alone.workers[0].drop()
        await alone.until(lambda crowd: not crowd.registered, 60)
    alone.leave()
    return {
        "reconnects_per_s": RECONNECTS / (time.perf_counter() - begun),
        "reconnect_cpu_ms": (hub.cpu_s() - cpu) / RECONNECTS * 1000,
        "reconnects_grow_mib": hub.rss_mib() - rss,
    }


async def _fill(hub: ProcessHub, crowd: Crowd) -> float:
    """A task for every worker."""
    begun = time.perf_counter()

    def submit() -> str:
        with Hub(hub.url, hub.token) as client:
            return str(client.submit({"command": ["train"], "array": len(crowd.workers)})["id"])

    await asyncio.to_thread(submit)
    await crowd.until(lambda crowd: crowd.counts["assigned"] == len(crowd.workers), 300)
    return time.perf_counter() - begun


async def _steady(hub: ProcessHub, crowd: Crowd, seconds: float) -> dict[str, Any]:
    crowd.answered_s.clear()
    lag, cpu, own, begun = await asyncio.to_thread(hub.lag), hub.cpu_s(), time.process_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    wall = time.perf_counter() - begun
    share, own_share = (hub.cpu_s() - cpu) / wall, (time.process_time() - own) / wall
    after = await asyncio.to_thread(hub.lag)
    cuts = statistics.quantiles(crowd.answered_s, n=100)
    return {
        "hub_core_share": share,
        "crowd_core_share": own_share,
        "beats_per_s": len(crowd.answered_s) / wall,
        "hub_rss_mib": hub.rss_mib(),
        "lag_p50_s": quantile(lag, after, 0.5),
        "lag_p99_s": quantile(lag, after, 0.99),
        "answer_p50_ms": cuts[49] * 1000,
        "answer_p99_ms": cuts[98] * 1000,
    }


async def _restart(hub: ProcessHub, crowd: Crowd, tasks: bool) -> dict[str, Any]:
    crowd.counts.clear()
    await asyncio.to_thread(hub.kill)
    await asyncio.to_thread(hub.start)
    up_s = time.perf_counter() - hub.begun
    await crowd.all_registered(300)
    found: dict[str, Any] = {"up_s": up_s, "back_s": time.perf_counter() - hub.begun, "back_cpu_s": hub.cpu_s()}
    lag = await asyncio.to_thread(hub.lag)
    nothing = dict.fromkeys(lag, 0)
    found |= {f"storm_lag_p{part}_s": quantile(nothing, lag, part / 100) for part in (50, 99)}
    if tasks:
        await asyncio.sleep(BEAT_S + 1)  # until every worker has said once more what it holds
        found["assigned_again"] = crowd.counts["assigned"]
        assert all(len(worker.held) == 1 for worker in crowd.workers)
    return found | {"counts": dict(crowd.counts)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the hub is watched while nothing happens")
    parser.add_argument("--idle", action="store_true", help="without a running task on every worker")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most < options.workers + 100:
        raise SystemExit(f"crowd: {options.workers} workers need as many files; the limit here is {most} (ulimit -Hn)")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(measure(options.workers, options.seconds, not options.idle))
    if options.json:
        print(json.dumps(found))
        return 0
    return 0 if tell(found) else 1


def tell(found: dict[str, Any]) -> bool:
    print(f"{found['workers']:,} workers, a heartbeat of each every ten seconds")
    report("all connect at once, until the last is registered", f"{found['all_at_once_s']:.1f} s")
    if "all_busy_s" in found:
        report("an array of as many tasks, until the last is accepted", f"{found['all_busy_s']:.1f} s")
    share = f"{found['hub_core_share']:.2f} of a core"
    report(f"the hub, {found['beats_per_s']:.0f} heartbeats a second", share, f"at most {MAX_CORE_SHARE}")
    report("the crowd itself", f"{found['crowd_core_share']:.2f} of a core")
    report("the hub's memory", f"{found['hub_rss_mib']:.0f} MiB", f"at most {MAX_RSS_MIB:.0f} MiB")
    lag = f"{found['lag_p50_s'] * 1000:.0f} / {found['lag_p99_s'] * 1000:.0f} ms"
    report("the hub's loop late, p50 / p99", lag, f"p99 at most {MAX_LAG_S * 1000:.0f} ms")
    answers = f"{found['answer_p50_ms']:.1f} / {found['answer_p99_ms']:.1f} ms"
    report("a heartbeat's answer, p50 / p99", answers)
    flaps = f"{found['reconnects_per_s']:.0f}/s, +{found['reconnects_grow_mib']:.0f} MiB"
    report(f"one more that reconnects {RECONNECTS:,} times, and what is left of it", flaps)
    report("after kill -9 and start, until the last is back", f"{found['back_s']:.1f} s", f"{BACK_WITHIN_S:.0f} s")
    report("of which until it listens", f"{found['up_s']:.1f} s")
    report("the hub's CPU time from its start until then", f"{found['back_cpu_s']:.1f} s")
    storm = f"{found['storm_lag_p50_s'] * 1000:.0f} / {found['storm_lag_p99_s'] * 1000:.0f} ms"
    report("its loop late meanwhile, p50 / p99", storm)
    report("sent away to come back later", f"{found['counts'].get('HTTP 503', 0):,}")
    if "assigned_again" in found:
        report("tasks that were given out again", f"{found['assigned_again']:,}", "none")
    return (
        found["hub_core_share"] <= MAX_CORE_SHARE
        and found["hub_rss_mib"] <= MAX_RSS_MIB
        and found["lag_p99_s"] <= MAX_LAG_S
        and found["back_s"] <= BACK_WITHIN_S
        and not found.get("assigned_again")
    )


if __name__ == "__main__":
    sys.exit(main())
