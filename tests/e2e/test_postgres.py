"""A hub whose ledger is a PostgreSQL database, over kills of the hub and of the server, and beside another hub."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import psycopg
import pytest
from tests.e2e.paddock import Diary, Paddock, paddock, until
from tests.e2e.test_kills import Work
from tests.ledger.server import Server, server

from ostler import config
from ostler.domain.errors import LedgerError
from ostler.hub import ledgers
from ostler.hub.settings import load
from ostler.ledger.postgres import PostgresLedger

SECRET = "s3cret-w0rd"
HURRIED = (sys.executable, str(Path(__file__).with_name("hurried_ledger.py")))


@pytest.fixture
def address() -> str:
    return f"{server().new_database()}&password={SECRET}"


@pytest.fixture
def yard(tmp_path: Path, address: str) -> Iterator[Paddock]:
    with paddock(tmp_path, "box", program=HURRIED, settings=f'ledger = "{address}"') as made:
        yield made


def test_what_ended_while_the_hub_was_killed_is_recorded_once_when_it_is_back(yard: Paddock, tmp_path: Path) -> None:
    work = Work(yard, Diary(tmp_path / "diary"))
    yard.kill("hub")
    work.end_early()
    yard.start_again("hub")
    work.end_all()
    work.check()
    assert not (yard.state / "ostler.db").exists(), "nothing is kept beside the database"
    assert SECRET not in " ".join(psutil.Process(yard.processes["hub"].pid).cmdline())
    assert yard.terminate("hub") == 0
    assert SECRET not in (yard.folder / "hub.log").read_text()
    assert SECRET not in (yard.folder / "box.log").read_text()


def test_a_hub_stops_when_another_has_taken_over(yard: Paddock, address: str) -> None:
    with psycopg.connect(address, autocommit=True) as db:
        db.execute(b"UPDATE leadership SET until = '-infinity'")
        taker = PostgresLedger(address)
        while taker.lead("taker") is None:  # it renews in between
            db.execute(b"UPDATE leadership SET until = '-infinity'")
    assert yard.processes["hub"].wait(30) == 1
    assert "the hub stops: the ledger postgresql://ostler@" in yard.log_of("hub")
    assert SECRET not in (yard.folder / "hub.log").read_text()
    taker.close()


def test_a_hub_stops_when_its_server_does_and_the_next_waits_for_it_to_come_back(tmp_path: Path) -> None:
    server()
    crashing = Server(server().programs)
    with paddock(tmp_path, program=HURRIED, settings=f'ledger = "{crashing.new_database()}"') as yard:
        job_id = yard.hub.submit({"command": ["true"]})["id"]
        crashing.crash()
        assert yard.processes["hub"].wait(30) == 1
        assert "Traceback" not in yard.log_of("hub")
        with ThreadPoolExecutor(1) as starting:
            started = starting.submit(yard.start_hub)
            until(lambda: "waiting for up to" in yard.log_of("hub"), "the hub says that it waits", 30)
            crashing.start()
            started.result()
        assert yard.hub.job(job_id)["state"] == "pending"


async def test_a_second_hub_on_a_database_says_who_leads_and_one_in_the_same_folder_is_refused(
    tmp_path: Path, address: str
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    async with ledgers.opened(address, first):
        with pytest.raises(LedgerError, match=rf":{first} \([0-9a-f]{{8}}\) leads\. Stop it first"):
            async with ledgers.opened(address, second, wait_s=0.0):
                pass
        with pytest.raises(LedgerError, match="another hub runs with the state folder"):
            async with ledgers.opened(address, first, wait_s=0.0):
                pass
    async with ledgers.opened(address, second, wait_s=0.0) as (ledger, _):
        assert ledger.load().jobs == []


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
    done = Paddock(tmp_path).run("hub", "--ledger", given, code=2)
    assert "--ledger: no password belongs on a command line" in done.stderr
    assert SECRET not in done.stderr
    assert not (tmp_path / "state").exists()


def test_a_service_is_not_installed_with_a_password_either(tmp_path: Path) -> None:
    yard = Paddock(tmp_path)
    yard.environment["OSTLER_LEDGER"] = "postgresql://u@h/db"
    assert '"--ledger" "postgresql://u@h/db"' in yard.run("hub", "--user", "--dry-run").stdout
    yard.environment["OSTLER_LEDGER"] = f"postgresql://u:{SECRET}@h/db"
    done = yard.run("hub", "--user", "--dry-run", code=2)
    assert SECRET not in done.stdout + done.stderr


def test_the_settings_show_where_the_ledger_is_and_never_its_password(tmp_path: Path) -> None:
    yard = Paddock(tmp_path)

    def shown() -> tuple[str, str]:
        found = json.loads(yard.run("config", "show", "--json").stdout)["settings"]
        assert SECRET not in str(found)
        [row] = [row for row in found if row["setting"] == "ledger"]
        return row["value"], row["from"]

    assert shown() == (str(yard.state / "ostler.db"), "default")
    yard.state.mkdir()
    file = yard.state / "ostler.toml"
    file.write_text(f'ledger = "postgresql://u:{SECRET}@file/db"')
    assert shown() == ("postgresql://u@file/db", str(file))
    yard.environment["OSTLER_LEDGER"] = f"postgresql://u:{SECRET}@variable/db"
    assert shown() == ("postgresql://u@variable/db", "$OSTLER_LEDGER")
