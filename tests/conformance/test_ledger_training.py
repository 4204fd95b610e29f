"""What every ledger keeps of a training fleet: the manifest and its jobs, changed terms, artifacts."""

from typing import Any

import msgspec
import pytest
from tests.conformance.ledgers import REQUEST, TERMS, artifact, ids, job, manifest, task, terms

from ostler.domain.job import Terms
from ostler.domain.records import JobProgress
from ostler.domain.states import LIVE, STATES
from ostler.ledger.base import Changes, JobView, Ledger

# Terms that a changed manifest changes


def test_changed_terms_change_their_part_of_the_job_and_nothing_else(ledger: Ledger) -> None:
    old = job(1, name="before", state="running", size=3, waiting=[(1, 3)], counts={"running": 1}, origin="manifest")
    ledger.commit(Changes(new_jobs=[old, job(2, name="before")]))
    changed = terms("job-1", name="Größe 日本", spec=b"new" * 5000, request=REQUEST, terms=TERMS, sweep="s")
    ledger.commit(Changes(changed_terms=[changed]))
    kept = {field: getattr(changed, field) for field in changed.__struct_fields__}
    new = msgspec.structs.replace(old, **kept)
    assert ledger.jobs(["job-1", "job-2"]) == {"job-1": new, "job-2": job(2, name="before")}
    assert ledger.specs(["job-1"]) == {"job-1": changed.spec}
    assert ledger.load().jobs[0] == msgspec.structs.replace(new, spec=b"")


def test_a_job_may_come_change_its_terms_and_progress_in_one_commit(ledger: Ledger) -> None:
    ledger.commit(
        Changes(
            new_jobs=[job(1, origin="manifest", sweep="old")],
            changed_terms=[terms("job-1", sweep="first"), terms("job-1", name="n", terms=TERMS, sweep="last")],
            progress=[JobProgress(id="job-1", state="failed", finished_at=3.0, reason="why")],
        )
    )
    expected = job(
        1,
        origin="manifest",
        sweep="last",
        name="n",
        spec=b"{}",
        terms=TERMS,
        state="failed",
        finished_at=3.0,
        reason="why",
    )
    assert ledger.jobs(["job-1"]) == {"job-1": expected}


def test_terms_and_progress_of_one_job_do_not_undo_each_other(ledger: Ledger) -> None:
    ledger.commit(Changes(new_jobs=[job(1)]))
    ledger.commit(Changes(progress=[JobProgress(id="job-1", state="running", reason="placed")]))
    ledger.commit(Changes(changed_terms=[terms("job-1", terms=Terms(priority=9))]))
    ledger.commit(Changes(progress=[JobProgress(id="job-1", state="pending", reason="lost")]))
    [read] = ledger.jobs(["job-1"]).values()
    assert (read.terms.priority, read.state, read.reason) == (9, "pending", "lost")


def test_every_list_follows_a_job_whose_name_and_sweep_are_changed(ledger: Ledger) -> None:
    ledger.commit(Changes(new_jobs=[job(1, name="old", origin="manifest", sweep="old")]))
    ledger.commit(Changes(changed_terms=[terms("job-1", name="new", sweep="new")]))
    for name, found in (("old", []), ("new", ["job-1"])):
        assert ids(ledger.list_jobs(name=name)) == ids(ledger.manifest_jobs(sweep=name)) == found
    assert ledger.newest_named("old") is None
    assert ledger.newest_named("new") == "job-1"
    ledger.commit(Changes(changed_terms=[terms("job-1")]))
    assert ids(ledger.manifest_jobs(sweep="new")) == []
    assert ids(ledger.manifest_jobs()) == ["job-1"]


# The manifest and its jobs


def test_the_manifest_is_the_one_that_was_applied_last(ledger: Ledger) -> None:
    assert ledger.manifest() is None
    first = manifest('# é 日本\n[[jobs]]\nname = "\\u0000"\n\0', file="", by="zoë")
    ledger.commit(Changes(manifest=[first]))
    assert ledger.manifest() == ledger.load().manifest == first
    last = manifest("", applied_at=0.5)
    ledger.commit(Changes(manifest=[first, last]))
    assert ledger.manifest() == ledger.load().manifest == last
    ledger.commit(Changes(new_jobs=[job(1)]))
    assert ledger.manifest() == ledger.load().manifest == last


def test_the_jobs_of_the_manifest_come_oldest_first(ledger: Ledger) -> None:
    brought = [job(seq, origin="manifest") for seq in (20, 3, 1, 11)]
    ledger.commit(Changes(new_jobs=[*brought, job(2), job(12, sweep="s")]))
    assert ids(ledger.manifest_jobs()) == ["job-1", "job-3", "job-11", "job-20"]


def test_the_jobs_of_the_manifest_narrow_by_sweep_and_states_together(ledger: Ledger) -> None:
    cases = [(o, s, state) for o in ("", "manifest") for s in ("", "lr", "LR", "lr%", "日本") for state in STATES]
    jobs = [job(seq, origin=o, sweep=s, state=state) for seq, (o, s, state) in enumerate(cases, 1)]
    ledger.commit(Changes(new_jobs=jobs[::-1]))
    for sweep in ("", "lr", "LR", "lr%", "日本", "%", "nobody"):
        for states in ((), ("failed",), ("running", "pending", "running"), LIVE, ("nonsense",)):
            expected = [
                each.id
                for each in jobs
                if each.origin and sweep in ("", each.sweep) and (not states or each.state in states)
            ]
            assert ids(ledger.manifest_jobs(sweep=sweep, states=states)) == expected, (sweep, states)


def test_jobs_of_the_manifest_are_found_by_their_name(ledger: Ledger) -> None:
    names = ["lr", "lr", "LR", "lr%", "", "日本"]
    jobs = [job(seq, origin="manifest", name=name) for seq, name in enumerate(names, 1)]
    by_hand = job(len(jobs) + 1, name="lr")
    ledger.commit(Changes(new_jobs=[*jobs, by_hand]))
    assert ids(ledger.manifest_jobs(name="lr")) == ["job-1", "job-2"]
    assert ids(ledger.manifest_jobs(name="lr", states=["succeeded"])) == []
    assert ids(ledger.manifest_jobs(name="lr", sweep="s")) == ids(ledger.manifest_jobs(name="nobody")) == []
    for name in names[2:]:
        assert ids(ledger.manifest_jobs(name=name)) == [one.id for one in jobs if name in ("", one.name)]


def test_a_job_of_the_manifest_comes_with_its_spec_and_its_task_where_it_has_one(ledger: Ledger) -> None:
    single, array, waiting = (job(seq, origin="manifest", size=size) for seq, size in ((1, 0), (2, 2), (3, 0)))
    done = task("job-1", state="succeeded", metrics={"auc": 0.75}, artifact_id="a")
    ledger.commit(Changes(new_jobs=[single, array, waiting], tasks=[done, task("job-2", id_="job-2")]))
    assert ledger.manifest_jobs() == [JobView(single, done), JobView(array, None), JobView(waiting, None)]


def test_the_jobs_of_the_manifest_follow_their_states(ledger: Ledger) -> None:
    ledger.commit(Changes(new_jobs=[job(1, origin="manifest", sweep="s")]))
    ledger.commit(Changes(progress=[JobProgress(id="job-1", state="succeeded")]))
    for sweep in ("", "s"):
        assert ids(ledger.manifest_jobs(sweep=sweep, states=["pending"])) == []
        assert ids(ledger.manifest_jobs(sweep=sweep, states=["succeeded"])) == ["job-1"]


# Artifacts


def found(ledger: Ledger, **asked: Any) -> list[tuple[str, str]]:
    return [(one.id, one.task_id) for _, one in ledger.artifacts(**asked)]


def test_an_artifact_comes_back_as_it_was_written(ledger: Ledger) -> None:
    written = artifact(
        "f" * 64,
        "array.7",
        "array",
        name="Größe 日本",
        user="zoë",
        model="gbt",
        mode='it\'s "quoted"; --',
        attempt="try-1",
        worker="w",
        size=2**40,
        created_at=0.1,
        metrics={"loss": 0.1, "ü\n": -1e-300, "whole": 3.0},
    )
    ledger.commit(Changes(artifacts=[written]))
    [(number, read)] = ledger.artifacts()
    assert read == written
    assert number > 0
    assert type(read.metrics["whole"]) is float


def test_artifacts_come_newest_first_and_page_by_page_by_their_numbers(ledger: Ledger) -> None:
    names = [f"a{at}" for at in range(7)]
    ledger.commit(Changes(artifacts=[artifact(name, created_at=-float(at)) for at, name in enumerate(names[:4])]))
    ledger.commit(Changes(artifacts=[artifact(name, created_at=-9.0) for name in names[4:]]))
    pages, before = [], None
    while page := ledger.artifacts(before=before, limit=3):
        pages.append([one.id for _, one in page])
        assert [number for number, _ in page] == sorted((number for number, _ in page), reverse=True)
        before = page[-1][0]
    assert pages == [["a6", "a5", "a4"], ["a3", "a2", "a1"], ["a0"]]
    assert ledger.artifacts(limit=0) == ledger.artifacts(limit=-1) == ledger.artifacts(before=0) == []


def test_a_page_of_artifacts_is_a_hundred_long_unless_it_is_told_otherwise(ledger: Ledger) -> None:
    ledger.commit(Changes(artifacts=[artifact(f"a{at}") for at in range(101)]))
    assert len(ledger.artifacts()) == 100
    assert len(ledger.artifacts(limit=1000)) == 101


def test_artifacts_narrow_by_every_condition_together_and_an_empty_one_is_none(ledger: Ledger) -> None:
    cases = [
        (id_, j, m, u) for id_ in ("a", "A", "é") for j in ("x", "x%") for m in ("", "gbt") for u in ("ada", "Ada")
    ]
    there = [artifact(id_, f"{j}.{at}", j, model=m, user=u) for at, (id_, j, m, u) in enumerate(cases)]
    ledger.commit(Changes(artifacts=there))
    for wanted in ((), ["a"], {"a", "é", "nobody"}, ["%"]):
        for job_id in ("", "x", "x%", "%"):
            for model in ("", "gbt", "GBT"):
                for user in ("", "ada", "nobody"):
                    asked: dict[str, Any] = {"ids": wanted, "job_id": job_id, "model": model, "user": user}
                    expected = [
                        one
                        for one in reversed(there)
                        if (not wanted or one.id in wanted)
                        and job_id in ("", one.job_id)
                        and model in ("", one.model)
                        and user in ("", one.user)
                    ]
                    read = ledger.artifacts(**asked)
                    assert [one for _, one in read] == expected, asked
                    if len(read) > 1:
                        assert ledger.artifacts(before=read[0][0], limit=1, **asked) == read[1:2], asked


def test_tasks_with_the_same_bytes_have_a_row_each(ledger: Ledger) -> None:
    ledger.commit(Changes(artifacts=[artifact("same", "job-1"), artifact("other", "job-1"), artifact("same", "job-2")]))
    assert found(ledger, ids=["same"]) == [("same", "job-2"), ("same", "job-1")]
    assert found(ledger, job_id="job-1") == [("other", "job-1"), ("same", "job-1")]


def test_an_artifact_written_again_keeps_its_number_and_takes_the_new_values(ledger: Ledger) -> None:
    ledger.commit(Changes(artifacts=[artifact("a", size=1, metrics={"loss": 2.0}), artifact("b")]))
    before = ledger.artifacts()
    again = artifact("a", size=2, metrics={"auc": 0.5}, worker="w", model="gbt")
    ledger.commit(Changes(artifacts=[again]))
    assert ledger.artifacts() == [before[0], (before[1][0], again)]
    assert found(ledger, model="gbt") == [("a", "job-1")]


def test_an_artifact_that_is_gone_is_gone_for_every_task_and_may_come_again(ledger: Ledger) -> None:
    kept = artifact("b", "job-3")
    ledger.commit(Changes(artifacts=[artifact("a", "job-1"), kept, artifact("a", "job-2")]))
    ledger.commit(Changes(gone_artifacts=["a", "a", "nobody"]))
    assert found(ledger) == [("b", "job-3")]
    assert ledger.artifacts(ids=["a"]) == ledger.artifacts(job_id="job-2") == []
    ledger.commit(Changes(artifacts=[artifact("a", "job-1", size=7)]))
    assert found(ledger) == [("a", "job-1"), ("b", "job-3")]
    assert ledger.artifacts()[0][1].size == 7


def test_an_artifact_that_comes_after_the_newest_is_gone_is_the_newest(ledger: Ledger) -> None:
    ledger.commit(Changes(artifacts=[artifact("a"), artifact("b"), artifact("c")]))
    ledger.commit(Changes(gone_artifacts=["c"]))
    cursor = ledger.artifacts(limit=1)[0][0]
    ledger.commit(Changes(artifacts=[artifact("d")]))
    assert found(ledger) == [("d", "job-1"), ("b", "job-1"), ("a", "job-1")]
    assert found(ledger, before=cursor) == [("a", "job-1")]


def test_an_artifact_that_comes_and_goes_in_one_commit_is_gone(ledger: Ledger) -> None:
    ledger.commit(Changes(artifacts=[artifact("a"), artifact("b")], gone_artifacts=["a"]))
    assert found(ledger) == [("b", "job-1")]


@pytest.mark.parametrize("together", [True, False])
def test_an_artifact_that_a_succeeded_task_points_to_is_never_gone(ledger: Ledger, together: bool) -> None:
    there = Changes(
        tasks=[task("job-1", state="succeeded", artifact_id="a"), task("job-2", state="failed", artifact_id="b")],
        artifacts=[artifact("a", "job-1"), artifact("a", "old"), artifact("b", "job-2"), artifact("", "job-3")],
    )
    gone = ["a", "b", ""]
    if together:
        ledger.commit(msgspec.structs.replace(there, gone_artifacts=gone))
    else:
        ledger.commit(there)
        ledger.commit(Changes(gone_artifacts=gone))
    assert found(ledger) == [("a", "old"), ("a", "job-1")]
    ledger.commit(Changes(tasks=[task("job-1", state="pending", artifact_id="a")], gone_artifacts=gone))
    assert found(ledger) == []


def test_thousands_of_artifacts_can_be_named_at_once(ledger: Ledger) -> None:
    ledger.commit(Changes(artifacts=[artifact(f"a{at}") for at in range(3000)]))
    many = [f"a{at}" for at in range(40_000)]
    assert len(ledger.artifacts(ids=many, limit=10**6)) == 3000
    ledger.commit(Changes(gone_artifacts=many[1:]))
    assert found(ledger) == [("a0", "job-1")]


def test_an_artifact_is_wanted_while_a_succeeded_task_points_to_it(ledger: Ledger) -> None:
    tasks = [task("job-1", at, f"job-1.{at}", state=state, artifact_id=state) for at, state in enumerate(STATES)]
    same = task("job-2", state="succeeded", artifact_id="succeeded")
    without = task("job-3", state="succeeded", result_id="value", checkpoint="point")
    ledger.commit(Changes(tasks=[*tasks, same, without], artifacts=[artifact("of nobody")]))
    assert ledger.wanted_artifacts() == {"succeeded"}
    requeued = msgspec.structs.replace(same, state="pending")
    ledger.commit(Changes(tasks=[requeued]))
    assert ledger.wanted_artifacts() == {"succeeded"}
    trained_again = [msgspec.structs.replace(each, state="succeeded", artifact_id="日本") for each in tasks]
    ledger.commit(Changes(tasks=trained_again))
    assert ledger.wanted_artifacts() == {"日本"}
    ledger.commit(Changes(tasks=[msgspec.structs.replace(each, state="failed") for each in trained_again]))
    assert ledger.wanted_artifacts() == set()


@pytest.mark.parametrize("spoilt", ["written", "read"])
def test_what_the_caller_does_to_metrics_later_changes_nothing_in_the_ledger(ledger: Ledger, spoilt: str) -> None:
    mine, one = task("job-1", metrics={"loss": 1.0}), artifact("a", metrics={"loss": 1.0})
    page = manifest("as applied")
    ledger.commit(Changes(new_jobs=[job(1, origin="manifest")], tasks=[mine], artifacts=[one], manifest=[page]))
    if spoilt == "read":
        read = ledger.manifest_jobs()[0].task
        assert read is not None
        mine, one = read, ledger.artifacts()[0][1]
        page = ledger.manifest() or page
    mine.metrics["loss"] = one.metrics["loss"] = 9.0
    one.size, page.text = 7, "as spoilt"
    assert ledger.tasks(["job-1"])["job-1"].metrics == {"loss": 1.0}
    assert ledger.artifacts()[0][1] == artifact("a", metrics={"loss": 1.0})
    assert ledger.manifest() == ledger.load().manifest == manifest("as applied")
