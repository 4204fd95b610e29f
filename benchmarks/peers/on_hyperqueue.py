"""HyperQueue: the wheel's cluster (server and worker in one process of their own, no journal), this is its client."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import hyperqueue
from benchmarks.peers.measure import Peer, measure
from hyperqueue import Client, Job
from hyperqueue.ffi import ffi
from hyperqueue.ffi.protocol import ResourceRequest

LIMIT_S = 300
CLUSTER = """
import sys
from hyperqueue.cluster import LocalCluster, WorkerConfig
cluster = LocalCluster(sys.argv[1], WorkerConfig(cores=2))
print("ready", flush=True)
sys.stdin.read()
cluster.stop()
"""
NOWHERE = "/proc/nowhere/out"


class Seen(Exception):
    """Leaves the binding's own wait, which looks once a second."""


def status(client: Client, job: int) -> dict[str, int]:
    seen = {}

    def look(jobs: dict[int, dict[str, int]]) -> None:
        seen.update(jobs)
        raise Seen

    with contextlib.suppress(Seen):
        ffi.wait_for_jobs(client.connection.ctx, [job], look)
    found: dict[str, int] = seen[job]
    return found


def submit(client: Client, count: int, stdout: str | None = None, resources: ResourceRequest | None = None) -> int:
    job = Job(max_fails=None)
    for _ in range(count):
        job.program(["true"], stdout=stdout, stderr=None, cwd="/tmp", resources=resources)
    return int(client.submit(job).id)


def run(client: Client, count: int, look_s: float, outcome: str = "finished", stdout: str | None = None) -> None:
    job = submit(client, count, stdout)
    deadline = time.monotonic() + LIMIT_S
    while not (found := status(client, job))["completed"]:
        if time.monotonic() > deadline:
            raise SystemExit(f"{count} tasks were not done after {LIMIT_S} s")
        time.sleep(look_s)
    if found[outcome] != count:
        raise SystemExit(f"of {count} tasks, {found[outcome]} {outcome}")


def queue(client: Client, count: int) -> None:
    for _ in range(10):
        submit(client, count // 10, resources=ResourceRequest(cpus=1, resources={"gpus/none": 1}))


def main(folder: str) -> None:
    command = [sys.executable, "-c", CLUSTER, folder]
    pipe, here = subprocess.PIPE, os.environ | {"TMPDIR": folder}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=here) as cluster:
        assert cluster.stdout is not None
        if not any(line.strip() == b"ready" for line in cluster.stdout):
            raise SystemExit("its server did not start")
        client = Client(Path(folder))
        peer = Peer(
            version=hyperqueue.get_version(),
            setup="the wheel's in-process cluster of 2 cores (not the `hq` program), no journal; many tasks a job. "
            "It has no calls on warm workers: W2 is tasks that fail before their process starts",
            jobs=lambda count: run(client, count, 0.005),
            calls={"no process": lambda count: run(client, count, 0.005, "failed", NOWHERE)},
            once=lambda: run(client, 1, 0.0005),
            queue={"10 jobs of many tasks": lambda count: queue(client, count)},
            processes=[cluster.pid],
        )
        try:
            measure(peer)
        finally:
            cluster.terminate()


with tempfile.TemporaryDirectory(prefix="hq-") as folder:
    main(folder)
