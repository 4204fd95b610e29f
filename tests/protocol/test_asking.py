"""Who is given work and when: announced slots, asking, pushing, free slots, batches of messages."""

from tests.protocol.api import Api
from tests.protocol.client import ABSENT, message
from tests.protocol.hub import RunningHub


async def test_nothing_is_pushed_before_a_worker_has_announced_its_slots(hub: RunningHub, api: Api) -> None:
    job = await api.submit()
    worker = hub.stranger()
    await worker.connect()
    await worker.register()
    await worker.quiet()
    assert await api.state(job) == "pending"
    await worker.beat(slots=ABSENT)
    await worker.quiet()
    await worker.beat()
    await worker.take(job)


async def test_slots_of_a_question_license_one_answer_and_no_push(hub: RunningHub, api: Api) -> None:
    for plain in (True, False):
        worker = hub.stranger(plain=plain)
        await worker.connect()
        await worker.register()
        job = await api.submit()
        await worker.ask()
        await worker.end(await worker.take(job))
        job = await api.submit()
        await worker.quiet()
        await worker.ask()
        await worker.end(await worker.take(job))
        await worker.leave()


async def test_a_plain_worker_gets_one_job_for_each_question(hub: RunningHub, api: Api) -> None:
    worker = hub.stranger(plain=True)
    await worker.connect()
    await worker.register()
    first, second = await api.submit(), await api.submit()
    await worker.ask()
    task = await worker.assigned(first)
    await worker.quiet()
    await worker.accept(task)
    await worker.ask()
    await worker.take(second)
    await worker.ask()
    await worker.expect("no_work")


async def test_a_plain_worker_is_pushed_the_next_job_after_it_has_accepted_the_last(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(plain=True)
    first, second = await api.submit(), await api.submit()
    task = await worker.assigned(first)
    await worker.quiet()
    await worker.send("job_accepted", task_id=task.task_id, attempt=task.attempt)
    await worker.take(second)


async def test_the_tier_test_of_the_original(hub: RunningHub, api: Api) -> None:
    """Neither sends a heartbeat. The GPU worker asks first, and leaves the CPU job to the CPU worker."""
    gpu = hub.stranger("gpu-worker", plain=True, gpu_count=4, vram_gb=96)
    cpu = hub.stranger("cpu-worker", plain=True, cpu_count=8)
    for worker in (gpu, cpu):
        await worker.connect()
        await worker.register()
    train = await api.submit(gpu_count=2, job_tier="training")
    data = await api.submit(job_tier="data_processing")
    await gpu.ask()
    await cpu.ask()
    await gpu.take(train)
    await cpu.take(data)


async def test_slots_have_to_be_announced_anew_on_every_connection(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker()
    await hub.lose(worker)
    job = await api.submit()
    await worker.connect()
    await worker.register()
    await worker.quiet()
    await worker.beat()
    await worker.take(job)


async def test_asking_is_answered_by_no_work_when_nothing_fits(hub: RunningHub) -> None:
    worker = await hub.worker()
    for _ in range(3):
        await worker.ask()
        await worker.expect("no_work")


async def test_asking_is_answered_by_an_assignment_when_something_fits(hub: RunningHub, api: Api) -> None:
    worker = hub.stranger()
    await worker.connect()
    await worker.register()
    job = await api.submit()
    await worker.ask()
    await worker.take(job)


async def test_asking_without_any_slot_is_answered_too(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(slots=0)
    await api.submit()
    await worker.ask()
    await worker.expect("no_work")


async def test_every_question_gets_its_own_answer(hub: RunningHub) -> None:
    """Two questions in one frame are two questions: the answer to a ready_for_work is never left out."""
    worker = hub.stranger()
    worker.batch = True
    await worker.connect()
    await worker.register(protocol={"batch": True})
    question = message("ready_for_work", worker_id=worker.name, slots=worker.honest_slots(), reason="idle")
    await worker.send_together(question, question)
    await worker.expect("no_work")
    await worker.expect("no_work")


async def test_a_worker_that_only_ever_asks_is_served_beside_one_that_never_does(hub: RunningHub, api: Api) -> None:
    asking = hub.stranger("asking", slots=1)
    await asking.connect()
    await asking.register()
    await asking.ask()
    await asking.expect("no_work")
    silent = await hub.worker("silent", slots=1)
    first, second = await api.submit(), await api.submit()
    await silent.end(await silent.take(first))
    await silent.take(second)
    third = await api.submit()
    await asking.ask()
    await asking.take(third)
    await asking.ask()
    await asking.expect("no_work")


async def test_a_drained_worker_that_asks_is_told_that_there_is_no_work(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker()
    assert (await api.post("/v1/workers/w/drain"))["draining"]
    job = await api.submit()
    await worker.ask()
    await worker.expect("no_work")
    assert not (await api.post("/v1/workers/w/resume"))["draining"]
    await worker.take(job)


async def test_a_worker_that_says_it_is_draining_gets_nothing_new(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker()
    await worker.beat(draining=True)
    await api.submit()
    await worker.ask()
    await worker.expect("no_work")
    assert (await api.worker("w"))["draining"]


async def test_a_worker_gets_no_more_than_its_slots(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(slots=2)
    jobs = [await api.submit() for _ in range(3)]
    first, _ = await worker.take_all(*jobs[:2])
    await worker.ask()
    await worker.expect("no_work")
    await worker.end(first)
    await worker.take(jobs[2])


async def test_slots_in_use_that_the_hub_knows_nothing_of_are_not_free(hub: RunningHub, api: Api) -> None:
    worker = hub.stranger(slots=2)
    worker.slots["batch_in_use"] = 2
    await hub.join(worker)
    first, second = await api.submit(), await api.submit()
    await worker.ask()
    await worker.expect("no_work")
    # One of the two things that it did for itself has ended: 2 less the larger of 1 in use and 0, then 1 placed.
    worker.slots["batch_in_use"] = 1
    await worker.beat()
    await worker.take_all(first, second)


async def test_the_larger_of_what_is_reported_and_what_is_placed_counts(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(slots=3)
    first = await worker.take(await api.submit())
    # One of the hub's and two of its own.
    await worker.beat(slots=worker.slots | {"batch_in_use": 3})
    second = await api.submit()
    await worker.quiet()
    await worker.end(first)
    await worker.take(second)
    await worker.ask(slots=worker.slots | {"batch_in_use": 3})
    await worker.expect("no_work")


async def test_what_has_ended_since_the_report_is_taken_off_what_was_reported(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(slots=2)
    first = await worker.take(await api.submit())
    await worker.take(await api.submit())
    await worker.beat()
    third = await api.submit()
    await worker.quiet()
    await worker.end(first)
    await worker.take(third)


async def test_a_report_from_before_an_assignment_does_not_free_the_slot_again(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(slots=1)
    first = await worker.assigned(await api.submit())
    await api.submit()
    await worker.beat(active=ABSENT, slots=worker.slots | {"batch_in_use": 0})
    await worker.accept(first)
    await worker.ask(slots=worker.slots | {"batch_in_use": 0})
    await worker.expect("no_work")


async def test_slots_that_grow_are_filled(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(slots=1)
    await worker.take(await api.submit())
    second = await api.submit()
    worker.slots["batch_total"] = 2
    await worker.beat()
    await worker.take(second)


async def test_an_offer_that_changes_while_connected_counts_from_then_on(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(gpu_count=1, vram_gb=24)
    job = await api.submit(gpu_count=2)
    await worker.quiet()
    worker.capabilities |= {"gpu_count": 2, "vram_gb": 48}
    await worker.beat()
    await worker.take(job)


async def test_a_registration_with_the_plainest_capabilities_works(hub: RunningHub, api: Api) -> None:
    worker = hub.stranger()
    worker.capabilities = {
        "gpu_backend": "nvidia",
        "gpu_count": 1,
        "gpu_type": "A100",
        "vram_gb": 40,
        "cpu_count": 8,
        "memory_gb": 32,
        "hostname": "plain",
        "gpu_info": {"gpu_type": "A100", "count": 1, "devices": ["A100"], "driver": "550", "mem_total": 40},
    }
    await hub.join(worker)
    await worker.take(await api.submit(gpu_count=1, min_vram_gb=40))


async def test_several_messages_in_one_frame_go_both_ways_for_a_worker_that_takes_batches(
    hub: RunningHub, api: Api
) -> None:
    worker = hub.stranger(slots=8)
    worker.batch = True
    await worker.connect()
    await worker.register(protocol={"batch": True})
    await worker.beat()
    job = await api.submit(array=8)
    tasks = [await worker.assigned() for _ in range(8)]
    assert worker.largest_frame > 1
    await worker.send_together(*(message("job_accepted", task_id=one.task_id, attempt=one.attempt) for one in tasks))
    await worker.quiet()
    assert (await api.job(job))["counts"] == {"running": 8}
    await worker.send_together(
        *(
            message("job_result", task_id=one.task_id, attempt=one.attempt, state="succeeded", exit_code=0)
            for one in tasks
        )
    )
    for one in tasks:
        await worker.expect("ack", of="job_result", task_id=one.task_id, attempt=one.attempt)
    assert await api.state(job) == "succeeded"


async def test_a_bad_message_in_a_batch_does_not_silence_those_around_it(hub: RunningHub) -> None:
    """Either the whole frame is refused or all that is good in it is answered, never a part of it."""
    worker = hub.stranger()
    worker.batch = True
    await worker.connect()
    await worker.register(protocol={"batch": True})
    question = message("ready_for_work", worker_id=worker.name, slots=worker.honest_slots(), reason="idle")
    await worker.send_together(question, message("job_result", task_id="t"), question)
    said = await worker.heard() + await worker.heard()
    assert sum(bool(one.get("error")) for one in said) == 1
    assert sum(one["type"] == "no_work" for one in said) in (0, 2)


async def test_every_frame_is_one_message_for_a_worker_that_did_not_ask_for_batches(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(slots=8, plain=True)
    job = await api.submit(array=8)
    for index in range(8):
        task = await worker.assigned(f"{job}.{index}")
        await worker.send("job_accepted", task_id=task.task_id, attempt=task.attempt)
    assert worker.largest_frame == 1


async def test_nothing_is_sent_ahead_of_the_room_to_a_worker_that_did_not_ask_for_it(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(slots=2)
    job = await api.submit(array=6)
    await worker.take_all(f"{job}.0", f"{job}.1")
