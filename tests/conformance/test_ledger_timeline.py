"""What ran between two times, and what was said of workers, in every ledger."""

from tests.conformance.ledgers import attempt, job, line, task

from ostler.domain.records import Changes, FeedRecord
from ostler.ledger.base import Ledger


def test_attempts_are_found_by_when_they_ran_the_last_to_end_first(ledger: Ledger) -> None:
    ledger.commit(
        Changes(
            new_jobs=[job(1, "j")],
            tasks=[task("j")],
            attempts=[
                attempt("before", "j", assigned_at=1.0, finished_at=10.0, held=False),
                attempt("over the edge", "j", assigned_at=5.0, finished_at=25.0, held=False),
                attempt("within", "j", assigned_at=21.0, finished_at=22.0, held=False),
                attempt("ends after", "j", assigned_at=29.0, finished_at=40.0, held=False),
                attempt("begins after", "j", assigned_at=31.0, finished_at=41.0, held=False),
                attempt("runs", "j", assigned_at=20.0),
            ],
        )
    )
    found = ledger.attempts_ended(after=20.0, before=30.0)
    assert [one.attempt for one in found] == ["ends after", "over the edge", "within"]
    assert [one.attempt for one in ledger.attempts_ended(after=20.0, before=30.0, limit=1)] == ["ends after"]
    assert ledger.attempts_ended(after=10.0, before=0.0) == ledger.attempts_ended(after=50, before=99) == []
    assert ledger.attempts_ended(after=0, before=99, limit=0) == []


def test_lines_about_workers_are_found_among_many_others_newest_first(ledger: Ledger) -> None:
    about = [FeedRecord(seq=seq, at=1.0, kind="worker", subject="w", body={"state": str(seq)}) for seq in (2, 5, 9)]
    ledger.commit(Changes(feed=[line(1), about[0], line(3), about[1], line(6), about[2], line(10)]))
    assert [one.seq for one in ledger.worker_lines()] == [9, 5, 2]
    assert [one.seq for one in ledger.worker_lines(limit=2)] == [9, 5]
    assert ledger.worker_lines(limit=2)[0] == about[2]
