"""The way to a model on another machine: a port of this machine's loopback, each of whose connections is joined to one
that the worker there opens on request. Model servers never listen to the network."""

import asyncio
from collections.abc import Callable

from ostler.hub.relays import PIECE, Relays, Target


class Bridge:
    """`target` says where the model's process is now; None: nowhere."""

    def __init__(self, relays: Relays, target: Callable[[], Target | None]) -> None:
        self._relays = relays
        self._target = target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> int:
        """The port."""
        self._server = await asyncio.start_server(self._joined, "127.0.0.1", 0, limit=PIECE)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.close()

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            target = self._target()
            if target is not None:
                await self._relays.join(target, reader, writer)
        finally:
            self._writers.discard(writer)
            writer.close()
