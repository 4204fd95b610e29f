"""Who is next: priority, tier, who has used least, arrival; and nobody blocks those behind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.core_fleet import CoreFleet, holding

from ostler.core.queueing.queue import band_key
from ostler.core.queueing.usage import HALF_LIFE_S, Usage, device_weight
from ostler.domain.scheduling import Scheduling

DAY_S = 86_400.0


def start_order(core: CoreFleet, jobs: int) -> list[str]:
    """The jobs in the order in which a machine with one slot takes them."""
    taken = []
    core.worker("box", slots=1)
    for _ in range(jobs):
        [running] = [attempt.task_id for attempt in core.fleet.held.values()]
        taken.append(running)
        core.end(running)
    return taken


def test_a_higher_priority_goes_first_and_a_negative_one_last() -> None:
    core = CoreFleet()
    core.submit("low", priority=-5)
    core.submit("none")
    core.submit("high", priority=7)
    core.submit("higher", priority=8, job_tier="data_processing")
    assert start_order(core, 4) == ["higher", "high", "none", "low"]


def test_within_a_priority_training_and_fine_tuning_go_first_then_evaluation_then_data_processing() -> None:
    core = CoreFleet()
    core.submit("data", job_tier="data_processing")
    core.submit("eval", job_tier="evaluation")
    core.submit("train", job_tier="training")
    core.submit("tune", job_tier="fine_tuning")
    assert start_order(core, 4) == ["train", "tune", "eval", "data"]


def test_priority_outweighs_tier() -> None:
    core = CoreFleet()
    core.submit("train", job_tier="training")
    core.submit("data", job_tier="data_processing", priority=1)
    assert start_order(core, 2) == ["data", "train"]


def test_within_a_user_arrival_decides_whatever_the_shape() -> None:
    core = CoreFleet()
    jobs = [core.submit(f"j{n}", min_cpu_cores=n % 3) for n in range(9)]
    assert core.queue() == jobs
    assert start_order(core, 9) == jobs


def test_between_users_who_has_used_least_goes_first() -> None:
    core = CoreFleet()
    core.worker("box", gpus=1, vram=24, slots=1)
    core.submit("hog", user_id="bob", gpu_count=1)
    core.start("hog")
    core.submit("bobs", user_id="bob")
    core.submit("anns", user_id="ann")
    assert core.queue() == ["anns", "bobs"]
    core.wait(3600)
    core.end("hog")
    assert core.where("anns") == "box"
    assert core.where("bobs") == ""


def test_one_pass_over_free_room_is_shared_out_between_users() -> None:
    core = CoreFleet()
    for n in range(6):
        core.submit(f"bob{n}", user_id="bob")
    for n in range(3):
        core.submit(f"ann{n}", user_id="ann")
    core.worker("box", slots=6)
    placed = sorted(attempt.task_id for attempt in core.fleet.held.values())
    assert placed == ["ann0", "ann1", "ann2", "bob0", "bob1", "bob2"]


def test_fair_share_never_overrules_priority_or_tier() -> None:
    core = CoreFleet()
    core.worker("box", gpus=1, slots=1)
    core.submit("hog", user_id="bob", gpu_count=1)
    core.start("hog")
    core.submit("anns", user_id="ann")
    core.submit("bobs", user_id="bob", priority=1)
    assert core.queue() == ["bobs", "anns"]


def test_what_runs_for_long_is_used_while_it_runs() -> None:
    """Ann has 8 GPUs for hours; Bob had one for an hour, which is over."""
    core = CoreFleet()
    core.worker("box", gpus=9, vram=9 * 24)
    core.start(core.submit("bobs", gpu_count=1, user_id="bob"))
    core.wait(3600)
    core.end("bobs")
    core.start(core.submit("anns", gpu_count=8, user_id="ann"))
    core.start(core.submit("hog", gpu_count=1, user_id="eve", priority=1))
    core.submit("anns next", gpu_count=1, user_id="ann")
    core.submit("bobs next", gpu_count=1, user_id="bob")
    assert core.queue() == ["anns next", "bobs next"]
    core.wait(1800)
    account = holding(("anns", core.attempt("anns")), ("hog", core.attempt("hog")))
    core.beat("box", account)
    core.beat("box", account)
    used = core.fleet.usage.gpu_seconds("ann", core.now)
    assert 8 * 1800 < used < 10 * 1800, "once, and with its cores"
    assert core.queue() == ["bobs next", "anns next"]
    core.end("anns")
    assert core.fleet.usage.gpu_seconds("ann", core.now) < used + 1000, "that its next job has begun"


def test_what_was_used_fades_with_its_half_life() -> None:
    usage = Usage()
    usage.charge("bob", 100.0, 0.0)
    assert usage.gpu_seconds("bob", HALF_LIFE_S) == pytest.approx(50.0)
    usage.charge("ann", 60.0, HALF_LIFE_S)
    assert usage.of("ann") > usage.of("bob")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1e6), st.floats(0, 400 * DAY_S)), max_size=30))
def test_the_order_of_users_is_that_of_their_faded_use_over_any_length_of_time(
    charges: list[tuple[str, float, float]],
) -> None:
    usage, now = Usage(), 0.0
    truth: dict[str, float] = {}
    for user, amount, pause in charges:
        now += pause
        truth = {name: used * 2 ** -(pause / HALF_LIFE_S) for name, used in truth.items()}
        truth[user] = truth.get(user, 0.0) + amount
        usage.charge(user, amount, now)
    for user, used in truth.items():
        assert usage.gpu_seconds(user, now) == pytest.approx(used, rel=1e-6, abs=1e-6)


def test_a_task_that_does_not_fit_is_skipped_and_blocks_nobody() -> None:
    core = CoreFleet()
    core.worker("box", gpus=1, vram=24, slots=8)
    core.submit("huge", priority=100, gpu_count=64)
    core.submit("nowhere", priority=50, labels=["zone = mars"])
    core.submit("small", user_id="ann")
    core.submit("gpu", user_id="bob", gpu_count=1)
    assert [core.where(job) for job in ("huge", "nowhere", "small", "gpu")] == ["", "", "box", "box"]


def test_a_task_that_comes_back_stands_where_its_arrival_puts_it() -> None:
    core = CoreFleet()
    core.worker("box", slots=1)
    jobs = [core.submit(f"j{n}") for n in range(4)]
    core.start("j0")
    core.end("j0", "returned", fault="drain")
    assert core.where("j0") == "box"
    core.drain("box")
    core.end("j0", "returned", fault="drain")
    assert core.queue() == jobs


def test_a_task_not_placed_in_time_is_unschedulable_with_the_reasons_of_that_moment() -> None:
    core = CoreFleet()
    core.worker("box", cores=4)
    core.submit("late", min_cpu_cores=8, scheduling_timeout_seconds=30)
    core.submit("patient", min_cpu_cores=8)
    core.wait(29)
    assert core.state("late") == "pending"
    core.wait(2)
    assert core.states("late", "patient") == ["unschedulable", "pending"]
    row = core.job("late")
    assert row.reason.startswith("not placed within 30 s: no registered worker could ever run this")
    assert "needs 8 cores; box has 4 free of 4" in row.reason
    assert row.finished_at is not None


def test_one_that_is_given_up_delays_nobody() -> None:
    core = CoreFleet()
    core.submit("late", scheduling_timeout_seconds=5)
    core.submit("next")
    core.wait(6)
    core.worker("box", slots=1)
    assert core.states("late", "next") == ["unschedulable", "assigned"]


def test_a_task_placed_in_time_is_not_given_up_later() -> None:
    core = CoreFleet()
    core.worker("box")
    job = core.submit(scheduling_timeout_seconds=30)
    core.start(job)
    core.wait(60)
    assert core.state(job) == "running"
    core.end(job, "returned", fault="worker")
    core.wait(60)
    assert core.state(job) != "unschedulable"


def test_a_requeued_job_gets_its_scheduling_timeout_anew() -> None:
    core = CoreFleet()
    job = core.submit(scheduling_timeout_seconds=30)
    core.wait(31)
    core.requeue(job)
    core.wait(29)
    assert core.state(job) == "pending"
    core.wait(2)
    assert core.state(job) == "unschedulable"


def test_a_requeued_array_gets_its_scheduling_timeout_anew() -> None:
    core = CoreFleet()
    core.worker("box")
    core.submit("a", array=2, scheduling_timeout_seconds=30)
    for task in ("a.0", "a.1"):
        core.start(task)
        core.end(task, "failed")
    core.drain("box")
    core.requeue("a")
    core.wait(31)
    assert core.states("a.0", "a.1") == ["unschedulable", "unschedulable"]
    assert core.job("a").state == "unschedulable"


def test_the_scheduling_timeout_counts_over_a_restart() -> None:
    core = CoreFleet()
    job = core.submit(scheduling_timeout_seconds=30)
    core.wait(20)
    core.restart(away=9)
    assert core.state(job) == "pending"
    core.wait(2)
    assert core.state(job) == "unschedulable"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 9), st.booleans()), max_size=40))
def test_the_first_in_order_is_the_one_that_looking_at_every_job_would_find(
    acts: list[tuple[int, int, int, bool]],
) -> None:
    """However users are charged in between, over any length of time."""
    core = CoreFleet(checked=False)
    fleet = core.fleet
    for number, (what, who, much, long) in enumerate(acts):
        if what < 2:
            core.submit(f"j{number}", user_id=f"u{who}", min_cpu_cores=much % 3, priority=much % 2)
        elif what == 2:
            core.now += 200 * DAY_S if long else 1.0
            fleet.charge(f"u{who}", much * 10.0, core.now)
        elif fleet.jobs:
            core.cancel(list(fleet.jobs)[much % len(fleet.jobs)])
        jobs = [job for job in fleet.jobs.values() if job.lane is not None]
        for shapes in (fleet.queue.pending, fleet.queue.pending & 0b101, 0b10):
            found = [job for job in jobs if job.shape.bit & shapes]
            first = min(
                found, key=lambda job: (*band_key(job), fleet.usage.of(job.user), job.user, job.seq), default=None
            )
            assert fleet.queue.pick(shapes) is first


def test_an_hour_on_a_large_device_counts_more_than_one_on_a_small_device() -> None:
    used = {}
    for user, gpu_type, vram in (("ann", "T4", 16), ("bob", "A100", 80)):
        core = CoreFleet()
        core.worker("box", gpus=1, vram=vram, gpu_type=gpu_type)
        core.start(core.submit("job", gpu_count=1, user_id=user))
        core.wait(3600)
        core.end("job")
        used[user] = core.fleet.usage.gpu_seconds(user, core.now)
    assert used["bob"] == pytest.approx(5 * used["ann"], rel=0.15)


def test_what_a_device_counts_can_be_said_by_its_type() -> None:
    policy = Scheduling(weights={"a100": 2.0})
    assert device_weight(policy, "A100", 80 * 1024) == 2.0
    assert device_weight(policy, "A100", 80 * 1024, ("NVIDIA A100-SXM4-80GB",)) == 2.0
    by_name = Scheduling(weights={"a100": 2.0, "nvidia a100-sxm4-80gb": 3.0})
    assert device_weight(by_name, "A100", 80 * 1024, ("NVIDIA A100-SXM4-80GB",)) == 3.0
    assert device_weight(policy, "T4", 0) == 1.0
    assert device_weight(policy, "T4", 12 * 1024) == 0.5
