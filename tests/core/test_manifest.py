"""The queue follows a manifest: idempotent, all or nothing, and what runs runs on."""

from tests.core.yard import Yard, entry

from ostler.core.effects import AssignTask, Followed, Refuse
from ostler.core.events import PriorityRequested
from ostler.domain import states
from ostler.domain.errors import Conflict, QuotaExceeded
from ostler.domain.hosts import HostPolicy
from ostler.domain.job import Training
from ostler.domain.quota import Quota, Quotas


def test_a_second_apply_changes_nothing() -> None:
    yard = Yard()
    jobs = [entry("a"), entry("b")]
    assert yard.follow(*jobs) == {"a": "inserted", "b": "inserted"}
    assert yard.follow(entry("a"), entry("b")) == {"a": "unchanged", "b": "unchanged"}
    assert yard.queue() == ["a", "b"]
    assert yard.job("a").origin == "manifest"


def test_what_is_no_longer_in_the_file_is_absent_until_it_is_cancelled() -> None:
    yard = Yard()
    yard.follow(entry("a"), entry("b"))
    assert yard.follow(entry("a")) == {"a": "unchanged", "b": "absent"}
    assert yard.state("b") == states.PENDING
    yard.cancel("b")
    assert yard.follow(entry("a")) == {"a": "unchanged"}


def test_a_job_that_has_ended_is_never_changed_and_keeps_its_state() -> None:
    yard = Yard()
    yard.follow(entry("a"))
    yard.worker("w")
    yard.start("a")
    yard.end("a")
    assert yard.follow(entry("a", priority=9)) == {"a": "unchanged"}
    assert yard.state("a") == states.SUCCEEDED
    assert yard.follow() == {}


def test_a_priority_that_was_given_by_hand_differs_and_an_apply_takes_it_back() -> None:
    yard = Yard()
    yard.follow(entry("a", priority=5))
    yard.turn(PriorityRequested(ref=7, job_id="a", priority=50, row=yard.job("a")))
    assert yard.follow(entry("a", priority=5), plan=True) == {"a": "updated"}
    (answer,) = yard.of(Followed)
    assert answer.lines[0].differs == ["priority"]
    yard.follow(entry("a", priority=5))
    assert yard.job("a").terms.priority == 5
    assert yard.follow(entry("a", priority=5)) == {"a": "unchanged"}


def test_a_changed_priority_moves_a_waiting_job() -> None:
    yard = Yard()
    yard.follow(entry("a"), entry("b"))
    assert yard.follow(entry("a"), entry("b", priority=5)) == {"a": "unchanged", "b": "updated"}
    (answer,) = yard.of(Followed)
    assert [line.differs for line in answer.lines] == [[], ["priority"]]
    assert yard.queue() == ["b", "a"]
    assert yard.job("b").terms.priority == 5


def test_changed_needs_open_or_close_workers() -> None:
    yard = Yard()
    yard.worker("w", cores=4)
    yard.follow(entry("a", min_cpu_cores=8))
    assert yard.state("a") == states.PENDING
    yard.follow(entry("a", min_cpu_cores=2))
    assert yard.where("a") == "w"


def test_a_running_job_runs_on_as_it_was_granted_and_is_held_to_that_after_a_restart() -> None:
    yard = Yard()
    yard.worker("w", cores=8, memory=8)
    yard.follow(entry("a", min_cpu_cores=2))
    yard.start("a")
    assert yard.follow(entry("a", min_cpu_cores=6, preemptible=True)) == {"a": "updated"}
    assert yard.free("w")[0] == 6000
    yard.restart()
    assert yard.free("w")[0] == 6000
    yard.requeue("a")
    yard.register("w")
    assert yard.free("w")[0] == 8000
    yard.beat("w", slots=yard.fleet.workers["w"].slots)


def test_a_job_that_becomes_preemptible_while_it_runs_gives_way() -> None:
    yard = Yard()
    yard.worker("w", cores=2)
    yard.follow(entry("a", min_cpu_cores=2))
    yard.start("a")
    yard.submit("urgent", min_cpu_cores=2, priority=7)
    assert yard.cancelled() == []
    yard.follow(entry("a", min_cpu_cores=2, preemptible=True))
    yard.turn()
    assert yard.state("a") == states.PENDING


def test_a_plan_changes_nothing() -> None:
    yard = Yard()
    yard.follow(entry("a"))
    assert yard.follow(entry("a", priority=3), entry("b"), hosts={"w": HostPolicy(cpu_cores=1)}, plan=True) == {
        "a": "updated",
        "b": "inserted",
    }
    assert yard.queue() == ["a"]
    assert yard.job("a").terms.priority == 0
    assert yard.fleet.hosts == {}
    assert not yard.ledger.jobs(["b"])


def test_two_applies_in_one_batch_are_two_applies() -> None:
    yard = Yard()
    said = yard.turn(yard.following(entry("a"), entry("b")), yard.following(entry("a", priority=2), entry("c")))
    changes = [{line.job_id: line.change for line in one.lines} for one in said if isinstance(one, Followed)]
    assert changes[1] == {"a": "updated", "c": "inserted", "b": "absent"}
    assert yard.job("a").terms.priority == 2
    said = yard.turn(yard.following(entry("a", priority=3)), yard.following(entry("a", priority=3)))
    changes = [{line.job_id: line.change for line in one.lines} for one in said if isinstance(one, Followed)]
    assert [one["a"] for one in changes] == ["updated", "unchanged"]


def test_a_job_submitted_by_hand_under_that_id_stands_in_the_way_of_all() -> None:
    yard = Yard()
    yard.submit("a")
    yard.turn(yard.following(entry("a"), entry("b")))
    assert isinstance(yard.of(Refuse)[0].error, Conflict)
    assert not yard.ledger.jobs(["b"])


def test_a_quota_refuses_the_whole_manifest() -> None:
    yard = Yard()
    yard.fleet.set_quotas(Quotas(users={"manifest": Quota(queued_jobs=1)}))
    yard.turn(yard.following(entry("a"), entry("b")))
    assert isinstance(yard.of(Refuse)[0].error, QuotaExceeded)
    assert yard.queue() == []


def test_what_is_said_of_hosts_holds_for_connected_workers_by_name_and_by_machine() -> None:
    yard = Yard()
    yard.worker("w1", hostname="box")
    yard.worker("w2", hostname="pi")
    yard.follow(
        entry("big", training=Training(model="big")),
        hosts={"box": HostPolicy(deny_jobs=("big",)), "w2": HostPolicy(allow_jobs=("small",))},
    )
    assert yard.state("big") == states.PENDING
    assert {blocker.axis for blocker in yard.why("big").blockers} == {"host"}
    yard.submit("plain")
    assert yard.where("plain") == "w1"
    yard.follow(entry("big", training=Training(model="big")), hosts={})
    assert yard.where("big") in ("w1", "w2")


def test_artifacts_and_metrics_are_kept_with_the_outcome() -> None:
    from ostler.core.effects import KeepArtifact
    from ostler.domain.records import ArtifactRecord

    yard = Yard()
    yard.worker("w")
    yard.follow(entry("a"))
    yard.start("a")
    brought = ArtifactRecord(id="f" * 64, task_id="a", job_id="a", name="a", size=7)
    yard.end("a", artifact_id="f" * 64, artifact=brought, metrics={"loss": 0.5})
    (effect,) = yard.of(KeepArtifact)
    ((_, record),) = yard.ledger.artifacts(job_id="a")
    assert record == effect.record
    assert (record.worker, record.metrics, record.size) == ("w", {"loss": 0.5}, 7)
    assert yard.task("a").artifact_id == "f" * 64
    assert yard.ledger.wanted_artifacts() == {"f" * 64}


def test_a_checkpoint_follows_the_task_and_is_dropped_when_it_is_of_no_more_use() -> None:
    from ostler.core.effects import DropCheckpoint
    from ostler.domain.worker import ActiveTask

    yard = Yard()
    yard.worker("w1")
    yard.submit("a", max_retries=2)
    yard.start("a")
    line = ActiveTask(task_id="a", attempt=yard.attempt("a"), checkpoint="c1")
    yard.beat("w1", [line])
    assert (yard.task("a").checkpoint, yard.task("a").checkpoint_by) == ("c1", "w1")
    line.checkpoint = "c2"
    yard.beat("w1", [line])
    assert [one.blob for one in yard.of(DropCheckpoint)] == ["c1"]
    yard.restart()
    yard.register("w1", holds=[line], slots=1)
    yard.end("a", "failed", checkpoint_id="c3")
    (again,) = yard.of(AssignTask)
    assert (again.checkpoint, again.checkpoint_by) == ("c3", "w1")
    yard.start("a")
    yard.end("a")
    assert [one.blob for one in yard.of(DropCheckpoint)] == ["c3"]
    assert yard.task("a").checkpoint == ""
    assert yard.fleet.checkpoints == {}
