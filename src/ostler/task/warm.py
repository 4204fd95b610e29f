"""Runs one function after another in the same interpreter: started, and ordered about, by the supervisor.

    python -m ostler.task.warm DESCRIPTOR

An order is a packet: whose call it is, `shared` or nothing, its folder and its variables, each `NAME=value`, with a NUL
between any two of these. The answer is a packet: the exit code that `ostler.task.call` would have had, how many
microseconds it took, a sign and, if it is small, the result in base64. After a call that leaves this process different
from how a start would have made it (threads, signal handlers, an alarm, a umask, a lot of memory, many open files),
there is no answer: the process exits with that code, as after the last call of many. So such a call ends as one that
had a process of its own.

Several orders may be in the channel; what was taken out of it is begun. After a call that has had children, or has left
something in a folder that it shared, nothing is until "go on" comes: whoever gave the orders looks first whether these
are gone, and whose it is, and knows that none of them was begun. The sign is 1 then; 2 if nothing was left in a folder
that it shared; else 0.

What calls share: loaded modules and their globals, and of a map the function itself; no argument is ever seen twice.
Standard library and cloudpickle only.
"""

import binascii
import gc
import os
import pickle
import resource
import signal
import socket
import sys
import threading
import time
from typing import Any, NamedTuple

import cloudpickle

from ostler.task import call
from ostler.task.place import Place

MAX_CALLS = 100_000
FILES_EVERY = 32
"""After so many calls it is looked whether they leave files open: with too many of them the next could open none."""
MAX_INLINE_BYTES = 32 * 1024
"""A larger result goes into its file, as one without a warm interpreter does."""
MAX_RSS_KIB = 1024 * 1024
"""An interpreter that has once been larger may still hold what nobody accounts for."""
MEASURED_AFTER_S = 0.02
"""To touch as much memory takes several times as long: shorter calls are measured together."""
MAX_PACKET_BYTES = 128 * 1024
GO_ON = b"go on"
NO_SIGN, MUST_ASK, LEFT_NOTHING = range(3)
KEPT_PAYLOADS = 4
KEPT_BYTES = 256 * 1024 * 1024
_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGALRM,
    signal.SIGCHLD,
    signal.SIGPIPE,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Those for which programs set handlers. To look at all of them would cost as much as the rest of a short call."""
_handler = getattr(signal, "_signal", signal).getsignal
"""Without the names that Python gives to what is no function: to look these up costs as much as a short call."""


class Order(NamedTuple):
    is_shared: bool
    """Whether others may have their turn in the same folder, as long as nothing is left there."""
    folder: bytes
    env: dict[bytes, bytes]


class Payloads:
    """The functions of maps that ran here lately. Their file is shared by all their calls, and read once."""

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[int, Any]] = {}

    def load(self, path: bytes, index: int, home: bytes) -> Any:
        """What `call.read` gives, for this element alone. A payload below `home` is this one call's own."""
        if path not in self._kept:
            payload = call.read(path)
            if path.startswith(home) or not _is_map(payload):
                return payload
            self._keep(path, payload)
        _, function, items = self._kept[path][1]
        return ("call", function, _own(items[index]), {})

    def _keep(self, path: bytes, payload: Any) -> None:
        self._kept[path] = (os.path.getsize(path), payload)
        while len(self._kept) > KEPT_PAYLOADS or (
            len(self._kept) > 1 and sum(size for size, _ in self._kept.values()) > KEPT_BYTES
        ):
            del self._kept[next(iter(self._kept))]


def _is_map(payload: Any) -> bool:
    return isinstance(payload, tuple) and len(payload) == 3 and payload[0] == "map"


def _own(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """A copy: what one call does to its arguments must not show in another's, nor in its own next attempt."""
    if call.PLAIN.issuperset(map(type, arguments)):
        return arguments
    copy: tuple[Any, ...] = pickle.loads(cloudpickle.dumps(arguments))
    return copy


class Interpreter:
    def __init__(self, channel: int) -> None:
        self._channel = channel
        os.set_inheritable(channel, False)
        self._socket = socket.socket(fileno=channel)
        self._packet = memoryview(bytearray(MAX_PACKET_BYTES))
        """Kept: one as large for each call is mapped and unmapped by the kernel, 20 µs instead of 3."""
        self._parent = os.getppid()
        self._must_ask = False
        self._waited_for = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._place = Place()
        self._payloads = Payloads()
        self._env = {key: value for key, value in os.environb.items() if key != b"OSTLER_ATTEMPT"}
        self._given: dict[bytes, bytes] = {}
        self._as_set: dict[Any, Any] = {}
        """The variables of the last call, and with them the whole environment as it was set for it."""
        # `python -m` puts the working directory first, unless it is told not to.
        self._path = sys.path[1:] if sys.path[:1] == [os.getcwd()] else None
        self._work = ""
        self._argv = list(sys.argv[:1])
        self._unmeasured_s = MEASURED_AFTER_S
        self._marks = self._look()

    def serve(self) -> int:
        """Until nobody has any orders, or this interpreter should run no more of them."""
        me = os.getpid()
        for number in range(1, MAX_CALLS + 1):
            order = self._next_order()
            if order is None:
                return 0
            self._prepare(order)
            begun = time.monotonic()
            code, data = self._run(order)
            ran_s = time.monotonic() - begun
            if os.getpid() != me:
                os._exit(code)  # a child that the function has made, and that came back from it
            is_last = number == MAX_CALLS or not self._is_as_before(ran_s) or not self._has_few_files(number)
            if is_last or len(data) > MAX_INLINE_BYTES:
                call.write(os.fsdecode(order.env[b"OSTLER_RESULT"]), data)
                data = b""
            if is_last:
                return code
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
            if not self._answer(order, code, ran_s, data):
                call.write(os.fsdecode(order.env[b"OSTLER_RESULT"]), data)
                return code
        return 0

    def _run(self, order: Order) -> tuple[int, bytes]:
        path, index = order.env[b"OSTLER_CALL"], int(order.env.get(b"OSTLER_INDEX", b"0"))
        home = order.folder + b"/"
        return call.perform(lambda: self._payloads.load(path, index, home), index)

    def _answer(self, order: Order, code: int, ran_s: float, data: bytes) -> bool:
        self._must_ask = self._has_had_children() or (order.is_shared and not self._place.is_as_it_was())
        if self._must_ask:
            self._place.leave()
        sign = MUST_ASK if self._must_ask else LEFT_NOTHING if order.is_shared else NO_SIGN
        text = b"%d %d %d %s" % (code, 1e6 * ran_s, sign, binascii.b2a_base64(data, newline=False))
        try:
            return os.write(self._channel, text) == len(text)
        except OSError:
            return False

    def _has_had_children(self) -> bool:
        """Whether any was waited for, or could be: one that has left its parents had one that was."""
        before, self._waited_for = self._waited_for, resource.getrusage(resource.RUSAGE_CHILDREN)
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return self._waited_for != before
        return True

    def _next_order(self) -> Order | None:
        packet = self._next_packet()
        while self._must_ask and packet:
            self._must_ask = packet != GO_ON
            packet = self._next_packet()
        if not packet or os.getppid() != self._parent:
            return None
        if packet.startswith(b"{"):
            return _of_before(packet)
        _, shared, folder, *env = packet.split(b"\0")
        return Order(shared == b"shared", folder, dict([variable.split(b"=", 1) for variable in env]))

    def _next_packet(self) -> bytes:
        """What is there already is next, with nothing in between; b"": nobody is there any more."""
        try:
            size = self._socket.recv_into(self._packet, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            self._place.leave()
            size = self._socket.recv_into(self._packet)
        return self._packet[:size].tobytes()

    def _prepare(self, order: Order) -> None:
        if self._place.enter(order.folder, is_shared=order.is_shared):
            sys.path_importer_cache.pop(self._work, None)
            self._work = os.fsdecode(order.folder) + "/work"
        self._set_environment(order.env)
        sys.argv[:] = self._argv
        if self._path is not None:
            sys.path[:] = [self._work, *self._path]

    def _set_environment(self, given: dict[bytes, bytes]) -> None:
        if _RAW is None or self._as_set != _RAW:  # the first call, or the last one has changed something
            _change_environment(dict(os.environb), {**self._env, **given})
            self._as_set = dict(_RAW or {})
        elif given.keys() == self._given.keys():
            for name, value in given.items():
                if self._given[name] != value:  # as `os.environb` does it, which takes three times as long
                    os.putenv(name, value)
                    _RAW[name] = self._as_set[name] = value
        else:
            _change_environment(self._given, given)
            self._as_set = dict(_RAW)
        self._given = given

    def _is_as_before(self, ran_s: float) -> bool:
        _flush()
        try:
            return (
                self._is_small(ran_s)
                and threading.active_count() == 1
                and signal.alarm(0) == 0
                and self._look() == self._marks
            )
        except OSError:
            return False

    def _is_small(self, ran_s: float) -> bool:
        self._unmeasured_s += ran_s
        if self._unmeasured_s < MEASURED_AFTER_S:
            return True
        self._unmeasured_s = 0.0
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss <= MAX_RSS_KIB

    def _has_few_files(self, number: int) -> bool:
        """By the lowest descriptor that is free: one that it has kept from the beginning is below it."""
        if number % FILES_EVERY:
            return True
        try:
            os.close(free := os.dup(self._channel))
        except OSError:
            return False
        return free < resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2

    def _look(self) -> tuple[Any, ...]:
        os.umask(umask := os.umask(0o077))
        handlers = [_handler(number) for number in _SIGNALS]
        return (umask, os.fstat(self._channel).st_ino, os.geteuid(), handlers)


def _of_before(packet: bytes) -> Order:
    """From a supervisor of an earlier version, that holds tasks while another is installed: as JSON."""
    import json

    order = json.loads(packet)
    env = {os.fsencode(name): os.fsencode(value) for name, value in order["env"].items()}
    return Order(False, os.path.dirname(os.fsencode(order["work"])), env)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue  # closed, or replaced by something that is no stream


_RAW: dict[Any, Any] | None = getattr(os.environ, "_data", None)
"""All variables as the kernel has them: to compare these costs next to nothing."""


def _change_environment(found: dict[bytes, bytes], wanted: dict[bytes, bytes]) -> None:
    for name in found.keys() - wanted.keys():
        del os.environb[name]
    for name, value in wanted.items():
        if found.get(name) != value:
            os.environb[name] = value


if __name__ == "__main__":
    gc.freeze()
    sys.exit(Interpreter(int(sys.argv[1])).serve())
