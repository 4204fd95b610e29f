"""The hub's HTTP as a worker uses it: logs and blobs go there. Everything small goes over the socket."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import IO

import aiohttp
import msgspec

from ostler.worker.credentials import Credentials

UPLOADS_AT_ONCE = 8
REQUEST_S = 60.0
SILENT_S = 30.0
CONNECT_S = 10.0
MAX_RELAYED_BYTES = 4 * 1024 * 1024
"""In one frame of a relay."""


class Unreachable(Exception):
    """The hub did not answer, or not as it should; later it may."""


class Declined(Exception):
    """The hub answered that it will not have this, now or later."""


class Missing(Declined):
    """The hub has nothing of that name."""


class LogSize(msgspec.Struct):
    """How much of a log the hub has. `taken` is False if it was more or less than the worker thought."""

    size: int
    taken: bool = True


class HubApi:
    def __init__(self, session: aiohttp.ClientSession, hub: str, credentials: Credentials) -> None:
        self._session = session
        self._hub = hub
        self._credentials = credentials
        self._room = asyncio.Semaphore(UPLOADS_AT_ONCE)

    async def post_log(
        self, task_id: str, attempt: str, offset: int, data: bytes, *, final: bool = False, gap: int = 0
    ) -> LogSize:
        """Append to the hub's copy of a log."""
        params = {"attempt": attempt, "offset": str(offset)}
        if final:
            params["final"] = "1"
        if gap:
            params["gap"] = str(gap)
        async with self._room:
            status, body = await self._request("POST", f"/v1/tasks/{task_id}/logs", params=params, data=data)
        if status == 409:
            return LogSize(_size(body), taken=False)
        _check(status, body)
        return LogSize(_size(body))

    async def put_blob(self, sha256: str, path: Path) -> None:
        async with self._room:
            with path.open("rb") as file:
                status, body = await self._request("PUT", f"/v1/snapshots/{sha256}", data=file, total_s=None)
        _check(status, body)

    async def get_blob(self, sha256: str, target: Path, max_bytes: int = 1 << 62) -> None:
        """Fetch a blob to this file; it is there only once it is whole and its hash is right."""
        part = target.with_name(f".{target.name}.part")
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S)
        digest = hashlib.sha256()
        try:
            async with self._session.get(
                f"{self._hub}/v1/snapshots/{sha256}", headers=self._credentials.headers(), timeout=timeout
            ) as answer:
                if answer.status != 200:
                    _check(answer.status, await answer.read())
                    raise Unreachable(f"the hub answered {answer.status}")
                with part.open("wb") as file:
                    async for piece in answer.content.iter_chunked(1 << 18):
                        digest.update(piece)
                        if file.tell() + len(piece) > max_bytes:
                            raise Declined(f"it has more than {max_bytes} bytes")
                        file.write(piece)
            if digest.hexdigest() != sha256:
                raise Declined(f"what the hub has as {sha256} is something else")
            part.replace(target)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        finally:
            part.unlink(missing_ok=True)

    async def open_relay(self, relay_id: str) -> aiohttp.ClientWebSocketResponse:
        """The hub's end of one call of a service."""
        try:
            async with asyncio.timeout(CONNECT_S):
                return await self._session.ws_connect(
                    f"{self._hub}/v1/ws/relay/{relay_id}",
                    headers=self._credentials.headers(),
                    compress=0,
                    max_msg_size=MAX_RELAYED_BYTES,
                    timeout=aiohttp.ClientWSTimeout(ws_close=SILENT_S),
                )
        except aiohttp.WSServerHandshakeError as error:
            raise Declined(f"the hub answered {error.status}") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error

    async def _request(
        self,
        method: str,
        path: str,
        *,
        data: bytes | IO[bytes],
        params: dict[str, str] | None = None,
        total_s: float | None = REQUEST_S,
    ) -> tuple[int, bytes]:
        timeout = aiohttp.ClientTimeout(total=total_s, sock_connect=CONNECT_S, sock_read=SILENT_S)
        headers = {**self._credentials.headers(), "Content-Type": "application/octet-stream"}
        try:
            async with self._session.request(
                method, self._hub + path, params=params, data=data, headers=headers, timeout=timeout
            ) as answer:
                return answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error


def _check(status: int, body: bytes) -> None:
    if status < 300:
        return
    if status >= 500 or status in (408, 429):
        raise Unreachable(f"the hub answered {status}")
    text = f"the hub answered {status}: {_detail(body)}"
    raise Missing(text) if status == 404 else Declined(text)


def _detail(body: bytes) -> str:
    try:
        problem = json.loads(body)
        return str(problem.get("detail") or problem.get("title"))
    except (ValueError, AttributeError):
        return body[:200].decode(errors="replace")


def _size(body: bytes) -> int:
    try:
        return int(json.loads(body)["size"])
    except (ValueError, KeyError, TypeError):
        raise Declined("the hub does not say how much of the log it has") from None
