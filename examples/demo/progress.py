"""The demo's output while it runs: lines with a time, and in a terminal a live board below them."""

import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any, Self

from examples.demo.board import count_states, draw_board
from examples.demo.fleet import OSTLER, DemoFailed, DemoFleet
from rich.console import Console
from rich.live import Live

import ostler

LIMIT_S = 240.0
"""How long one step may take. Only a hang takes longer, also on a machine that is busy with other work."""
LOOK_S = 0.2
MOMENT_S = 2.5
REMIND_S = 20.0
"""How often a file, which has no board, gets a line about the step that the demo waits for."""
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Asks this machine itself, also where the environment names a proxy."""
Document = dict[str, Any]


class Progress:
    """Runs the steps of the demo one after another and shows the fleet meanwhile."""

    def __init__(self, console: Console, fleet: DemoFleet) -> None:
        self.fleet = fleet
        self.client: ostler.Fleet | None = None
        self._console = console
        self._began = time.monotonic()
        self._awaited = ""
        has_board = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, auto_refresh=False, transient=True) if has_board else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
        if self.client is not None:
            self.client.close()

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def hub(self) -> ostler.Fleet:
        assert self.client is not None, "connect() comes first"
        return self.client

    def connect(self) -> None:
        self.client = ostler.connect(hub=self.fleet.hub_url, token=self.fleet.token)

    def say(self, line: str) -> None:
        self._console.print(f"{self.spent_s:6.1f} s  {line}", markup=False, highlight=False, soft_wrap=True)
        self._show()

    def wait_until(self, happened: Callable[[], bool], what: str) -> None:
        """Shows the board until it happened. Raises DemoFailed if a program ends, or after LIMIT_S."""
        began = reminded = time.monotonic()
        self._awaited = what
        while not happened():
            self.fleet.check()
            now = time.monotonic()
            if now - began > LIMIT_S:
                raise DemoFailed(f"waited {LIMIT_S:.0f} s for {what}{self._blockers()}", self.fleet.log("hub"))
            if self._live is None and now - reminded > REMIND_S:
                reminded = now
                self.say(f"still waiting for {what}")
            self._show()
            time.sleep(LOOK_S)
        self._awaited = ""

    def let_people_look(self) -> None:
        """Shows the board for a moment. Without a terminal there is nothing to look at, and no pause."""
        until = time.monotonic() + (MOMENT_S if self._live is not None else 0.0)
        while time.monotonic() < until:
            self._show()
            time.sleep(LOOK_S)

    def job(self, job_id: str) -> Document:
        return self.hub.hub.job(job_id)

    def wait_until_running(self, job_ids: list[str], what: str) -> None:
        """Raises DemoFailed if a job ends instead: its worker's log says more, or the hub's if it has no worker."""

        def are_running() -> bool:
            documents = [self.job(job_id) for job_id in job_ids]
            for one in documents:
                if one["finished_at"]:
                    problem = f"the job '{one['name']}' should run and is {one['state']}: {one['reason']}"
                    raise DemoFailed(problem, self.fleet.log(one["worker"] or "hub"))
            return all(one["state"] == "running" for one in documents)

        self.wait_until(are_running, what)

    def have_ended(self, job_ids: list[str]) -> bool:
        return all(self.job(job_id)["finished_at"] for job_id in job_ids)

    # The two other ways in: the command line and HTTP

    def run_command(self, *arguments: str) -> str:
        """Runs `ostler` as a person would type it and returns its standard output."""
        environment = {**self.fleet.environment(), "OSTLER_HUB": self.fleet.hub_url, "OSTLER_TOKEN": self.fleet.token}
        command = [*OSTLER, *arguments]
        log = self.fleet.log(f"command-{arguments[0]}")
        with TemporaryFile(dir=self.fleet.state) as output, open(log, "wb") as errors:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=environment)
            try:
                self.wait_until(lambda: process.poll() is not None, f"`ostler {arguments[0]}`")
            finally:
                process.kill()
                process.wait()
            output.seek(0)
            text = output.read().decode()
        if process.returncode != 0:
            problem = f"`ostler {' '.join(arguments)}` ended with exit code {process.returncode}"
            raise DemoFailed(problem, log)
        return text

    def fetch(self, url: str, body: Document | None = None) -> Document:
        """One HTTP request with the admin's token. Any answer but 200 comes back as {"status", "answer"}."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Authorization": f"Bearer {self.fleet.token}"})
        try:
            with DIRECT.open(request, timeout=LIMIT_S) as answer:
                document: Document = json.loads(answer.read())
                return document
        except urllib.error.HTTPError as error:
            with error:
                return {"status": error.code, "answer": error.read().decode(errors="replace")}
        except (OSError, HTTPException, ValueError) as error:
            return {"status": 0, "answer": str(error)}

    def fetch_behind_board(self, url: str, body: Document, what: str) -> Document:
        """The same for an answer that takes a while: a thread asks, and the board goes on."""
        answers: list[Document] = []
        thread = threading.Thread(target=lambda: answers.append(self.fetch(url, body)), daemon=True)
        thread.start()
        self.wait_until(lambda: not thread.is_alive(), what)
        return answers[0]

    # Internals

    def _show(self) -> None:
        if self._live is not None and self.client is not None:
            workers = self.client.workers()  # before the jobs, so that the jobs of all tasks are known
            self._live.update(draw_board(self.client.jobs(), workers, self.spent_s, self._awaited), refresh=True)

    def _blockers(self) -> str:
        """The states of all jobs, and why the first one that waits does not start."""
        if self.client is None:
            return ""
        documents = self.client.jobs()
        waiting = [one for one in documents if one["state"] == "pending"]
        why = f"; {waiting[-1]['name']}: {self.client.why(waiting[-1]['id'])['summary']}" if waiting else ""
        return f" ({count_states(documents)}{why})"
