"""Where connections that are to speak TLS wait for their handshake: counted like any other from their first moment, and
with as little time as a request has for its head. Whoever opens thousands and says nothing leaves room for others."""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Collection

from ostler.hub.door import HEAD_S, Line

AT_ONCE = 128
"""Taken from the kernel before anything else is done."""
NO_ROOM_S = 1.0
"""How long nobody is let in when the system has no room for another file."""
OUT_OF_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Vestibule:
    """Before a listener, in place of one of asyncio's servers."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        line: Line,
        inside: Collection[object],
        door: Callable[[], asyncio.Protocol],
    ) -> None:
        self._listener = listener
        self._context = context
        self._line = line
        self._inside = inside
        """The connections that have shaken hands."""
        self._door = door
        self._shaking: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._listen()

    def _listen(self) -> None:
        self._loop.add_reader(self._listener.fileno(), self._let_in)

    def _let_in(self) -> None:
        for _ in range(AT_ONCE):
            try:
                came, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in OUT_OF_ROOM:
                    raise
                self._loop.remove_reader(self._listener.fileno())
                self._pause = self._loop.call_later(NO_ROOM_S, self._listen)
                return
            if not self._line.has_room(len(self._inside) + len(self._shaking)):
                came.close()
                continue
            came.setblocking(False)
            shaking = self._loop.create_task(self._shake_hands(came))
            self._shaking.add(shaking)
            shaking.add_done_callback(self._shaking.discard)

    async def _shake_hands(self, came: socket.socket) -> None:
        """Who speaks something else, says nothing or does not trust this hub is gone when this has ended."""
        with contextlib.suppress(OSError, TimeoutError):  # ssl's errors are among the former
            await self._loop.connect_accepted_socket(self._door, came, ssl=self._context, ssl_handshake_timeout=HEAD_S)

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener.fileno())
        for shaking in self._shaking:
            shaking.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._shaking, return_exceptions=True)
