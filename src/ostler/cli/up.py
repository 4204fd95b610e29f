"""`ostler up`: a hub and a worker as children of this process, started in order and stopped in the other."""

import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from ostler import config
from ostler.cli import exits
from ostler.cli.render.terminal import note
from ostler.cli.settings import origin
from ostler.tls import Wanted

WORKER_STOPS_S = 20.0
HUB_STOPS_S = 15.0
DRAIN_S = "1"
"""Whoever stops a fleet of one machine wants it stopped; what is about to end anyway may."""


class Child:
    """One program of ours. It stops when told to, and by itself when this process is gone, even by `kill -9`."""

    def __init__(self, name: str, arguments: Sequence[str], ended: threading.Event) -> None:
        self.name = name
        self._process = subprocess.Popen(
            # -P: what lies in the folder where `up` was typed (a queue.py, say) is no module of ours.
            [sys.executable, "-P", "-m", "ostler", *arguments, "--stop-on-eof"],
            stdin=subprocess.PIPE,
            # A group of its own: Ctrl-C reaches this process alone, which then stops its children in the right order.
            start_new_session=True,
        )
        threading.Thread(target=self._wait, args=(ended,), name=f"wait-{name}", daemon=True).start()

    def _wait(self, ended: threading.Event) -> None:
        self._process.wait()
        ended.set()

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + n if signal n ended it."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def stop(self, patience_s: float) -> None:
        if self.exit_code is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def kill(self) -> None:
        """Waits for nothing: called from a signal handler too."""
        self._process.kill()


class Family:
    """The children, and the one place where their ends and our signals are waited for."""

    def __init__(self) -> None:
        self.changed = threading.Event()
        self.told_to_stop = 0
        self._children: list[tuple[Child, float]] = []
        signals = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup ostler up &` outlives its terminal
            signals.append(signal.SIGHUP)
        for number in signals:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.told_to_stop += 1
        self.changed.set()
        if self.told_to_stop > 1:
            for child, _ in self._children:
                child.kill()

    def start(self, name: str, arguments: Sequence[str], stops_s: float) -> Child:
        child = Child(name, arguments, self.changed)
        self._children.append((child, stops_s))
        return child

    def fallen(self) -> Child | None:
        """A child that has ended, though nobody told it to."""
        return next((child for child, _ in self._children if child.exit_code is not None), None)

    def wait_for(self, happened: Callable[[], bool], every_s: float = 0.1) -> bool:
        """True when it has happened; False when a child ended or we were told to stop before."""
        while not self.told_to_stop and self.fallen() is None:
            if happened():
                return True
            self.changed.wait(every_s)
        return False

    def wait(self) -> None:
        while not self.told_to_stop and self.fallen() is None:
            self.changed.wait()

    def stop(self) -> None:
        """The last started goes first: a worker says goodbye to a hub that still listens."""
        for child, stops_s in reversed(self._children):
            child.stop(stops_s)


def bring_up(host: str, port: int, gateway_port: int, chosen_state: Path | None, wanted: Wanted) -> int:
    """Both, until one ends or we are told to stop. The exit code of the one that ended by itself, else 0."""
    state = config.state_dir(chosen_state)
    state_was_chosen = origin(chosen_state, "state-dir") != "default"
    family = Family()
    try:
        where = ["--host", host, "--port", str(port), "--gateway-port", str(gateway_port), *wanted.options()]
        url = _start_hub(family, where, state)
        if url:
            join = f"@{state / config.TOKEN_FILES['join']}"
            arguments = ["worker", "--hub", url, "--token", join, "--state-dir", str(state), "--drain-seconds", DRAIN_S]
            family.start("worker", arguments, WORKER_STOPS_S)
            _tell(url, host, state, state_was_chosen)
            family.wait()
        fallen = family.fallen() if not family.told_to_stop else None
        if fallen is None:
            note("stopping the worker, then the hub")
    finally:
        family.stop()
    if fallen is None or fallen.exit_code is None:
        return exits.DONE
    exits.complain(f"the {fallen.name} ended by itself (exit code {fallen.exit_code}), so everything was stopped")
    return fallen.exit_code


def _start_hub(family: Family, where: Sequence[str], state: Path) -> str:
    """The address that the hub itself wrote down, as this machine reaches it; empty if it did not come up."""
    told_here = state / "hub.url"
    before = _identity(told_here)
    family.start(
        "hub",
        ["hub", *where, "--state-dir", str(state), "--log-level", "warning"],
        HUB_STOPS_S,
    )
    if not family.wait_for(lambda: _identity(told_here) not in (None, before)):
        return ""
    return told_here.read_text().strip()


def _identity(path: Path) -> tuple[int, int] | None:
    """Tells a file written just now from one that a killed hub left behind."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _tell(url: str, host: str, state: Path, state_was_chosen: bool) -> None:
    """What is there now, and what to do with it."""
    lines = ["", f"  Ostler is up: {url}", f"  its state is in {state}"]
    lines += [f"  the dashboard, at that address, asks for the token in {state / config.TOKEN_FILES['admin']}"]
    lines += ["", "  In another terminal:"]
    needed = [f"OSTLER_HUB={url}"] if url != config.DEFAULT_HUB else []
    needed += [f"OSTLER_STATE_DIR={shlex.quote(str(state))}"] if state_was_chosen else []
    if needed:
        lines.append(f"    export {' '.join(needed)}")
    lines += ["    ostler run -- python3 -c 'print(\"hello from the fleet\")'", "    ostler status"]
    if host not in ("127.0.0.1", "localhost", "::1"):
        port = url.rpartition(":")[2]
        lines += [
            "",
            "  On another machine, with the token that `ostler token create --join` prints:",
            f"    ostler join https://{socket.gethostname()}:{port} TOKEN",
        ]
    print("\n".join([*lines, "", "  Ctrl-C stops the hub and its worker.", ""]), flush=True)
