"""The dashboard before a large fleet: 400 machines and 50,000 jobs, of which some begin and end all the time.

A real hub, model workers over real sockets that end what they hold after a while, and a real Chromium that looks at one
page after the other. For each page: when its first content was there, how much of a second its scripts and all of its
main thread take while the fleet changes, and whether its memory stays level (counted after a garbage collection). Work
is processor time of the page's main thread: on a machine that does something else, only the clock gets worse.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import time
from typing import Any, NamedTuple

import uvloop
from benchmarks.crowd import ProcessHub, running_hub
from benchmarks.model_workers import Crowd, ModelWorker
from benchmarks.process_fleet import report
from playwright.async_api import Browser, CDPSession, Page, async_playwright

from ostler.client.http import Hub

MAX_FIRST_S, MAX_SCRIPT_S, MAX_GROWTH = 1.0, 0.2, 0.1
BATCH = 1000
SETTLED_S = 5.0
SAMPLES = 5
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Looked(NamedTuple):
    """A page, and the first of what it is opened for."""

    name: str
    shows: str


PAGES = (
    Looked("fleet", "article.machine .device"),
    Looked("jobs", "tbody tr"),
    Looked("queue", "tbody tr"),
    Looked("timeline?span=900", ".timeline .block, canvas"),
    Looked("models", "h1"),
)


class Finishing(ModelWorker):
    """Ends what it was given after a while, and says how it went."""

    lasts_s = 20.0

    def _assigned(self, said: Any) -> None:
        before = {held["attempt"] for held in self.held}
        super()._assigned(said)
        for held in self.held:
            if held["attempt"] not in before:
                wait_s = random.uniform(0.5, 1.5) * self.lasts_s
                asyncio.get_running_loop().call_later(wait_s, self._ended, held)

    def _ended(self, held: dict[str, str]) -> None:
        if held in self.held and self.registered:
            self.held.remove(held)
            self._beat = b""
            state = "failed" if random.random() < 0.02 else "succeeded"
            told = {
                "task_id": held["task_id"],
                "attempt": held["attempt"],
                "state": state,
                "exit_code": int(state == "failed"),
            }
            self._say("job_result", told)
            self.crowd.counts["ended"] += 1


def crowd_of(hub: ProcessHub, size: int, lasts_s: float) -> Crowd:
    crowd = Crowd("127.0.0.1", hub.port, (hub.state / "join.token").read_text().strip(), 0)
    Finishing.lasts_s = lasts_s
    crowd.workers = [Finishing(crowd, f"gpu-{number:03d}", slots=4) for number in range(size)]
    return crowd


def submit(hub: ProcessHub, count: int) -> None:
    with Hub(hub.url, hub.token) as client:
        for first in range(0, count, BATCH):
            numbers = range(first, min(first + BATCH, count))
            client.submit(
                [{"command": ["train", f"--seed={n}"], "gpu_count": 1, "name": f"train-{n}"} for n in numbers]
            )


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    with running_hub() as hub:
        crowd = crowd_of(hub, options.machines, options.machines * 4 / options.per_second)
        crowd.start()
        beating = asyncio.create_task(crowd.beat())
        await crowd.all_registered(120)
        await asyncio.to_thread(submit, hub, options.jobs)
        try:
            pages = await look(hub, crowd, options)
        finally:
            beating.cancel()
            crowd.leave()
        return {"machines": options.machines, "jobs": options.jobs, "pages": pages}


async def look(hub: ProcessHub, crowd: Crowd, options: argparse.Namespace) -> list[dict[str, Any]]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        asked = [one for one in PAGES if not options.only or any(one.name.startswith(name) for name in options.only)]
        pages = [await _logged_in(browser, hub) for _ in asked]
        looks = [_page(page, hub, crowd, looked, options.seconds) for page, looked in zip(pages, asked, strict=True)]
        found = await asyncio.gather(*looks) if options.at_once else [await look for look in looks]
        await browser.close()
        return found


async def _logged_in(browser: Browser, hub: ProcessHub) -> Page:
    """A page that looks at nothing yet, in a process of its own."""
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    page = await context.new_page()
    await page.goto(hub.url)
    await page.get_by_label("Token").fill(hub.token)
    await page.get_by_role("button", name="Log in").click()
    await page.get_by_role("navigation").wait_for()
    await page.goto("about:blank")
    return page


async def _page(page: Page, hub: ProcessHub, crowd: Crowd, looked: Looked, seconds: float) -> dict[str, Any]:
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})  # processor time, whoever else runs here
    await page.goto(f"{hub.url}/#/{looked.name}", wait_until="commit")
    await page.wait_for_selector(looked.shows, state="attached", timeout=60_000)
    first_s = await page.evaluate("performance.now()") / 1000
    opened = await _metrics(session)
    await asyncio.sleep(SETTLED_S)
    heaps = [await _heap(session)]
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    hub_cpu, ended, begun, before = hub.cpu_s(), crowd.counts["ended"], time.perf_counter(), await _metrics(session)
    for _ in range(SAMPLES):
        await asyncio.sleep(seconds / SAMPLES)
        heaps.append(await _heap(session))
    wall, after = time.perf_counter() - begun, await _metrics(session)
    paint = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0")
    if folder := os.environ.get("OSTLER_SCREENSHOTS"):
        await page.screenshot(path=f"{folder}/load-{looked.name.split('?')[0]}.png")
    await page.context.close()
    return {
        "page": looked.name.split("?")[0],
        "paint_s": paint / 1000,
        "first_s": first_s,
        "first_task_s": opened["TaskDuration"],
        "script_s": (after["ScriptDuration"] - before["ScriptDuration"]) / wall,
        "task_s": (after["TaskDuration"] - before["TaskDuration"]) / wall,
        "nodes": int(after["Nodes"]),
        "heaps_mib": heaps,
        "asked_per_s": len(asked) / wall,
        "ended_per_s": (crowd.counts["ended"] - ended) / wall,
        "hub_core_share": (hub.cpu_s() - hub_cpu) / wall,
    }


async def _metrics(session: CDPSession) -> dict[str, float]:
    return {one["name"]: one["value"] for one in (await session.send("Performance.getMetrics"))["metrics"]}


async def _heap(session: CDPSession) -> float:
    await session.send("HeapProfiler.collectGarbage")
    return (await _metrics(session))["JSHeapUsedSize"] / 2**20


def growth(heaps: list[float]) -> float:
    """How much more there is at the end than in the first half, as a part of it."""
    half = heaps[: len(heaps) // 2]
    return min(heaps[-2:]) / max(half) - 1


def tell(found: dict[str, Any]) -> bool:
    good = True
    print(f"{found['machines']:,} machines, {found['jobs']:,} jobs")
    for page in found["pages"]:
        grown = growth(page["heaps_mib"])
        ends, share = f"{page['ended_per_s']:.0f} ends/s", page["hub_core_share"]
        asked = f"{page['asked_per_s']:.1f} requests/s"
        print(f"{page['page']}: {ends}, {asked}, {page['nodes']:,} nodes, the hub {share:.2f} of a core")
        clock = f"{page['first_s']:.2f} s, first paint {page['paint_s']:.2f} s"
        report("until its first content is there, by the clock", clock)
        report("of which its own work", f"{page['first_task_s']:.2f} s", f"at most {MAX_FIRST_S:.0f} s")
        script = f"{page['script_s'] * 1000:.0f} ms, {page['task_s'] * 1000:.0f} ms of all"
        report("of a second, its scripts", script, f"at most {MAX_SCRIPT_S * 1000:.0f} ms")
        heaps = f"{page['heaps_mib'][0]:.1f} to {page['heaps_mib'][-1]:.1f} MiB"
        report("its memory", heaps, f"grows by less than {MAX_GROWTH:.0%}")
        good &= page["first_task_s"] <= MAX_FIRST_S and page["script_s"] <= MAX_SCRIPT_S and grown <= MAX_GROWTH
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=400)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--per-second", type=float, default=50.0, help="how many tasks end, and as many begin")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long each page is watched (ten minutes: 600)")
    parser.add_argument("--at-once", action="store_true", help="watch all pages side by side")
    parser.add_argument("--only", nargs="*", metavar="PAGE")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if CHROMIUM is None:
        raise SystemExit("dashboard: no Chromium is installed here: apt-get install chromium")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(measure(options))
    if options.json:
        print(json.dumps(found))
        return 0
    return 0 if tell(found) else 1


if __name__ == "__main__":
    sys.exit(main())
