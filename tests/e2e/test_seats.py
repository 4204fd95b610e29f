"""A hub's place at a database: whose it is, for how long it may believe in it, and what it does without it."""

import time
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import copytree
from socket import gethostname
from typing import Any

import psycopg
import pytest
from tests.ledger.server import server
from tests.process_fleet import ProcessFleet

from ostler.domain.errors import Deposed, LedgerError
from ostler.hub import leading, ledgers, main, stores
from ostler.hub import server as listening
from ostler.hub.leading import Shared
from ostler.hub.settings import Settings
from ostler.hub.standby import Standby
from ostler.ledger.postgres_sql import DEPOSED

SLEPT_S = 3600.0


@pytest.fixture
def address() -> str:
    return server().new_database()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "first").mkdir()
    return tmp_path / "first"


@asynccontextmanager
async def seated(address: str, state: Path, url: str = "") -> AsyncIterator[Shared]:
    async with ledgers.opened(address, state, url) as seat:
        assert isinstance(seat, Shared)
        yield seat


async def test_a_lease_runs_out_while_the_machine_sleeps(
    address: str, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with seated(address, state) as seat:
        assert await seat.try_to_lead()
        with psycopg.connect(address, autocommit=True) as db:
            db.execute(b"UPDATE leadership SET term = term + 1, holder = 'another'")
        of_the_kernel = time.clock_gettime
        # As after a sleep: the clock that stood still meanwhile goes on as if nothing had been.
        monkeypatch.setattr(
            time, "clock_gettime", lambda clock: of_the_kernel(clock) + SLEPT_S * (clock == time.CLOCK_BOOTTIME)
        )
        with pytest.raises(Deposed):
            await seat.confirm()


async def test_a_hub_that_is_told_that_another_leads_believes_it_before_its_lease_is_over(
    address: str, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "RENEW_S", 0.05)
    monkeypatch.setattr(leading, "LEASE_S", 1000.0)
    async with seated(address, state) as seat:
        assert await seat.try_to_lead()
        with psycopg.connect(address, autocommit=True) as db:  # as after a step of the server's clock
            db.execute(b"UPDATE leadership SET term = term + 1, holder = 'another'")
        for asked in (seat.keep, seat.confirm):
            with pytest.raises(Deposed):
                await asked()


async def test_a_hub_whose_clock_is_not_that_of_the_others_says_so(
    address: str, state: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with seated(address, state):
        assert "clock" not in caplog.text
    of_this_machine = time.time
    monkeypatch.setattr(time, "time", lambda: of_this_machine() - SLEPT_S)
    async with seated(address, state):
        assert "clock is 3600 s behind that of the ledger's server" in caplog.text


async def test_a_copy_of_a_hubs_folder_is_another_hub(address: str, state: Path, tmp_path: Path) -> None:
    async with seated(address, state, "http://one"):
        pass
    copytree(state, tmp_path / "second")
    async with (
        seated(address, state, "http://one") as one,
        seated(address, tmp_path / "second", "http://other") as other,
    ):
        assert await one.try_to_lead() and not await other.try_to_lead()
        await other.look()
        assert {hub.url: hub.role for hub in other.hubs()} == {"http://one": "leader", "http://other": "standby"}


async def test_a_hub_that_is_followed_before_its_first_commit_stands_by_again(address: str, state: Path) -> None:
    async with seated(address, state):
        pass
    with psycopg.connect(address, autocommit=True) as db:
        db.execute(
            f"CREATE FUNCTION followed() RETURNS trigger LANGUAGE plpgsql AS "
            f"'BEGIN RAISE EXCEPTION ''deposed'' USING ERRCODE = ''{DEPOSED}''; END'".encode()
        )
        db.execute(
            b"CREATE TRIGGER followed BEFORE INSERT ON kept FOR EACH ROW WHEN (NEW.scope = 'store') "
            b"EXECUTE FUNCTION followed()"
        )
    options = main.HubOptions(port=0, state_dir=state, ledger=address)
    assert await main._serve(options, Settings()) == main.STAND_BY


async def test_a_standby_that_has_lost_its_ledger_sends_those_who_come_to_the_others(address: str, state: Path) -> None:
    async with seated(address, state) as seat:
        standby = Standby(seat, state)
        seat.ledger.close()
        status, headers = await answered(standby, "/v1/jobs")
    assert status == 503
    assert headers.get(b"ostler-leader") == b"", "without this a worker comes back here and asks no other hub"


async def answered(standby: Standby, path: str) -> tuple[int, dict[bytes, bytes]]:
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
    await standby.app(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"])


async def test_looking_for_the_store_makes_none(address: str, state: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    async with seated(address, state) as seat:
        assert await seat.try_to_lead()
        stores.claim(seat.ledger, state, "the ledger")
        with pytest.raises(LedgerError, match="goes with another folder"):
            stores.refuse_another(seat.ledger, elsewhere, "the ledger")
    assert (state / stores.ID_FILE).exists() and not elsewhere.exists()


def test_a_store_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    words = ("hub", "--port", "0", "--state-dir", str(tmp_path / "state"), "--store", "/dev/null/store")
    assert "(/dev/null/store)" in ProcessFleet(tmp_path).check_run(*words, code=2).stderr


@pytest.mark.parametrize(
    ("host", "own", "told"),
    [
        ("127.0.0.1", "http://127.0.0.1:1", "http://127.0.0.1:1"),
        ("::1", "http://[::1]:1", "http://[::1]:1"),
        ("::", "http://[::]:1", f"http://{gethostname()}:1"),
        ("0.0.0.0", "http://0.0.0.0:1", f"http://{gethostname()}:1"),
    ],
)
def test_where_a_hub_listens_is_an_address_and_what_others_are_told_leads_there(host: str, own: str, told: str) -> None:
    assert listening.address(host, 1) == own
    assert listening.reached_from_afar(own) == told
