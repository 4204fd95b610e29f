"""The queue follows a manifest: idempotent, all or nothing, and what runs runs on."""

from typing import Any

import msgspec
from tests.core.core_fleet import CoreFleet, entry

from ostler.core.effects import AssignTask, Followed, Refuse
from ostler.core.events import NewJob, PriorityRequested
from ostler.domain import states
from ostler.domain.errors import Conflict, QuotaExceeded
from ostler.domain.hosts import HostPolicy
from ostler.domain.job import Training
from ostler.domain.quota import Quota, Quotas


def test_a_second_apply_changes_nothing() -> None:
    core = CoreFleet()
    jobs = [entry("a"), entry("b")]
    assert core.follow(*jobs) == {"a": "inserted", "b": "inserted"}
    assert core.follow(entry("a"), entry("b")) == {"a": "unchanged", "b": "unchanged"}
    assert core.queue() == ["a", "b"]
    assert core.job("a").origin == "manifest"


def test_what_is_no_longer_in_the_file_is_absent_until_it_is_cancelled() -> None:
    core = CoreFleet()
    core.follow(entry("a"), entry("b"))
    assert core.follow(entry("a")) == {"a": "unchanged", "b": "absent"}
    assert core.state("b") == states.PENDING
    core.cancel("b")
    assert core.follow(entry("a")) == {"a": "unchanged"}


def test_a_job_that_has_ended_is_never_changed_and_keeps_its_state() -> None:
    core = CoreFleet()
    core.follow(entry("a"))
    core.worker("w")
    core.start("a")
    core.end("a")
    assert core.follow(entry("a", priority=9)) == {"a": "unchanged"}
    assert core.state("a") == states.SUCCEEDED
    assert core.follow() == {}


def test_a_priority_that_was_given_by_hand_differs_and_an_apply_takes_it_back() -> None:
    core = CoreFleet()
    core.follow(entry("a", priority=5))
    core.turn(PriorityRequested(ref=7, job_id="a", priority=50, row=core.job("a")))
    assert core.follow(entry("a", priority=5), plan=True) == {"a": "updated"}
    (answer,) = core.of(Followed)
    assert answer.lines[0].differs == ["priority"]
    core.follow(entry("a", priority=5))
    assert core.job("a").terms.priority == 5
    assert core.follow(entry("a", priority=5)) == {"a": "unchanged"}


def test_a_changed_priority_moves_a_waiting_job() -> None:
    core = CoreFleet()
    core.follow(entry("a"), entry("b"))
    assert core.follow(entry("a"), entry("b", priority=5)) == {"a": "unchanged", "b": "updated"}
    (answer,) = core.of(Followed)
    assert [line.differs for line in answer.lines] == [[], ["priority"]]
    assert core.queue() == ["b", "a"]
    assert core.job("b").terms.priority == 5


def test_changed_needs_open_or_close_workers() -> None:
    core = CoreFleet()
    core.worker("w", cores=4)
    core.follow(entry("a", min_cpu_cores=8))
    assert core.state("a") == states.PENDING
    core.follow(entry("a", min_cpu_cores=2))
    assert core.where("a") == "w"


def test_a_running_job_runs_on_as_it_was_granted_and_is_held_to_that_after_a_restart() -> None:
    core = CoreFleet()
    core.worker("w", cores=8, memory=8)
    core.follow(entry("a", min_cpu_cores=2))
    core.start("a")
    assert core.follow(entry("a", min_cpu_cores=6, preemptible=True)) == {"a": "updated"}
    assert core.free("w")[0] == 6000
    core.restart()
    assert core.free("w")[0] == 6000
    core.requeue("a")
    core.register("w")
    assert core.free("w")[0] == 8000
    core.beat("w", slots=core.fleet.workers["w"].slots)


def test_a_job_that_becomes_preemptible_while_it_runs_gives_way() -> None:
    core = CoreFleet()
    core.worker("w", cores=2)
    core.follow(entry("a", min_cpu_cores=2))
    core.start("a")
    core.submit("urgent", min_cpu_cores=2, priority=7)
    assert core.cancelled() == []
    core.follow(entry("a", min_cpu_cores=2, preemptible=True))
    core.turn()
    assert core.state("a") == states.PENDING


def test_a_plan_changes_nothing() -> None:
    core = CoreFleet()
    core.follow(entry("a"))
    assert core.follow(entry("a", priority=3), entry("b"), hosts={"w": HostPolicy(cpu_cores=1)}, plan=True) == {
        "a": "updated",
        "b": "inserted",
    }
    assert core.queue() == ["a"]
    assert core.job("a").terms.priority == 0
    assert core.fleet.hosts == {}
    assert not core.ledger.jobs(["b"])


def test_two_applies_in_one_batch_are_two_applies() -> None:
    core = CoreFleet()
    said = core.turn(core.following(entry("a"), entry("b")), core.following(entry("a", priority=2), entry("c")))
    changes = [{line.job_id: line.change for line in one.lines} for one in said if isinstance(one, Followed)]
    assert changes[1] == {"a": "updated", "c": "inserted", "b": "absent"}
    assert core.job("a").terms.priority == 2
    said = core.turn(core.following(entry("a", priority=3)), core.following(entry("a", priority=3)))
    changes = [{line.job_id: line.change for line in one.lines} for one in said if isinstance(one, Followed)]
    assert [one["a"] for one in changes] == ["updated", "unchanged"]


def named(name: str, **spec: Any) -> NewJob:
    """The one job `a`, under this name."""
    return entry("a", name=name, training=Training(model="gbt"), **spec)


def test_a_manifest_that_gives_a_job_another_name_is_refused_as_a_whole() -> None:
    core = CoreFleet()
    core.follow(named("train-big"))
    core.turn(core.following(named("nightly-eval", priority=3), entry("b")))
    (refusal,) = core.of(Refuse)
    assert isinstance(refusal.error, Conflict)
    assert "'train-big' would become 'nightly-eval'" in str(refusal.error)
    assert "--replace" in str(refusal.error)
    assert (core.job("a").name, core.job("a").terms.priority) == ("train-big", 0)
    assert not core.ledger.jobs(["b"])


def test_an_apply_that_may_replace_names_gives_a_waiting_job_another() -> None:
    core = CoreFleet()
    core.follow(named("train-big"))
    assert core.follow(named("nightly-eval"), replace=True) == {"a": "updated"}
    assert core.job("a").name == "nightly-eval"
    assert core.follow(named("nightly-eval")) == {"a": "unchanged"}


def test_a_job_that_has_ended_gets_another_name_and_says_what_it_ran_with() -> None:
    core = CoreFleet()
    core.follow(named("train-big", priority=1))
    core.worker("w")
    core.start("a")
    core.end("a")
    core.turn(core.following(named("nightly-eval", priority=5)))
    assert isinstance(core.of(Refuse)[0].error, Conflict)
    assert core.follow(named("nightly-eval", priority=5), replace=True) == {"a": "updated"}
    row = core.job("a")
    assert (row.name, row.terms.priority, row.state) == ("nightly-eval", 1, states.SUCCEEDED)
    assert msgspec.json.decode(row.spec)["name"] == "nightly-eval"
    assert core.follow(named("nightly-eval", priority=1)) == {"a": "unchanged"}


def test_an_ended_job_that_is_renamed_goes_over_to_the_sweep_of_that_name() -> None:
    def point(sweep: str) -> NewJob:
        new = entry("a", name=f"{sweep}-1", training=Training(model="gbt", sweep=sweep))
        new.sweep = sweep
        return new

    core = CoreFleet()
    core.follow(point("old"))
    core.cancel("a")
    core.follow(point("new"), replace=True)
    assert [view.job.id for view in core.ledger.manifest_jobs(sweep="new")] == ["a"]
    assert core.follow(point("new")) == {"a": "unchanged"}
    (answer,) = core.of(Followed)
    assert answer.lines[0].differs == []


def test_a_refusal_shows_the_first_names_and_counts_the_rest() -> None:
    def names(suffix: str) -> list[NewJob]:
        return [entry(f"j{n}", name=f"j{n}{suffix}", training=Training(model="gbt", seed=n)) for n in range(25)]

    core = CoreFleet()
    core.follow(*names(""))
    core.turn(core.following(*names("-again")))
    told = str(core.of(Refuse)[0].error)
    assert told.count("would become") == 20
    assert "and 5 more" in told


def test_a_plan_shows_another_name_as_a_change() -> None:
    core = CoreFleet()
    core.follow(named("train-big"))
    assert core.follow(named("nightly-eval"), plan=True) == {"a": "updated"}
    assert changes_of(core) == [("name", "train-big", "nightly-eval")]
    assert core.job("a").name == "train-big"


def changes_of(core: CoreFleet) -> list[tuple[str, Any, Any]]:
    """Of the one job of the last plan."""
    (answer,) = core.of(Followed)
    return [(one.key, one.old, one.new) for one in answer.lines[0].changes]


def test_a_plan_has_the_old_and_the_new_value_of_everything_that_differs() -> None:
    core = CoreFleet()
    before = {"env": {"A": "1", "B": "2"}, "training": Training(hyper={"lr": 0.1, "deep": True}, n_resamples=3)}
    core.follow(entry("a", **before))
    core.turn(PriorityRequested(ref=7, job_id="a", priority=50, row=core.job("a")))
    after = {"env": {"A": "3", "C": "4"}, "training": Training(hyper={"lr": 0.2, "deep": True})}
    core.follow(entry("a", min_memory_gb=2.0, **after), plan=True)
    assert changes_of(core) == [
        ("env.A", "1", "3"),
        ("env.B", "2", None),
        ("env.C", None, "4"),
        ("hyper.lr", 0.1, 0.2),
        ("min_memory_gb", 0.0, 2.0),
        ("n_resamples", 3, 0),
        ("priority", 50, 0),
    ]


def test_a_job_submitted_by_hand_under_that_id_stands_in_the_way_of_all() -> None:
    core = CoreFleet()
    core.submit("a")
    core.turn(core.following(entry("a"), entry("b")))
    assert isinstance(core.of(Refuse)[0].error, Conflict)
    assert not core.ledger.jobs(["b"])


def test_a_quota_refuses_the_whole_manifest() -> None:
    core = CoreFleet()
    core.fleet.set_quotas(Quotas(users={"manifest": Quota(queued_jobs=1)}))
    core.turn(core.following(entry("a"), entry("b")))
    assert isinstance(core.of(Refuse)[0].error, QuotaExceeded)
    assert core.queue() == []


def test_what_is_said_of_hosts_holds_for_connected_workers_by_name_and_by_machine() -> None:
    core = CoreFleet()
    core.worker("w1", hostname="box")
    core.worker("w2", hostname="pi")
    core.follow(
        entry("big", training=Training(model="big")),
        hosts={"box": HostPolicy(deny_jobs=("big",)), "w2": HostPolicy(allow_jobs=("small",))},
    )
    assert core.state("big") == states.PENDING
    assert {blocker.axis for blocker in core.why("big").blockers} == {"host"}
    core.submit("plain")
    assert core.where("plain") == "w1"
    core.follow(entry("big", training=Training(model="big")), hosts={})
    assert core.where("big") in ("w1", "w2")


def test_artifacts_and_metrics_are_kept_with_the_outcome() -> None:
    from ostler.core.effects import KeepArtifact
    from ostler.domain.records import ArtifactRecord

    core = CoreFleet()
    core.worker("w")
    core.follow(entry("a"))
    core.start("a")
    brought = ArtifactRecord(id="f" * 64, task_id="a", job_id="a", name="a", size=7)
    core.end("a", artifact_id="f" * 64, artifact=brought, metrics={"loss": 0.5})
    (effect,) = core.of(KeepArtifact)
    ((_, record),) = core.ledger.artifacts(job_id="a")
    assert record == effect.record
    assert (record.worker, record.metrics, record.size) == ("w", {"loss": 0.5}, 7)
    assert core.task("a").artifact_id == "f" * 64
    assert core.ledger.wanted_artifacts() == {"f" * 64}


def test_a_checkpoint_follows_the_task_and_is_dropped_when_it_is_of_no_more_use() -> None:
    from ostler.core.effects import DropCheckpoint
    from ostler.domain.worker import ActiveTask

    core = CoreFleet()
    core.worker("w1")
    core.submit("a", max_retries=2)
    core.start("a")
    line = ActiveTask(task_id="a", attempt=core.attempt("a"), checkpoint="c1")
    core.beat("w1", [line])
    assert (core.task("a").checkpoint, core.task("a").checkpoint_by) == ("c1", "w1")
    line.checkpoint = "c2"
    core.beat("w1", [line])
    assert [one.blob for one in core.of(DropCheckpoint)] == ["c1"]
    core.restart()
    core.register("w1", holds=[line], slots=1)
    core.end("a", "failed", checkpoint_id="c3")
    (again,) = core.of(AssignTask)
    assert (again.checkpoint, again.checkpoint_by) == ("c3", "w1")
    core.start("a")
    core.end("a")
    assert [one.blob for one in core.of(DropCheckpoint)] == ["c3"]
    assert core.task("a").checkpoint == ""
    assert core.fleet.checkpoints == {}
