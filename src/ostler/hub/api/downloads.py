"""Stored bytes on their way to whoever asks."""

import os
from collections.abc import Mapping
from typing import BinaryIO

from starlette.responses import FileResponse
from starlette.types import Receive, Scope, Send

from ostler.domain.errors import NotFound
from ostler.store.blobs import Objects


class Download(FileResponse):
    """Of a file that is open before anything is answered: one that is removed meanwhile is sent all the same."""

    chunk_size = 1024 * 1024
    """A hop to a thread for every chunk: with the usual small ones a download waits for little else."""

    def __init__(self, file: BinaryIO, headers: Mapping[str, str] | None = None) -> None:
        status = os.fstat(file.fileno())
        path = f"/dev/fd/{file.fileno()}"
        super().__init__(path, headers=headers, media_type="application/octet-stream", stat_result=status)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)


def download(objects: Objects, sha256: str, headers: Mapping[str, str] | None = None) -> Download:
    """NotFound where it is not."""
    path = objects.path(sha256)
    try:
        return Download(path.open("rb"), headers)
    except FileNotFoundError:
        raise NotFound(f"there is no {sha256} any more") from None
