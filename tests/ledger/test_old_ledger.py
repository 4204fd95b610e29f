"""A ledger that the first version wrote, opened by this one. Its rows are put in as that version put them in."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from tests.ledger.files import altered, of_every_kind

from ostler.domain.job import Terms
from ostler.domain.labels import Constraint
from ostler.domain.records import (
    AttemptRecord,
    Dropped,
    FeedRecord,
    JobRecord,
    ReceiptRecord,
    Snapshot,
    TaskRecord,
    TokenRecord,
    UsageRecord,
    WorkerRecord,
)
from ostler.domain.resources import Request
from ostler.ledger.base import JobView
from ostler.ledger.migrate import bundled, migrate
from ostler.ledger.sqlite import SqliteLedger

NONE = '{"gpu_count":0,"gpu_type":"","backend":"","vram_mib":0,"cores_milli":0,"memory_mib":0,"pool":"batch","labels":[],"prefer":[],"nodes":1}'
GPU = '{"gpu_count":1,"gpu_type":"h100","backend":"nvidia","vram_mib":0,"cores_milli":1500,"memory_mib":4096,"pool":"batch","labels":[{"label":"zone","op":"in","value":"eu,ü"}],"prefer":[],"nodes":1}'
SHARE = '{"gpu_count":0,"gpu_type":"","backend":"","vram_mib":8192,"cores_milli":250,"memory_mib":512,"pool":"service","labels":[],"prefer":[],"nodes":1}'
TERMS = '{"priority":3,"tier":"training","max_attempts":3,"max_retries":0,"max_runtime_s":86400.0,"scheduling_timeout_s":0.0,"preemptible":false,"service":false,"stops_alone":true}'
BLOB = "f" * 64
JOBS = f"""
INSERT INTO jobs (seq, id, user, name, request, terms, size, state, submitted_at, queued_at, finished_at, waiting, counts,
                  dropped, reason, blocked_on, snapshot, spec) VALUES
 (1, 'train', 'ada', 'é', '{GPU}', '{TERMS}', 0, 'running', 1000.5, 0.0, NULL, '[]', '{{}}', '[]', '', '[]', 's', x'7b7d'),
 (2, 'serve', 'bob', '', '{SHARE}', '{TERMS}', 0, 'running', 1000.5, 0.0, NULL, '[]', '{{}}', '[]', '', '[]', '', x'7b7d'),
 (3, 'array', 'ada', '', '{GPU}', '{TERMS}', 5, 'running', 1000.5, 1001.5, NULL, '[[2,4]]', '{{"running":2,"pending":2}}',
  '[{{"low":4,"high":5,"state":"failed","reason":"why"}}]', '', '["train"]', '', x'7b7d'),
 (4, 'call', 'ada', '', '{NONE}', '{TERMS}', 0, 'succeeded', 1000.5, 0.0, 9.5, '[]', '{{}}', '[]', '', '[]', '', x'7b7d'),
 (5, 'small', 'ada', '', '{NONE}', '{TERMS}', 0, 'succeeded', 1000.5, 0.0, 9.5, '[]', '{{}}', '[]', '', '[]', '', x'7b7d'),
 (6, 'ended', 'ada', '', '{SHARE}', '{TERMS}', 0, 'cancelled', 1000.5, 0.0, 9.5, '[]', '{{}}', '[]', '', '[]', '', x'7b7d');
"""
TASKS = f"""
INSERT INTO tasks (id, job_id, idx, state, attempt, worker, losses, failures, used_s, started_at, finished_at, exit_code,
                   reason, health, artifact_id, result) VALUES
 ('train', 'train', 0, 'running', 'try-1', 'w', 1, 2, 0.5, 2.0, NULL, NULL, '', '', '', NULL),
 ('serve', 'serve', 0, 'running', 'try-2', 'w', 0, 0, 0.0, 2.0, NULL, NULL, '', 'healthy', '', NULL),
 ('array.0', 'array', 0, 'running', 'try-3', 'w', 0, 0, 0.0, 2.0, NULL, NULL, '', '', '', NULL),
 ('array.1', 'array', 1, 'running', 'try-5', 'w', 1, 0, 0.0, 2.0, NULL, NULL, '', '', '', NULL),
 ('call', 'call', 0, 'succeeded', 'try-6', 'w', 0, 0, 0.0, 2.0, 9.5, 0, '', '', '{BLOB}', NULL),
 ('small', 'small', 0, 'succeeded', 'try-7', 'w', 0, 0, 0.0, 2.0, 9.5, 0, '', '', '', x'22c3bc22'),
 ('ended', 'ended', 0, 'cancelled', 'try-8', 'w', 0, 0, 0.0, 2.0, 9.5, NULL, 'cancelled', '', '', NULL);
"""
ATTEMPTS = """
INSERT INTO attempts (attempt, task_id, job_id, worker, devices, share_mib, state, held, holder, accepted, assigned_at,
                      started_at, finished_at, stop_reason, reason, why) VALUES
 ('try-1', 'train', 'train', 'w', '[3]', 0, 'running', 1, 1, 1, 2.0, 2.5, NULL, '', '', 'tightest fit'),
 ('try-2', 'serve', 'serve', 'w', '[0]', 8192, 'running', 1, 1, 1, 2.0, 2.5, NULL, '', '', ''),
 ('try-3', 'array.0', 'array', 'w', '[1]', 0, 'running', 1, 1, 1, 2.0, 2.5, NULL, '', '', ''),
 ('try-4', 'array.1', 'array', 'w', '[2]', 0, 'failed', 0, 0, 1, 2.0, 2.5, 3.5, '', 'lost', ''),
 ('try-5', 'array.1', 'array', 'w', '[2]', 0, 'assigned', 1, 1, 0, 2.0, NULL, NULL, '', '', ''),
 ('try-8', 'ended', 'ended', 'w', '[0]', 8192, 'cancelled', 1, 0, 1, 2.0, 2.5, NULL, 'cancelled', '', ''),
 ('stray', 'gone', 'gone', 'w', '[]', 0, 'running', 1, 1, 1, 2.0, 2.5, NULL, '', '', '');
"""
OTHERS = """
INSERT INTO workers (id, draining, registered_at, last_contact, capabilities) VALUES ('w', 1, 1.0, 2.0, x'7b7d');
INSERT INTO feed (seq, at, kind, subject, body) VALUES (41, 1.5, 'job', 'train', '{"worker":"w","n":2}');
INSERT INTO tokens (id, role, user, digest, created_at, revoked_at) VALUES
 ('t1', 'admin', 'ada', 'd1', 1.0, 9.0), ('t2', 'worker', '', 'd2', 2.0, NULL);
INSERT INTO receipts (key, digest, ids, at) VALUES ('k', 'd', '["train"]', 4.0);
INSERT INTO usage (user, gpu_seconds, at) VALUES ('ada', 7.25, 5.0);
"""

GPU_REQUEST = Request(
    gpu_count=1,
    gpu_type="h100",
    backend="nvidia",
    cores_milli=1500,
    memory_mib=4096,
    labels=(Constraint("zone", "in", "eu,ü"),),
)
SHARE_REQUEST = Request(vram_mib=8192, cores_milli=250, memory_mib=512, pool="service")
ON_GPU: dict[str, Any] = {"cores_milli": 1500, "memory_mib": 4096, "pool": "batch"}
ON_SHARE: dict[str, Any] = {"cores_milli": 250, "memory_mib": 512, "pool": "service", "share_mib": 8192}


def job(seq: int, id_: str, state: str, request: Request, **fields: Any) -> JobRecord:
    known: dict[str, Any] = {"user": "ada", "name": "", "spec": b"{}", "size": 0, "submitted_at": 1000.5}
    terms = Terms(priority=3, tier="training", stops_alone=True)
    return JobRecord(id=id_, seq=seq, state=state, request=request, terms=terms, **(known | fields))


def task(id_: str, attempt: str, state: str, index: int = 0, **fields: Any) -> TaskRecord:
    known: dict[str, Any] = {"job_id": id_.partition(".")[0], "index": index, "worker": "w", "started_at": 2.0}
    return TaskRecord(id=id_, attempt=attempt, state=state, **(known | fields))


def attempt(name: str, task_id: str, **fields: Any) -> AttemptRecord:
    known: dict[str, Any] = {"state": "running", "accepted": True, "started_at": 2.5, "worker": "w", "assigned_at": 2.0}
    return AttemptRecord(attempt=name, task_id=task_id, job_id=task_id.partition(".")[0], **(known | fields))


ALL_JOBS = [
    job(1, "train", "running", GPU_REQUEST, name="é", snapshot="s"),
    job(2, "serve", "running", SHARE_REQUEST, user="bob"),
    job(
        3,
        "array",
        "running",
        GPU_REQUEST,
        size=5,
        queued_at=1001.5,
        waiting=[(2, 4)],
        counts={"running": 2, "pending": 2},
        dropped=[Dropped(4, 5, "failed", "why")],
        blocked_on=["train"],
    ),
    job(4, "call", "succeeded", Request(), finished_at=9.5),
    job(5, "small", "succeeded", Request(), finished_at=9.5),
    job(6, "ended", "cancelled", SHARE_REQUEST, finished_at=9.5),
]
ALL_TASKS = [
    task("array.0", "try-3", "running"),
    task("array.1", "try-5", "running", 1, losses=1),
    task("call", "try-6", "succeeded", finished_at=9.5, exit_code=0, result_id=BLOB),
    task("ended", "try-8", "cancelled", finished_at=9.5, reason="cancelled"),
    task("serve", "try-2", "running", health="healthy"),
    task("small", "try-7", "succeeded", finished_at=9.5, exit_code=0, result=b'"\xc3\xbc"'),
    task("train", "try-1", "running", losses=1, failures=2, used_s=0.5),
]
HELD = [
    attempt("try-1", "train", devices=[3], why="tightest fit", **ON_GPU),
    attempt("try-2", "serve", devices=[0], **ON_SHARE),
    attempt("try-3", "array.0", devices=[1], **ON_GPU),
    attempt("try-5", "array.1", devices=[2], state="assigned", accepted=False, started_at=None, **ON_GPU),
    attempt("try-8", "ended", devices=[0], state="cancelled", holder=False, stop_reason="cancelled", **ON_SHARE),
    attempt("stray", "gone"),
]
TOKENS = [
    TokenRecord(id="t1", role="admin", user="ada", digest="d1", created_at=1.0, revoked_at=9.0),
    TokenRecord(id="t2", role="worker", user="", digest="d2", created_at=2.0),
]


@pytest.fixture
def old(path: Path) -> Path:
    db = apsw.Connection(str(path))
    migrate(db, path, bundled()[:1])
    for _ in db.execute(JOBS + TASKS + ATTEMPTS + OTHERS):
        pass
    db.close()
    return path


@pytest.fixture
def ledger(old: Path) -> Iterator[SqliteLedger]:
    opened = SqliteLedger(old)
    yield opened
    opened.close()


def test_a_hub_goes_on_from_an_old_ledger_and_counts_what_its_attempts_hold(ledger: SqliteLedger) -> None:
    ended = ("call", "small")
    assert ledger.load() == Snapshot(
        jobs=[msgspec.structs.replace(each, spec=b"") for each in ALL_JOBS if each.id not in ended],
        tasks=[each for each in ALL_TASKS if each.id not in ended],
        attempts=HELD,
        workers=[WorkerRecord(id="w", capabilities=b"{}", draining=True, registered_at=1.0, last_contact=2.0)],
        tokens=TOKENS[1:],
        usage=[UsageRecord(user="ada", gpu_seconds=7.25, at=5.0)],
        tally={"cancelled": b"1", "succeeded": b"2"},
        last_job_seq=6,
        last_feed_seq=41,
    )


def test_the_history_of_an_old_ledger_is_still_there(ledger: SqliteLedger) -> None:
    tasks = {each.id: each for each in ALL_TASKS}
    assert ledger.jobs([each.id for each in ALL_JOBS]) == {each.id: each for each in ALL_JOBS}
    assert ledger.tasks([*tasks]) == tasks
    assert ledger.list_jobs() == [
        JobView(each, None if each.size else tasks[each.id]) for each in sorted(ALL_JOBS, key=lambda one: -one.seq)
    ]
    lost = attempt("try-4", "array.1", devices=[2], state="failed", held=False, holder=False, finished_at=3.5)
    assert ledger.attempts_of("array.1") == [msgspec.structs.replace(lost, reason="lost"), HELD[3]]
    assert ledger.feed(after=0) == [
        FeedRecord(seq=41, at=1.5, kind="job", subject="train", body={"worker": "w", "n": 2})
    ]
    assert ledger.token_list() == TOKENS
    assert ledger.receipt("k") == ReceiptRecord(key="k", digest="d", ids=["train"], at=4.0)


def test_the_values_of_functions_in_an_old_ledger_are_no_artifacts(ledger: SqliteLedger) -> None:
    assert ledger.tasks(["call"])["call"].result_id == BLOB
    assert ledger.wanted_artifacts() == set()
    assert ledger.artifacts() == ledger.manifest_jobs() == []
    assert ledger.load().manifest is None


def test_an_old_ledger_takes_every_kind_of_change_and_is_brought_up_to_date_once(old: Path) -> None:
    ledger = SqliteLedger(old)
    ledger.commit(of_every_kind(42))
    read = ledger.load(), ledger.artifacts(), ledger.tasks(["call", "job-42"])
    ledger.close()
    first_copy = old.with_name("ostler.db.before-2").stat()
    again = SqliteLedger(old)
    assert (again.load(), again.artifacts(), again.tasks(["call", "job-42"])) == read
    again.close()
    assert old.with_name("ostler.db.before-2").stat().st_mtime_ns == first_copy.st_mtime_ns


def test_an_old_ledger_is_copied_aside_as_the_old_version_can_read_it(ledger: SqliteLedger, old: Path) -> None:
    copy = old.with_name("ostler.db.before-2")
    assert [file.name for file in old.parent.glob("*before*")] == [copy.name]
    assert copy.stat().st_mode & 0o777 == 0o600
    db = apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READONLY)
    assert db.execute("SELECT group_concat(name) FROM migrations").get == "0001_start"
    assert db.execute("SELECT artifact_id FROM tasks WHERE id = 'call'").get == BLOB
    assert db.execute("SELECT count(*) FROM attempts WHERE held = 1").get == len(HELD)
    assert not db.table_exists(None, "artifacts")
    db.close()
    restored = SqliteLedger(copy)
    assert restored.load() == ledger.load()
    restored.close()


def test_what_the_live_jobs_of_an_old_ledger_depend_on_stays(old: Path) -> None:
    altered(
        old,
        """UPDATE jobs SET spec = CAST('{"depends_on": ["call", "call"]}' AS BLOB) WHERE id IN ('array', 'ended')""",
    )
    altered(old, "UPDATE jobs SET spec = x'ff' WHERE id = 'train'")
    ledger = SqliteLedger(old)
    stays = {one.job.id: one.stays for one in ledger.ended_jobs(before=99.0)}
    assert stays == {"call": True, "small": False, "ended": True}, "one is depended on, one is the newest"
    ledger.close()


def test_a_migration_that_was_released_stays_as_it_is() -> None:
    released = {
        "0001_start": "4f851f642414c84bf80510a8ead995f11d6f4c0ef6807f84d47fe6922b818ef3",
        "0002_training": "cf54b852d5142467f7c365690575e565a3d1ad93ee8cfa9204488d16922d97b5",
    }
    assert released.items() <= {migration.name: migration.checksum for migration in bundled()}.items()
