"""Warm interpreters: processes that run one function after another, so that a short call does not pay for a start.

Each is a child of the supervisor in a session of its own and is lent to one attempt at a time. While lent it is that
attempt's main process: stopping, deadlines and leases kill it like any other. Its own name is its OSTLER_ATTEMPT and is
in the journal, so a supervisor that follows a killed one finds it. Nobody else holds our end of its channel: when this
process dies, an idle one reads the end of it and leaves.

An order is a line of JSON; the answer is a line: the exit code and, perhaps, the result in base64. One that dies, or
does not answer but exits, ends its attempt as any process does.

Standard library only: the supervisor imports this.
"""

import contextlib
import os
import select
import signal
import socket
import time
from typing import Any, NamedTuple

from ostler.runtime.frames import pack
from ostler.runtime.processes import ProcessTable
from ostler.runtime.spawn import spawn

MODULE = "ostler.task.warm"
NAMES = "warm."
"""How the names of interpreters begin. No attempt's name has a dot."""
IDLE_S = 30.0
LEAVING_S = 2.0
NEVER = float("inf")
MARK = "OSTLER_ATTEMPT"
PER_ATTEMPT = frozenset(
    {
        MARK,
        "OSTLER_JOB_ID",
        "OSTLER_TASK_ID",
        "OSTLER_INDEX",
        "OSTLER_OUT",
        "OSTLER_CHECKPOINT",
        "OSTLER_CALL",
        "OSTLER_RESULT",
    }
)
"""Variables that come with each order. All the others are the interpreter's for life, and part of its key."""

_CHANNEL = 3
_MAX_ANSWER_BYTES = 64 * 1024
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="


class Answer(NamedTuple):
    exit_code: int
    result: str


class Interpreter:
    def __init__(self, name: str, key: str, pid: int, ticks: int, channel: socket.socket) -> None:
        self.name = name
        self.key = key
        self.pid = pid
        self.ticks = ticks
        self.channel = channel
        self.said = b""
        """The beginning of an answer."""
        self.attempt = ""
        """Whom it is lent to."""
        self.since = 0.0
        """When it became idle."""


class Pool:
    def __init__(self, table: ProcessTable) -> None:
        self.usable = table.adopts and table.sees_children
        """Else nobody could tell what a call has left behind while its interpreter goes on."""
        self.wake_at = NEVER
        self._cores = os.cpu_count() or 1
        self._busiest = 0
        """How many were lent at once, at most, lately: as many may be idle, for they may all be wanted again."""
        self._made = 0
        self._all: dict[int, Interpreter] = {}
        """Those that are not reaped, by pid."""
        self._lent: dict[str, Interpreter] = {}
        """By attempt, until the attempt is over: even if the interpreter is not there any more."""
        self._idle: list[Interpreter] = []
        self._leaving: dict[int, float] = {}
        """Idle ones that have been sent away: when they are killed if they do not go."""
        self._by_channel: dict[int, Interpreter] = {}
        self._poll = select.epoll() if self.usable else None

    def fileno(self) -> int:
        """Readable when some interpreter has answered; -1 if there never is one."""
        return self._poll.fileno() if self._poll is not None else -1

    def new_name(self) -> str:
        self._made += 1
        return f"{NAMES}{os.getpid()}.{time.time_ns()}.{self._made}"

    def spawn(self, name: str, order: dict[str, Any], program: str, log: str, ticks: int) -> Interpreter:
        """Start one in the current directory; until its first order it prints into this log."""
        env = {key: value for key, value in order["env"].items() if key not in PER_ATTEMPT}
        ours, theirs = socket.socketpair()
        try:
            argv = [order["argv"][0], "-m", MODULE, str(_CHANNEL)]
            pid = spawn(program, argv, {**env, MARK: name}, log, ((theirs.fileno(), _CHANNEL),))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        interpreter = Interpreter(name, order["warm"], pid, ticks, ours)
        self._all[pid] = interpreter
        self._by_channel[ours.fileno()] = interpreter
        if self._poll is not None:
            self._poll.register(ours.fileno(), select.EPOLLIN)
        return interpreter

    def take_idle(self, key: str) -> Interpreter | None:
        """The one that became idle last: the others may soon have been so for long enough to go."""
        for place in range(len(self._idle) - 1, -1, -1):
            if self._idle[place].key == key:
                return self._idle.pop(place)
        return None

    def lend(self, interpreter: Interpreter, order: dict[str, Any], log: str, work: str) -> bool:
        """Give it the order; False if it cannot take it, being gone."""
        env = order["env"]
        line = pack({"env": {key: env[key] for key in PER_ATTEMPT if key in env}, "log": log, "work": work})
        try:
            taken = interpreter.channel.send(line) == len(line)
        except OSError:
            return False
        if taken:
            interpreter.attempt = order["attempt"]
            self._lent[interpreter.attempt] = interpreter
            self._busiest = max(self._busiest, len(self._lent))
        return taken

    def of(self, attempt: str) -> Interpreter | None:
        return self._lent.get(attempt)

    def answers(self) -> list[tuple[Interpreter, Answer | None]]:
        """Who has answered, and what; None for an answer that is none."""
        found = []
        for descriptor, _ in self._poll.poll(0) if self._poll is not None else ():
            interpreter = self._by_channel[descriptor]
            try:
                text = interpreter.channel.recv(_MAX_ANSWER_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                text = b""
            interpreter.said += text
            if text and (text.endswith(b"\n") or len(interpreter.said) > _MAX_ANSWER_BYTES):
                found.append((interpreter, _understand(interpreter.said)))
                interpreter.said = b""
            elif not text:
                # It has closed its end, or is gone: its attempt ends when it does.
                self.hang_up(interpreter)
        return found

    def put_back(self, interpreter: Interpreter, now: float) -> None:
        """Its attempt is over and has left nothing: the next one, please."""
        interpreter.attempt, interpreter.since = "", now
        self._idle.append(interpreter)
        if len(self._idle) > max(self._cores, self._busiest):
            self.dismiss(self._idle.pop(0), now)
        self.wake_at = min(self.wake_at, now + IDLE_S)

    def over(self, attempt: str) -> Interpreter | None:
        """The attempt is over. Its interpreter, if it had one and that is gone too."""
        interpreter = self._lent.pop(attempt, None)
        return interpreter if interpreter is not None and interpreter.pid not in self._all else None

    def reaped(self, pid: int) -> Interpreter | None:
        """The interpreter that this was, if it is of no further concern to any attempt."""
        interpreter = self._all.pop(pid, None)
        if interpreter is None:
            return None
        self.hang_up(interpreter)
        self._leaving.pop(pid, None)
        if interpreter in self._idle:
            self._idle.remove(interpreter)
        return None if interpreter.attempt else interpreter

    def hang_up(self, interpreter: Interpreter) -> None:
        """No more orders. One that is not busy leaves."""
        descriptor = interpreter.channel.fileno()
        if descriptor >= 0:
            if self._poll is not None:
                self._poll.unregister(descriptor)
            del self._by_channel[descriptor]
            interpreter.channel.close()

    def dismiss(self, interpreter: Interpreter, now: float) -> None:
        """An idle one leaves; in time, or else it is killed."""
        interpreter.attempt = ""
        self.hang_up(interpreter)
        self._leaving[interpreter.pid] = now + LEAVING_S
        self.wake_at = min(self.wake_at, now + LEAVING_S)

    def tick(self, now: float) -> None:
        """Send away those that have been idle for long; kill those that were sent and did not go."""
        self._busiest = len(self._lent)
        for interpreter in [one for one in self._idle if one.since + IDLE_S <= now]:
            self._idle.remove(interpreter)
            self.dismiss(interpreter, now)
        for pid, kill_at in self._leaving.items():
            if kill_at <= now:
                _kill(pid)
                self._leaving[pid] = now + LEAVING_S
        self.wake_at = min((one.since + IDLE_S for one in self._idle), default=NEVER)
        self.wake_at = min(self.wake_at, min(self._leaving.values(), default=NEVER))

    def dismiss_all(self, now: float) -> bool:
        """Nobody needs them any more; whether there are any left."""
        while self._idle:
            self.dismiss(self._idle.pop(), now)
        return bool(self._all)

    def kill(self, interpreter: Interpreter) -> None:
        _kill(interpreter.pid)

    def kill_all(self) -> None:
        for pid in self._all:
            _kill(pid)


def _kill(pid: int) -> None:
    # Not reaped: no other process can have this pid, and no other group this number.
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _understand(text: bytes) -> Answer | None:
    digits, _, result = text[:-1].partition(b" ")
    if text[-1:] != b"\n" or not digits.isdigit() or len(digits) > 3 or int(digits) > 255:
        return None
    if result.translate(None, _BASE64):
        return None
    return Answer(int(digits), result.decode("ascii"))
