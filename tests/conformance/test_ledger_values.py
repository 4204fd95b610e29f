"""Values that one database takes and another does not: every ledger behaves alike with them."""

from itertools import permutations
from math import inf
from typing import Any

import pytest
from tests.conformance.ledgers import artifact, attempt, ids, job, line, manifest, task, terms, token, worker

from ostler.domain.errors import LedgerError
from ostler.domain.records import Dropped, JobProgress, KeptRecord, ReceiptRecord, UsageRecord
from ostler.ledger.base import Changes, Ledger
from ostler.ledger.memory import MemoryLedger

ODD = [
    "\0",
    "\1",
    "\2",
    "\0\0",
    "\0\1",
    "\1\0",
    "\1\1",
    "\1\2",
    "\1\1\2",
    "a\0b",
    "a\1b",
    "\\u0000",
    "\\\0",
    "\\\\u0001",
]
"""NUL, what stands for it where it cannot be written, and what looks like it."""


@pytest.mark.parametrize("odd", ["\0", "\1", "\1\2", "a\0\1\\u0000", "\\\\u0001\0"])
def test_every_text_comes_back_whatever_characters_are_in_it(ledger: Ledger, odd: str) -> None:
    there = Changes(
        new_jobs=[job(1, odd, user=odd, name=odd, reason=odd, snapshot=odd, origin=odd, sweep=odd, blocked_on=[odd])],
        tasks=[task(odd, id_=odd, state="succeeded", reason=odd, artifact_id=odd, metrics={odd: 1.0})],
        attempts=[attempt(odd, odd, why=odd)],
        workers=[worker(odd)],
        feed=[line(1, odd, text=odd)],
        tokens=[token(odd, user=odd)],
        receipts=[ReceiptRecord(key=odd, digest=odd, ids=[odd], at=1.0)],
        usage=[UsageRecord(user=odd, gpu_seconds=1.0, at=1.0)],
        artifacts=[artifact(odd, odd, model=odd, user=odd)],
        manifest=[manifest(odd)],
        kept=[KeptRecord(scope=odd, key=odd, value=odd.encode())],
    )
    ledger.commit(there)
    assert ledger.jobs([odd]) == {odd: there.new_jobs[0]}
    assert ledger.tasks([odd]) == {odd: there.tasks[0]}
    assert ledger.tasks_of(odd) == there.tasks
    assert ledger.attempts_of(odd) == there.attempts
    assert (ledger.load().workers, ledger.load().usage) == (there.workers, there.usage)
    assert ledger.feed(after=0, subject=odd) == there.feed
    assert (ledger.receipt(odd), ledger.token_list()) == (there.receipts[0], there.tokens)
    assert [one for _, one in ledger.artifacts(ids=[odd], model=odd, user=odd)] == there.artifacts
    assert ledger.wanted_artifacts() == {odd}
    assert ledger.manifest() == there.manifest[0]
    assert ledger.kept(odd) == {odd: odd.encode()}
    assert ids(ledger.list_jobs(user=odd)) == ids(ledger.list_jobs(name=odd)) == [odd]
    assert ids(ledger.manifest_jobs(sweep=odd)) == [ledger.newest_named(odd)] == [odd]


def test_texts_keep_their_order_and_their_beginnings_whatever_characters_are_in_them(ledger: Ledger) -> None:
    there = [*ODD, "", "b", "ä", "Z", "\U0001f600", "\uffff"]
    ledger.commit(
        Changes(
            new_jobs=[job(seq, id_) for seq, id_ in enumerate(there) if id_],
            kept=[KeptRecord(scope="s", key=key, value=b"") for key in there],
        )
    )
    assert list(ledger.kept("s")) == sorted(there)
    for prefix in there:
        found = sorted(id_ for id_ in there if id_ and id_.startswith(prefix))
        assert ledger.matching_ids(prefix, limit=100) == found


def test_a_text_may_be_long_and_is_told_from_one_that_ends_differently(ledger: Ledger) -> None:
    long = [chr(0x4E00 + at % 20_000) for at in range(20_000)]
    first, second = "".join([*long, "a"]), "".join([*long, "b"])
    ledger.commit(
        Changes(
            new_jobs=[
                job(at, user=t, name=t, sweep=t, origin="manifest", reason=t) for at, t in ((1, first), (2, second))
            ],
            artifacts=[artifact("a", model=first, user=second, name=first)],
        )
    )
    assert ids(ledger.list_jobs(name=first)) == ids(ledger.list_jobs(user=first)) == ["job-1"]
    assert ids(ledger.list_jobs(name=second, user=second)) == ids(ledger.manifest_jobs(sweep=second)) == ["job-2"]
    assert ledger.newest_named(second) == "job-2"
    assert len(ledger.artifacts(model=first, user=second)) == 1
    assert ledger.artifacts(model=second) == ledger.artifacts(user=first) == []


@pytest.mark.parametrize("bound", [-(2**63), 2**63 - 1])
def test_whole_numbers_have_64_bits(ledger: Ledger, bound: int) -> None:
    beyond = bound + (1 if bound > 0 else -1)
    written = job(1, size=bound, kind=bound, waiting=[(bound, bound)], dropped=[Dropped(bound, bound, "failed")])
    ledger.commit(Changes(new_jobs=[written], tasks=[task("job-1", bound, exit_code=bound, losses=bound)]))
    assert ledger.jobs(["job-1"]) == {"job-1": written}
    assert ledger.tasks(["job-1"])["job-1"].exit_code == bound
    if not isinstance(ledger, MemoryLedger):
        with pytest.raises(LedgerError, match="a row does not fit"):
            ledger.commit(Changes(tasks=[task("job-2", exit_code=beyond)]))
        assert ledger.tasks(["job-2"]) == {}


@pytest.mark.parametrize("number", [0.1, 5e-324, 1.7976931348623157e308, 1e22, -1 / 3, inf, -inf])
def test_a_number_comes_back_to_its_last_bit(ledger: Ledger, number: float) -> None:
    written = job(1, submitted_at=number, finished_at=number)
    ledger.commit(Changes(new_jobs=[written], progress=[JobProgress(id="job-1", state="failed", finished_at=number)]))
    read = ledger.jobs(["job-1"])["job-1"]
    assert [repr(read.submitted_at), repr(read.finished_at)] == [repr(number)] * 2


@pytest.mark.parametrize("size", [0, 1, 8_191, 3_000_000])
def test_bytes_of_any_size_come_back(ledger: Ledger, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    ledger.commit(Changes(new_jobs=[job(1, spec=data)], tasks=[task("job-1", result=data)]))
    ledger.commit(Changes(changed_terms=[terms("job-1", spec=data[::-1])]))
    assert ledger.specs(["job-1"]) == {"job-1": data[::-1]}
    assert ledger.tasks(["job-1"])["job-1"].result == data


def test_text_that_is_none_fails_the_commit_whole(durable_ledger: Ledger) -> None:
    ledger = durable_ledger
    lonely: dict[str, Any] = {"reason": "half of a pair: \ud83d"}
    with pytest.raises(LedgerError, match="a row does not fit"):
        ledger.commit(Changes(new_jobs=[job(1)], tasks=[task("job-1", **lonely)]))
    assert ledger.jobs(["job-1"]) == {}


def test_what_is_kept_and_forgotten_in_one_commit_is_as_the_last_word_says(ledger: Ledger) -> None:
    def kept(key: str, value: bytes | None) -> KeptRecord:
        return KeptRecord(scope="s", key=key, value=value)

    ledger.commit(Changes(kept=[kept("a", b"1"), kept("b", b"1"), kept("a", None), kept("c", None), kept("c", b"2")]))
    assert ledger.kept("s") == {"b": b"1", "c": b"2"}
    ledger.commit(Changes(kept=[kept("b", None), kept("nobody", None), kept("c", b"3"), kept("c", b"")]))
    assert ledger.kept("s") == {"c": b""}


@pytest.mark.parametrize(
    "two",
    [
        Changes(tasks=[task("job-1", id_="t"), task("job-2", id_="t")]),
        Changes(tasks=[task("job-1", 0, "t"), task("job-1", 1, "t"), task("job-1", 0, "t")]),
        Changes(attempts=[attempt("try", "job-1"), attempt("try", "job-2")]),
    ],
)
def test_what_is_written_twice_in_one_commit_has_one_owner(ledger: Ledger, two: Changes) -> None:
    with pytest.raises(LedgerError):
        ledger.commit(two)
    assert ledger.tasks(["t"]) == {}
    assert ledger.attempts_of("job-1") == ledger.attempts_of("job-2") == []


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("states", sorted(set(permutations(["assigned", "assigned", "running"]))))
def test_a_row_is_as_it_was_written_last_whatever_came_before(
    ledger: Ledger, states: tuple[str, ...], together: bool
) -> None:
    rows = [(task("job-1", 0, state=state), attempt("try", "job-1", "job-1", state=state)) for state in states]
    for some in [rows] if together else [[row] for row in rows]:
        ledger.commit(Changes(tasks=[row for row, _ in some], attempts=[row for _, row in some]))
    assert ledger.tasks(["job-1"])["job-1"].state == states[-1]
    assert [one.state for one in ledger.attempts_of("job-1")] == [states[-1]]


def test_a_commit_of_very_many_rows_keeps_their_order(ledger: Ledger) -> None:
    """More than go into one statement, with rows that are there twice on both sides of the border."""
    many = [attempt(f"try-{at % 10_500}", "job-1", "job-1", assigned_at=float(at)) for at in range(10_600)]
    ledger.commit(Changes(attempts=many))
    ledger.commit(Changes(attempts=many[:1], artifacts=[artifact(f"a{at}") for at in range(5_001)]))
    read = ledger.attempts_of("job-1")
    assert [one.attempt for one in read] == [f"try-{at}" for at in range(10_500)]
    assert [one.assigned_at for one in read[:3]] == [0.0, 10_501.0, 10_502.0]
    assert [one.id for _, one in ledger.artifacts(limit=2)] == ["a5000", "a4999"]
