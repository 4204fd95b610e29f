"""A store that speaks S3, in this process: moto's server, and before it what S3 does and moto does not.

It compares bytes with the hash that is sent along, knows that hash again, lets nobody in with an address that was
changed or has run out, and counts what passes. It can be laxer: not every store that speaks S3 does all of that.
"""

import asyncio
import base64
import contextlib
import hashlib
import io
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.s3 import models
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from ostler.store.bucket import Bucket, Client

KEY, SECRET, REGION = "AKIATEST", "secret/key", "eu-test-1"
MOTOS_BEGINNING = b"2010-11-10T20:48:33.000Z"
Environ = dict[str, Any]

models.S3_UPLOAD_PART_MIN_SIZE = 256 * 1024  # S3 has 5 MiB: then every test would carry three times as much


class Server:
    def __init__(self) -> None:
        self.compares = True
        """Bytes with the hash that is sent along."""
        self.repeats = False
        """It tells the hash that was sent along, whether that is right or not."""
        self.computes = True
        """The hash of what is copied."""
        self.away = False
        self.deleting = threading.Event()
        """Set when it is asked to delete something."""
        self.may_delete = threading.Event()
        self.may_delete.set()
        self.begun_ago = timedelta()
        """Uploads in parts were begun so long before now."""
        self.requests = self.received = self.sent = 0
        self._hashes: dict[str, str] = {}
        self._turn = threading.Lock()
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Quiet)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.port}"

    def close(self) -> None:
        self._server.shutdown()

    def bucket(self, name: str, **more: str) -> Bucket:
        """A new one."""
        given = {"endpoint": self.url, "region": REGION, "access_key_id": KEY, "secret_access_key": SECRET}
        bucket = Bucket(name=name, prefix="some/where", **(given | more))
        with contextlib.suppress(Exception):
            Client(Bucket(name=name, **given))._client.create_bucket(
                Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION}
            )
        return bucket

    def _answer(self, environ: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        try:
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        except OSError:
            return []
        self.requests += 1
        self.received += len(body)
        if len(body) < int(environ.get("CONTENT_LENGTH") or 0):
            return _refuse(start, "400 Bad Request", "IncompleteBody")
        environ["wsgi.input"] = io.BytesIO(body)
        if self.away:
            return _refuse(start, "503 Service Unavailable", "SlowDown")
        query = dict(parse_qsl(environ["QUERY_STRING"], keep_blank_values=True))
        if "X-Amz-Signature" in query and not _is_signed(environ, query):
            return _refuse(start, "403 Forbidden", "SignatureDoesNotMatch")
        is_copy = "HTTP_X_AMZ_COPY_SOURCE" in environ
        if method == "PUT" and not is_copy and not self._takes(environ, path, body):
            return _refuse(start, "400 Bad Request", "XAmzContentChecksumMismatch")
        if method == "DELETE":
            self.deleting.set()
            self.may_delete.wait(60)
        if method == "DELETE" or is_copy:
            self._hashes.pop(path, None)
        if is_copy and not self.computes:
            environ.pop("HTTP_X_AMZ_CHECKSUM_ALGORITHM", None)
        return self._of_moto(environ, start, self._hashes.get(path) if method == "HEAD" else None)

    def _takes(self, environ: Environ, path: str, body: bytes) -> bool:
        self._hashes.pop(path, None)
        told = environ.pop("HTTP_X_AMZ_CHECKSUM_SHA256", None)
        if told is None or not (self.compares or self.repeats):
            return True
        if self.compares and told != base64.b64encode(hashlib.sha256(body).digest()).decode():
            return False
        self._hashes[path] = told
        return True

    def _of_moto(self, environ: Environ, start: Callable[..., Any], known: str | None) -> Iterable[bytes]:
        begun = (datetime.now(UTC) - self.begun_ago).strftime("%Y-%m-%dT%H:%M:%S.000Z").encode()

        def started(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            if known is not None and status.startswith("200"):
                headers = [*headers, ("x-amz-checksum-sha256", known), ("x-amz-checksum-type", "FULL_OBJECT")]
            return start(status, headers, *more)

        with self._turn:  # what it keeps is not made for several threads
            pieces = [piece.replace(MOTOS_BEGINNING, begun) for piece in self._moto(environ, started)]
        for piece in pieces:
            self.sent += len(piece)
            yield piece


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_: Any) -> None:
        pass


def _refuse(start: Callable[..., Any], status: str, code: str) -> list[bytes]:
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


def _is_signed(environ: Environ, query: dict[str, str]) -> bool:
    """Also every header that means something to S3: it takes none that was added later."""
    headers = {
        name[5:].replace("_", "-").lower(): value for name, value in environ.items() if name.startswith("HTTP_")
    } | {"content-length": environ.get("CONTENT_LENGTH") or ""}
    signed = query["X-Amz-SignedHeaders"].split(";")
    if any(name.startswith("x-amz-") and name not in signed for name in headers) or "authorization" in headers:
        return False
    given = query.pop("X-Amz-Signature")
    began_at = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    if datetime.now(UTC) > began_at + timedelta(seconds=int(query["X-Amz-Expires"])):
        return False
    url = f"http://{environ['HTTP_HOST']}{environ['PATH_INFO']}"
    request = AWSRequest(environ["REQUEST_METHOD"], url, {n: headers.get(n, "") for n in signed}, params=query)
    request.context["timestamp"] = query["X-Amz-Date"]
    auth = S3SigV4QueryAuth(Credentials(KEY, SECRET), "s3", REGION)
    wanted = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    return bool(wanted == given)


class Cutter:
    """A line to the server that breaks after so many bytes towards it; None: it holds."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.after: int | None = None
        self.cuts = 0
        self.passed = 0
        self.url = ""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["Cutter"]:
        listener = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        async with listener:
            yield self

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = urlsplit(self._server.url)
        up, down = await asyncio.open_connection(there.hostname, there.port)
        back = asyncio.create_task(_pump(up, writer))
        try:
            while data := await reader.read(64 * 1024):
                self.passed += len(data)
                if self.after is not None and self.passed > self.after:
                    self.after, self.cuts = None, self.cuts + 1
                    break
                down.write(data)
                await down.drain()
            else:
                await back
        except OSError:
            pass
        finally:
            back.cancel()
            for end in (down, writer):
                end.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(64 * 1024):
            writer.write(data)
            await writer.drain()
        writer.close()


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    try:
        yield server
    finally:
        server.close()
