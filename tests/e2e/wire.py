"""A stretch of network between a worker and its hub, which can fall silent in each direction, and break."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable

PIECE = 64 * 1024
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER for no time at all: a close becomes a reset."""


class Wire:
    """Listens for the worker, and goes on to the hub. Its own thread carries the bytes."""

    def __init__(self, hub_url: str) -> None:
        self._hub_port = int(hub_url.rpartition(":")[2])
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_cut = False
        self.passed = 0
        """Bytes, in both directions."""
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire", daemon=True)
        self._thread.start()
        self._do(self._begin)

    async def _begin(self) -> None:
        self._open = {"up": asyncio.Event(), "down": asyncio.Event()}
        for direction in self._open.values():
            direction.set()
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    # What a test does to it

    def silence(self, *directions: str) -> None:
        """Nothing goes `up` to the hub, or `down` to the worker, from now on; every connection stays open, and new ones
        are taken."""
        for direction in directions:
            self._do(lambda direction=direction: self._shut(direction))

    def cut(self) -> None:
        """Every connection is reset, and so is every new one."""
        self._do(self._cut)

    def heal(self) -> None:
        """What was held back arrives, as it does when packets are sent again and again."""
        self._do(self._heal)

    def close(self) -> None:
        self._do(self._end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def _do(self, act: "Callable[[], object]") -> None:
        async def doing() -> None:
            done = act()
            if asyncio.iscoroutine(done):
                await done

        asyncio.run_coroutine_threadsafe(doing(), self._loop).result(60)

    # In its thread

    def _shut(self, direction: str) -> None:
        self._open[direction].clear()

    def _cut(self) -> None:
        self._is_cut = True
        for writer in list(self._writers):
            _reset(writer)

    def _heal(self) -> None:
        self._is_cut = False
        for direction in self._open.values():
            direction.set()

    async def _end(self) -> None:
        self._server.close()
        self._cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            if self._is_cut:
                _reset(writer)
                return
            hub_reader, hub_writer = await asyncio.open_connection("127.0.0.1", self._hub_port)
            self._writers.add(hub_writer)
            try:
                await asyncio.gather(
                    self._pump(reader, hub_writer, self._open["up"]),
                    self._pump(hub_reader, writer, self._open["down"]),
                )
            finally:
                self._writers.discard(hub_writer)
                hub_writer.close()
        except OSError:
            return
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, open: asyncio.Event) -> None:
        while True:
            data = await reader.read(PIECE)
            await open.wait()
            if not data:
                with contextlib.suppress(OSError):
                    writer.write_eof()
                return
            self.passed += len(data)
            writer.write(data)
            await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    plug = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
