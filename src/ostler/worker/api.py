"""The hub's HTTP as a worker uses it: logs, blobs and outputs go there. Everything small goes over the socket."""

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import aiohttp
import msgspec

from ostler.domain.hubs import Addresses
from ostler.runtime.attempts import open_plain
from ostler.runtime.identity import as_owner
from ostler.tls import Trust
from ostler.worker import direct
from ostler.worker.credentials import Credentials
from ostler.worker.tunnel import Side, beside, open_tunnel

UPLOADS_AT_ONCE = 8
FILES_AT_ONCE = 4
REQUEST_S = 60.0
SILENT_S = 30.0
CONNECT_S = 10.0
STORED_S = 300.0
"""A hub that has been sent a large file may have to wait for its disk before it answers."""
PIECE = 256 * 1024
SMALL_BYTES = 1024 * 1024
"""What is smaller is not worth the question whether the hub has it already, or where else it could go."""
SNAPSHOT_BLOBS, CHECKPOINT_BLOBS = "/v1/snapshots", "/v1/checkpoints"
"""Where blobs are: those that clients bring and functions leave, and those that tasks go on from."""
MAX_RELAYED_BYTES = 4 * 1024 * 1024
"""In one frame of a relay."""


SAY_AGAIN_S = (1.0, 5.0, 30.0, 120.0)
SMALL = aiohttp.ClientTimeout(total=REQUEST_S, sock_connect=CONNECT_S, sock_read=SILENT_S)
_log = logging.getLogger("ostler.worker")
Answer = tuple[int, Mapping[str, str], bytes]
"""Status, headers, body."""
Moved = Callable[[int], None]


def _nobody(_: int) -> None:
    pass


class Unreachable(Exception):
    """The hub did not answer, or not as it should; later it may."""


class Declined(Exception):
    """The hub answered that it will not have this, now or later."""

    status = 0


class Missing(Declined):
    """The hub has nothing of that name."""


class LogSize(msgspec.Struct):
    """How much of a log the hub has. `taken` is False if it was more or less than the worker thought."""

    size: int
    taken: bool = True
    reached: int | None = None
    """How far into what the task printed that is; None: as far, or the hub does not say."""


class Stored(msgspec.Struct):
    """How much of an upload the hub has, and whether that is all of it."""

    size: int
    whole: bool = False


class HubApi:
    """Talks to the hub that the worker's socket is at."""

    def __init__(
        self, session: aiohttp.ClientSession, hubs: Addresses, credentials: Credentials, trust: Trust | None = None
    ) -> None:
        self._trust = trust or Trust()
        self._session = session
        self._hubs = hubs
        self._credentials = credentials
        self._room = asyncio.Semaphore(UPLOADS_AT_ONCE)
        self._file_room = asyncio.Semaphore(FILES_AT_ONCE)
        self._without_store = direct.Without()

    @property
    def _hub(self) -> str:
        return self._hubs.current

    async def post_log(
        self,
        task_id: str,
        attempt: str,
        offset: int,
        data: bytes,
        *,
        final: bool = False,
        gap: int = 0,
        ending: bool = False,
    ) -> LogSize:
        """Append to the hub's copy of a log. `ending`: the task has ended; `final`: this is the last of it."""
        params = {"attempt": attempt, "offset": str(offset)}
        if final:
            params["final"] = "1"
        elif ending:
            params["ending"] = "1"
        if gap:
            params["gap"] = str(gap)
        async with self._room:
            status, _, body = await self._request("POST", f"/v1/tasks/{task_id}/logs", params=params, data=data)
        if status == 409:
            return _log_size(body, taken=False)
        _check(status, body)
        return _log_size(body)

    async def put_blob(self, sha256: str, path: Path, at: str = SNAPSHOT_BLOBS, moved: Moved = _nobody) -> None:
        """`moved` hears of every piece that has left."""
        if await self.put_past_hub(f"{at}/{sha256}", path, moved):
            return
        status, _, body = await self._put_file(f"{at}/{sha256}", path, moved)
        _check(status, body)

    async def put_past_hub(self, path: str, file: Path, moved: Moved = _nobody) -> bool:
        """Bring a large file to where the hub keeps them. False: the hub is to pass it on."""
        size, have, failures = os.stat(file).st_size, -1, 0
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=STORED_S)
        while size > SMALL_BYTES and failures < direct.TRIES and self._hub not in self._without_store:
            status, _, body = await self._request(
                "POST", f"{path}/direct", params={"size": str(size)}, data=b"", timeout=timeout
            )
            if status in (404, 405):
                self._without_store.add(self._hub)
                return False
            if status == 422:
                return False  # what others brought under this name was something else; through the hub only this counts
            _check(status, body)
            plan = direct.read_plan(body)
            if not plan.direct:
                self._without_store.add(self._hub)
            if plan.whole or not plan.direct:
                return plan.whole
            have, failures = plan.size, 0 if plan.size > have else failures + 1
            try:
                for piece in plan.pieces:
                    async with self._file_room:
                        await direct.put(piece, file, moved)
            except direct.NotReached as error:
                _log.info("%s was not brought past the hub: %s", path, error)
        if failures == direct.TRIES:
            self._without_store.add(self._hub)
        return False

    async def model_stored(self, sha256: str) -> Stored:
        """How much the hub has of these outputs."""
        status, headers, body = await self._request("HEAD", f"/v1/model/{sha256}")
        if status == 404:
            return Stored(0)
        _check(status, body)
        return Stored(_offset(headers), whole=headers.get("Ostler-Complete") == "1")

    async def put_model(self, sha256: str, path: Path, start: int, moved: Moved = _nobody) -> Stored:
        """Bring the rest of these outputs. If the hub has another number of bytes by now, that is the answer."""
        status, headers, body = await self._put_file(f"/v1/model/{sha256}", path, moved, start)
        if status in (202, 409) and "Upload-Offset" in headers:
            return Stored(_offset(headers))
        _check(status, body)
        return Stored(os.stat(path).st_size, whole=True)

    async def get_blob(self, sha256: str, target: Path, max_bytes: int = 1 << 62, at: str = SNAPSHOT_BLOBS) -> None:
        """Fetch a blob to this file; it is there only once it is whole and its hash is right."""
        part = target.with_name(f".{target.name}.part")
        try:
            try:
                found = await _write(part, self._pieces_of(f"{at}/{sha256}", past_hub=True), max_bytes)
            except direct.NotReached as error:
                _log.info("%s was not fetched past the hub: %s", sha256, error)
                found = await _write(part, self._pieces_of(f"{at}/{sha256}"), max_bytes)
            if found != sha256:
                raise Declined(f"what the hub has as {sha256} is something else")
            part.replace(target)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        finally:
            part.unlink(missing_ok=True)

    async def _pieces_of(self, path: str, *, past_hub: bool = False) -> AsyncIterator[bytes]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S)
        async with self._session.get(
            self._hub + path,
            params={"direct": "1"} if past_hub else None,
            headers=self._credentials.headers(),
            timeout=timeout,
            allow_redirects=False,
        ) as answer:
            if answer.status == 307:
                async for piece in direct.pieces_at(answer.headers.get("Location", "")):
                    yield piece
                return
            if answer.status != 200:
                _check(answer.status, await answer.read())
                raise Unreachable(f"the hub answered {answer.status}")
            async for piece in answer.content.iter_chunked(PIECE):
                yield piece

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

    async def open_tunnel(self, port: int, url: str, key: str) -> Side:
        """The gateway's end of a connection to a model, on the machine by whose name this one knows the hub."""
        return await open_tunnel(url or beside(self._hub, port), key, self._credentials.headers(), self._trust)

    async def say_token_is_kept(self) -> None:
        """With the token that the hub has just given this worker. Until it hears so, the old one is as good."""
        for pause_s in SAY_AGAIN_S:
            try:
                status, _, body = await self._request("POST", "/v1/enrol/renewed", data=b"")
                _check(status, body)
                self._credentials.unsaid = False
                return
            except Declined as error:
                _log.warning("this worker has a new token, of which the hub does not want to hear: %s", error)
                self._credentials.unsaid = False
                return
            except Unreachable:
                await asyncio.sleep(pause_s)

    async def _put_file(self, path: str, file: Path, moved: Moved, start: int = 0) -> Answer:
        """From `start` on. Takes as long as it takes, but no piece of it may take long."""
        size = os.stat(file).st_size
        headers = {"Content-Length": str(size - start)}
        if start:
            headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}" if start < size else f"bytes */{size}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=STORED_S)
        clock = asyncio.get_running_loop().time

        async def pieces() -> AsyncIterator[bytes]:
            with as_owner(file.parent):
                opened = open_plain(file)
            with opened as source:
                source.seek(start)
                while piece := await asyncio.to_thread(source.read, PIECE):
                    yield piece
                    moved(len(piece))
                    limit.reschedule(clock() + SILENT_S)
            limit.reschedule(None)

        async with self._file_room:
            try:
                async with asyncio.timeout(CONNECT_S + SILENT_S) as limit:
                    return await self._request("PUT", path, data=pieces(), headers=headers, timeout=timeout)
            except TimeoutError:
                raise Unreachable("the hub took nothing for too long") from None

    async def _request(
        self,
        method: str,
        path: str,
        *,
        data: bytes | AsyncIterator[bytes] | None = None,
        params: dict[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: aiohttp.ClientTimeout = SMALL,
    ) -> Answer:
        every = {**self._credentials.headers(), "Content-Type": "application/octet-stream", **(headers or {})}
        try:
            async with self._session.request(
                method, self._hub + path, params=params, data=data, headers=every, timeout=timeout
            ) as answer:
                return answer.status, answer.headers, await answer.read()
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error


async def _write(target: Path, pieces: AsyncIterator[bytes], max_bytes: int) -> str:
    """The sha256 of what has come."""
    digest = hashlib.sha256()
    with target.open("wb") as file:
        async for piece in pieces:
            digest.update(piece)
            if file.tell() + len(piece) > max_bytes:
                raise Declined(f"it has more than {max_bytes} bytes")
            file.write(piece)
    return digest.hexdigest()


def _offset(headers: Mapping[str, str]) -> int:
    try:
        return max(0, int(headers["Upload-Offset"]))
    except (KeyError, ValueError):
        raise Declined("the hub does not say how much of the upload it has") from None


def _check(status: int, body: bytes) -> None:
    if status < 300:
        return
    if status >= 500 or status in (408, 429):
        raise Unreachable(f"the hub answered {status}")
    refusal = (Missing if status == 404 else Declined)(f"the hub answered {status}: {_detail(body)}")
    refusal.status = status
    raise refusal


def _detail(body: bytes) -> str:
    try:
        problem = json.loads(body)
        return str(problem.get("detail") or problem.get("title"))
    except (ValueError, AttributeError):
        return body[:200].decode(errors="replace")


def _log_size(body: bytes, taken: bool = True) -> LogSize:
    try:
        said = json.loads(body)
        return LogSize(int(said["size"]), taken, int(said["reached"]) if "reached" in said else None)
    except (ValueError, KeyError, TypeError):
        raise Declined("the hub does not say how much of the log it has") from None
