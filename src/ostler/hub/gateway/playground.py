"""Talking to a model from the dashboard: the hub passes a chat on to its gateway, in the name of whoever is logged in.

The gateway is another origin to a browser, and what a page may keep, its session's cookie, is none of the gateway's
keys. So it is not opened to pages: they ask the hub, where the gate, the table of permissions and the limits are, and
the hub calls its own relay with a key that it makes for each user, keeps in memory and shows to nobody.
"""

import asyncio
import contextlib
import secrets
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

import aiohttp
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ostler.domain.errors import NotFound, NotRunning, TooOften
from ostler.gateway.control import KeySetup
from ostler.hub.access import digest
from ostler.hub.api.routes import caller_of, read_body
from ostler.hub.gateway.gateway import Gateway
from ostler.tls import Identity

CHAT = "/v1/chat/completions"
MAX_BYTES = 4 * 1024 * 1024
AT_ONCE, AT_ONCE_EACH = 16, 4
"""Of all, and of one user. The hub is no relay: it decides for a whole fleet meanwhile. Whoever has more to ask calls
the gateway."""
MOST_USERS = 256
KNOWN_WITHIN_S = 3.0
PAUSE_S = 0.05
PASSED_ON = ("content-type", "retry-after")
T = TypeVar("T")


class Playground:
    def __init__(self, gateway: Gateway, identity: Identity | None) -> None:
        self._gateway = gateway
        self._tls: ssl.SSLContext | bool = _trusting(identity) if identity is not None else False
        self._secrets: dict[tuple[str, str], str] = {}
        self._open: Counter[str] = Counter()
        self._stops = asyncio.Event()

    def let_go(self) -> None:
        """The hub stops: no model's answer is waited for."""
        self._stops.set()

    def keys(self) -> list[KeySetup]:
        return [KeySetup(digest(secret), user, role) for (user, role), secret in self._secrets.items()]

    async def chat(self, request: Request) -> Response:
        if self._gateway.listens_on is None:
            raise NotFound("this hub has no models; name some under [models] in its ostler.toml")
        body, caller = await read_body(request, MAX_BYTES), caller_of(request)
        secret = self._secret(caller.user, caller.role)
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._room(caller.user))
            asking, gone = self._asked(stack, body, secret), _gone(request)
            answer = await _before(ClientDisconnect(), gone, self._before_the_end(asking))
            return Talk(answer.status, answer.headers, self._words(answer), stack.pop_all())

    async def _words(self, answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        while words := await self._before_the_end(answer.content.readany()):
            yield words

    async def _before_the_end(self, coming: Coroutine[Any, Any, T]) -> T:
        return await _before(NotRunning("the hub stops; ask again when it is back"), self._stops.wait(), coming)

    @contextlib.contextmanager
    def _room(self, user: str) -> Iterator[None]:
        if self._open.total() >= AT_ONCE or self._open[user] >= AT_ONCE_EACH:
            raise TooOften("too many talk to models over this page; call the gateway itself, or try again", 5.0)
        self._open[user] += 1
        try:
            yield
        finally:
            self._open -= Counter([user])

    async def _asked(self, stack: contextlib.AsyncExitStack, body: bytes, secret: str) -> aiohttp.ClientResponse:
        """A key that is new to the relay is on its way there, on another socket than the request."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        give_up_at = asyncio.get_running_loop().time() + KNOWN_WITHIN_S
        while True:
            try:
                # Where a model would send the hub is no place to go.
                answer = await session.post(
                    self._url(), data=body, headers=headers, ssl=self._tls, allow_redirects=False
                )
            except aiohttp.ClientError as error:
                raise NotRunning(f"the gateway does not answer ({error}); it starts again by itself") from None
            if answer.status != 401 or asyncio.get_running_loop().time() > give_up_at:
                return answer
            answer.release()
            await asyncio.sleep(PAUSE_S)

    def _url(self) -> str:
        host, port = self._gateway.listens_on or ("", 0)
        near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http{'s' if self._tls else ''}://{f'[{near}]' if ':' in near else near}:{port}{CHAT}"

    def _secret(self, user: str, role: str) -> str:
        known = self._secrets.pop((user, role), "")
        if not known and len(self._secrets) >= MOST_USERS:
            del self._secrets[next(iter(self._secrets))]
        self._secrets[user, role] = known or secrets.token_urlsafe(32)
        if not known:
            self._gateway.callers.changed()
        return self._secrets[user, role]


class Talk(StreamingResponse):
    """The answer as it comes. Whoever leaves ends it, before its first word too, which ends it at the model."""

    def __init__(
        self, status: int, headers: Mapping[str, str], words: AsyncIterator[bytes], held: contextlib.AsyncExitStack
    ) -> None:
        super().__init__(words, status, {name: headers[name] for name in PASSED_ON if name in headers})
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held:
            await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        """One that breaks off is left without its end, so that whoever reads it sees that something is missing."""
        with contextlib.suppress(aiohttp.ClientError, NotRunning):
            await super().stream_response(send)


async def _before(error: Exception, end: Coroutine[Any, Any, object], coming: Coroutine[Any, Any, T]) -> T:
    """What comes, unless this end is there first. A model may take long to load, and who has left waits for none."""
    awaited, ended = asyncio.ensure_future(coming), asyncio.ensure_future(end)
    try:
        await asyncio.wait({awaited, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not awaited.done():
            raise error
        return awaited.result()
    finally:
        awaited.cancel()
        ended.cancel()
        await asyncio.gather(awaited, ended, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _trusting(identity: Identity) -> ssl.SSLContext:
    """The relay is this hub's own, and shows the same certificate; by which name is of no matter here."""
    context = ssl.create_default_context(cafile=str(identity.certificate))
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
