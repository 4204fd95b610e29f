"""The matching table of the scheduling page, over the socket and the submit call; its worked cases are binding."""

from typing import Any

import pytest
from tests.protocol.api import Api
from tests.protocol.client import Worker
from tests.protocol.hub import RunningHub


async def refuses(api: Api, worker: Worker, **needs: Any) -> dict[str, Any]:
    """This worker gets nothing for such a job, even when it asks; the job stays pending. The answer to why."""
    job = await api.submit(**needs)
    await worker.ask()
    await worker.expect("no_work")
    assert await api.state(job) == "pending"
    why = await api.why(job)
    found = next(one for one in why["workers"] if one["id"] == worker.name)
    assert not found["fits"]
    assert found["reasons"]
    return why


async def takes(api: Api, worker: Worker, **needs: Any) -> None:
    job = await api.submit(**needs)
    await worker.take(job)
    assert (await api.job(job))["worker"] == worker.name


async def test_a_worker_with_two_24_gb_gpus_takes_two_gpus_with_48_gb(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(gpu_count=2, vram_gb=48)
    await takes(api, worker, gpu_count=2, min_vram_gb=48)


async def test_a_32_gb_worker_with_two_gpus_takes_one_gpu_with_16_gb(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(gpu_count=2, vram_gb=32)
    await takes(api, worker, gpu_count=1, min_vram_gb=16)


async def test_a_32_gb_worker_with_two_gpus_refuses_one_gpu_with_24_gb(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(gpu_count=2, vram_gb=32)
    why = await refuses(api, worker, gpu_count=1, min_vram_gb=24)
    assert [blocker["axis"] for blocker in why["blockers"]] == ["vram"]


async def test_an_nvidia_worker_refuses_a_metal_job(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(gpu_count=1, vram_gb=24)
    why = await refuses(api, worker, gpu_backend="metal")
    assert [blocker["axis"] for blocker in why["blockers"]] == ["backend"]


async def test_a_vulkan_worker_takes_a_job_with_no_backend(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(gpu_backend="vulkan", gpu_count=1, vram_gb=8)
    await takes(api, worker, gpu_count=1)


async def test_a_cpu_worker_refuses_one_nvidia_gpu(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker()
    why = await refuses(api, worker, gpu_backend="nvidia", gpu_count=1)
    assert "ever" in why["summary"]


async def test_an_8_gpu_worker_holding_a_4_gpu_job_takes_another_and_refuses_a_5_gpu_one(
    hub: RunningHub, api: Api
) -> None:
    worker = await hub.worker(gpu_count=8, vram_gb=640)
    first = await api.submit(gpu_count=4)
    held = await worker.take(first)
    why = await refuses(api, worker, gpu_count=5)
    [blocker] = why["blockers"]
    assert blocker["axis"] == "gpu_count"
    assert "5" in blocker["reason"]
    assert "4 free of 8" in blocker["reason"]
    second = await api.submit(gpu_count=4)
    other = await worker.take(second)
    assert sorted(held.devices + other.devices) == list(range(8))


async def test_a_4_gpu_job_goes_to_the_8_gpu_worker_exactly_once_while_both_ask_again_and_again(
    hub: RunningHub, api: Api
) -> None:
    small = await hub.worker("small", gpu_count=2, vram_gb=160)
    large = await hub.worker("large", gpu_count=8, vram_gb=640)
    for worker in (small, large) * 3:
        await worker.ask()
        await worker.expect("no_work")
    job = await api.submit(gpu_count=4)
    await large.take(job)
    for worker in (small, large) * 3:
        await worker.ask()
        await worker.expect("no_work")
    assert len((await api.job(job))["attempts"]) == 1


async def test_a_gpu_type_matches_whatever_its_case_and_auto_matches_any(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(gpu_count=2, vram_gb=160)
    await takes(api, worker, gpu_count=1, gpu_type="a100")
    await takes(api, worker, gpu_count=1, gpu_type="auto")
    other = await hub.worker("other", gpu_count=1, vram_gb=24, gpu_backend="nvidia", gpu_type="RTX4090")
    why = await refuses(api, other, gpu_count=1, gpu_type="A100")
    assert "gpu_type" in [blocker["axis"] for blocker in why["blockers"]]


LONG = {
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA GeForce RTX 4090": "rtx4090",
    "Tesla T4": "t4",
    "Quadro RTX 8000": "RTX8000",
    "Apple M2 Max": "m2max",
    "AMD Instinct MI250X": "MI250X",
}


@pytest.mark.parametrize(("name", "short"), LONG.items())
async def test_a_worker_that_announces_a_vendors_long_name_is_asked_for_by_either_name(
    hub: RunningHub, api: Api, name: str, short: str
) -> None:
    worker = await hub.worker(gpu_count=2, vram_gb=80, gpu_backend="nvidia", gpu_type=name)
    await takes(api, worker, gpu_count=1, gpu_type=short)
    await takes(api, worker, gpu_count=1, gpu_type=name.upper())
    await refuses(api, worker, gpu_count=1, gpu_type="h100")


async def test_a_worker_that_only_lists_the_names_of_its_gpus_is_asked_for_by_their_type(
    hub: RunningHub, api: Api
) -> None:
    info = {"count": 1, "devices": ["NVIDIA L40S"]}
    worker = await hub.worker(gpu_count=1, vram_gb=48, gpu_backend="nvidia", gpu_type="", gpu_info=info)
    await takes(api, worker, gpu_count=1, gpu_type="l40s")


async def test_a_job_that_names_the_cpu_backend_gets_a_cpu_worker_only(hub: RunningHub, api: Api) -> None:
    with_gpu = await hub.worker("with-gpu", gpu_count=1, vram_gb=24)
    await refuses(api, with_gpu, gpu_backend="cpu")
    without = hub.stranger("without")
    await without.connect()
    await without.register()
    await without.beat()
    await without.take()


async def test_a_job_without_gpus_fits_a_gpu_worker_and_prefers_a_machine_without(hub: RunningHub, api: Api) -> None:
    with_gpu = await hub.worker("a-with-gpu", gpu_count=1, vram_gb=24, slots=1)
    await takes(api, with_gpu)
    await with_gpu.end(with_gpu.holding[0])
    without = await hub.worker("z-without", slots=1)
    await takes(api, without)


async def test_jobs_without_a_whole_gpu_share_one_by_its_vram(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(gpu_count=1, vram_gb=24)
    for _ in range(2):
        task = await worker.take(await api.submit(min_vram_gb=10))
        assert task.devices == [0]
    why = await refuses(api, worker, min_vram_gb=10)
    assert [blocker["axis"] for blocker in why["blockers"]] == ["vram"]
    await refuses(api, worker, gpu_count=1)


async def test_vram_is_known_per_device_where_the_worker_reports_devices(hub: RunningHub, api: Api) -> None:
    devices = [{"index": 0, "vram_gb": 8, "name": "small"}, {"index": 1, "vram_gb": 24, "name": "large"}]
    worker = await hub.worker(gpu_count=2, vram_gb=32, devices=devices)
    task = await worker.take(await api.submit(gpu_count=1, min_vram_gb=20))
    assert task.devices == [1]
    why = await refuses(api, worker, gpu_count=1, min_vram_gb=20)
    assert [blocker["axis"] for blocker in why["blockers"]] == ["vram"]


@pytest.mark.parametrize(("need", "axis"), [({"min_cpu_cores": 9}, "cores"), ({"min_memory_gb": 33}, "memory")])
async def test_cores_and_memory_are_taken_by_what_runs_and_come_back_with_its_end(
    hub: RunningHub, api: Api, need: dict[str, float], axis: str
) -> None:
    worker = await hub.worker()
    first = await worker.take(await api.submit(**need))
    why = await refuses(api, worker, **need)
    assert [blocker["axis"] for blocker in why["blockers"]] == [axis]
    await worker.end(first)
    await worker.take()


@pytest.mark.parametrize(
    ("constraint", "holds"),
    [
        ("zone = eu", True),
        ("zone = us", False),
        ("zone != us", True),
        ("zone != eu", False),
        ("zone in us,eu", True),
        ("zone in us,asia", False),
        ("zone exists", True),
        ("nvlink exists", False),
        ("driver >= 550", True),
        ("driver > 550", False),
        ("driver <= 550", True),
        ("driver < 1000", True),
        ("hostname = w", True),
        ("hostname = elsewhere", False),
        ("os = linux", True),
        ("arch = arm64", False),
    ],
)
async def test_a_label_constraint_holds_or_it_closes_the_worker(
    hub: RunningHub, api: Api, constraint: str, holds: bool
) -> None:
    worker = await hub.worker(labels={"zone": "eu", "driver": "550"}, os="linux", arch="x86_64")
    if holds:
        await takes(api, worker, labels=[constraint])
    else:
        why = await refuses(api, worker, labels=[constraint])
        assert [blocker["axis"] for blocker in why["blockers"]] == ["labels"]


async def test_constraints_name_the_versions_that_a_worker_announces(hub: RunningHub, api: Api) -> None:
    gpus = {"gpu_type": "A100", "count": 1, "driver": "550.54.15", "cuda": "12.4"}
    worker = await hub.worker(gpu_count=1, vram_gb=40, torch_version="2.3.1+cu121", gpu_info=gpus)
    await takes(api, worker, labels=["torch >= 2.3", "driver >= 550", "driver < 560", "cuda >= 12.1"])
    await refuses(api, worker, labels=["torch >= 2.10"])
    await refuses(api, worker, labels=["cuda > 12.4"])


async def test_a_service_takes_a_service_slot_and_a_batch_job_a_batch_slot(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(slots=1)
    why = await refuses(api, worker, type="service")
    assert [blocker["axis"] for blocker in why["blockers"]] == ["slots"]
    worker.slots |= {"service_total": 1}
    await worker.beat()
    service = await worker.take()
    assert service.payload["spec"]["type"] == "service"
    worker.holding.clear()
    await takes(api, worker)


async def test_a_task_that_does_not_fit_never_blocks_those_behind_it(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(gpu_count=1, vram_gb=24)
    await refuses(api, worker, gpu_count=2, priority=10, job_tier="training")
    await takes(api, worker, gpu_count=1)


async def test_what_no_worker_could_ever_run_stays_pending_until_a_machine_joins(hub: RunningHub, api: Api) -> None:
    small = await hub.worker("small", gpu_count=1, vram_gb=24)
    job = await api.submit(gpu_count=4)
    assert "ever" in (await api.why(job))["summary"].splitlines()[0]
    large = await hub.worker("large", gpu_count=4, vram_gb=96)
    await large.take(job)
    await small.quiet()


async def test_higher_priority_goes_first_then_the_tier_then_arrival(hub: RunningHub, api: Api) -> None:
    worker = await hub.worker(slots=1)
    running = await worker.take(await api.submit())
    last = await api.submit()
    third = await api.submit(job_tier="evaluation")
    second = await api.submit(job_tier="training")
    first = await api.submit(priority=1)
    for expected in (first, second, third, last):
        await worker.end(running)
        running = await worker.take(expected)
    await worker.end(running)
