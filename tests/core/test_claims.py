"""Machines that hold no connection: they claim one task at a time, and only a lease binds them."""

import pytest
from tests.core.yard import EPOCH, Yard, capabilities, entry

from ostler.core.claims import LEASE_S
from ostler.core.effects import Answer, Claimed, NothingToClaim, Refuse
from ostler.domain import states
from ostler.domain.errors import Conflict
from ostler.domain.hosts import HostPolicy
from ostler.domain.job import Training
from ostler.domain.worker import DeviceInfo


def claimed(yard: Yard, name: str, **offer: object) -> Claimed:
    answer = yard.claim(name, **offer)
    assert isinstance(answer, Claimed), answer
    return answer


def refused(yard: Yard, name: str, **offer: object) -> str:
    answer = yard.claim(name, **offer)
    assert isinstance(answer, NothingToClaim), answer
    return answer.reason


def test_a_claim_is_claimed_until_its_first_heartbeat_and_then_running() -> None:
    yard = Yard()
    yard.submit("a")
    claim = claimed(yard, "pi")
    assert (claim.task_id, claim.lease_s) == ("a", LEASE_S)
    assert yard.state("a") == states.ASSIGNED
    assert yard.claim_beat("pi", "a") is False
    assert yard.state("a") == states.RUNNING
    assert yard.claim_end("pi", "a")
    assert yard.state("a") == states.SUCCEEDED
    assert yard.free("pi")[:2] == (4000, 16 * 1024)


def test_nobody_gives_work_to_a_machine_that_only_claims() -> None:
    yard = Yard()
    refused(yard, "pi")
    yard.submit("a")
    assert yard.state("a") == states.PENDING
    assert "only when it asks" in yard.why("a").summary


def test_a_claim_takes_the_first_in_the_queues_order_that_fits() -> None:
    yard = Yard()
    yard.submit("large", min_cpu_cores=8, priority=9)
    yard.submit("low")
    yard.submit("high", priority=5)
    assert [claimed(yard, name).task_id for name in ("p1", "p2")] == ["high", "low"]
    assert "needs 8 cores; p3 has 4 free of 4" in refused(yard, "p3")


def test_of_many_claims_in_one_batch_each_job_goes_to_one() -> None:
    yard = Yard()
    for number in range(100):
        yard.submit(f"j{number:03}")
    answers = yard.turn(*[yard.claiming(f"p{number}") for number in range(200)])
    won = [answer.task_id for answer in answers if isinstance(answer, Claimed)]
    assert sorted(won) == [f"j{number:03}" for number in range(100)]
    assert sum(isinstance(answer, NothingToClaim) for answer in answers) == 100


def test_a_machine_holds_as_much_as_it_has_room_for() -> None:
    yard = Yard()
    for name in "abc":
        yard.submit(name, min_cpu_cores=2)
    assert claimed(yard, "pi").task_id == "a"
    assert claimed(yard, "pi").task_id == "b"
    assert "needs 2 cores" in refused(yard, "pi")


def test_with_nothing_queued_the_answer_says_so() -> None:
    assert refused(Yard(), "pi") == "nothing waits"


def test_a_claim_without_heartbeats_lapses_and_is_claimed_by_another() -> None:
    yard = Yard()
    yard.submit("a")
    first = claimed(yard, "p1")
    yard.wait(LEASE_S - 1)
    assert yard.state("a") == states.ASSIGNED
    yard.wait(2)
    assert yard.state("a") == states.PENDING
    assert "p1 sent no heartbeat for 600 s" in yard.job("a").reason
    second = claimed(yard, "p2")
    assert second.attempt != first.attempt
    assert yard.claim_beat("p1", "a") is None
    assert not yard.claim_end("p1", "a", attempt=first.attempt)
    assert yard.where("a") == "p2"


def test_heartbeats_keep_a_claim_for_as_long_as_they_come() -> None:
    yard = Yard()
    yard.submit("a")
    claimed(yard, "pi")
    for _ in range(10):
        yard.wait(LEASE_S - 10)
        assert yard.claim_beat("pi", "a") is False
    assert yard.state("a") == states.RUNNING
    assert yard.task("a").losses == 0


def test_the_fourth_lapse_fails_the_job() -> None:
    yard = Yard()
    yard.submit("a")
    for number in range(1, 4):
        claimed(yard, f"p{number}")
        yard.wait(LEASE_S + 1)
        assert (yard.state("a"), yard.task("a").losses) == (states.PENDING, number)
    claimed(yard, "p4")
    yard.wait(LEASE_S + 1)
    assert yard.state("a") == states.FAILED
    assert "lost 4 times, max_attempts is 3" in yard.job("a").reason


def test_neither_the_times_of_the_protocol_nor_a_tiers_grace_apply_to_a_claim() -> None:
    yard = Yard()
    yard.submit("a", job_tier="data_processing")
    claimed(yard, "pi")
    yard.wait(599)
    assert yard.state("a") == states.ASSIGNED


@pytest.mark.parametrize("attempt", ["", "other"])
def test_a_heartbeat_or_an_end_by_the_wrong_worker_is_refused(attempt: str) -> None:
    yard = Yard()
    yard.submit("a")
    claimed(yard, "p1")
    refused(yard, "p2")
    assert yard.claim_beat("p2", "a", attempt) is None
    assert not yard.claim_end("p2", "a", attempt=attempt)
    assert not yard.claim_end("p2", "a", "failed", attempt=attempt)
    assert isinstance(yard.of(Refuse)[0].error, Conflict)
    assert yard.state("a") == states.ASSIGNED


def test_the_right_worker_with_the_wrong_attempt_is_refused() -> None:
    yard = Yard()
    yard.submit("a")
    claimed(yard, "pi")
    assert yard.claim_beat("pi", "a", "another") is None
    assert not yard.claim_end("pi", "a", attempt="another")


@pytest.mark.parametrize("state", ["succeeded", "failed"])
def test_an_end_may_be_said_again_and_the_other_end_not(state: str) -> None:
    yard = Yard()
    yard.submit("a")
    claimed(yard, "pi")
    both = [yard.claim_ending("pi", "a", state), yard.claim_ending("pi", "a", state)]
    assert len([one for one in yard.turn(*both) if isinstance(one, Answer)]) == 2
    assert yard.claim_end("pi", "a", state)
    assert not yard.claim_end("pi", "a", "failed" if state == "succeeded" else "succeeded")
    assert yard.state("a") == state


def test_a_cancelled_claim_is_told_at_its_next_heartbeat_and_holds_its_room_until_its_end() -> None:
    yard = Yard()
    yard.submit("a", min_cpu_cores=4)
    claimed(yard, "pi")
    yard.cancel("a")
    assert yard.state("a") == states.CANCELLED
    assert yard.free("pi")[0] == 0
    assert yard.claim_beat("pi", "a") is True
    assert yard.claim_end("pi", "a", "failed", error="cancelled")
    assert yard.free("pi")[0] == 4000
    assert yard.state("a") == states.CANCELLED


def test_a_cancelled_claim_that_is_never_heard_of_again_gives_its_room_back_with_its_lease() -> None:
    yard = Yard()
    yard.submit("a", min_cpu_cores=4)
    claimed(yard, "pi")
    yard.cancel("a")
    yard.wait(LEASE_S + 1)
    assert yard.free("pi")[0] == 4000
    assert yard.state("a") == states.CANCELLED


def test_a_requeued_claim_is_fenced_and_placed_again_only_when_the_old_process_is_gone() -> None:
    yard = Yard()
    yard.submit("a")
    first = claimed(yard, "p1")
    yard.requeue("a")
    assert yard.state("a") == states.PENDING
    refused(yard, "p2")
    assert yard.claim_beat("p1", "a", first.attempt) is True
    assert not yard.claim_end("p1", "a", attempt=first.attempt)
    assert claimed(yard, "p2").task_id == "a"
    assert yard.claim_end("p2", "a")


def test_requeue_works_from_every_state() -> None:
    def at(state: str) -> Yard:
        yard = Yard()
        yard.submit("a", scheduling_timeout_seconds=5)
        if state == states.PENDING:
            return yard
        if state == states.UNSCHEDULABLE:
            yard.wait(6)
            return yard
        claimed(yard, "p1")
        if state == states.RUNNING:
            yard.claim_beat("p1", "a")
        if state in (states.SUCCEEDED, states.FAILED):
            yard.claim_end("p1", "a", state)
        if state == states.CANCELLED:
            yard.cancel("a")
            yard.claim_end("p1", "a", "failed")
        return yard

    for state in states.STATES:
        if state == states.ORPHANED:
            continue
        yard = at(state)
        assert yard.state("a") == state
        yard.requeue("a")
        assert yard.state("a") == states.PENDING, state
        if state in (states.ASSIGNED, states.RUNNING):
            yard.claim_end("p1", "a", "failed")
        assert claimed(yard, "p2").task_id == "a", state
        assert yard.claim_end("p2", "a"), state


def test_a_hub_restart_loses_no_claim_and_begins_its_lease_anew() -> None:
    yard = Yard()
    yard.submit("a", min_cpu_cores=2, min_memory_gb=3)
    yard.submit("b")
    claimed(yard, "p1")
    claimed(yard, "p2")
    yard.claim_beat("p2", "b")
    yard.wait(500)
    yard.restart(away=400)
    assert yard.states("a", "b") == [states.ASSIGNED, states.RUNNING]
    assert yard.free("p1")[:2] == (2000, 13 * 1024)
    yard.wait(590)
    assert yard.claim_beat("p1", "a") is False
    yard.wait(20)
    assert yard.states("a", "b") == [states.RUNNING, states.PENDING]


def test_a_run_that_used_its_time_is_cancelled_at_its_next_heartbeat() -> None:
    yard = Yard()
    yard.submit("a", max_runtime_hours=0.1)
    claimed(yard, "pi")
    yard.wait(350)
    assert yard.claim_beat("pi", "a") is False
    yard.wait(20)
    assert yard.claim_beat("pi", "a") is True
    assert yard.claim_end("pi", "a", "failed", error="cancelled")
    assert "max_runtime" in yard.job("a").reason


def test_a_drained_machine_gets_nothing_until_it_is_resumed() -> None:
    yard = Yard()
    refused(yard, "pi")
    yard.submit("a")
    yard.drain("pi")
    assert "draining" in refused(yard, "pi")
    yard.drain("pi", draining=False)
    claimed(yard, "pi")


def test_what_a_machine_hands_back_costs_nothing() -> None:
    yard = Yard()
    yard.submit("a")
    claimed(yard, "pi")
    assert yard.claim_end("pi", "a", "returned", fault="drain", error="it is leaving")
    assert (yard.state("a"), yard.task("a").losses) == (states.PENDING, 0)


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
    yard = Yard()
    yard.submit("a", **spec)
    assert "needs a worker that holds a connection" in refused(yard, "pi")


def test_the_tasks_of_an_array_are_claimed_one_by_one() -> None:
    yard = Yard()
    yard.submit("a", array=3)
    found = [claimed(yard, f"p{number}") for number in range(3)]
    assert [(one.task_id, one.index) for one in found] == [("a.0", 0), ("a.1", 1), ("a.2", 2)]
    for number in range(3):
        assert yard.claim_end(f"p{number}", f"a.{number}")
    assert yard.job("a").state == states.SUCCEEDED


def test_a_name_that_is_connected_cannot_claim() -> None:
    yard = Yard()
    yard.worker("box")
    yard.turn(yard.claiming("box"))
    assert isinstance(yard.of(Refuse)[0].error, Conflict)


def test_a_machine_that_claimed_may_come_with_a_connection_later() -> None:
    yard = Yard()
    yard.submit("a")
    claimed(yard, "box")
    yard.worker("box")
    assert yard.state("a") == states.ASSIGNED
    assert yard.task("a").losses == 1
    assert yard.claim_beat("box", "a") is None
    assert yard.where("a") == "box"


def test_what_a_machine_last_said_with_a_claim_is_known_after_a_restart() -> None:
    yard = Yard()
    yard.submit("a")
    yard.submit("b")
    claimed(yard, "pi", memory_available_gb=8.0)
    yard.wait(100)
    claimed(yard, "pi", memory_available_gb=3.0)
    yard.restart()
    worker = yard.fleet.workers["pi"]
    assert (worker.capabilities.memory_available_gb, worker.last_contact_at) == (3.0, EPOCH + 100)


def test_the_hub_being_away_shortens_no_lease() -> None:
    from ostler.core.events import HubWasAway

    yard = Yard()
    yard.submit("a")
    claimed(yard, "pi")
    yard.now += 700
    yard.turn(HubWasAway(700))
    assert yard.state("a") == states.ASSIGNED


# Needs, in the words of the manifest


def gpu(total: float, free: float | None = None, index: int = 0) -> DeviceInfo:
    return DeviceInfo(index=index, vram_gb=total, vram_free_gb=free)


def with_gpus(*devices: DeviceInfo, **more: object) -> dict[str, object]:
    said = capabilities(cores=8, memory=32, backend="nvidia", hostname="box", **more)  # type: ignore[arg-type]
    said.devices, said.gpu_count = list(devices), len(devices)
    return {"said": said}


def test_a_need_is_at_most_what_was_seen_to_be_free() -> None:
    yard = Yard()
    yard.submit("a", min_vram_gb=8)
    assert "vram_free 2.0 GiB < 8.0 GiB" in refused(yard, "box", **with_gpus(gpu(24, 2)))
    assert claimed(yard, "box", **with_gpus(gpu(24, 2), gpu(24, 9, 1))).devices == (1,)


def test_a_need_is_at_most_the_total_less_what_is_held() -> None:
    yard = Yard()
    yard.submit("a", min_vram_gb=16)
    yard.submit("b", min_vram_gb=16)
    claimed(yard, "box", **with_gpus(gpu(24, 24)))
    assert "vram_free 8.0 GiB < 16.0 GiB" in refused(yard, "box", **with_gpus(gpu(24, 24)))


def test_the_same_gigabyte_is_not_counted_twice() -> None:
    yard = Yard()
    for name in ("a", "b", "c"):
        yard.submit(name, min_memory_gb=8)
    first = {"memory": 0, "memory_available_gb": 16.0}
    claimed(yard, "pi", **first)
    # What the first holds shows in what is available now; without a total it is not taken off once more.
    claimed(yard, "pi", memory=0, memory_available_gb=8.0)
    assert "needs 8 GiB of memory" in refused(yard, "pi", memory=0, memory_available_gb=0.5)
    # With a total, what is available counts alone where it is less.
    assert "needs 8 GiB of memory" in refused(yard, "other", memory=32, memory_available_gb=7.0)


def test_a_job_that_requires_cuda_gets_a_whole_gpu() -> None:
    yard = Yard()
    yard.submit("a", gpu_backend="nvidia", gpu_count=1)
    assert "no CUDA" in refused(yard, "pi")
    claim = claimed(yard, "box", **with_gpus(gpu(8, 8), gpu(24, 24, 1)))
    assert (claim.devices, claim.has_devices) == ((0,), True)


def test_a_preference_for_cuda_closes_other_machines_until_its_grace_is_over() -> None:
    yard = Yard()
    yard.submit("a", prefer_cuda=True, prefer_cuda_grace_seconds=300)
    yard.wait(299)
    assert "prefers CUDA until it has waited 300 s" in refused(yard, "pi")
    assert "no registered worker could ever" not in yard.why("a").summary
    yard.wait(2)
    assert claimed(yard, "pi").devices == ()


def test_a_preference_for_cuda_takes_a_whole_gpu_where_there_is_one_and_none_elsewhere() -> None:
    yard = Yard()
    yard.submit("a", prefer_cuda=True)
    yard.submit("b", prefer_cuda=True, prefer_cuda_grace_seconds=0)
    yard.submit("c", prefer_cuda=True, prefer_cuda_grace_seconds=0)
    assert claimed(yard, "box", **with_gpus(gpu(8, 8))).devices == (0,)
    assert "needs 1 GPU" in refused(yard, "box", **with_gpus(gpu(8, 8)))
    assert claimed(yard, "pi").devices == ()


def test_a_preference_lasts_through_a_restart_and_begins_anew_with_a_requeue() -> None:
    yard = Yard()
    yard.submit("a", prefer_cuda=True)
    yard.wait(200)
    yard.restart(away=50)
    assert "prefers CUDA" in refused(yard, "pi")
    yard.wait(60)
    claimed(yard, "pi")
    yard.claim_end("pi", "a", "failed")
    yard.requeue("a")
    assert "prefers CUDA" in refused(yard, "pi")
    yard.wait(301)
    claimed(yard, "pi")


def test_an_opened_preference_still_goes_to_cuda_where_there_is_a_choice() -> None:
    yard = Yard()
    yard.worker("cpu")
    yard.worker("gpu", gpus=1, vram=24)
    yard.submit("a", prefer_cuda=True, prefer_cuda_grace_seconds=0)
    assert (yard.where("a"), yard.devices("a")) == ("gpu", (0,))
    yard.submit("b", prefer_cuda=True, prefer_cuda_grace_seconds=0)
    assert (yard.where("b"), yard.devices("b")) == ("cpu", ())


def test_hosts_lists_of_a_job_and_lists_of_jobs_of_a_host() -> None:
    yard = Yard()
    hosts = {"pi": HostPolicy(allow_jobs=("gbt",)), "mac": HostPolicy(deny_jobs=("big",))}
    big, gbt = Training(model="big"), Training(model="gbt")
    yard.follow(
        entry("only-box", training=gbt, allowed_hosts=["box"]),
        hosts=hosts,
    )
    assert "whitelist" in refused(yard, "pi")
    assert claimed(yard, "box").task_id == "only-box"
    yard.follow(entry("big", training=big), hosts=hosts)
    assert "pi trains only gbt (whitelist); this is a job of model big" in refused(yard, "pi")
    assert "mac does not train big (denied)" in refused(yard, "mac")
    assert claimed(yard, "box").task_id == "big"
    yard.follow(entry("not-box", training=gbt, denied_hosts=["box"]), hosts=hosts)
    assert "may not run on box (denied)" in refused(yard, "box")
    assert claimed(yard, "pi").task_id == "not-box"


def test_a_hosts_capability_caps_what_it_offers() -> None:
    yard = Yard()
    yard.follow(entry("a", min_cpu_cores=3), hosts={"pi": HostPolicy(cpu_cores=2)})
    assert "needs 3 cores; pi has 2 free of 2" in refused(yard, "pi", cores=4)
    yard.follow(entry("a", min_cpu_cores=3), hosts={"pi": HostPolicy(cpu_cores=3)})
    claimed(yard, "pi", cores=4)


def test_what_a_machine_last_said_is_written_down_once_a_minute() -> None:
    yard = Yard()
    refused(yard, "pi", cores=4)
    yard.wait(61)
    refused(yard, "pi", cores=2)
    yard.restart(away=300)
    worker = yard.fleet.workers["pi"]
    assert worker.capabilities.cpu_count == 2
    assert yard.now - worker.last_contact >= 300
