"""The audit in every ledger: rows are added and never changed, read from the newest, and go from the oldest."""

import pytest

from ostler.domain.audit import START, AuditRecord, Link, Verifier, seal
from ostler.domain.errors import LedgerError
from ostler.domain.records import Changes
from ostler.ledger.base import Ledger


def written(ledger: Ledger, count: int, head: Link = START) -> Link:
    rows = [
        AuditRecord(
            at=seq + 0.1,
            actor=f"t{seq % 2}",
            user="ada" if seq % 3 else "bob\0é",
            role="user",
            source="127.0.0.1",
            action="job.submit",
            object=f"job/{seq % 4}",
            detail="a 'quoted' \1 detail",
        )
        for seq in range(head.seq + 1, head.seq + count + 1)
    ]
    head = seal(rows, head)
    ledger.commit(Changes(audit=rows))
    return head


def test_rows_come_back_as_they_were_written_newest_first_page_by_page(ledger: Ledger) -> None:
    head = written(ledger, 7)
    rows = ledger.audit()
    assert [row.seq for row in rows] == [7, 6, 5, 4, 3, 2, 1]
    verifier = Verifier(head)
    for row in rows:
        verifier.add(row)
    verifier.end()
    assert verifier.faults == [], "what a ledger does to a row changes nothing that its hash depends on"
    assert [row.seq for row in ledger.audit(before=4, limit=2)] == [3, 2]
    assert [row.seq for row in ledger.audit(since=5.05)] == [7, 6, 5]
    assert [row.seq for row in ledger.audit(actor="t0")] == [6, 4, 2], "by the token"
    assert [row.seq for row in ledger.audit(actor="bob\0é")] == [6, 3], "by the user"
    assert [row.seq for row in ledger.audit(object="job/3", actor="ada")] == [7]
    assert ledger.audit(limit=0) == []


def test_a_row_under_a_number_that_is_there_is_an_error_and_nothing_of_its_commit_counts(ledger: Ledger) -> None:
    head = written(ledger, 2)
    other = AuditRecord(seq=2, at=9.0, action="token.create", hash="f" * 64)
    with pytest.raises(LedgerError):
        ledger.commit(Changes(audit=[other, AuditRecord(seq=3, at=9.0, action="token.create", hash="e" * 64)]))
    assert [row.hash for row in ledger.audit(limit=1)] == [head.hash]


def test_the_oldest_go_up_to_a_number(ledger: Ledger) -> None:
    written(ledger, 5)
    assert [row.seq for row in ledger.oldest_audit(3)] == [1, 2, 3]
    ledger.commit(Changes(gone_audit=3))
    assert [row.seq for row in ledger.oldest_audit()] == [4, 5]
    ledger.commit(Changes(gone_audit=9))
    assert ledger.audit() == []
