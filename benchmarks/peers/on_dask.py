"""Dask: scheduler and worker as processes of their own on loopback."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import distributed
from benchmarks.peers.measure import Peer, measure
from distributed import Client, wait

LIMIT_S = 300
SETTINGS = {
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION": "inf",
    "DASK_DISTRIBUTED__ADMIN__LOW_LEVEL_LOG_LENGTH": "0",
}


def nothing(_: int) -> None:
    return None


def true(_: int) -> int:
    return subprocess.run(["true"]).returncode


@contextmanager
def program(folder: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", *arguments, "--no-dashboard", "--host", "127.0.0.1"]
    settings, silent = SETTINGS | {"DASK_TEMPORARY_DIRECTORY": folder}, subprocess.DEVNULL
    process = subprocess.Popen(command, env=os.environ | settings, cwd=folder, stdout=silent, stderr=silent)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dask-") as folder:
        where = os.path.join(folder, "scheduler.json")
        worker = ("distributed.cli.dask_worker", "--scheduler-file", where, "--nworkers", "2", "--nthreads", "1")
        with (
            program(folder, "distributed.cli.dask_scheduler", "--port", "0", "--scheduler-file", where) as scheduler,
            program(folder, *worker, "--local-directory", folder),
            Client(scheduler_file=where, timeout=60) as client,
        ):
            client.wait_for_workers(2, timeout=60)
            measure(peer(client, scheduler.pid))


def peer(client: Client, scheduler: int) -> Peer:
    waiting = []

    def run(function: object, count: int) -> None:
        futures = client.map(function, range(count), pure=False)
        wait(futures, timeout=LIMIT_S)
        if any(future.status != "finished" for future in futures):
            raise SystemExit("not every task has finished")

    def queue(count: int) -> None:
        """Until the scheduler has taken them in."""
        waiting.extend(client.map(nothing, range(count), pure=False, resources={"ghost": 1}))
        while client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.unrunnable)) < count:
            time.sleep(0.02)

    return Peer(
        version=distributed.__version__,
        setup="2 worker processes of one thread (one of 2 threads was no faster at W1, and at W2 the noise was larger "
        "than the difference), worker-saturation inf (the default holds tasks back and is slower)",
        jobs=lambda count: run(true, count),
        calls={"map": lambda count: run(nothing, count)},
        once=lambda: client.submit(true, 0, pure=False).result(timeout=60),
        queue={"map": queue},
        processes=[scheduler],
        at_most={"W2": 5000},
    )


main()
