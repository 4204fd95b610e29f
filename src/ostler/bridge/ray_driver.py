"""Function calls as tasks of a Ray cluster, inside which this file runs: alone, by the cluster's own Python.

    python driver.py FOLDER NAME

    driver           the name of the Ray job that serves this folder: a driver that finds another's there leaves
    asked/ATTEMPT    a call: its script, and what it takes; the bridge's to write, and to remove when its end is known
    stop/ATTEMPT     TERM, KILL or END, for that call; removed when it has been sent
    over-NAME/ATTEMPT  how its Ray task ended
    up-NAME          the driver has begun

All of it is on the file system that the nodes share; files appear there whole, by a rename. Nothing of Ostler's is
imported here, since the nodes need not have it, and nothing that Python 3.9 does not know.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

DRIVER, ASKED, STOP, OVER, UP = "driver", "asked", "stop", "over-", "up-"
LOOK_S, SELDOM_S = 0.05, 0.25
QUIET_S, IDLE_S = 5.0, 120.0
"""Without anything to do it looks seldom after the first, and leaves after the second."""
END_S = 3.0
"""What was told to END gets SIGTERM, and SIGKILL this much later, as Ray's own jobs do."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.1

_BEGIN = 'read -r go && exec /bin/sh "$0" < /dev/null'
"""Nothing begins before it is guarded: the word comes after that, or never."""

_GUARD = """read -r word && exit 0
kill -9 "-$0"
tries=0
while kill -0 "-$0" && test $tries -lt 100; do sleep 0.05; tries=$((tries + 1)); done
cd "$1" && test -d begun && test ! -e exit || exit 0
now=$(date +%s)
echo "137 $now $now" > exit.part && mv exit.part exit
"""
"""Whose Ray worker is gone without a word ends with it, and leaves an exit code when it has."""

_APART = 'exec 3<&0; /bin/sh -c "$0" "$1" "$2" <&3 3<&- &'
"""A child of the worker's would be killed before the rest of the attempt is."""


def attend(script: str) -> int:
    """Run by a Ray worker: the script, as the leader of a group of its own, to its end. Its exit code, as of Popen."""
    child = _started("/bin/sh", "-c", _BEGIN, script)
    guard = _started("/bin/sh", "-c", _APART, _GUARD, str(child.pid), os.path.dirname(script))
    guard.wait()
    # Ray interrupts a task that it cancels; whoever started Ray may have made it deaf to that.
    before = signal.signal(signal.SIGINT, lambda *_: os.killpg(child.pid, signal.SIGTERM))
    try:
        child.stdin.write(b"go\n")
        child.stdin.close()
        if _ended(child.pid).si_code == os.CLD_EXITED:  # one that was killed may be one whom Ray ends, and this with it
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)  # what it has left
            guard.stdin.write(b"done\n")
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)
        guard.stdin.close()
    return int(child.wait())


def _ended(pid: int) -> os.waitid_result:
    """How; it is not reaped before all is said, or its number would be anybody's."""
    pause_s = FIRST_PAUSE_S
    while (found := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is None:
        time.sleep(pause_s)
        pause_s = min(LONGEST_PAUSE_S, pause_s * 1.5)
    return found


def _started(*command: str) -> Any:
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        command, bufsize=0, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
    )


class Driver:
    def __init__(self, ray: Any, folder: str, name: str) -> None:
        self._ray = ray
        self._folder = folder
        self._name = name
        self._attend = ray.remote(attend)
        self._tasks: dict[str, Any] = {}
        self._over = self._names(OVER + name)
        """Those whose request the bridge has not removed yet, and at first those that an earlier driver has begun."""
        self._ending: dict[str, float] = {}
        self._untold: dict[str, dict[str, Any]] = {}

    def serve(self) -> None:
        """Until there is nothing to do for a while, or another driver has come."""
        open(self._path(UP + self._name), "w").close()
        quiet_since = time.monotonic()
        while self._is_mine() and time.monotonic() < quiet_since + IDLE_S:
            try:
                told = self._names(STOP)  # before what is asked: one that is told to stop is then known
                self._take()
                for attempt in told:
                    self._stop(attempt)
                self._end()
                self._finish(LOOK_S if time.monotonic() < quiet_since + QUIET_S else SELDOM_S)
                self._tell()
            except OSError:  # a full disk, a file system that is away: it passes
                time.sleep(1.0)
            if self._tasks or self._untold:
                quiet_since = time.monotonic()

    def _is_mine(self) -> bool:
        try:
            with open(self._path(DRIVER)) as file:
                return file.read().strip() == self._name
        except FileNotFoundError:
            return False
        except OSError:
            return True  # nothing is known

    def _take(self) -> None:
        asked = self._names(ASKED)
        self._over &= asked
        for attempt in asked - self._over - self._tasks.keys() - self._untold.keys():
            with contextlib.suppress(FileNotFoundError, ValueError):
                with open(self._path(ASKED, attempt)) as file:
                    call = json.load(file)
                try:
                    self._tasks[attempt] = self._attend.options(**_options(call)).remote(call["script"])
                except Exception as error:
                    self._untold[attempt] = {"fate": "lost", "reason": _said(error)}

    def _stop(self, attempt: str) -> None:
        path = self._path(STOP, attempt)
        with contextlib.suppress(FileNotFoundError):
            with open(path) as file:
                word = file.read().strip()
            os.unlink(path)
            if attempt in self._tasks:
                self._ray.cancel(self._tasks[attempt], force=word == "KILL")
                if word == "END":
                    self._ending[attempt] = time.monotonic() + END_S

    def _end(self) -> None:
        for attempt, at in list(self._ending.items()):
            if attempt not in self._tasks or time.monotonic() >= at:
                del self._ending[attempt]
                if attempt in self._tasks:
                    self._ray.cancel(self._tasks[attempt], force=True)

    def _finish(self, pause_s: float) -> None:
        if not self._tasks:
            time.sleep(pause_s)
            return
        refs = {ref: attempt for attempt, ref in self._tasks.items()}
        done, _ = self._ray.wait(list(refs), num_returns=len(refs), timeout=pause_s)
        for ref in done:
            attempt = refs[ref]
            del self._tasks[attempt]
            try:
                self._untold[attempt] = {"code": self._ray.get(ref)}
            except self._ray.exceptions.TaskCancelledError:
                self._untold[attempt] = {"fate": "cancelled"}
            except self._ray.exceptions.RayError as error:
                self._untold[attempt] = {"fate": "lost", "reason": _said(error)}

    def _tell(self) -> None:
        for attempt, told in list(self._untold.items()):
            path = self._path(OVER + self._name, attempt)
            with open(path + ".part", "w") as file:
                json.dump(told, file)
            os.replace(path + ".part", path)
            del self._untold[attempt]
            self._over.add(attempt)

    def _names(self, kind: str) -> set[str]:
        return set(names(self._path(kind)))

    def _path(self, *parts: str) -> str:
        return os.path.join(self._folder, *parts)


def names(folder: str) -> Iterator[str]:
    """Of the files that are whole."""
    with contextlib.suppress(FileNotFoundError):
        yield from (name for name in os.listdir(folder) if not name.endswith(".part"))


def _options(call: dict[str, Any]) -> dict[str, Any]:
    options = {name: call[name] for name in ("name", "num_cpus", "num_gpus", "memory", "resources") if call.get(name)}
    return {"num_cpus": 0, **options, "max_retries": 0}


def _said(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


def main(arguments: Sequence[str]) -> None:
    folder, name = arguments
    ray = importlib.import_module("ray")
    ray.init(log_to_driver=False)
    Driver(ray, folder, name).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
