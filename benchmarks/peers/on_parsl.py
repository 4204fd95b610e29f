"""Parsl: its HighThroughputExecutor on loopback with two workers."""

import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import parsl
from benchmarks.peers.measure import Peer, measure
from parsl import python_app
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import LocalProvider

LIMIT_S = 300


@python_app(cache=False)
def nothing() -> None:
    return None


@python_app(cache=False)
def true() -> int:
    import subprocess

    return subprocess.run(["true"]).returncode


def all_of(app: Callable[[], Any], count: int) -> None:
    for future in [app() for _ in range(count)]:
        future.result(LIMIT_S)


def executor() -> HighThroughputExecutor:
    return HighThroughputExecutor(
        label="workers",
        address="127.0.0.1",
        loopback_address="127.0.0.1",
        max_workers_per_node=2,
        cores_per_worker=1,
        prefetch_capacity=50,
        encrypted=False,
        provider=LocalProvider(init_blocks=1, max_blocks=1),
    )


def main(folder: str) -> None:
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    config = Config([executor()], strategy="none", usage_tracking=0, initialize_logging=False, run_dir=folder)
    with parsl.load(config):
        peer = Peer(
            version=parsl.__version__,
            setup="HighThroughputExecutor, 2 workers that fetch 50 tasks ahead, no encryption, no strategy, no log",
            jobs=lambda count: all_of(true, count),
            calls={"apps": lambda count: all_of(nothing, count)},
            once=lambda: all_of(true, 1),
            at_most={"W2": 5000},
        )
        measure(peer)


with tempfile.TemporaryDirectory(prefix="parsl-") as folder:
    main(folder)
