"""`ostler audit`, as an operator uses it: what was done, by whom, and whether anybody has been at it since."""

import json
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from tests.process_fleet import ProcessFleet, process_fleet

from ostler.ledger.sqlite_sound import connect


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessFleet]:
    with process_fleet(tmp_path_factory.mktemp("audit")) as made:
        yield made


def changed(fleet: ProcessFleet, statement: str) -> None:
    """By somebody with the hub's files, while it does not run."""
    assert fleet.terminate("hub") == 0
    db = connect(fleet.state / "ostler.db", apsw.SQLITE_OPEN_READWRITE)
    db.execute(f"DROP TRIGGER IF EXISTS audit_stays; {statement}")
    db.close()
    fleet.start_again("hub")


def test_it_says_who_did_what_and_finds_what_was_changed(fleet: ProcessFleet) -> None:
    job = fleet.submit("--name", "mlp", "--", "true")
    fleet.check_run("cancel", job)
    table = fleet.check_run("audit", "--object", f"job/{job}").stdout
    assert "job.submit" in table and "job.cancel" in table and "admin" in table
    rows = json.loads(fleet.check_run("audit", "--actor", "admin", "--json").stdout)["rows"]
    assert [row["action"] for row in rows] == ["job.cancel", "job.submit"]
    assert json.loads(fleet.check_run("audit", "--since", "0s", "--json").stdout)["rows"] == []
    done = fleet.check_run("audit", "verify").stdout
    head = done.split()[-1]
    assert "rows are as they were written" in done
    fleet.check_run("audit", "verify", "--head", head)
    assert "not ROW:HASH" in fleet.check_run("audit", "verify", "--head", "1:x", code=2).stderr

    changed(fleet, f"UPDATE audit SET user = 'eve' WHERE object = 'job/{job}' AND action = 'job.cancel'")
    seq = rows[0]["seq"]
    assert fleet.check_run("audit", "verify", code=1).stdout == f"row {seq} is not as it was written\n"
    told = json.loads(fleet.check_run("audit", "verify", "--json", code=1).stdout)
    assert (told["ok"], told["row"]) == (False, seq)

    changed(fleet, "DELETE FROM audit; DELETE FROM kept WHERE scope = 'audit'")
    fleet.check_run("audit", "verify")
    gone = fleet.check_run("audit", "verify", "--head", head, code=1).stdout
    assert "was noted as written" in gone or "another hash than the one that you noted" in gone


def test_a_head_is_said_in_the_hubs_log(fleet: ProcessFleet) -> None:
    assert "audit: the last row is " in Path(fleet.folder / "hub.log").read_text()


def test_only_an_operator_reads_it(fleet: ProcessFleet) -> None:
    token = fleet.check_run("token", "create", "--role", "user", "--user", "ann").stdout.strip()
    done = fleet.check_run("--token", token, "audit", code=4)
    assert "may not" in done.stderr
