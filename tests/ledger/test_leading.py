"""One hub of several leads, and only that one writes, whatever became of those that led before."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest
from tests.ledger.files import new_job, of_every_kind
from tests.ledger.server import server

from ostler.domain.errors import Deposed, LedgerError
from ostler.domain.records import Changes
from ostler.ledger import postgres_sql as sql
from ostler.ledger.postgres import PostgresLedger
from ostler.ledger.postgres_leading import LOCKED, Hub

SHORT_S = 0.2
LONG_S = 1000.0
Opener = Callable[[], PostgresLedger]

# It commits again and again, in an order that stops at the first failure.
CHILD = """
import sys
from tests.ledger.files import new_job
from ostler.domain.errors import LedgerError
from ostler.domain.records import Changes
from ostler.ledger.postgres import PostgresLedger

ledger = PostgresLedger(sys.argv[1])
ledger.lead("child", lease_s=float(sys.argv[2]))
seq = 0
try:
    while True:
        seq += 1
        ledger.commit(Changes(new_jobs=[new_job(seq)]))
        print(seq, flush=True)
except LedgerError as error:
    print(type(error).__name__, error, flush=True)
"""


@pytest.fixture
def opener() -> Iterator[Opener]:
    """Ledgers on one database."""
    url, made = server().emptied(), []

    def open_one() -> PostgresLedger:
        made.append(PostgresLedger(url))
        return made[-1]

    yield open_one
    for ledger in made:
        ledger.close()


def until_it_leads(ledger: PostgresLedger, holder: str) -> int:
    deadline = time.monotonic() + 30
    while (term := ledger.lead(holder, LONG_S)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return term


def expire(ledger: PostgresLedger) -> None:
    with ledger._readers.connection() as db:
        db.execute(b"UPDATE leadership SET until = clock_timestamp() - interval '1 second'")


def test_while_one_leads_no_other_does(opener: Opener) -> None:
    first, second = opener(), opener()
    term = first.lead("first", LONG_S)
    assert second.lead("second", LONG_S) is None
    leader = second.leader()
    assert (leader.holder, leader.term) == ("first", term)
    assert 0 < leader.left_s <= LONG_S
    first.commit(of_every_kind(1))
    assert [job.id for job in second.load().jobs] == ["job-1"], "the others read"


def test_a_ledger_that_does_not_lead_takes_no_commit(opener: Opener) -> None:
    first, second = opener(), opener()
    for write in (first.renew, lambda: first.commit(of_every_kind(1))):
        with pytest.raises(Deposed, match="does not lead"):
            write()
    second.lead("second")
    with pytest.raises(Deposed):
        first.commit(of_every_kind(1))
    assert second.load().jobs == []


def test_who_resigns_is_followed_at_once_and_writes_no_more(opener: Opener) -> None:
    first, second = opener(), opener()
    term = first.lead("first", LONG_S)
    assert term is not None
    first.resign()
    assert first.leader().left_s <= 0
    assert second.lead("second", LONG_S) == term + 1
    with pytest.raises(Deposed):
        first.commit(of_every_kind(1))
    second.commit(of_every_kind(1))


def test_closing_is_resigning(opener: Opener) -> None:
    first, second = opener(), opener()
    first.lead("first", LONG_S)
    first.close()
    assert second.lead("second", LONG_S) is not None


def test_a_leader_whose_lease_ran_out_leads_on_until_another_takes_over(opener: Opener) -> None:
    first, second = opener(), opener()
    term = first.lead("first", LONG_S)
    expire(second)
    first.commit(of_every_kind(1))
    assert second.lead("second", LONG_S) is None, "the commit renewed the lease"
    expire(second)
    first.renew()
    assert second.lead("second", LONG_S) is None, "so does a renewal"
    expire(second)
    assert second.lead("second", LONG_S) == (term or 0) + 1


def test_a_deposed_leader_writes_nothing_and_says_so(opener: Opener) -> None:
    first, second = opener(), opener()
    first.lead("first", LONG_S)
    first.commit(of_every_kind(1))
    with second._readers.connection() as db:  # as if its session had outlived the takeover
        db.execute(b"UPDATE leadership SET term = term + 1, holder = 'second', backend = 0")
    before = second.load(), second.artifacts(), second.token_list()
    for write in (lambda: first.commit(of_every_kind(2)), first.renew, lambda: first.commit(of_every_kind(2))):
        with pytest.raises(Deposed, match="another hub leads now, so this one may not write"):
            write()
    assert (second.load(), second.artifacts(), second.token_list()) == before


def test_a_hub_that_is_started_again_takes_over_from_itself_at_once(opener: Opener) -> None:
    first, again = opener(), opener()
    term = first.lead("host:/state", LONG_S)
    assert again.lead("host:/state", LONG_S) == (term or 0) + 1
    with pytest.raises(LedgerError):
        first.commit(of_every_kind(1))


def test_a_leader_that_stopped_in_the_middle_of_a_commit_does_not_keep_the_others_waiting(opener: Opener) -> None:
    first, second = opener(), opener()
    first.lead("first", LONG_S)
    expire(second)
    first._writer.execute(b"BEGIN")
    first._writer.execute(LOCKED, (first.term,))  # and with that it holds the row
    assert second.lead("second", LONG_S) == first.term + 1
    with pytest.raises(LedgerError):
        first.commit(of_every_kind(1))
    second.commit(of_every_kind(1))


def test_a_leader_whose_commit_takes_longer_than_its_lease_is_waited_for(opener: Opener) -> None:
    first, second = opener(), opener()
    term = first.lead("first", SHORT_S)

    def commit() -> None:
        with first._writer.transaction():
            first._writer.execute(LOCKED, (first.term,))
            first._writer.execute(b"SELECT pg_sleep(1.5)")

    with ThreadPoolExecutor(1) as committing:
        committed = committing.submit(commit)
        time.sleep(SHORT_S)
        assert second.lead("second", LONG_S) is None
        committed.result()
    assert until_it_leads(second, "second") == (term or 0) + 1


def test_the_lease_is_renewed_while_a_large_commit_is_made_ready(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = opener()
    ledger.lead("first", LONG_S)
    renewing, make = threading.Thread(target=ledger.renew, daemon=True), sql.statements

    def made_meanwhile(changes: Changes) -> Iterator[sql.Statement]:
        renewing.start()
        renewing.join(60)
        assert not renewing.is_alive()
        return make(changes)

    monkeypatch.setattr(sql, "statements", made_meanwhile)
    ledger.commit(of_every_kind(1))


def test_a_commit_renews_the_lease_when_it_ends_not_when_it_begins() -> None:
    url = server().new_database()
    with closing(PostgresLedger(url)) as ledger:
        with ledger._readers.connection() as db:
            db.execute(
                b"CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1); RETURN NEW; END'"
            )
            db.execute(b"CREATE TRIGGER nap BEFORE INSERT ON jobs FOR EACH STATEMENT EXECUTE FUNCTION nap()")
        ledger.lead("first", lease_s=100.0)
        ledger.commit(Changes(new_jobs=[new_job(1)]))
        assert ledger.leader().left_s > 99.5


def test_what_a_database_sets_for_others_ends_no_long_commit_and_no_hub_that_waits_for_it() -> None:
    url = server().new_database()
    PostgresLedger(url).close()
    with psycopg.connect(url, autocommit=True) as db:
        for setting in ("statement_timeout = 200", "default_transaction_isolation = 'serializable'"):
            db.execute(f"ALTER DATABASE {db.info.dbname} SET {setting}".encode())
        db.execute(
            b"CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.5); RETURN NEW; END'"
        )
        db.execute(b"CREATE TRIGGER nap BEFORE INSERT ON jobs FOR EACH STATEMENT EXECUTE FUNCTION nap()")
    with (
        closing(PostgresLedger(url)) as first,
        closing(PostgresLedger(url)) as second,
        ThreadPoolExecutor(1) as committing,
    ):
        first.lead("first", lease_s=0.01)
        committed = committing.submit(first.commit, Changes(new_jobs=[new_job(1)]))
        with psycopg.connect(url, autocommit=True) as db:
            while db.execute(b"SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'").fetchone() is None:
                assert not committed.done()
        until_it_leads(second, "second")
        committed.result()
        assert [job.id for job in second.load().jobs] == ["job-1"]


def test_a_hub_is_there_for_as_long_as_its_ledger_is_open(opener: Opener) -> None:
    first, second = opener(), opener()
    one, other = Hub("one", "http://one"), Hub("other", "http://other")
    first.enter("aaaa", one)
    second.enter("bbbb", other)
    assert first.hubs() == second.hubs() == [(one, True), (other, True)]
    first.close()
    assert until_seen(second, [(one, False), (other, True)])
    third = opener()
    third.enter("cccc", one)
    assert third.hubs() == [(other, True), (one, True)], "what those that are gone have left goes with the next"


def until_seen(ledger: PostgresLedger, hubs: list[tuple[Hub, bool]]) -> bool:
    deadline = time.monotonic() + 30
    while ledger.hubs() != hubs and time.monotonic() < deadline:
        time.sleep(0.01)
    return ledger.hubs() == hubs


def test_of_hubs_that_start_at_once_on_an_empty_database_one_leads() -> None:
    url = server().new_database()

    def start(number: int) -> tuple[PostgresLedger, int | None]:
        ledger = PostgresLedger(url)
        return ledger, ledger.lead(f"hub {number}", LONG_S)

    with ThreadPoolExecutor(6) as starting:
        started = list(starting.map(start, range(6)))
    assert sorted(term or 0 for _, term in started) == [0, 0, 0, 0, 0, 1]
    for ledger, term in started:
        if term:
            ledger.commit(of_every_kind(1))
        else:
            with pytest.raises(Deposed):
                ledger.commit(of_every_kind(2))
        ledger.close()


def test_a_hub_that_was_paused_while_another_took_over_writes_nothing_when_it_goes_on(opener: Opener) -> None:
    taker = opener()
    url = server().emptied()
    paused = subprocess.Popen(
        [sys.executable, "-c", CHILD, url, str(SHORT_S)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)},
    )
    assert paused.stdout is not None
    assert paused.stdout.readline() == "1\n"
    paused.send_signal(signal.SIGSTOP)
    try:
        until_it_leads(taker, "taker")
        taken_over_at = taker.load().last_job_seq
        taker.commit(Changes(new_jobs=[new_job(taken_over_at + 1000)]))
    finally:
        paused.send_signal(signal.SIGCONT)
    *written, last = paused.communicate(timeout=60)[0].splitlines()
    assert last.startswith(("Deposed", "LedgerError", "NotYet")), last
    acknowledged = int(written[-1]) if written else 1
    assert acknowledged <= taken_over_at
    assert [job.seq for job in taker.load().jobs] == [*range(1, taken_over_at + 1), taken_over_at + 1000]
