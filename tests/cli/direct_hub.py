"""A hub for tests of the drift check: it runs what is submitted at once, as processes of the test."""

import subprocess
from typing import Any

from ostler.client import Patience

Document = dict[str, Any]


class DirectHub:
    """The calls that the drift check makes. `hangs`: jobs begin and never end."""

    patience = Patience()

    def __init__(self, *, hangs: bool = False, workers: int = 1) -> None:
        self.commands: list[list[str]] = []
        self.cancelled: list[str] = []
        self._hangs, self._workers = hangs, workers
        self._ended: dict[str, subprocess.CompletedProcess[bytes]] = {}

    def status(self) -> Document:
        return {"workers": {"ready": self._workers, "offline": 3}}

    def submit(self, spec: Document) -> Document:
        name = f"job-{len(self.commands)}"
        self.commands.append(spec["command"])
        if not self._hangs:
            self._ended[name] = subprocess.run(
                spec["command"], env=spec["env"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60
            )
        return {"id": name}

    def until(self, deadline: float | None) -> "DirectHub":
        return self

    def job(self, job_id: str, wait: float = 0.0) -> Document:
        if job_id not in self._ended:
            return {"id": job_id, "name": job_id, "state": "running"}
        code = self._ended[job_id].returncode
        return {"id": job_id, "name": job_id, "state": "failed" if code else "succeeded", "exit_code": code}

    def logs(self, job_id: str) -> list[bytes]:
        return [self._ended[job_id].stdout]

    def cancel(self, job_id: str) -> None:
        self.cancelled.append(job_id)
