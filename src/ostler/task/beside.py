"""Runs a command beside a task, for `ostler exec`: in the task's folder, with its environment, as one of its processes.

    OSTLER_BESIDE=KEY:SOCKET python -I -m ostler.task.beside

The supervisor starts it like any other process of the task, so it ends with the task. It connects to the worker's
socket, shows the key, and from there on speaks to whoever asked for the command, in the frames of `wire/beside.py`.
Standard library only.
"""

import contextlib
import errno
import fcntl
import json
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from typing import Any

from ostler.wire.beside import (
    END_OF_INPUT,
    ERROR,
    EXIT,
    FAILED,
    INPUT,
    NUMBER,
    OUTPUT,
    RESIZE,
    SIGNAL,
    SIZE,
    TAKEN,
    VARIABLE,
    WINDOW,
    Frames,
    frame,
)

PIECE = 32 * 1024
LEAVES_S = 1.0
"""From SIGHUP to SIGKILL, when nobody listens any more."""
NOT_EXECUTABLE, NOT_FOUND = 126, 127
CTRL_D = b"\x04"
"""By which somebody before a terminal says that nothing more comes."""
SHELLS = ("bash", "zsh", "sh")


class CannotStart(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Command:
    """The process, and the ends of its terminal or of its pipes."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        argv = list(wanted.get("argv") or []) or [_shell()]
        self.outputs: dict[int, int] = {}
        """By descriptor, as what it is told."""
        self.terminal = bool(wanted.get("tty"))
        env = {**os.environ, "TERM": str(wanted["term"])} if wanted.get("term") else dict(os.environ)
        try:
            if self.terminal:
                self._start_on_terminal(argv, env, wanted)
            else:
                self._start_on_pipes(argv, env)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise CannotStart(NOT_FOUND, f"{argv[0]}: there is no such program for this task") from None
            raise CannotStart(NOT_EXECUTABLE, f"{argv[0]}: {error.strerror}") from None
        except ValueError as error:  # a NUL byte
            raise CannotStart(NOT_EXECUTABLE, f"{argv[0]}: {error}") from None

    def _start_on_terminal(self, argv: list[str], env: dict[str, str], wanted: dict[str, Any]) -> None:
        master, slave = os.openpty()
        self.input = master
        self.resize(int(wanted.get("rows") or 24), int(wanted.get("cols") or 80))

        def take_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            argv, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, preexec_fn=take_terminal
        )
        os.close(slave)
        self.outputs[master] = OUTPUT
        os.set_blocking(master, False)

    def _start_on_pipes(self, argv: list[str], env: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.input = os.dup(self.process.stdin.fileno())
        self.process.stdin.close()
        self.outputs = {self.process.stdout.fileno(): OUTPUT, self.process.stderr.fileno(): ERROR}
        for descriptor in (self.input, *self.outputs):
            os.set_blocking(descriptor, False)

    def resize(self, rows: int, columns: int) -> None:
        with contextlib.suppress(OSError, struct.error):
            fcntl.ioctl(self.input, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, number)

    def end(self) -> None:
        """Nobody listens any more: a terminal that is gone is told by SIGHUP, and so is everybody else."""
        self.signal(signal.SIGHUP)
        self.signal(signal.SIGCONT)
        deadline = time.monotonic() + LEAVES_S
        while self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self.signal(signal.SIGKILL)


def _shell() -> str:
    wanted = os.environ.get("SHELL", "")
    if wanted and os.access(wanted, os.X_OK) and not wanted.endswith(("/nologin", "/false")):
        return wanted
    return next((name for name in SHELLS if shutil.which(name)), "sh")


class Beside:
    def __init__(self, worker: socket.socket, command: Command, frames: Frames) -> None:
        self._worker = worker
        self._command = command
        self._frames = frames
        self._waiting = bytearray()
        self._input_ends = False
        self._selector = selectors.DefaultSelector()
        for descriptor in command.outputs:
            self._selector.register(descriptor, selectors.EVENT_READ)
        self._selector.register(worker, selectors.EVENT_READ)

    def run(self, early: list[tuple[int, bytes]]) -> None:
        ended, wakes = os.pipe()
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(ended, selectors.EVENT_READ)
        for kind, payload in early:
            self._take(kind, payload)
        while self._command.process.poll() is None:
            self._feed()
            for key, _ in self._selector.select():
                if key.fd == self._worker.fileno():
                    if not self._hear():
                        self._command.end()
                        return
                elif key.fd == ended:
                    os.read(ended, 512)
                elif key.fd in self._command.outputs:
                    self._tell(key.fd)
        for descriptor in list(self._command.outputs):
            while self._tell(descriptor):
                pass
        code = self._command.process.returncode
        self._worker.sendall(frame(EXIT, NUMBER.pack(code if code >= 0 else 128 - code)))
        part(self._worker)

    def _hear(self) -> bool:
        try:
            data = self._worker.recv(PIECE)
            for kind, payload in self._frames.feed(data):
                self._take(kind, payload)
        except (OSError, ValueError):
            return False
        return bool(data)

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == INPUT:
            self._waiting += payload
            if len(self._waiting) > WINDOW:
                raise ValueError("more input than there is room for")
        elif kind == END_OF_INPUT:
            self._input_ends = True
            self._waiting += CTRL_D if self._command.terminal else b""
        elif kind == RESIZE and len(payload) == SIZE.size:
            self._command.resize(*SIZE.unpack(payload))
        elif kind == SIGNAL and len(payload) == NUMBER.size:
            self._command.signal(NUMBER.unpack(payload)[0])

    def _feed(self) -> None:
        """As much as the command takes now. What it does not is tried again when it has said something, or soon."""
        before = len(self._waiting)
        self._give()
        if taken := before - len(self._waiting):
            self._worker.sendall(frame(TAKEN, NUMBER.pack(taken)))

    def _give(self) -> None:
        descriptor = self._command.input
        if descriptor < 0:
            self._waiting.clear()
            return
        try:
            while self._waiting:
                del self._waiting[: os.write(descriptor, self._waiting[:PIECE])]
        except BlockingIOError:
            self._watch_input()
            return
        except OSError:  # it has closed its standard input
            self._waiting.clear()
            self._input_ends = True
        self._unwatch_input()
        if self._input_ends and not self._command.terminal:
            os.close(descriptor)
            self._command.input = -1

    def _watch_input(self) -> None:
        descriptor, known = self._command.input, self._selector.get_map()
        if descriptor not in known and not self._command.terminal:
            self._selector.register(descriptor, selectors.EVENT_WRITE)
        elif descriptor in known and self._command.terminal:
            self._selector.modify(descriptor, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def _unwatch_input(self) -> None:
        descriptor = self._command.input
        if self._command.terminal and descriptor in self._command.outputs:
            self._selector.modify(descriptor, selectors.EVENT_READ)
        elif not self._command.terminal and descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def _tell(self, descriptor: int) -> bool:
        """What it has said meanwhile; False: nothing more now, or ever."""
        try:
            data = os.read(descriptor, PIECE)
        except BlockingIOError:
            return False
        except OSError:  # a terminal that nobody has open any more
            data = b""
        if not data:
            self._selector.unregister(descriptor)
            del self._command.outputs[descriptor]
            return False
        self._worker.sendall(frame(self._command.outputs[descriptor], data))
        return True


def part(worker: socket.socket) -> None:
    """Ends the connection after the last frame. Input that still comes is read and dropped: if this end closed with
    unread input, the other end could lose the last frame."""
    with contextlib.suppress(OSError):
        worker.shutdown(socket.SHUT_WR)
        while worker.recv(PIECE):
            pass


def main() -> int:
    key, _, path = os.environ.pop(VARIABLE, "").partition(":")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as worker:
        worker.connect(path)
        worker.sendall(key.encode())
        frames, early = Frames(), list[tuple[int, bytes]]()
        while not early:
            data = worker.recv(PIECE)
            if not data:
                return 0
            early = frames.feed(data)
        wanted = json.loads(early.pop(0)[1])
        try:
            command = Command(wanted)
        except CannotStart as reason:
            worker.sendall(frame(FAILED, str(reason).encode()) + frame(EXIT, NUMBER.pack(reason.code)))
            part(worker)
            return 0

        def leave(*_: object) -> None:
            # The task has ended, or is told to: what was asked for beside it is not waited for.
            command.signal(signal.SIGKILL)
            os._exit(0)

        signal.signal(signal.SIGTERM, leave)
        try:
            Beside(worker, command, frames).run(early)
        except OSError:
            command.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
