"""The worked cases of the scheduling page and the tier test of the original, with workers of the original make.

`make originals` repeats each fifty times: an order of frames that spoils a case now and then is found there.
"""

import os
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.originals.go_worker import GoWorker, go_worker
from tests.protocol.api import Api
from tests.protocol.hub import RunningHub

ROUNDS = pytest.mark.parametrize("round_number", range(int(os.environ.get("OSTLER_TEST_ROUNDS", "1"))))

TWO_OF_24 = {"gpu_backend": "nvidia", "gpu_count": 2, "gpu_type": "RTX4090", "vram_gb": 48.0}
TWO_OF_16 = {"gpu_backend": "nvidia", "gpu_count": 2, "gpu_type": "T4", "vram_gb": 32.0}
EIGHT = {"gpu_backend": "nvidia", "gpu_count": 8, "gpu_type": "A100", "vram_gb": 640.0}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "2 GPUs with 48 GB fit 2 GPUs of 24 GB": (TWO_OF_24, {"gpu_count": 2, "min_vram_gb": 48}, True),
    "1 GPU with 16 GB fits 2 GPUs of 16 GB": (TWO_OF_16, {"gpu_count": 1, "min_vram_gb": 16}, True),
    "1 GPU with 24 GB does not fit 2 GPUs of 16 GB": (TWO_OF_16, {"gpu_count": 1, "min_vram_gb": 24}, False),
    "an nvidia worker refuses a metal job": (TWO_OF_24, {"gpu_count": 1, "gpu_backend": "metal"}, False),
    "a vulkan worker takes a job without a backend": (
        {"gpu_backend": "vulkan", "gpu_count": 1, "vram_gb": 8.0},
        {"gpu_count": 1},
        True,
    ),
    "a cpu worker refuses 1 nvidia GPU": ({}, {"gpu_count": 1, "gpu_backend": "nvidia"}, False),
}


@ROUNDS
@pytest.mark.parametrize("case", CASES)
async def test_a_worker_that_asks_gets_what_fits_and_nothing_else(
    hub: RunningHub, api: Api, case: str, round_number: int
) -> None:
    offered, asked, fits = CASES[case]
    async with go_worker(hub, **offered) as worker:
        await worker.register()
        job = await api.submit(**asked)
        await worker.ask()
        if fits:
            await worker.take(job)
        else:
            await worker.expect("no_work")
            assert await api.state(job) == "pending"


@ROUNDS
async def test_8_gpus_hold_two_jobs_of_4_and_none_of_5(hub: RunningHub, api: Api, round_number: int) -> None:
    async with go_worker(hub, **EIGHT) as worker:
        await worker.register()
        first = await api.submit(gpu_count=4)
        await worker.ask()
        await worker.take(first)
        five = await api.submit(gpu_count=5, priority=1)
        await worker.ask()
        await worker.expect("no_work")
        second = await api.submit(gpu_count=4)
        await worker.ask()
        await worker.take(second)
        assert await api.state(five) == "pending"


@ROUNDS
async def test_a_job_of_4_gpus_goes_to_the_worker_with_8_exactly_once(
    hub: RunningHub, api: Api, round_number: int
) -> None:
    async with AsyncExitStack() as stack:
        small = await stack.enter_async_context(go_worker(hub, "small", **TWO_OF_24))
        large = await stack.enter_async_context(go_worker(hub, "large", **EIGHT))
        for worker in (small, large):
            await worker.register()
        job = await api.submit(gpu_count=4)
        given = [answer for worker in (small, large, small, large, small) for answer in await answers(worker)]
        assert given == [job]
        assert (await api.job(job))["worker"] == "large"


async def answers(worker: GoWorker) -> list[str]:
    """The task that one question brings, if any."""
    await worker.ask()
    kind, payload, _ = await worker.receive()
    if kind == "no_work":
        return []
    assert kind == "job_assign"
    await worker.send("job_accepted", task_id=payload["spec"]["id"])
    return [payload["spec"]["id"]]


@ROUNDS
async def test_each_tier_goes_to_the_machine_that_is_meant_for_it(hub: RunningHub, api: Api, round_number: int) -> None:
    """The original's tier test: neither worker sends a heartbeat, and the GPU worker asks first."""
    async with AsyncExitStack() as stack:
        gpu = await stack.enter_async_context(
            go_worker(hub, "gpu-worker", gpu_backend="nvidia", gpu_count=4, vram_gb=96.0)
        )
        cpu = await stack.enter_async_context(go_worker(hub, "cpu-worker", cpu_count=8))
        for worker in (gpu, cpu):
            await worker.register()
        train = await api.submit(gpu_count=2, job_tier="training")
        data = await api.submit(gpu_count=0, job_tier="data_processing")
        await gpu.ask()
        await cpu.ask()
        await gpu.take(train)
        await cpu.take(data)
        for worker in (gpu, cpu):
            await worker.quiet()
