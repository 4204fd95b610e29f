"""The worker's socket to the hub: opened again and again, written to once per turn of the loop."""

import asyncio
import logging
import random
from collections.abc import Callable

import aiohttp
from aiohttp import WSMsgType

from ostler.domain.errors import NotAllowed
from ostler.domain.hubs import LEADER_HEADER, Addresses
from ostler.tls import Trust
from ostler.wire.messages import (
    CLOSE_TAKEN_OVER,
    FROM_HUB,
    Ack,
    Frame,
    MalformedFrame,
    Message,
    Register,
    decode,
    encode,
    packed,
)
from ostler.worker.credentials import Credentials

PATH = "/v1/ws/worker"
CONNECT_S = 10.0
SILENCE_S = 30.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 15.0
LOOK_S = 2.0
"""How often, and for how long, the other hubs are asked while this one is silent."""
TIMES_SENT_AWAY = 4
"""Whoever is told to come back so often asks another hub: what answers there may be a proxy, and the hub be gone."""
SETTLED_S = 10.0
"""A connection that lasted this long was a good one: the next try is a first one again."""
MAX_RECEIVED_BYTES = 16 * 1024 * 1024

_log = logging.getLogger("ostler.worker")


class TakenOver(Exception):
    """Another worker has registered with this one's name: give one of them another (--name)."""


class Pauses:
    """How long to wait before each try: the first soon, then up to longer and longer, never all workers at once. A hub
    that has too many of them at its door says when to come; that is kept, anywhere within the second before."""

    def __init__(self, draw: Callable[[float, float], float] = random.uniform) -> None:
        self._draw = draw
        self._longest_s = FIRST_PAUSE_S

    def next_s(self, asked_s: float = 0.0) -> float:
        if asked_s >= 1.0:
            return self._draw(min(asked_s, LONGEST_PAUSE_S) - 1.0, min(asked_s, LONGEST_PAUSE_S))
        longest_s, self._longest_s = self._longest_s, min(2.5 * self._longest_s, LONGEST_PAUSE_S)
        return self._draw(0.0, longest_s)

    def start_over(self) -> None:
        self._longest_s = FIRST_PAUSE_S


class Connection:
    """
    `on_open`, `on_message` and `on_lost` are told what happens; what they want said goes through `send`. A message that
    could not be sent is lost, as on any network: whoever needs it there says it again after the next `on_open`.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        hubs: Addresses,
        credentials: Credentials,
        *,
        on_open: Callable[[], None],
        on_message: Callable[[Frame], None],
        on_lost: Callable[[], None],
        on_told: Callable[[], None] = lambda: None,
        silence_s: float = SILENCE_S,
        trust: Trust | None = None,
    ) -> None:
        self._trust = trust or Trust()
        self._session = session
        self._hubs = hubs
        self._credentials = credentials
        self._on_open = on_open
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_told = on_told
        self._silence_s = silence_s
        self._pauses = Pauses()
        self._frames: list[bytes] = []
        self._ready = asyncio.Event()
        self._greeted = False
        self._batches = False
        self._heard_at = 0.0
        self._complained: set[str] = set()
        self._another_is_next = False
        self._sent_away = 0
        self._asked_s = 0.0
        """When the hub that was just asked wants to be asked again."""

    def send(self, message: Message) -> None:
        """Leaves with everything else of this turn. Until a registration went out on this socket, nothing does."""
        if isinstance(message, Register):
            self._greeted = True
        if self._greeted:
            self._frames.append(encode(message))
            self._ready.set()

    async def run(self) -> None:
        """For ever, unless the hub will not have this worker: NotAllowed, TakenOver."""
        clock = asyncio.get_running_loop().time
        while True:
            socket = await self._open()
            if socket is not None:
                opened_at = clock()
                await self._serve(socket)
                if clock() - opened_at > SETTLED_S:
                    self._pauses.start_over()
            elif self._another_is_next:
                continue
            await asyncio.sleep(self._pauses.next_s(self._asked_s))

    async def _open(self) -> aiohttp.ClientWebSocketResponse | None:
        hub, leader = self._hubs.current, ""
        self._asked_s, self._another_is_next = 0.0, False
        try:
            if self._trust.unknown:
                await asyncio.to_thread(self._trust.meet, hub)
            async with asyncio.timeout(CONNECT_S):
                return await self._session.ws_connect(
                    hub + PATH,
                    headers=self._credentials.headers(),
                    compress=0,
                    max_msg_size=MAX_RECEIVED_BYTES,
                    timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status in (401, 403) and not self._credentials.refused():
                raise _not_allowed(error.status, hub) from None
            leader = error.headers.get(LEADER_HEADER, "") if error.headers else ""
            self._complain(f"the hub at {hub} answered {error.status}")
            self._asked_s = _retry_after(error)
            if self._asked_s and LEADER_HEADER not in (error.headers or {}):
                self._sent_away += 1
                if self._sent_away % TIMES_SENT_AWAY:
                    return None  # it is the right one, and has too many at its door
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._complain(f"no connection to the hub at {hub}: {str(error) or type(error).__name__}")
        self._another_is_next = self._hubs.failed(hub, leader)
        return None

    def _complain(self, what: str) -> None:
        """Once each: a hub that is away for a night fills no log."""
        if what not in self._complained:
            _log.warning("%s; trying again", what)
            self._complained.add(what)

    async def _serve(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._frames.clear()
        self._greeted = self._batches = False
        self._heard_at = asyncio.get_running_loop().time()
        self._on_open()
        tasks = [asyncio.create_task(part) for part in (self._read(socket), self._write(socket), self._listen())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._greeted = False
            for task in tasks:
                task.cancel()
            failures = await asyncio.gather(*tasks, return_exceptions=True)
            await socket.close()
            self._on_lost()
        if socket.close_code == CLOSE_TAKEN_OVER:
            raise TakenOver("another worker uses this name: it has registered, and this one stops")
        for failure in failures:
            if isinstance(failure, Exception) and not isinstance(failure, (aiohttp.ClientError, ConnectionError)):
                raise failure
        _log.info("the connection to the hub closed (code %s)", socket.close_code)

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        clock = asyncio.get_running_loop().time
        async for received in socket:
            if received.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                continue
            self._heard_at = clock()
            for frame in decode(received.data, FROM_HUB):
                if isinstance(frame, MalformedFrame):
                    _log.warning("the hub sent something that this worker does not understand: %s", frame)
                    continue
                if isinstance(frame.message, Ack) and frame.message.of == "register" and not frame.error:
                    self._registered(frame.message)
                self._on_message(frame)
            await asyncio.sleep(0)  # what this asks for is begun before the next is read

    def _registered(self, ack: Ack) -> None:
        self._batches = True
        self._complained.clear()
        self._hubs.answered()
        self._sent_away = 0
        if ack.hubs:
            self._hubs.learn(ack.hubs)
            self._on_told()
        _log.info("registered at %s", self._hubs.current)

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            await self._ready.wait()
            self._ready.clear()
            if self._is_silent():
                # This process was held up. The hub has given it up and counts anew: so does this side.
                return
            frames, self._frames = self._frames, []
            for frame in packed(frames) if self._batches else frames:
                await socket.send_frame(frame, WSMsgType.TEXT)

    async def _listen(self) -> None:
        """Until nothing has been heard for too long: a heartbeat is answered, so this is no connection any more."""
        clock = asyncio.get_running_loop().time
        hub = self._hubs.current
        while (left_s := self._heard_at + self._silence_s - clock()) > 0:
            half_s = left_s - self._silence_s / 2
            if half_s <= 0 and await self._another_leads(hub):
                return
            await asyncio.sleep(half_s if half_s > 0 else min(left_s, LOOK_S))
        _log.warning("nothing heard from the hub for %.0f s: connecting again", self._silence_s)
        self._hubs.failed(hub)

    async def _another_leads(self, silent: str) -> bool:
        """A hub that stands still keeps its connections; by now the others may have moved on without it."""
        for hub in self._hubs.known:
            if hub != silent and await self._leads(hub):
                _log.warning("the hub at %s is silent, and the one at %s leads: going there", silent, hub)
                self._hubs.failed(silent, hub)
                return True
        return False

    async def _leads(self, hub: str) -> bool:
        timeout = aiohttp.ClientTimeout(total=LOOK_S)
        try:
            async with self._session.get(f"{hub}/v1/health", timeout=timeout, allow_redirects=False) as answer:
                said = await answer.json()
                return isinstance(said, dict) and said.get("role") == "leader"
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return False

    def _is_silent(self) -> bool:
        return asyncio.get_running_loop().time() >= self._heard_at + self._silence_s


def _retry_after(error: aiohttp.WSServerHandshakeError) -> float:
    said = error.headers.get("Retry-After", "") if error.headers else ""
    return float(said) if said.isascii() and said.isdecimal() else 0.0


def _not_allowed(status: int, hub: str) -> NotAllowed:
    return NotAllowed(
        f"the hub at {hub} did not let this worker in ({status}): it does not know the token, or the token may not "
        "register workers. `ostler token create --role worker` on the hub makes one that may"
    )
