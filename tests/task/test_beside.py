"""A command beside a task, seen from the worker's socket: what comes through, and what ends it."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ostler.wire.beside import (
    END_OF_INPUT,
    EXIT,
    FAILED,
    INPUT,
    NUMBER,
    OUTPUT,
    SIGNAL,
    START,
    TAKEN,
    VARIABLE,
    WINDOW,
    Frames,
    frame,
)

KEY = "k" * 32


class Worker:
    """The other end of the socket."""

    def __init__(self, path: Path) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(30)
        argv = [sys.executable, "-I", "-m", "ostler.task.beside"]
        self.process = subprocess.Popen(argv, env={**os.environ, VARIABLE: f"{KEY}:{path}"})
        self.socket = listener.accept()[0]
        self.socket.settimeout(30)
        assert self.socket.recv(len(KEY)) == KEY.encode()
        listener.close()
        self._frames, self._came = Frames(), list[tuple[int, bytes]]()

    def start(self, *argv: str) -> None:
        self.send(START, json.dumps({"argv": argv}).encode())

    def send(self, kind: int, payload: bytes = b"") -> None:
        self.socket.sendall(frame(kind, payload))

    def until(self, wanted: int) -> bytes:
        """The next frame of this kind; those before it are passed over."""
        while True:
            while self._came:
                kind, payload = self._came.pop(0)
                if kind == wanted:
                    return payload
            data = self.socket.recv(65536)
            assert data, "the connection has ended"
            self._came = self._frames.feed(data)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    found = Worker(tmp_path / "s")
    yield found
    found.socket.close()
    found.process.terminate()
    found.process.wait(60)


def test_a_caller_that_leaves_ends_a_command_that_has_not_read_its_input(worker: Worker) -> None:
    worker.start("sh", "-c", "echo $$; exec sleep 600")
    command = psutil.Process(int(worker.until(OUTPUT)))
    for _ in range(WINDOW // 1024):
        worker.send(INPUT, b"x" * 1024)
    worker.socket.close()
    assert worker.process.wait(60) == 0
    psutil.wait_procs([command], timeout=60)
    assert not command.is_running()


def test_a_signal_comes_through_input_that_is_not_read(worker: Worker) -> None:
    worker.start("sleep", "600")
    for _ in range(WINDOW // 1024):
        worker.send(INPUT, b"x" * 1024)
    worker.send(SIGNAL, NUMBER.pack(signal.SIGINT))
    assert NUMBER.unpack(worker.until(EXIT))[0] == 128 + signal.SIGINT


def test_what_was_read_of_the_input_is_told_so_that_more_may_come(worker: Worker) -> None:
    worker.start("cat")
    for _ in range(4):
        worker.send(INPUT, b"x" * WINDOW)
        taken = 0
        while taken < WINDOW:
            taken += NUMBER.unpack(worker.until(TAKEN))[0]


def test_whoever_sends_more_than_there_is_room_for_is_cut_off(worker: Worker) -> None:
    worker.start("sleep", "600")
    worker.send(INPUT, b"x" * 2 * WINDOW)
    assert worker.process.wait(60) == 0


def test_input_that_comes_after_the_end_does_not_break_off_the_connection(worker: Worker) -> None:
    worker.start("true")
    assert worker.until(EXIT) == NUMBER.pack(0)
    for _ in range(64):
        worker.send(INPUT, b"x" * 65536)
    assert worker.process.poll() is None
    worker.socket.close()
    assert worker.process.wait(60) == 0


def test_input_that_ends_ends_on_a_terminal_too(worker: Worker) -> None:
    worker.send(START, json.dumps({"argv": ["cat"], "tty": True}).encode())
    worker.send(INPUT, b"line\n")
    worker.send(END_OF_INPUT)
    assert worker.until(EXIT) == NUMBER.pack(0)


def test_a_file_that_is_no_program_is_told_apart_from_one_that_is_not_there(worker: Worker) -> None:
    worker.start("/etc/passwd")
    assert worker.until(FAILED) == b"/etc/passwd: Permission denied"
    assert worker.until(EXIT) == NUMBER.pack(126)


def test_input_for_a_program_that_is_not_there_is_taken_and_costs_no_answer(worker: Worker) -> None:
    worker.start("no-such-program")
    worker.until(FAILED)
    assert NUMBER.unpack(worker.until(EXIT)) == (127,)
    assert worker.socket.recv(1) == b"", "nothing follows the exit code"
    worker.send(END_OF_INPUT)
    worker.socket.close()
    assert worker.process.wait(60) == 0
