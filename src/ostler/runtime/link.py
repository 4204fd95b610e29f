"""The worker's end of the line to its supervisor: find it or start it, connect, send and receive."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec

import ostler
from ostler.runtime.frames import Lines, LineTooLong, pack
from ostler.runtime.supervisor import SERVING, SOCKET, TAKEN

START_S = 30.0
UNHURRIED_S = 0.002
"""What nobody waits for leaves this much later, or with the next order that somebody does wait for: every write wakes
the supervisor, which costs more than most orders do."""
_encode = msgspec.json.Encoder().encode
_LONGEST_SOCKET_PATH = 100


class SupervisorUnreachable(Exception):
    """The supervisor of this folder cannot be started or does not answer: its operator looks at supervisor.log."""


class Link(asyncio.Protocol):
    """One connection. The first that is sent in a turn of the loop leaves at once, with all that was sent before it;
    the others of that turn leave together, and the unhurried later."""

    def __init__(self, on_line: Callable[[bytes], None], on_lost: Callable[["Link"], None]) -> None:
        self._on_line = on_line
        self._on_lost = on_lost
        self._lines = Lines()
        self._waiting: list[bytes] = []
        self._flushing = False
        self._transport: asyncio.Transport | None = None
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            lines = self._lines.feed(data)
        except LineTooLong:
            self.close()
            return
        for line in lines:
            self._on_line(line)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._waiting.clear()
        if not self.lost.done():
            self.lost.set_result(None)
        self._on_lost(self)

    def send(self, message: dict[str, Any], *, unhurried: bool = False) -> None:
        if unhurried and not self._waiting:
            asyncio.get_running_loop().call_later(UNHURRIED_S, self.flush)
        is_first = not unhurried and not self._flushing
        try:
            self._waiting.append(_encode(message) + b"\n")
        except UnicodeEncodeError:  # bytes that are no text
            self._waiting.append(pack(message))
        if is_first:
            self.flush()
            self._flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        self._flushing = False
        if self._transport is not None and self._waiting:
            self._transport.write(b"".join(self._waiting))
        self._waiting.clear()

    def close(self) -> None:
        self.flush()
        if self._transport is not None:
            self._transport.close()


async def reach(folder: Path, attempts: Path, idle_s: float, make: Callable[[], Link]) -> Link:
    """Connect to the folder's supervisor; start one where none answers."""
    give_up_at = time.monotonic() + START_S
    while True:
        try:
            peer = _connect(folder / SOCKET)
        except (FileNotFoundError, ConnectionRefusedError):
            # None there, or a socket that a killed one left behind.
            started = await asyncio.to_thread(_start, folder, attempts, idle_s)
        else:
            _, link = await asyncio.get_running_loop().create_unix_connection(make, sock=peer)
            return link
        if not started:
            # Another one holds the folder but does not listen: it is just starting, or just leaving.
            if time.monotonic() > give_up_at:
                raise SupervisorUnreachable(f"the supervisor of {folder} holds its lock but does not listen")
            await asyncio.sleep(0.02)


def _connect(path: Path) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.setblocking(False)
        if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
            peer.connect(os.fspath(path))
            return peer
        # A socket's path has room for about 100 bytes; a link in a private folder makes a long one short.
        with tempfile.TemporaryDirectory(prefix="ostler-", dir="/tmp") as short:
            os.symlink(path.parent.absolute(), f"{short}/d")
            peer.connect(f"{short}/d/{path.name}")
        return peer
    except BaseException:
        peer.close()
        raise


def _start(folder: Path, attempts: Path, idle_s: float) -> bool:
    """Start one; False if another has the folder. Returns when it serves: everything left over is cleaned by then."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    source = Path(ostler.__file__).parent.parent
    # Nothing of the worker's own Python settings: only where this very package is. It needs no other.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [sys.executable, "-SsP", "-m", "ostler.runtime.supervisor", "--folder", os.fspath(folder)]
    try:
        done = subprocess.run(
            [*command, "--idle-s", str(idle_s), "--attempts", os.fspath(attempts)],
            env={**env, "PYTHONPATH": os.fspath(source)},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            start_new_session=True,
            timeout=START_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SupervisorUnreachable(f"the supervisor of {folder} did not start within {START_S:.0f} s") from error
    if done.returncode not in (SERVING, TAKEN):
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise SupervisorUnreachable(f"the supervisor of {folder} did not start: {said}")
    return done.returncode == SERVING


async def gone(link: Link, timeout_s: float) -> bool:
    """Wait until the other side has hung up; False if it did not in this time."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(link.lost), timeout_s)
    return link.lost.done()
