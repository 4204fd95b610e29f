"""Machines that hold no connection: they claim one task at a time, and only a lease binds them."""

import pytest
from tests.core.core_fleet import EPOCH, CoreFleet, capabilities, entry

from ostler.core.claims import LEASE_S
from ostler.core.effects import Answer, Claimed, NothingToClaim, Refuse
from ostler.domain import states
from ostler.domain.errors import Conflict
from ostler.domain.hosts import HostPolicy
from ostler.domain.job import Training
from ostler.domain.scheduling import Scheduling
from ostler.domain.worker import DeviceInfo


def claimed(core: CoreFleet, name: str, **offer: object) -> Claimed:
    answer = core.claim(name, **offer)
    assert isinstance(answer, Claimed), answer
    return answer


def refused(core: CoreFleet, name: str, **offer: object) -> str:
    answer = core.claim(name, **offer)
    assert isinstance(answer, NothingToClaim), answer
    return answer.reason


def test_a_claim_is_claimed_until_its_first_heartbeat_and_then_running() -> None:
    core = CoreFleet()
    core.submit("a")
    claim = claimed(core, "pi")
    assert (claim.task_id, claim.lease_s) == ("a", LEASE_S)
    assert core.state("a") == states.ASSIGNED
    assert core.claim_beat("pi", "a") is False
    assert core.state("a") == states.RUNNING
    assert core.claim_end("pi", "a")
    assert core.state("a") == states.SUCCEEDED
    assert core.free("pi")[:2] == (4000, 16 * 1024)


def test_nobody_gives_work_to_a_machine_that_only_claims() -> None:
    core = CoreFleet()
    refused(core, "pi")
    core.submit("a")
    assert core.state("a") == states.PENDING
    assert "only when it asks" in core.why("a").summary


def test_a_claim_takes_the_first_in_the_queues_order_that_fits() -> None:
    core = CoreFleet()
    core.submit("large", min_cpu_cores=8, priority=9)
    core.submit("low")
    core.submit("high", priority=5)
    assert [claimed(core, name).task_id for name in ("p1", "p2")] == ["high", "low"]
    assert "needs 8 cores; p3 has 4 free of 4" in refused(core, "p3")


def test_of_many_claims_in_one_batch_each_job_goes_to_one() -> None:
    core = CoreFleet()
    for number in range(100):
        core.submit(f"j{number:03}")
    answers = core.turn(*[core.claiming(f"p{number}") for number in range(200)])
    won = [answer.task_id for answer in answers if isinstance(answer, Claimed)]
    assert sorted(won) == [f"j{number:03}" for number in range(100)]
    assert sum(isinstance(answer, NothingToClaim) for answer in answers) == 100


def test_a_machine_holds_as_much_as_it_has_room_for() -> None:
    core = CoreFleet()
    for name in "abc":
        core.submit(name, min_cpu_cores=2)
    assert claimed(core, "pi").task_id == "a"
    assert claimed(core, "pi").task_id == "b"
    assert "needs 2 cores" in refused(core, "pi")


def test_with_nothing_queued_the_answer_says_so() -> None:
    assert refused(CoreFleet(), "pi") == "nothing waits"


def test_a_claim_without_heartbeats_lapses_and_is_claimed_by_another() -> None:
    core = CoreFleet()
    core.submit("a")
    first = claimed(core, "p1")
    core.wait(LEASE_S - 1)
    assert core.state("a") == states.ASSIGNED
    core.wait(2)
    assert core.state("a") == states.PENDING
    assert "p1 sent no heartbeat for 600 s" in core.job("a").reason
    second = claimed(core, "p2")
    assert second.attempt != first.attempt
    assert core.claim_beat("p1", "a") is None
    assert not core.claim_end("p1", "a", attempt=first.attempt)
    assert core.where("a") == "p2"


def with_lease(lease_s: float) -> CoreFleet:
    core = CoreFleet()
    core.fleet.policy = Scheduling(claim_lease_s=lease_s)
    return core


def test_a_claim_lives_as_long_as_the_operator_has_set() -> None:
    core = with_lease(120.0)
    core.submit("a")
    assert claimed(core, "p1").lease_s == 120.0
    core.wait(119)
    assert core.claim_beat("p1", "a") is False
    core.wait(119)
    assert core.state("a") == states.RUNNING
    core.wait(2)
    assert core.state("a") == states.PENDING
    assert "p1 sent no heartbeat for 120 s" in core.job("a").reason


@pytest.mark.parametrize(("before_s", "after_s"), [(1200.0, 60.0), (1200.0, 0.0), (0.0, 60.0)])
def test_a_claim_keeps_its_lease_over_restarts_with_another_setting(before_s: float, after_s: float) -> None:
    """Its machine goes by the lease that the claim was answered with, and runs the task for so long."""
    core = with_lease(before_s)
    core.submit("a")
    lease_s = claimed(core, "p1").lease_s
    for _ in range(2):
        core.restart()
        core.fleet.policy = Scheduling(claim_lease_s=after_s)
    core.wait(lease_s - 1)
    assert core.state("a") == states.ASSIGNED
    core.wait(2)
    assert core.state("a") == states.PENDING
    assert claimed(core, "p2").lease_s == (after_s or LEASE_S)


def test_the_ledger_forgets_the_lease_of_a_claim_that_has_ended() -> None:
    core = with_lease(120.0)
    core.submit("a")
    attempt = claimed(core, "pi").attempt
    assert core.ledger.kept("lease") == {attempt: b"120.0"}
    core.claim_end("pi", "a")
    assert core.ledger.kept("lease") == {}


def test_heartbeats_keep_a_claim_for_as_long_as_they_come() -> None:
    core = CoreFleet()
    core.submit("a")
    claimed(core, "pi")
    for _ in range(10):
        core.wait(LEASE_S - 10)
        assert core.claim_beat("pi", "a") is False
    assert core.state("a") == states.RUNNING
    assert core.task("a").losses == 0


def test_the_fourth_lapse_fails_the_job() -> None:
    core = CoreFleet()
    core.submit("a")
    for number in range(1, 4):
        claimed(core, f"p{number}")
        core.wait(LEASE_S + 1)
        assert (core.state("a"), core.task("a").losses) == (states.PENDING, number)
    claimed(core, "p4")
    core.wait(LEASE_S + 1)
    assert core.state("a") == states.FAILED
    assert "lost 4 times, max_attempts is 3" in core.job("a").reason


def test_neither_the_times_of_the_protocol_nor_a_tiers_grace_apply_to_a_claim() -> None:
    core = CoreFleet()
    core.submit("a", job_tier="data_processing")
    claimed(core, "pi")
    core.wait(599)
    assert core.state("a") == states.ASSIGNED


@pytest.mark.parametrize("attempt", ["", "other"])
def test_a_heartbeat_or_an_end_by_the_wrong_worker_is_refused(attempt: str) -> None:
    core = CoreFleet()
    core.submit("a")
    claimed(core, "p1")
    refused(core, "p2")
    assert core.claim_beat("p2", "a", attempt) is None
    assert not core.claim_end("p2", "a", attempt=attempt)
    assert not core.claim_end("p2", "a", "failed", attempt=attempt)
    assert isinstance(core.of(Refuse)[0].error, Conflict)
    assert core.state("a") == states.ASSIGNED


def test_the_right_worker_with_the_wrong_attempt_is_refused() -> None:
    core = CoreFleet()
    core.submit("a")
    claimed(core, "pi")
    assert core.claim_beat("pi", "a", "another") is None
    assert not core.claim_end("pi", "a", attempt="another")


@pytest.mark.parametrize("state", ["succeeded", "failed"])
def test_an_end_may_be_said_again_and_the_other_end_not(state: str) -> None:
    core = CoreFleet()
    core.submit("a")
    claimed(core, "pi")
    both = [core.claim_ending("pi", "a", state), core.claim_ending("pi", "a", state)]
    assert len([one for one in core.turn(*both) if isinstance(one, Answer)]) == 2
    assert core.claim_end("pi", "a", state)
    assert not core.claim_end("pi", "a", "failed" if state == "succeeded" else "succeeded")
    assert core.state("a") == state


def test_a_cancelled_claim_is_told_at_its_next_heartbeat_and_holds_its_room_until_its_end() -> None:
    core = CoreFleet()
    core.submit("a", min_cpu_cores=4)
    claimed(core, "pi")
    core.cancel("a")
    assert core.state("a") == states.CANCELLED
    assert core.free("pi")[0] == 0
    assert core.claim_beat("pi", "a") is True
    assert core.claim_end("pi", "a", "failed", error="cancelled")
    assert core.free("pi")[0] == 4000
    assert core.state("a") == states.CANCELLED


def test_a_cancelled_claim_that_is_never_heard_of_again_gives_its_room_back_with_its_lease() -> None:
    core = CoreFleet()
    core.submit("a", min_cpu_cores=4)
    claimed(core, "pi")
    core.cancel("a")
    core.wait(LEASE_S + 1)
    assert core.free("pi")[0] == 4000
    assert core.state("a") == states.CANCELLED


def test_a_requeued_claim_is_fenced_and_placed_again_only_when_the_old_process_is_gone() -> None:
    core = CoreFleet()
    core.submit("a")
    first = claimed(core, "p1")
    core.requeue("a")
    assert core.state("a") == states.PENDING
    refused(core, "p2")
    assert core.claim_beat("p1", "a", first.attempt) is True
    assert not core.claim_end("p1", "a", attempt=first.attempt)
    assert claimed(core, "p2").task_id == "a"
    assert core.claim_end("p2", "a")


def test_requeue_works_from_every_state() -> None:
    def at(state: str) -> CoreFleet:
        core = CoreFleet()
        core.submit("a", scheduling_timeout_seconds=5)
        if state == states.PENDING:
            return core
        if state == states.UNSCHEDULABLE:
            core.wait(6)
            return core
        claimed(core, "p1")
        if state == states.RUNNING:
            core.claim_beat("p1", "a")
        if state in (states.SUCCEEDED, states.FAILED):
            core.claim_end("p1", "a", state)
        if state == states.CANCELLED:
            core.cancel("a")
            core.claim_end("p1", "a", "failed")
        return core

    for state in states.STATES:
        if state == states.ORPHANED:
            continue
        core = at(state)
        assert core.state("a") == state
        core.requeue("a")
        assert core.state("a") == states.PENDING, state
        if state in (states.ASSIGNED, states.RUNNING):
            core.claim_end("p1", "a", "failed")
        assert claimed(core, "p2").task_id == "a", state
        assert core.claim_end("p2", "a"), state


def test_a_hub_restart_loses_no_claim_and_begins_its_lease_anew() -> None:
    core = CoreFleet()
    core.submit("a", min_cpu_cores=2, min_memory_gb=3)
    core.submit("b")
    claimed(core, "p1")
    claimed(core, "p2")
    core.claim_beat("p2", "b")
    core.wait(500)
    core.restart(away=400)
    assert core.states("a", "b") == [states.ASSIGNED, states.RUNNING]
    assert core.free("p1")[:2] == (2000, 13 * 1024)
    core.wait(590)
    assert core.claim_beat("p1", "a") is False
    core.wait(20)
    assert core.states("a", "b") == [states.RUNNING, states.PENDING]


def test_a_run_that_used_its_time_is_cancelled_at_its_next_heartbeat() -> None:
    core = CoreFleet()
    core.submit("a", max_runtime_hours=0.1)
    claimed(core, "pi")
    core.wait(350)
    assert core.claim_beat("pi", "a") is False
    core.wait(20)
    assert core.claim_beat("pi", "a") is True
    assert core.claim_end("pi", "a", "failed", error="cancelled")
    assert "max_runtime" in core.job("a").reason


def test_a_drained_machine_gets_nothing_until_it_is_resumed() -> None:
    core = CoreFleet()
    refused(core, "pi")
    core.submit("a")
    core.drain("pi")
    assert "draining" in refused(core, "pi")
    core.drain("pi", draining=False)
    claimed(core, "pi")


def test_what_a_machine_hands_back_costs_nothing() -> None:
    core = CoreFleet()
    core.submit("a")
    claimed(core, "pi")
    assert core.claim_end("pi", "a", "returned", fault="drain", error="it is leaving")
    assert (core.state("a"), core.task("a").losses) == (states.PENDING, 0)


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "service"},
        {"node_count": 2},
        {"snapshot_id": "0" * 64},
        {"prolog": ["true"]},
        {"outputs": ["model"]},
        {"metadata": {"ostler.call": {}}},
    ],
)
def test_only_plain_commands_are_claimed(spec: dict[str, object]) -> None:
    core = CoreFleet()
    core.submit("a", **spec)
    assert "needs a worker that holds a connection" in refused(core, "pi")


def test_the_tasks_of_an_array_are_claimed_one_by_one() -> None:
    core = CoreFleet()
    core.submit("a", array=3)
    found = [claimed(core, f"p{number}") for number in range(3)]
    assert [(one.task_id, one.index) for one in found] == [("a.0", 0), ("a.1", 1), ("a.2", 2)]
    for number in range(3):
        assert core.claim_end(f"p{number}", f"a.{number}")
    assert core.job("a").state == states.SUCCEEDED


def test_a_name_that_is_connected_cannot_claim() -> None:
    core = CoreFleet()
    core.worker("box")
    core.turn(core.claiming("box"))
    assert isinstance(core.of(Refuse)[0].error, Conflict)


def test_a_machine_that_claimed_may_come_with_a_connection_later() -> None:
    core = CoreFleet()
    core.submit("a")
    claimed(core, "box")
    core.worker("box")
    assert core.state("a") == states.ASSIGNED
    assert core.task("a").losses == 1
    assert core.claim_beat("box", "a") is None
    assert core.where("a") == "box"


def test_what_a_machine_last_said_with_a_claim_is_known_after_a_restart() -> None:
    core = CoreFleet()
    core.submit("a")
    core.submit("b")
    claimed(core, "pi", memory_available_gb=8.0)
    core.wait(100)
    claimed(core, "pi", memory_available_gb=3.0)
    core.restart()
    worker = core.fleet.workers["pi"]
    assert (worker.capabilities.memory_available_gb, worker.last_contact_at) == (3.0, EPOCH + 100)


def test_the_hub_being_away_shortens_no_lease() -> None:
    from ostler.core.events import HubWasAway

    core = CoreFleet()
    core.submit("a")
    claimed(core, "pi")
    core.now += 700
    core.turn(HubWasAway(700))
    assert core.state("a") == states.ASSIGNED


# Needs, in the words of the manifest


def gpu(total: float, free: float | None = None, index: int = 0) -> DeviceInfo:
    return DeviceInfo(index=index, vram_gb=total, vram_free_gb=free)


def with_gpus(*devices: DeviceInfo, **more: object) -> dict[str, object]:
    said = capabilities(cores=8, memory=32, backend="nvidia", hostname="box", **more)  # type: ignore[arg-type]
    said.devices, said.gpu_count = list(devices), len(devices)
    return {"said": said}


def test_a_need_is_at_most_what_was_seen_to_be_free() -> None:
    core = CoreFleet()
    core.submit("a", min_vram_gb=8)
    assert "vram_free 2.0 GiB < 8.0 GiB" in refused(core, "box", **with_gpus(gpu(24, 2)))
    assert claimed(core, "box", **with_gpus(gpu(24, 2), gpu(24, 9, 1))).devices == (1,)


def test_a_need_is_at_most_the_total_less_what_is_held() -> None:
    core = CoreFleet()
    core.submit("a", min_vram_gb=16)
    core.submit("b", min_vram_gb=16)
    claimed(core, "box", **with_gpus(gpu(24, 24)))
    assert "vram_free 8.0 GiB < 16.0 GiB" in refused(core, "box", **with_gpus(gpu(24, 24)))


def test_the_same_gigabyte_is_not_counted_twice() -> None:
    core = CoreFleet()
    for name in ("a", "b", "c"):
        core.submit(name, min_memory_gb=8)
    first = {"memory": 0, "memory_available_gb": 16.0}
    claimed(core, "pi", **first)
    # What the first holds shows in what is available now; without a total it is not taken off once more.
    claimed(core, "pi", memory=0, memory_available_gb=8.0)
    assert "needs 8 GiB of memory" in refused(core, "pi", memory=0, memory_available_gb=0.5)
    # With a total, what is available counts alone where it is less.
    assert "needs 8 GiB of memory" in refused(core, "other", memory=32, memory_available_gb=7.0)


def test_a_job_that_requires_cuda_gets_a_whole_gpu() -> None:
    core = CoreFleet()
    core.submit("a", gpu_backend="nvidia", gpu_count=1)
    assert "no CUDA" in refused(core, "pi")
    claim = claimed(core, "box", **with_gpus(gpu(8, 8), gpu(24, 24, 1)))
    assert (claim.devices, claim.has_devices) == ((0,), True)


def test_a_preference_for_cuda_closes_other_machines_until_its_grace_is_over() -> None:
    core = CoreFleet()
    core.submit("a", prefer_cuda=True, prefer_cuda_grace_seconds=300)
    core.wait(299)
    assert "prefers CUDA until it has waited 300 s" in refused(core, "pi")
    assert "no registered worker could ever" not in core.why("a").summary
    core.wait(2)
    assert claimed(core, "pi").devices == ()


def test_a_preference_for_cuda_takes_a_whole_gpu_where_there_is_one_and_none_elsewhere() -> None:
    core = CoreFleet()
    core.submit("a", prefer_cuda=True)
    core.submit("b", prefer_cuda=True, prefer_cuda_grace_seconds=0)
    core.submit("c", prefer_cuda=True, prefer_cuda_grace_seconds=0)
    assert claimed(core, "box", **with_gpus(gpu(8, 8))).devices == (0,)
    assert "needs 1 GPU" in refused(core, "box", **with_gpus(gpu(8, 8)))
    assert claimed(core, "pi").devices == ()


def test_a_preference_lasts_through_a_restart_and_begins_anew_with_a_requeue() -> None:
    core = CoreFleet()
    core.submit("a", prefer_cuda=True)
    core.wait(200)
    core.restart(away=50)
    assert "prefers CUDA" in refused(core, "pi")
    core.wait(60)
    claimed(core, "pi")
    core.claim_end("pi", "a", "failed")
    core.requeue("a")
    assert "prefers CUDA" in refused(core, "pi")
    core.wait(301)
    claimed(core, "pi")


def test_an_opened_preference_still_goes_to_cuda_where_there_is_a_choice() -> None:
    core = CoreFleet()
    core.worker("cpu")
    core.worker("gpu", gpus=1, vram=24)
    core.submit("a", prefer_cuda=True, prefer_cuda_grace_seconds=0)
    assert (core.where("a"), core.devices("a")) == ("gpu", (0,))
    core.submit("b", prefer_cuda=True, prefer_cuda_grace_seconds=0)
    assert (core.where("b"), core.devices("b")) == ("cpu", ())


def test_hosts_lists_of_a_job_and_lists_of_jobs_of_a_host() -> None:
    core = CoreFleet()
    hosts = {"pi": HostPolicy(allow_jobs=("gbt",)), "mac": HostPolicy(deny_jobs=("big",))}
    big, gbt = Training(model="big"), Training(model="gbt")
    core.follow(
        entry("only-box", training=gbt, allowed_hosts=["box"]),
        hosts=hosts,
    )
    assert "whitelist" in refused(core, "pi")
    assert claimed(core, "box").task_id == "only-box"
    core.follow(entry("big", training=big), hosts=hosts)
    assert "pi trains only gbt (whitelist); this is a job of model big" in refused(core, "pi")
    assert "mac does not train big (denied)" in refused(core, "mac")
    assert claimed(core, "box").task_id == "big"
    core.follow(entry("not-box", training=gbt, denied_hosts=["box"]), hosts=hosts)
    assert "may not run on box (denied)" in refused(core, "box")
    assert claimed(core, "pi").task_id == "not-box"


def test_a_hosts_capability_caps_what_it_offers() -> None:
    core = CoreFleet()
    core.follow(entry("a", min_cpu_cores=3), hosts={"pi": HostPolicy(cpu_cores=2)})
    assert "needs 3 cores; pi has 2 free of 2" in refused(core, "pi", cores=4)
    core.follow(entry("a", min_cpu_cores=3), hosts={"pi": HostPolicy(cpu_cores=3)})
    claimed(core, "pi", cores=4)


def test_what_a_machine_last_said_is_written_down_once_a_minute() -> None:
    core = CoreFleet()
    refused(core, "pi", cores=4)
    core.wait(61)
    refused(core, "pi", cores=2)
    core.restart(away=300)
    worker = core.fleet.workers["pi"]
    assert worker.capabilities.cpu_count == 2
    assert core.now - worker.last_contact >= 300
