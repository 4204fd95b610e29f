"""Bytes between here and the hub's store, past the hub, at addresses that it hands out. No token goes there; where the
store cannot be reached from here, the hub passes the bytes on."""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO

import msgspec
import urllib3
from urllib3.exceptions import HTTPError

from ostler.client.errors import NotFound
from ostler.client.transport import CONNECT_S, SEND_BYTES, Transport
from ostler.wire.direct import Piece, Plan

SMALL_BYTES = 1024 * 1024
"""What is smaller goes through the hub: there it takes one request."""
STORED_S = 300.0
TRIES = 3
"""Without anything having come through."""
ASKED = {"direct": 1}
"""In the query of whoever can go elsewhere for the bytes."""

Progress = Callable[[int, int], None]
_log = logging.getLogger("ostler.client")


def bring(transport: Transport, path: str, file: BinaryIO, size: int, progress: Progress | None) -> bool:
    """False: the hub is to pass it on."""
    have, failures = -1, 0
    while size > SMALL_BYTES and failures < TRIES:
        try:
            query = {"size": size}
            answer = transport.request("POST", f"{path}/direct", query=query, body=b"", insist=True, read_s=STORED_S)
            plan = msgspec.json.decode(answer.body, type=Plan)
        except (NotFound, msgspec.DecodeError):  # a hub that knows nothing of this
            return False
        if plan.whole or not plan.direct:
            return plan.whole
        have, failures = plan.size, 0 if plan.size > have else failures + 1
        try:
            _send(plan.pieces, file, size, progress)
        except HTTPError as error:
            _log.info("%s was not brought past the hub: %s", path, error)
    return False


def followed(response: urllib3.BaseHTTPResponse, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse | None:
    """The answer of whoever the hub points to; None: there is none to be had, so the hub is asked again."""
    if response.status != 307:
        return response
    address = response.headers.get("Location", "")
    response.release_conn()
    try:
        found = _pool(STORED_S).request("GET", address, headers=dict(headers), preload_content=False)
    except HTTPError as error:
        _log.info("the store cannot be reached from here: %s", error)
        return None
    if found.status not in (200, 206):
        found.close()
        return None
    return found


def _send(pieces: list[Piece], file: BinaryIO, size: int, progress: Progress | None) -> None:
    for piece in pieces:
        answer = _pool(STORED_S).request(
            "PUT", piece.url, body=_body(piece, file, size, progress), headers=piece.headers
        )
        if answer.status >= 300:
            raise HTTPError(f"the store answered {answer.status}")


def _body(piece: Piece, file: BinaryIO, size: int, progress: Progress | None) -> Iterator[bytes]:
    file.seek(piece.first)
    done = piece.first
    while done < piece.end and (data := file.read(min(SEND_BYTES, piece.end - done))):
        yield data
        done += len(data)
        if progress is not None:
            progress(done, size)


def _pool(read_s: float) -> urllib3.PoolManager:
    return urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(connect=CONNECT_S, read=read_s))
