"""What every ledger does, asked of every ledger."""

from typing import Any

import msgspec
import pytest
from tests.conformance.ledgers import (
    REQUEST,
    TERMS,
    artifact,
    attempt,
    everything,
    ids,
    job,
    line,
    manifest,
    task,
    terms,
    token,
    worker,
)

from ostler.domain.errors import LedgerError
from ostler.domain.records import (
    AttemptRecord,
    EndedTask,
    FeedRecord,
    JobProgress,
    JobRecord,
    KeptRecord,
    ReceiptRecord,
    SentAhead,
    TaskRecord,
)
from ostler.domain.states import LIVE, STATES, TERMINAL
from ostler.ledger.ahead import placed, task_of
from ostler.ledger.base import Changes, JobView, Ledger, Snapshot

# Jobs


def test_an_empty_ledger_answers_every_read_with_nothing(ledger: Ledger) -> None:
    assert ledger.load() == Snapshot()
    assert not any((ledger.jobs(["a"]), ledger.jobs([]), ledger.specs(["a"]), ledger.tasks(["a"])))
    assert not any((ledger.tasks_of("a"), ledger.attempts_of("a"), ledger.list_jobs(), ledger.token_list()))
    assert not any((ledger.matching_ids(""), ledger.feed(after=0)))
    assert not any((ledger.manifest_jobs(), ledger.artifacts(), ledger.artifacts(ids=["a"]), ledger.wanted_artifacts()))
    assert ledger.newest_named("a") is None
    assert ledger.receipt("a") is None
    assert ledger.manifest() is None


def test_a_job_comes_back_as_it_was_written(ledger: Ledger) -> None:
    written = job(
        1,
        user="zoë",
        name="Größe 日本 \N{SNOWMAN}",
        spec=bytes(range(256)) * 1024,
        request=REQUEST,
        terms=TERMS,
        size=1000,
        state="running",
        finished_at=1.1,
        origin="manifest",
        sweep="Größe {lr}",
        waiting=[(0, 5), (7, 1000)],
        counts={"running": 2, "pending": 998},
        reason='it\'s "quoted"; -- and\nbroken\0',
    )
    ledger.commit(Changes(new_jobs=[written]))
    assert ledger.jobs(["job-1", "nobody"]) == {"job-1": written}
    assert ledger.specs(["job-1", "nobody"]) == {"job-1": written.spec}


def test_progress_changes_its_part_of_the_job_and_nothing_else(ledger: Ledger) -> None:
    ledger.commit(Changes(new_jobs=[job(1, size=9, waiting=[(0, 9)]), job(2)]))
    progress = JobProgress(id="job-1", state="running", waiting=[(3, 9)], counts={"running": 3}, reason="why")
    ledger.commit(Changes(progress=[progress]))
    kept = {field: getattr(progress, field) for field in progress.__struct_fields__}
    assert ledger.jobs(["job-1", "job-2"]) == {
        "job-1": msgspec.structs.replace(job(1, size=9), **kept),
        "job-2": job(2),
    }


def test_a_job_may_come_and_progress_in_one_commit(ledger: Ledger) -> None:
    ledger.commit(Changes(new_jobs=[job(1)], progress=[JobProgress(id="job-1", state="failed", finished_at=3.0)]))
    assert ledger.jobs(["job-1"])["job-1"].state == "failed"


@pytest.mark.parametrize(
    "contradiction",
    [
        pytest.param(Changes(new_jobs=[job(2), job(3, "job-1")]), id="a job id again"),
        pytest.param(Changes(new_jobs=[job(2), job(3, "job-2")]), id="a job id twice"),
        pytest.param(Changes(new_jobs=[job(2), job(1, "job-3")]), id="a seq again"),
        pytest.param(Changes(progress=[JobProgress(id="nobody", state="running")]), id="progress of no job"),
        pytest.param(Changes(changed_terms=[terms("job-1"), terms("nobody")]), id="terms of no job"),
        pytest.param(Changes(tasks=[task("job-2", id_="job-1")]), id="a task of another job"),
        pytest.param(Changes(attempts=[attempt("try-1", "job-2")]), id="an attempt of another task"),
        pytest.param(Changes(manifest=[manifest("other", id=2)]), id="a second manifest"),
    ],
)
def test_a_commit_that_contradicts_what_is_there_changes_nothing(ledger: Ledger, contradiction: Changes) -> None:
    ledger.commit(Changes(new_jobs=[job(1)], tasks=[task("job-1")], attempts=[attempt("try-1", "job-1")]))
    ledger.commit(Changes(artifacts=[artifact("ab")], manifest=[manifest("first")]))
    before = everything(ledger)
    good = Changes(
        progress=[JobProgress(id="job-1", state="succeeded", finished_at=1.0)],
        tasks=[task("job-1", state="succeeded")],
        attempts=[attempt("try-1", "job-1", held=False)],
        workers=[worker("w")],
        feed=[line(1)],
        tokens=[token("t")],
        receipts=[ReceiptRecord(key="k", digest="d", ids=["job-1"], at=1.0)],
        changed_terms=[terms("job-1", name="renamed", sweep="s")],
        artifacts=[artifact("a")],
        gone_artifacts=["ab"],
        manifest=[manifest("last")],
    )
    whole = Changes(**{f: getattr(good, f) + getattr(contradiction, f) for f in good.__struct_fields__})
    with pytest.raises(LedgerError):
        ledger.commit(whole)
    assert everything(ledger) == before
    ledger.commit(good)
    assert ledger.jobs(["job-1"])["job-1"].state == "succeeded"
    assert [one.id for _, one in ledger.artifacts()] == ["a"]


def test_what_the_caller_does_to_its_records_later_changes_nothing_in_the_ledger(ledger: Ledger) -> None:
    mine = Changes(
        new_jobs=[job(1, waiting=[(0, 3)], counts={"pending": 3})],
        tasks=[task("job-1")],
        attempts=[attempt("try-1", "job-1", devices=[0])],
        feed=[line(1, worker="w")],
        receipts=[ReceiptRecord(key="k", digest="d", ids=["job-1"], at=1.0)],
    )
    ledger.commit(mine)
    as_written = msgspec.json.decode(msgspec.json.encode(mine), type=Changes)

    def spoil(
        a_job: JobRecord, a_task: TaskRecord, one: AttemptRecord, a_line: FeedRecord, paper: ReceiptRecord
    ) -> None:
        a_job.state, a_task.state, one.held = "failed", "failed", False
        a_job.waiting.append((5, 6))
        a_job.counts["failed"] = 1
        one.devices.append(7)
        a_line.body["worker"] = "other"
        paper.ids.clear()

    def check() -> None:
        assert list(ledger.jobs(["job-1"]).values()) == as_written.new_jobs
        assert ledger.tasks_of("job-1") == as_written.tasks
        assert ledger.attempts_of("job-1") == ledger.load().attempts == as_written.attempts
        assert ledger.feed(after=0) == as_written.feed
        assert ledger.receipt("k") == as_written.receipts[0]

    spoil(mine.new_jobs[0], mine.tasks[0], mine.attempts[0], mine.feed[0], mine.receipts[0])
    check()
    paper = ledger.receipt("k")
    assert paper is not None
    read = ledger.tasks_of("job-1")[0], ledger.attempts_of("job-1")[0], ledger.feed(after=0)[0], paper
    spoil(ledger.jobs(["job-1"])["job-1"], *read)
    spoil(ledger.load().jobs[0], *read)
    check()


def test_an_empty_commit_changes_nothing(ledger: Ledger) -> None:
    ledger.commit(Changes())
    assert ledger.load() == Snapshot()


# What a restart reads


def test_the_snapshot_holds_every_job_that_has_not_ended_without_its_spec(ledger: Ledger) -> None:
    jobs = [job(seq, state=state) for seq, state in enumerate(STATES, 1)]
    ledger.commit(Changes(new_jobs=jobs[::-1]))
    live = [msgspec.structs.replace(each, spec=b"") for each in jobs if each.state in LIVE]
    assert ledger.load().jobs == live
    assert ledger.load().last_job_seq == len(STATES)


def test_the_snapshot_holds_a_job_that_ended_while_an_attempt_of_it_still_holds_room(ledger: Ledger) -> None:
    ended = job(1, size=3, state="cancelled")
    held, released = attempt("try-1", "job-1.0", "job-1"), attempt("try-2", "job-1.1", "job-1", held=False)
    tasks = [task("job-1", index, f"job-1.{index}", state="cancelled", result=b"{}") for index in range(3)]
    ledger.commit(Changes(new_jobs=[ended, job(2, state="failed")], tasks=tasks, attempts=[held, released]))
    snapshot = ledger.load()
    assert snapshot.jobs == [msgspec.structs.replace(ended, spec=b"")]
    assert snapshot.tasks == [tasks[0]]
    assert snapshot.attempts == [held]
    ledger.commit(Changes(attempts=[msgspec.structs.replace(held, held=False)]))
    snapshot = ledger.load()
    assert not snapshot.jobs
    assert not snapshot.tasks
    assert not snapshot.attempts


def test_the_snapshot_holds_the_live_tasks_of_live_jobs_in_order(ledger: Ledger) -> None:
    tasks = [task("job-1", index, f"job-1.{index}", state=state) for index, state in enumerate(STATES)]
    of_an_ended_job = task("job-2", state="running")
    new = [job(1, size=len(STATES)), job(2, state="failed")]
    ledger.commit(Changes(new_jobs=new, tasks=[of_an_ended_job, *reversed(tasks)]))
    assert ledger.load().tasks == [each for each in tasks if each.state in LIVE]


def test_the_snapshot_follows_a_job_that_is_queued_again_after_it_ended(ledger: Ledger) -> None:
    ledger.commit(Changes(new_jobs=[job(1, state="failed", finished_at=2.0)], tasks=[task("job-1", state="failed")]))
    assert not ledger.load().jobs
    ledger.commit(Changes(progress=[JobProgress(id="job-1", state="pending")], tasks=[task("job-1", state="pending")]))
    assert [each.state for each in ledger.load().jobs] == ["pending"]
    assert [each.state for each in ledger.load().tasks] == ["pending"]


def test_the_snapshot_holds_workers_and_the_tokens_that_are_not_revoked(ledger: Ledger) -> None:
    workers = [worker("b", draining=True), worker("a", capabilities=b'{"gpu":"\xc3\xa9"}', claims=b'{"cpu_cores":2}')]
    tokens = [token("t2", expires_at=4.5), token("t1", revoked_at=9.0)]
    ledger.commit(Changes(workers=workers, tokens=tokens, feed=[line(41), line(7)]))
    ledger.commit(Changes(workers=[worker("b", last_contact=77.5)]))
    snapshot = ledger.load()
    assert snapshot.workers == [workers[1], worker("b", last_contact=77.5)]
    assert snapshot.tokens == tokens[:1]
    assert snapshot.last_feed_seq == 41


# Tasks and attempts


def test_a_task_written_again_replaces_the_old_row(ledger: Ledger) -> None:
    first = task("job-1", worker="w", attempt="try-1", losses=1, failures=2, used_s=0.1, started_at=3.5)
    last = msgspec.structs.replace(
        first,
        state="succeeded",
        finished_at=9.25,
        exit_code=-9,
        artifact_id="é",
        metrics={"loss": 0.1, "Größe": -1e300},
        checkpoint="c",
        checkpoint_by="w",
        result_id="r",
        result=b"\0" * 300_000,
        reason="done",
    )
    ledger.commit(Changes(tasks=[first]))
    assert ledger.tasks(["job-1"]) == {"job-1": first}
    ledger.commit(Changes(tasks=[first, last]))
    assert ledger.tasks(["job-1", "nobody"]) == {"job-1": last}


def test_tasks_of_a_job_come_page_by_page_in_order_of_index(ledger: Ledger) -> None:
    tasks = [task("job-1", index, f"job-1.{index}") for index in (10, 2, 0, 9, 100)]
    ledger.commit(Changes(tasks=[*tasks, task("job-10")]))

    def page(**bounds: int) -> list[int]:
        return [each.index for each in ledger.tasks_of("job-1", **bounds)]

    assert page() == [0, 2, 9, 10, 100]
    assert page(limit=2) == [0, 2]
    assert page(after=2, limit=2) == [9, 10]
    assert page(after=10) == [100]
    assert page(after=100) == page(limit=0) == []


def test_of_tasks_that_have_ended_a_page_has_how_they_did_and_no_others(ledger: Ledger) -> None:
    states = dict.fromkeys(range(6), "running") | {1: "failed", 2: "succeeded", 4: "cancelled"}
    tasks = [task("job-1", index, f"job-1.{index}", state=state, result=b"7") for index, state in states.items()]
    ledger.commit(Changes(tasks=[*tasks[::-1], task("job-10", 0, "job-10.0", state="succeeded")]))
    told = [EndedTask(f"job-1.{index}", index, states[index], None, "", b"7") for index in (1, 2, 4)]
    assert ledger.ended_tasks_of("job-1") == told
    assert ledger.ended_tasks_of("job-1", limit=2) == told[:2]
    assert ledger.ended_tasks_of("job-1", after=1) == told[1:]
    assert ledger.ended_tasks_of("job-1", after=4) == ledger.ended_tasks_of("job-1", limit=0) == []


def test_attempts_of_a_task_come_in_the_order_in_which_they_were_first_written(ledger: Ledger) -> None:
    granted = {"devices": [3, 1], "share_mib": 7, "cores_milli": 1_500, "memory_mib": 512, "pool": "service"}
    first = attempt("z", "job-1", assigned_at=9.0, accepted=True, why="tightest fit", **granted)
    second = attempt("a", "job-1", assigned_at=2.0, state="assigned")
    ledger.commit(Changes(attempts=[first, attempt("other", "job-2")]))
    ledger.commit(Changes(attempts=[second]))
    assert ledger.attempts_of("job-1") == [first, second]
    ended = msgspec.structs.replace(first, held=False, state="failed", finished_at=11.0, reason="lost")
    ledger.commit(Changes(attempts=[ended]))
    assert ledger.attempts_of("job-1") == [ended, second]


# Lists


def test_jobs_are_listed_newest_first_and_page_by_page(ledger: Ledger) -> None:
    ledger.commit(Changes(new_jobs=[job(seq) for seq in (3, 1, 20, 4)]))
    assert ids(ledger.list_jobs()) == ["job-20", "job-4", "job-3", "job-1"]
    assert ids(ledger.list_jobs(limit=2)) == ["job-20", "job-4"]
    assert ids(ledger.list_jobs(limit=2, before=4)) == ["job-3", "job-1"]
    assert ids(ledger.list_jobs(before=1)) == ids(ledger.list_jobs(limit=0)) == []


def test_lists_narrow_by_states_user_and_name_together(ledger: Ledger) -> None:
    jobs = [
        job(seq, f"{user}-{name}-{state}", user=user, name=name, state=state)
        for seq, (user, name, state) in enumerate(
            (user, name, state) for user in ("ada", "Ada") for name in ("", "x", "X%") for state in STATES
        )
    ]
    ledger.commit(Changes(new_jobs=jobs))
    for states in ((), ("running",), ("failed", "pending", "failed"), TERMINAL, ("nonsense",)):
        for user in ("", "ada", "Ada", "nobody"):
            for name in ("", "x", "X%", "%"):
                for before in (None, 20):
                    expected = [
                        each.id
                        for each in reversed(jobs)
                        if (not states or each.state in states)
                        and user in ("", each.user)
                        and name in ("", each.name)
                        and (before is None or each.seq < before)
                    ]
                    asked: dict[str, Any] = {"states": states, "user": user, "name": name, "before": before}
                    assert ids(ledger.list_jobs(limit=5, **asked)) == expected[:5], asked


def test_a_list_follows_a_job_from_state_to_state(ledger: Ledger) -> None:
    ledger.commit(Changes(new_jobs=[job(1, name="x")]))
    ledger.commit(Changes(progress=[JobProgress(id="job-1", state="failed")]))
    for user, name in (("", ""), ("ada", ""), ("", "x")):
        assert ids(ledger.list_jobs(states=["pending"], user=user, name=name)) == []
        assert ids(ledger.list_jobs(states=["failed"], user=user, name=name)) == ["job-1"]


def test_a_list_shows_the_task_of_a_single_task_job_where_it_has_a_row(ledger: Ledger) -> None:
    single, array, waiting = job(1), job(2, size=2), job(3)
    rows = [task("job-1", result=b"42"), task("job-2", 0, "job-2"), task("job-2", 1, "job-2.1")]
    ledger.commit(Changes(new_jobs=[single, array, waiting], tasks=rows))
    assert ledger.list_jobs() == [JobView(waiting, None), JobView(array, None), JobView(single, rows[0])]


def test_ids_match_by_prefix_and_no_character_is_special(ledger: Ledger) -> None:
    there = ["a", "a%", "a%b", "a_b", "aXb", "A", "a*", "a?", "a[b", "ab", "é", "éa", "日本", "日本語"]
    ledger.commit(Changes(new_jobs=[job(seq, id_) for seq, id_ in enumerate(there)]))
    for prefix in ["", "a", "a%", "a_", "%", "_", "A", "a*", "a?", "a[", "é", "日本", "日本語x", "\\", "'", "a\0"]:
        matching = sorted(id_ for id_ in there if id_.startswith(prefix))
        assert ledger.matching_ids(prefix, limit=100) == matching
        assert ledger.matching_ids(prefix) == matching[:2]


def test_a_name_leads_to_the_newest_job_that_has_it(ledger: Ledger) -> None:
    named = [job(5, name="sweep"), job(9, name="sweep"), job(7, name="sweep"), job(10, name="Sweep"), job(11)]
    ledger.commit(Changes(new_jobs=named))
    assert ledger.newest_named("sweep") == "job-9"
    assert ledger.newest_named("swee") is None
    assert ledger.newest_named("swee%") is None


def test_a_job_without_a_name_is_found_by_no_name(ledger: Ledger) -> None:
    ledger.commit(Changes(new_jobs=[job(1)]))
    assert ledger.newest_named("") is None


# Feed, receipts, tokens


def test_the_feed_comes_oldest_first_after_a_seq_and_of_one_subject(ledger: Ledger) -> None:
    lines = [line(seq, subject) for seq, subject in ((1, "a"), (2, "b"), (5, "a"), (6, "a%"), (9, "a"))]
    ledger.commit(Changes(feed=lines[::-1]))

    def seqs(after: int, subject: str = "", limit: int = 1000) -> list[int]:
        return [each.seq for each in ledger.feed(after=after, subject=subject, limit=limit)]

    assert ledger.feed(after=0) == lines
    assert seqs(2) == [5, 6, 9]
    assert seqs(1, limit=2) == [2, 5]
    assert seqs(0, "a") == [1, 5, 9]
    assert seqs(1, "a", limit=1) == [5]
    assert seqs(0, "nobody") == seqs(9) == seqs(0, limit=0) == []


def test_the_feed_has_the_newest_lines_and_those_of_one_task(ledger: Ledger) -> None:
    told = [(1, "a.1"), (2, "a.10"), (3, "a.1"), (4, "a.1"), (5, 'b","task":"a.1')]
    lines = [line(seq, "a", task=task, reason='{"task":"a.1"}') for seq, task in told]
    ledger.commit(Changes(feed=[*lines, line(6, "b", task="a.1"), line(7, "a"), line(8, "a", task=None)]))

    def seqs(**asked: Any) -> list[int]:
        return [each.seq for each in ledger.feed(**asked)]

    assert seqs(after=0, newest=True, limit=3) == [6, 7, 8]
    assert seqs(after=7, newest=True, limit=3) == [8]
    assert seqs(after=0, subject="a", newest=True, limit=3) == [5, 7, 8]
    assert seqs(after=0, subject="a", task="a.1") == [1, 3, 4]
    assert seqs(after=1, subject="a", task="a.1", limit=1) == [3]
    assert seqs(after=0, subject="a", task="a.1", newest=True, limit=2) == [3, 4]
    assert seqs(after=0, subject="a", task='b","task":"a.1') == [5]
    assert seqs(after=0, subject="a", task="a") == seqs(after=0, subject="a", newest=True, limit=0) == []


def test_the_body_of_a_feed_line_keeps_text_numbers_and_nothing_apart(ledger: Ledger) -> None:
    written = line(1, text="ü\n\0", whole=2**62, half=0.5, one=1.0, negative=-7, none=None, empty="")
    ledger.commit(Changes(feed=[written]))
    [read] = ledger.feed(after=0)
    assert read == written
    assert [type(value) for value in read.body.values()] == [type(value) for value in written.body.values()]


def test_a_receipt_is_found_by_its_key(ledger: Ledger) -> None:
    receipt = ReceiptRecord(key="k/ü %", digest="d", ids=["job-2", "job-1"], at=3.25)
    ledger.commit(Changes(receipts=[receipt]))
    assert ledger.receipt("k/ü %") == receipt
    assert ledger.receipt("k/ü _") is None
    again = msgspec.structs.replace(receipt, ids=[], at=4.0)
    ledger.commit(Changes(receipts=[again]))
    assert ledger.receipt("k/ü %") == again


def test_tokens_are_listed_oldest_first_and_a_revoked_one_keeps_its_place(ledger: Ledger) -> None:
    ledger.commit(Changes(tokens=[token("z", created_at=5.0)]))
    ledger.commit(Changes(tokens=[token("a", created_at=3.0, role="admin")]))
    ledger.commit(Changes(tokens=[token("z", created_at=5.0, revoked_at=8.5, expires_at=7.0)]))
    assert ledger.token_list() == [
        token("z", created_at=5.0, revoked_at=8.5, expires_at=7.0),
        token("a", created_at=3.0, role="admin"),
    ]


def sent_together(*attempts: tuple[int, str, str]) -> SentAhead:
    return SentAhead(
        job_id="job-1",
        key=attempts[0][1],
        low=min(index for index, *_ in attempts),
        high=max(index for index, *_ in attempts),
        worker="w",
        cores_milli=500,
        memory_mib=64,
        pool="batch",
        assigned_at=3.0,
        attempts=list(attempts),
    )


def test_what_was_sent_ahead_is_loaded_and_its_rows_are_written_when_there_are_any(ledger: Ledger) -> None:
    sent = sent_together((0, "a-1", "job-0"), (1, "a-2", "job-1.0"))
    ledger.commit(Changes(new_jobs=[job(1, size=9)], kept=[sent.kept()]))
    assert ledger.load().ahead == [sent]
    assert task_of(ledger, "job-1", 2) == (None, [])
    (task, attempt), (other, its) = sent.rows()
    assert task_of(ledger, "job-1", 1) == (other, [its])
    # Nobody has a row yet, then one has: said to be without one, both are there afterwards.
    left = msgspec.structs.replace(sent, attempts=sent.attempts[1:])
    ledger.commit(
        Changes(kept=[left.kept()], tasks=[task], attempts=[attempt], unwritten=[attempt.attempt, task.id]),
    )
    ended = msgspec.structs.replace(task, state="succeeded", finished_at=5.0)
    none = msgspec.structs.replace(sent, attempts=[])
    names = [one for pair in ((attempt.attempt, task.id), (its.attempt, other.id)) for one in pair]
    ledger.commit(Changes(kept=[none.kept()], tasks=[ended, other], attempts=[attempt, its], unwritten=names))
    assert ledger.load().ahead == []
    assert placed(ledger, "job-1") == [ended, other]
    assert ledger.attempts_of("job-1.1") == [its]


def test_those_sent_ahead_stand_among_those_with_rows_on_every_page(ledger: Ledger) -> None:
    entries = [sent_together(*((index, f"a-{index}", "job-0") for index in some)) for some in ([1, 2, 5], [4, 9], [12])]
    rows = [
        msgspec.structs.replace(entries[0].task(index, f"b-{index}"), state="running") for index in (0, 3, 6, 7, 13)
    ]
    ledger.commit(Changes(new_jobs=[job(1, size=20)], kept=[one.kept() for one in entries], tasks=rows))
    every = sorted([*rows, *(task for one in entries for task, _ in one.rows())], key=lambda task: task.index)
    assert [task.index for task in every] == [0, 1, 2, 3, 4, 5, 6, 7, 9, 12, 13]
    for after in range(-1, 15):
        for limit in range(1, 13):
            page = [task for task in every if task.index > after][:limit]
            assert placed(ledger, "job-1", after=after, limit=limit) == page
    for index in range(20):
        task = next((task for task in every if task.index == index), None)
        assert task_of(ledger, "job-1", index)[0] == task


def test_odds_and_ends_are_kept_by_scope_and_key_until_they_are_forgotten(ledger: Ledger) -> None:
    first = [("s", "b", b"2"), ("s", "a", b"1"), ("other", "a", b"\0\xff"), ("kind", "k", b"{}")]
    ledger.commit(Changes(kept=[KeptRecord(scope=s, key=k, value=v) for s, k, v in first]))
    assert list(ledger.kept("s").items()) == [("a", b"1"), ("b", b"2")]
    assert ledger.load().learnt == {"k": b"{}"}
    second = [("s", "a", b""), ("s", "b", None), ("s", "c", b"3"), ("s", "c", None), ("s", "nobody", None)]
    ledger.commit(Changes(kept=[KeptRecord(scope=s, key=k, value=v) for s, k, v in second]))
    assert ledger.kept("s") == {"a": b""}
    assert ledger.kept("other") == {"a": b"\0\xff"}
    assert ledger.kept("nobody") == {}


@pytest.mark.parametrize(
    "strange", [Changes(new_jobs=[job(2, state="lost")]), Changes(progress=[JobProgress(id="job-1", state="")])]
)
def test_a_job_in_a_state_that_is_none_is_refused_or_it_would_be_in_no_list(ledger: Ledger, strange: Changes) -> None:
    ledger.commit(Changes(new_jobs=[job(1, name="n")]))
    before = everything(ledger)
    with pytest.raises(LedgerError):
        ledger.commit(strange)
    assert everything(ledger) == before


def test_thousands_of_ids_can_be_asked_for_at_once(ledger: Ledger) -> None:
    many = [job(seq) for seq in range(1, 3001)]
    ledger.commit(Changes(new_jobs=many))
    wanted = [f"job-{seq}" for seq in range(1, 40_001)]
    assert len(ledger.jobs(wanted)) == len(ledger.specs(set(wanted))) == 3000
