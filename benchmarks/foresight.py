"""Why, when and what if on a large fleet, and how far they can be trusted: `python benchmarks/foresight.py`.

A real hub with 500 workers that speak the protocol (and run nothing) and 10,000 jobs that wait. Every question is timed
over HTTP; meanwhile a probe measures how long a job that fits takes from its submit to its worker, with and without
people who ask. Then 1,000 random triples for the smallest change, and calibration in the simulator.
"""

import argparse
import asyncio
import contextlib
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from ostler.hub.apart import told, tried
from ostler.sim.calibration import Count, calibrate
from ostler.sim.triples import verify

OSTLER = [sys.executable, "-m", "ostler"]
PROBE = "probe"
Document = dict[str, Any]


class Worker:
    """Registers, accepts, and says that it still has everything; what it is given never ends."""

    def __init__(self, session: aiohttp.ClientSession, url: str, name: str, offer: Document) -> None:
        self._session, self._url, self.name, self._offer = session, url, name, offer
        self.taken: dict[str, str] = {}
        self.came: asyncio.Queue[tuple[str, str, float]] = asyncio.Queue()

    async def join(self) -> None:
        url = self._url.replace("http", "ws", 1) + "/v1/ws/worker"
        self._socket = await self._session.ws_connect(url, max_msg_size=64 * 2**20, heartbeat=None)
        await self._send("register", id=self.name, capabilities=self._offer, active_tasks=[])
        await self._beat()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._go_on())]

    async def _send(self, kind: str, **payload: Any) -> None:
        await self._socket.send_str(json.dumps({"type": kind, "payload": payload}))

    async def _beat(self) -> None:
        lines = [{"task_id": task, "attempt": one, "state": "running"} for task, one in self.taken.items()]
        slots = {"batch_total": 64, "batch_in_use": len(lines), "service_total": 0, "service_in_use": 0}
        await self._send("heartbeat", worker_id=self.name, slots=slots, capability=self._offer, active_tasks=lines)

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(random.uniform(8, 10))
            await self._beat()

    async def _read(self) -> None:
        async for frame in self._socket:
            said = json.loads(frame.data)
            for one in said if isinstance(said, list) else [said]:
                if one["type"] == "job_assign":
                    task, attempt = one["payload"]["spec"]["id"], one["payload"]["attempt"]
                    self.taken[task] = attempt
                    self.came.put_nowait((task, attempt, time.perf_counter()))
                    await self._send("job_accepted", task_id=task, attempt=attempt)

    async def end(self, task: str) -> None:
        attempt = self.taken.pop(task, "")
        await self._send("job_result", task_id=task, attempt=attempt, state="succeeded", exit_code=0)

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._socket.close()


@contextlib.asynccontextmanager
async def hub_with_queue(
    workers: int, queued: int
) -> AsyncIterator[tuple[aiohttp.ClientSession, str, Worker, list[str]]]:
    rng = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="ostler-foresight-") as folder:
        state = Path(folder)
        log = open(state / "hub.out", "wb")  # noqa: ASYNC230
        hub = subprocess.Popen(  # noqa: ASYNC220
            [*OSTLER, "hub", "--port", "0", "--state-dir", folder, "--log-level", "warning"], stdout=log, stderr=log
        )
        try:
            while not (state / "hub.url").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            url = (state / "hub.url").read_text().strip()
            token = (state / "admin.token").read_text().strip()
            join = (state / "join.token").read_text().strip()
            limits = aiohttp.TCPConnector(limit=0)
            own = aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"})
            theirs = aiohttp.ClientSession(headers={"Authorization": f"Bearer {join}"}, connector=limits)
            async with own as api, theirs as joined:
                fleet = [Worker(joined, url, f"w{n:04d}", random_offer(rng)) for n in range(workers)]
                probe = Worker(joined, url, PROBE, {"cpu_count": 64, "memory_gb": 64, "labels": {"probe": "yes"}})
                for worker in [*fleet, probe]:
                    await worker.join()
                try:
                    yield api, url, probe, await fill(api, url, rng, queued)
                finally:
                    for worker in [*fleet, probe]:
                        await worker.leave()
        finally:
            hub.send_signal(signal.SIGTERM)
            hub.wait(30)
            print((state / "hub.out").read_text()[-2000:], end="", file=sys.stderr)


def random_offer(rng: random.Random) -> Document:
    gpus = rng.choice((1, 2, 4, 8))
    offer = {"cpu_count": rng.choice((16, 32, 64)), "memory_gb": rng.choice((64, 256, 512))}
    kind = {"gpu_backend": "nvidia", "gpu_type": rng.choice(("A100", "H100", "L4", "T4")), "gpu_count": gpus}
    return {**offer, **kind, "vram_gb": gpus * rng.choice((24, 80))}


def random_spec(rng: random.Random, number: int) -> Document:
    gpus = rng.choice((1, 1, 2, 4, 8))
    return {
        "command": ["train", str(number)],
        "name": f"kind-{rng.choice('abcdefghijkl')}",
        "user_id": f"user{rng.randrange(20)}",
        "gpu_count": gpus,
        "gpu_type": rng.choice(("", "", "A100", "H100|A100")),
        "min_cpu_cores": rng.choice((1, 2, 4, 8)),
        "min_memory_gb": rng.choice((4, 8, 16)),
        "priority": rng.choice((0, 0, 0, 5)),
        "job_tier": rng.choice(("training", "data_processing")),
        "max_runtime_hours": rng.choice((0, 1, 6)),
    }


async def fill(api: aiohttp.ClientSession, url: str, rng: random.Random, queued: int) -> list[str]:
    """Until so many wait; the ids of those that do."""
    number = 0
    while (await get(api, f"{url}/v1/status"))["jobs"]["pending"] < queued:
        specs = [random_spec(rng, number + one) for one in range(500)]
        number += 500
        async with api.post(f"{url}/v1/jobs", json=specs) as answer:
            assert answer.status == 201, await answer.text()
    found: list[str] = []
    page = await get(api, f"{url}/v1/jobs?state=pending&limit=1000")
    while True:
        found += [job["id"] for job in page["jobs"]]
        if page["next"] is None:
            return found
        page = await get(api, f"{url}/v1/jobs?state=pending&limit=1000&cursor={page['next']}")


async def get(api: aiohttp.ClientSession, url: str) -> Document:
    async with api.get(url) as answer:
        assert answer.status == 200, await answer.text()
        found: Document = await answer.json()
        return found


async def timed(ask: Callable[[], Awaitable[Document]], times: list[float]) -> Document:
    begun = time.perf_counter()
    found = await ask()
    times.append(time.perf_counter() - begun)
    return found


async def probing(api: aiohttp.ClientSession, url: str, probe: Worker, seconds: float, pause_s: float) -> list[float]:
    """Seconds from the submit of a job that fits to its assignment at the worker."""
    found, until = [], time.perf_counter() + seconds
    while time.perf_counter() < until:
        spec = {"command": ["true"], "labels": ["probe = yes"], "priority": 9}
        begun = time.perf_counter()
        async with api.post(f"{url}/v1/jobs", json=spec) as answer:
            assert answer.status == 201
            wanted = (await answer.json())["id"]
        task = ""
        while task != wanted:  # an assignment may come twice
            task, _, at = await probe.came.get()
        found.append(at - begun)
        await probe.end(task)
        await asyncio.sleep(pause_s)
    return found


def told_ms(name: str, times: list[float]) -> Document:
    ordered = sorted(times)
    figures = {
        "p50_ms": 1000 * statistics.median(ordered),
        "p95_ms": 1000 * ordered[int(0.95 * (len(ordered) - 1))],
        "max_ms": 1000 * ordered[-1],
        "count": len(ordered),
    }
    row = "  ".join(f"{key[:-3]} {value:8.1f} ms" for key, value in figures.items() if key.endswith("_ms"))
    print(f"  {name:44s} {row}   ({len(ordered)} times)", flush=True)
    return figures


async def measure(workers: int, queued: int, times: int) -> Document:
    found: Document = {}
    async with hub_with_queue(workers, queued) as (api, url, probe, ids):
        rng = random.Random(2)
        print(f"  {workers} workers, {len(ids)} jobs wait", flush=True)
        found["scheduling_alone"] = told_ms("scheduling, nobody asks", await probing(api, url, probe, 8, 0.02))
        question = {"spec": {"gpu_count": 2, "min_cpu_cores": 4}}
        first: list[float] = []
        estimate = await timed(lambda: get(api, f"{url}/v1/jobs/{ids[0]}/estimate"), first)
        found["estimate_first"] = told_ms("the first estimate of all", first)
        print(f"    {estimate['words']}")
        asked: dict[str, list[float]] = {"why": [], "estimate": [], "whatif": []}
        probe_task = asyncio.create_task(probing(api, url, probe, 3600, 0.02))
        meanwhile: list[float] = []
        for _ in range(times):
            one = rng.choice(ids)
            await timed(lambda one=one: get(api, f"{url}/v1/jobs/{one}/why"), asked["why"])  # type: ignore[misc]
            await timed(lambda one=one: get(api, f"{url}/v1/jobs/{one}/estimate"), asked["estimate"])  # type: ignore[misc]
            await timed(lambda: post(api, f"{url}/v1/whatif", question), asked["whatif"])
        probe_task.cancel()
        for name, spent in asked.items():
            found[name] = told_ms(name, spent)
        meanwhile = await beside(api, url, probe, ids)
        found["scheduling_while_asked"] = told_ms("scheduling, two ask without a pause", meanwhile)
        await asyncio.sleep(20)
        whole: list[float] = []
        estimate = await timed(lambda: get(api, f"{url}/v1/jobs/{ids[0]}/estimate"), whole)
        print(f"    the newest job of all, looked at for longer: {estimate['words']}")
        found["whole_queue_known"] = "later_than" not in estimate
    return found


async def beside(api: aiohttp.ClientSession, url: str, probe: Worker, ids: list[str]) -> list[float]:
    """The probe, while two ask for why and estimates without a pause."""

    async def ask(seed: int) -> None:
        rng = random.Random(seed)
        while True:
            await get(api, f"{url}/v1/jobs/{rng.choice(ids)}/why")

    askers = [asyncio.create_task(ask(seed)) for seed in (3, 4)]
    try:
        return await probing(api, url, probe, 10, 0.02)
    finally:
        for asker in askers:
            asker.cancel()


async def post(api: aiohttp.ClientSession, url: str, body: Document) -> Document:
    async with api.post(url, json=body) as answer:
        assert answer.status == 200, await answer.text()
        found: Document = await answer.json()
        return found


def triples(number: int) -> Document:
    named, wrong, begun = 0, [], time.perf_counter()
    for seed in range(number):
        count, mistakes = verify(seed, tried)
        named += count
        wrong += mistakes
    for line in wrong[:10]:
        print(f"    {line}")
    spent = time.perf_counter() - begun
    print(f"  {number} random triples: {named} changes named, {len(wrong)} wrong, {spent:.0f} s", flush=True)
    return {"triples": number, "changes": named, "wrong": len(wrong)}


def calibration(fleets: int) -> list[Document]:
    found = []
    print("  calibration: the truth inside an 80 % band")
    for known, waiting, later in ((0, 40, 0), (3, 40, 0), (20, 40, 0), (100, 40, 0), (20, 150, 0), (20, 40, 60)):
        count = Count()
        for seed in range(fleets):
            count = count.add(calibrate(seed, told, known_runs=known, waiting=waiting, later=later))
        row = {"known_runs": known, "waiting": waiting, "come_later": later, "jobs": count.starts}
        row |= {"starts": count.of_starts, "ends": count.of_ends, "width": statistics.median(count.widths)}
        found.append(row)
        what = f"{known:3d} runs known of each kind, {waiting:3d} wait, {later:2d} come later"
        rates = f"starts {100 * count.of_starts:.0f} %, ends {100 * count.of_ends:.0f} %"
        print(f"    {what}: {rates} of {count.starts}; width {row['width']:.2f} of the wait", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=500)
    parser.add_argument("--queued", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=20, help="questions of each kind")
    parser.add_argument("--triples", type=int, default=1000)
    parser.add_argument("--fleets", type=int, default=20, help="for each row of the calibration")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr if options.json else sys.stdout):
        found = asyncio.run(measure(options.workers, options.queued, options.times)) if options.times else {}
        found["changes"] = triples(options.triples) if options.triples else {}
        found["calibration"] = calibration(options.fleets) if options.fleets else []
    if options.json:
        print(json.dumps(found))
    slow = [name for name in ("why", "estimate", "whatif") if found.get(name, {}).get("max_ms", 0) > 500]
    return 1 if slow or found["changes"].get("wrong") else 0


if __name__ == "__main__":
    sys.exit(main())
