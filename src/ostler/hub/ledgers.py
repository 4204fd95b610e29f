"""Which ledger a hub is on, how it gets there, and that it is alone in writing to it."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import TypeVar

from ostler import __version__
from ostler.domain.errors import BadInput, LedgerError, NotYet
from ostler.hub.leading import Alone, Shared
from ostler.ledger.sqlite import SqliteLedger
from ostler.ledger.sqlite_file import take_lock

FILE = "ostler.db"
WAIT_S = 60.0
"""For a server that is not there, before the hub gives up."""
LOOK_S = 0.25
CLOCKS_DIFFER_S = 5.0

_NO_DRIVER = (
    "ledger: PostgreSQL's driver is missing; install it into Ostler's environment: pip install 'psycopg[binary,pool]'"
)
_log = logging.getLogger("ostler.hub")
T = TypeVar("T")


def shown(url: str, state: Path) -> str:
    """Where the ledger is, for people to see: without a password."""
    if not url:
        return str(state / FILE)
    try:
        from ostler.ledger.postgres_server import Address
    except ImportError:
        raise BadInput(_NO_DRIVER) from None
    return Address(url).shown


@asynccontextmanager
async def opened(url: str, state: Path, reached_at: str = "", wait_s: float = WAIT_S) -> AsyncIterator[Alone | Shared]:
    """A place at the ledger at this address; at the state folder's own file where none is given."""
    async with AsyncExitStack() as held:
        if not url:
            file = SqliteLedger(state / FILE)
            held.callback(file.close)
            yield Alone(file, reached_at)
            return
        held.callback(os.close, _lock(state))
        seat = await waiting(lambda: _seat(url, state, reached_at), wait_s)
        held.callback(seat.close)
        yield seat


def _lock(state: Path) -> int:
    """Of two hubs with one state folder, the second would take the ledger from the first."""
    try:
        return take_lock(state / "hub")
    except LedgerError:
        raise LedgerError(
            f"another hub runs with the state folder {state}. Stop it first, or give this hub another --state-dir"
        ) from None


def _own_id(state: Path) -> str:
    """Stays with the folder in its place: a hub that is started again takes over from itself, and only from itself. A
    copy of the folder is another hub."""
    file = state / "hub.id"
    if not file.exists():
        file.write_text(f"{token_hex(4)}\n")
    return sha256(f"{socket.gethostname()}:{state}:{file.read_text().strip()}".encode()).hexdigest()[:8]


def _seat(url: str, state: Path, reached_at: str) -> Shared:
    try:
        from ostler.ledger.postgres import PostgresLedger
        from ostler.ledger.postgres_leading import Hub
    except ImportError:
        raise BadInput(_NO_DRIVER) from None
    ident = _own_id(state)
    holder = f"{socket.gethostname()}:{state} ({ident})"

    def opening() -> PostgresLedger:
        with ExitStack() as closing:
            ledger = PostgresLedger(url)
            closing.callback(ledger.close)
            ledger.enter(ident, Hub(holder, reached_at, __version__))
            _say_if_it_differs(time.time() - ledger.server_time())
            closing.pop_all()
            return ledger

    return Shared(opening, holder)


def _say_if_it_differs(ahead_s: float) -> None:
    """Who leads is by the server's clock alone, but what one hub has written at some time another reads by its own."""
    if abs(ahead_s) > CLOCKS_DIFFER_S:
        _log.warning(
            "this machine's clock is %.0f s %s that of the ledger's server: timeouts of tasks and tokens would end too "
            "%s when this hub takes over; set the clocks of all hubs (NTP)",
            abs(ahead_s),
            *(("ahead of", "early") if ahead_s > 0 else ("behind", "late")),
        )


async def waiting(attempt: Callable[[], T], wait_s: float) -> T:
    """What the attempt gives. While the server is away it is made again, for so long and no longer."""
    deadline, said = time.monotonic() + wait_s, ""
    while True:
        try:
            return await asyncio.to_thread(attempt)
        except NotYet as error:
            if time.monotonic() > deadline:
                raise
            if str(error) != said:
                said = str(error)
                _log.warning("waiting for up to %.0f s: %s", deadline - time.monotonic(), said)
            await asyncio.sleep(LOOK_S)
