"""A hub's place at its ledger: whether it leads there, for how long it may believe so, and which other hubs there are.

A lease binds both sides. The server lets nobody take over before it has run out; and from that moment on, by its own
clock, the hub lets nothing out before the server has said again that it leads. So a hub that was paused while another
took over writes nothing (the ledger refuses its term) and says nothing (it asks first, and is told).
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import msgspec

from ostler.domain.errors import LedgerError
from ostler.hub.clock import also_asleep
from ostler.ledger.base import Ledger

if TYPE_CHECKING:
    from ostler.ledger.postgres import PostgresLedger
    from ostler.ledger.postgres_leading import Leader

LEASE_S = 3.0
"""For so long after its last sign of life no other hub takes over."""
RENEW_S = 1.0
LOOK_S = 2.0
"""How often a leader looks which hubs there are."""
STUCK_S = 60.0
"""A hub whose loop has not turned for so long is as good as dead, though this thread of it still lives."""
LEADER, STANDBY = "leader", "standby"

_log = logging.getLogger("ostler.hub")


class HubSeen(msgspec.Struct, frozen=True):
    """One of the hubs on a ledger, as another sees it."""

    holder: str
    url: str
    role: str
    connected: bool
    version: str = ""


class Seat(Protocol):
    @property
    def ledger(self) -> Ledger: ...

    @property
    def term(self) -> int:
        """The term it leads in; 0 where there is no other hub that could."""
        ...

    async def confirm(self) -> None:
        """That it leads, or LedgerError."""
        ...

    async def keep(self) -> None:
        """For as long as it leads; its error says why it does no more."""
        ...

    def hubs(self) -> list[HubSeen]: ...


class Alone:
    """At a ledger that no other hub can open."""

    term = 0

    def __init__(self, ledger: Ledger, url: str = "") -> None:
        self.ledger = ledger
        self._url = url

    async def confirm(self) -> None:
        return

    async def keep(self) -> None:
        await asyncio.Event().wait()

    def hubs(self) -> list[HubSeen]:
        return [HubSeen("", self._url, LEADER, connected=True)]


class Shared:
    """At a ledger that several hubs have open. `reopen` opens it again, once it was lost."""

    def __init__(self, reopen: Callable[[], "PostgresLedger"], holder: str) -> None:
        self.ledger = reopen()
        self.holder = holder
        self._reopen = reopen
        self._believed_until = 0.0
        self._turned_at = float("inf")
        self._hubs: list[HubSeen] = []
        self._over = threading.Event()
        self._asking = asyncio.Lock()
        self._lost: asyncio.Future[None] | None = None

    @property
    def term(self) -> int:
        return self.ledger.term

    def close(self) -> None:
        """It leads no more, if the server can still be told."""
        self._over.set()
        self.ledger.close()

    # Before it leads

    async def try_to_lead(self) -> bool:
        """From then on its lease is renewed, beside whatever else this process does."""
        asked_at = also_asleep()
        if await asyncio.to_thread(self.ledger.lead, self.holder, LEASE_S) is None:
            return False
        self._believed_until = asked_at + LEASE_S
        self._lost = asyncio.get_running_loop().create_future()
        threading.Thread(
            target=self._renew_on, args=(asyncio.get_running_loop(), self._lost), name="lease", daemon=True
        ).start()
        return True

    async def look(self) -> "Leader":
        """Who leads, and who else is there."""
        leader = await asyncio.to_thread(self.ledger.leader)
        self._hubs = await asyncio.to_thread(self._seen, leader)
        return leader

    def open_again(self) -> None:
        self.ledger.close()
        self.ledger = self._reopen()

    # While it leads

    async def confirm(self) -> None:
        if also_asleep() < self._believed_until:
            return
        async with self._asking:
            if also_asleep() >= self._believed_until:
                await asyncio.to_thread(self._renew)

    async def keep(self) -> None:
        assert self._lost is not None
        while not self._lost.done():
            self._turned_at = time.monotonic()
            with suppress(LedgerError):  # what is only looked at costs nobody the lead
                await self.look()
            await asyncio.wait({self._lost}, timeout=LOOK_S)
        await self._lost

    def hubs(self) -> list[HubSeen]:
        return self._hubs

    def _renew(self) -> None:
        asked_at = also_asleep()
        self.ledger.renew()
        self._believed_until = asked_at + LEASE_S

    def _renew_on(self, loop: asyncio.AbstractEventLoop, lost: "asyncio.Future[None]") -> None:
        """A thread of its own: however busy the loop is, the lease does not run out for that."""
        try:
            while not self._over.wait(RENEW_S):
                if time.monotonic() - self._turned_at < STUCK_S:
                    self._renew()
        except LedgerError as error:
            self._believed_until = 0.0  # whatever the clocks say
            if not self._over.is_set():
                loop.call_soon_threadsafe(_fail, lost, error)

    def _seen(self, leader: "Leader") -> list[HubSeen]:
        leads = leader.holder if leader.left_s > 0 else None
        return [
            HubSeen(hub.holder, hub.url, LEADER if hub.holder == leads else STANDBY, there, hub.version)
            for hub, there in self.ledger.hubs()
            if there or hub.holder == leads
        ]


def _fail(future: "asyncio.Future[None]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
