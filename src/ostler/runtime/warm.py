"""Warm interpreters: processes that run one function after another, so that a short call does not pay for a start.

Each is a child of the supervisor in a session of its own and is lent to one attempt at a time. While lent it is that
attempt's main process: stopping, deadlines and leases kill it like any other. Its own name is its OSTLER_ATTEMPT and is
in the journal, so a supervisor that follows a killed one finds it. Nobody else holds our end of its channel: when this
process dies, an idle one reads the end of it and leaves.

An order is a packet, and so is the answer: the exit code, how long it took and, perhaps, the result in base64. One that
dies, or does not answer but exits, ends its attempt as any process does.

Short calls that come one behind the other are given to it ahead (`lending.py`). They lie in its channel, and whoever
takes a packet out has it: the interpreter, which then begins that call, or we, by our own hold on its end.

Standard library only: the supervisor imports this.
"""

import contextlib
import os
import select
import signal
import socket
import time
from collections import deque
from typing import Any, NamedTuple

from ostler.runtime.identity import wanted_by
from ostler.runtime.processes import ProcessTable
from ostler.runtime.spawn import spawn

MODULE = "ostler.task.warm"
NAMES = "warm."
"""How the names of interpreters begin. No attempt's name has a dot."""
IDLE_S = 30.0
LEAVING_S = 2.0
MOST_AHEAD = 256
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
        "TRACEPARENT",
        "WANDB_RUN_ID",
    }
)
"""Variables that come with each order. All the others are the interpreter's for life, and part of its key."""

_NAMES = sorted(PER_ATTEMPT)
_CHANNEL = 3
_MAX_PACKET_BYTES = 128 * 1024
_GO_ON = b"go on"
_SHARED = "shared"
_SIGNS = {b"0": (False, False), b"1": (True, False), b"2": (False, True)}
"""What an answer says of whether it waits, and of whether the call has left nothing."""
_PACE = 0.5
"""How much the last call counts for what the next one is expected to take."""
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="


class Answer(NamedTuple):
    exit_code: int
    ran_s: float
    result: str
    waits: bool
    """It runs nothing more before it is told to: there may be something of this call that somebody has to see first,
    its children, or what it has left in a room that others have, too."""
    left_nothing: bool
    """In its room, where others have that, too."""


class Interpreter:
    def __init__(
        self, name: str, key: str, pid: int, ticks: int, channel: socket.socket, its_end: socket.socket
    ) -> None:
        self.name = name
        self.key = key
        self.pid = pid
        self.ticks = ticks
        self.channel = channel
        self.its_end = its_end
        """Our hold on the other end: what it has not taken out can be taken back."""
        self.attempt = ""
        """Whom it is lent to."""
        self.ahead: deque[str] = deque()
        """Whom it is lent to next: their orders are in its channel."""
        self.most_ahead = MOST_AHEAD
        self.shares = True
        """Whether those ahead may have one room: until one of its calls leaves something in there, or has children."""
        self.is_heard = True
        """Whether its next answer wakes us."""
        self.pace_s: float | None = None
        """What its calls have taken lately."""
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
        self._packet = memoryview(bytearray(_MAX_PACKET_BYTES if self.usable else 0))
        """Kept: one as large for each answer is mapped and unmapped by the kernel."""

    def fileno(self) -> int:
        """Readable when some interpreter has answered; -1 if there never is one."""
        return self._poll.fileno() if self._poll is not None else -1

    def new_name(self) -> str:
        self._made += 1
        return f"{NAMES}{os.getpid()}.{time.time_ns()}.{self._made}"

    def spawn(self, name: str, order: dict[str, Any], program: str, log: str, ticks: int) -> Interpreter:
        """Start one in the current directory; until its first order it prints into this log."""
        env = {key: value for key, value in order["env"].items() if key not in PER_ATTEMPT}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            user = wanted_by(order)
            channel = _CHANNEL if user is None else theirs.fileno()
            argv = [order["argv"][0], "-m", MODULE, str(channel)]
            pid = spawn(program, argv, {**env, MARK: name}, log, ((theirs.fileno(), channel),), user)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        ours.setblocking(False)
        interpreter = Interpreter(name, order["warm"], pid, ticks, ours, theirs)
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

    def lend(self, interpreter: Interpreter, order: dict[str, Any], folder: str, is_room: bool) -> bool:
        """Give it the order; False if it cannot take it, being gone."""
        taken = self.send(interpreter, order, folder, is_room)
        if taken:
            self.belongs_to(interpreter, order["attempt"])
        return taken

    def belongs_to(self, interpreter: Interpreter, attempt: str) -> None:
        interpreter.attempt = attempt
        self._lent[attempt] = interpreter
        self._busiest = max(self._busiest, len(self._lent))

    def send(self, interpreter: Interpreter, order: dict[str, Any], folder: str, is_room: bool) -> bool:
        env = order["env"]
        shared = _SHARED if is_room and interpreter.shares else ""
        given = [f"{name}={env[name]}" for name in _NAMES if name in env]
        packet = _encoded("\0".join([order["attempt"], shared, folder, *given]))
        try:
            return interpreter.channel.send(packet) == len(packet)
        except OSError:
            return False

    def take_back(self, interpreter: Interpreter) -> set[str]:
        """Take out what it has not; whose orders those were. It takes some itself meanwhile, any of them."""
        packets: list[bytes] = []
        with contextlib.suppress(OSError):
            while size := interpreter.its_end.recv_into(self._packet, 0, socket.MSG_DONTWAIT):
                packets.append(self._packet[:size].tobytes())
        if _GO_ON in packets:
            packets.remove(_GO_ON)
            self.let_go_on(interpreter)
        return {packet.partition(b"\0")[0].decode() for packet in packets}

    def let_go_on(self, interpreter: Interpreter) -> None:
        with contextlib.suppress(OSError):
            interpreter.channel.send(_GO_ON)

    def of(self, attempt: str) -> Interpreter | None:
        return self._lent.get(attempt)

    def busy(self) -> list[Interpreter]:
        return list(self._lent.values())

    def with_pid(self, pid: int) -> Interpreter | None:
        return self._all.get(pid)

    def who_speaks(self) -> list[Interpreter]:
        """Of those whose answers wake us, the ones that have said something; and all others that are lent ahead."""
        told = self._poll.poll(0) if self._poll is not None else ()
        speaking = [self._by_channel[descriptor] for descriptor, _ in told]
        return speaking + [one for one in self._lent.values() if not one.is_heard]

    def answers(self, interpreter: Interpreter) -> list[Answer | None]:
        """What it has said; None for an answer that is none."""
        found: list[Answer | None] = []
        with contextlib.suppress(OSError):
            while size := interpreter.channel.recv_into(self._packet):
                answer = _understand(self._packet[:size].tobytes())
                found.append(answer)
                if answer is not None:
                    pace_s = interpreter.pace_s
                    interpreter.pace_s = answer.ran_s if pace_s is None else pace_s + _PACE * (answer.ran_s - pace_s)
        return found

    def listen(self, interpreter: Interpreter) -> None:
        """Be woken by its answer only if it has no more orders: of many, none is worth a wake of its own."""
        is_heard = not interpreter.ahead
        if is_heard != interpreter.is_heard and interpreter.channel.fileno() in self._by_channel:
            interpreter.is_heard = is_heard
            assert self._poll is not None
            self._poll.modify(interpreter.channel.fileno(), select.EPOLLIN if is_heard else 0)

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
            interpreter.its_end.close()

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


def _encoded(text: str) -> bytes:
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:  # the locale knows fewer letters than a variable has
        return text.encode("utf-8", "surrogateescape")


def _kill(pid: int) -> None:
    # Not reaped: no other process can have this pid, and no other group this number.
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _understand(text: bytes) -> Answer | None:
    words = text.split(b" ")
    if len(words) != 4:
        return None
    code, ran_us, signs, result = words
    if not (code + ran_us).isdigit() or max(len(code), len(ran_us)) > 15 or signs not in _SIGNS:
        return None
    if not code or not ran_us or int(code) > 255 or result.translate(None, _BASE64):
        return None
    return Answer(int(code), int(ran_us) / 1e6, result.decode("ascii"), *_SIGNS[signs])
