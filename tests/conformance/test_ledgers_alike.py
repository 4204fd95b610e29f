"""Any changes at all: every ledger answers as the one in plain dicts does."""

from collections.abc import Collection, Iterable
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_type_hints

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.ledgers import LEDGERS, POOL, REQUEST, TERMS, everything

from ostler.domain.errors import LedgerError
from ostler.domain.job import Terms
from ostler.domain.records import (
    ArtifactRecord,
    AttemptRecord,
    Dropped,
    FeedRecord,
    JobProgress,
    JobRecord,
    JobTerms,
    KeptRecord,
    ManifestRecord,
    ReceiptRecord,
    TaskRecord,
    TokenRecord,
    UsageRecord,
    WorkerRecord,
)
from ostler.domain.resources import Request
from ostler.domain.states import STATES
from ostler.ledger.base import Changes, Ledger
from ostler.ledger.memory import MemoryLedger

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ONE = st.sampled_from(POOL)
MAYBE = ONE | st.just("")
STATE = st.sampled_from(STATES)
WHOLE = st.integers(-(2**63), 2**63 - 1)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: WHOLE,
    float: NUMBER,
    bool: st.booleans(),
    bytes: st.binary(max_size=40),
    int | None: st.none() | WHOLE,
    float | None: st.none() | NUMBER,
    bytes | None: st.none() | st.binary(max_size=40),
    list[int]: st.lists(WHOLE, max_size=3),
    list[str]: st.lists(TEXT, max_size=3),
    list[tuple[int, int]]: st.lists(st.tuples(WHOLE, WHOLE), max_size=3),
    list[Dropped]: st.lists(st.builds(Dropped, WHOLE, WHOLE, TEXT, TEXT), max_size=3),
    dict[str, int]: st.dictionaries(TEXT, WHOLE, max_size=3),
    dict[str, float]: st.dictionaries(TEXT, NUMBER, max_size=3),
    dict[str, str | int | float | None]: st.dictionaries(TEXT, TEXT | WHOLE | NUMBER | st.none(), max_size=3),
    Request: st.sampled_from([Request(), REQUEST]),
    Terms: st.sampled_from([Terms(), TERMS]),
}


def some(kind: Any, *unique: str, **chosen: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Up to three records of a kind, every field of them drawn."""
    fields = {field: chosen[field] if field in chosen else VALUES[hint] for field, hint in get_type_hints(kind).items()}
    return st.lists(st.builds(kind, **fields), max_size=3, unique_by=tuple(map(attrgetter, unique)) or None)


def one_of(choices: Iterable[Any]) -> st.SearchStrategy[Any]:
    """Nothing can be drawn where there is no choice."""
    among = list(choices)
    return st.sampled_from(among) if among else st.nothing()


@st.composite
def new_jobs(draw: st.DrawFn, known: Collection[JobRecord]) -> list[JobRecord]:
    taken = {job.id for job in known}, {job.seq for job in known}
    return draw(
        some(
            JobRecord,
            "id",
            "seq",
            id=one_of(name for name in POOL if name not in taken[0]),
            seq=one_of(seq for seq in range(1, 41) if seq not in taken[1]),
            user=ONE,
            name=MAYBE,
            state=STATE,
            size=st.integers(0, 2),
            origin=st.sampled_from(["manifest", ""]),
            sweep=MAYBE,
        )
    )


@st.composite
def changes(draw: st.DrawFn, known: Collection[JobRecord]) -> Changes:
    """Such as a hub makes, where `known` are the jobs that are there."""
    jobs = draw(new_jobs(known))
    there = one_of(job.id for job in (*known, *jobs))
    tasks = draw(some(TaskRecord, job_id=ONE, index=st.integers(0, 2), state=STATE, artifact_id=MAYBE))
    for each in tasks:
        each.id = f"{each.job_id}.{each.index}" if each.index else each.job_id
    attempts = draw(some(AttemptRecord, attempt=ONE, job_id=ONE))
    for each in attempts:
        each.task_id = f"{each.job_id}.1" if each.accepted else each.job_id
        each.attempt = f"{each.attempt} of {each.task_id}"
    return Changes(
        new_jobs=jobs,
        changed_terms=draw(some(JobTerms, id=there, name=MAYBE, sweep=MAYBE)),
        progress=draw(some(JobProgress, id=there, state=STATE)),
        tasks=tasks,
        attempts=attempts,
        workers=draw(some(WorkerRecord, id=ONE)),
        usage=draw(some(UsageRecord, user=ONE)),
        feed=draw(some(FeedRecord, seq=st.integers(1, 12), subject=ONE)),
        tokens=draw(some(TokenRecord, id=ONE)),
        receipts=draw(some(ReceiptRecord, key=ONE)),
        artifacts=draw(some(ArtifactRecord, id=ONE, task_id=ONE, job_id=ONE, model=MAYBE, user=MAYBE)),
        gone_artifacts=draw(st.lists(ONE, max_size=2)),
        manifest=draw(some(ManifestRecord, id=st.just(1))),
        kept=draw(some(KeptRecord, scope=ONE | st.just("kind"), key=ONE)),
    )


@st.composite
def contradictions(draw: st.DrawFn) -> Changes:
    """Such as no hub should make: most of them do not fit what is there, or themselves."""
    return Changes(
        new_jobs=draw(some(JobRecord, id=ONE, seq=st.integers(1, 40))),
        changed_terms=draw(some(JobTerms, id=ONE)),
        progress=draw(some(JobProgress, id=ONE, state=STATE)),
        tasks=draw(some(TaskRecord, id=ONE, job_id=ONE, index=st.integers(0, 2), state=STATE)),
        attempts=draw(some(AttemptRecord, attempt=ONE, task_id=ONE, job_id=ONE)),
        artifacts=draw(some(ArtifactRecord, id=ONE, task_id=ONE, job_id=ONE)),
        gone_artifacts=draw(st.lists(ONE, max_size=2)),
        manifest=draw(some(ManifestRecord, id=st.integers(1, 2))),
    )


def committed(ledger: Ledger, made: Changes) -> bool:
    try:
        ledger.commit(made)
    except LedgerError:
        return False
    return True


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_after_any_changes_sqlite_answers_as_plain_dicts_do(data: st.DataObject) -> None:
    change_and_compare("sqlite", data)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(data=st.data())
def test_after_any_changes_postgresql_answers_as_plain_dicts_do(data: st.DataObject) -> None:
    change_and_compare("postgres", data)


def change_and_compare(name: str, data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        model, ledger = MemoryLedger(), LEDGERS[name](Path(folder))
        try:
            for _ in range(data.draw(st.integers(1, 6))):
                sound = data.draw(st.integers(0, 9)) < 8
                made = data.draw(changes(model.jobs(POOL).values()) if sound else contradictions())
                assert committed(ledger, made) == committed(model, made)
            assert everything(ledger) == everything(model)
        finally:
            ledger.close()
