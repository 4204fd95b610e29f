"""Silence, closed sockets, the grace of each tier, and a hub that was itself away."""

import pytest
from tests.protocol.api import Api
from tests.protocol.client import Worker
from tests.protocol.hub import RunningHub

GRACE_S = {"data_processing": 30, "evaluation": 120, "training": 600, "fine_tuning": 600}


@pytest.fixture
async def worker(hub: RunningHub) -> Worker:
    return await hub.worker()


@pytest.mark.parametrize(("tier", "grace_s"), GRACE_S.items())
async def test_a_closed_socket_makes_an_orphan_that_waits_out_its_tiers_grace(
    hub: RunningHub, api: Api, worker: Worker, tier: str, grace_s: int
) -> None:
    task = await worker.take(await api.submit(job_tier=tier))
    await hub.lose(worker)
    found = await api.job(task.task_id)
    assert (found["state"], found["worker"], found["attempt"]) == ("orphaned", "w", task.attempt)
    await hub.pass_time(grace_s - 1)
    assert await api.state(task.task_id) == "orphaned"
    await hub.pass_time(2)
    assert await api.state(task.task_id) == "pending"


async def test_an_orphan_without_a_grace_left_is_placed_elsewhere_and_one_attempt_is_spent(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task = await worker.take(await api.submit(max_attempts=1))
    await hub.lose(worker)
    other = await hub.worker("other")
    await other.quiet()
    await hub.pass_time(29, beating=[other])
    await hub.pass_time(2)
    await other.take(task.task_id)
    await hub.lose(other)
    await hub.pass_time(31)
    assert await api.state(task.task_id) == "failed"


async def test_a_heartbeat_every_10_s_keeps_a_worker_online(hub: RunningHub, api: Api, worker: Worker) -> None:
    task = await worker.take(await api.submit())
    await hub.pass_time(120, beating=[worker])
    assert (await api.worker("w"))["status"] == "ready"
    assert await api.state(task.task_id) == "running"


async def test_silence_for_30_s_makes_a_worker_offline_and_its_tasks_orphans(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task = await worker.take(await api.submit(job_tier="evaluation"))
    await hub.pass_time(29)
    assert (await api.worker("w"))["status"] == "ready"
    await hub.pass_time(2)
    assert (await api.worker("w"))["status"] == "offline"
    assert await api.state(task.task_id) == "orphaned"
    # The grace is counted from the last contact, not from when the silence was noticed.
    await hub.pass_time(87)
    assert await api.state(task.task_id) == "orphaned"
    await hub.pass_time(3)
    assert await api.state(task.task_id) == "pending"
    await worker.drop()


async def test_a_worker_that_was_only_silent_is_not_told_that_another_took_its_name(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    """4001 would end it for good. Its socket is closed with another code, so that it connects and gives its account."""
    task = await worker.take(await api.submit(job_tier="training", max_attempts=0))
    await hub.pass_time(40)
    assert await api.state(task.task_id) == "orphaned"
    assert await worker.closed() != 4001
    await hub.join(worker, [task])
    assert await api.state(task.task_id) == "running"


async def test_any_message_is_a_sign_of_life(hub: RunningHub, api: Api, worker: Worker) -> None:
    for _ in range(6):
        await hub.pass_time(10)
        await worker.ask()
        await worker.expect("no_work")
    assert (await api.worker("w"))["status"] == "ready"


async def test_an_orphans_room_stays_taken_when_its_worker_comes_back_with_it(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker("gpu", gpu_count=1, vram_gb=24)
    task = await worker.take(await api.submit(gpu_count=1, job_tier="training"))
    await hub.lose(worker)
    waiting = await api.submit(gpu_count=1)
    await hub.pass_time(60)
    await hub.join(worker, [task])
    await worker.ask()
    await worker.expect("no_work")
    await worker.end(task)
    await worker.take(waiting)


async def test_an_assignment_whose_worker_went_before_accepting_it_costs_no_attempt(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task = await worker.assigned(await api.submit(max_attempts=0))
    await hub.lose(worker)
    assert await api.state(task.task_id) == "orphaned"
    await hub.pass_time(31)
    assert await api.state(task.task_id) == "pending"
    other = await hub.worker("other")
    await other.take(task.task_id)


async def test_a_draining_worker_that_has_left_does_not_take_its_room_along(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    await worker.beat(draining=True)
    await hub.lose(worker)
    await hub.join(worker)
    await worker.take(await api.submit())


# A hub that was itself away


async def test_a_hub_that_was_held_up_declares_nobody_lost_for_that(hub: RunningHub, api: Api, worker: Worker) -> None:
    task = await worker.take(await api.submit(max_attempts=0))
    hub.clock.now += 300
    await hub.turn()
    assert (await api.worker("w"))["status"] == "ready"
    assert await api.state(task.task_id) == "running"
    await worker.beat()
    await hub.pass_time(29)
    assert await api.state(task.task_id) == "running"
    await hub.pass_time(2)
    assert (await api.worker("w"))["status"] == "offline"
    await worker.drop()


async def test_the_grace_of_an_orphan_does_not_run_while_the_hub_is_held_up(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task = await worker.take(await api.submit(max_attempts=0))
    await hub.lose(worker)
    hub.clock.now += 300
    await hub.turn()
    assert await api.state(task.task_id) == "orphaned"
    await hub.join(worker, [task])
    assert await api.state(task.task_id) == "running"


async def test_an_acceptance_that_waited_while_the_hub_was_held_up_is_read_before_the_assignment_is_given_up(
    hub: RunningHub, api: Api, worker: Worker
) -> None:
    task = await worker.assigned(await api.submit())
    hub.clock.now += 300
    await worker.accept(task)
    assert await api.state(task.task_id) == "running"
