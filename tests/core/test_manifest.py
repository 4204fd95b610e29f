"""The queue follows a manifest: idempotent, all or nothing, and what runs runs on."""

from tests.core.core_fleet import CoreFleet, entry

from ostler.core.effects import AssignTask, Followed, Refuse
from ostler.core.events import PriorityRequested
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
