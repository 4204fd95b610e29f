"""What a read of the PostgreSQL ledger costs: it goes by an index, however long the history is."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.ledger.files import of_every_kind
from tests.ledger.server import server

from ostler.ledger import postgres
from ostler.ledger import postgres_sql as sql
from ostler.ledger.postgres import PostgresLedger


@pytest.fixture(scope="module")
def long() -> Iterator[PostgresLedger]:
    """A ledger with a history: most of it has ended."""
    url = server().new_database()
    ledger = PostgresLedger(url)
    ledger.lead("tests")
    ledger.commit(of_every_kind(1))
    own = {
        "id": "'id-' || g",
        "job_id": "'id-' || g",
        "task_id": "'id-' || g",
        "attempt": "'id-' || g",
        "subject": "'id-' || g",
        "seq": "g",
        "n": "g",
        "user": "'user-' || g % 100",
        "name": "'name-' || g / 50",
        "sweep": "CASE WHEN g % 100 = 0 THEN 'sweep-' || g / 1000 ELSE '' END",
        "origin": "CASE WHEN g % 100 = 0 THEN 'manifest' ELSE '' END",
        "model": "'model-' || g % 50",
        "state": "CASE WHEN g % 100 = 0 THEN 'running' WHEN g % 3 = 0 THEN 'failed' ELSE 'succeeded' END",
        "artifact_id": "CASE WHEN g % 100 = 0 THEN 'id-' || g ELSE '' END",
        "held": "g % 100 = 0",
        "on_id": "'id-' || g - 1",
        "key": "'key-' || g",
        "at": "g",
        "finished_at": "CASE WHEN g % 100 > 0 THEN g END",
    }
    with psycopg.connect(url, autocommit=True) as db:
        for table in (
            sql.JOBS,
            sql.TASKS,
            sql.ATTEMPTS,
            sql.FEED,
            sql.ARTIFACTS,
            sql.NEEDS,
            sql.DEPARTED,
            sql.RECEIPTS,
        ):
            columns = [*table.columns, *(["n"] if table is sql.ARTIFACTS else [])]
            values = ", ".join(own.get(column, f'one."{column}"') for column in columns)
            rows_of_it = f"(SELECT * FROM {table.name} LIMIT 1) one, generate_series(2, 8001) g"
            db.execute(f"INSERT INTO {table.name} ({sql.named(columns)}) SELECT {values} FROM {rows_of_it}".encode())
        db.execute(b"ANALYZE")
    yield ledger
    ledger.close()


@pytest.mark.parametrize(
    ("read", "asked", "index"),
    [
        ("tasks_of", {"job_id": "j"}, "tasks_of_job"),
        ("attempts_of", {"task_id": "t"}, "attempts_of_task"),
        ("matching_ids", {"prefix": "p"}, "jobs_id_key"),
        ("newest_named", {"name": "n"}, "jobs_by_name"),
        ("feed", {"after": 1}, "feed_pkey"),
        ("feed", {"after": 1, "subject": "s"}, "feed_by_subject"),
        ("feed", {"after": 1, "subject": "s", "task": "s.1", "newest": True}, "feed_by_subject"),
        ("list_jobs", {}, "jobs_pkey"),
        ("list_jobs", {"states": ["failed", "running"]}, "jobs_by_state"),
        ("list_jobs", {"user": "ada"}, "jobs_by_user"),
        ("list_jobs", {"user": "ada", "states": ["failed"]}, "jobs_by_user"),
        ("list_jobs", {"name": "n"}, "jobs_by_name"),
        ("list_jobs", {"name": "n", "user": "ada", "states": ["failed"]}, "jobs_by_name"),
        ("jobs", {"ids": ["a", "b"]}, "jobs_id_key"),
        ("manifest_jobs", {"states": ["failed"]}, "jobs_of_manifest"),
        ("manifest_jobs", {"name": "n"}, "jobs_by_name"),
        ("manifest_jobs", {"sweep": "s"}, "jobs_by_sweep"),
        ("artifacts", {}, "artifacts_pkey"),
        ("artifacts", {"job_id": "j"}, "artifacts_of_job"),
        ("artifacts", {"model": "m"}, "artifacts_by_model"),
        ("artifacts", {"user": "ada"}, "artifacts_by_user"),
        ("artifacts", {"ids": ["a"]}, "artifacts_id_task_id_key"),
        ("wanted_artifacts", {}, "tasks_wanting"),
        ("ended_jobs", {"before": 1e9, "after": (1.0, 1)}, "jobs_ended"),
        ("departed", {"ids": ["a"]}, "departed_pkey"),
        ("outputs", {"before": 1e9, "after": 3}, "artifacts_pkey"),
        ("ends_of", {"attempts": ["a"]}, "attempts_attempt_key"),
        ("old_feed", {"before": 1e9, "after": 3}, "feed_pkey"),
        ("old_receipts", {"before": 1e9}, "receipts_by_age"),
    ],
)
def test_a_read_goes_by_its_index_however_long_the_history(
    long: PostgresLedger, monkeypatch: pytest.MonkeyPatch, read: str, asked: dict[str, Any], index: str
) -> None:
    asked_for: list[tuple[str, Any]] = []
    monkeypatch.setattr(long, "_all", lambda build, query, *values: asked_for.append((query, values)) or [])
    getattr(long, read)(**asked)
    [(query, values)] = asked_for
    goes_by(index, plan_of(long, query, postgres._bound(values)))


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (postgres._LOAD_JOBS, "jobs_by_state"),
        (postgres._LOAD_TASKS, "tasks_live"),
        (postgres._LOAD_ATTEMPTS, "attempts_held"),
    ],
)
def test_a_restart_reads_what_lives_however_long_the_history(long: PostgresLedger, query: bytes, index: str) -> None:
    # A server may well choose to read such a short history whole: that this is not all it can do is to be shown.
    goes_by(index, plan_of(long, query.decode(), [], b"SET enable_seqscan = off"))


def plan_of(ledger: PostgresLedger, query: str, values: list[Any], first: bytes = b"RESET ALL") -> str:
    with ledger._readers.connection() as db:
        db.execute(first)
        plan = "\n".join(row[0] for row in db.execute(f"EXPLAIN {query}".encode(), values))
        db.execute(b"RESET ALL")
        return plan


def goes_by(index: str, plan: str) -> None:
    assert f"using {index} " in plan or f"on {index} " in plan, plan
    assert "Seq Scan" not in plan, plan


def test_a_commit_finds_its_rows_by_their_keys_even_when_its_plans_were_made_on_an_empty_ledger() -> None:
    fresh = PostgresLedger(server().new_database())
    for statement, values in sql.statements(of_every_kind(1)):
        plan = "\n".join(row[0] for row in fresh._writer.execute(b"EXPLAIN " + statement, values))
        assert "Seq Scan" not in plan, plan
        assert "Hash Join" not in plan, plan
    fresh.close()
