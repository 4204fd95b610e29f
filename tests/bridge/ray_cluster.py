"""A Ray of our own: two nodes on this machine, each at an address of its own."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from tests.ports import free_ports
from tests.process_fleet import until

NODES = ("127.0.0.2", "127.0.0.3")
CORES = 4
WAIT_S = 120.0


@contextmanager
def ray_cluster(python: Path, folder: Path) -> Iterator[str]:
    """The address of its head, when both nodes are there. The first has two GPUs; they are only numbers."""
    gcs, dashboard, client, *agents = (str(port) for port in free_ports(3 + len(NODES)))
    short = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # there are sockets in it, whose paths must not be long
    address = f"http://127.0.0.1:{dashboard}"
    head = ["--head", f"--port={gcs}", f"--dashboard-port={dashboard}", f"--ray-client-server-port={client}"]
    of = {
        NODES[0]: [*head, "--include-dashboard=true", "--num-gpus=2", f"--temp-dir={short}"],
        NODES[1]: [f"--address={NODES[0]}:{gcs}"],
    }
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number, (node, port) in enumerate(zip(NODES, agents, strict=True), 1):
            own = [f"--node-ip-address={node}", f"--dashboard-agent-listen-port={port}", *of[node]]
            started.append(_started(python, folder / node, own))
            until(lambda wanted=number: _alive(address) == wanted, f"{number} nodes of Ray", WAIT_S)
        yield address
    finally:
        for process in reversed(started):
            _end(process)
        shutil.rmtree(short, ignore_errors=True)


def _started(python: Path, log: Path, own: list[str]) -> subprocess.Popen[bytes]:
    command = [str(python.with_name("ray")), "start", "--block", f"--num-cpus={CORES}", *own]
    more = ["--object-store-memory=100000000", "--disable-usage-stats"]
    # As in an environment that is activated: `python` is the one that has Ray.
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    with log.open("wb") as file:
        # As nice as jobs are: what is measured here shares the machine with others.
        environment = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0", "PATH": path}
        return subprocess.Popen([*command, *more], env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)


def _alive(address: str) -> int:
    asked = ["curl", "-s", "-m", "2", f"{address}/nodes?view=summary"]
    return subprocess.run(asked, capture_output=True).stdout.count(b'"ALIVE"')


def _end(process: subprocess.Popen[bytes]) -> None:
    own = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.terminate()
    process.wait(60)
    for left in own:
        if left.is_running():
            left.kill()
