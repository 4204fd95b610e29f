"""Commands beside tasks: each is a process of its task's, and speaks to this worker over a socket of its own.

The supervisor starts `ostler.task.beside` in the task's folder, with its environment, as its user, in its group.
That one comes to the socket with a key that nobody else was given; what it says and hears is none of the worker's.
"""

import asyncio
import contextlib
import secrets
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from ostler import config
from ostler.wire.beside import VARIABLE

COMES_S = 20.0
"""For the process to come to the socket: a machine under load takes its time to start an interpreter."""
PIECE = 64 * 1024
KEY_BYTES = 32
PROGRAM = ["-I", "-m", "ostler.task.beside"]

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Start = Callable[[str, list[str], dict[str, str]], Awaitable[str]]
"""Of an attempt, a command, and what its environment has beside the task's: what kept it from starting."""


class NotStarted(Exception):
    """There is nothing to speak to: the text says why."""


async def begin(attempt: str, start: Start) -> Streams:
    """The connection of a new process beside this attempt's own."""
    key = secrets.token_hex(KEY_BYTES // 2)
    came: asyncio.Future[Streams] = asyncio.get_running_loop().create_future()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            if secrets.compare_digest(await reader.readexactly(KEY_BYTES), key.encode()) and not came.done():
                came.set_result((reader, writer))
                return
        writer.close()

    with _meeting_place() as path:
        server = await asyncio.start_unix_server(meet, path, limit=PIECE)
        path.chmod(0o666)  # the key decides who may speak; the process may be another user's
        try:
            error = await start(attempt, [sys.executable, *PROGRAM], {VARIABLE: f"{key}:{path}"})
            if error:
                raise NotStarted(error)
            async with asyncio.timeout(COMES_S):
                return await came
        except TimeoutError:
            told = f"the command did not begin within {COMES_S:g} s; can the task's user run {sys.executable}?"
            raise NotStarted(told) from None
        finally:
            server.close()


@contextlib.contextmanager
def _meeting_place() -> Iterator[Path]:
    """A path in a folder that other users pass through and cannot list."""
    folder = config.make_socket_folder()
    try:
        folder.chmod(0o711)
        yield folder / "beside"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
