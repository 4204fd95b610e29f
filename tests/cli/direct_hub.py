"""A hub for tests of the drift check: it runs what is submitted at once, as processes of the test."""

import subprocess
from typing import Any

from ostler.client import Patience
from ostler.domain.errors import OstlerError

Document = dict[str, Any]


class DirectHub:
    """The calls that the drift check makes, with a clock that passes only while a job is waited for.

    `hangs`: jobs whose command has this word begin and never end. `refuses`: the hub's errors, by the call's name.
    """

    patience = Patience()

    def __init__(self, *, hangs: str = "", workers: int = 1, refuses: dict[str, OstlerError] | None = None) -> None:
        self.commands: list[list[str]] = []
        self.cancelled: list[str] = []
        self.now = 0.0
        self._hangs, self._workers, self._refuses = hangs, workers, refuses or {}
        self._ended: dict[str, subprocess.CompletedProcess[bytes]] = {}

    def monotonic(self) -> float:
        return self.now

    def status(self) -> Document:
        return {"workers": {"ready": self._workers, "offline": 3}}

    def submit(self, spec: Document) -> Document:
        self._may("submit")
        name = f"job-{len(self.commands)}"
        self.commands.append(spec["command"])
        if not self._hangs or self._hangs not in spec["command"]:
            self._ended[name] = subprocess.run(
                spec["command"], env=spec["env"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60
            )
        return {"id": name}

    def until(self, deadline: float | None) -> "DirectHub":
        return self

    def job(self, job_id: str, wait: float = 0.0) -> Document:
        if job_id not in self._ended:
            self.now += wait
            return {"id": job_id, "name": job_id, "state": "running"}
        code = self._ended[job_id].returncode
        return {"id": job_id, "name": job_id, "state": "failed" if code else "succeeded", "exit_code": code}

    def logs(self, job_id: str) -> list[bytes]:
        self._may("logs")
        return [self._ended[job_id].stdout]

    def cancel(self, job_id: str) -> None:
        self.cancelled.append(job_id)

    def _may(self, call: str) -> None:
        if call in self._refuses:
            raise self._refuses[call]
