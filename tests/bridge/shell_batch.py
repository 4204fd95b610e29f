"""The smallest batch system there is: every job is a process of this machine, begun as soon as there is a seat for it."""

import math
import os
import signal
import subprocess
from collections.abc import Collection, Sequence
from contextlib import suppress

from ostler.bridge.base import Node, Refusal, Sight, Signal, Submission, Unanswered


class _Job:
    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self.process: subprocess.Popen[bytes] | None = None
        self.dropped = False
        self.forgotten = False


class ShellBatch:
    """It outlives every bridge. Tests may give it fewer seats, make it mute, or make it forget."""

    name = "the shell"
    hurry_s = math.inf

    def __init__(self, seats: int = 100) -> None:
        self.seats = seats
        self.mute = False
        self.loses_answers = False
        self.refusal: Refusal | None = None
        self.submitted: list[str] = []
        """Every attempt that was ever submitted, in order."""
        self._jobs: dict[str, _Job] = {}
        self.looks = 0

    async def open(self) -> None:
        self._answer()

    async def nodes(self) -> list[Node]:
        self._answer()
        free = self.seats - self.running()
        return [Node(name="here", cores=self.seats, free_cores=free, memory_mib=1024, free_mib=1024)]

    async def submit(self, jobs: Sequence[Submission]) -> dict[str, str | Refusal]:
        self._answer()
        if self.refusal is not None:
            return {job.attempt: self.refusal for job in jobs}
        ids: dict[str, str | Refusal] = {}
        for job in jobs:
            ids[job.attempt] = name = str(len(self._jobs) + 1)
            self._jobs[name] = _Job(job)
            self.submitted.append(job.attempt)
        self._begin()
        if self.loses_answers:
            raise Unanswered("the answer was lost")
        return ids

    async def look(self, jobs: Collection[str]) -> dict[str, Sight]:
        self._answer()
        self.looks += 1
        self._begin()
        known = {name: self._jobs[name] for name in jobs}
        return {name: self._sight(job) for name, job in known.items() if not job.forgotten}

    async def stop(self, jobs: Collection[str], signal_name: Signal) -> None:
        self._answer()
        for name in jobs:
            job = self._jobs[name]
            if job.process is None:
                job.dropped = job.dropped or not signal_name
            else:
                self._signal(job.process, signal.SIGKILL if signal_name == "KILL" else signal.SIGTERM)

    async def adopt(self) -> dict[str, dict[str, Sight]]:
        self._answer()
        found: dict[str, dict[str, Sight]] = {}
        for name, job in self._jobs.items():
            if not job.forgotten:
                found.setdefault(job.submission.attempt, {})[name] = self._sight(job)
        return found

    def forget(self) -> None:
        """Nothing is known of any job that was submitted until now."""
        for job in self._jobs.values():
            job.forgotten = True

    def close(self) -> None:
        for job in self._jobs.values():
            if job.process is not None:
                self._signal(job.process, signal.SIGKILL)
                job.process.wait()

    def _answer(self) -> None:
        if self.mute:
            raise Unanswered("it is mute")

    def running(self) -> int:
        return sum(job.process is not None and job.process.poll() is None for job in self._jobs.values())

    def _begin(self) -> None:
        for job in self._jobs.values():
            if job.process is None and not job.dropped and self.running() < self.seats:
                job.process = subprocess.Popen(
                    ["/bin/sh", job.submission.script],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )

    def _sight(self, job: _Job) -> Sight:
        if job.process is None:
            return Sight(phase="over", fate="cancelled") if job.dropped else Sight(phase="waiting", reason="no seat")
        code = job.process.poll()
        if code is None:
            return Sight(phase="running")
        self._signal(job.process, signal.SIGKILL)  # what is left of its group
        return Sight(phase="over", exit_code=code if code >= 0 else 128 - code)

    def _signal(self, process: subprocess.Popen[bytes], number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
