"""A hub, and a worker that has found this machine's GPU by itself, as real processes; and what they are asked for."""

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml
from benchmarks.process_fleet import appears, spawn

from ostler.client.http import Hub

HERE = Path(__file__).parent
WORKER = "gpu"
LIMIT_S = 120.0
Document = dict[str, Any]


class Broken(Exception):
    """Something that was promised did not come true."""


@dataclass
class GpuFleet:
    client: Hub
    folder: Path
    gateway: str
    total_gib: float
    """Of the device."""
    facts: Document = field(default_factory=dict)

    def part(self, of_it: float) -> float:
        return round(self.total_gib * of_it, 1)

    def hold(self, gib: float, *more: str, **spec: Any) -> str:
        """A job that takes so much of the device."""
        command = ["{python}", str(HERE / "holding.py"), str(gib), *more]
        return str(self.client.submit({"command": command, **spec})["id"])

    def ended(self, job_id: str, state: str = "succeeded") -> Document:
        deadline = time.monotonic() + LIMIT_S
        while (job := self.client.job(job_id, wait=5))["finished_at"] is None:
            if time.monotonic() > deadline:
                why = self.client.why(job_id)["summary"]
                raise Broken(f"{job_id} has not ended in {LIMIT_S:.0f} s: it is {job['state']}: {why}")
        if job["state"] != state:
            raise Broken(f"{job_id} is {job['state']}, not {state}: {job['reason']}\n{self.client.log_tail(job_id)}")
        return job

    def said(self, job_id: str) -> Document:
        """The line of JSON that it printed last."""
        lines = [line for line in b"".join(self.client.logs(job_id)).decode().splitlines() if line.startswith("{")]
        return dict(json.loads(lines[-1]))

    def device(self) -> Document:
        return dict(self.client.worker(WORKER)["devices"][0])


def used_mib() -> int:
    """Of the first device, by NVML."""
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used) // 2**20


def until(holds: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> float:
    """Seconds until it held."""
    begun = time.monotonic()
    while not holds():
        if time.monotonic() - begun > limit_s:
            raise Broken(f"{what}: not within {limit_s:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - begun


def need(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


@contextlib.contextmanager
def gpu_fleet(folder: Path) -> Iterator[GpuFleet]:
    total_gib = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total / 2**30
    port = _free_port()
    settings = folder / "ostler.toml"
    settings.write_text(_models(folder, total_gib))
    arguments = ["--port", "0", "--gateway-port", str(port), "--state-dir", str(folder), "--config", str(settings)]
    hub = spawn("hub", *arguments, log=folder / "hub.out")
    worker: subprocess.Popen[bytes] | None = None
    try:
        url = appears(folder / "hub.url")
        token = f"@{folder / 'join.token'}"
        arguments = ["--hub", url, "--token", token, "--name", WORKER, "--slots", "8", "--state-dir", str(folder)]
        worker = spawn("worker", *arguments, log=folder / "worker.out")
        with Hub(url, (folder / "admin.token").read_text().strip()) as client:
            until(lambda: any(one["status"] == "ready" for one in client.workers()), "the worker to be ready")
            yield GpuFleet(client, folder, f"http://127.0.0.1:{port}", total_gib)
    finally:
        for process in (worker, hub):
            if process is not None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(30)


def _models(folder: Path, total_gib: float) -> str:
    """Two that do not fit beside each other, by what is declared and by what they take."""
    gib = total_gib * 0.55
    text = '[gateway]\napi_keys = [{ key = "sk-gpu", user = "admin" }]\n'
    for seed, name in enumerate(("bay", "grey")):
        command = [sys.executable, str(HERE / "torch_server.py"), "--port", "${PORT}", "--gib", f"{gib:.1f}"]
        command += ["--seed", str(seed), "--name", name, "--diary", str(folder / "diary.jsonl")]
        text += f'[models.{name}]\ncmd = {json.dumps(command)}\nvram = "{gib + 3:.1f}g"\nload_timeout = 300\n'
    return text


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
