"""Too much: tasks that print without end, workers that do not read, ten thousand at the door, one that flaps."""

import asyncio
import contextlib
import json
import math
import os
import resource
import socket
import time
from typing import Any

import uvloop
from benchmarks.model_workers import Crowd, masked
from tests.process_fleet import until, usable

from benchmarks import crowd, logs
from chaos import program
from chaos.load import Terms
from chaos.trial import FleetUnderLoad, Ground, Trial, fleet_under_load

WORKERS = ("ash", "birch")
FLOOD_MB_PER_S = 100.0
DEAF = 20
CUT_OFF_S = 60.0
"""15 s until a peer that reads nothing is cut off, on a machine that has more to do."""
GROWS_MIB = 8 * DEAF + 64
LARGE = "x" * 200_000
CONNECTS = 10_000
TEXT = 0x81


def printing(ground: Ground, trial: Trial) -> None:
    """One task that prints 100 MB a second with a reader who follows it: heartbeats are not late, memory and disks stay
    bounded, and the reader is told of every byte that it is not shown."""
    seconds = max(4.0, 12.0 * ground.scale)
    found = logs.measure(1, FLOOD_MB_PER_S, 1, True, seconds)
    trial.count("log flood with a reader")
    trial.figures |= {name: round(value, 2) for name, value in found.items() if isinstance(value, int | float)}
    most_disk = logs.PER_LOG_MIB + 2 * FLOOD_MB_PER_S + 64
    for text, value, most in (
        ("the latest heartbeat is late by no more than 5 s", found["late_s"], 5.0),
        ("the hub's memory grows by no more than 64 MiB", found["hub_rss_grown_mib"], logs.MAX_GROWTH_MIB),
        ("what a worker keeps on its disk is bounded", found["worker_disk_mib"], most_disk),
        ("no gap that the reader was not told of", found["unsaid"], 0),
    ):
        trial.promise(text, 1, [] if value <= most else [f"{value:g}, and at most {most:g} may be"])


def deaf(ground: Ground, trial: Trial) -> None:
    """Workers that register, take work and read nothing of it, beside two that do: they are cut off, the hub's memory
    is bounded, and others get the work."""
    terms = Terms(weights={"short": 5.0, "array": 1.0, "call": 2.0, "leaves": 1.0}, per_s=6.0, most_live=30)
    with fleet_under_load(ground, trial, WORKERS, times=program.IMPATIENT, terms=terms) as here:
        before = here.fleet.peak_rss_mib
        sockets = [_deaf_worker(here, f"deaf-{number}") for number in range(DEAF)]
        trial.count("worker that reads nothing", DEAF)
        until(lambda: sum(map(usable, _deaf(here))) == DEAF, "they are taken for workers", CUT_OFF_S)
        wanted = {"metadata": {"ballast": LARGE}, "prefer_labels": ["ears == none"]}
        large = [here.load.submit("short", **wanted) for _ in range(100)]
        ground.tell(f"{sum(one is not None for one in large)} large jobs are queued")
        _until_all_cut(here)
        for one in sockets:
            one.close()
        grown = here.fleet.peak_rss_mib - before
        trial.figures["the hub's memory grew by, MiB"] = round(grown)
        met = sum(_met_the_deaf(here, one.id) for one in large if one)
        trial.count("large assignment to one of them", met)
    small = [] if grown <= GROWS_MIB else [f"{grown:.0f} MiB"]
    trial.promise("they were given work, and others did it", len(large), [] if met else ["none was given any"])
    trial.promise(f"the hub's memory grows by no more than {GROWS_MIB} MiB", DEAF, small)


def _deaf_worker(here: FleetUnderLoad, name: str) -> socket.socket:
    """Whatever it is sent stays in a buffer as small as there is."""
    host, port = here.fleet.url.removeprefix("http://").rsplit(":", 1)
    token = (here.fleet.state / "join.token").read_text().strip()
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect((host, int(port)))
    made.settimeout(10)
    made.sendall(Crowd(host, int(port), token, 0).upgrade)
    assert made.recv(4096).startswith(b"HTTP/1.1 101")
    offer = {"cpu_count": 64.0, "memory_gb": 64.0, "hostname": name, "labels": {"ears": "none"}}
    slots = {"batch_total": 50, "batch_in_use": 0, "service_total": 0, "service_in_use": 0}
    for kind, payload in (
        ("register", {"id": name, "capabilities": offer, "active_tasks": [], "boot_id": name, "protocol": {}}),
        ("heartbeat", {"worker_id": name, "slots": slots, "capability": offer, "active_tasks": []}),
    ):
        made.sendall(masked(TEXT, json.dumps({"type": kind, "payload": payload}).encode()))
    return made


def _met_the_deaf(here: FleetUnderLoad, job_id: str) -> bool:
    return any(one["worker"].startswith("deaf") for one in here.fleet.hub.job(job_id)["attempts"])


def _deaf(here: FleetUnderLoad) -> list[dict[str, Any]]:
    return [one for one in here.fleet.hub.workers() if one["id"].startswith("deaf")]


def _until_all_cut(here: FleetUnderLoad) -> None:
    until(
        lambda: all(one["status"] == "offline" for one in _deaf(here)), "all that read nothing are cut off", CUT_OFF_S
    )


def connects(ground: Ground, trial: Trial) -> None:
    """Ten thousand workers connect at once, each with a task; one more reconnects a thousand times; the hub is killed
    and all come back: within its memory, and no task is given out again."""
    size = ground.times(CONNECTS)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    begun = time.monotonic()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found: dict[str, Any] = runner.run(crowd.measure(size, 10.0, True))
    trial.count("workers that connect at once", size)
    trial.count("reconnects of one worker", crowd.RECONNECTS)
    trial.count("kill -9 of the hub, and all back at once")
    with contextlib.suppress(KeyError):
        found.pop("counts")
    trial.figures |= {name: round(value, 3) for name, value in found.items()}
    trial.figures["took, s"] = round(time.monotonic() - begun)
    for text, value, bar in (
        ("the hub's memory stays within 1 GiB", found["hub_rss_mib"], crowd.MAX_RSS_MIB),
        ("a thousand reconnects leave next to nothing, MiB", found["reconnects_grow_mib"], 32.0),
        ("no task is given out again, nor to two", found["assigned_again"], 0),
        ("its loop is late by no more than a second, p99", found["lag_p99_s"], 1.0 if _is_free() else math.inf),
    ):
        trial.promise(text, size, [] if value <= bar else [f"{value:g}, and at most {bar:g} may be"])
    trial.figures["load of the machine"] = round(os.getloadavg()[0], 1)


def _is_free() -> bool:
    """Whether this machine has time for ten thousand workers and their hub: else a clock says nothing of the hub."""
    return os.getloadavg()[0] < 3 * (os.cpu_count() or 1)
