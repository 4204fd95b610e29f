"""Bytes between here and the hub's store, past the hub, at addresses that it hands out. No token goes there; where the
store cannot be reached from here, the hub passes the bytes on."""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO
from urllib.parse import urlsplit

import msgspec

from ostler.client.connections import SEND_BYTES, Pool, Response, WireError
from ostler.client.errors import NotFound
from ostler.client.transport import CONNECT_S, Transport
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
        except (WireError, ValueError) as error:
            _log.info("%s was not brought past the hub: %s", path, error)
    return False


def followed(response: Response, headers: Mapping[str, str]) -> Response | None:
    """The answer of whoever the hub points to; None: there is none to be had, so the hub is asked again."""
    if response.status != 307:
        return response
    address = response.headers.get("Location", "")
    response.close()
    try:
        found = _asked("GET", address, headers)
    except (WireError, ValueError) as error:
        _log.info("the store cannot be reached from here: %s", error)
        return None
    if found.status not in (200, 206):
        found.close()
        return None
    return found


def _send(pieces: list[Piece], file: BinaryIO, size: int, progress: Progress | None) -> None:
    for piece in pieces:
        with _asked("PUT", piece.url, piece.headers, _body(piece, file, size, progress)) as answer:
            if answer.status >= 300:
                raise WireError(f"the store answered {answer.status}")


def _body(piece: Piece, file: BinaryIO, size: int, progress: Progress | None) -> Iterator[bytes]:
    file.seek(piece.first)
    done = piece.first
    while done < piece.end and (data := file.read(min(SEND_BYTES, piece.end - done))):
        yield data
        done += len(data)
        if progress is not None:
            progress(done, size)


def _asked(method: str, url: str, headers: Mapping[str, str], body: Iterator[bytes] | None = None) -> Response:
    """By a connection of its own, to whoever has the bytes."""
    parts = urlsplit(url)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    pool = Pool(f"{parts.scheme}://{parts.netloc}", kept=0)
    return pool.request(method, target, body=body, headers=headers, connect_s=CONNECT_S, read_s=STORED_S)
