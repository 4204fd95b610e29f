"""Gangs: placed whole, fenced whole, ended whole."""

import pytest
from tests.core.core_fleet import CoreFleet, holding

from ostler.core.effects import AssignTask, CancelTask


@pytest.fixture
def core() -> CoreFleet:
    made = CoreFleet()
    for name in ("a", "b", "c"):
        made.worker(name, cores=4)
    return made


def running_gang(core: CoreFleet, nodes: int = 3, **spec: object) -> str:
    job = core.submit("gang", node_count=nodes, min_cpu_cores=2, **spec)
    core.start(*(f"gang.{rank}" for rank in range(nodes)))
    return job


def cancels(core: CoreFleet) -> set[tuple[str, str]]:
    return {(effect.worker_id, effect.task_id) for effect in core.heard if isinstance(effect, CancelTask)}


def test_a_gang_is_placed_on_different_workers_at_once_and_each_member_knows_the_others(core: CoreFleet) -> None:
    core.submit("gang", node_count=3, min_cpu_cores=2)
    sent = [effect for effect in core.heard if isinstance(effect, AssignTask)]
    assert sorted(effect.worker_id for effect in sent) == ["a", "b", "c"]
    assert sorted(effect.rank or 0 for effect in sent) == [0, 1, 2]
    assert len({effect.hosts for effect in sent}) == 1
    assert len(sent[0].hosts) == 3
    assert len({effect.master_port for effect in sent}) == 1
    assert len({effect.attempt for effect in sent}) == 3


def test_a_gang_that_does_not_fit_whole_takes_nothing_and_lets_others_pass(core: CoreFleet) -> None:
    core.submit("blocker", min_cpu_cores=4)
    core.submit("gang", node_count=3, min_cpu_cores=2)
    small = core.submit("small", min_cpu_cores=1)
    assert [core.where(f"gang.{rank}") for rank in range(3)] == ["", "", ""]
    assert core.where(small) != ""
    assert "3 workers at once; 2 of the 3" in core.why("gang").summary
    core.start("blocker")
    core.end("blocker")
    assert sorted(core.where(f"gang.{rank}") for rank in range(3)) == ["a", "b", "c"]


def test_a_gang_of_more_machines_than_there_are_is_told_so(core: CoreFleet) -> None:
    core.submit("gang", node_count=4, min_cpu_cores=2)
    summary = core.why("gang").summary
    assert summary == "needs 4 workers at once, and only 3 of the registered ones could ever take it"


def test_a_gang_has_succeeded_only_when_all_members_have(core: CoreFleet) -> None:
    running_gang(core)
    core.end("gang.0")
    core.end("gang.2")
    assert core.job("gang").state == "running"
    assert core.states("gang.0", "gang.1", "gang.2") == ["running"] * 3
    core.end("gang.1")
    assert core.job("gang").state == "succeeded"
    assert core.states("gang.0", "gang.1", "gang.2") == ["succeeded"] * 3
    assert "gang" not in core.fleet.jobs


def test_one_members_failure_ends_the_attempt_of_all(core: CoreFleet) -> None:
    running_gang(core)
    others = {(core.where(f"gang.{rank}"), f"gang.{rank}") for rank in (0, 2)}
    core.end("gang.1", "failed", exit_code=3)
    assert core.job("gang").state == "failed"
    assert core.task("gang.1").reason == "exit code 3"
    assert "rank 1: exit code 3" in core.task("gang.0").reason
    assert cancels(core) == others
    for name, task in others:
        core.end(task, "cancelled", worker=name)
    assert core.free("a")[0] == 4000
    assert "gang" not in core.fleet.jobs


def test_a_gang_that_was_not_placed_in_time_gives_the_cause_of_its_tasks(core: CoreFleet) -> None:
    core.submit("gang", node_count=4, min_cpu_cores=2, scheduling_timeout_seconds=30)
    core.wait(31)
    assert core.job("gang").state == "unschedulable"
    cause = "not placed within 30 s: needs 4 workers at once, and only 3 of the registered ones could ever take it"
    assert core.job("gang").reason == cause


def test_a_gang_that_lost_a_member_is_pending_until_it_is_placed_again(core: CoreFleet) -> None:
    running_gang(core)
    core.beat(core.where("gang.1"), holds=[])
    assert core.job("gang").state == "pending"
    for rank in (0, 2):
        core.end(f"gang.{rank}", "cancelled")
    assert core.job("gang").state == "running"


def test_a_gang_with_a_finished_member_is_running(core: CoreFleet) -> None:
    running_gang(core)
    core.end("gang.0")
    core.restart()
    assert core.job("gang").state == "running"


def test_a_failed_round_is_tried_again_whole_when_a_retry_is_left(core: CoreFleet) -> None:
    running_gang(core, max_retries=1)
    first = {rank: core.attempt(f"gang.{rank}") for rank in range(3)}
    core.end("gang.1", "failed")
    assert core.job("gang").state in ("pending", "running")
    for rank in (0, 2):
        core.end(f"gang.{rank}", "cancelled")
    assert {rank: core.attempt(f"gang.{rank}") for rank in range(3)}.keys() == first.keys()
    assert all(core.attempt(f"gang.{rank}") != first[rank] for rank in range(3))
    core.start("gang.0", "gang.1", "gang.2")
    core.end("gang.0", "failed")
    assert core.job("gang").state == "failed"
    assert "max_retries is 1" in core.task("gang.0").reason


def test_a_late_result_of_an_old_round_changes_nothing(core: CoreFleet) -> None:
    running_gang(core, max_retries=1)
    old, where = core.attempt("gang.0"), core.where("gang.0")
    core.end("gang.1", "failed")
    core.end("gang.2", "cancelled")
    core.end("gang.0", "succeeded", attempt=old, worker=where)
    assert core.states("gang.0", "gang.1", "gang.2") == ["assigned"] * 3
    assert core.attempt("gang.0") != old


def test_the_machines_that_a_lost_members_gang_leaves_are_kept_for_it(core: CoreFleet) -> None:
    running_gang(core)
    gone = core.where("gang.1")
    core.beat(gone, holds=[])
    assert core.task("gang.1").state == "pending"
    others = [core.submit(f"other{number}", min_cpu_cores=3) for number in range(3)]
    for rank in (0, 2):
        core.end(f"gang.{rank}", "cancelled")
    assert [core.where(job) for job in others] == [gone, "", ""], "only what the gang did not hold is free for others"
    core.end(others[0])
    assert sorted(core.where(f"gang.{rank}") for rank in range(3)) == ["a", "b", "c"]


def test_machines_are_not_kept_for_ever(core: CoreFleet) -> None:
    running_gang(core)
    gone = core.where("gang.1")
    core.leave(gone)
    core.wait(31)
    for rank in (0, 2):
        core.end(f"gang.{rank}", "cancelled")
    other = core.submit("other", min_cpu_cores=3)
    assert core.where(other) == ""
    core.wait(601)
    assert core.where(other) != ""


def test_a_lost_member_costs_the_gang_one_attempt_and_the_last_one_fails_it(core: CoreFleet) -> None:
    running_gang(core, max_attempts=1)
    for _ in range(2):
        gone = core.where("gang.1")
        core.beat(gone, holds=[])
        for rank in (0, 2):
            core.end(f"gang.{rank}", "cancelled")
        if core.job("gang").state != "failed":
            core.start("gang.0", "gang.1", "gang.2")
    assert core.job("gang").state == "failed"
    assert "lost 2 times, max_attempts is 1" in core.task("gang.1").reason


def test_cancelling_one_member_cancels_the_gang(core: CoreFleet) -> None:
    running_gang(core)
    core.cancel("gang", 1)
    assert core.states("gang.0", "gang.1", "gang.2") == ["cancelled"] * 3
    assert len(cancels(core)) == 3


def test_a_gang_survives_a_restart_of_the_hub_with_a_member_that_had_finished(core: CoreFleet) -> None:
    running_gang(core)
    core.end("gang.0")
    held = {rank: (core.where(f"gang.{rank}"), core.attempt(f"gang.{rank}")) for rank in (1, 2)}
    core.restart()
    for rank, (name, attempt) in held.items():
        core.register(name, holds=holding((f"gang.{rank}", attempt)))
        assert core.state(f"gang.{rank}") == "running"
    core.end("gang.1")
    core.end("gang.2")
    assert core.job("gang").state == "succeeded"


def test_a_requeued_gang_starts_again_whole(core: CoreFleet) -> None:
    running_gang(core)
    for rank in range(3):
        core.end(f"gang.{rank}")
    core.requeue("gang")
    assert sorted(core.where(f"gang.{rank}") for rank in range(3)) == ["a", "b", "c"]
