"""A real hub and a real worker, and the real command to talk to them."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.ports import free_port

OSTLER = [sys.executable, "-m", "ostler.cli"]
OFFER = """
gpu_backend = "nvidia"
cpu_count = 4
memory_gb = 8
labels = { zone = "eu" }
[[devices]]
name = "A100"
vram_gb = 80
[[devices]]
name = "A100"
vram_gb = 80
"""


class Yard:
    """The state folder, the port, and the two processes."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("OSTLER_", "COLUMNS"))},
            "OSTLER_STATE_DIR": str(self.state),
            "OSTLER_HUB": self.url,
            "NO_COLOR": "1",
        }
        self.hub: subprocess.Popen[bytes] | None = None

    def start_hub(self, *more: str) -> None:
        (self.state / "hub.url").unlink(missing_ok=True)
        arguments = ["hub", "--port", str(self.port), "--log-level", "warning", *more]
        self.hub = subprocess.Popen([*OSTLER, *arguments], env=self.environment)
        until(lambda: (self.state / "hub.url").exists(), "the hub listens", self.hub)

    def kill_hub(self) -> None:
        assert self.hub is not None
        self.hub.kill()
        self.hub.wait()

    @contextmanager
    def worker(self) -> Iterator[None]:
        offer = self.folder / "offer.toml"
        offer.write_text(OFFER)
        log = (self.folder / "worker.log").open("wb")
        arguments = ["worker", "--name", "box", "--offer", str(offer), "--drain-seconds", "1"]
        process = subprocess.Popen([*OSTLER, *arguments], env=self.environment, stderr=log)
        try:
            until(lambda: self.workers() == ["box"], "the worker has registered", process)
            yield
        finally:
            process.terminate()
            process.wait(20)
            log.close()

    def workers(self) -> list[str]:
        return [worker["id"] for worker in self.json("workers")["workers"] if worker["total_slots"]]

    def run(self, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        options = {"capture_output": True, "text": True, "timeout": 30, "env": self.environment, **more}
        return subprocess.run([*OSTLER, *arguments], **options)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*OSTLER, *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def submit(self, *arguments: str) -> str:
        done = self.run("submit", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def until(happened: Callable[[], bool], what: str, process: subprocess.Popen[Any], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert process.poll() is None, f"ended with {process.returncode} before {what}"
        assert time.monotonic() < deadline, f"{timeout_s} s are over before {what}"
        time.sleep(0.05)


@contextmanager
def standing(folder: Path) -> Iterator[Yard]:
    """A hub and its worker, as long as somebody needs them."""
    found = Yard(folder)
    found.start_hub()
    with found.worker():
        yield found
    assert found.hub is not None
    found.hub.terminate()
    found.hub.wait(20)
