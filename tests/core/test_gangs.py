"""Gangs: placed whole, fenced whole, ended whole."""

import pytest
from tests.core.yard import Yard, holding

from ostler.core.effects import AssignTask, CancelTask


@pytest.fixture
def yard() -> Yard:
    made = Yard()
    for name in ("a", "b", "c"):
        made.worker(name, cores=4)
    return made


def running_gang(yard: Yard, nodes: int = 3, **spec: object) -> str:
    job = yard.submit("gang", node_count=nodes, min_cpu_cores=2, **spec)
    yard.start(*(f"gang.{rank}" for rank in range(nodes)))
    return job


def cancels(yard: Yard) -> set[tuple[str, str]]:
    return {(effect.worker_id, effect.task_id) for effect in yard.heard if isinstance(effect, CancelTask)}


def test_a_gang_is_placed_on_different_workers_at_once_and_each_member_knows_the_others(yard: Yard) -> None:
    yard.submit("gang", node_count=3, min_cpu_cores=2)
    sent = [effect for effect in yard.heard if isinstance(effect, AssignTask)]
    assert sorted(effect.worker_id for effect in sent) == ["a", "b", "c"]
    assert sorted(effect.rank or 0 for effect in sent) == [0, 1, 2]
    assert len({effect.hosts for effect in sent}) == 1
    assert len(sent[0].hosts) == 3
    assert len({effect.master_port for effect in sent}) == 1
    assert len({effect.attempt for effect in sent}) == 3


def test_a_gang_that_does_not_fit_whole_takes_nothing_and_lets_others_pass(yard: Yard) -> None:
    yard.submit("blocker", min_cpu_cores=4)
    yard.submit("gang", node_count=3, min_cpu_cores=2)
    small = yard.submit("small", min_cpu_cores=1)
    assert [yard.where(f"gang.{rank}") for rank in range(3)] == ["", "", ""]
    assert yard.where(small) != ""
    assert "3 workers at once; 2 of the 3" in yard.why("gang").summary
    yard.start("blocker")
    yard.end("blocker")
    assert sorted(yard.where(f"gang.{rank}") for rank in range(3)) == ["a", "b", "c"]


def test_a_gang_of_more_machines_than_there_are_is_told_so(yard: Yard) -> None:
    yard.submit("gang", node_count=4, min_cpu_cores=2)
    summary = yard.why("gang").summary
    assert summary == "needs 4 workers at once, and only 3 of the registered ones could ever take it"


def test_a_gang_has_succeeded_only_when_all_members_have(yard: Yard) -> None:
    running_gang(yard)
    yard.end("gang.0")
    yard.end("gang.2")
    assert yard.job("gang").state == "running"
    assert yard.states("gang.0", "gang.1", "gang.2") == ["running"] * 3
    yard.end("gang.1")
    assert yard.job("gang").state == "succeeded"
    assert yard.states("gang.0", "gang.1", "gang.2") == ["succeeded"] * 3
    assert "gang" not in yard.fleet.jobs


def test_one_members_failure_ends_the_attempt_of_all(yard: Yard) -> None:
    running_gang(yard)
    others = {(yard.where(f"gang.{rank}"), f"gang.{rank}") for rank in (0, 2)}
    yard.end("gang.1", "failed", exit_code=3)
    assert yard.job("gang").state == "failed"
    assert yard.task("gang.1").reason == "exit code 3"
    assert "rank 1: exit code 3" in yard.task("gang.0").reason
    assert cancels(yard) == others
    for name, task in others:
        yard.end(task, "cancelled", worker=name)
    assert yard.free("a")[0] == 4000
    assert "gang" not in yard.fleet.jobs


def test_a_failed_round_is_tried_again_whole_when_a_retry_is_left(yard: Yard) -> None:
    running_gang(yard, max_retries=1)
    first = {rank: yard.attempt(f"gang.{rank}") for rank in range(3)}
    yard.end("gang.1", "failed")
    assert yard.job("gang").state in ("pending", "running")
    for rank in (0, 2):
        yard.end(f"gang.{rank}", "cancelled")
    assert {rank: yard.attempt(f"gang.{rank}") for rank in range(3)}.keys() == first.keys()
    assert all(yard.attempt(f"gang.{rank}") != first[rank] for rank in range(3))
    yard.start("gang.0", "gang.1", "gang.2")
    yard.end("gang.0", "failed")
    assert yard.job("gang").state == "failed"
    assert "max_retries is 1" in yard.task("gang.0").reason


def test_a_late_result_of_an_old_round_changes_nothing(yard: Yard) -> None:
    running_gang(yard, max_retries=1)
    old, where = yard.attempt("gang.0"), yard.where("gang.0")
    yard.end("gang.1", "failed")
    yard.end("gang.2", "cancelled")
    yard.end("gang.0", "succeeded", attempt=old, worker=where)
    assert yard.states("gang.0", "gang.1", "gang.2") == ["assigned"] * 3
    assert yard.attempt("gang.0") != old


def test_the_machines_that_a_lost_members_gang_leaves_are_kept_for_it(yard: Yard) -> None:
    running_gang(yard)
    gone = yard.where("gang.1")
    yard.beat(gone, holds=[])
    assert yard.task("gang.1").state == "pending"
    others = [yard.submit(f"other{number}", min_cpu_cores=3) for number in range(3)]
    for rank in (0, 2):
        yard.end(f"gang.{rank}", "cancelled")
    assert [yard.where(job) for job in others] == [gone, "", ""], "only what the gang did not hold is free for others"
    yard.end(others[0])
    assert sorted(yard.where(f"gang.{rank}") for rank in range(3)) == ["a", "b", "c"]


def test_machines_are_not_kept_for_ever(yard: Yard) -> None:
    running_gang(yard)
    gone = yard.where("gang.1")
    yard.leave(gone)
    yard.wait(31)
    for rank in (0, 2):
        yard.end(f"gang.{rank}", "cancelled")
    other = yard.submit("other", min_cpu_cores=3)
    assert yard.where(other) == ""
    yard.wait(601)
    assert yard.where(other) != ""


def test_a_lost_member_costs_the_gang_one_attempt_and_the_last_one_fails_it(yard: Yard) -> None:
    running_gang(yard, max_attempts=1)
    for _ in range(2):
        gone = yard.where("gang.1")
        yard.beat(gone, holds=[])
        for rank in (0, 2):
            yard.end(f"gang.{rank}", "cancelled")
        if yard.job("gang").state != "failed":
            yard.start("gang.0", "gang.1", "gang.2")
    assert yard.job("gang").state == "failed"
    assert "lost 2 times, max_attempts is 1" in yard.task("gang.1").reason


def test_cancelling_one_member_cancels_the_gang(yard: Yard) -> None:
    running_gang(yard)
    yard.cancel("gang", 1)
    assert yard.states("gang.0", "gang.1", "gang.2") == ["cancelled"] * 3
    assert len(cancels(yard)) == 3


def test_a_gang_survives_a_restart_of_the_hub_with_a_member_that_had_finished(yard: Yard) -> None:
    running_gang(yard)
    yard.end("gang.0")
    held = {rank: (yard.where(f"gang.{rank}"), yard.attempt(f"gang.{rank}")) for rank in (1, 2)}
    yard.restart()
    for rank, (name, attempt) in held.items():
        yard.register(name, holds=holding((f"gang.{rank}", attempt)))
        assert yard.state(f"gang.{rank}") == "running"
    yard.end("gang.1")
    yard.end("gang.2")
    assert yard.job("gang").state == "succeeded"


def test_a_requeued_gang_starts_again_whole(yard: Yard) -> None:
    running_gang(yard)
    for rank in range(3):
        yard.end(f"gang.{rank}")
    yard.requeue("gang")
    assert sorted(yard.where(f"gang.{rank}") for rank in range(3)) == ["a", "b", "c"]
