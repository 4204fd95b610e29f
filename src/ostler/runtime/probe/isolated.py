"""A command in a process of its own, cut off at a deadline: a driver that hangs or crashes takes nothing with it."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

import msgspec
import psutil

# A process stuck inside a driver cannot be killed at all. It is given this long, then left behind.
_KILL_WAIT_S = 1.0


class Outcome(msgspec.Struct):
    stdout: str = ""
    failure: str = ""
    """Empty when the command ended well; else why not, as the end of a sentence about it."""


class Isolated:
    """One started command. Output goes to files, not pipes: no reader can be held up by who keeps a pipe open."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
        self._started = time.monotonic()
        self._stdout = tempfile.TemporaryFile()
        self._stderr = tempfile.TemporaryFile()
        self._process: subprocess.Popen[bytes] | None = None
        self._failure = ""
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=self._stdout,
                stderr=self._stderr,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        except OSError as error:
            self._failure = f"could not be started: {error.strerror or error}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._stdout.close()
        self._stderr.close()

    def finish(self, deadline: float) -> Outcome:
        """Its outcome, at the latest at this time of the monotonic clock."""
        if self._process is None:
            return Outcome(failure=self._failure)
        try:
            code = self._process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            left_behind = "" if self.kill() else ", and could not even be killed"
            return Outcome(failure=f"did not answer within {deadline - self._started:.2g} s{left_behind}")
        if code:
            # What it started lives on when it crashed. The group's number cannot pass to others while one member lives.
            _kill_group(self._process)
        return Outcome(_text(self._stdout), _how_it_failed(code, _text(self._stderr)))

    def kill(self) -> bool:
        """End it and all that it started; False if it is stuck where no signal reaches it."""
        process = self._process
        if process is None or process.poll() is not None:
            return True
        _kill_group(process)
        try:
            process.wait(_KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            return False
        return True


def run(argv: Sequence[str], timeout_s: float, *, cwd: Path | None = None) -> Outcome:
    with Isolated(argv, cwd=cwd) as command:
        return command.finish(time.monotonic() + timeout_s)


def ask(argv: Sequence[str]) -> Outcome:
    """
    From inside a probe: no deadline and no group of its own, for the probe's deadline and group hold this too.
    A session of its own would outlive the probe that is cut off.
    """
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError as error:
        return Outcome(failure=f"could not be started: {error.strerror or error}")
    stdout, stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    return Outcome(stdout, _how_it_failed(done.returncode, stderr))


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    with suppress(OSError, psutil.Error):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _how_it_failed(code: int, stderr: str) -> str:
    if code == 0:
        return ""
    if code < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"
    said = [line.strip() for line in stderr.splitlines() if line.strip()]
    return f"exited with code {code}" + (f": {said[-1]}" if said else "")
