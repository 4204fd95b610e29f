"""A hub of its own, for as long as it is asked what it serves."""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0
MODEL = '[models.tiny]\ncmd = "true"\n'
"""So that the gateway is there too, and tells its metrics."""


class Asked:
    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token

    def text(self, path: str) -> str:
        request = urllib.request.Request(self._url + path, headers={"Authorization": f"Bearer {self._token}"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            found: str = answer.read().decode()
            return found

    def json(self, path: str) -> Any:
        return json.loads(self.text(path))


@contextlib.contextmanager
def running() -> Iterator[Asked]:
    with tempfile.TemporaryDirectory(prefix="ostler-reference-") as folder:
        state = Path(folder)
        (state / "ostler.toml").write_text(MODEL)
        command = [sys.executable, "-m", "ostler", "hub", "--port", "0", "--gateway-port", "0"]
        with (state / "hub.log").open("wb") as log:
            process = subprocess.Popen([*command, "--state-dir", folder], stdout=log, stderr=log)
        try:
            yield Asked(_said(state / "hub.url", process), (state / "admin.token").read_text().strip())
        finally:
            process.terminate()
            process.wait(30)


def _said(where: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while not where.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"reference: the hub did not come up\n{where.with_name('hub.log').read_text()}")
        time.sleep(0.05)
    return where.read_text().strip()
