"""Stored bytes on their way to whoever asks: sent from here, or told where they are to be had past the hub."""

import os
import re
from collections.abc import AsyncIterator, Mapping
from typing import IO

from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ostler.store.base import Shelf, missing
from ostler.store.folder import Folder
from ostler.store.streaming import STORE, in_thread

PIECE = 1024 * 1024
DIRECT = "direct"
"""In the query: whoever asks can go to another address for the bytes."""
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})", re.ASCII)


class Download(FileResponse):
    """Of a file that is open before anything is answered: one that is removed meanwhile is sent all the same."""

    chunk_size = PIECE
    """A hop to a thread for every chunk: with the usual small ones a download waits for little else."""

    def __init__(self, file: IO[bytes], headers: Mapping[str, str] | None = None) -> None:
        status = os.fstat(file.fileno())
        path = f"/dev/fd/{file.fileno()}"
        super().__init__(path, headers=headers, media_type="application/octet-stream", stat_result=status)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)


async def download(shelf: Shelf, sha256: str, request: Request, headers: Mapping[str, str] | None = None) -> Response:
    """NotFound where it is not."""
    if isinstance(shelf, Folder):
        return Download(shelf.open(sha256), headers)
    file = await in_thread(STORE, shelf.open, sha256)
    if request.query_params.get(DIRECT) == "1" and (url := await in_thread(STORE, shelf.link, sha256)):
        file.close()
        return RedirectResponse(url, 307, {"Cache-Control": "no-store"})
    if (stored := shelf.look(sha256)) is None:
        file.close()
        raise missing(shelf.called, sha256)  # somebody has removed it meanwhile
    return _relayed(file, stored.size, request, dict(headers or {}))


def _relayed(file: IO[bytes], size: int, request: Request, headers: dict[str, str]) -> Response:
    """From a store that the hub reads for whoever cannot."""
    asked = _RANGE.fullmatch(request.headers.get("range", ""))
    first, end = (int(asked[1]), min(int(asked[2] or size), size - 1) + 1) if asked is not None else (0, size)
    headers |= {"Accept-Ranges": "bytes", "Content-Length": str(end - first)}
    if asked is not None and not first < end:
        file.close()
        return Response(status_code=416, headers={"Content-Range": f"bytes */{size}"})
    if asked is not None:
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{size}"
    status = 200 if asked is None else 206
    if request.method == "HEAD":
        file.close()
        return Response(status_code=status, headers=headers, media_type="application/octet-stream")
    return StreamingResponse(_pieces(file, first, end), status, headers, "application/octet-stream")


async def _pieces(file: IO[bytes], first: int, end: int) -> AsyncIterator[bytes]:
    try:
        await in_thread(STORE, file.seek, first)
        while first < end and (piece := await in_thread(STORE, file.read, min(PIECE, end - first))):
            first += len(piece)
            yield piece
    finally:
        await in_thread(STORE, file.close)
