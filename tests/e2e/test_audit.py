"""`ostler audit`, as an operator uses it: what was done, by whom, and whether anybody has been at it since."""

import json
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from tests.e2e.paddock import Paddock, paddock

from ostler.ledger.sqlite_sound import connect


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paddock]:
    with paddock(tmp_path_factory.mktemp("audit")) as made:
        yield made


def changed(hub: Paddock, statement: str) -> None:
    """By somebody with the hub's files, while it does not run."""
    assert hub.terminate("hub") == 0
    db = connect(hub.state / "ostler.db", apsw.SQLITE_OPEN_READWRITE)
    db.execute(f"DROP TRIGGER IF EXISTS audit_stays; {statement}")
    db.close()
    hub.start_again("hub")


def test_it_says_who_did_what_and_finds_what_was_changed(hub: Paddock) -> None:
    job = hub.submit("--name", "mlp", "--", "true")
    hub.run("cancel", job)
    table = hub.run("audit", "--object", f"job/{job}").stdout
    assert "job.submit" in table and "job.cancel" in table and "admin" in table
    rows = json.loads(hub.run("audit", "--actor", "admin", "--json").stdout)["rows"]
    assert [row["action"] for row in rows] == ["job.cancel", "job.submit"]
    assert json.loads(hub.run("audit", "--since", "0s", "--json").stdout)["rows"] == []
    done = hub.run("audit", "verify").stdout
    head = done.split()[-1]
    assert "rows are as they were written" in done
    hub.run("audit", "verify", "--head", head)
    assert "not ROW:HASH" in hub.run("audit", "verify", "--head", "1:x", code=2).stderr

    changed(hub, f"UPDATE audit SET user = 'eve' WHERE object = 'job/{job}' AND action = 'job.cancel'")
    seq = rows[0]["seq"]
    assert hub.run("audit", "verify", code=1).stdout == f"row {seq} is not as it was written\n"
    told = json.loads(hub.run("audit", "verify", "--json", code=1).stdout)
    assert (told["ok"], told["row"]) == (False, seq)

    changed(hub, "DELETE FROM audit; DELETE FROM kept WHERE scope = 'audit'")
    hub.run("audit", "verify")
    gone = hub.run("audit", "verify", "--head", head, code=1).stdout
    assert "was noted as written" in gone or "another hash than the one that you noted" in gone


def test_a_head_is_said_in_the_hubs_log(hub: Paddock) -> None:
    assert "audit: the last row is " in Path(hub.folder / "hub.log").read_text()


def test_only_an_operator_reads_it(hub: Paddock) -> None:
    token = hub.run("token", "create", "--role", "user", "--user", "ann").stdout.strip()
    done = hub.run("--token", token, "audit", code=4)
    assert "may not" in done.stderr
