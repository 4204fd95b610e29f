"""The supervisor: starts tasks, owns their process trees, and outlives the worker that asked for them.

    python -m ostler.runtime.supervisor --folder DIR [--idle-s 60] [--attempts DIR]

One per folder, by a lock. It goes to the background once it serves `DIR/supervisor.sock`: exit code 0 then, 3 if
another one serves the folder, 1 if it cannot. Messages are lines of JSON. The worker says base (an environment from
which those of its launches differ), prepare (a launch that may come next), launch, stop, beside (one more process of an
attempt), call_back (stop what has not been started), renew, forget, list and shutdown; it is told what is held, and
every end. A newer connection replaces the older one.

One thread, no third-party library: it must start in a moment, stay small, and never be the reason that a task dies.
"""

import contextlib
import fcntl
import gc
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from ostler.runtime import identity
from ostler.runtime.clock import also_asleep
from ostler.runtime.frames import Lines, LineTooLong, pack, unpack
from ostler.runtime.groups import open_groups
from ostler.runtime.journal import Journal
from ostler.runtime.keeper import Keeper
from ostler.runtime.lending import NEVER
from ostler.runtime.processes import open_table

SOCKET, LOCK, LOG = "supervisor.sock", "supervisor.lock", "supervisor.log"
ATTEMPTS, JOURNAL = "attempts", "journal"
SERVING, FAILED, TAKEN = 0, 1, 3
CLEANING_S = 5.0
WRITE_WITHIN_S = 0.05
BREATH_S = 0.1
MAX_UNREAD_BYTES = 64 * 1024 * 1024
_TERMINATE = bytes([signal.SIGTERM])
_READ_BYTES = 1 << 15  # a larger buffer is mapped and unmapped by the kernel each time, which costs more than reading


class Connection:
    """The worker, as long as it is there."""

    def __init__(self, peer: socket.socket) -> None:
        self.socket = peer
        self.lines = Lines()
        self.unsent = bytearray()
        self.is_slow = False

    def read(self) -> list[bytes] | None:
        """Every whole line that has come; None when the other side is gone."""
        lines: list[bytes] = []
        while True:
            try:
                data = self.socket.recv(_READ_BYTES)
            except BlockingIOError:
                return lines
            except OSError:
                return None
            if not data:
                return lines or None
            lines += self.lines.feed(data)
            if len(data) < _READ_BYTES:
                return lines

    def flush(self) -> bool:
        """Send what can be sent now; False when the other side is gone, or reads nothing for far too long."""
        try:
            sent = self.socket.send(self.unsent)
            del self.unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            return False
        return len(self.unsent) <= MAX_UNREAD_BYTES


class Supervisor:
    def __init__(self, keeper: Keeper, listener: socket.socket, signals: int, idle_s: float) -> None:
        self._keeper = keeper
        self._listener = listener
        self._signals = signals
        self._idle_s = idle_s
        self._alone_since = also_asleep()
        self._leaving = False
        self._worker: Connection | None = None
        self._to_forget: dict[str, None] = {}
        self._base: dict[str, str] = {}
        """What the worker last told of its tasks' environments: its orders say what differs from that."""
        self._last: dict[str, Any] = {}
        """The last launch, as it was told: the next may say only what is not as in this one."""
        self._poll = select.poll()
        self._reactions: dict[int, Callable[[], None]] = {}
        self._watch(listener.fileno(), self._accept)
        self._watch(signals, self._take_signals)
        if (answers := keeper.answers_fd) >= 0:
            self._watch(answers, lambda: keeper.hear(also_asleep()))

    def run(self) -> None:
        while not self._is_done(now := also_asleep()):
            try:
                self._turn(self._poll.poll(self._patience_ms(now)))
            except Exception:
                # A mistake in here must not cost anyone their tasks: it is told, and after a breath we go on.
                traceback.print_exc()
                time.sleep(BREATH_S)
        self._keeper.leave()

    def _turn(self, ready: list[tuple[int, int]]) -> None:
        """Everything that has come by now, then one write to the worker."""
        keeper, reactions = self._keeper, self._reactions
        for descriptor, _ in ready:
            # One may have hung up another, so that its descriptor is not there any more.
            if react := reactions.get(descriptor):
                react()
        now = also_asleep()
        if now >= keeper.wake_at:
            keeper.tick(now)
            if peaks := keeper.take_peaks():
                self._say(pack({"is": "peaks", "peaks": peaks}))
            if samples := keeper.take_samples():
                self._say(pack({"is": "samples", "samples": samples}))
        if not ready:
            keeper.flush()
        # Before the ends are told: whoever is told is not idle meanwhile, and one write has both, end and start.
        keeper.start_ready(now)
        self._tell(now)
        # Last: nobody waits for it, and often a start comes in the same breath.
        self._forget()

    def _tell(self, now: float) -> None:
        for end in self._keeper.take_news(now):
            self._say(f'{{"is":"ended","end":{end}}}\n'.encode())
        if self._worker is not None and self._worker.unsent:
            self._flush(self._worker)

    def _forget(self) -> None:
        to_forget, self._to_forget = self._to_forget, {}
        for attempt in to_forget:
            self._keeper.forget(attempt)

    def _patience_ms(self, now: float) -> float | None:
        wake_at = min(self._keeper.wake_at, self._keeper.tell_at)
        if self._keeper.waits:
            wake_at = min(wake_at, now + WRITE_WITHIN_S)
        if self._worker is None and not self._keeper.busy:
            wake_at = min(wake_at, self._alone_since + self._idle_s)
        return None if wake_at == NEVER else max(0.0, (wake_at - now) * 1000)

    def _watch(self, descriptor: int, react: Callable[[], None]) -> None:
        self._reactions[descriptor] = react
        self._poll.register(descriptor, select.POLLIN)

    def _is_done(self, now: float) -> bool:
        if self._keeper.busy:
            return False
        if self._worker is not None:
            return self._leaving and not self._worker.unsent
        return self._leaving or now - self._alone_since >= self._idle_s

    def _take_signals(self) -> None:
        try:
            numbers = os.read(self._signals, 4096)
        except BlockingIOError:
            numbers = b""
        if _TERMINATE in numbers:
            self._leave("shutdown")
        # Any signal may have hidden a SIGCHLD when the buffer was full; asking costs one call.
        self._keeper.reap(also_asleep())

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return
        peer.setblocking(False)
        self._take_orders()  # what the older one said before the newer one came still counts
        if self._worker is not None:
            self._say(pack({"is": "replaced"}))
            self._worker.flush()
            self._hang_up()
        self._worker = Connection(peer)
        self._base, self._last = {}, {}
        self._watch(peer.fileno(), self._take_orders)

    def _hang_up(self) -> None:
        if self._worker is not None:
            self._poll.unregister(self._worker.socket)
            del self._reactions[self._worker.socket.fileno()]
            self._worker.socket.close()
            self._worker = None
            self._keeper.give_up_prepared()
            self._alone_since = also_asleep()

    def _take_orders(self) -> None:
        worker = self._worker
        if worker is None:
            return
        try:
            lines = worker.read()
        except LineTooLong:
            lines = None
        if lines is None:
            self._hang_up()
            return
        for line in lines:
            order: dict[str, Any] = {}
            try:
                order = unpack(line)
                self._obey(order)
            except Exception as error:
                # Whatever is wrong with one order, the tasks of the others must not suffer from it.
                traceback.print_exc()
                # Only one that was not launched has ended by that.
                name = str(order.get("attempt", "")) if order.get("do") == "launch" else ""
                self._say(pack({"is": "refused", "attempt": name, "error": f"{type(error).__name__}: {error}"}))

    def _obey(self, order: dict[str, Any]) -> None:
        now = also_asleep()
        match order["do"]:
            case "base":
                self._base = order["env"]
            case "prepare":
                order["env"] = {**self._base, **order["env"]}
                self._keeper.prepare(order, now)
            case "launch" if not self._leaving:
                if like := order.pop("like", ""):
                    order = self._completed(order, like)
                self._last = {**order}
                order["env"] = env = {**self._base, **order["env"]}
                for name in order.get("without", ()):  # said by a worker of an earlier version
                    del env[name]
                if order["attempt"] in self._to_forget:
                    self._forget()
                self._keeper.launch(order, now)
            case "stop":
                self._keeper.stop(order["attempt"], order["reason"], order["grace_s"], now)
            case "beside":
                # Not called `attempt`: whatever is wrong with this order, it is not the attempt that has failed.
                error = self._keeper.beside(order["of"], order["argv"], order["env"], now)
                self._say(pack({"is": "beside", "key": order["key"], "error": error}))
            case "call_back":
                self._keeper.call_back(order["attempt"], order["reason"], now)
            case "renew":
                self._keeper.renew(order.get("at", now - order["age_s"]), now)
            case "forget":
                for attempt in order.get("attempts") or (order["attempt"],):
                    self._to_forget[attempt] = None
            case "list":
                self._forget()
                self._say(pack(self._all_held()))
            case "shutdown":
                self._leave(order["reason"])
            case other:
                raise ValueError(f"cannot {other!r} now")

    def _completed(self, order: dict[str, Any], like: str) -> dict[str, Any]:
        """A launch that says only what is not as in the one before it."""
        if self._last.get("attempt") != like:
            raise ValueError(f"nothing is known of {like!r}, which this launch is to be like")
        return {**self._last, **order, "env": {**self._last["env"], **order["env"]}}

    def _all_held(self) -> dict[str, Any]:
        keeper = self._keeper
        can = {"prepares": True, "likens": True}
        return {"is": "held", "held": keeper.held(), "attempts": keeper.folder, **can}

    def _leave(self, reason: str) -> None:
        self._leaving = True
        self._keeper.stop_all(reason, also_asleep())

    def _say(self, line: bytes) -> None:
        if self._worker is not None:
            self._worker.unsent += line

    def _flush(self, worker: Connection) -> None:
        if not worker.flush():
            self._hang_up()
        elif worker.is_slow != bool(worker.unsent):
            # One that does not read is waited for; this is called again as soon as it does.
            worker.is_slow = bool(worker.unsent)
            self._poll.modify(worker.socket, select.POLLIN | (select.POLLOUT if worker.is_slow else 0))


def serve(folder: str, attempts: str, idle_s: float, ready: Callable[[], None]) -> int:
    os.makedirs(attempts, 0o700, exist_ok=True)
    os.chdir(folder)
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return TAKEN
    os.truncate(lock, 0)
    os.write(lock, b"%d\n" % os.getpid())
    signals = _catch_signals()
    identity.keep_to_itself()
    identity.give_up_more()
    table = open_table()
    keeper = Keeper(attempts, Journal(f"{folder}/{JOURNAL}", table.boot), table)
    _clean(keeper)
    keeper.groups = open_groups()
    keeper.groups.clean()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(SOCKET)  # of one that was killed: the lock says that nobody serves it
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        # By its short name, from inside the folder: a socket's path may have no more than about 100 bytes.
        listener.bind(SOCKET)
        os.chmod(SOCKET, 0o600)
        listener.listen()
        listener.setblocking(False)
        _be_quiet()
        gc.freeze()  # what is there now stays; looking through it again and again would cost a tenth of a short task
        ready()
        try:
            Supervisor(keeper, listener, signals, idle_s).run()
        finally:
            os.unlink(f"{folder}/{SOCKET}")
    return SERVING


def _clean(keeper: Keeper) -> None:
    """What a killed supervisor left is gone before anyone is served, unless it will not die in reasonable time."""
    keeper.recover(start := also_asleep())
    while keeper.busy and (now := also_asleep()) < start + CLEANING_S:
        if now >= keeper.wake_at:
            keeper.tick(now)
        else:
            time.sleep(keeper.wake_at - now)
    keeper.take_news()


def _catch_signals() -> int:
    """Handlers that do nothing, and a pipe that tells. Ignored signals would stay ignored in the tasks."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return reader


def _be_quiet() -> None:
    """Let go of the starter's output; what goes wrong from now on is in the folder's own log."""
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(null)
    os.close(log)


def main(arguments: list[str]) -> int:
    options = dict(zip(arguments[::2], arguments[1::2], strict=False))
    if "--folder" not in options or not options.keys() <= {"--folder", "--idle-s", "--attempts"}:
        usage = "usage: python -m ostler.runtime.supervisor --folder DIR [--idle-s SECONDS] [--attempts DIR]"
        print(usage, file=sys.stderr)
        return 2
    reader, writer = os.pipe()
    if os.fork():
        # Leaves when the child says that it serves, so that nobody ever waits for the supervisor as for a child.
        os.close(writer)
        told = os.read(reader, 1)
        return told[0] if told else FAILED
    os.close(reader)
    os.setsid()

    def tell(code: int) -> None:
        os.write(writer, bytes([code]))
        os.close(writer)

    folder = os.path.abspath(options["--folder"])
    attempts = options.get("--attempts") or f"{folder}/{ATTEMPTS}"
    code = serve(folder, attempts, float(options.get("--idle-s", "60")), lambda: tell(SERVING))
    if code != SERVING:
        tell(code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
