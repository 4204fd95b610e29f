"""Ray: `ray.init` on this machine with two CPUs; tasks, and calls of two actors."""

import os
import subprocess
import tempfile
from typing import Any

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

import psutil
import ray
from benchmarks.peers.measure import Peer, measure

LIMIT_S = 300
SERVERS = {"raylet", "gcs_server"}


@ray.remote
def nothing() -> None:
    return None


@ray.remote
def true() -> int:
    return subprocess.run(["true"]).returncode


@ray.remote(num_cpus=0)
class Actor:
    def nothing(self) -> None:
        return None


def all_of(task: Any, count: int) -> None:
    ray.get([task.remote() for _ in range(count)], timeout=LIMIT_S)


def actor_calls(actors: list[Any], count: int) -> None:
    ray.get([actors[number % len(actors)].nothing.remote() for number in range(count)], timeout=LIMIT_S)


def main(folder: str) -> None:
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=200 * 2**20,
        logging_level="ERROR",
        log_to_driver=False,
        _temp_dir=folder,
    )
    waiting: list[Any] = []

    def queue(count: int) -> None:
        waiting.extend(nothing.options(resources={"ghost": 1}).remote() for _ in range(count))

    try:
        actors = [Actor.remote() for _ in range(2)]
        servers = [one.pid for one in psutil.Process().children(recursive=True) if one.name() in SERVERS]
        peer = Peer(
            version=ray.__version__,
            setup="tasks on 2 CPUs, no dashboard, all submitted before the first is waited for; "
            "actor calls spread over 2 actors that are up. Memory is that of the servers and of the driver",
            jobs=lambda count: all_of(true, count),
            calls={"tasks": lambda count: all_of(nothing, count), "actors": lambda count: actor_calls(actors, count)},
            once=lambda: all_of(true, 1),
            queue={"tasks": queue},
            processes=[*servers, os.getpid()],
        )
        measure(peer)
    finally:
        ray.shutdown()


with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
    main(folder)
