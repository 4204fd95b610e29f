"""Which ledger a hub is on, and that it is alone in writing to it."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from ostler.domain.errors import BadInput, LedgerError
from ostler.ledger.base import Ledger
from ostler.ledger.sqlite import SqliteLedger
from ostler.ledger.sqlite_file import take_lock

if TYPE_CHECKING:
    from ostler.ledger.postgres import PostgresLedger

FILE = "ostler.db"
WAIT_S = 60.0
"""For a server that is not there yet, and for the hub that led before."""
LOOK_S = 0.5
RENEW_S = 5.0

_NO_DRIVER = "ledger: PostgreSQL's driver is missing; install it: pip install 'ostler[postgresql]'"
_log = logging.getLogger("ostler.hub")

Tenure = Callable[[], Coroutine[Any, Any, None]]
"""Runs for as long as the ledger is this hub's; its error says why it is no more."""


async def for_good() -> None:
    await asyncio.Event().wait()


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
async def opened(url: str, state: Path, wait_s: float = WAIT_S) -> AsyncIterator[tuple[Ledger, Tenure]]:
    """The ledger at this address; in the state folder's own file where none is given."""
    async with AsyncExitStack() as held:
        if not url:
            file = SqliteLedger(state / FILE)
            held.callback(file.close)
            yield file, for_good
            return
        held.callback(os.close, _lock(state))
        ledger = await _led(url, f"{socket.gethostname()}:{state} ({_own_id(state)})", wait_s)
        held.callback(ledger.close)
        _log.info("the ledger is %s, in term %d", ledger.shown, ledger.term)

        async def leading() -> None:
            while True:
                await asyncio.sleep(RENEW_S)
                await asyncio.to_thread(ledger.renew)

        yield ledger, leading


def _lock(state: Path) -> int:
    """Of two hubs with one state folder, the second would take the ledger from the first."""
    try:
        return take_lock(state / "hub")
    except LedgerError:
        raise LedgerError(
            f"another hub runs with the state folder {state}. Stop it first, or give this hub another --state-dir"
        ) from None


def _own_id(state: Path) -> str:
    """Stays with the folder: a hub that is started again takes over from itself, and only from itself."""
    file = state / "hub.id"
    if not file.exists():
        file.write_text(f"{token_hex(4)}\n")
    return file.read_text().strip()


async def _led(url: str, holder: str, wait_s: float) -> "PostgresLedger":
    """Open and led by this hub. A server that is away is waited for, and so is the end of another hub's lease."""
    try:
        from ostler.ledger.postgres import PostgresLedger
        from ostler.ledger.postgres_server import NotYet
    except ImportError:
        raise BadInput(_NO_DRIVER) from None

    def attempt() -> PostgresLedger:
        with ExitStack() as closing:
            ledger = PostgresLedger(url)
            closing.callback(ledger.close)
            if ledger.lead(holder) is None:
                raise NotYet(
                    f"the ledger {ledger.shown}: the hub {ledger.leader().holder} leads. Stop it first, or give this "
                    "hub another database"
                )
            closing.pop_all()
            return ledger

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
