"""A hub whose ledger is a PostgreSQL database, over kills of the hub and of the server, and beside another hub."""

import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from tests.diary import Diary
from tests.e2e.work import Work
from tests.ledger.server import Server, server
from tests.process_fleet import ProcessFleet, process_fleet, until

from ostler import config
from ostler.client.http import Hub
from ostler.domain.errors import Deposed, LedgerError
from ostler.hub import leading, ledgers
from ostler.hub.leading import Shared
from ostler.hub.settings import load
from ostler.ledger.postgres import PostgresLedger

SECRET = "s3cret-w0rd"
HURRIED = (sys.executable, str(Path(__file__).with_name("hurried_ledger.py")))
TAKEN_S = 3600.0


@pytest.fixture
def address() -> str:
    return f"{server().new_database()}&password={SECRET}"


@pytest.fixture
def fleet(tmp_path: Path, address: str) -> Iterator[ProcessFleet]:
    with process_fleet(tmp_path, "box", program=HURRIED, settings=f'ledger = "{address}"') as made:
        yield made


def test_what_ended_while_the_hub_was_killed_is_recorded_once_when_it_is_back(
    fleet: ProcessFleet, tmp_path: Path
) -> None:
    work = Work(fleet, Diary(tmp_path / "diary"))
    fleet.kill("hub")
    work.end_early()
    fleet.start_again("hub")
    work.end_all()
    work.check()
    assert not (fleet.state / "ostler.db").exists(), "nothing is kept beside the database"
    assert SECRET not in " ".join(psutil.Process(fleet.processes["hub"].pid).cmdline())
    assert fleet.terminate("hub") == 0
    assert SECRET not in (fleet.folder / "hub.log").read_text()
    assert SECRET not in (fleet.folder / "box.log").read_text()


def test_a_hub_stands_by_when_another_has_taken_over(fleet: ProcessFleet, address: str) -> None:
    with psycopg.connect(address, autocommit=True) as db:
        db.execute(b"UPDATE leadership SET until = '-infinity'")
        taker = PostgresLedger(address)
        while taker.lead("taker", TAKEN_S) is None:  # it renews in between
            db.execute(b"UPDATE leadership SET until = '-infinity'")
    until(lambda: fleet.hub.health()["role"] == "standby", "the hub has noticed", 60)
    assert "the hub stops: the ledger postgresql://ostler@" in fleet.log_of("hub")
    until(lambda: "standing by: the hub taker leads, in term 2" in fleet.log_of("hub"), "it says for whom")
    taker.close()
    with psycopg.connect(address, autocommit=True) as db:
        db.execute(b"UPDATE leadership SET until = '-infinity'")
    until(lambda: fleet.hub.health().get("term") == 3, "the hub leads again", 60)
    assert SECRET not in (fleet.folder / "hub.log").read_text()


def test_a_hub_whose_server_is_lost_starts_again_and_waits_for_it_to_come_back(tmp_path: Path) -> None:
    server()
    crashing = Server(server().programs)
    with process_fleet(tmp_path, program=HURRIED, settings=f'ledger = "{crashing.new_database()}"') as fleet:
        job_id = fleet.hub.submit({"command": ["true"]})["id"]
        crashing.crash()
        until(lambda: "waiting for up to" in fleet.log_of("hub"), "the hub says that it waits", 30)
        assert "Traceback" not in fleet.log_of("hub")
        crashing.start()
        until(lambda: (fleet.state / "hub.url").exists(), "the hub is back", 30)
        fleet.hub = Hub((fleet.state / "hub.url").read_text().strip(), fleet.token)
        assert fleet.hub.job(job_id)["state"] == "pending"
        fleet.hub.close()


async def test_of_two_hubs_on_a_database_one_leads_and_a_second_in_the_same_folder_is_refused(
    tmp_path: Path, address: str
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    async with ledgers.opened(address, first, "http://first") as one, ledgers.opened(address, second) as other:
        assert isinstance(one, Shared) and isinstance(other, Shared)
        assert await one.try_to_lead() and not await other.try_to_lead()
        assert re.fullmatch(rf".*:{first} \([0-9a-f]{{8}}\)", (await other.look()).holder)
        assert {(hub.url, hub.role) for hub in other.hubs()} == {("http://first", "leader"), ("", "standby")}
        with pytest.raises(LedgerError, match="another hub runs with the state folder"):
            async with ledgers.opened(address, first, wait_s=0.0):
                pass
    async with ledgers.opened(address, second, wait_s=0.0) as again:
        assert isinstance(again, Shared) and await again.try_to_lead()


async def test_a_hub_whose_lease_is_over_asks_before_it_believes_that_it_leads(tmp_path: Path, address: str) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    async with ledgers.opened(address, first) as one, ledgers.opened(address, second) as other:
        assert isinstance(one, Shared) and isinstance(other, Shared)
        assert await one.try_to_lead()
        await one.confirm()
        with psycopg.connect(address, autocommit=True) as db:
            db.execute(b"UPDATE leadership SET until = '-infinity'")
            while not await other.try_to_lead():  # it renews in between
                db.execute(b"UPDATE leadership SET until = '-infinity'")
        one._believed_until = 0.0  # as if it had stood still
        for asked in (one.confirm, one.keep):
            with pytest.raises(Deposed):
                await asked()
        await other.confirm()


async def test_a_hub_whose_loop_does_not_turn_loses_the_lead_though_it_lives(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "LEASE_S", 0.5)
    monkeypatch.setattr(leading, "RENEW_S", 0.1)
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    async with ledgers.opened(address, first) as one, ledgers.opened(address, second) as other:
        assert isinstance(one, Shared) and isinstance(other, Shared)
        assert await one.try_to_lead()
        await asyncio.sleep(0.7)
        assert not await other.try_to_lead(), "while it loads nobody counts its turns"
        one._turned_at = time.monotonic() - leading.STUCK_S
        while not await other.try_to_lead():
            pass


async def test_a_server_that_is_not_there_is_waited_for_so_long_and_no_longer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(LedgerError, match="cannot be reached"):
        async with ledgers.opened(f"postgresql://u:{SECRET}@127.0.0.1:1/db", tmp_path, wait_s=0.1):
            pass
    assert "waiting for up to 0 s: the ledger postgresql://u@127.0.0.1:1/db" in caplog.text
    assert SECRET not in caplog.text


def test_the_flag_goes_before_the_variable_and_that_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ostler.toml"
    file.write_text('ledger = "postgresql://file/db"')
    monkeypatch.delenv("OSTLER_LEDGER", raising=False)
    assert config.ledger_url("", load(file).ledger) == "postgresql://file/db"
    monkeypatch.setenv("OSTLER_LEDGER", "postgresql://variable/db")
    assert config.ledger_url("", load(file).ledger) == "postgresql://variable/db"
    assert config.ledger_url("postgresql://flag/db", load(file).ledger) == "postgresql://flag/db"


@pytest.mark.parametrize("given", [f"postgresql://u:{SECRET}@h/db", f"postgresql://h/db?user=u&password={SECRET}"])
def test_an_address_with_a_password_has_no_place_on_the_command_line(tmp_path: Path, given: str) -> None:
    done = ProcessFleet(tmp_path).check_run("hub", "--ledger", given, code=2)
    assert "--ledger: no password belongs on a command line" in done.stderr
    assert SECRET not in done.stderr
    assert not (tmp_path / "state").exists()


def test_a_service_is_not_installed_with_a_password_either(tmp_path: Path) -> None:
    fleet = ProcessFleet(tmp_path)
    fleet.environment["OSTLER_LEDGER"] = "postgresql://u@h/db"
    assert '"--ledger" "postgresql://u@h/db"' in fleet.check_run("hub", "--user", "--dry-run").stdout
    fleet.environment["OSTLER_LEDGER"] = f"postgresql://u:{SECRET}@h/db"
    done = fleet.check_run("hub", "--user", "--dry-run", code=2)
    assert SECRET not in done.stdout + done.stderr


def test_the_settings_show_where_the_ledger_is_and_never_its_password(tmp_path: Path) -> None:
    fleet = ProcessFleet(tmp_path)

    def shown() -> tuple[str, str]:
        found = json.loads(fleet.check_run("config", "show", "--json").stdout)["settings"]
        assert SECRET not in str(found)
        [row] = [row for row in found if row["setting"] == "ledger"]
        return row["value"], row["from"]

    assert shown() == (str(fleet.state / "ostler.db"), "default")
    fleet.state.mkdir()
    file = fleet.state / "ostler.toml"
    file.write_text(f'ledger = "postgresql://u:{SECRET}@file/db"')
    assert shown() == ("postgresql://u@file/db", str(file))
    fleet.environment["OSTLER_LEDGER"] = f"postgresql://u:{SECRET}@variable/db"
    assert shown() == ("postgresql://u@variable/db", "$OSTLER_LEDGER")
