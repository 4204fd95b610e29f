"""What is old, in every ledger: what may go, what must stay, and that what goes is gone."""

from typing import Any

from tests.conformance.ledgers import attempt, job, line, task

from ostler.domain.records import (
    ArtifactRecord,
    Changes,
    DepartedRecord,
    JobProgress,
    JobRecord,
    KeptRecord,
    NeedRecord,
    OutputKey,
    ReceiptRecord,
)
from ostler.ledger.base import Ledger


def ended(seq: int, at: float, id_: str = "", **fields: Any) -> JobRecord:
    return job(seq, id_, **({"state": "succeeded", "finished_at": at} | fields))


def standing(ledger: Ledger, **asked: Any) -> dict[str, bool]:
    return {old.job.id: old.stays for old in ledger.ended_jobs(**{"before": 1e9, **asked})}


def test_jobs_that_have_ended_are_found_in_the_order_in_which_they_did_page_by_page(ledger: Ledger) -> None:
    found = [ended(1, 30.0), ended(2, 10.0, state="failed"), ended(3, 20.0), ended(4, 10.0, state="cancelled")]
    ledger.commit(Changes(new_jobs=[*found, ended(5, 99.0), job(6), job(7, state="unschedulable")]))
    assert list(standing(ledger, before=99.0)) == ["job-2", "job-4", "job-3", "job-1"]
    first = ledger.ended_jobs(before=99.0, limit=2)
    last = first[-1].job
    assert last.finished_at == 10.0
    following = ledger.ended_jobs(before=99.0, after=(last.finished_at, last.seq), limit=9)
    assert [old.job.id for old in following] == ["job-3", "job-1"]
    assert following[1].job == found[0], "the whole row, with its spec"
    ledger.commit(Changes(progress=[JobProgress(id="job-2", state="pending")]))
    assert "job-2" not in standing(ledger), "one that runs again has not ended"


def test_a_job_stays_for_what_lives_and_depends_on_it_for_its_artifact_and_for_its_manifest(ledger: Ledger) -> None:
    names = ["free", "needed", "was-needed", "made", "of-manifest"]
    olds = [ended(seq, float(seq), name) for seq, name in enumerate(names, 1)]
    olds[-1].origin = "manifest"
    ledger.commit(
        Changes(
            new_jobs=[*olds, job(8, "waits"), ended(9, 9.0, "done"), ended(10, 10.0, "newest")],
            needs=[NeedRecord(job_id="waits", on_id="needed"), NeedRecord(job_id="done", on_id="was-needed")],
            artifacts=[ArtifactRecord(id="a", task_id="made", job_id="made")],
        )
    )
    stays = {"free": False, "needed": True, "was-needed": False, "made": True, "of-manifest": True}
    assert standing(ledger) == {**stays, "done": False, "newest": True}
    ledger.commit(
        Changes(
            progress=[JobProgress(id="waits", state="failed", finished_at=11.0)],
            gone_outputs=[OutputKey(id="a", task_id="made")],
        )
    )
    assert standing(ledger) == {**stays, "needed": False, "made": False, "done": False, "newest": True, "waits": False}


def test_a_need_may_be_told_again(ledger: Ledger) -> None:
    need = NeedRecord(job_id="waits", on_id="needed")
    ledger.commit(Changes(new_jobs=[ended(1, 1.0, "needed"), job(2, "waits")], needs=[need]))
    ledger.commit(Changes(needs=[need, NeedRecord(job_id="waits", on_id="another")]))
    assert standing(ledger) == {"needed": True}


def test_what_goes_is_gone_and_nothing_else(ledger: Ledger) -> None:
    ledger.commit(
        Changes(
            new_jobs=[ended(1, 1.0, "old"), ended(2, 2.0, "young"), job(3, "live")],
            tasks=[task("old"), task("young"), task("live")],
            attempts=[
                attempt(name, of, held=False) for name, of in (("try-1", "old"), ("try-2", "old"), ("try-3", "young"))
            ],
            feed=[line(1, "old"), line(2, "young"), line(3, "live")],
            receipts=[ReceiptRecord(key=key, digest="d", ids=[], at=1.0) for key in ("k1", "k2")],
            needs=[NeedRecord(job_id="old", on_id="young")],
        )
    )
    gone = Changes(gone_jobs=["old"], gone_tasks=["old"], gone_feed=[1], gone_receipts=["k1"])
    gone.departed = [DepartedRecord(id="old", digest="d", state="succeeded", at=5.0)]
    ledger.commit(gone)
    assert set(ledger.jobs(["old", "young", "live"])) == {"young", "live"}
    assert set(ledger.tasks(["old", "young", "live"])) == {"young", "live"}
    assert not ledger.attempts_of("old")
    assert [one.attempt for one in ledger.attempts_of("young")] == ["try-3"]
    assert [one.seq for one in ledger.feed(after=0)] == [2, 3]
    assert (ledger.receipt("k1"), ledger.receipt("k2") is not None) == (None, True)
    assert ledger.departed(["old", "young"]) == {"old": gone.departed[0]}
    assert [job.id for job in ledger.load().jobs] == ["live"]
    ledger.commit(Changes(new_jobs=[ended(4, 4.0, "old")], needs=[NeedRecord(job_id="old", on_id="young")]))
    ledger.commit(gone)
    assert not ledger.jobs(["old"]), "removed again, or never there: both are no mistake"


def test_artifacts_come_in_order_and_stay_for_a_job_that_lives_or_ended_late_or_is_needed(ledger: Ledger) -> None:
    names = ["live", "late", "needed", "free"]
    made = [job(1, "live"), ended(2, 50.0, "late"), ended(3, 5.0, "needed"), ended(4, 5.0, "free")]
    ledger.commit(
        Changes(
            new_jobs=[*made, job(5, "waits")],
            needs=[NeedRecord(job_id="waits", on_id="needed")],
            tasks=[task(name, state="succeeded", artifact_id=f"of-{name}") for name in names],
            artifacts=[ArtifactRecord(id=f"of-{name}", task_id=name, job_id=name, size=7) for name in names],
        )
    )
    found = ledger.outputs(before=50.0)
    assert [(one.artifact.job_id, one.stays) for one in found] == [
        *((name, True) for name in names[:3]),
        ("free", False),
    ]
    assert [one.artifact.job_id for one in ledger.outputs(before=50.0, after=found[1].number, limit=1)] == ["needed"]
    assert not {one.artifact.job_id: one.stays for one in ledger.outputs(before=51.0)}["late"]
    ledger.commit(Changes(gone_outputs=[OutputKey(id="of-free", task_id="free"), OutputKey(id="x", task_id="late")]))
    assert ledger.tasks(["free"])["free"].artifact_id == ""
    assert ledger.tasks(["late"])["late"].artifact_id == "of-late", "its artifact is another one"
    assert ledger.wanted_artifacts() == {"of-live", "of-late", "of-needed"}
    assert [one.artifact.job_id for one in ledger.outputs(before=9.0)] == names[:3]


def test_the_end_of_an_attempt_is_that_of_its_job_and_none_while_the_job_must_stay(ledger: Ledger) -> None:
    ledger.commit(
        Changes(
            new_jobs=[job(1, "live"), ended(2, 5.5, "over"), ended(3, 6.0, "needed"), job(4, "waits")],
            needs=[NeedRecord(job_id="waits", on_id="needed")],
            attempts=[attempt(f"of-{name}", name, state="failed", held=False) for name in ("live", "over", "needed")],
        )
    )
    found = ledger.ends_of(["of-live", "of-over", "of-needed", "of-nobody"])
    assert found == {"of-live": None, "of-over": 5.5, "of-needed": None}


def test_old_lines_say_whether_their_job_is_there_and_the_newest_is_never_old(ledger: Ledger) -> None:
    lines = [line(1, "worker"), line(2, "job-1"), line(3, "gone"), line(4, "job-1"), line(5, "worker")]
    for number, one in enumerate(lines):
        one.at = float(number)
    ledger.commit(Changes(new_jobs=[job(1)], feed=lines))
    assert ledger.old_feed(before=99.0) == [(1, False), (2, True), (3, False), (4, True)]
    assert ledger.old_feed(before=3.0, after=1, limit=1) == [(2, True)]
    assert ledger.old_feed(before=0.0) == []
    lines[0].at = lines[1].at = 50.0
    ledger.commit(Changes(feed=lines[:2]))
    assert ledger.old_feed(before=9.0, limit=2) == [], "it does not look further than that"
    assert ledger.old_feed(before=9.0, limit=3) == [(3, False)]


def test_old_receipts_come_oldest_first(ledger: Ledger) -> None:
    keys = {"b": 2.0, "a": 3.0, "c": 1.0}
    ledger.commit(Changes(receipts=[ReceiptRecord(key=key, digest="d", ids=[], at=at) for key, at in keys.items()]))
    assert ledger.old_receipts(before=3.0) == ["c", "b"]
    assert ledger.old_receipts(before=9.0, limit=1) == ["c"]


def test_the_jobs_of_a_snapshot_can_be_had_one_after_the_other(ledger: Ledger) -> None:
    held = [attempt("try-1", "over")]
    ledger.commit(Changes(new_jobs=[job(2, "b"), job(1, "a"), ended(3, 1.0, "over"), ended(4, 1.0)], attempts=held))
    ledger.commit(Changes(kept=[KeptRecord(scope="tally", key="succeeded", value=b"2")]))
    whole, without = ledger.load(), ledger.load(with_jobs=False)
    assert [job.id for job in whole.jobs] == ["a", "b", "over"]
    assert list(ledger.live_jobs()) == whole.jobs
    assert (without.jobs, without.attempts, without.tally) == ([], whole.attempts, {"succeeded": b"2"})
