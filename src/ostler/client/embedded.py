"""`ostler.local()`: a whole fleet in this process tree, for a script, a notebook or a test.

Hub and workers are the real programs, started on a free port with a folder of their own. They hang on a leash: the
workers stop by themselves when this process is gone, however it went, and the hub when this process and they are.
"""

import atexit
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ostler import config
from ostler.client.errors import HubUnreachable, OstlerError
from ostler.client.fleet import Fleet
from ostler.client.http import Hub

Offer = Mapping[str, Any] | str | Path
START_S = 30.0
STOP_S = 15.0
LOOK_S = 0.02
LOG_LINES = 15


def local(
    workers: int = 1,
    slots: int | None = None,
    offer: Offer | Sequence[Offer] | None = None,
    labels: Mapping[str, str] | None = None,
    state_dir: str | Path | None = None,
    start_timeout: float = START_S,
) -> Fleet:
    """A fleet of its own, ready when this returns; everything of it ends with `close`, or with this process.

    `offer` replaces what a worker detects: a dictionary (or a TOML file) for all workers, or a list with one for each.
    Jobs and their records are gone afterwards, unless `state_dir` names a folder to keep them in.
    """
    offers = list(offer) if isinstance(offer, Sequence) and not isinstance(offer, str) else [offer] * workers
    if workers < 0 or len(offers) != workers:
        raise ValueError(f"workers: {workers} workers and {len(offers)} offers do not go together")
    household = Household(Path(state_dir).absolute() if state_dir is not None else None)
    try:
        hub = household.start_hub(start_timeout)
        for number, one in enumerate(offers):
            household.start_worker(hub.url, f"local-{number}", slots, one, labels or {})
        household.wait_for(lambda: _connected(hub) >= workers, "the workers did not come up", start_timeout)
    except BaseException:
        household.stop()
        raise
    return Fleet(hub, on_close=household.stop)


class Household:
    """The processes of an embedded fleet, and their folder."""

    def __init__(self, state: Path | None) -> None:
        self._temporary = state is None
        self.state = state or Path(tempfile.mkdtemp(prefix="ostler-local-"))
        self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._children: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._owner = os.getpid()
        self._hubs_end, self._leash = os.pipe()
        """The hub's standard input, which ends when nobody holds the other end: this process and the workers do."""
        atexit.register(self.stop)

    def start_hub(self, timeout_s: float) -> Hub:
        where = self.state / "hub.url"
        where.unlink(missing_ok=True)
        self._start("hub", ["hub", "--host", "127.0.0.1", "--port", "0"])
        self.wait_for(where.exists, "the hub did not come up", timeout_s)
        token = config.read_token(f"@{self.state / 'admin.token'}", self.state, "admin")
        hub = Hub(where.read_text().strip(), token, trust=config.trust(None, self.state))
        self.wait_for(lambda: _answers(hub), "the hub did not come up", timeout_s)
        return hub

    def start_worker(
        self, url: str, name: str, slots: int | None, offer: Offer | None, labels: Mapping[str, str]
    ) -> None:
        token = f"@{self.state / 'join.token'}"
        arguments = ["worker", "--hub", url, "--token", token, "--name", name, "--drain-seconds", "0.1"]
        if slots is not None:
            arguments += ["--slots", str(slots)]
        if isinstance(offer, Mapping):
            file = self.state / f"{name}.offer.toml"
            file.write_text(to_toml(offer))
            offer = file
        if offer is not None:
            arguments += ["--offer", str(Path(offer).absolute())]
        for label, value in labels.items():
            arguments += ["--label", f"{label}={value}"]
        self._start(name, arguments)

    def wait_for(self, happened: Callable[[], bool], otherwise: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not happened():
            fallen = next((name for name, child in self._children if child.poll() is not None), None)
            if fallen is not None:
                raise HubUnreachable(f"{otherwise}: {fallen} has ended\n{self._log_of(fallen)}")
            if time.monotonic() > deadline:
                logs = "\n".join(f"{name}: {self._log_of(name)}" for name, _ in self._children)
                raise HubUnreachable(f"{otherwise} within {timeout_s:g} s\n{logs}")
            time.sleep(LOOK_S)

    def stop(self) -> None:
        """The last started goes first: a worker says goodbye to a hub that still listens. Once is enough."""
        if os.getpid() != self._owner:
            return  # a fork of this process has no fleet
        atexit.unregister(self.stop)
        children, self._children = self._children[::-1], []
        workers = [child for name, child in children if name != "hub"]
        for child in workers:
            child.terminate()
        for _, child in children:
            _stop(child)
        for end in {self._hubs_end, self._leash} - {-1}:
            os.close(end)
        self._hubs_end = self._leash = -1
        if self._temporary:
            shutil.rmtree(self.state, ignore_errors=True)

    def _start(self, name: str, arguments: list[str]) -> None:
        command = [
            sys.executable,
            "-P",
            "-m",
            "ostler",
            *arguments,
            "--state-dir",
            str(self.state),
            "--stop-on-eof",
        ]
        # -P: nothing in the caller's folder may stand in for a module of ours. The environment: settings of the
        # caller's own shell are for another hub than this one.
        env = {key: value for key, value in os.environ.items() if not key.startswith("OSTLER_")}
        with open(self.state / f"{name}.log", "wb") as log:
            child = subprocess.Popen(
                command,
                stdin=self._hubs_end if name == "hub" else subprocess.PIPE,
                pass_fds=() if name == "hub" else (self._leash,),
                stdout=log,
                stderr=log,
                env=env,
                # Ctrl-C reaches this process alone, which then stops its children in the right order.
                start_new_session=True,
            )
        self._children.append((name, child))

    def _log_of(self, name: str) -> str:
        with contextlib.suppress(OSError):
            text = (self.state / f"{name}.log").read_text(errors="replace")
            return "\n".join(text.splitlines()[-LOG_LINES:])
        return ""


def _stop(child: "subprocess.Popen[bytes]") -> None:
    child.terminate()
    if child.stdin is not None:
        child.stdin.close()
    try:
        child.wait(STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _answers(hub: Hub) -> bool:
    try:
        hub.health()
    except OstlerError:
        return False
    return True


def _connected(hub: Hub) -> int:
    return sum(worker["status"] != "offline" for worker in hub.workers())


def to_toml(offer: Mapping[str, Any]) -> str:
    """An offer's file, one line for each value."""
    return "".join(f"{json.dumps(key)} = {_toml_value(value)}\n" for key, value in offer.items())


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml_value(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml_value(one) for one in value) + "]"
    return json.dumps(value)  # JSON's strings, numbers and truth values are TOML's too
