"""Bytes between this machine and the store, past the hub, at addresses that the hub hands out. No token goes there."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import msgspec
from yarl import URL

from ostler.runtime.attempts import open_plain
from ostler.runtime.identity import as_owner
from ostler.wire.direct import Piece, Plan

PIECE = 256 * 1024
CONNECT_S, SILENT_S, STORED_S = 10.0, 30.0, 300.0
TRIES = 3
"""Without anything having come through: then the hub is asked to pass the bytes on."""
ASK_AGAIN_S = 600.0
"""A hub that has no such store is not asked again for so long."""
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=STORED_S)


class NotReached(Exception):
    """The store cannot be reached from here, or does not do what the hub says that it does."""


_plan_of = msgspec.json.Decoder(Plan).decode


def read_plan(body: bytes) -> Plan:
    """Of one who answers something else it is taken that it passes all bytes on."""
    try:
        return _plan_of(body)
    except msgspec.DecodeError:
        return Plan(direct=False, whole=False, size=0, pieces=[])


class Without:
    """Hubs that pass all bytes on themselves."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, hub: str) -> None:
        self._until[hub] = asyncio.get_running_loop().time() + ASK_AGAIN_S

    def __contains__(self, hub: str) -> bool:
        return asyncio.get_running_loop().time() < self._until.get(hub, 0.0)


async def put(piece: Piece, file: Path, moved: Callable[[int], None]) -> None:
    """These bytes of the file. Takes as long as it takes, but no part of it may take long."""
    clock = asyncio.get_running_loop().time

    async def body() -> AsyncIterator[bytes]:
        with as_owner(file.parent):
            opened = open_plain(file)
        with opened as source:
            source.seek(piece.first)
            left = piece.end - piece.first
            while left and (data := await asyncio.to_thread(source.read, min(PIECE, left))):
                left -= len(data)
                yield data
                moved(len(data))
                limit.reschedule(clock() + SILENT_S)
        limit.reschedule(None)

    try:
        async with asyncio.timeout(CONNECT_S + SILENT_S) as limit, aiohttp.ClientSession(timeout=TIMEOUT) as session:
            address = URL(piece.url, encoded=True)
            async with session.put(address, data=body(), headers=piece.headers) as answer:
                if answer.status >= 300:
                    raise NotReached(f"the store answered {answer.status}: {(await answer.text())[:200]}")
    except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
        raise NotReached(str(error) or type(error).__name__) from error


async def pieces_at(url: str) -> AsyncIterator[bytes]:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(URL(url, encoded=True)) as answer:
            if answer.status != 200:
                raise NotReached(f"the store answered {answer.status}")
            async for piece in answer.content.iter_chunked(PIECE):
                yield piece
    except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
        raise NotReached(str(error) or type(error).__name__) from error
