"""Work on a copy of this process: it is there at once, and whatever is done to it is nobody's loss.

A fork costs the loop about a millisecond; the copy shares all memory until one side writes to it. It has one thread,
closes what it has open but the way back, runs at low priority and lives for some seconds at most.
"""

import asyncio
import contextlib
import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable
from threading import Thread

from ostler.domain.errors import OstlerError

NICE = 5
READ_AHEAD = 1024 * 1024
_LENGTH = 4

Send = Callable[[bytes], None]
Work = Callable[[Send], None]


class CopyFailed(OstlerError):
    """The copy could not be made, or ended before it had answered."""

    status = 503
    title = "no answer"


def tried(work: Callable[[], bool]) -> bool:
    """What this comes to on a copy. Blocks until it is done: for copies themselves, not for the loop."""
    pid = _fork()
    if pid == 0:
        code = 2
        try:
            code = int(not work())
        except BrokenPipeError:
            code = 3
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 3:
        raise BrokenPipeError  # nobody listens any more, here neither
    if code not in (0, 1):
        raise CopyFailed("a copy of the hub failed while it tried something; its log says why")
    return code == 0


def told(work: Callable[[], bytes]) -> bytes:
    """The same for what is more than yes or no."""
    reading, writing = os.pipe()

    def answer() -> bool:
        with os.fdopen(writing, "wb") as back:
            back.write(work())
        return True

    pid = _fork()
    if pid == 0:
        os._exit(0 if _done(answer) else 2)
    os.close(writing)
    with os.fdopen(reading, "rb") as back:
        found = back.read()
    _reap(pid)
    return found


def _done(work: Callable[[], bool]) -> bool:
    try:
        return work()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return False


class Copy:
    """A copy at work from here on. Whoever made it reads what it sends, and closes it."""

    def __init__(self, work: Work, cpu_s: int) -> None:
        self._stream: asyncio.StreamReader | None = None
        self._transport: asyncio.BaseTransport | None = None
        self._reading, writing = os.pipe()
        try:
            self._pid = _fork()
        except OSError as error:
            os.close(self._reading)
            raise CopyFailed(f"the hub could not be copied to look ahead: {error.strerror}; ask again later") from None
        finally:
            if getattr(self, "_pid", 1):
                os.close(writing)
        if self._pid == 0:
            _live(work, writing, cpu_s)
        _lead_group(self._pid)

    async def next(self) -> bytes | None:
        """The next that it sends; None: it has said all."""
        if self._stream is None:
            self._stream = asyncio.StreamReader(limit=READ_AHEAD)
            reader = asyncio.StreamReaderProtocol(self._stream)
            pipe = os.fdopen(self._reading, "rb", 0)
            self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: reader, pipe)
        try:
            size = int.from_bytes(await self._stream.readexactly(_LENGTH), "big")
            return await self._stream.readexactly(size)
        except asyncio.IncompleteReadError:
            return None

    def close(self) -> None:
        """Nobody listens any more: it is killed with the copies that it made, if they are still there."""
        if self._transport is not None:
            self._transport.close()
        elif self._stream is None:
            os.close(self._reading)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)
        Thread(target=_reap_group, args=(self._pid,), name="reaper", daemon=True).start()


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _lead_group(pid: int) -> None:
    """Said on both sides, so that it is so on both from then on."""
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)


def _reap_group(pid: int) -> None:
    """A hub that is a container's first process inherits what its copies leave behind."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-pid, 0)


def _fork() -> int:
    if not hasattr(os, "fork"):
        raise CopyFailed("a hub on this system cannot look ahead: it needs fork")
    with warnings.catch_warnings():
        # The other threads stay behind with whatever they hold: the copy touches neither the ledger nor sockets.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _live(work: Work, writing: int, cpu_s: int) -> None:
    """The copy's whole life."""
    try:
        gc.disable()
        _lead_group(os.getpid())
        _let_go(writing, cpu_s)

        def send(frame: bytes) -> None:
            data = len(frame).to_bytes(_LENGTH, "big") + frame
            while data:
                data = data[os.write(writing, data) :]

        work(send)
    except BrokenPipeError:
        pass  # nobody listens any more
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _let_go(writing: int, cpu_s: int) -> None:
    """Nothing of the hub is the copy's: neither its sockets nor its signals."""
    import resource  # not there on Windows, where there are no copies either

    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    os.closerange(3, writing)
    os.closerange(writing + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    os.nice(NICE)
    signal.alarm(4 * cpu_s)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
